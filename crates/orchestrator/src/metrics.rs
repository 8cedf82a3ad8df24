//! What an operator's Prometheus scrapes: counters, gauges and histograms of the fleet as a whole.
//!
//! [`Metrics`] is a cheap handle that records nothing unless `ORCH_METRICS_ADDR` is set. It is called where all
//! calls of a kind pass: around the backend, the registry and the HTTP interface, and where operations and boots
//! end. What is recorded takes no lock, and no label holds data of callers ([`labels`]).

mod backend;
mod engine_counts;
mod families;
mod http;
pub(crate) mod labels;
mod primitives;
mod process;
mod registry;
mod text;
mod usage_totals;

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::backup::BackupAction;
use api::rollout::{RolloutCounts, RolloutPhase};
use api::usage_days::UsageCounts;
use api::{ErrorCode, ProductId, Timestamp};
use parking_lot::Mutex;

use self::families::Families;
use self::labels::{
    AdmitOutcome, BackupOutcome, BootOutcome, CheckResult, DeliveryOutcome, FailureCause, Label as _,
    LimitCause, OperationOutcome, RepairKind, Role, RolloutStage, StatusClass, WarmClaim,
};
use self::process::ProcessFigures;
pub(crate) use self::registry::ObservedRegistry;
pub(crate) use self::text::TextFormat;
use crate::domain::lifecycle::Change;
use crate::domain::warm_pool::WarmState;
use crate::registry::ProductCounts;

/// A handle to the metrics, which does nothing if they are disabled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics(Option<Arc<Recorder>>);

/// The start of something that is measured; `None` if nothing is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Option<Instant>);

/// The metrics.
#[derive(Debug)]
pub(crate) struct Recorder {
    families: Families,
    registry: prometheus_client::registry::Registry,
    /// When the numbers of engines were read last; `None` before anything is known of the fleet.
    counted_at: Mutex<Option<Instant>>,
}

/// The gauges that the fleet knows at a scrape.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FleetGauges {
    pub(crate) supervised_engines: usize,
    pub(crate) operations_in_progress: usize,
    /// The age of the oldest row that waits to be sent by a webhook.
    pub(crate) webhook_lag: Duration,
    /// The time since everything was backed up; zero without a schedule.
    pub(crate) backup_age: Duration,
    /// The time between two backups by the schedule; zero without one.
    pub(crate) backup_interval: Duration,
}

/// A rollout that is under way, as it is exposed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RolloutFigures {
    pub(crate) phase: RolloutPhase,
    pub(crate) is_paused: bool,
    /// Whether it is paused or goes back because too much has failed.
    pub(crate) has_failed: bool,
    pub(crate) engines: RolloutCounts,
}

impl Metrics {
    /// Returns a handle that records, in a process that started at `started_at`.
    pub(crate) fn enabled(started_at: Timestamp) -> Self {
        let (families, registry) = Families::new();
        let started_at = Duration::from_millis(started_at.unix_ms().unsigned_abs());
        families.process_start_time.set(started_at.as_secs_f64());
        if let Some(version) = families.build_info.get(families::Version) {
            version.set(1);
        }
        Self(Some(Arc::new(Recorder { families, registry, counted_at: Mutex::default() })))
    }

