//! `POST /execute/cancel` and `POST /execute/steer`: control of a running turn.

use api::ErrorBody;
use api::engine::{Cancel, Cancelled, CancelledStatus, Steer, Steered, SteeredStatus};
use axum::extract::State as Extract;
use http_service::http::ApiError;

use super::AppState;
use super::admission::AdmittedLenient;
use super::auth::Caller;

/// Cancels a task's turn that is running or waiting for a person. Its effects remain. With `turn_id` no other turn is
/// cancelled, so that a request that comes late does not end the next turn.
#[utoipa::path(
    post, path = "/execute/cancel", operation_id = "cancel_turn",
    request_body = Cancel, security(("engine_key" = [])),
    responses(
        (status = 200, body = Cancelled, description = "The turn is cancelled"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND, TASK_NOT_RUNNING"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn cancel(
    caller: Caller,
    Extract(AppState(shared)): Extract<AppState>,
    AdmittedLenient(request, _memory): AdmittedLenient<Cancel>,
) -> Result<axum::Json<Cancelled>, ApiError> {
    caller.check_task(&request.task_id)?;
    let turn_id = shared.agent.cancel(&request.task_id, request.turn_id).await?;
    Ok(axum::Json(Cancelled { status: CancelledStatus::Cancelled, turn_id }))
}

/// Sends a message to a task's running turn; its model sees the message after the current step. With `turn_id` no
/// other turn is steered.
#[utoipa::path(
    post, path = "/execute/steer", operation_id = "steer_turn",
    request_body = Steer, security(("engine_key" = [])),
    responses(
        (status = 200, body = Steered, description = "The message is accepted"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND, TASK_NOT_RUNNING"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn steer(
    caller: Caller,
    Extract(AppState(shared)): Extract<AppState>,
    AdmittedLenient(request, _memory): AdmittedLenient<Steer>,
) -> Result<axum::Json<Steered>, ApiError> {
    caller.check_task(&request.task_id)?;
    let message_id = shared.agent.steer(&request.task_id, request.turn_id, request.message).await?;
    Ok(axum::Json(Steered { status: SteeredStatus::Accepted, message_id }))
}
