//! Webhooks of the audit log: an orchestrator sends the rows of a product's audit log to the product's own receivers.
//! Requests have the form of Standard Webhooks, like those of an engine ([`crate::webhooks`]).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::audit::{AuditEvent, AuditId, AuditPosition, AuditRow};
use crate::orchestrator::PageLimit;
use crate::webhooks::WebhookSecretText;
use crate::{AuditWebhookId, Timestamp};

/// The most webhooks of a product.
pub const MAX_AUDIT_WEBHOOKS: usize = 10;
/// The most dead letters of a webhook. If there are more, the oldest are dropped and counted.
pub const MAX_DEAD_LETTERS: usize = 1_000;
/// How long requests are also signed with the secret that was replaced, in seconds.
pub const SECRET_OVERLAP_S: i64 = 24 * 60 * 60;

/// Body of `POST /webhooks`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CreateAuditWebhook {
    /// Where rows are sent: an `https:` address on the public internet, or one that the operator allows.
    #[schema(min_length = 1, max_length = 2048)]
    pub url: String,
    /// Only rows of these events are sent; without any, all rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<AuditEvent>,
    /// Rows after this one are sent; 0 for all that the audit log has; by default only new ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<AuditPosition>,
}

/// Body of `PATCH /webhooks/{webhook_id}`: what is left out stays as it is.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct UpdateAuditWebhook {
    /// Where rows are sent from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 2048)]
    pub url: Option<String>,
    /// Only rows of these events are sent from now on; an empty list for all rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<AuditEvent>>,
    /// `true`: nothing is sent for the time being. `false`: what was not sent meanwhile is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// Whether a webhook sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditWebhookState {
    /// Rows are sent.
    Active,
    /// Nothing is sent until it is resumed.
    Paused,
    /// As `paused`, because the receiver answered 410 Gone.
    Gone,
}

impl AuditWebhookState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Active, Self::Paused, Self::Gone];

    /// The name of the state.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Gone => "gone",
        }
    }
}

/// A webhook, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditWebhook {
    /// Its id.
    pub webhook_id: AuditWebhookId,
    /// Where rows are sent.
    pub url: String,
    /// The events whose rows are sent; all if there are none.
    pub events: Vec<AuditEvent>,
    /// Whether it sends.
    pub state: AuditWebhookState,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// The rows up to this one are settled (delivered, dead letters, or of other events), but for those of the users
    /// who are behind.
    pub position: i64,
    /// How many users are behind: a row about their engine has failed, and is sent again before later ones of it.
    pub behind: u64,
    /// When a row was last delivered; null if none was.
    #[schema(required)]
    pub delivered_at: Option<Timestamp>,
    /// Why the last attempt that failed did, for a person; null if none did since the webhook was created or changed.
    #[schema(required)]
    pub last_error: Option<String>,
    /// How many rows were given up and are kept as dead letters.
    pub dead_letters: u64,
    /// How many dead letters were dropped because there were too many.
    pub dead_letters_dropped: u64,
    /// Until when requests are also signed with the secret that was replaced; null if there is none.
    #[schema(required)]
    pub old_secret_expires_at: Option<Timestamp>,
}

/// Response of `POST /webhooks`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CreatedAuditWebhook {
    /// The secret that requests are signed with. It is returned only here.
    pub secret: WebhookSecretText,
    /// The webhook.
    #[serde(flatten)]
    pub webhook: AuditWebhook,
}

/// Response of `GET /webhooks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditWebhookList {
    /// The webhooks, oldest first.
    pub webhooks: Vec<AuditWebhook>,
}

/// Response of `POST /webhooks/{webhook_id}/secret`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RotatedWebhookSecret {
    /// The webhook.
    pub webhook_id: AuditWebhookId,
    /// The new secret. It is returned only here.
    pub secret: WebhookSecretText,
    /// Until when requests are also signed with the old secret.
    pub old_secret_expires_at: Timestamp,
}

/// Response of `DELETE /webhooks/{webhook_id}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeletedAuditWebhook {
    /// The webhook.
    pub webhook_id: AuditWebhookId,
    /// When it was deleted. Nothing is sent any more.
    pub deleted_at: Timestamp,
}

/// Body of `POST /webhooks/{webhook_id}/replay`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplayAuditWebhook {
    /// The rows after this one are sent, also those that were delivered before; 0 for all.
    pub after: AuditPosition,
}

/// A row that was given up.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadLetter {
    /// The row.
    pub row: AuditRow,
    /// When it was given up.
    pub failed_at: Timestamp,
    /// How often it was sent.
    pub attempts: u32,
    /// Why the last attempt failed, for a person.
    pub error: String,
    /// Whether it is about to be sent once more.
    pub retrying: bool,
}

/// Query of `GET /webhooks/{webhook_id}/dead-letters`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ListDeadLetters {
    /// Page size; 100 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<PageLimit>,
    /// Only rows after this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<AuditPosition>,
}

/// Response of `GET /webhooks/{webhook_id}/dead-letters`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadLetterList {
    /// The page, oldest row first.
    pub dead_letters: Vec<DeadLetter>,
}

/// Body of `POST /webhooks/{webhook_id}/dead-letters/retry` and `POST /webhooks/{webhook_id}/dead-letters/discard`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct SelectDeadLetters {
    /// The ids of the rows; by default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 1000)]
    pub rows: Option<Vec<AuditId>>,
}

/// Response of `POST /webhooks/{webhook_id}/dead-letters/retry` and `POST /webhooks/{webhook_id}/dead-letters/discard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SettledDeadLetters {
    /// How many dead letters were among those that the request names.
    pub count: u64,
}

/// The body of a request to a receiver.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditDelivery {
    /// `audit.` and the event of the row, such as `audit.provision`.
    #[serde(rename = "type")]
    pub kind: String,
    /// When it happened: the time of the row.
    pub timestamp: Timestamp,
    /// The webhook.
    pub webhook_id: AuditWebhookId,
    /// The id of this delivery, as in the header `webhook-id`: the same whenever this webhook sends this row.
    pub delivery_id: String,
    /// The number of this attempt, from 1. A restart of the orchestrator may forget some attempts.
    pub attempt: u32,
    /// The row, as `GET /audit` returns it.
    pub data: AuditRow,
}

impl AuditDelivery {
    /// The delivery of a row by a webhook.
    pub fn new(webhook_id: AuditWebhookId, row: AuditRow, attempt: u32) -> Self {
        Self {
            kind: format!("audit.{}", row.event),
            timestamp: row.at,
            webhook_id,
            delivery_id: format!("{webhook_id}_{}", row.id),
            attempt,
            data: row,
        }
    }
}
