//! The operator's endpoints for products.

use std::sync::Arc;

use api::orchestrator::{
    ListProducts, PageLimit, PageOffset, ProductList, RegisterProduct, RegisteredProduct, ReplacePolicy,
    ReplacedPolicy,
};
use api::{ErrorBody, ProductId};
use axum::extract::State;
use http_service::http::{ApiError, LenientJson, Path, Query};

use super::auth::Admin;
use super::error::to_api_error;
use super::idempotency::Keyed;
use crate::fleet::{Fleet, FleetError};

/// Registers a product and issues its platform key, which is returned only once.
#[utoipa::path(
    post, path = "/products/register", operation_id = "register_product", tag = "products",
    security(("admin_key" = [])),
    request_body = RegisterProduct,
    responses(
        (status = 200, description = "Registered", body = RegisteredProduct),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 409, description = "`PRODUCT_SLUG_EXISTS`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn register(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
    LenientJson(request): LenientJson<RegisterProduct>,
) -> Result<axum::Json<RegisteredProduct>, ApiError> {
    fleet.products.register(request, call).await.map(axum::Json).map_err(to_api_error)
}

/// Replaces a product's whole policy. Engines above a lowered `max_engines` are kept.
#[utoipa::path(
    put, path = "/products/{product_id}/policy", operation_id = "replace_product_policy", tag = "products",
    security(("admin_key" = [])),
    params(("product_id" = ProductId, Path, description = "The product")),
    request_body = ReplacePolicy,
    responses(
        (status = 200, description = "The new policy", body = ReplacedPolicy),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`PRODUCT_NOT_FOUND`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn replace_policy(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
    Path(product_id): Path<String>,
    LenientJson(request): LenientJson<ReplacePolicy>,
) -> Result<axum::Json<ReplacedPolicy>, ApiError> {
    // An invalid id cannot belong to any product.
    let product_id = product_id.parse().map_err(|_| to_api_error(FleetError::ProductNotFound))?;
    let replaced = fleet.products.replace_policy(product_id, request.policy, call).await;
    replaced.map(axum::Json).map_err(to_api_error)
}

/// Lists all products, oldest first, without their keys.
#[utoipa::path(
    get, path = "/products", operation_id = "list_products", tag = "products",
    security(("admin_key" = [])),
    params(
        ("limit" = inline(Option<PageLimit>), Query, description = "Page size; 100 by default"),
        ("offset" = inline(Option<PageOffset>), Query, description = "Rows to skip; 0 by default"),
    ),
    responses(
        (status = 200, description = "A page, and the total number of products", body = ProductList),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn list(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Query(request): Query<ListProducts>,
) -> Result<axum::Json<ProductList>, ApiError> {
    fleet.products.list(request).await.map(axum::Json).map_err(to_api_error)
}
