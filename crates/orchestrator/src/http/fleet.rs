//! The operator's endpoints for the engines of all products.

use std::sync::Arc;

use api::fleet::{FleetEngineList, FleetOverview, ListFleetEngines};
use api::orchestrator::PageLimit;
use api::{EngineId, EngineImage, ErrorBody, ProductId, UserId};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, Query};

use super::auth::Admin;
use super::error::to_api_error;
use crate::fleet::Fleet;

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
