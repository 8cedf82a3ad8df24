//! The operator's endpoints for backups.

use std::sync::Arc;

use api::backup::{BackupList, BackupStatus, ListBackups, StartBackupJob};
use api::{ErrorBody, ProductId, UserId};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, Json, Query};

use super::auth::Admin;
use super::error::to_api_error;
use crate::fleet::Fleet;

type JsonResult<T> = Result<Answer<T>, ApiError>;

/// Begins a job with backups, which goes on by itself: to back up, verify or restore the engines of all products, of one
/// product or of one user, or to remove what is not kept any more. One job runs at a time.
#[utoipa::path(
    post, path = "/fleet/backups", operation_id = "start_backup_job", tag = "fleet",
    security(("admin_key" = [])),
    request_body = StartBackupJob,
    responses(
        (status = 200, description = "The job is under way", body = BackupStatus),
        (status = 400, description = "`INVALID_REQUEST`: also if backups are not configured", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`: the store cannot be used", body = ErrorBody),
        (status = 503, description = "`CAPACITY_EXHAUSTED`: another job is under way, `STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn start(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Json(request): Json<StartBackupJob>,
) -> JsonResult<BackupStatus> {
    fleet.backups.start(request).await.map(Answer).map_err(to_api_error)
}

/// Returns what is set about backups, the job under way with its progress, and the latest jobs.
#[utoipa::path(
    get, path = "/fleet/backups", operation_id = "get_backup_status", tag = "fleet",
    security(("admin_key" = [])),
    responses(
        (status = 200, description = "The settings and the jobs", body = BackupStatus),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn status(_admin: Admin, State(fleet): State<Arc<Fleet>>) -> JsonResult<BackupStatus> {
    Ok(Answer(fleet.backups.status()))
}

/// Lists the backups of a user's engine that are in the store, the latest first; without a user, those of the registry.
#[utoipa::path(
    get, path = "/fleet/backups/list", operation_id = "list_backups", tag = "fleet",
    security(("admin_key" = [])),
    params(
        ("product_id" = Option<ProductId>, Query, description = "The product of the user"),
        ("user_id" = Option<UserId>, Query, description = "The user"),
    ),
    responses(
        (status = 200, description = "The backups", body = BackupList),
        (status = 400, description = "`INVALID_REQUEST`: also if backups are not configured", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`: the store cannot be used", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn list(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Query(request): Query<ListBackups>,
) -> JsonResult<BackupList> {
    fleet.backups.list(request).await.map(Answer).map_err(to_api_error)
}
