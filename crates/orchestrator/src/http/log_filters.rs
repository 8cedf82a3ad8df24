//! The endpoints for what the orchestrator and its engines log.

use std::sync::Arc;

use api::log_filter::{LogFilter, MAX_FILTER_BYTES, SetLogFilter};
use api::{ErrorBody, ErrorCode, UserId};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, Json, Path};
use http_service::logging::InvalidFilter;

use super::auth::{Admin, AuthenticatedProduct};
use super::error::to_api_error;
use crate::fleet::{FilterRequest, Fleet};

type JsonResult = Result<Answer<LogFilter>, ApiError>;

/// Returns what this orchestrator logs.
#[utoipa::path(
    get, path = "/fleet/log-filter", operation_id = "get_fleet_log_filter", tag = "fleet",
    security(("admin_key" = [])),
    responses(
        (status = 200, description = "The filter", body = LogFilter),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn get_fleet(_admin: Admin, State(fleet): State<Arc<Fleet>>) -> JsonResult {
    fleet.log_filters.of_orchestrator(&FilterRequest::Read).map(Answer).map_err(|error| invalid(&error))
}

/// Changes what this orchestrator logs for some time; then the configured filter holds again, as it does after a restart.
#[utoipa::path(
    put, path = "/fleet/log-filter", operation_id = "set_fleet_log_filter", tag = "fleet",
    security(("admin_key" = [])), request_body = SetLogFilter,
    responses(
        (status = 200, description = "The filter", body = LogFilter),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn set_fleet(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Json(request): Json<SetLogFilter>,
) -> JsonResult {
    let request = replacement(request)?;
    fleet.log_filters.of_orchestrator(&request).map(Answer).map_err(|error| invalid(&error))
}

/// Lets the configured filter of this orchestrator hold again.
#[utoipa::path(
    delete, path = "/fleet/log-filter", operation_id = "reset_fleet_log_filter", tag = "fleet",
    security(("admin_key" = [])),
    responses(
        (status = 200, description = "The filter", body = LogFilter),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn reset_fleet(_admin: Admin, State(fleet): State<Arc<Fleet>>) -> JsonResult {
    fleet.log_filters.of_orchestrator(&FilterRequest::Reset).map(Answer).map_err(|error| invalid(&error))
}

/// Returns what a running engine logs.
#[utoipa::path(
    get, path = "/engines/{user_id}/log-filter", operation_id = "get_engine_log_filter", tag = "engines",
    security(("platform_key" = []), ("admin_key" = [])),
    params(("user_id" = UserId, Path, description = "The product's user")),
    responses(
        (status = 200, description = "The filter", body = LogFilter),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`ENGINE_NOT_RUNNING`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn get_engine(
    AuthenticatedProduct(caller): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(user_id): Path<UserId>,
) -> JsonResult {
    let filter = fleet.log_filters.of_engine(&caller, user_id, FilterRequest::Read).await;
    filter.map(Answer).map_err(to_api_error)
}

/// Changes what a running engine logs for some time; then its configured filter holds again, as it does after a restart.
#[utoipa::path(
    put, path = "/engines/{user_id}/log-filter", operation_id = "set_engine_log_filter", tag = "engines",
    security(("platform_key" = []), ("admin_key" = [])), request_body = SetLogFilter,
    params(("user_id" = UserId, Path, description = "The product's user")),
    responses(
        (status = 200, description = "The filter", body = LogFilter),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`ENGINE_NOT_RUNNING`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn set_engine(
    AuthenticatedProduct(caller): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(user_id): Path<UserId>,
    Json(request): Json<SetLogFilter>,
) -> JsonResult {
    let filter = fleet.log_filters.of_engine(&caller, user_id, replacement(request)?).await;
    filter.map(Answer).map_err(to_api_error)
}

/// Lets the configured filter of a running engine hold again.
#[utoipa::path(
    delete, path = "/engines/{user_id}/log-filter", operation_id = "reset_engine_log_filter", tag = "engines",
    security(("platform_key" = []), ("admin_key" = [])),
    params(("user_id" = UserId, Path, description = "The product's user")),
    responses(
        (status = 200, description = "The filter", body = LogFilter),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`ENGINE_NOT_RUNNING`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn reset_engine(
    AuthenticatedProduct(caller): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(user_id): Path<UserId>,
) -> JsonResult {
    let filter = fleet.log_filters.of_engine(&caller, user_id, FilterRequest::Reset).await;
    filter.map(Answer).map_err(to_api_error)
}

fn replacement(request: SetLogFilter) -> Result<FilterRequest, ApiError> {
    if request.filter.len() > MAX_FILTER_BYTES {
        let message = format!("`filter`: must have at most {MAX_FILTER_BYTES} bytes");
        return Err(ApiError::new(ErrorCode::InvalidRequest, message));
    }
    FilterRequest::replace(request).map_err(|error| invalid(&error))
}

fn invalid(error: &InvalidFilter) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, format!("`filter`: {error}"))
}
