//! Metrics for the operator's monitoring: error responses, repairs, and the lag of the supervisor.
//!
//! They count since the start of this process. Labels are few and fixed: no user, no engine, no product.

use std::time::Duration;

use api::ErrorCode;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::supervision::SupervisionAction;
use crate::metrics::Metrics;
use crate::metrics::labels::RepairKind;

/// The metrics and their registry.
pub(crate) struct Telemetry {
    registry: Registry,
    refusals: Family<ErrorLabels, Counter>,
    repairs: Family<RepairLabels, Counter>,
    lag: Histogram,
    supervised: Gauge,
    operations: Gauge,
    metrics: Metrics,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RepairLabels {
    what: Repair,
}

/// A difference that reconciliation has found and repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Repair {
    /// A claim that nobody worked on any more.
    Claim,
    /// An engine that should have run and did not.
    Dead,
    /// A process without a row.
    Orphan,
}

/// The bucket bounds of the lag histogram, in seconds.
const LAG_BUCKETS_SECONDS: [f64; 8] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0];

impl Telemetry {
    pub(super) fn new(metrics: Metrics) -> Self {
        let mut registry = Registry::with_prefix("roundhouse");
        let (refusals, repairs) = (Family::default(), Family::default());
        let (lag, supervised, operations) =
            (Histogram::new(LAG_BUCKETS_SECONDS), Gauge::default(), Gauge::default());
        registry.register("refusals", "Error responses, by code", Family::clone(&refusals));
        registry.register(
            "repairs",
            "Differences between the registry and the running instances that were repaired",
            Family::clone(&repairs),
        );
        registry.register(
            "supervision_lag_seconds",
            "Delay between the due time and the start of a check, sleep or restart",
            Histogram::clone(&lag),
        );
        registry.register(
            "supervised_engines",
            "Engines that run or await a restart",
            Gauge::clone(&supervised),
        );
        registry.register("changes_under_way", "Operations on engines under way", Gauge::clone(&operations));
        Self { registry, refusals, repairs, lag, supervised, operations, metrics }
    }

    /// Counts an error response.
    pub(crate) fn record_error(&self, code: ErrorCode) {
        let code = serde_json::to_value(code).ok().and_then(|code| code.as_str().map(str::to_owned));
        self.refusals.get_or_create(&ErrorLabels { code: code.unwrap_or_default() }).inc();
    }

    pub(super) fn record_repair(&self, what: Repair) {
        self.repairs.get_or_create(&RepairLabels { what }).inc();
        self.metrics.repair(match what {
            Repair::Claim => RepairKind::Claim,
            Repair::Dead => RepairKind::Dead,
            Repair::Orphan => RepairKind::Orphan,
        });
    }

    /// Records how late an action starts.
    pub(super) fn record_lag(&self, action: SupervisionAction, lag: Duration) {
        self.lag.observe(lag.as_secs_f64());
        if matches!(action, SupervisionAction::Check) {
            self.metrics.health_check_lag(lag);
        }
    }

    /// All metrics in the `OpenMetrics` text format.
    pub(super) fn encode(&self, supervised: usize, operations: usize) -> String {
        self.supervised.set(i64::try_from(supervised).unwrap_or(i64::MAX));
        self.operations.set(i64::try_from(operations).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a `String` never fails.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
