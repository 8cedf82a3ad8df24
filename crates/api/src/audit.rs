//! The audit log, in the form in which products read it.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::orchestrator::PageLimit;
use crate::serde_helpers::BoundedInt;
use crate::{EngineId, ProductId, Timestamp, UserId};

/// The event that an audit row records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditEvent {
    /// The product was registered.
    Register,
    /// The product's policy was replaced.
    PolicyUpdate,
    /// An engine was provisioned.
    Provision,
    /// A provision failed and was rolled back.
    ProvisionFailed,
    /// The product started an engine.
    Start,
    /// The product stopped an engine.
    Stop,
    /// An idle engine was put to sleep.
    Sleep,
    /// An admit woke an engine.
    Wake,
    /// An engine moved to `failed`.
    Crash,
    /// A restart of a failed engine was attempted.
    Restart,
    /// An engine got a new key.
    RotateKey,
    /// An engine was destroyed.
    Destroy,
    /// A browser token was minted.
    MintToken,
    /// A browser token was revoked.
    RevokeToken,
    /// The origins of the product's pages were replaced.
    SetOrigins,
    /// The product got another platform key.
    CreateKey,
    /// A platform key of the product was revoked.
    RevokeKey,
    /// The product got a webhook.
    CreateWebhook,
    /// A webhook of the product was changed, paused or resumed.
    UpdateWebhook,
    /// A webhook of the product got a new secret.
    RotateWebhookSecret,
    /// A webhook of the product sends rows again.
    ReplayWebhook,
    /// Rows that a webhook had given up were sent again or discarded.
    SettleDeadLetters,
    /// A webhook of the product was deleted.
    DeleteWebhook,
    /// What an engine logs was changed.
    LogFilter,
    /// The operator disabled the product.
    Disable,
    /// The operator enabled the product again.
    Enable,
    /// The operator began to delete the product.
    DeleteProduct,
    /// The product was deleted: nothing but its audit log is left.
    ProductDeleted,
    /// An engine asked a person something.
    QuestionAsked,
    /// A question was answered, cancelled or given up.
    QuestionSettled,
    /// The operator had a difference between the registry and what exists repaired.
    Repair,
}

impl AuditEvent {
    /// All events.
    pub const ALL: [Self; 31] = [
        Self::Register,
        Self::PolicyUpdate,
        Self::Provision,
        Self::ProvisionFailed,
        Self::Start,
        Self::Stop,
        Self::Sleep,
        Self::Wake,
        Self::Crash,
        Self::Restart,
        Self::RotateKey,
        Self::Destroy,
        Self::MintToken,
        Self::RevokeToken,
        Self::SetOrigins,
        Self::CreateKey,
        Self::RevokeKey,
        Self::CreateWebhook,
        Self::UpdateWebhook,
        Self::RotateWebhookSecret,
        Self::ReplayWebhook,
        Self::SettleDeadLetters,
        Self::DeleteWebhook,
        Self::LogFilter,
        Self::Disable,
        Self::Enable,
        Self::DeleteProduct,
        Self::ProductDeleted,
        Self::QuestionAsked,
        Self::QuestionSettled,
        Self::Repair,
    ];

    /// Returns the event's name on the wire and in the registry.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::PolicyUpdate => "policy_update",
            Self::Provision => "provision",
            Self::ProvisionFailed => "provision_failed",
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Sleep => "sleep",
            Self::Wake => "wake",
            Self::Crash => "crash",
            Self::Restart => "restart",
            Self::RotateKey => "rotate_key",
            Self::Destroy => "destroy",
            Self::MintToken => "mint_token",
            Self::RevokeToken => "revoke_token",
            Self::SetOrigins => "set_origins",
            Self::CreateKey => "create_key",
            Self::RevokeKey => "revoke_key",
            Self::CreateWebhook => "create_webhook",
            Self::UpdateWebhook => "update_webhook",
            Self::RotateWebhookSecret => "rotate_webhook_secret",
            Self::ReplayWebhook => "replay_webhook",
            Self::SettleDeadLetters => "settle_dead_letters",
            Self::DeleteWebhook => "delete_webhook",
            Self::LogFilter => "log_filter",
            Self::Disable => "disable",
            Self::Enable => "enable",
            Self::DeleteProduct => "delete_product",
            Self::ProductDeleted => "product_deleted",
            Self::QuestionAsked => "question_asked",
            Self::QuestionSettled => "question_settled",
            Self::Repair => "repair",
        }
    }

    /// Parses the result of [`AuditEvent::as_str`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.as_str() == name)
    }
}

/// One row of the audit log.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditRow {
    /// The row's number within its product: from 1 without gaps, in commit order.
    pub id: i64,
    /// When it happened.
    pub at: Timestamp,
    /// The product that the row belongs to.
    pub product_id: ProductId,
    /// The engine concerned; null if there is none.
    #[schema(required)]
    pub engine_id: Option<EngineId>,
    /// The engine's user; null if there is no engine.
    #[schema(required)]
    pub user_id: Option<UserId>,
    /// What happened. A later version may have recorded an event that this version does not know.
    #[schema(value_type = AuditEvent)]
    pub event: Box<str>,
    /// How long it took, in milliseconds; null if that does not apply.
    #[schema(required)]
    pub duration_ms: Option<i64>,
    /// Further details: exactly the text that the hash covers.
    #[schema(value_type = Object)]
    pub detail: Box<RawValue>,
    /// The hash of this row together with the hash of the product's previous row.
    pub hash: String,
}

/// The schema of a message of `GET /events`: the values of its `id:`, `event:` and `data:` lines, with the data parsed.
#[derive(ToSchema)]
pub struct AuditMessage {
    /// The row's id, for `Last-Event-ID`.
    pub id: String,
    /// The row's event.
    pub event: AuditEvent,
    /// The row.
    pub data: AuditRow,
}

/// The id of an audit row: 1 or more.
pub type AuditId = BoundedInt<1, { i64::MAX }>;

/// Query of `GET /audit`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListAudit {
    /// Page size; 100 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<PageLimit>,
    /// Only rows older than this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<AuditId>,
    /// Only rows of this event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<AuditEvent>,
    /// Only rows about this user's engines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
}

/// Response of `GET /audit`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditList {
    /// The page, newest row first.
    pub rows: Vec<AuditRow>,
}

/// A position in the audit log: after the row with this id; 0 is the beginning.
pub type AuditPosition = BoundedInt<0, { i64::MAX }>;

/// Query of `GET /events`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct FollowEvents {
    /// Return the rows after this one; by default only new rows. `Last-Event-ID` takes precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<AuditPosition>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_written_as_they_are_named() {
        for event in AuditEvent::ALL {
            assert_eq!(serde_json::to_value(event).unwrap(), event.as_str());
            assert_eq!(AuditEvent::from_name(event.as_str()), Some(event));
        }
        assert_eq!(AuditEvent::from_name("nothing"), None);
    }
}
