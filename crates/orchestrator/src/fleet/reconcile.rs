//! Reconciliation: compares the registry with the instances that run, at start-up and every 30 seconds, and
//! repairs what differs.
//!
//! A process without a row is killed, an abandoned change is completed or rolled back, and an engine that should
//! run but does not becomes `failed`. A folder without a row is left alone, because it may be somebody's data.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::ProductId;
use api::orchestrator::EngineStatus;
use backend::{BackendError, EngineListing, Target};
use futures::StreamExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::FleetError;
use super::browser::Browsers;
use super::drain::DrainState;
use super::execute::Executor;
use super::maintenance::MaintenanceState;
use super::policies::Policies;
use super::products::Products;
use super::request::OperationError;
use super::rollouts::RolloutState;
use super::shared::Shared;
use super::supervision::Supervision;
use super::supervisor::EXIT_CONFIRM_DELAY;
use super::telemetry::{Repair, Telemetry};
use super::transitions::{Transitions, unexpected_exit_message};
use crate::registry::{EngineMove, EngineRow, RegistryError};

/// How long readiness waits for the first comparison. Together with the first call to the backend before it, an
/// orchestrator is ready within 10 seconds of opening its registry.
const FIRST_RECONCILE_TIMEOUT: Duration = Duration::from_millis(7_500);

/// The interval between comparisons.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(30);

/// Concurrent repairs. Each may wait for the backend, and no repair may delay the others for long.
const MAX_CONCURRENT_REPAIRS: usize = 16;

/// What a comparison found to repair.
#[derive(Default)]
struct Findings {
    /// Rows with a claim but no operation, and rows of idle engines that have a process or the remains of one.
    inconsistent: Vec<EngineRow>,
    /// Processes without a row, or launched beside the process that their row names.
    orphans: Vec<EngineListing>,
}

/// Processes of an older generation than the process that the engine's row names, and running beside it. They were
/// launched by an orchestrator that had lost the registry without noticing.
fn superseded(rows: &[EngineRow], listed: &[EngineListing]) -> Vec<EngineListing> {
    let mut current = HashMap::new();
    for process in listed.iter().filter(|process| process.running) {
        current.insert((process.engine_id, &process.instance), process.generation);
    }
    let newer: HashMap<_, _> = rows
        .iter()
        .filter_map(|row| Some((row.engine_id, *current.get(&(row.engine_id, row.instance.as_ref()?))?)))
        .collect();
    let is_older = |process: &&EngineListing| {
        process.running && newer.get(&process.engine_id).is_some_and(|newer| process.generation < *newer)
    };
    listed.iter().filter(is_older).cloned().collect()
}

/// The pause before the registry is read again after a failure.
const LOAD_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Those of `rows` whose instance is not listed.
fn without_process(rows: Vec<EngineRow>, listed: &[EngineListing]) -> Vec<EngineRow> {
    let alive = listed.iter().filter(|listed| listed.running);
    let listed: HashSet<_> = alive.map(|listed| (listed.engine_id, &listed.instance)).collect();
    let runs = |row: &EngineRow| {
        row.instance.as_ref().is_some_and(|instance| listed.contains(&(row.engine_id, instance)))
    };
    rows.into_iter().filter(|row| !runs(row)).collect()
}

pub(super) struct Reconciler {
    pub(super) shared: Arc<Shared>,
    pub(super) supervision: Arc<Supervision>,
    pub(super) transitions: Arc<Transitions>,
    pub(super) policies: Arc<Policies>,
    pub(super) products: Arc<Products>,
    pub(super) browsers: Arc<Browsers>,
    pub(super) drain: Arc<DrainState>,
    pub(super) maintenance: Arc<MaintenanceState>,
    pub(super) rollout: Arc<RolloutState>,
    pub(super) executor: Arc<Executor>,
    pub(super) telemetry: Arc<Telemetry>,
    /// Whether the first comparison is done.
    pub(super) ready: watch::Sender<bool>,
}

