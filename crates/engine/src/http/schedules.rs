//! `/schedules`: messages that the engine sends itself at given times.

use api::engine::{Deleted, DeletedStatus};
use api::schedules::{CreateSchedule, Schedule, ScheduleList, ScheduleRun, UpdateSchedule};
use api::{ClientRequestId, ErrorBody};
use axum::extract::State as Extract;
use axum::http::StatusCode;
use http_service::http::{ApiError, Path, Query};
use serde::Deserialize;
use utoipa::IntoParams;

use super::AppState;
use super::admission::Admitted;
use super::auth::Authenticated;

/// Creates a schedule. Repeated with the same id and content, it returns the schedule.
#[utoipa::path(
    post, path = "/schedules", operation_id = "create_schedule", request_body = CreateSchedule,
    security(("engine_key" = [])),
    responses(
        (status = 200, body = Schedule, description = "The same request has created it before"),
        (status = 201, body = Schedule, description = "The schedule is created"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST, MODEL_NOT_PERMITTED"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 409, body = ErrorBody, description = "SCHEDULE_EXISTS"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 429, body = ErrorBody, description = "SCHEDULE_LIMIT"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED, OVERLOADED"),
    ),
)]
pub(super) async fn create(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Admitted(request, _memory): Admitted<CreateSchedule>,
) -> Result<(StatusCode, axum::Json<Schedule>), ApiError> {
    let (schedule, is_new) = shared.agent.create_schedule(request).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, axum::Json(schedule)))
}

/// Lists the schedules, the oldest first, without their runs.
#[utoipa::path(
    get, path = "/schedules", operation_id = "list_schedules", security(("engine_key" = [])),
    responses(
        (status = 200, body = ScheduleList, description = "The schedules, and how many there may be"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn list(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> Result<axum::Json<ScheduleList>, ApiError> {
    Ok(axum::Json(shared.agent.schedules().await?))
}

/// Returns a schedule with its newest runs.
#[utoipa::path(
    get, path = "/schedules/{id}", operation_id = "get_schedule",
    params(("id" = String, Path, description = "The schedule")), security(("engine_key" = [])),
    responses(
        (status = 200, body = Schedule, description = "The schedule"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "SCHEDULE_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn read(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(id): Path<String>,
) -> Result<axum::Json<Schedule>, ApiError> {
    Ok(axum::Json(shared.agent.schedule(&id).await?))
}

/// Changes, pauses or resumes a schedule.
#[utoipa::path(
    patch, path = "/schedules/{id}", operation_id = "update_schedule",
    params(("id" = String, Path, description = "The schedule")), request_body = UpdateSchedule,
    security(("engine_key" = [])),
    responses(
        (status = 200, body = Schedule, description = "The schedule after the change"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST, MODEL_NOT_PERMITTED"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "SCHEDULE_NOT_FOUND"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED, OVERLOADED"),
    ),
)]
pub(super) async fn update(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(id): Path<String>,
    Admitted(change, _memory): Admitted<UpdateSchedule>,
) -> Result<axum::Json<Schedule>, ApiError> {
    Ok(axum::Json(shared.agent.update_schedule(&id, change).await?))
}

/// The query of `POST /schedules/{id}/run`.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct RunQuery {
    /// Makes the request safe to repeat: the same id begins one run.
    #[serde(default)]
    client_request_id: Option<ClientRequestId>,
}

/// Runs a schedule now, also a paused or finished one. Its due times stay as they are.
#[utoipa::path(
    post, path = "/schedules/{id}/run", operation_id = "run_schedule",
    params(("id" = String, Path, description = "The schedule"), RunQuery), security(("engine_key" = [])),
    responses(
        (status = 200, body = ScheduleRun, description = "The same request has begun it before"),
        (status = 202, body = ScheduleRun, description = "The run has begun"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "SCHEDULE_NOT_FOUND"),
        (status = 429, body = ErrorBody, description = "QUEUE_FULL"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED"),
    ),
)]
pub(super) async fn run(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(id): Path<String>,
    Query(query): Query<RunQuery>,
) -> Result<(StatusCode, axum::Json<ScheduleRun>), ApiError> {
    let (run, is_new) = shared.agent.run_schedule(&id, query.client_request_id).await?;
    let status = if is_new { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok((status, axum::Json(run)))
}

/// Deletes a schedule and erases its words. The turns that it has begun stay.
#[utoipa::path(
    delete, path = "/schedules/{id}", operation_id = "delete_schedule",
    params(("id" = String, Path, description = "The schedule")), security(("engine_key" = [])),
    responses(
        (status = 200, body = Deleted, description = "The schedule is deleted"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "SCHEDULE_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn delete(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(id): Path<String>,
) -> Result<axum::Json<Deleted>, ApiError> {
    shared.agent.delete_schedule(&id).await?;
    Ok(axum::Json(Deleted { status: DeletedStatus::Deleted }))
}
