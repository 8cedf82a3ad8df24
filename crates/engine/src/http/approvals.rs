//! `/tasks/{task_id}/approvals` and `/approvals/grants`: tool calls that wait for a person, as fields, the person's
//! decisions, and the lasting ones among them.

use api::approvals::{ApprovalDecision, ApprovalGrants, ApprovalRespond, ApprovalResponded, Approvals};
use api::engine::{Deleted, DeletedStatus};
use api::{ErrorBody, ErrorCode, TaskId};
use axum::extract::State as Extract;
use http_service::http::{ApiError, Path};

use super::AppState;
use super::admission::Admitted;
use super::auth::{Authenticated, Caller};

/// Lists the tool calls of a task that wait for a decision, oldest first.
#[utoipa::path(
    get, path = "/tasks/{task_id}/approvals", operation_id = "list_task_approvals",
    params(("task_id" = String, Path, description = "The task")), security(("engine_key" = [])),
    responses(
        (status = 200, body = Approvals, description = "The calls that wait"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn approvals(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(task_id): Path<TaskId>,
) -> Result<axum::Json<Approvals>, ApiError> {
    Ok(axum::Json(Approvals { approvals: shared.agent.approvals(task_id).await? }))
}

/// Decides about a tool call that waits. The turn continues at once.
#[utoipa::path(
    post, path = "/tasks/{task_id}/approvals/{request_id}", operation_id = "answer_approval",
    request_body = ApprovalRespond,
    params(
        ("task_id" = String, Path, description = "The task"),
        ("request_id" = String, Path, description = "The request for the approval"),
    ),
    security(("engine_key" = [])),
    responses(
        (status = 200, body = ApprovalResponded, description = "The decision is stored"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND, APPROVAL_NOT_FOUND"),
        (status = 409, body = ErrorBody, description = "APPROVAL_ANSWERED"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED, OVERLOADED"),
    ),
)]
pub(super) async fn answer_approval(
    caller: Caller,
    Extract(AppState(shared)): Extract<AppState>,
    Path((task_id, request_id)): Path<(TaskId, String)>,
    Admitted(respond, _memory): Admitted<ApprovalRespond>,
) -> Result<axum::Json<ApprovalResponded>, ApiError> {
    if respond.decision == ApprovalDecision::AllowAlways {
        caller.check_all_tasks()?;
    }
    Ok(axum::Json(shared.agent.answer_approval(task_id, &request_id, respond).await?))
}

/// Lists a person's lasting approvals, with the requests that they come from.
#[utoipa::path(
    get, path = "/approvals/grants", operation_id = "list_approval_grants", security(("engine_key" = [])),
    responses(
        (status = 200, body = ApprovalGrants, description = "The approvals"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn approval_grants(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> Result<axum::Json<ApprovalGrants>, ApiError> {
    Ok(axum::Json(ApprovalGrants { grants: shared.agent.approval_grants().await? }))
}

/// Revokes a lasting approval: from the next call on, the person is asked again.
#[utoipa::path(
    delete, path = "/approvals/grants/{id}", operation_id = "revoke_approval_grant",
    params(("id" = String, Path, description = "The grant")),
    security(("engine_key" = [])),
    responses(
        (status = 200, body = Deleted, description = "The approval is revoked"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn revoke_approval(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(id): Path<String>,
) -> Result<axum::Json<Deleted>, ApiError> {
    let revoked = match id.parse() {
        Ok(id) => shared.agent.revoke(id).await?,
        Err(_) => false,
    };
    if revoked {
        Ok(axum::Json(Deleted { status: DeletedStatus::Deleted }))
    } else {
        Err(ApiError::new(ErrorCode::NotFound, "there is no such grant; GET /approvals/grants lists them"))
    }
}
