//! `/admin`: operations for operators of a running engine.

use api::admin::{CatalogCounts, CatalogReloaded, ReloadedStatus, SoulReloaded};
use api::{ErrorBody, ErrorCode};
use axum::extract::State as Extract;
use http_service::http::ApiError;

use super::AppState;
use super::auth::Authenticated;
use crate::agent::ReloadError;

/// Reloads the catalog's `soul.md`, for turns that begin from now on. An invalid one is refused, and the old one
/// stays in use.
#[utoipa::path(
    post, path = "/admin/reload-core-soul", operation_id = "reload_core_soul", security(("engine_key" = [])),
    responses(
        (status = 200, body = SoulReloaded, description = "The soul is reloaded"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST: the soul has a fault"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN"),
    ),
)]
pub(super) async fn reload_core_soul(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> Result<axum::Json<SoulReloaded>, ApiError> {
    let version = shared.reloader.reload_soul().await?.version().to_owned();
    Ok(axum::Json(SoulReloaded { status: ReloadedStatus::Reloaded, version }))
}

/// Reloads the catalog's agents, skills, tools and permissions, for turns that begin from now on.
#[utoipa::path(
    post, path = "/admin/reload-catalog", operation_id = "reload_catalog", security(("engine_key" = [])),
    responses(
        (status = 200, body = CatalogReloaded, description = "The catalog is reloaded"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN"),
    ),
)]
pub(super) async fn reload_catalog(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> Result<axum::Json<CatalogReloaded>, ApiError> {
    let catalog = shared.reloader.reload_catalog().await?;
    let counts = CatalogCounts {
        agents: catalog.agents.len(),
        skills: catalog.skills.len(),
        tools: catalog.tools.len(),
    };
    let status = ReloadedStatus::Reloaded;
    Ok(axum::Json(CatalogReloaded { status, counts, warnings: catalog.warnings }))
}

impl From<ReloadError> for ApiError {
    fn from(error: ReloadError) -> Self {
        let code = match error {
            ReloadError::Invalid(_) => ErrorCode::InvalidRequest,
            ReloadError::TooSlow | ReloadError::Unexpected => ErrorCode::InternalError,
            ReloadError::Stopping => {
                return Self::new(ErrorCode::ShuttingDown, error.to_string()).retry_after(1);
            }
        };
        Self::new(code, error.to_string())
    }
}
