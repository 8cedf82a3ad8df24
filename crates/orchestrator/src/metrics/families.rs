//! All families, stated once: name, unit, help and labels. `docs/monitoring.md` describes the same ones for operators.

use std::sync::atomic::AtomicU64;

use api::backup::BackupAction;
use api::rollout::RolloutPhase;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::engine_counts::EngineCounts;
use super::http::{RouteAnswers, RouteDurations, Routes};
use super::labels::{
    AdmitOutcome, BackendCall, BackendErrorKind, BackupOutcome, BootOutcome, CheckResult, DeliveryOutcome,
    FailureCause, LimitCause, OperationOutcome, RegistryErrorKind, RepairKind, Role, RolloutStage, WarmClaim,
};
use super::primitives::{Bounds, ByLabel, ByLabels, Histogram, SecondsCounter, SparseHistograms};
use super::registry::RegistryCall;
use super::usage_totals::{FirstDeltaFamily, UsageFamily, UsageKind, UsageTotals};
use crate::domain::lifecycle::Change;
use crate::domain::warm_pool::WarmState;

/// The prefix of all names.
const PREFIX: &str = "roundhouse";

/// Calls that are answered from memory or by one query.
const CALL_BOUNDS: Bounds = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];
/// Changes of engines, which take from milliseconds to a minute.
const CHANGE_BOUNDS: Bounds = &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0];
/// Jobs with backups, which take from a second to a day.
const JOB_BOUNDS: Bounds = &[1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0];
/// The lag of checks.
const LAG_BOUNDS: Bounds = &[0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Answers over HTTP, some of which wait for a boot.
pub(super) const HTTP_BOUNDS: Bounds =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// A gauge of seconds.
pub(super) type SecondsGauge = Gauge<f64, AtomicU64>;

/// The families.
#[derive(Debug)]
pub(super) struct Families {
    pub(super) build_info: ByLabel<Version, Gauge>,
    pub(super) role: ByLabel<Role, Gauge>,
    pub(super) engines: EngineCounts,
    pub(super) engine_counts_age: SecondsGauge,
    pub(super) usage: UsageTotals,
    pub(super) supervised_engines: Gauge,
    pub(super) operations_in_progress: Gauge,
    pub(super) admits: ByLabel<AdmitOutcome, Counter>,
    pub(super) admit_duration: Histogram,
    pub(super) operations: ByLabels<Change, OperationOutcome, Counter>,
    pub(super) operation_duration: ByLabel<Change, Histogram>,
    pub(super) boots: ByLabel<BootOutcome, Counter>,
    pub(super) boot_duration: Histogram,
    pub(super) warm_engines: ByLabel<WarmState, Gauge>,
    pub(super) warm_claims: ByLabel<WarmClaim, Counter>,
    pub(super) rollout_phase: ByLabel<RolloutPhase, Gauge>,
    pub(super) rollout_paused: Gauge,
    pub(super) rollout_failed: Gauge,
    pub(super) rollout_failures: Counter,
    pub(super) rollout_engines: ByLabel<RolloutStage, Gauge>,
    pub(super) health_checks: ByLabel<CheckResult, Counter>,
    pub(super) health_check_lag: Histogram,
    pub(super) engine_failures: ByLabel<FailureCause, Counter>,
    pub(super) repairs: ByLabel<RepairKind, Counter>,
    pub(super) webhook_deliveries: ByLabel<DeliveryOutcome, Counter>,
    pub(super) webhook_lag: SecondsGauge,
    pub(super) backup_engines: ByLabels<BackupAction, BackupOutcome, Counter>,
    pub(super) backup_stored: Counter,
    pub(super) backup_job_duration: ByLabel<BackupAction, Histogram>,
    pub(super) backup_age: SecondsGauge,
    pub(super) backup_interval: SecondsGauge,
    pub(super) backend_call_duration: SparseHistograms<BackendCall>,
    pub(super) backend_errors: ByLabel<BackendErrorKind, Counter>,
    pub(super) registry_call_duration: SparseHistograms<RegistryCall>,
    pub(super) registry_errors: ByLabel<RegistryErrorKind, Counter>,
    pub(super) limited: ByLabel<LimitCause, Counter>,
    pub(super) routes: Routes,
    pub(super) process_resident_memory: Gauge,
    pub(super) process_threads: Gauge,
    pub(super) process_open_files: Gauge,
    pub(super) process_max_open_files: Gauge,
    pub(super) process_cpu: SecondsCounter,
    pub(super) process_start_time: SecondsGauge,
}

/// The version of this binary, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version;

impl super::labels::Label for Version {
    const NAME: &'static str = "version";
    const ALL: &'static [Self] = &[Self];

    fn value(self) -> &'static str {
        backend::VERSION
    }
}

/// Adds a family to a registry.
struct Registrar<'a>(&'a mut Registry);

impl Registrar<'_> {
    fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    fn seconds<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register_with_unit(name, help, Unit::Seconds, metric.clone());
        metric
    }

    fn bytes<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register_with_unit(name, help, Unit::Bytes, metric.clone());
        metric
    }
}

impl Families {
    /// Creates the families and their registry.
    pub(super) fn new() -> (Self, Registry) {
        let mut registry = Registry::with_prefix(PREFIX);
        let families = Self::register(&mut Registrar(&mut registry));
        (families, registry)
    }

