//! `/conversations`, and what a product shows of a task: title and metadata, pages of messages, forks, search.

use api::ErrorBody;
use api::TaskId;
use api::conversations::{
    Conversation, ConversationHits, ConversationMessages, Conversations, ForkTask, ListConversations,
    PageMessages, SearchConversations, UpdateConversation,
};
use api::engine::{ReplaceMemory, TaskMemory};
use axum::extract::State as Extract;
use http_service::http::{ApiError, Path, Query};

use super::AppState;
use super::admission::Admitted;
use super::auth::Authenticated;

/// Lists the conversations, most recently changed first.
#[utoipa::path(
    get, path = "/conversations", operation_id = "list_conversations", security(("engine_key" = [])),
    params(
        ("limit" = Option<i64>, Query, description = "The maximum number: 1 to 100, 50 by default"),
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
        ("archived" = Option<bool>, Query, description = "Only archived ones, or only others"),
        ("pinned" = Option<bool>, Query, description = "Only pinned ones, or only others"),
    ),
    responses(
        (status = 200, body = Conversations, description = "A page of conversations"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn list(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Query(query): Query<ListConversations>,
) -> Result<axum::Json<Conversations>, ApiError> {
    Ok(axum::Json(shared.agent.conversations(query).await?))
}

/// Searches the messages of all conversations, best results first.
#[utoipa::path(
    get, path = "/conversations/search", operation_id = "search_conversations",
    security(("engine_key" = [])),
    params(
        ("q" = String, Query, description = "The text to search for: 1 to 1,024 bytes"),
        ("limit" = Option<i64>, Query, description = "The maximum number: 1 to 50, 20 by default"),
    ),
    responses(
        (status = 200, body = ConversationHits, description = "The messages that were found"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn search(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Query(query): Query<SearchConversations>,
) -> Result<axum::Json<ConversationHits>, ApiError> {
    Ok(axum::Json(shared.agent.search_conversations(query).await?))
}

/// Returns what is shown of a task's conversation.
#[utoipa::path(
    get, path = "/tasks/{task_id}/conversation", operation_id = "get_conversation",
    params(("task_id" = String, Path, description = "The task")), security(("engine_key" = [])),
    responses(
        (status = 200, body = Conversation, description = "The conversation"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn read(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(task_id): Path<TaskId>,
) -> Result<axum::Json<Conversation>, ApiError> {
    Ok(axum::Json(shared.agent.conversation(&task_id).await?))
}

/// Changes title, metadata, pin or archive of a task's conversation, also while a turn is running.
#[utoipa::path(
    patch, path = "/tasks/{task_id}/conversation", operation_id = "update_conversation",
    params(("task_id" = String, Path, description = "The task")), request_body = UpdateConversation,
    security(("engine_key" = [])),
    responses(
        (status = 200, body = Conversation, description = "The conversation after the change"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn update(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(task_id): Path<TaskId>,
    Admitted(request, _memory): Admitted<UpdateConversation>,
) -> Result<axum::Json<Conversation>, ApiError> {
    Ok(axum::Json(shared.agent.update_conversation(&task_id, request).await?))
}

/// Returns a page of a task's messages, oldest first: the newest ones, or those just before or after a message.
#[utoipa::path(
    get, path = "/tasks/{task_id}/messages", operation_id = "list_messages",
    security(("engine_key" = [])),
    params(
        ("task_id" = String, Path, description = "The task"),
        ("limit" = Option<i64>, Query, description = "The maximum number: 1 to 200, 50 by default"),
        ("before" = Option<String>, Query, description = "The id of a message; the page ends just before it"),
        ("after" = Option<String>, Query, description = "The id of a message; the page begins just after it"),
    ),
    responses(
        (status = 200, body = ConversationMessages, description = "A page of messages"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND, MESSAGE_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn messages(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(task_id): Path<TaskId>,
    Query(query): Query<PageMessages>,
) -> Result<axum::Json<ConversationMessages>, ApiError> {
    Ok(axum::Json(shared.agent.page_messages(&task_id, query).await?))
}

/// Makes a new task with the conversation up to a message. Repeating the request makes no second one.
#[utoipa::path(
    post, path = "/tasks/{task_id}/fork", operation_id = "fork_task",
    params(("task_id" = String, Path, description = "The task to fork")), request_body = ForkTask,
    security(("engine_key" = [])),
    responses(
        (status = 200, body = Conversation, description = "The new task"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND, MESSAGE_NOT_FOUND"),
        (status = 409, body = ErrorBody, description = "TASK_EXISTS, TASK_BUSY"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, OVERLOADED"),
    ),
)]
pub(super) async fn fork(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(task_id): Path<TaskId>,
    Admitted(request, _memory): Admitted<ForkTask>,
) -> Result<axum::Json<Conversation>, ApiError> {
    Ok(axum::Json(shared.agent.fork(&task_id, request).await?))
}

/// Replaces a task's whole working memory, which the next turn sees. No turn may be running.
#[utoipa::path(
    put, path = "/tasks/{task_id}/memory", operation_id = "replace_task_memory", request_body = ReplaceMemory,
    params(("task_id" = String, Path, description = "The task")), security(("engine_key" = [])),
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
pub(super) async fn replace_memory(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(task_id): Path<TaskId>,
    Admitted(ReplaceMemory { memory }, _memory): Admitted<ReplaceMemory>,
) -> Result<axum::Json<TaskMemory>, ApiError> {
    shared.agent.replace_working_memory(&task_id, memory).await?;
    Ok(axum::Json(TaskMemory { memory: shared.agent.working_memory(&task_id).await? }))
}

/// Empties a task's working memory. No turn may be running.
#[utoipa::path(
    delete, path = "/tasks/{task_id}/memory", operation_id = "clear_task_memory",
    params(("task_id" = String, Path, description = "The task")), security(("engine_key" = [])),
    responses(
        (status = 200, body = TaskMemory, description = "The working memory, which is empty"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND"),
        (status = 409, body = ErrorBody, description = "TASK_BUSY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn clear_memory(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(task_id): Path<TaskId>,
) -> Result<axum::Json<TaskMemory>, ApiError> {
    shared.agent.replace_working_memory(&task_id, std::collections::BTreeMap::new()).await?;
    Ok(axum::Json(TaskMemory { memory: shared.agent.working_memory(&task_id).await? }))
}