impl Reconciler {
    /// Makes the first comparison, after which the fleet is ready. Then repairs what it found, and compares again
    /// every [`RECONCILE_INTERVAL`] until `shutdown`.
    pub(super) async fn reconcile_periodically(self: Arc<Self>, shutdown: CancellationToken) {
        let reconcile = async {
            self.load_state().await;
            let mut findings = self.first_reconciliation().await;
            self.ready.send_replace(true);
            loop {
                match findings {
                    Ok(findings) => self.repair_all(findings).await,
                    Err(error) => {
                        let error: &dyn std::error::Error = &error;
                        tracing::error!(
                            error,
                            "The registry could not be compared with the running instances; retrying."
                        );
                    }
                }
                self.shared.clock.sleep(RECONCILE_INTERVAL).await;
                findings = self.compare(EXIT_CONFIRM_DELAY).await;
            }
        };
        shutdown.run_until_cancelled(reconcile).await;
    }

    /// The comparison that readiness waits for. It has a time limit, so that a backend that does not answer does
    /// not delay readiness.
    async fn first_reconciliation(&self) -> Result<Findings, FleetError> {
        tokio::select! {
            compared = self.compare(Duration::ZERO) => compared,
            () = self.shared.clock.sleep(FIRST_RECONCILE_TIMEOUT) => {
                let reason = format!("it did not answer within {} s", FIRST_RECONCILE_TIMEOUT.as_secs_f64());
                Err(BackendError::Unreachable(reason).into())
            }
        }
    }

    /// Loads the products, policies and engines that the registry stores. Nothing can be supervised without them,
    /// so this retries until it succeeds.
    async fn load_state(&self) {
        loop {
            let load = async {
                self.products.load().await?;
                self.browsers.load().await?;
                self.drain.load(&self.shared).await?;
                self.maintenance.load(&self.shared).await?;
                self.rollout.load(&self.shared, &self.policies).await?;
                for (product_id, audit_seq, policy, state) in self.shared.registry.policies().await? {
                    self.policies.apply(product_id, audit_seq, &policy, state);
                }
                self.supervision.restore(&self.shared.registry.supervised().await?);
                Ok::<_, RegistryError>(())
            };
            let Err(error) = load.await else { return };
            {
                let error: &dyn std::error::Error = &error;
                tracing::error!(error, "The registry could not be read; retrying.");
            }
            self.shared.clock.sleep(LOAD_RETRY_INTERVAL).await;
        }
    }

