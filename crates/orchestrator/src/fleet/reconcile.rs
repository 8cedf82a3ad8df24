//! The registry compared with what really runs: at start-up, and from time to time.
//!
//! A process that no row knows is ended, a change that nobody works on is finished or rolled back, a running
//! engine that is not there has failed. A folder without a row is left alone: it may be somebody's data.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::ProductId;
use api::orchestrator::EngineStatus;
use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::exits::{EXIT_CONFIRM_DELAY, unexpected_exit_message};
use super::operation::OperationError;
use super::telemetry::Repair;
use super::{Fleet, FleetError};
use crate::backend::{BackendError, EngineListing, Target};
use crate::fault_injection::{self, Mutation};
use crate::registry::{EngineMove, EngineRow, RegistryError};

/// How long readiness waits for the first comparison. With the first look at the backend before it, an orchestrator
/// is ready within 10 seconds of having its registry.
const FIRST_RECONCILE_TIMEOUT: Duration = Duration::from_millis(7_500);

/// How often the comparison is made.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(30);

/// Repairs under way at once: each may wait for the backend, and none may hold up the others for long.
const MAX_CONCURRENT_REPAIRS: usize = 16;

/// What a comparison found to be done.
#[derive(Default)]
struct Findings {
    /// Claimed, with nobody at work; or at rest, with a process or what is left of one.
    inconsistent: Vec<EngineRow>,
    /// Without a row, or launched beside the process that its row names.
    orphans: Vec<EngineListing>,
}

/// Engines that were launched for an earlier change of their row than the process that the row names, and run beside
/// it: an orchestrator that had lost the registry without noticing launched them.
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

/// How long after a failed reading of the registry it is tried again.
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

impl Fleet {
    /// Compares for the first time, and is ready then. Repairs follow, and the comparison is made again every
    /// [`RECONCILE_INTERVAL`] until `shutdown`.
    pub(crate) async fn reconcile_periodically(self: Arc<Self>, shutdown: CancellationToken) {
        let keep = async {
            self.load_state().await;
            let mut findings = self.first_reconciliation().await;
            self.ready.send_replace(true);
            loop {
                match findings {
                    Ok(findings) => self.repair_all(findings).await,
                    Err(error) => {
                        let error: &dyn std::error::Error = &error;
                        tracing::error!(error, "The registry could not be compared with what runs.");
                    }
                }
                self.clock.sleep(RECONCILE_INTERVAL).await;
                findings = self.compare(EXIT_CONFIRM_DELAY).await;
            }
        };
        shutdown.run_until_cancelled(keep).await;
    }

    /// The comparison that readiness waits for: a backend that does not answer does not hold it up.
    async fn first_reconciliation(&self) -> Result<Findings, FleetError> {
        tokio::select! {
            compared = self.compare(Duration::ZERO) => compared,
            () = self.clock.sleep(FIRST_RECONCILE_TIMEOUT) => {
                let why = format!("it did not answer within {} s", FIRST_RECONCILE_TIMEOUT.as_secs_f64());
                Err(BackendError::Unreachable(why).into())
            }
        }
    }

    /// Reads what an earlier orchestrator knew of policies and engines. Without it nothing can be supervised, so it
    /// is tried until it succeeds.
    async fn load_state(&self) {
        loop {
            let recalled = async {
                self.load_products().await?;
                for (product_id, audit_seq, policy) in self.registry.policies().await? {
                    self.apply_policy(product_id, audit_seq, &policy);
                }
                self.supervision.restore(
                    &self.registry.supervised().await?,
                    self.now_mono_millis(),
                    self.now(),
                );
                Ok::<_, RegistryError>(())
            };
            let Err(error) = recalled.await else { return };
            {
                let error: &dyn std::error::Error = &error;
                tracing::error!(error, "The registry could not be read; it is tried again.");
            }
            self.clock.sleep(LOAD_RETRY_INTERVAL).await;
        }
    }

