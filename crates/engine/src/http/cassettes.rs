//! `/cassettes` and the cassettes of turns: recorded turns that are run again.

use api::cassettes::{Cassette, CassetteReport, RunCassette};
use api::{ErrorBody, TaskId};
use axum::extract::State as Extract;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use http_service::http::{ApiError, Path};

use super::AppState;
use super::admission::AdmittedLenient;
use super::auth::Authenticated;

/// Returns the cassette of a turn that has ended.
#[utoipa::path(
    get, path = "/tasks/{task_id}/turns/{turn_id}/cassette", operation_id = "export_cassette",
    security(("engine_key" = [])),
    params(
        ("task_id" = String, Path, description = "The task"),
        ("turn_id" = String, Path, description = "The turn"),
    ),
    responses(
        (status = 200, body = Cassette, description = "The cassette"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND, TURN_NOT_FOUND"),
        (status = 409, body = ErrorBody, description = "TASK_BUSY: the turn has not ended"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE: the cassette would be too large"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "OVERLOADED, SHUTTING_DOWN"),
    ),
)]
pub(super) async fn export(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path((task_id, turn_id)): Path<(TaskId, String)>,
) -> Result<impl IntoResponse, ApiError> {
    let json = shared.agent.export_cassette(Some(&task_id), &turn_id).await?;
    Ok(([(CONTENT_TYPE, "application/json")], json))
}

/// Runs a cassette again, on another model if wanted, and returns what is different. Tools only return what was
/// recorded; nothing acts.
#[utoipa::path(
    post, path = "/cassettes/run", operation_id = "run_cassette", request_body = RunCassette,
    security(("engine_key" = [])),
    responses(
        (status = 200, body = CassetteReport, description = "The run, compared with the recorded turn"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST, MODEL_NOT_PERMITTED"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 429, body = ErrorBody, description = "USAGE_CAP_REACHED"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "OVERLOADED, QUIESCED, SHUTTING_DOWN"),
    ),
)]
pub(super) async fn run(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    AdmittedLenient(run, _memory): AdmittedLenient<RunCassette>,
) -> Result<axum::Json<CassetteReport>, ApiError> {
    Ok(axum::Json(shared.agent.run_cassette(run).await?))
}
