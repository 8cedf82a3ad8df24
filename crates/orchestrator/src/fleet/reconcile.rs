//! Reconciliation: compares the registry with the instances that run, at start-up and every 30 seconds, and
//! repairs what differs.
//!
//! A process without a row is killed, an abandoned change is completed or rolled back, and an engine that should
//! run but does not becomes `failed`. A folder without a row is left alone, because it may be somebody's data.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::drift::DriftKind;
use api::orchestrator::EngineStatus;
use api::{EngineId, ProductId};
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
use crate::domain::EngineOwner;
use crate::domain::drift::{Finding, KnownEngine, Observed, Registered};
use crate::registry::{EngineMove, EngineRow, RegistryError};

/// How long readiness waits for the first comparison. Together with the first call to the backend before it, an
/// orchestrator is ready within 10 seconds of opening its registry.
const FIRST_RECONCILE_TIMEOUT: Duration = Duration::from_millis(7_500);

/// The interval between comparisons.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(30);

/// Concurrent repairs. Each may wait for the backend, and no repair may delay the others for long.
pub(super) const MAX_CONCURRENT_REPAIRS: usize = 16;

/// What a comparison found to repair.
#[derive(Default)]
struct Findings {
    /// Rows with a claim but no operation, and rows of idle engines that have a process or the remains of one.
    inconsistent: HashMap<EngineId, EngineRow>,
    /// Processes without a row, or launched beside the process that their row names, by an orchestrator that had lost the
    /// registry without noticing.
    orphans: Vec<EngineListing>,
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
        let mut rows = self.adopt_generations(rows, &listed).await?;
        let known = rows.iter().map(|(engine_id, row)| (*engine_id, Registered::Engine(self.known(row))));
        let mut observed = Observed { engines: known.collect(), instances: listed, data: None };
        for engine_id in observed.engines_with_instances() {
            if !rows.contains_key(&engine_id)
                && let Some((registered, row)) = self.look_up(engine_id).await?
            {
                observed.engines.insert(engine_id, registered);
                rows.extend(row.map(|row| (engine_id, row)));
            }
        }
        let mut findings = Findings::default();
        let mut missing = Vec::new();
        for Finding { kind, engine_id, instance, .. } in observed.compare() {
            let row = rows.get(&engine_id);
            match (kind, row, instance) {
                (DriftKind::OrphanInstance | DriftKind::SupersededInstance, _, Some(process)) => {
                    findings.orphans.push(process);
                }
                (DriftKind::AbandonedOperation, Some(row), _) => {
                    findings.inconsistent.insert(engine_id, row.clone());
                }
                (DriftKind::UnexpectedInstance, Some(row), Some(process)) => {
                    let row = findings.inconsistent.remove(&engine_id).unwrap_or_else(|| row.clone());
                    let row = self.adopt_generation(row, process.generation).await?;
                    findings.inconsistent.insert(engine_id, row);
                }
                (DriftKind::MissingInstance, Some(row), _) => missing.push(row.clone()),
                // Generations were adopted above, and data is not compared. A difference without its row or its
                // instance is none.
                _ => {}
            }
        }
        if !missing.is_empty() {
            // If an exit was reported, its handler records it within this time, together with its reason.
            self.shared.clock.sleep(grace).await;
            missing = without_process(missing, &self.shared.backend.list().await?);
        }
        self.mark_failed(missing).await?;
        Ok(findings)
    }

    /// The engine of `row`, as it is compared.
    fn known(&self, row: &EngineRow) -> KnownEngine {
        KnownEngine {
            owner: row.owner.clone(),
            status: row.status,
            is_claimed: row.claim.is_some(),
            is_attended: self.is_attended(&row.owner),
            instance: row.instance.clone(),
            generation: row.generation,
        }
    }

    /// Whether this orchestrator has an operation on the engine.
    pub(super) fn is_attended(&self, owner: &EngineOwner) -> bool {
        self.executor.operations.get(owner).is_some()
    }

    /// Looks up an engine of which an instance was listed, and which neither ran nor had a claim when the rows were read:
    /// `None` if there is none.
    async fn look_up(
        &self,
        engine_id: EngineId,
    ) -> Result<Option<(Registered, Option<EngineRow>)>, FleetError> {
        // Read after the listing: an engine has its row before it has a process. A warm engine that is claimed meanwhile
        // gets its other row in the same transaction: the warm ones are read first.
        if self.shared.registry.is_warm_engine(engine_id).await? {
            return Ok(Some((Registered::LeftAlone, None)));
        }
        let row = match self.shared.registry.engine_by_id(engine_id).await {
            // The engine is known; it is left alone until a version runs that can read its row.
            Err(RegistryError::Unreadable { .. }) => return Ok(Some((Registered::LeftAlone, None))),
            row => row?,
        };
        Ok(row.map(|row| {
            // It has changed since the rows were read, and the listing says nothing about it.
            if row.claim.is_some() || row.status == EngineStatus::Running {
                return (Registered::LeftAlone, None);
            }
            (Registered::Engine(self.known(&row)), Some(row))
        }))
    }

    /// Returns `rows` with no generation behind that of a process that was listed after they were read.
    async fn adopt_generations(
        &self,
        rows: Vec<EngineRow>,
        listed: &[EngineListing],
    ) -> Result<HashMap<EngineId, EngineRow>, RegistryError> {
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
        Ok(rows)
    }

    /// Raises the row's generation to that of the engine's process, if the registry lost the change for which the
    /// engine was launched. Later changes then have a higher generation, and the backend lets them act on the
    /// engine.
    pub(super) async fn adopt_generation(
        &self,
        row: EngineRow,
        generation: i64,
    ) -> Result<EngineRow, RegistryError> {
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
    pub(super) async fn mark_failed(&self, dead: Vec<EngineRow>) -> Result<(), FleetError> {
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
        let repairs = inconsistent.into_values().map(|row| async move {
            if let Err(error) = self.repair(&row).await {
                tracing::warn!(
                    engine_id = %row.engine_id,
                    %error,
                    "An engine could not be repaired; the next reconciliation retries."
                );
            }
        });
        futures::stream::iter(repairs).buffer_unordered(MAX_CONCURRENT_REPAIRS).collect::<()>().await;
        let kills = orphans.into_iter().map(|orphan| async move {
            if let Err(error) = self.remove_orphan(&orphan).await {
                tracing::warn!(
                    engine_id = %orphan.engine_id,
                    %error,
                    "The instance could not be killed; the next reconciliation retries."
                );
            }
        });
        futures::stream::iter(kills).buffer_unordered(MAX_CONCURRENT_REPAIRS).collect::<()>().await;
    }

    /// Ends the abandoned operation on the engine of `row`, or removes an instance that it should not have.
    pub(super) async fn repair(&self, row: &EngineRow) -> Result<(), FleetError> {
        self.telemetry.record_repair(Repair::Claim);
        match self.executor.repair(row).await {
            Err(OperationError::Failed(error)) => Err(error),
            Ok(_) | Err(OperationError::Stale | OperationError::Preempted) => Ok(()),
        }
    }

    /// Removes an instance that the registry does not know, or that it has replaced.
    pub(super) async fn remove_orphan(&self, orphan: &EngineListing) -> Result<(), BackendError> {
        self.telemetry.record_repair(Repair::Orphan);
        tracing::warn!(engine_id = %orphan.engine_id, "Killing an instance that the registry does not know.");
        let target = Target { engine_id: orphan.engine_id, generation: orphan.generation };
        match self.shared.backend.remove_instance(target).await {
            // It is gone; one of a later launch runs on.
            Ok(()) | Err(BackendError::Superseded { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
