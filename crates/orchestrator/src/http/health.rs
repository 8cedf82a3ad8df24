//! The readiness endpoint, which needs no key.

use std::sync::Arc;

use api::orchestrator::{Health, HealthStatus, ROLE_HEADER};
use api::{ErrorBody, ErrorCode};
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use crate::fleet::Fleet;

/// Reports whether the orchestrator is ready.
#[utoipa::path(
    get, path = "/health", operation_id = "get_health", tag = "service",
    responses(
        (status = 200, description = "Ready", body = Health,
            headers(("X-Roundhouse-Role" = String, description = "`active`"))),
        (status = 503, description = "Not ready: `status` is `starting` or `standby`, and `error` has `STARTING_UP`",
            body = Health, headers(("X-Roundhouse-Role" = String, description = "`standby` or `starting`"))),
    ),
)]
pub(super) async fn health(State(fleet): State<Arc<Fleet>>) -> Response {
    if fleet.is_ready() {
        let body = axum::Json(Health { status: HealthStatus::Ok, error: None });
        return ([role(HealthStatus::Ok)], body).into_response();
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
    (StatusCode::SERVICE_UNAVAILABLE, [role(status)], retry_after, body).into_response()
}

/// What the orchestrator is at the moment, for whoever looks at headers only.
fn role(status: HealthStatus) -> (HeaderName, HeaderValue) {
    let role = match status {
        HealthStatus::Ok => "active",
        HealthStatus::Starting => "starting",
        HealthStatus::Standby => "standby",
    };
    (HeaderName::from_static(ROLE_HEADER), HeaderValue::from_static(role))
}
