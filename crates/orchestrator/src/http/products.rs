//! Products: the operator's part.

use std::sync::Arc;

use axum::extract::State;
use contract::ErrorBody;
use contract::orchestrator::{RegisterProduct, RegisteredProduct};
use service::http::{ApiError, Json};

use super::auth::Admin;
use super::error::answer;
use crate::fleet::Fleet;

/// Registers a product and issues its platform key, which is shown this once.
#[utoipa::path(
    post, path = "/products/register", tag = "products",
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
    Json(ask): Json<RegisterProduct>,
) -> Result<axum::Json<RegisteredProduct>, ApiError> {
    fleet.register(ask).await.map(axum::Json).map_err(answer)
}
