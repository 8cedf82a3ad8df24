//! What the agent has used: tokens, costs and the time of tools.

use api::usage::{ReadUsage, TaskUsage, UsageReport};
use api::usage_caps::{ReadUsageCaps, UsageCaps};
use api::{ErrorBody, TaskId};
use axum::extract::State as Extract;
use http_service::http::{ApiError, Path, Query};

use super::AppState;
use super::auth::Authenticated;

/// Returns the usage by day, task, model, agent and purpose, in any combination.
#[utoipa::path(
    get, path = "/usage", operation_id = "get_usage", security(("engine_key" = [])),
    params(
        ("from" = Option<String>, Query, description = "The first day, such as 2026-11-26"),
        ("to" = Option<String>, Query, description = "The last day"),
        ("utc_offset_minutes" = Option<i64>, Query, description =
            "How far the days are ahead of UTC: a multiple of 15 from -840 to 840, 0 by default"),
        ("group_by" = Option<String>, Query, description =
            "One or more of day, task, model, agent, purpose, separated by commas; `day` by default"),
        ("task_id" = Option<String>, Query, description = "Only the usage of this task"),
        ("limit" = Option<i64>, Query, description = "The maximum number of rows: 1 to 500, 100 by default"),
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
    ),
    responses(
        (status = 200, body = UsageReport, description = "A page of the groups, and the total"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn read(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Query(query): Query<ReadUsage>,
) -> Result<axum::Json<UsageReport>, ApiError> {
    Ok(axum::Json(shared.agent.usage(query).await?))
}

/// Returns what a task has used, its sub-agents included.
#[utoipa::path(
    get, path = "/tasks/{task_id}/usage", operation_id = "get_task_usage",
    params(("task_id" = String, Path, description = "The task")), security(("engine_key" = [])),
    responses(
        (status = 200, body = TaskUsage, description = "The usage of the task"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn of_task(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(task_id): Path<TaskId>,
) -> Result<axum::Json<TaskUsage>, ApiError> {
    Ok(axum::Json(shared.agent.task_usage(task_id).await?))
}

/// Returns the caps on usage, with what is used of them and when they begin again.
#[utoipa::path(
    get, path = "/usage/caps", operation_id = "get_usage_caps", security(("engine_key" = [])),
    params(("task_id" = Option<String>, Query, description = "The task whose use of its caps is read")),
    responses(
        (status = 200, body = UsageCaps, description = "The caps"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn caps(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Query(query): Query<ReadUsageCaps>,
) -> Result<axum::Json<UsageCaps>, ApiError> {
    Ok(axum::Json(shared.agent.usage_caps(&query)?))
}
