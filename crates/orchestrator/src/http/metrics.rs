//! Status and metrics of the calling product's fleet, and the operator's metrics.

use std::sync::Arc;

use api::ErrorBody;
use api::metrics::{FleetStatus, Metrics};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use http_service::http::ApiError;

use super::auth::{AuthenticatedProduct, BearerAdmin};
use super::error::to_api_error;
use crate::fleet::Fleet;

/// The `OpenMetrics` text format, version 1.0.0.
const OPENMETRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns how many of the calling product's engines are in each state.
#[utoipa::path(
    get, path = "/status", operation_id = "get_fleet_status", tag = "metrics",
    security(("platform_key" = []), ("admin_key" = [])),
    responses(
        (status = 200, description = "The counts", body = FleetStatus),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn status(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
) -> Result<Answer<FleetStatus>, ApiError> {
    fleet.queries.status(&product).await.map(Answer).map_err(to_api_error)
}

/// Returns metrics of this orchestrator since it started: refusals by code, repairs, the supervisor's lag.
#[utoipa::path(
    get, path = "/metrics/prometheus", operation_id = "get_prometheus_metrics", tag = "metrics",
    security(("admin_key" = []), ("admin_bearer" = [])),
    responses(
        (status = 200, description = "In the `OpenMetrics` text format", body = String,
            content_type = "application/openmetrics-text"),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn prometheus(_: BearerAdmin, State(fleet): State<Arc<Fleet>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE)], fleet.open_metrics())
}

/// Returns counts of events of the calling product's engines, in the last hour and in total.
#[utoipa::path(
    get, path = "/metrics", operation_id = "get_fleet_metrics", tag = "metrics",
    security(("platform_key" = []), ("admin_key" = [])),
    responses(
        (status = 200, description = "The counts", body = Metrics),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn metrics(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
) -> Result<Answer<Metrics>, ApiError> {
    fleet.queries.metrics(&product).await.map(Answer).map_err(to_api_error)
}
