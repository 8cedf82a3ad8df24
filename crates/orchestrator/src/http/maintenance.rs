//! The operator's endpoints for the maintenance of the deployment.

use std::sync::Arc;

use api::ErrorBody;
use api::maintenance::{BeginMaintenance, MaintenanceStatus};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, Json};

use super::auth::Admin;
use super::error::to_api_error;
use super::idempotency::Keyed;
use crate::fleet::Fleet;

type JsonResult<T> = Result<Answer<T>, ApiError>;

/// Returns the maintenance, if there is one, and how many changes of engines are still under way.
#[utoipa::path(
    get, path = "/fleet/maintenance", operation_id = "get_fleet_maintenance", tag = "fleet",
    security(("admin_key" = [])),
    responses(
        (status = 200, description = "The maintenance, or that there is none", body = MaintenanceStatus),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn get(_admin: Admin, State(fleet): State<Arc<Fleet>>) -> Answer<MaintenanceStatus> {
    Answer(fleet.maintenances.status())
}

/// Keeps the deployment under maintenance: engines that run are admitted and restarted as ever, and whatever would
/// provision, start, wake, move, rotate or destroy one is refused with 503 `MAINTENANCE` and this message. It outlives
/// the orchestrator, and may be repeated, which replaces the message.
#[utoipa::path(
    put, path = "/fleet/maintenance", operation_id = "begin_fleet_maintenance", tag = "fleet",
    security(("admin_key" = [])),
    request_body = BeginMaintenance,
    responses(
        (status = 200, description = "Begun, and what is still under way", body = MaintenanceStatus),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn begin(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
    Json(request): Json<BeginMaintenance>,
) -> JsonResult<MaintenanceStatus> {
    fleet.maintenances.begin(request, call).await.map(Answer).map_err(to_api_error)
}

/// Ends the maintenance. It may be repeated.
#[utoipa::path(
    delete, path = "/fleet/maintenance", operation_id = "end_fleet_maintenance", tag = "fleet",
    security(("admin_key" = [])),
    responses(
        (status = 200, description = "Ended", body = MaintenanceStatus),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn end(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
) -> JsonResult<MaintenanceStatus> {
    fleet.maintenances.end(call).await.map(Answer).map_err(to_api_error)
}
