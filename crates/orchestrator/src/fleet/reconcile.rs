//! The registry compared with what really runs: at start-up, and from time to time.
//!
//! A process that no row knows is ended, a change that nobody works on is finished or rolled back, a running
//! engine that is not there has failed. A folder without a row is left alone: it may be somebody's data.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use contract::ProductId;
use contract::orchestrator::EngineStatus;
use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::exits::{STILL_ENDED, ended_by_itself};
use super::flight::Ended;
use super::telemetry::Repair;
use super::{Fleet, FleetError};
use crate::backend::{BackendError, Listed, Target};
use crate::registry::{EngineRow, Move, RegistryError};
use crate::sabotage::{self, Saboteur};

/// How long readiness waits for the first comparison. With the first look at the backend before it, an orchestrator
/// is ready within 10 seconds of having its registry.
const FIRST_COMPARISON: Duration = Duration::from_millis(7_500);

/// How often the comparison is made.
const PERIOD: Duration = Duration::from_secs(30);

/// Repairs under way at once: each may wait for the backend, and none may hold up the others for long.
const REPAIRS_AT_ONCE: usize = 16;

/// What a comparison found to be done.
#[derive(Default)]
struct Findings {
    /// Claimed, with nobody at work; or at rest, with a process or what is left of one.
    disordered: Vec<EngineRow>,
    /// Without a row, or launched beside the process that its row names.
    orphans: Vec<Listed>,
}

/// Engines that were launched for an earlier change of their row than the process that the row names, and run beside
/// it: an orchestrator that had lost the registry without noticing launched them.
fn superseded(rows: &[EngineRow], listed: &[Listed]) -> Vec<Listed> {
    let mut current = HashMap::new();
    for process in listed.iter().filter(|process| process.alive) {
        current.insert((process.engine_id, &process.instance), process.generation);
    }
    let newer: HashMap<_, _> = rows
        .iter()
        .filter_map(|row| Some((row.engine_id, *current.get(&(row.engine_id, row.instance.as_ref()?))?)))
        .collect();
    let is_older = |process: &&Listed| {
        process.alive && newer.get(&process.engine_id).is_some_and(|newer| process.generation < *newer)
    };
    listed.iter().filter(is_older).cloned().collect()
}

/// How long after a failed reading of the registry it is tried again.
const RECALL_PAUSE: Duration = Duration::from_secs(1);

/// Those of `rows` whose instance is not listed.
fn without_process(rows: Vec<EngineRow>, listed: &[Listed]) -> Vec<EngineRow> {
    let alive = listed.iter().filter(|listed| listed.alive);
    let listed: HashSet<_> = alive.map(|listed| (listed.engine_id, &listed.instance)).collect();
    let runs = |row: &EngineRow| {
        row.instance.as_ref().is_some_and(|instance| listed.contains(&(row.engine_id, instance)))
    };
    rows.into_iter().filter(|row| !runs(row)).collect()
}

impl Fleet {
    /// Compares for the first time, and is ready then. Repairs follow, and the comparison is made again every
    /// [`PERIOD`] until `shutdown`.
    pub(crate) async fn keep_in_order(self: Arc<Self>, shutdown: CancellationToken) {
        let keep = async {
            self.recall().await;
            let mut findings = self.first_comparison().await;
            self.ready.send_replace(true);
            loop {
                match findings {
                    Ok(findings) => self.repair_all(findings).await,
                    Err(error) => {
                        let error: &dyn std::error::Error = &error;
                        tracing::error!(error, "The registry could not be compared with what runs.");
                    }
                }
                self.clock.sleep(PERIOD).await;
                findings = self.compare(STILL_ENDED).await;
            }
        };
        shutdown.run_until_cancelled(keep).await;
    }

    /// The comparison that readiness waits for: a backend that does not answer does not hold it up.
    async fn first_comparison(&self) -> Result<Findings, FleetError> {
        tokio::select! {
            compared = self.compare(Duration::ZERO) => compared,
            () = self.clock.sleep(FIRST_COMPARISON) => {
                let why = format!("it did not answer within {} s", FIRST_COMPARISON.as_secs_f64());
                Err(BackendError::Unreachable(why).into())
            }
        }
    }

    /// Reads what an earlier orchestrator knew of policies and engines. Without it nothing can be supervised, so it
    /// is tried until it succeeds.
    async fn recall(&self) {
        loop {
            let recalled = async {
                self.load_products().await?;
                for (product_id, audit_seq, policy) in self.registry.policies().await? {
                    self.follow_policy(product_id, audit_seq, &policy);
                }
                self.supervision.adopt(&self.registry.supervised().await?, self.moment(), self.now());
                Ok::<_, RegistryError>(())
            };
            let Err(error) = recalled.await else { return };
            {
                let error: &dyn std::error::Error = &error;
                tracing::error!(error, "The registry could not be read; it is tried again.");
            }
            self.clock.sleep(RECALL_PAUSE).await;
        }
    }

