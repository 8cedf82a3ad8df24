//! The calling product's webhooks, which get the rows of its audit log.

use std::sync::Arc;

use api::audit::AuditPosition;
use api::audit_webhooks::{
    AuditWebhook, AuditWebhookList, CreateAuditWebhook, CreatedAuditWebhook, DeadLetterList,
    DeletedAuditWebhook, ListDeadLetters, ReplayAuditWebhook, RotatedWebhookSecret, SelectDeadLetters,
    SettledDeadLetters, UpdateAuditWebhook,
};
use api::orchestrator::PageLimit;
use api::{AuditWebhookId, ErrorBody};
use axum::Json as Answer;
use axum::extract::State;
use http_service::http::{ApiError, Json, Path, Query};

use super::auth::AuthenticatedProduct;
use super::error::to_api_error;
use crate::fleet::{Fleet, FleetError};

type JsonResult<T> = Result<Answer<T>, ApiError>;

/// Lists the calling product's webhooks, oldest first.
#[utoipa::path(
    get, path = "/webhooks", operation_id = "list_webhooks", tag = "webhooks",
    security(("platform_key" = []), ("admin_key" = [])),
    responses(
        (status = 200, description = "The webhooks, of which there are at most ten", body = AuditWebhookList),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn list(
    AuthenticatedProduct(caller): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
) -> JsonResult<AuditWebhookList> {
    fleet.webhooks.list(&caller).await.map(Answer).map_err(to_api_error)
}

/// Creates a webhook, which sends the rows of the audit log from then on. Its secret is returned only here.
#[utoipa::path(
    post, path = "/webhooks", operation_id = "create_webhook", tag = "webhooks",
    security(("platform_key" = []), ("admin_key" = [])),
    request_body = CreateAuditWebhook,
    responses(
        (status = 200, description = "The webhook", body = CreatedAuditWebhook),
        (status = 400, description = "`INVALID_REQUEST`, also for an address that may not be reached", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 429, description = "`WEBHOOK_LIMIT`: the product has ten webhooks", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn create(
    AuthenticatedProduct(caller): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Json(request): Json<CreateAuditWebhook>,
) -> JsonResult<CreatedAuditWebhook> {
    fleet.webhooks.create(&caller, request).await.map(Answer).map_err(to_api_error)
}

/// Returns a webhook: its settings and how far it has come.
#[utoipa::path(
    get, path = "/webhooks/{webhook_id}", operation_id = "get_webhook", tag = "webhooks",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("webhook_id" = AuditWebhookId, Path, description = "The webhook"),
    ),
    responses(
        (status = 200, description = "The webhook", body = AuditWebhook),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 404, description = "`WEBHOOK_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn get(
    AuthenticatedProduct(caller): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(webhook_id): Path<String>,
) -> JsonResult<AuditWebhook> {
    let webhook_id = webhook(&webhook_id)?;
    fleet.webhooks.get(&caller, webhook_id).await.map(Answer).map_err(to_api_error)
}

/// Changes, pauses or resumes a webhook. What is left out stays as it is.
#[utoipa::path(
    patch, path = "/webhooks/{webhook_id}", operation_id = "update_webhook", tag = "webhooks",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("webhook_id" = AuditWebhookId, Path, description = "The webhook"),
    ),
    request_body = UpdateAuditWebhook,
    responses(
        (status = 200, description = "The webhook", body = AuditWebhook),
        (status = 400, description = "`INVALID_REQUEST`, also for an address that may not be reached", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`WEBHOOK_NOT_FOUND`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn update(
    AuthenticatedProduct(caller): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(webhook_id): Path<String>,
    Json(request): Json<UpdateAuditWebhook>,
) -> JsonResult<AuditWebhook> {
    let webhook_id = webhook(&webhook_id)?;
    fleet.webhooks.update(&caller, webhook_id, request).await.map(Answer).map_err(to_api_error)
}

/// Deletes a webhook with its dead letters. Nothing is sent any more.
#[utoipa::path(
    delete, path = "/webhooks/{webhook_id}", operation_id = "delete_webhook", tag = "webhooks",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("webhook_id" = AuditWebhookId, Path, description = "The webhook"),
    ),
    responses(
        (status = 200, description = "Deleted", body = DeletedAuditWebhook),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`WEBHOOK_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn delete(
    AuthenticatedProduct(caller): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(webhook_id): Path<String>,
) -> JsonResult<DeletedAuditWebhook> {
    let webhook_id = webhook(&webhook_id)?;
    fleet.webhooks.delete(&caller, webhook_id).await.map(Answer).map_err(to_api_error)
}

/// Gives a webhook a new secret, which is returned only here. For 24 hours requests are signed with the present one, too.
#[utoipa::path(
    post, path = "/webhooks/{webhook_id}/secret", operation_id = "rotate_webhook_secret", tag = "webhooks",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("webhook_id" = AuditWebhookId, Path, description = "The webhook"),
    ),
    responses(
        (status = 200, description = "The new secret", body = RotatedWebhookSecret),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`WEBHOOK_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn rotate_secret(
    AuthenticatedProduct(caller): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(webhook_id): Path<String>,
) -> JsonResult<RotatedWebhookSecret> {
    let webhook_id = webhook(&webhook_id)?;
    fleet.webhooks.rotate_secret(&caller, webhook_id).await.map(Answer).map_err(to_api_error)
}

/// Sends the rows after a position, also those that were delivered before. Dead letters among them are forgotten.
#[utoipa::path(
    post, path = "/webhooks/{webhook_id}/replay", operation_id = "replay_webhook", tag = "webhooks",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("webhook_id" = AuditWebhookId, Path, description = "The webhook"),
    ),
    request_body = ReplayAuditWebhook,
    responses(
        (status = 200, description = "The webhook", body = AuditWebhook),
        (status = 400, description = "`INVALID_REQUEST`, also for a row that does not exist yet", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`WEBHOOK_NOT_FOUND`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn replay(
    AuthenticatedProduct(caller): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(webhook_id): Path<String>,
    Json(request): Json<ReplayAuditWebhook>,
) -> JsonResult<AuditWebhook> {
    let webhook_id = webhook(&webhook_id)?;
    fleet.webhooks.replay(&caller, webhook_id, request).await.map(Answer).map_err(to_api_error)
}

/// Lists the rows that a webhook has given up, oldest first.
#[utoipa::path(
    get, path = "/webhooks/{webhook_id}/dead-letters", operation_id = "list_dead_letters", tag = "webhooks",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("webhook_id" = AuditWebhookId, Path, description = "The webhook"),
        ("limit" = inline(Option<PageLimit>), Query, description = "Page size; 100 by default"),
        ("after" = inline(Option<AuditPosition>), Query, description = "Only rows after the one with this id"),
    ),
    responses(
        (status = 200, description = "A page of dead letters", body = DeadLetterList),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 404, description = "`WEBHOOK_NOT_FOUND`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn dead_letters(
    AuthenticatedProduct(caller): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(webhook_id): Path<String>,
    Query(query): Query<ListDeadLetters>,
) -> JsonResult<DeadLetterList> {
    let webhook_id = webhook(&webhook_id)?;
    fleet.webhooks.dead_letters(&caller, webhook_id, query).await.map(Answer).map_err(to_api_error)
}

/// Sends dead letters once more, one after the other: those that the request names, or all. Those that are delivered
/// leave the list.
#[utoipa::path(
    post, path = "/webhooks/{webhook_id}/dead-letters/retry", operation_id = "retry_dead_letters", tag = "webhooks",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("webhook_id" = AuditWebhookId, Path, description = "The webhook"),
    ),
    request_body = SelectDeadLetters,
    responses(
        (status = 200, description = "How many are sent", body = SettledDeadLetters),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`WEBHOOK_NOT_FOUND`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn retry_dead_letters(
    AuthenticatedProduct(caller): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(webhook_id): Path<String>,
    Json(request): Json<SelectDeadLetters>,
) -> JsonResult<SettledDeadLetters> {
    let webhook_id = webhook(&webhook_id)?;
    fleet.webhooks.retry_dead_letters(&caller, webhook_id, request).await.map(Answer).map_err(to_api_error)
}

/// Removes dead letters: those that the request names, or all. The rows stay in the audit log.
#[utoipa::path(
    post, path = "/webhooks/{webhook_id}/dead-letters/discard", operation_id = "discard_dead_letters", tag = "webhooks",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("webhook_id" = AuditWebhookId, Path, description = "The webhook"),
    ),
    request_body = SelectDeadLetters,
    responses(
        (status = 200, description = "How many were removed", body = SettledDeadLetters),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`WEBHOOK_NOT_FOUND`", body = ErrorBody),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn discard_dead_letters(
    AuthenticatedProduct(caller): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Path(webhook_id): Path<String>,
    Json(request): Json<SelectDeadLetters>,
) -> JsonResult<SettledDeadLetters> {
    let webhook_id = webhook(&webhook_id)?;
    fleet.webhooks.discard_dead_letters(&caller, webhook_id, request).await.map(Answer).map_err(to_api_error)
}

/// An invalid id cannot belong to any webhook.
fn webhook(webhook_id: &str) -> Result<AuditWebhookId, ApiError> {
    webhook_id.parse().map_err(|_| to_api_error(FleetError::WebhookNotFound))
}
