//! The deployment as its operator sees it: the engines of all products.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::ToSchema;

use crate::audit::{AuditEvent, AuditRow};
use crate::maintenance::Maintenance;
use crate::metrics::FleetStatus;
use crate::orchestrator::{EngineStatus, EngineSummary, PageLimit};
use crate::product_state::ProductState;
use crate::version::{MoveLimit, MovedEngine};
use crate::{EngineId, EngineImage, ErrorDetail, ProductId, Slug, Timestamp, UserId};

/// States of engines in a query: their names, separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusFilter(Vec<EngineStatus>);

impl StatusFilter {
    /// Returns the states.
    pub fn states(&self) -> &[EngineStatus] {
        &self.0
    }
}

impl<'de> Deserialize<'de> for StatusFilter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut states = Vec::new();
        for name in text.split(',') {
            let expected = "must be states of engines, separated by commas: provisioning, running, sleeping, \
                            stopped, failed, destroying";
            let state = EngineStatus::from_name(name.trim()).ok_or_else(|| de::Error::custom(expected))?;
            if !states.contains(&state) {
                states.push(state);
            }
        }
        Ok(Self(states))
    }
}

impl Serialize for StatusFilter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let names: Vec<_> = self.0.iter().map(|state| state.as_str()).collect();
        serializer.serialize_str(&names.join(","))
    }
}

/// Query of `GET /fleet/engines`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListFleetEngines {
    /// Only engines of this product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_id: Option<ProductId>,
    /// Only engines in one of these states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<StatusFilter>,
    /// Only engines that run, or last ran, this image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_version: Option<EngineImage>,
    /// Only engines of users whose id begins with this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_prefix: Option<UserId>,
    /// Page size; 100 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<PageLimit>,
    /// Only engines after this id: `next` of the previous response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<EngineId>,
}

/// An engine of any product.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetEngine {
    /// The product that it belongs to.
    pub product_id: ProductId,
    /// The fields of a product's listing.
    #[serde(flatten)]
    pub summary: EngineSummary,
    /// Whether it is pinned to its image instead of following the deployment's.
    pub pinned: bool,
    /// The port of the host that it has leased; null if it has none.
    #[schema(required)]
    pub port: Option<u16>,
    /// Since when it has been in its state; null during a provision and a delete.
    #[schema(required)]
    pub since: Option<Timestamp>,
    /// The number of consecutive health checks that it failed, as last stored.
    pub failed_checks: u64,
    /// The number of automatic restarts attempted since it was last healthy for long.
    pub restarts: u64,
    /// When the next automatic restart is due; null if none is.
    #[schema(required)]
    pub restart_at: Option<Timestamp>,
}

/// Response of `GET /fleet/engines`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetEngineList {
    /// The page, sorted by id: engines that were provisioned later come later.
    pub engines: Vec<FleetEngine>,
    /// Where to continue; null if there are no more.
    #[schema(required)]
    pub next: Option<EngineId>,
}

/// Response of `GET /fleet/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetOverview {
    /// Since when this orchestrator has been the active one.
    pub active_since: Timestamp,
    /// The engines of all products together.
    #[serde(flatten)]
    pub engines: FleetStatus,
    /// Since when the deployment has been drained; null if it is not.
    #[schema(required)]
    pub drained_since: Option<Timestamp>,
    /// The maintenance; null if there is none. Answers of earlier versions have none.
    #[serde(default)]
    #[schema(required)]
    pub maintenance: Option<Maintenance>,
    /// The number of engines that are being changed at the moment.
    pub changes_under_way: u64,
    /// The limits of the host.
    pub capacity: FleetCapacity,
    /// The engines of each product, also of products without engines, sorted by product id.
    pub products: Vec<ProductStatus>,
}

/// What limits the number of engines that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetCapacity {
    /// The number of ports that engines may lease; null if each engine has an address of its own.
    #[schema(required)]
    pub ports: Option<u64>,
    /// The number of engines that have leased a port. Those that do not run give theirs up when no other port is free.
    pub leased_ports: u64,
    /// The number of engines that may boot at the same time.
    pub concurrent_boots: u64,
}

/// The engines of one product.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProductStatus {
    /// The product's id.
    pub product_id: ProductId,
    /// The product's short name.
    pub slug: Slug,
    /// The number of engines, in any state.
    pub total: u64,
    /// The number of engines in each state; only states that occur.
    pub by_status: BTreeMap<EngineStatus, u64>,
    /// The number of engines that its policy allows; null if that is not limited.
    #[schema(required)]
    pub max_engines: Option<u64>,
    /// Whether it is suspended.
    pub suspended: bool,
    /// Whether it is in use. Answers of earlier versions have none.
    #[serde(default)]
    #[schema(required)]
    pub state: ProductState,
}