    /// The metrics; `None` if nothing is recorded.
    pub(crate) fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.0.as_ref()
    }

    /// Starts to measure a duration.
    pub(crate) fn stopwatch(&self) -> Stopwatch {
        Stopwatch(self.0.is_some().then(Instant::now))
    }

    /// Records an admit that began with `stopwatch`.
    pub(crate) fn admit(&self, outcome: AdmitOutcome, stopwatch: Stopwatch) {
        let Some(families) = self.families() else { return };
        if let Some(admits) = families.admits.get(outcome) {
            admits.inc();
        }
        if let (AdmitOutcome::Running, Some(started)) = (outcome, stopwatch.0) {
            families.admit_duration.observe(started.elapsed());
        }
    }

    /// Records the end of an operation that began with `stopwatch`.
    pub(crate) fn operation(&self, change: Change, outcome: OperationOutcome, stopwatch: Stopwatch) {
        let Some(families) = self.families() else { return };
        if let Some(operations) = families.operations.get(change, outcome) {
            operations.inc();
        }
        if let (OperationOutcome::Done, Some(started), Some(duration)) =
            (outcome, stopwatch.0, families.operation_duration.get(change))
        {
            duration.observe(started.elapsed());
        }
    }

    /// Records the end of a boot that began with `stopwatch`.
    pub(crate) fn boot(&self, outcome: BootOutcome, stopwatch: Stopwatch) {
        let Some(families) = self.families() else { return };
        if let Some(boots) = families.boots.get(outcome) {
            boots.inc();
        }
        if let (BootOutcome::Ready, Some(started)) = (outcome, stopwatch.0) {
            families.boot_duration.observe(started.elapsed());
        }
    }

    /// Records what a provision has found in the warm pool.
    pub(crate) fn warm_claim(&self, outcome: WarmClaim) {
        if let Some(claims) = self.families().and_then(|families| families.warm_claims.get(outcome)) {
            claims.inc();
        }
    }

    /// Sets the numbers of warm engines, whose states these are.
    pub(crate) fn set_warm_engines(&self, states: impl Iterator<Item = WarmState>) {
        let Some(families) = self.families() else { return };
        let states: Vec<_> = states.collect();
        for state in WarmState::ALL {
            if let Some(gauge) = families.warm_engines.get(state) {
                let count = states.iter().filter(|other| **other == state).count();
                gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
    }

    /// Sets how far the rollout under way is; `None` if there is none.
    pub(crate) fn set_rollout(&self, rollout: Option<&RolloutFigures>) {
        let Some(families) = self.families() else { return };
        let is = |holds: fn(&RolloutFigures) -> bool| i64::from(rollout.is_some_and(holds));
        families.rollout_paused.set(is(|rollout| rollout.is_paused));
        families.rollout_failed.set(is(|rollout| rollout.has_failed));
        for phase in RolloutPhase::ALL {
            if let Some(gauge) = families.rollout_phase.get(phase) {
                gauge.set(i64::from(rollout.is_some_and(|rollout| rollout.phase == phase)));
            }
        }
        for stage in RolloutStage::ALL {
            if let Some(gauge) = families.rollout_engines.get(*stage) {
                let count = rollout.map_or(0, |rollout| stage.count(&rollout.engines));
                gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
    }

    /// Records that too much has failed in a rollout.
    pub(crate) fn rollout_failed(&self) {
        if let Some(families) = self.families() {
            families.rollout_failures.inc();
        }
    }

    /// Records the result of a health check.
    pub(crate) fn health_check(&self, result: CheckResult) {
        if let Some(checks) = self.families().and_then(|families| families.health_checks.get(result)) {
            checks.inc();
        }
    }

    /// Records how late a health check starts.
    pub(crate) fn health_check_lag(&self, lag: Duration) {
        if let Some(families) = self.families() {
            families.health_check_lag.observe(lag);
        }
    }

    /// Records that a running engine was declared failed.
    pub(crate) fn engine_failed(&self, cause: FailureCause) {
        if let Some(failures) = self.families().and_then(|families| families.engine_failures.get(cause)) {
            failures.inc();
        }
    }

    /// Records a repair.
    pub(crate) fn repair(&self, what: RepairKind) {
        if let Some(repairs) = self.families().and_then(|families| families.repairs.get(what)) {
            repairs.inc();
        }
    }

    /// Records what became of an attempt to deliver a row of an audit log.
    pub(crate) fn webhook_delivery(&self, outcome: DeliveryOutcome) {
        if let Some(deliveries) =
            self.families().and_then(|families| families.webhook_deliveries.get(outcome))
        {
            deliveries.inc();
        }
    }

    /// Records what became of an engine, or of the registry, in a job with backups.
    pub(crate) fn backup_engine(&self, action: BackupAction, outcome: BackupOutcome) {
        if let Some(engines) =
            self.families().and_then(|families| families.backup_engines.get(action, outcome))
        {
            engines.inc();
        }
    }

    /// Records bytes that a backup has added to its store.
    pub(crate) fn backup_stored(&self, bytes: u64) {
        if let Some(families) = self.families() {
            families.backup_stored.inc_by(bytes);
        }
    }

    /// Records the end of a job with backups.
    pub(crate) fn backup_job(&self, action: BackupAction, duration: Duration) {
        if let Some(jobs) = self.families().and_then(|families| families.backup_job_duration.get(action)) {
            jobs.observe(duration);
        }
    }

    /// Records what an engine of a product has used, as it was collected.
    pub(crate) fn used(&self, product_id: ProductId, added: UsageCounts) {
        if let Some(families) = self.families() {
            families.usage.add(product_id, added);
        }
    }

    fn families(&self) -> Option<&Families> {
        self.0.as_deref().map(|recorder| &recorder.families)
    }
}

impl Recorder {
    /// Sets the routes of the HTTP interface.
    pub(crate) fn set_routes(&self, templates: impl IntoIterator<Item = String>) {
        self.families.routes.set(templates, families::HTTP_BOUNDS);
    }

    /// Records an answer over HTTP: the template of its route, its status and the code of its error.
    pub(crate) fn answer(
        &self,
        route: Option<&str>,
        status: u16,
        code: Option<ErrorCode>,
        duration: Duration,
    ) {
        self.families.routes.record(route, StatusClass::of(status), duration);
        if status == 429
            && let Some(limited) = self.families.limited.get(LimitCause::of(code))
        {
            limited.inc();
        }
    }

    /// Sets the role of this orchestrator.
    pub(crate) fn set_role(&self, role: Role) {
        for other in Role::ALL {
            if let Some(gauge) = self.families.role.get(*other) {
                gauge.set(i64::from(*other == role));
            }
        }
    }

    /// The numbers of engines are to be read from now on: their age counts from here until they are.
    pub(crate) fn expect_engine_counts(&self) {
        *self.counted_at.lock() = Some(Instant::now());
    }

    /// Sets the numbers of engines, which have just been read.
    pub(crate) fn set_engine_counts(&self, products: &[ProductCounts]) {
        self.families.engines.set(products);
        self.families.usage.set_labels(products);
        *self.counted_at.lock() = Some(Instant::now());
    }

    /// All metrics as text.
    pub(crate) fn encode(&self, gauges: FleetGauges, format: TextFormat) -> String {
        let families = &self.families;
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        families.supervised_engines.set(count(gauges.supervised_engines));
        families.operations_in_progress.set(count(gauges.operations_in_progress));
        families.webhook_lag.set(gauges.webhook_lag.as_secs_f64());
        families.backup_age.set(gauges.backup_age.as_secs_f64());
        families.backup_interval.set(gauges.backup_interval.as_secs_f64());
        let counts_age = self.counted_at.lock().map(|at| at.elapsed()).unwrap_or_default();
        families.engine_counts_age.set(counts_age.as_secs_f64());
        let process = ProcessFigures::read();
        families.process_resident_memory.set(process.resident_bytes);
        families.process_threads.set(process.threads);
        families.process_open_files.set(process.open_files);
        families.process_max_open_files.set(process.max_open_files);
        families.process_cpu.set(process.processor_time);
        let mut text = String::new();
        // Writing to a `String` never fails.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        format.convert(text)
    }
}

/// Measures a call, also one that is dropped before its end. `record` gets the duration and the error's kind.
///
/// The call is awaited beside it: a wrapper around its future would hold that several times.
struct CallTimer<K: Copy, R: Fn(Duration, Option<K>)> {
    started: Instant,
    record: R,
    /// What is recorded when it is dropped.
    kind: Option<K>,
}

impl<K: Copy, R: Fn(Duration, Option<K>)> CallTimer<K, R> {
    /// Starts; `abandoned` is recorded if the call does not end.
    fn new(abandoned: K, record: R) -> Self {
        Self { started: Instant::now(), record, kind: Some(abandoned) }
    }

    /// Records the end of the call.
    fn end(mut self, error: Option<K>) {
        self.kind = error;
    }
}

impl<K: Copy, R: Fn(Duration, Option<K>)> Drop for CallTimer<K, R> {
    fn drop(&mut self) {
        (self.record)(self.started.elapsed(), self.kind);
    }
}

#[cfg(test)]
#[path = "../tests/unit/metrics/mod.rs"]
mod tests;
