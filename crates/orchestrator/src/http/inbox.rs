//! The calling product's inbox: the questions of its engines that wait for a person.

use std::sync::Arc;

use api::inbox::{Inbox, ListInbox};
use api::orchestrator::PageLimit;
use api::{ErrorBody, HitlId, UserId};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, Query};

use super::auth::AuthenticatedProduct;
use super::error::to_api_error;
use crate::fleet::Fleet;

/// Lists the questions that wait for a person, of all the product's engines, also of those that sleep. Oldest first.
#[utoipa::path(
    get, path = "/inbox", operation_id = "list_inbox", tag = "inbox",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("limit" = inline(Option<PageLimit>), Query, description = "Page size; 100 by default"),
        ("after" = Option<HitlId>, Query, description = "Only questions after the one with this id"),
        ("user_id" = Option<UserId>, Query,
            description = "Only questions of this user's engine, which is asked first if it runs"),
    ),
    responses(
        (status = 200, description = "A page of questions", body = Inbox),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn list(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Query(query): Query<ListInbox>,
) -> Result<Answer<Inbox>, ApiError> {
    fleet.inbox.list(&product, query).await.map(Answer).map_err(to_api_error)
}
