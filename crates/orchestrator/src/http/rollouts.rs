//! The operator's endpoints for rollouts of another engine image.

use std::sync::Arc;

use api::orchestrator::PageLimit;
use api::rollout::{
    ListRolloutEngines, RollBackRollout, Rollout, RolloutEngineList, RolloutEngineState, RolloutList,
    StartRollout,
};
use api::{EngineId, ErrorBody, RolloutId};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, Json, Path, Query};

use super::auth::Admin;
use super::error::to_api_error;
use super::idempotency::Keyed;
use crate::fleet::{Fleet, FleetError};

type JsonResult<T> = Result<Answer<T>, ApiError>;

/// Lists the last 50 rollouts, newest first.
#[utoipa::path(
    get, path = "/fleet/rollouts", operation_id = "list_rollouts", tag = "fleet",
    security(("admin_key" = [])),
    responses(
        (status = 200, description = "The rollouts", body = RolloutList),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn list(_admin: Admin, State(fleet): State<Arc<Fleet>>) -> JsonResult<RolloutList> {
    fleet.rollouts.list().await.map(Answer).map_err(to_api_error)
}

/// Starts a rollout: all engines that follow the deployment's image are moved to another one, some first, those at rest
/// before those that run, with a copy of each brain. If too many fail, all go back. When all are moved, the image is the
/// deployment's.
#[utoipa::path(
    post, path = "/fleet/rollouts", operation_id = "start_rollout", tag = "fleet",
    security(("admin_key" = [])),
    request_body = StartRollout,
    responses(
        (status = 200, description = "Begun", body = Rollout),
        (status = 400, description = "`INVALID_REQUEST`, also where engines have no image of their own",
            body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 409, description = "`ROLLOUT_UNDER_WAY`: another one", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`: there is no such image", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn start(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
    Json(request): Json<StartRollout>,
) -> JsonResult<Rollout> {
    fleet.rollouts.start(request, call).await.map(Answer).map_err(to_api_error)
}

/// Returns a rollout: its plan, its phase, and how many engines are in which state.
#[utoipa::path(
    get, path = "/fleet/rollouts/{rollout_id}", operation_id = "get_rollout", tag = "fleet",
    security(("admin_key" = [])),
    params(("rollout_id" = RolloutId, Path, description = "The rollout")),
    responses(
        (status = 200, description = "The rollout", body = Rollout),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`ROLLOUT_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn get(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Path(rollout_id): Path<String>,
) -> JsonResult<Rollout> {
    fleet.rollouts.get(rollout(&rollout_id)?).await.map(Answer).map_err(to_api_error)
}

/// Lists the engines that a rollout has begun with, and what became of each.
#[utoipa::path(
    get, path = "/fleet/rollouts/{rollout_id}/engines", operation_id = "list_rollout_engines", tag = "fleet",
    security(("admin_key" = [])),
    params(
        ("rollout_id" = RolloutId, Path, description = "The rollout"),
        ("state" = Option<RolloutEngineState>, Query, description = "Only engines in this state"),
        ("limit" = inline(Option<PageLimit>), Query, description = "Page size; 100 by default"),
        ("after" = Option<EngineId>, Query, description = "`next` of the previous page"),
    ),
    responses(
        (status = 200, description = "A page, and where the next one begins", body = RolloutEngineList),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`ROLLOUT_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn engines(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Path(rollout_id): Path<String>,
    Query(request): Query<ListRolloutEngines>,
) -> JsonResult<RolloutEngineList> {
    fleet.rollouts.engines(rollout(&rollout_id)?, request).await.map(Answer).map_err(to_api_error)
}

/// Pauses a rollout: no engine is moved until it is resumed. It may be repeated.
#[utoipa::path(
    post, path = "/fleet/rollouts/{rollout_id}/pause", operation_id = "pause_rollout", tag = "fleet",
    security(("admin_key" = [])),
    params(("rollout_id" = RolloutId, Path, description = "The rollout")),
    responses(
        (status = 200, description = "Paused", body = Rollout),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`ROLLOUT_NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`ROLLOUT_OVER`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn pause(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
    Path(rollout_id): Path<String>,
) -> JsonResult<Rollout> {
    fleet.rollouts.pause(rollout(&rollout_id)?, call).await.map(Answer).map_err(to_api_error)
}

/// Resumes a rollout. The engines that have failed so far are accepted. It may be repeated.
#[utoipa::path(
    post, path = "/fleet/rollouts/{rollout_id}/resume", operation_id = "resume_rollout", tag = "fleet",
    security(("admin_key" = [])),
    params(("rollout_id" = RolloutId, Path, description = "The rollout")),
    responses(
        (status = 200, description = "Resumed", body = Rollout),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`ROLLOUT_NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`ROLLOUT_OVER`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn resume(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
    Path(rollout_id): Path<String>,
) -> JsonResult<Rollout> {
    fleet.rollouts.resume(rollout(&rollout_id)?, call).await.map(Answer).map_err(to_api_error)
}

/// Lets the engines of a rollout go back to the image that they had: of the one that is under way, or of the last one. An
/// engine whose data the newer version has migrated gets the copy of before back if it was not used since; otherwise it
/// stays, pinned to the newer version, unless `discard_new_turns` says that what its user said since may be lost.
#[utoipa::path(
    post, path = "/fleet/rollouts/{rollout_id}/rollback", operation_id = "roll_back_rollout", tag = "fleet",
    security(("admin_key" = [])),
    params(("rollout_id" = RolloutId, Path, description = "The rollout")),
    request_body = RollBackRollout,
    responses(
        (status = 200, description = "Begun", body = Rollout),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`ROLLOUT_NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`ROLLOUT_OVER`: it is rolled back already, or a later one has begun",
            body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn roll_back(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
    Path(rollout_id): Path<String>,
    Json(request): Json<RollBackRollout>,
) -> JsonResult<Rollout> {
    fleet.rollouts.roll_back(rollout(&rollout_id)?, request, call).await.map(Answer).map_err(to_api_error)
}

/// Parses the id of a rollout. What is no id belongs to none.
fn rollout(rollout_id: &str) -> Result<RolloutId, ApiError> {
    rollout_id.parse().map_err(|_| to_api_error(FleetError::RolloutNotFound))
}
