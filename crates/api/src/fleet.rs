//! The deployment as its operator sees it: the engines of all products.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::ToSchema;

use crate::metrics::FleetStatus;
use crate::orchestrator::{EngineStatus, EngineSummary, PageLimit};
use crate::{EngineId, EngineImage, ProductId, Slug, Timestamp, UserId};

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
}

#[cfg(test)]
mod tests {
    use super::*;

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
