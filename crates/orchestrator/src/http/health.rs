//! The readiness endpoint, which needs no key.

use std::sync::Arc;

use api::orchestrator::{Health, HealthStatus};
use api::{ErrorBody, ErrorCode};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use crate::fleet::Fleet;

/// Reports whether the orchestrator is ready.
#[utoipa::path(
    get, path = "/health", operation_id = "get_health", tag = "service",
    responses(
        (status = 200, description = "Ready", body = Health),
        (status = 503, description = "Not ready: `status` is `starting` or `standby`, and `error` has `STARTING_UP`",
            body = Health),
    ),
)]
pub(super) async fn health(State(fleet): State<Arc<Fleet>>) -> Response {
    if fleet.is_ready() {
        return axum::Json(Health { status: HealthStatus::Ok, error: None }).into_response();
    }
    unready_response(HealthStatus::Starting)
}

/// Returns the 503 response of an orchestrator that is not ready.
pub(super) fn unready_response(status: HealthStatus) -> Response {
    let message = match status {
        HealthStatus::Ok | HealthStatus::Starting => "the orchestrator is starting",
        HealthStatus::Standby => "this orchestrator is a standby, and another one is active",
    };
    let ErrorBody { error } = ErrorBody::new(ErrorCode::StartingUp, message);
    let body = axum::Json(Health { status, error: Some(error) });
    let retry_after = [(header::RETRY_AFTER, HeaderValue::from_static("1"))];
    (StatusCode::SERVICE_UNAVAILABLE, retry_after, body).into_response()
}
