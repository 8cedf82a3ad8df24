//! The operator's endpoints for the engines of all products.

use std::sync::Arc;

use api::audit::{AuditEvent, AuditMessage, AuditPosition, FollowEvents};
use api::fleet::{
    DrainProgress, DrainStatus, FleetAuditList, FleetEngineList, FleetOverview, ListFleetAudit,
    ListFleetEngines, StartFailed, StartedEngines,
};
use api::orchestrator::PageLimit;
use api::{EngineId, EngineImage, ErrorBody, ProductId, UserId};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use http_service::http::{ApiError, Json, Query};

use super::audit_stream::{position, stream_response};
use super::auth::{Admin, stream_permit};
use super::error::to_api_error;
use super::idempotency::Keyed;
use crate::fleet::{Fleet, StreamHolder};

type JsonResult<T> = Result<Answer<T>, ApiError>;

/// Lists the engines of all products, in the order in which they were provisioned, without their keys.
#[utoipa::path(
    get, path = "/fleet/engines", operation_id = "list_fleet_engines", tag = "fleet",
    security(("admin_key" = [])),
    params(
        ("product_id" = Option<ProductId>, Query, description = "Only engines of this product"),
        ("status" = Option<String>, Query, description = "Only engines in one of these states, separated by commas"),
        ("engine_version" = Option<EngineImage>, Query,
            description = "Only engines that run, or last ran, this image"),
        ("user_prefix" = Option<UserId>, Query, description = "Only engines of users whose id begins with this"),
        ("limit" = inline(Option<PageLimit>), Query, description = "Page size; 100 by default"),
        ("after" = Option<EngineId>, Query, description = "`next` of the previous page"),
    ),
    responses(
        (status = 200, description = "A page, and where the next one begins", body = FleetEngineList),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn engines(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Query(request): Query<ListFleetEngines>,
) -> JsonResult<FleetEngineList> {
    fleet.overview.engines(request).await.map(Answer).map_err(to_api_error)
}

/// Returns how many engines are in each state, in total and by product, and the limits of the deployment.
#[utoipa::path(
    get, path = "/fleet/status", operation_id = "get_fleet_overview", tag = "fleet",
    security(("admin_key" = [])),
    responses(
        (status = 200, description = "The counts", body = FleetOverview),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn status(_admin: Admin, State(fleet): State<Arc<Fleet>>) -> JsonResult<FleetOverview> {
    fleet.overview.status().await.map(Answer).map_err(to_api_error)
}

/// Lists the audit rows of all products, newest first.
#[utoipa::path(
    get, path = "/fleet/audit", operation_id = "list_fleet_audit_rows", tag = "fleet",
    security(("admin_key" = [])),
    params(
        ("product_id" = Option<ProductId>, Query, description = "Only rows of this product"),
        ("user_id" = Option<UserId>, Query, description = "Only rows about this user's engines"),
        ("event" = Option<AuditEvent>, Query, description = "Only rows of this event"),
        ("limit" = inline(Option<PageLimit>), Query, description = "Page size; 100 by default"),
        ("before" = Option<String>, Query, description = "`next` of the previous page"),
    ),
    responses(
        (status = 200, description = "A page of rows, and where the next one begins", body = FleetAuditList),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn audit(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Query(request): Query<ListFleetAudit>,
) -> JsonResult<FleetAuditList> {
    fleet.overview.audit(request).await.map(Answer).map_err(to_api_error)
}

/// Streams the audit rows of all products as they are committed. `event` is a row's event; `id` is a time in Unix
/// milliseconds: everything that was committed before it has been sent. After a reconnection, some rows come again.
#[utoipa::path(
    get, path = "/fleet/events", operation_id = "follow_fleet_audit_rows", tag = "fleet",
    security(("admin_key" = [])),
    params(
        ("after" = inline(Option<AuditPosition>), Query,
            description = "Start with the rows after this time, in Unix milliseconds; by default only new rows"),
        ("Last-Event-ID" = inline(Option<AuditPosition>), Header,
            description = "Like `after`, and takes precedence over it"),
    ),
    responses(
        (status = 200, description = "The rows", body = AuditMessage, content_type = "text/event-stream"),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`CAPACITY_EXHAUSTED`: too many streams, `STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn follow(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    headers: HeaderMap,
    Query(request): Query<FollowEvents>,
) -> Result<Response, ApiError> {
    let after = position(&headers, request)?;
    let permit = stream_permit(&fleet, StreamHolder::Operator)?;
    let feed = fleet.overview.follow_audit_logs(after).await.map_err(to_api_error)?;
    Ok(stream_response(feed, permit))
}

/// Starts the failed engines of all products or of one, a limited number at a time, whether or not they have restarts
/// left. Those that do not come up stay failed, with the error in the answer.
#[utoipa::path(
    post, path = "/fleet/start-failed", operation_id = "start_failed_engines", tag = "fleet",
    security(("admin_key" = [])),
    request_body = StartFailed,
    responses(
        (status = 200, description = "The result for each engine", body = StartedEngines),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn start_failed(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Json(request): Json<StartFailed>,
) -> JsonResult<StartedEngines> {
    fleet.failed_starts.start(request).await.map(Answer).map_err(to_api_error)
}

/// Drains the deployment: puts all engines to sleep, and starts none, until the drain is lifted. Until then, whoever
/// needs an engine that does not run gets 503 `CAPACITY_EXHAUSTED`. It outlives the orchestrator, and may be repeated.
#[utoipa::path(
    post, path = "/fleet/drain", operation_id = "drain_fleet", tag = "fleet",
    security(("admin_key" = [])),
    responses(
        (status = 200, description = "Begun, and how many engines are left", body = DrainStatus),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn drain(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
) -> JsonResult<DrainStatus> {
    fleet.drains.begin(call).await.map_err(to_api_error)?;
    fleet.overview.drain_status().await.map(Answer).map_err(to_api_error)
}

/// Returns how far a drain is: since when it lasts, how many engines are left, and which could not be put to sleep.
#[utoipa::path(
    get, path = "/fleet/drain", operation_id = "get_fleet_drain", tag = "fleet",
    security(("admin_key" = [])),
    responses(
        (status = 200, description = "The drain, or that there is none", body = DrainProgress),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn drain_progress(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
) -> JsonResult<DrainProgress> {
    fleet.overview.drain_progress().await.map(Answer).map_err(to_api_error)
}

/// Lifts the drain. Engines are woken when somebody wants them.
#[utoipa::path(
    delete, path = "/fleet/drain", operation_id = "lift_fleet_drain", tag = "fleet",
    security(("admin_key" = [])),
    responses(
        (status = 200, description = "Lifted", body = DrainStatus),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn lift_drain(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
) -> JsonResult<DrainStatus> {
    fleet.drains.lift(call).await.map_err(to_api_error)?;
    fleet.overview.drain_status().await.map(Answer).map_err(to_api_error)
}
