//! The operator's endpoints for the platform keys of a product.

use std::sync::Arc;

use api::product_keys::{CreatePlatformKey, CreatedPlatformKey, PlatformKeyList, RevokedPlatformKey};
use api::{ErrorBody, PlatformKeyId, ProductId};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, Json, Path};

use super::auth::Admin;
use super::error::to_api_error;
use super::idempotency::Keyed;
use crate::fleet::{Fleet, FleetError};

type JsonResult<T> = Result<Answer<T>, ApiError>;

/// Lists the platform keys of a product that are in force, oldest first, without the keys.
#[utoipa::path(
    get, path = "/products/{product_id}/keys", operation_id = "list_platform_keys", tag = "products",
    security(("admin_key" = [])),
    params(("product_id" = ProductId, Path, description = "The product")),
    responses(
        (status = 200, description = "The keys, of which there are at most five", body = PlatformKeyList),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`PRODUCT_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn list(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Path(product_id): Path<String>,
) -> JsonResult<PlatformKeyList> {
    let product_id = product(&product_id)?;
    fleet.products.platform_keys(product_id).await.map(Answer).map_err(to_api_error)
}

/// Makes another platform key of a product, which works beside the others. The key is returned only here. The others
/// work until they are revoked, or as long as the request says.
#[utoipa::path(
    post, path = "/products/{product_id}/keys", operation_id = "create_platform_key", tag = "products",
    security(("admin_key" = [])),
    params(("product_id" = ProductId, Path, description = "The product")),
    request_body = CreatePlatformKey,
    responses(
        (status = 200, description = "The key", body = CreatedPlatformKey),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 403, description = "`PRODUCT_DISABLED`", body = ErrorBody),
        (status = 404, description = "`PRODUCT_NOT_FOUND`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 429, description = "`KEY_LIMIT`: the product has five keys", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn create(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
    Path(product_id): Path<String>,
    Json(request): Json<CreatePlatformKey>,
) -> JsonResult<CreatedPlatformKey> {
    let product_id = product(&product_id)?;
    fleet
        .products
        .create_platform_key(product_id, request, call.as_ref())
        .await
        .map(Answer)
        .map_err(to_api_error)
}

/// Revokes a platform key of a product. It is refused from then on. What is under way with it, such as a stream, goes on.
#[utoipa::path(
    delete, path = "/products/{product_id}/keys/{key_id}", operation_id = "revoke_platform_key", tag = "products",
    security(("admin_key" = [])),
    params(
        ("product_id" = ProductId, Path, description = "The product"),
        ("key_id" = PlatformKeyId, Path, description = "The key"),
    ),
    responses(
        (status = 200, description = "Revoked", body = RevokedPlatformKey),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_ADMIN_KEY`", body = ErrorBody),
        (status = 404, description = "`PRODUCT_NOT_FOUND`, `KEY_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn revoke(
    _admin: Admin,
    State(fleet): State<Arc<Fleet>>,
    Keyed(call): Keyed,
    Path((product_id, key_id)): Path<(String, String)>,
) -> JsonResult<RevokedPlatformKey> {
    let product_id = product(&product_id)?;
    let key_id = key_id.parse().map_err(|_| to_api_error(FleetError::KeyNotFound))?;
    fleet
        .products
        .revoke_platform_key(product_id, key_id, call.as_ref())
        .await
        .map(Answer)
        .map_err(to_api_error)
}

/// An invalid id cannot belong to any product.
pub(super) fn product(product_id: &str) -> Result<ProductId, ApiError> {
    product_id.parse().map_err(|_| to_api_error(FleetError::ProductNotFound))
}
