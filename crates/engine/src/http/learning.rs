//! `/feedback`, `/admin/lc/trigger` and `/memory/lessons`: feedback on turns, and the lessons learned from it.

use api::ErrorBody;
use api::engine::{Deleted, DeletedStatus};
use api::learning::{BatchStarted, Feedback, FeedbackRecorded, Lessons};
use api::memory::ListMemory;
use axum::extract::State as Extract;
use http_service::http::{ApiError, Path, Query};

use super::AppState;
use super::admission::AdmittedLenient;
use super::auth::Authenticated;

/// Records a person's feedback on the newest turn of a task.
#[utoipa::path(
    post, path = "/feedback", operation_id = "give_feedback",
    request_body = Feedback, security(("engine_key" = [])),
    responses(
        (status = 200, body = FeedbackRecorded, description = "The feedback is recorded"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn give_feedback(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    AdmittedLenient(feedback, _memory): AdmittedLenient<Feedback>,
) -> Result<axum::Json<FeedbackRecorded>, ApiError> {
    Ok(axum::Json(shared.agent.give_feedback(feedback).await?))
}

/// Starts a learning batch, unless one is running, and returns without waiting for it.
#[utoipa::path(
    post, path = "/admin/lc/trigger", operation_id = "trigger_learning", security(("engine_key" = [])),
    responses(
        (status = 200, body = BatchStarted, description = "A batch is running"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "QUIESCED, SHUTTING_DOWN"),
    ),
)]
pub(super) async fn trigger(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> Result<axum::Json<BatchStarted>, ApiError> {
    Ok(axum::Json(shared.agent.start_batch().await?))
}

/// Lists the active lessons, newest first.
#[utoipa::path(
    get, path = "/memory/lessons", operation_id = "list_lessons", security(("engine_key" = [])),
    params(
        ("limit" = Option<i64>, Query, description = "The maximum number: 1 to 1,000, 50 by default"),
        ("offset" = Option<i64>, Query, description = "The number to skip; 0 by default"),
    ),
    responses(
        (status = 200, body = Lessons, description = "A page of lessons"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn lessons(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Query(query): Query<ListMemory>,
) -> Result<axum::Json<Lessons>, ApiError> {
    Ok(axum::Json(shared.agent.lessons(query).await?))
}

/// Undoes a lesson: the records that it replaced become active again.
#[utoipa::path(
    delete, path = "/memory/lessons/{id}", operation_id = "undo_lesson",
    params(("id" = String, Path, description = "The lesson")),
    security(("engine_key" = [])),
    responses(
        (status = 200, body = Deleted, description = "The lesson is undone"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn undo(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(id): Path<String>,
) -> Result<axum::Json<Deleted>, ApiError> {
    shared.agent.undo_lesson(&id).await?;
    Ok(axum::Json(Deleted { status: DeletedStatus::Deleted }))
}
