//! How a product's fleet is, and what has happened to it, in numbers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::orchestrator::EngineStatus;

/// Answer of `GET /status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetStatus {
    /// All engines, whatever their state.
    pub total: u64,
    /// How many are in each state; only states that occur.
    pub by_status: BTreeMap<EngineStatus, u64>,
    /// How well they are.
    pub health: FleetHealth,
    /// How many are `failed`.
    pub unhealthy_count: u64,
}

impl FleetStatus {
    /// The status of a fleet with so many engines in each state.
    pub fn from_counts(by_status: BTreeMap<EngineStatus, u64>) -> Self {
        let total = by_status.values().sum();
        let unhealthy_count = by_status.get(&EngineStatus::Failed).copied().unwrap_or_default();
        let health = match unhealthy_count {
            0 => FleetHealth::Ok,
            failed if failed >= total - failed => FleetHealth::Critical,
            _ => FleetHealth::Degraded,
        };
        Self { total, by_status, health, unhealthy_count }
    }
}

/// How well a product's engines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FleetHealth {
    /// None is `failed`.
    Ok,
    /// Some are.
    Degraded,
    /// At least half of them are.
    Critical,
}

/// Answer of `GET /metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Metrics {
    /// Engines provisioned in the last hour.
    pub provisions_1h: u64,
    /// Engines that moved to `failed` in the last hour.
    pub crashes_1h: u64,
    /// Automatic restarts attempted in the last hour.
    pub restarts_1h: u64,
    /// How long the last hour's provisions took on average, in milliseconds; 0 if there were none.
    pub avg_boot_ms: u64,
    /// Engines ever provisioned.
    pub total_provisions: u64,
    /// Engines ever destroyed.
    pub total_destroys: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_goes_by_the_share_of_failed_engines() {
        for (running, failed, health) in [
            (0, 0, FleetHealth::Ok),
            (5, 0, FleetHealth::Ok),
            (2, 1, FleetHealth::Degraded),
            (1, 1, FleetHealth::Critical),
            (2, 2, FleetHealth::Critical),
            (3, 2, FleetHealth::Degraded),
            (0, 1, FleetHealth::Critical),
        ] {
            let counts = [(EngineStatus::Running, running), (EngineStatus::Failed, failed)];
            let status =
                FleetStatus::from_counts(counts.into_iter().filter(|(_, count)| *count > 0).collect());
            assert_eq!((status.total, status.health), (running + failed, health), "{running} {failed}");
            assert_eq!(status.unhealthy_count, failed);
        }
    }

    #[test]
    fn states_are_keys_in_the_contracts_order() {
        let counts = [(EngineStatus::Failed, 1), (EngineStatus::Provisioning, 2), (EngineStatus::Running, 3)];
        let json = serde_json::to_string(&FleetStatus::from_counts(counts.into())).unwrap();
        assert_eq!(
            json,
            r#"{"total":6,"by_status":{"provisioning":2,"running":3,"failed":1},"health":"degraded","unhealthy_count":1}"#
        );
    }
}
