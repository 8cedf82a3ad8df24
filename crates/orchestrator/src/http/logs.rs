//! The endpoint for an engine's log.

use std::sync::Arc;

use api::orchestrator::{EngineLogs, ReadLogs, TailLines};
use api::{ErrorBody, UserId};
use axum::extract::State;
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use http_service::http::{ApiError, Path, Query};

use super::auth::AuthenticatedProduct;
use super::error::to_api_error;
use crate::fleet::Fleet;

/// Returns the last lines of an engine's log, whatever its state.
#[utoipa::path(
    get, path = "/engines/{user_id}/logs", operation_id = "get_engine_logs", tag = "engines",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("user_id" = UserId, Path, description = "The product's user"),
        ("tail" = inline(Option<TailLines>), Query, description = "Number of lines; 200 by default"),
    ),
    responses(
        (status = 200, description = "The lines, oldest first", body = EngineLogs),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn tail(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(user_id): Path<UserId>,
    Query(request): Query<ReadLogs>,
) -> Result<([(HeaderName, &'static str); 1], String), ApiError> {
    let logs = fleet.queries.logs(&product, user_id, request).await.map_err(to_api_error)?;
    Ok(([(CONTENT_TYPE, "application/json")], logs))
}