    /// Marks engines as `failed` that do not run, and still do not after `grace`. Returns what else to repair.
    async fn compare(&self, grace: Duration) -> Result<Findings, FleetError> {
        // The rows are read before the listing: an engine launched in between is listed, or its row has changed.
        let rows = self.shared.registry.running_engines().await?;
        let listed = self.shared.backend.list().await?;
        let rows = self.adopt_generations(rows, &listed).await?;
        let known: HashSet<_> = rows.iter().map(|row| row.engine_id).collect();
        let mut findings = Findings::default();
        let (claimed, settled): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.claim.is_some());
        findings
            .inconsistent
            .extend(claimed.into_iter().filter(|row| self.executor.operations.get(&row.owner).is_none()));
        findings.orphans = superseded(&settled, &listed);
        let mut missing = without_process(settled, &listed);
        if !missing.is_empty() {
            // If an exit was reported, its handler records it within this time, together with its reason.
            self.shared.clock.sleep(grace).await;
            missing = without_process(missing, &self.shared.backend.list().await?);
        }
        self.mark_failed(missing).await?;
        for process in listed.into_iter().filter(|process| !known.contains(&process.engine_id)) {
            self.classify_process(process, &mut findings).await?;
        }
        Ok(findings)
    }

    /// Adds `process` to `findings` if it has to be removed. Its engine neither ran nor had a claim when the rows
    /// were read.
    async fn classify_process(
        &self,
        process: EngineListing,
        findings: &mut Findings,
    ) -> Result<(), FleetError> {
        // Read after the listing: an engine has its row before it has a process. A warm engine that is claimed meanwhile
        // gets its other row in the same transaction: the warm ones are read first.
        if self.shared.registry.is_warm_engine(process.engine_id).await? {
            return Ok(());
        }
        let row = match self.shared.registry.engine_by_id(process.engine_id).await {
            // The engine is known; it is left alone until a version runs that can read its row.
            Err(RegistryError::Unreadable { .. }) => return Ok(()),
            row => row?,
        };
        match row {
            None => findings.orphans.push(process),
            // The remains of a failed engine are kept for their log.
            Some(row) if row.status == EngineStatus::Failed && !process.running => {}
            Some(row) if row.claim.is_none() && row.status != EngineStatus::Running => {
                findings.inconsistent.push(self.adopt_generation(row, process.generation).await?);
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Returns `rows` with no generation behind that of a process that was listed after they were read.
    async fn adopt_generations(
        &self,
        rows: Vec<EngineRow>,
        listed: &[EngineListing],
    ) -> Result<Vec<EngineRow>, RegistryError> {
        let mut rows: HashMap<_, _> = rows.into_iter().map(|row| (row.engine_id, row)).collect();
        for EngineListing { engine_id, generation, .. } in listed {
            let Some(row) = rows.get_mut(engine_id).filter(|row| row.generation < *generation) else {
                continue;
            };
            // The process may have been launched since the rows were read.
            if let Some(current) = self.shared.registry.engine_by_id(*engine_id).await?
                && self.executor.operations.get(&current.owner).is_none()
            {
                *row = self.adopt_generation(current, *generation).await?;
            }
        }
        Ok(rows.into_values().collect())
    }

    /// Raises the row's generation to that of the engine's process, if the registry lost the change for which the
    /// engine was launched. Later changes then have a higher generation, and the backend lets them act on the
    /// engine.
    async fn adopt_generation(&self, row: EngineRow, generation: i64) -> Result<EngineRow, RegistryError> {
        if row.generation >= generation {
            return Ok(row);
        }
        tracing::warn!(
            engine_id = %row.engine_id,
            "An engine was launched for a change that the registry does not have: the registry was restored from a \
             backup, or its server lost its last commits."
        );
        self.shared.registry.raise_generation(&row, generation).await?;
        Ok(EngineRow { generation, ..row })
    }

    /// Marks engines as `failed` that should run and do not.
    async fn mark_failed(&self, dead: Vec<EngineRow>) -> Result<(), FleetError> {
        let mut moves: HashMap<ProductId, Vec<EngineMove>> = HashMap::new();
        for row in dead {
            let entry = self.transitions.crash_entry(&row, &unexpected_exit_message(None), "exit");
            let next = self.transitions.failed_state_after_running(&row);
            moves.entry(row.owner.product_id).or_default().push(EngineMove { row, next, entry });
        }
        for (product_id, moves) in moves {
            tracing::warn!(
                %product_id,
                engines = moves.len(),
                "Engines that should run have exited; marking them as failed."
            );
            let now = self.supervision.now();
            for row in self.shared.registry.settle_all(product_id, &moves).await? {
                self.telemetry.record_repair(Repair::Dead);
                self.supervision.track(&row, false, now);
            }
        }
        Ok(())
    }

    async fn repair_all(&self, findings: Findings) {
        let Findings { inconsistent, orphans } = findings;
        if let Err(error) = self.shared.registry.check_leadership().await {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "Repairs are skipped: leadership could not be verified.");
            return;
        }
        let repairs = inconsistent.into_iter().map(|row| async move {
            self.telemetry.record_repair(Repair::Claim);
            if let Err(OperationError::Failed(error)) = self.executor.repair(&row).await {
                tracing::warn!(
                    engine_id = %row.engine_id,
                    %error,
                    "An engine could not be repaired; the next reconciliation retries."
                );
            }
        });
        futures::stream::iter(repairs).buffer_unordered(MAX_CONCURRENT_REPAIRS).collect::<()>().await;
        let kills = orphans.into_iter().map(|orphan| async move {
            self.telemetry.record_repair(Repair::Orphan);
            tracing::warn!(
                engine_id = %orphan.engine_id,
                "Killing an instance that the registry does not know."
            );
            let target = Target { engine_id: orphan.engine_id, generation: orphan.generation };
            if let Err(error) = self.shared.backend.remove_instance(target).await {
                tracing::warn!(
                    engine_id = %orphan.engine_id,
                    %error,
                    "The instance could not be killed; the next reconciliation retries."
                );
            }
        });
        futures::stream::iter(kills).buffer_unordered(MAX_CONCURRENT_REPAIRS).collect::<()>().await;
    }
}