    /// Moves engines to `failed` that are dead and still so after `grace`, and says what else is to be done.
    async fn compare(&self, grace: Duration) -> Result<Findings, FleetError> {
        // Rows before listing: an engine launched in between is listed, or its row has changed since.
        let rows = self.registry.running_engines().await?;
        let listing = self.backend.list().await;
        let misread = listing.is_err() && fault_injection::active(Mutation::TakeSilenceForDeath);
        let listed = if misread { Vec::new() } else { listing? };
        let rows = self.adopt_generations(rows, &listed).await?;
        let known: HashSet<_> = rows.iter().map(|row| row.engine_id).collect();
        let mut findings = Findings::default();
        let (claimed, settled): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.claim.is_some());
        findings
            .inconsistent
            .extend(claimed.into_iter().filter(|row| self.operations.get(&row.owner).is_none()));
        findings.orphans = superseded(&settled, &listed);
        if fault_injection::active(Mutation::RestartAdopted) && !self.is_ready() {
            self.mark_failed(settled.clone()).await?;
        }
        let mut missing = without_process(settled, &listed);
        if !missing.is_empty() && !misread {
            // Whoever is told of an exit records it in this time, and knows more of it.
            self.clock.sleep(grace).await;
            missing = without_process(missing, &self.backend.list().await?);
        }
        self.mark_failed(missing).await?;
        for process in listed.into_iter().filter(|process| !known.contains(&process.engine_id)) {
            self.classify_process(process, &mut findings).await?;
        }
        Ok(findings)
    }

    /// Says what is to be done about a process of an engine that neither runs nor is changed, as far as was known.
    async fn classify_process(
        &self,
        process: EngineListing,
        findings: &mut Findings,
    ) -> Result<(), FleetError> {
        // Read after the listing: an engine has its row before it has a process.
        let row = match self.registry.engine_by_id(process.engine_id).await {
            // Known, and to be left alone until a version runs that can read it.
            Err(RegistryError::Unreadable { .. }) => return Ok(()),
            row => row?,
        };
        match row {
            None => findings.orphans.push(process),
            // What is left of an engine that has failed is kept for its log.
            Some(row) if row.status == EngineStatus::Failed && !process.running => {}
            Some(row) if row.claim.is_none() && row.status != EngineStatus::Running => {
                findings.inconsistent.push(self.adopt_generation(row, process.generation).await?);
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// `rows`, none of them behind the processes that were listed after they were read.
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
            // It may have been launched since.
            if let Some(current) = self.registry.engine_by_id(*engine_id).await?
                && self.operations.get(&current.owner).is_none()
            {
                *row = self.adopt_generation(current, *generation).await?;
            }
        }
        Ok(rows.into_values().collect())
    }

    /// Makes up for a registry that lost the change for which an engine was launched: whoever changes the engine from
    /// now on is later than that, and may act on it.
    async fn adopt_generation(&self, row: EngineRow, generation: i64) -> Result<EngineRow, RegistryError> {
        if row.generation >= generation {
            return Ok(row);
        }
        tracing::warn!(
            engine.id = %row.engine_id,
            "An engine was launched for a change that the registry does not know: it was restored from a backup, \
             or its server lost its last commits."
        );
        self.registry.raise_generation(&row, generation).await?;
        Ok(EngineRow { generation, ..row })
    }

    /// Moves engines that were found dead to `failed`.
    async fn mark_failed(&self, dead: Vec<EngineRow>) -> Result<(), FleetError> {
        let mut moves: HashMap<ProductId, Vec<EngineMove>> = HashMap::new();
        for row in dead {
            let entry = self.crash_entry(&row, &unexpected_exit_message(None), "exit");
            let next = self.failed_state_after_running(&row);
            moves.entry(row.owner.product_id).or_default().push(EngineMove { row, next, entry });
        }
        for (product_id, moves) in moves {
            tracing::warn!(product.id = %product_id, engines = moves.len(), "Running engines were found dead.");
            let (now, wall) = (self.now_mono_millis(), self.now());
            for row in self.registry.settle_all(product_id, &moves).await? {
                self.telemetry.record_repair(Repair::Dead);
                self.supervision.track(&row, false, now, wall);
            }
        }
        Ok(())
    }

    async fn repair_all(self: &Arc<Self>, findings: Findings) {
        let Findings { inconsistent, orphans } = findings;
        if let Err(error) = self.registry.check_leadership().await {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "Nothing is put in order now.");
            return;
        }
        let repairs = inconsistent.into_iter().map(|row| async move {
            self.telemetry.record_repair(Repair::Claim);
            if let Err(OperationError::Failed(error)) = self.repair(&row).await {
                tracing::warn!(engine.id = %row.engine_id, %error, "An engine could not be put in order yet.");
            }
        });
        futures::stream::iter(repairs).buffer_unordered(MAX_CONCURRENT_REPAIRS).collect::<()>().await;
        let kills = orphans.into_iter().map(|orphan| async move {
            self.telemetry.record_repair(Repair::Orphan);
            tracing::warn!(engine.id = %orphan.engine_id, "There is an engine that the registry does not know; it is ended.");
            let target = Target { engine_id: orphan.engine_id, generation: orphan.generation };
            if let Err(error) = self.backend.remove_instance(target).await {
                tracing::warn!(engine.id = %orphan.engine_id, %error, "It could not be ended yet.");
            }
        });
        futures::stream::iter(kills).buffer_unordered(MAX_CONCURRENT_REPAIRS).collect::<()>().await;
    }
}
