//! `/webhook`: what is reported to the product, and what became of it.

use api::ErrorBody;
use api::webhooks::{DeliveryState, WebhookDeliveries, WebhookStatus, WebhookTest};
use axum::extract::State as Extract;
use axum::http::StatusCode;
use http_service::http::{ApiError, Path, Query};
use serde::Deserialize;
use utoipa::IntoParams;

use super::AppState;
use super::auth::Authenticated;

/// Returns the receiver, without its path and keys, and how many deliveries there are.
#[utoipa::path(
    get, path = "/webhook", operation_id = "get_webhook", security(("engine_key" = [])),
    responses(
        (status = 200, body = WebhookStatus, description = "The receiver, and the number of deliveries"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn status(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> Result<axum::Json<WebhookStatus>, ApiError> {
    Ok(axum::Json(shared.agent.webhook_status()?))
}

/// The query of `GET /webhook/deliveries`.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct DeliveriesQuery {
    /// Only those in this state.
    #[serde(default)]
    state: Option<DeliveryState>,
}

/// Lists the deliveries, the newest first: all that are pending, and the newest 200 others.
#[utoipa::path(
    get, path = "/webhook/deliveries", operation_id = "list_webhook_deliveries", params(DeliveriesQuery),
    security(("engine_key" = [])),
    responses(
        (status = 200, body = WebhookDeliveries, description = "The deliveries"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn deliveries(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Query(query): Query<DeliveriesQuery>,
) -> Result<axum::Json<WebhookDeliveries>, ApiError> {
    Ok(axum::Json(shared.agent.deliveries(query.state).await?))
}

/// Sends a delivery again, whatever became of it.
#[utoipa::path(
    post, path = "/webhook/deliveries/{id}/retry", operation_id = "retry_webhook_delivery",
    params(("id" = String, Path, description = "The delivery")), security(("engine_key" = [])),
    responses(
        (status = 202, description = "It is sent next"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "DELIVERY_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED"),
    ),
)]
pub(super) async fn retry(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    shared.agent.retry_delivery(id).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Sends a test event to the receiver now, and says what came of it.
#[utoipa::path(
    post, path = "/webhook/test", operation_id = "test_webhook", security(("engine_key" = [])),
    responses(
        (status = 200, body = WebhookTest, description = "The outcome of the test"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 409, body = ErrorBody, description = "WEBHOOK_NOT_CONFIGURED"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED, OVERLOADED"),
    ),
)]
pub(super) async fn test(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
) -> Result<axum::Json<WebhookTest>, ApiError> {
    Ok(axum::Json(shared.agent.test_webhook().await?))
}
