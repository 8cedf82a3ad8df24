//! The ledger as products read it.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::orchestrator::PageLimit;
use crate::serde_helpers::BoundedInt;
use crate::{EngineId, ProductId, Timestamp, UserId};

/// What a row of the ledger records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditEvent {
    /// The product was registered.
    Register,
    /// Its policy was replaced.
    PolicyUpdate,
    /// An engine was provisioned.
    Provision,
    /// A provision failed, and nothing of it is left.
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
}

impl AuditEvent {
    /// Every event.
    pub const ALL: [Self; 12] = [
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
    ];

    /// The event as it is written on the wire and in the registry.
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
        }
    }

    /// Reads what [`AuditEvent::as_str`] writes.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.as_str() == name)
    }
}

/// One row of the ledger.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditRow {
    /// Counts the product's rows from 1 without a gap, in commit order.
    pub id: i64,
    /// When it happened.
    pub at: Timestamp,
    /// Whose row it is.
    pub product_id: ProductId,
    /// The engine it is about; null if it is about none.
    #[schema(required)]
    pub engine_id: Option<EngineId>,
    /// That engine's user.
    #[schema(required)]
    pub user_id: Option<UserId>,
    /// What happened. A later version may have recorded what this one has no name for.
    #[schema(value_type = AuditEvent)]
    pub event: Box<str>,
    /// How long it took; null where that says nothing.
    #[schema(required)]
    pub duration_ms: Option<i64>,
    /// More about it. The very text that the hash covers.
    #[schema(value_type = Object)]
    pub detail: Box<RawValue>,
    /// Over this row and the hash of the product's row before it.
    pub hash: String,
}

/// The id of a row.
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

/// Answer of `GET /audit`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditList {
    /// The page, newest row first.
    pub rows: Vec<AuditRow>,
}

/// Where to begin in the ledger: behind the row with this id; 0 for the beginning.
pub type AuditPosition = BoundedInt<0, { i64::MAX }>;

/// Query of `GET /events`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct FollowEvents {
    /// Rows after this one; by default those from now on. `Last-Event-ID` beats it.
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
