//! The operator's endpoints for the life of a product.

use std::sync::Arc;

use api::product_state::{DeleteProduct, DeletionPlan, ProductDetails};
use api::{ErrorBody, ProductId};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, Path, Query};

use super::auth::Admin;
use super::error::to_api_error;
use super::idempotency::Keyed;
use super::platform_keys::product;
use crate::fleet::Fleet;

type JsonResult<T> = Result<Answer<T>, ApiError>;

/// Returns a product: its state, how many engines it has, and how far it is with what its state implies. A deleted one is
/// found by its id, too.
#[utoipa::path(
    get, path = "/products/{product_id}", operation_id = "get_product", tag = "products",
    security(("admin_key" = [])),
    params(("product_id" = ProductId, Path, description = "The product")),
    responses(
        (status = 200, description = "The product", body = ProductDetails),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`PRODUCT_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn get(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Path(product_id): Path<String>,
) -> JsonResult<ProductDetails> {
    fleet.product_lives.get(product(&product_id)?).await.map(Answer).map_err(to_api_error)
}

/// Disables a product: from now on every call with its keys and tokens is refused with 403 `PRODUCT_DISABLED`, and its
/// engines are put to sleep. Nothing is removed. It may be repeated.
#[utoipa::path(
    post, path = "/products/{product_id}/disable", operation_id = "disable_product", tag = "products",
    security(("admin_key" = [])),
    params(("product_id" = ProductId, Path, description = "The product")),
    responses(
        (status = 200, description = "Disabled, and how many engines are left", body = ProductDetails),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`PRODUCT_NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`PRODUCT_DELETING`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn disable(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
    Path(product_id): Path<String>,
) -> JsonResult<ProductDetails> {
    fleet.product_lives.disable(product(&product_id)?, call).await.map(Answer).map_err(to_api_error)
}

/// Enables a disabled product. Its engines are woken when somebody wants them. It may be repeated.
#[utoipa::path(
    post, path = "/products/{product_id}/enable", operation_id = "enable_product", tag = "products",
    security(("admin_key" = [])),
    params(("product_id" = ProductId, Path, description = "The product")),
    responses(
        (status = 200, description = "Enabled", body = ProductDetails),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`PRODUCT_NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`PRODUCT_DELETING`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn enable(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
    Path(product_id): Path<String>,
) -> JsonResult<ProductDetails> {
    fleet.product_lives.enable(product(&product_id)?, call).await.map(Answer).map_err(to_api_error)
}

/// Returns what a deletion of a disabled product would remove, and a confirmation for it, which is accepted for ten
/// minutes and as long as the product stays disabled. Nothing changes.
#[utoipa::path(
    get, path = "/products/{product_id}/deletion", operation_id = "plan_product_deletion", tag = "products",
    security(("admin_key" = [])),
    params(("product_id" = ProductId, Path, description = "The product")),
    responses(
        (status = 200, description = "What would be removed", body = DeletionPlan),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`PRODUCT_NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`PRODUCT_NOT_DISABLED`, `PRODUCT_DELETING`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn plan_deletion(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Path(product_id): Path<String>,
) -> JsonResult<DeletionPlan> {
    fleet.product_lives.plan_deletion(product(&product_id)?).await.map(Answer).map_err(to_api_error)
}

/// Deletes a disabled product with everything that it has but its audit log: all engines and their users' data, keys,
/// tokens and origins. It cannot be undone. It answers at once; `GET /products/{product_id}` shows how far it is.
#[utoipa::path(
    delete, path = "/products/{product_id}", operation_id = "delete_product", tag = "products",
    security(("admin_key" = [])),
    params(
        ("product_id" = ProductId, Path, description = "The product"),
        ("confirmation" = String, Query, description = "That of `GET /products/{product_id}/deletion`"),
    ),
    responses(
        (status = 200, description = "Begun, and how many engines are left", body = ProductDetails),
        (status = 400, description = "`INVALID_REQUEST`: also without a confirmation", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`PRODUCT_NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`PRODUCT_NOT_DISABLED`, `CONFIRMATION_INVALID`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn delete(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
    Path(product_id): Path<String>,
    Query(request): Query<DeleteProduct>,
) -> JsonResult<ProductDetails> {
    let product_id = product(&product_id)?;
    fleet
        .product_lives
        .delete(product_id, &request.confirmation, call)
        .await
        .map(Answer)
        .map_err(to_api_error)
}
