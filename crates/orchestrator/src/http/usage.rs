//! What the engines of a product, or of all products, have used.

use std::sync::Arc;

use api::ErrorBody;
use api::usage_days::{FleetUsage, FleetUsageGroup, ProductUsage, ProductUsageGroup, ReadUsage};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, Query};

use super::auth::{Admin, AuthenticatedProduct};
use super::error::to_api_error;
use crate::fleet::Fleet;

/// Returns what the calling product's engines have used, by day in UTC or by engine: turns, tokens, costs, tool calls, and
/// the admits. Engines that were deleted stay in the sums.
#[utoipa::path(
    get, path = "/usage", operation_id = "get_product_usage", tag = "metrics",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("from" = Option<String>, Query,
            description = "The first day in UTC, such as 2026-11-26; by default 29 days before the last one"),
        ("to" = Option<String>, Query, description = "The last day in UTC; by default today"),
        ("group_by" = Option<String>, Query, description = "`day` (the default) or `engine`"),
        ("limit" = Option<i64>, Query, description = "The maximum number of rows: 1 to 500, 100 by default"),
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
    ),
    responses(
        (status = 200, description = "A page of the groups, and the total", body = ProductUsage),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn of_product(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Query(query): Query<ReadUsage<ProductUsageGroup>>,
) -> Result<Answer<ProductUsage>, ApiError> {
    fleet.usage.of_product(&product, query).await.map(Answer).map_err(to_api_error)
}

/// Returns what the engines of all products have used, by day in UTC or by product.
#[utoipa::path(
    get, path = "/fleet/usage", operation_id = "get_fleet_usage", tag = "fleet",
    security(("admin_key" = [])),
    params(
        ("from" = Option<String>, Query,
            description = "The first day in UTC, such as 2026-11-26; by default 29 days before the last one"),
        ("to" = Option<String>, Query, description = "The last day in UTC; by default today"),
        ("group_by" = Option<String>, Query, description = "`day` (the default) or `product`"),
        ("limit" = Option<i64>, Query, description = "The maximum number of rows: 1 to 500, 100 by default"),
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
    ),
    responses(
        (status = 200, description = "A page of the groups, and the total", body = FleetUsage),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn of_fleet(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Query(query): Query<ReadUsage<FleetUsageGroup>>,
) -> Result<Answer<FleetUsage>, ApiError> {
    fleet.usage.of_fleet(query).await.map(Answer).map_err(to_api_error)
}
