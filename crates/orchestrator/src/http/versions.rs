//! Endpoints that move engines to other versions.

use std::sync::Arc;

use api::version::{ChangeVersion, ChangedVersion, MoveEngines, MovedEngines, VersionList};
use api::{ErrorBody, UserId};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, Json, Path};

use super::auth::{Admin, AuthenticatedProduct};
use super::error::to_api_error;
use crate::fleet::Fleet;

/// Moves an engine to another version, also across major versions: stops it, copies its brain, launches the other
/// image, and restores the copy if it does not become healthy. A stopped or sleeping engine returns to its state.
#[utoipa::path(
    put, path = "/engines/{user_id}/version", operation_id = "change_engine_version", tag = "engines",
    security(("platform_key" = []), ("admin_key" = [])),
    params(("user_id" = UserId, Path, description = "The product's user")),
    request_body = ChangeVersion,
    responses(
        (status = 200, description = "The engine is on that version", body = ChangedVersion),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended, or not an allowed engine version",
            body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`: there is no such image, or the move was reverted",
            body = ErrorBody),
        (status = 503, description = "`PORT_EXHAUSTION`, `CAPACITY_EXHAUSTED`, `MAINTENANCE`, `STARTING_UP`", body = ErrorBody),
        (status = 504, description = "`BOOT_TIMEOUT`: the move was reverted", body = ErrorBody),
    ),
)]
pub(super) async fn change(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(user_id): Path<UserId>,
    Json(request): Json<ChangeVersion>,
) -> Result<Answer<ChangedVersion>, ApiError> {
    fleet.versions.change(&product, user_id, request).await.map(Answer).map_err(to_api_error)
}

/// Lists the versions of the engines of each product, and which engines follow the deployment's version.
#[utoipa::path(
    get, path = "/admin/versions", operation_id = "list_versions", tag = "products",
    security(("admin_key" = [])),
    responses(
        (status = 200, description = "All versions", body = VersionList),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn list(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
) -> Result<Answer<VersionList>, ApiError> {
    fleet.versions.list().await.map(Answer).map_err(to_api_error)
}

/// Moves all engines of one image to another version, a few at a time.
#[utoipa::path(
    post, path = "/admin/versions/move", operation_id = "move_engines", tag = "products",
    security(("admin_key" = [])),
    request_body = MoveEngines,
    responses(
        (status = 200, description = "The result for each engine", body = MovedEngines),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn move_engines(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Json(request): Json<MoveEngines>,
) -> Result<Answer<MovedEngines>, ApiError> {
    fleet.versions.move_engines(request).await.map(Answer).map_err(to_api_error)
}