/// Body of `POST /fleet/start-failed`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct StartFailed {
    /// Only engines of this product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_id: Option<ProductId>,
    /// Only engines after this id: `next` of the previous response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<EngineId>,
    /// The maximum number of engines; 20 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<MoveLimit>,
}

/// Response of `POST /fleet/start-failed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StartedEngines {
    /// The engines that had failed, sorted by id, each with the error if it was not started.
    pub engines: Vec<MovedEngine>,
    /// Where to continue; null if there are no more.
    #[schema(required)]
    pub next: Option<EngineId>,
}

/// Response of `POST` and `DELETE /fleet/drain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrainStatus {
    /// Since when the deployment has been drained; null if it is not.
    #[schema(required)]
    pub drained_since: Option<Timestamp>,
    /// The number of engines that run or are being changed.
    pub left: u64,
}

/// Response of `GET /fleet/drain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrainProgress {
    /// Since when the deployment has been drained; null if it is not.
    #[schema(required)]
    pub drained_since: Option<Timestamp>,
    /// The number of engines that run or are being changed. The drain is complete when there are none.
    pub left: u64,
    /// The number of engines that sleep.
    pub asleep: u64,
    /// The number of engines that could not be put to sleep at the last attempt. Each is tried again.
    pub failing: u64,
    /// The first 100 of those, the one that has been failing longest first.
    pub failures: Vec<EngineFailure>,
}

/// An engine that could not be put to sleep or destroyed, which is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EngineFailure {
    /// The engine's id.
    pub engine_id: EngineId,
    /// The product that it belongs to.
    pub product_id: ProductId,
    /// The user whose engine it is.
    pub user_id: UserId,
    /// When the first attempt failed.
    pub since: Timestamp,
    /// The number of failed attempts of this orchestrator.
    pub attempts: u64,
    /// Why the last attempt failed.
    pub error: ErrorDetail,
}

/// A position among the audit rows of all products, which are sorted by time, product and id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditCursor {
    /// When the row was written.
    pub at: Timestamp,
    /// The product that the row belongs to.
    pub product_id: ProductId,
    /// The row's id within its product.
    pub id: i64,
}

impl fmt::Display for AuditCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.at.unix_ms(), self.product_id, self.id)
    }
}

impl FromStr for AuditCursor {
    type Err = InvalidAuditCursor;

    fn from_str(text: &str) -> Result<Self, InvalidAuditCursor> {
        let parse = || {
            let (at, rest) = text.split_once('.')?;
            let (product_id, id) = rest.split_once('.')?;
            let at = Timestamp::from_unix_ms(at.parse().ok()?);
            Some(Self { at, product_id: product_id.parse().ok()?, id: id.parse().ok()? })
        };
        parse().ok_or(InvalidAuditCursor)
    }
}

/// A text is no position of the audit log.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("must be `next` of a page of the audit log")]
pub struct InvalidAuditCursor;

impl Serialize for AuditCursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AuditCursor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Query of `GET /fleet/audit`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListFleetAudit {
    /// Only rows of this product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_id: Option<ProductId>,
    /// Only rows about this user's engines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    /// Only rows of this event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<AuditEvent>,
    /// Page size; 100 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<PageLimit>,
    /// Only rows before this position: `next` of the previous response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<AuditCursor>,
}

/// Response of `GET /fleet/audit`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FleetAuditList {
    /// The page, newest row first.
    pub rows: Vec<AuditRow>,
    /// Where to continue; null if there are no more.
    #[schema(required, value_type = Option<String>)]
    pub next: Option<AuditCursor>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_of_the_audit_log_read_back_and_sort_by_time_first() {
        let product_id = ProductId::new();
        let cursor = |ms, id| AuditCursor { at: Timestamp::from_unix_ms(ms), product_id, id };
        let (earlier, later) = (cursor(5, 9), cursor(1_795_174_231_042, 3));
        for cursor in [earlier, later, cursor(-1, 1)] {
            assert_eq!(cursor.to_string().parse::<AuditCursor>().unwrap(), cursor);
        }
        assert!(earlier < later);
        for bad in ["", "5", "5.x.1", "x.prod_x.1", "5.prod_x.1"] {
            assert!(bad.parse::<AuditCursor>().is_err(), "{bad}");
        }
    }

    #[test]
    fn states_are_listed_with_commas() {
        let parse = |text: &str| serde_json::from_value::<StatusFilter>(text.into());
        let filter = parse("running, failed,running").unwrap();
        assert_eq!(filter.states(), [EngineStatus::Running, EngineStatus::Failed]);
        assert_eq!(serde_json::to_value(&filter).unwrap(), "running,failed");
        for bad in ["", ",", "running,", "Running", "asleep", "running;failed"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
