//! Moves of engines to other versions.

use std::sync::Arc;

use api::version::{ChangeVersion, ChangedVersion, MoveEngines, MovedEngines, VersionList};
use api::{ErrorBody, UserId};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, Json, Path};

use super::auth::{Admin, AuthenticatedProduct};
use super::error::to_api_error;
use crate::fleet::Fleet;

/// Moves an engine to another version, also across a major one: it is stopped, its brain copied, and launched on the other
/// image; if it does not become healthy, it is taken back with the copy. One at rest rests again afterwards.
#[utoipa::path(
    put, path = "/engines/{user_id}/version", tag = "engines",
    security(("platform_key" = [])),
    params(("user_id" = UserId, Path, description = "The product's user")),
    request_body = ChangeVersion,
    responses(
        (status = 200, description = "It is on that version", body = ChangedVersion),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended, or not an allowed engine version", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`: there is no such image, or it was taken back", body = ErrorBody),
        (status = 503, description = "`PORT_EXHAUSTION`, `CAPACITY_EXHAUSTED`, `STARTING_UP`", body = ErrorBody),
        (status = 504, description = "`BOOT_TIMEOUT`: it was taken back", body = ErrorBody),
    ),
)]
pub(super) async fn change(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(user_id): Path<UserId>,
    Json(ask): Json<ChangeVersion>,
) -> Result<Answer<ChangedVersion>, ApiError> {
    fleet.change_version(&product, user_id, ask).await.map(Answer).map_err(to_api_error)
}

/// Tells which versions engines are on, product by product, and which of them follow the deployment's.
#[utoipa::path(
    operation_id = "list_versions",
    get, path = "/admin/versions", tag = "products",
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
    fleet.versions().await.map(Answer).map_err(to_api_error)
}

/// Moves engines that are on one image to another version, some at a time.
#[utoipa::path(
    post, path = "/admin/versions/move", tag = "products",
    security(("admin_key" = [])),
    request_body = MoveEngines,
    responses(
        (status = 200, description = "What came of each", body = MovedEngines),
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
    Json(ask): Json<MoveEngines>,
) -> Result<Answer<MovedEngines>, ApiError> {
    fleet.move_engines(ask).await.map(Answer).map_err(to_api_error)
}
