//! `/hitl`: pending requests to a person, their answers, and lasting grants.

use api::engine::{
    Deleted, DeletedStatus, GrantScope, Grants, HitlPending, HitlRespond, HitlResponded, HitlRespondedStatus,
    ListPending,
};
use api::{ErrorBody, ErrorCode, TaskId};
use axum::extract::State as Extract;
use http_service::http::{ApiError, Path, Query};

use super::AppState;
use super::admission::AdmittedLenient;
use super::auth::{Authenticated, Caller};

/// Answers a task's request to a person. The turn continues at once.
#[utoipa::path(
    post, path = "/hitl/respond", operation_id = "respond_to_hitl",
    request_body = HitlRespond, security(("engine_key" = [])),
    responses(
        (status = 200, body = HitlResponded, description = "The turn continues"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "HITL_NOT_PENDING"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED, OVERLOADED"),
    ),
)]
pub(super) async fn respond(
    caller: Caller,
    Extract(AppState(shared)): Extract<AppState>,
    AdmittedLenient(request, _memory): AdmittedLenient<HitlRespond>,
) -> Result<axum::Json<HitlResponded>, ApiError> {
    caller.check_task(&request.task_id)?;
    if request.scope == Some(GrantScope::Engine) {
        caller.check_all_tasks()?;
    }
    let request_id = shared.agent.respond(request).await?;
    Ok(axum::Json(HitlResponded { status: HitlRespondedStatus::Resumed, request_id }))
}

/// Lists the requests that wait for a person, of all tasks or of one.
#[utoipa::path(
    get, path = "/hitl/pending", operation_id = "list_pending_hitl", security(("engine_key" = [])),
    params(("task_id" = Option<TaskId>, Query, description = "Only requests of this task")),
    responses(
        (status = 200, body = HitlPending, description = "The requests"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn pending(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Query(ListPending { task_id }): Query<ListPending>,
) -> Result<axum::Json<HitlPending>, ApiError> {
    let mut pending = shared.agent.pending_requests().await?;
    if let Some(task_id) = task_id {
        pending.retain(|request| request.task_id == task_id);
    }
    Ok(axum::Json(HitlPending { pending }))
}

/// Lists a person's lasting approvals.
#[utoipa::path(
    get, path = "/hitl/grants", operation_id = "list_hitl_grants", security(("engine_key" = [])),
    responses(
        (status = 200, body = Grants, description = "The approvals"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn grants(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> Result<axum::Json<Grants>, ApiError> {
    Ok(axum::Json(Grants { grants: shared.agent.grants().await? }))
}

/// Revokes a lasting approval: the person is asked again.
#[utoipa::path(
    delete, path = "/hitl/grants/{id}", operation_id = "revoke_hitl_grant",
    params(("id" = String, Path, description = "The grant")),
    security(("engine_key" = [])),
    responses(
        (status = 200, body = Deleted, description = "The approval is revoked"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn revoke(
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
        Err(ApiError::new(ErrorCode::NotFound, "there is no such grant; GET /hitl/grants lists them"))
    }
}
