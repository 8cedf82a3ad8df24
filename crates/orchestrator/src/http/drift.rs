//! The operator's endpoints for differences between the registry and what exists of engines.

use std::sync::Arc;

use api::drift::{Drift, DriftKind, DriftRepairs, ListDrift, RepairDrift};
use api::{ErrorBody, ProductId};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, Json, Query};

use super::auth::Admin;
use super::error::to_api_error;
use crate::fleet::Fleet;

type JsonResult<T> = Result<Answer<T>, ApiError>;

/// Lists the differences between the registry and what exists of engines: instances, and data if the backend can list
/// it. What an operation is at is none. It takes two seconds longer if there are any.
#[utoipa::path(
    get, path = "/fleet/drift", operation_id = "list_fleet_drift", tag = "fleet",
    security(("admin_key" = [])),
    params(
        ("kind" = Option<DriftKind>, Query, description = "Only differences of this kind"),
        ("product_id" = Option<ProductId>, Query, description = "Only differences of engines of this product"),
    ),
    responses(
        (status = 200, description = "The differences, at most 1,000", body = Drift),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`: what exists is unknown", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn list(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Query(query): Query<ListDrift>,
) -> JsonResult<Drift> {
    fleet.drifts.list(query).await.map(Answer).map_err(to_api_error)
}

/// Repairs differences between the registry and what exists of engines, as reconciliation does it; without
/// `"dry_run": false`, only says what would be done. Each difference is looked at again right before. Each repair is a row
/// of the product's audit log. Data is removed only if its kind is named.
#[utoipa::path(
    post, path = "/fleet/drift/repair", operation_id = "repair_fleet_drift", tag = "fleet",
    security(("admin_key" = [])),
    request_body = RepairDrift,
    responses(
        (status = 200, description = "What became of each difference", body = DriftRepairs),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`: what exists is unknown", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn repair(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Json(request): Json<RepairDrift>,
) -> JsonResult<DriftRepairs> {
    fleet.drifts.repair(request).await.map(Answer).map_err(to_api_error)
}
