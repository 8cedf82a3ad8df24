//! The products' endpoints for their engines.

use std::sync::Arc;

use api::orchestrator::{
    Admission, Admit, DestroyedEngine, EngineList, EngineRecord, EngineStatus, Explanation, ListEngines,
    PageLimit, PageOffset, ProvisionEngine, ProvisionedEngine, RotatedKey, StartedEngine, StoppedEngine,
};
use api::{ErrorBody, UserId};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, LenientJson, Path, Query};

use super::auth::AuthenticatedProduct;
use super::error::to_api_error;
use crate::fleet::Fleet;

type JsonResult<T> = Result<Answer<T>, ApiError>;

/// Provisions an engine for a user who has none, and waits until it is healthy.
#[utoipa::path(
    post, path = "/engines/provision", operation_id = "provision_engine", tag = "engines",
    security(("platform_key" = []), ("admin_key" = [])),
    request_body = ProvisionEngine,
    responses(
        (status = 200, description = "The engine is running", body = ProvisionedEngine),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended, or not an allowed engine version",
            body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`: a delete cancelled the provision", body = ErrorBody),
        (status = 409, description = "`ENGINE_ALREADY_EXISTS`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 429, description = "`QUOTA_EXCEEDED`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`", body = ErrorBody),
        (status = 503, description = "`PORT_EXHAUSTION`, `CAPACITY_EXHAUSTED`, `MAINTENANCE`, `STARTING_UP`", body = ErrorBody),
        (status = 504, description = "`BOOT_TIMEOUT`: the message names the failed health check",
            body = ErrorBody),
    ),
)]
pub(super) async fn provision(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    LenientJson(request): LenientJson<ProvisionEngine>,
) -> JsonResult<ProvisionedEngine> {
    fleet.engines.provision(&product, request).await.map(Answer).map_err(to_api_error)
}

/// Admits a user: hands out their engine. Safe to call on every request of the user.
#[utoipa::path(
    post, path = "/engines/{user_id}/admit", operation_id = "admit_user", tag = "engines",
    security(("platform_key" = []), ("admin_key" = [])),
    params(("user_id" = UserId, Path, description = "The product's user")),
    request_body = Admit,
    responses(
        (status = 200, description = "The admitted engine, or the reason why there is none", body = Admission),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended, or not an allowed engine version to provision",
            body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 429, description = "`RATE_LIMITED` (with `Retry-After`, unless the limit is 0), `QUOTA_EXCEEDED`",
            body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`", body = ErrorBody),
        (status = 503, description = "`PORT_EXHAUSTION`, `CAPACITY_EXHAUSTED`, `MAINTENANCE`, `STARTING_UP`", body = ErrorBody),
        (status = 504, description = "`BOOT_TIMEOUT`", body = ErrorBody),
    ),
)]
pub(super) async fn admit(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(user_id): Path<UserId>,
    LenientJson(request): LenientJson<Admit>,
) -> JsonResult<Admission> {
    fleet.engines.admit(&product, user_id, request).await.map(Answer).map_err(to_api_error)
}

/// Starts an engine that is stopped, sleeping or failed.
#[utoipa::path(
    post, path = "/engines/{user_id}/start", operation_id = "start_engine", tag = "engines",
    security(("platform_key" = []), ("admin_key" = [])),
    params(("user_id" = UserId, Path, description = "The product's user")),
    responses(
        (status = 200, description = "The engine is running", body = StartedEngine),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`ENGINE_ALREADY_RUNNING`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`", body = ErrorBody),
        (status = 503, description = "`PORT_EXHAUSTION`, `CAPACITY_EXHAUSTED`, `MAINTENANCE`, `STARTING_UP`", body = ErrorBody),
        (status = 504, description = "`BOOT_TIMEOUT`", body = ErrorBody),
    ),
)]
pub(super) async fn start(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(user_id): Path<UserId>,
) -> JsonResult<StartedEngine> {
    fleet.engines.start(&product, user_id).await.map(Answer).map_err(to_api_error)
}