    #[rustfmt::skip]
    fn register(to: &mut Registrar<'_>) -> Self {
        fn counters<L: super::labels::Label>() -> ByLabel<L, Counter> {
            ByLabel::new(Counter::default)
        }
        let call_duration = || Histogram::new(CALL_BOUNDS);
        let change_duration = || Histogram::new(CHANGE_BOUNDS);
        let routes = Routes::default();
        let usage = UsageTotals::default();
        let used = |kind| UsageFamily(usage.clone(), kind);
        to.add("http_requests", "Answers over HTTP by route and class of status", RouteAnswers(routes.clone()));
        to.seconds("http_request_duration", "Time until the head of an answer over HTTP", RouteDurations(routes.clone()));
        to.add("turns", "Turns of engines that have ended, by product", used(UsageKind::Turns));
        to.add("model_calls", "Calls of models by engines, by product and result", used(UsageKind::ModelCalls));
        to.add("tokens", "Tokens that engines have used, by product and kind", used(UsageKind::Tokens));
        to.add("cost_usd", "Cost in US dollars of calls of models whose price is known, by product", used(UsageKind::CostUsd));
        to.add("unpriced_calls", "Calls of models whose price is not known, by product", used(UsageKind::UnpricedCalls));
        to.add("tool_calls", "Tool calls that have run, by product", used(UsageKind::ToolCalls));
        to.seconds("turn_first_delta", "Time from the beginning of a turn until its first text, by product", FirstDeltaFamily(usage.clone()));
        Self {
            usage,
            routes,
            build_info: to.add("build_info", "Always 1; the label is the version of this binary", ByLabel::new(Gauge::default)),
            role: to.add("role", "1 for the role of this orchestrator, 0 for the others", ByLabel::new(Gauge::default)),
            engines: to.add("engines", "Engines by product and state", EngineCounts::default()),
            engine_counts_age: to.seconds("engine_counts_age", "Age of the numbers of engines", SecondsGauge::default()),
            supervised_engines: to.add("supervised_engines", "Engines that run or await a restart", Gauge::default()),
            operations_in_progress: to.add("operations_in_progress", "Operations on engines under way", Gauge::default()),
            admits: to.add("admits", "Admits by outcome", counters()),
            admit_duration: to.seconds("admit_duration", "Duration of admits that found a running engine", call_duration()),
            operations: to.add("operations", "Operations on engines that ended, by outcome", ByLabels::new(Counter::default)),
            operation_duration: to.seconds("operation_duration", "Duration of operations on engines that succeeded", ByLabel::new(change_duration)),
            boots: to.add("boots", "Boots of engines that ended, by outcome", counters()),
            boot_duration: to.seconds("boot_duration", "Time from the launch of an engine until it was ready", change_duration()),
            warm_engines: to.add("warm_engines", "Engines that were booted ahead, by state", ByLabel::new(Gauge::default)),
            warm_claims: to.add("warm_claims", "Provisions by what they found in the warm pool", counters()),
            rollout_phase: to.add("rollout_phase", "1 for the phase of the rollout under way, 0 for the others", ByLabel::new(Gauge::default)),
            rollout_paused: to.add("rollout_paused", "Whether the rollout under way is paused", Gauge::default()),
            rollout_failed: to.add("rollout_failed", "Whether the rollout under way is paused or goes back because too much has failed", Gauge::default()),
            rollout_failures: to.add("rollout_failures", "Times that too much had failed for a rollout to go on", Counter::default()),
            rollout_engines: to.add("rollout_engines", "Engines of the rollout under way, by state", ByLabel::new(Gauge::default)),
            health_checks: to.add("health_checks", "Health checks of running engines by result", counters()),
            health_check_lag: to.seconds("health_check_lag", "Delay between the due time and the start of a health check", Histogram::new(LAG_BOUNDS)),
            engine_failures: to.add("engine_failures", "Running engines that were declared failed", counters()),
            repairs: to.add("repairs", "Differences between the registry and what runs that were repaired", counters()),
            webhook_deliveries: to.add("webhook_deliveries", "Attempts to deliver rows of audit logs to webhooks, by outcome", counters()),
            webhook_lag: to.seconds("webhook_lag", "Age of the oldest row of an audit log that waits to be sent by a webhook", SecondsGauge::default()),
            backup_engines: to.add("backup_engines", "Engines, and the registry, in jobs with backups, by outcome", ByLabels::new(Counter::default)),
            backup_stored: to.bytes("backup_stored", "Bytes that backups have added to their store", Counter::default()),
            backup_job_duration: to.seconds("backup_job_duration", "Duration of jobs with backups", ByLabel::new(|| Histogram::new(JOB_BOUNDS))),
            backup_age: to.seconds("backup_age", "Time since everything was backed up; 0 without a schedule", SecondsGauge::default()),
            backup_interval: to.seconds("backup_interval", "Time between two backups by the schedule; 0 without one", SecondsGauge::default()),
            backend_call_duration: to.seconds("backend_call_duration", "Duration of calls of the backend", SparseHistograms::new(CHANGE_BOUNDS)),
            backend_errors: to.add("backend_errors", "Calls of the backend that failed", counters()),
            registry_call_duration: to.seconds("registry_call_duration", "Duration of calls of the registry", SparseHistograms::new(CALL_BOUNDS)),
            registry_errors: to.add("registry_errors", "Calls of the registry that failed", counters()),
            limited: to.add("limited_requests", "Answers with the status 429 by cause", counters()),
            process_resident_memory: to.bytes("process_resident_memory", "Resident memory of the orchestrator", Gauge::default()),
            process_threads: to.add("process_threads", "Threads of the orchestrator", Gauge::default()),
            process_open_files: to.add("process_open_files", "Open files of the orchestrator", Gauge::default()),
            process_max_open_files: to.add("process_max_open_files", "The most files that the orchestrator may open", Gauge::default()),
            process_cpu: to.seconds("process_cpu", "Processor time of the orchestrator", SecondsCounter::default()),
            process_start_time: to.seconds("process_start_time", "Start of the orchestrator, as Unix time", SecondsGauge::default()),
        }
    }
}