    /// Moves engines to `failed` that are dead and still so after `grace`, and says what else is to be done.
    async fn compare(&self, grace: Duration) -> Result<Findings, FleetError> {
        // Rows before listing: an engine launched in between is listed, or its row has changed since.
        let rows = self.registry.running_engines().await?;
        let listing = self.backend.list().await;
        let misread = listing.is_err() && sabotage::by(Saboteur::TakeSilenceForDeath);
        let listed = if misread { Vec::new() } else { listing? };
        let rows = self.caught_up(rows, &listed).await?;
        let known: HashSet<_> = rows.iter().map(|row| row.engine_id).collect();
        let mut findings = Findings::default();
        let (claimed, settled): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.claim.is_some());
        findings.disordered.extend(claimed.into_iter().filter(|row| self.flights.at(&row.seat).is_none()));
        findings.orphans = superseded(&settled, &listed);
        if sabotage::by(Saboteur::RestartAdopted) && !self.is_ready() {
            self.bury(settled.clone()).await?;
        }
        let mut missing = without_process(settled, &listed);
        if !missing.is_empty() && !misread {
            // Whoever is told of an exit records it in this time, and knows more of it.
            self.clock.sleep(grace).await;
            missing = without_process(missing, &self.backend.list().await?);
        }
        self.bury(missing).await?;
        for process in listed.into_iter().filter(|process| !known.contains(&process.engine_id)) {
            self.judge(process, &mut findings).await?;
        }
        Ok(findings)
    }

    /// Says what is to be done about a process of an engine that neither runs nor is changed, as far as was known.
    async fn judge(&self, process: Listed, findings: &mut Findings) -> Result<(), FleetError> {
        // Read after the listing: an engine has its row before it has a process.
        let row = match self.registry.engine_by_id(process.engine_id).await {
            // Known, and to be left alone until a version runs that can read it.
            Err(RegistryError::Unreadable { .. }) => return Ok(()),
            row => row?,
        };
        match row {
            None => findings.orphans.push(process),
            // What is left of an engine that has failed is kept for its log.
            Some(row) if row.status == EngineStatus::Failed && !process.alive => {}
            Some(row) if row.claim.is_none() && row.status != EngineStatus::Running => {
                findings.disordered.push(self.catch_up(row, process.generation).await?);
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// `rows`, none of them behind the processes that were listed after they were read.
    async fn caught_up(
        &self,
        rows: Vec<EngineRow>,
        listed: &[Listed],
    ) -> Result<Vec<EngineRow>, RegistryError> {
        let mut rows: HashMap<_, _> = rows.into_iter().map(|row| (row.engine_id, row)).collect();
        for Listed { engine_id, generation, .. } in listed {
            let Some(row) = rows.get_mut(engine_id).filter(|row| row.generation < *generation) else {
                continue;
            };
            // It may have been launched since.
            if let Some(current) = self.registry.engine_by_id(*engine_id).await?
                && self.flights.at(&current.seat).is_none()
            {
                *row = self.catch_up(current, *generation).await?;
            }
        }
        Ok(rows.into_values().collect())
    }

    /// Makes up for a registry that lost the change for which an engine was launched: whoever changes the engine from
    /// now on is later than that, and may act on it.
    async fn catch_up(&self, row: EngineRow, generation: i64) -> Result<EngineRow, RegistryError> {
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
    async fn bury(&self, dead: Vec<EngineRow>) -> Result<(), FleetError> {
        let mut moves: HashMap<ProductId, Vec<Move>> = HashMap::new();
        for row in dead {
            let entry = self.crash(&row, &ended_by_itself(None), "exit");
            let next = self.failed_after_running(&row);
            moves.entry(row.seat.product_id).or_default().push(Move { row, next, entry });
        }
        for (product_id, moves) in moves {
            tracing::warn!(product.id = %product_id, engines = moves.len(), "Running engines were found dead.");
            let (now, wall) = (self.moment(), self.now());
            for row in self.registry.settle_all(product_id, &moves).await? {
                self.telemetry.repaired(Repair::Dead);
                self.supervision.follow(&row, false, now, wall);
            }
        }
        Ok(())
    }

    async fn repair_all(self: &Arc<Self>, findings: Findings) {
        let Findings { disordered, orphans } = findings;
        if let Err(error) = self.registry.check_ours().await {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "Nothing is put in order now.");
            return;
        }
        let repairs = disordered.into_iter().map(|row| async move {
            self.telemetry.repaired(Repair::Claim);
            if let Err(Ended::Failed(error)) = self.put_in_order(&row).await {
                tracing::warn!(engine.id = %row.engine_id, %error, "An engine could not be put in order yet.");
            }
        });
        futures::stream::iter(repairs).buffer_unordered(REPAIRS_AT_ONCE).collect::<()>().await;
        let kills = orphans.into_iter().map(|orphan| async move {
            self.telemetry.repaired(Repair::Orphan);
            tracing::warn!(engine.id = %orphan.engine_id, "There is an engine that the registry does not know; it is ended.");
            let target = Target { engine_id: orphan.engine_id, generation: orphan.generation };
            if let Err(error) = self.backend.clear(target).await {
                tracing::warn!(engine.id = %orphan.engine_id, %error, "It could not be ended yet.");
            }
        });
        futures::stream::iter(kills).buffer_unordered(REPAIRS_AT_ONCE).collect::<()>().await;
    }
}
