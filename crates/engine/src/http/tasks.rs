//! `/tasks`: the conversations, their messages and working memory.

use api::engine::{
    DeleteTask, Deleted, DeletedStatus, Forget, ListMessages, ListTasks, SetMemory, TaskMemory, TaskMessages,
    Tasks,
};
use api::serde_helpers::BoundedInt;
use api::{ErrorBody, ErrorCode, TaskId};
use axum::extract::State as Extract;
use axum::http::HeaderName;
use axum::http::header::LINK;
use axum::response::AppendHeaders;
use http_service::http::{ApiError, Path, Query};
use store::steps::MemoryWrite;

use super::AppState;
use super::admission::Admitted;
use super::auth::Authenticated;
use crate::agent::MessagePage;

/// The number of tasks on a page unless the request sets it.
const DEFAULT_LIMIT: i64 = 50;

/// Lists the tasks, most recently changed first.
#[utoipa::path(
    get, path = "/tasks", operation_id = "list_tasks", security(("engine_key" = [])),
    params(
        ("limit" = Option<i64>, Query, description = "The maximum number: 1 to 1,000, 50 by default"),
        ("offset" = Option<i64>, Query, description = "The number to skip; 0 by default"),
    ),
    responses(
        (status = 200, body = Tasks, description = "A page of tasks, and the total number"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn list(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Query(query): Query<ListTasks>,
) -> Result<axum::Json<Tasks>, ApiError> {
    let limit = query.limit.map_or(DEFAULT_LIMIT, BoundedInt::get);
    let offset = query.offset.map_or(0, BoundedInt::get);
    Ok(axum::Json(shared.agent.tasks(limit, offset).await?))
}

/// Lists the messages of a task, oldest first. If there are older ones, `Link` names the next page.
#[utoipa::path(
    get, path = "/tasks/{task_id}", operation_id = "get_task_messages", security(("engine_key" = [])),
    params(
        ("task_id" = String, Path, description = "The task"),
        ("limit" = Option<i64>, Query, description = "The number of newest messages: 1 to 1,000; all by default"),
        ("before" = Option<String>, Query, description = "The id of a message; only older ones are returned"),
    ),
    responses(
        (status = 200, body = TaskMessages, description = "A page of the messages", headers(
            ("Link" = String, description = "The page of older messages, `rel=\"next\"`, if there is one"),
        )),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND, MESSAGE_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn read(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(task_id): Path<TaskId>,
    Query(ListMessages { limit, before }): Query<ListMessages>,
) -> Result<(AppendHeaders<Option<(HeaderName, String)>>, axum::Json<TaskMessages>), ApiError> {
    let most = limit.and_then(|limit| usize::try_from(limit.get()).ok());
    let MessagePage { messages, has_older } =
        shared.agent.messages(&task_id, most, before.as_deref()).await?;
    let next = limit.zip(messages.first()).filter(|_| has_older).map(|(limit, first)| {
        // Relative to the request, whatever path it came by.
        (LINK, format!("<?limit={}&before={}>; rel=\"next\"", limit.get(), first.message_id))
    });
    Ok((AppendHeaders(next), axum::Json(TaskMessages { messages })))
}

/// Returns a task's working memory, by key.
#[utoipa::path(
    get, path = "/tasks/{task_id}/memory", operation_id = "get_task_memory",
    params(("task_id" = String, Path, description = "The task")),
    security(("engine_key" = [])),
    responses(
        (status = 200, body = TaskMemory, description = "The working memory"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn memory(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(task_id): Path<TaskId>,
) -> Result<axum::Json<TaskMemory>, ApiError> {
    Ok(axum::Json(TaskMemory { memory: shared.agent.working_memory(&task_id).await? }))
}

/// Writes a value to a task's working memory, which the next turn sees. No turn may be running.
#[utoipa::path(
    put, path = "/tasks/{task_id}/memory/{key}", operation_id = "set_task_memory_value",
    request_body = SetMemory, security(("engine_key" = [])),
    params(("task_id" = String, Path, description = "The task"), ("key" = String, Path, description = "The key")),
    responses(
        (status = 200, body = TaskMemory, description = "The working memory after the change"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND"),
        (status = 409, body = ErrorBody, description = "TASK_BUSY"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn set_memory(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path((task_id, key)): Path<(TaskId, String)>,
    Admitted(SetMemory { value }, _memory): Admitted<SetMemory>,
) -> Result<axum::Json<TaskMemory>, ApiError> {
    if value.is_null() {
        return Err(ApiError::new(
            ErrorCode::InvalidRequest,
            "`value`: must not be null; DELETE takes a key out",
        ));
    }
    shared.agent.set_working_memory(&task_id, MemoryWrite { key, value }).await?;
    Ok(axum::Json(TaskMemory { memory: shared.agent.working_memory(&task_id).await? }))
}

/// Removes a value from a task's working memory. No turn may be running.
#[utoipa::path(
    delete, path = "/tasks/{task_id}/memory/{key}", operation_id = "delete_task_memory_value",
    security(("engine_key" = [])),
    params(("task_id" = String, Path, description = "The task"), ("key" = String, Path, description = "The key")),
    responses(
        (status = 200, body = Deleted, description = "The value is removed"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND, NOT_FOUND"),
        (status = 409, body = ErrorBody, description = "TASK_BUSY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn delete_memory(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path((task_id, key)): Path<(TaskId, String)>,
) -> Result<axum::Json<Deleted>, ApiError> {
    shared.agent.delete_working_memory(&task_id, key).await?;
    Ok(axum::Json(Deleted { status: DeletedStatus::Deleted }))
}

/// Deletes a task with all data that only it uses, and erases it from all files. No turn may be running.
#[utoipa::path(
    delete, path = "/tasks/{task_id}", operation_id = "delete_task", security(("engine_key" = [])),
    params(
        ("task_id" = String, Path, description = "The task"),
        ("forget" = Option<Forget>, Query, description = "`knowledge`: also deletes what was learned from it"),
    ),
    responses(
        (status = 200, body = Deleted, description = "The task is deleted"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND"),
        (status = 409, body = ErrorBody, description = "TASK_BUSY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn delete(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(task_id): Path<TaskId>,
    Query(DeleteTask { forget }): Query<DeleteTask>,
) -> Result<axum::Json<Deleted>, ApiError> {
    shared.agent.delete(&task_id, forget == Some(Forget::Knowledge)).await?;
    Ok(axum::Json(Deleted { status: DeletedStatus::Deleted }))
}
