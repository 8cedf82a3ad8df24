//! The health and the metrics of a product's fleet.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::orchestrator::EngineStatus;

/// Response of `GET /status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetStatus {
    /// The number of engines, in any state.
    pub total: u64,
    /// The number of engines in each state; only states that occur.
    pub by_status: BTreeMap<EngineStatus, u64>,
    /// The health of the fleet.
    pub health: FleetHealth,
    /// The number of engines that are `failed`.
    pub unhealthy_count: u64,
}

impl FleetStatus {
    /// Computes the status of a fleet from the number of engines in each state.
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

/// The health of a product's engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FleetHealth {
    /// No engine is `failed`.
    Ok,
    /// Some engines are `failed`.
    Degraded,
    /// At least half of the engines are `failed`.
    Critical,
}

/// Response of `GET /metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Metrics {
    /// The number of engines provisioned in the last hour.
    pub provisions_1h: u64,
    /// The number of transitions to `failed` in the last hour.
    pub crashes_1h: u64,
    /// The number of automatic restarts attempted in the last hour.
    pub restarts_1h: u64,
    /// The average duration of the last hour's provisions, in milliseconds; 0 if there were none.
    pub avg_boot_ms: u64,
    /// The number of engines ever provisioned.
    pub total_provisions: u64,
    /// The number of engines ever destroyed.
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