/// Stops a running engine: SIGTERM, 30 seconds of grace, SIGKILL. Its data stays.
#[utoipa::path(
    post, path = "/engines/{user_id}/stop", operation_id = "stop_engine", tag = "engines",
    security(("platform_key" = []), ("admin_key" = [])),
    params(("user_id" = UserId, Path, description = "The product's user")),
    responses(
        (status = 200, description = "The engine is stopped", body = StoppedEngine),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`ENGINE_NOT_RUNNING`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn stop(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(user_id): Path<UserId>,
) -> JsonResult<StoppedEngine> {
    fleet.engines.stop(&product, user_id).await.map(Answer).map_err(to_api_error)
}

/// Replaces the key of a running engine. The old key becomes invalid immediately.
#[utoipa::path(
    post, path = "/engines/{user_id}/rotate-key", operation_id = "rotate_engine_key", tag = "engines",
    security(("platform_key" = []), ("admin_key" = [])),
    params(("user_id" = UserId, Path, description = "The product's user")),
    responses(
        (status = 200, description = "The new key", body = RotatedKey),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`ENGINE_NOT_RUNNING`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`: the engine did not confirm the key; GET returns the valid one",
            body = ErrorBody),
        (status = 503, description = "`MAINTENANCE`, `STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn rotate_key(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(user_id): Path<UserId>,
) -> JsonResult<RotatedKey> {
    fleet.engines.rotate_key(&product, user_id).await.map(Answer).map_err(to_api_error)
}

/// Returns an engine. Never provisions or wakes it.
#[utoipa::path(
    get, path = "/engines/{user_id}", operation_id = "get_engine", tag = "engines",
    security(("platform_key" = []), ("admin_key" = [])),
    params(("user_id" = UserId, Path, description = "The product's user")),
    responses(
        (status = 200, description = "The engine with its key", body = EngineRecord),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`: it is not known yet which key is valid", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn get(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(user_id): Path<UserId>,
) -> JsonResult<EngineRecord> {
    fleet.engines.get(&product, user_id).await.map(Answer).map_err(to_api_error)
}

/// Explains why an engine is in its state, and what happens next.
#[utoipa::path(
    get, path = "/engines/{user_id}/explain", operation_id = "explain_engine", tag = "engines",
    security(("platform_key" = []), ("admin_key" = [])),
    params(("user_id" = UserId, Path, description = "The product's user")),
    responses(
        (status = 200, description = "The explanation, as fields and as sentences", body = Explanation),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn explain(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(user_id): Path<UserId>,
) -> JsonResult<Explanation> {
    fleet.explainer.explain(&product, user_id).await.map(Answer).map_err(to_api_error)
}

/// Destroys an engine: its process or container, data, port and registry row. Irreversible.
#[utoipa::path(
    delete, path = "/engines/{user_id}", operation_id = "destroy_engine", tag = "engines",
    security(("platform_key" = []), ("admin_key" = [])),
    params(("user_id" = UserId, Path, description = "The product's user")),
    responses(
        (status = 200, description = "The engine is destroyed", body = DestroyedEngine),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`", body = ErrorBody),
        (status = 503, description = "`MAINTENANCE`, `STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn destroy(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(user_id): Path<UserId>,
) -> JsonResult<DestroyedEngine> {
    fleet.engines.destroy(&product, user_id).await.map(Answer).map_err(to_api_error)
}

/// Lists the calling product's engines, oldest first, without their keys.
#[utoipa::path(
    get, path = "/engines", operation_id = "list_engines", tag = "engines",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("status" = Option<EngineStatus>, Query, description = "Only engines in this state"),
        ("limit" = inline(Option<PageLimit>), Query, description = "Page size; 100 by default"),
        ("offset" = inline(Option<PageOffset>), Query, description = "Rows to skip; 0 by default"),
    ),
    responses(
        (status = 200, description = "A page, and the total number of matches", body = EngineList),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn list(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Query(request): Query<ListEngines>,
) -> JsonResult<EngineList> {
    fleet.engines.list(&product, request).await.map(Answer).map_err(to_api_error)
}
