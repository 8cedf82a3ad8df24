//! `/tasks/{task_id}/turns` and `/tasks/{task_id}/queue`: the turns of a task, and the messages that wait for
//! theirs.

use api::engine::{Cancelled, CancelledStatus};
use api::turn_reports::{ReportQuery, TurnReport};
use api::turns::{ListTurns, TaskQueue, TurnList, TurnRecord};
use api::{ErrorBody, TaskId};
use axum::extract::State as Extract;
use axum::response::Response;
use http_service::http::{ApiError, Path, Query};

use super::AppState;
use super::auth::Authenticated;
use super::execute::{report_response, wait_time};

/// Lists the turns of a task, the newest first, without the texts of their answers.
#[utoipa::path(
    get, path = "/tasks/{task_id}/turns", operation_id = "list_turns", security(("engine_key" = [])),
    params(
        ("task_id" = String, Path, description = "The task"),
        ("limit" = Option<i64>, Query, description = "The maximum number: 1 to 1,000, 50 by default"),
        ("before" = Option<String>, Query, description = "The id of a turn; only older ones are returned"),
    ),
    responses(
        (status = 200, body = TurnList, description = "A page of turns"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND, TURN_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn list(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(task_id): Path<TaskId>,
    Query(page): Query<ListTurns>,
) -> Result<axum::Json<TurnList>, ApiError> {
    Ok(axum::Json(shared.agent.turns(&task_id, page).await?))
}

/// Returns a turn: its state, its times and, once it has completed, the text of its answer.
#[utoipa::path(
    get, path = "/tasks/{task_id}/turns/{turn_id}", operation_id = "get_turn", security(("engine_key" = [])),
    params(
        ("task_id" = String, Path, description = "The task"),
        ("turn_id" = String, Path, description = "The turn"),
    ),
    responses(
        (status = 200, body = TurnRecord, description = "The turn"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND, TURN_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn read(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path((task_id, turn_id)): Path<(TaskId, String)>,
) -> Result<axum::Json<TurnRecord>, ApiError> {
    Ok(axum::Json(shared.agent.turn(&task_id, &turn_id).await?))
}

/// Returns the outcome of a turn as `POST /execute` does without a stream: at once if the turn has ended or waits for
/// a person, else after `wait`.
#[utoipa::path(
    get, path = "/tasks/{task_id}/turns/{turn_id}/result", operation_id = "read_turn_result",
    security(("engine_key" = [])),
    params(
        ("task_id" = String, Path, description = "The task"),
        ("turn_id" = String, Path, description = "The turn"),
        ("wait" = Option<i64>, Query, description = "How long to wait for the turn, 0 to 90 seconds; 90 by default"),
    ),
    responses(
        (status = 200, body = TurnReport, description = "The turn has ended, or waits for a person"),
        (status = 202, body = TurnReport, description = "The turn goes on, or its message waits"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND, TURN_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn result(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path((task_id, turn_id)): Path<(TaskId, String)>,
    Query(query): Query<ReportQuery>,
) -> Result<Response, ApiError> {
    Ok(report_response(shared.agent.turn_report(&task_id, &turn_id, wait_time(&query)).await?))
}

/// Lists the messages that wait for their turn on a task, the next one first.
#[utoipa::path(
    get, path = "/tasks/{task_id}/queue", operation_id = "list_queued_messages",
    params(("task_id" = String, Path, description = "The task")),
    security(("engine_key" = [])),
    responses(
        (status = 200, body = TaskQueue, description = "The queue, and how much it may hold"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "OVERLOADED"),
    ),
)]
pub(super) async fn queue(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(task_id): Path<TaskId>,
) -> Result<axum::Json<TaskQueue>, ApiError> {
    Ok(axum::Json(shared.agent.queue(&task_id).await?))
}

/// Takes a message out of the queue before its turn begins. Its words are erased.
#[utoipa::path(
    delete, path = "/tasks/{task_id}/queue/{turn_id}", operation_id = "cancel_queued_message",
    security(("engine_key" = [])),
    params(
        ("task_id" = String, Path, description = "The task"),
        ("turn_id" = String, Path, description = "The turn that the message would become"),
    ),
    responses(
        (status = 200, body = Cancelled, description = "The message is out of the queue"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND, TURN_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN"),
    ),
)]
pub(super) async fn cancel_queued(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path((task_id, turn_id)): Path<(TaskId, String)>,
) -> Result<axum::Json<Cancelled>, ApiError> {
    let turn_id = shared.agent.cancel_queued(&task_id, &turn_id).await?;
    Ok(axum::Json(Cancelled { status: CancelledStatus::Cancelled, turn_id }))
}
