//! The calling product's audit log: pages of rows, and a server-sent event stream of new ones.

use std::sync::Arc;

use api::audit::{AuditEvent, AuditId, AuditList, AuditMessage, AuditPosition, FollowEvents, ListAudit};
use api::orchestrator::PageLimit;
use api::{ErrorBody, UserId};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use http_service::http::{ApiError, Query};

use super::audit_stream::{position, stream_response};
use super::auth::{AuthenticatedProduct, StreamingProduct};
use super::error::to_api_error;
use crate::fleet::Fleet;

/// Lists the calling product's audit log, newest row first.
#[utoipa::path(
    get, path = "/audit", operation_id = "list_audit_rows", tag = "audit",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("limit" = inline(Option<PageLimit>), Query, description = "Page size; 100 by default"),
        ("before" = inline(Option<AuditId>), Query, description = "Only rows older than the one with this id"),
        ("event" = Option<AuditEvent>, Query, description = "Only rows of this event"),
        ("user_id" = Option<UserId>, Query, description = "Only rows about this user's engines"),
    ),
    responses(
        (status = 200, description = "A page of rows", body = AuditList),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn list(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Query(request): Query<ListAudit>,
) -> Result<Answer<AuditList>, ApiError> {
    fleet.queries.audit(&product, request).await.map(Answer).map_err(to_api_error)
}

/// Streams the calling product's audit rows as they are committed. `event` is a row's event, `id` its id.
#[utoipa::path(
    get, path = "/events", operation_id = "follow_audit_rows", tag = "audit",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("after" = inline(Option<AuditPosition>), Query,
            description = "Start after the row with this id; 0 for all rows; by default only new rows"),
        ("Last-Event-ID" = inline(Option<AuditPosition>), Header,
            description = "Like `after`, and takes precedence over it"),
    ),
    responses(
        (status = 200, description = "The rows", body = AuditMessage, content_type = "text/event-stream"),
        (status = 400, description = "`INVALID_REQUEST`, also for the id of a row that does not exist yet",
            body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`CAPACITY_EXHAUSTED`: too many streams, `STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn follow(
    StreamingProduct(product, permit): StreamingProduct,
    State(fleet): State<Arc<Fleet>>,
    headers: HeaderMap,
    Query(request): Query<FollowEvents>,
) -> Result<Response, ApiError> {
    let after = position(&headers, request)?;
    let feed = fleet.queries.follow_audit_log(&product, after).await.map_err(to_api_error)?;
    Ok(stream_response(feed, permit))
}
