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

use super::exits::ended_by_itself;
use super::flight::Ended;
use super::telemetry::Repair;
use super::{Fleet, FleetError};
use crate::backend::Listed;
use crate::registry::{EngineRow, Move};

/// How often the comparison is made.
const PERIOD: Duration = Duration::from_secs(30);

/// Repairs under way at once: each may wait for the backend, and none may hold up the others for long.
const REPAIRS_AT_ONCE: usize = 16;

/// What a comparison found to be done.
#[derive(Default)]
struct Findings {
    /// Claimed, with nobody at work; or at rest, with a process.
    disordered: Vec<EngineRow>,
    /// Running without a row.
    orphans: Vec<Listed>,
}

impl Fleet {
    /// Compares for the first time, and is ready then. Repairs follow, and the comparison is made again every
    /// [`PERIOD`] until `shutdown`.
    pub(crate) async fn keep_in_order(self: Arc<Self>, shutdown: CancellationToken) {
        let keep = async {
            let mut findings = self.begin().await;
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
                findings = self.compare().await;
            }
        };
        shutdown.run_until_cancelled(keep).await;
    }

    async fn begin(&self) -> Result<Findings, FleetError> {
        for (product_id, audit_seq, policy) in self.registry.policies().await? {
            self.follow_policy(product_id, audit_seq, &policy);
        }
        self.supervision.adopt(&self.registry.supervised().await?, self.moment(), self.now());
        self.compare().await
    }

    /// Moves dead engines to `failed`, and says what else is to be done.
    async fn compare(&self) -> Result<Findings, FleetError> {
        // Rows before listing: an engine launched in between is listed, or its row has changed since.
        let rows = self.registry.running_engines().await?;
        let listed = self.backend.list().await?;
        let instances: HashSet<_> = listed.iter().cloned().collect();
        let known: HashSet<_> = rows.iter().map(|row| row.engine_id).collect();
        let mut dead: HashMap<ProductId, Vec<Move>> = HashMap::new();
        let mut findings = Findings::default();
        for row in rows {
            if row.claim.is_some() {
                if self.flights.at(&row.seat).is_none() {
                    findings.disordered.push(row);
                }
                continue;
            }
            let instance = row.instance.clone();
            let runs = instance
                .is_some_and(|instance| instances.contains(&Listed { engine_id: row.engine_id, instance }));
            if !runs {
                let entry = self.crash(&row, &ended_by_itself(None), "exit");
                let next = self.failed(row.restarts);
                dead.entry(row.seat.product_id).or_default().push(Move { row, next, entry });
            }
        }
        for (product_id, moves) in dead {
            tracing::warn!(product.id = %product_id, engines = moves.len(), "Running engines were found dead.");
            let (now, wall) = (self.moment(), self.now());
            for row in self.registry.settle_all(product_id, &moves).await? {
                self.telemetry.repaired(Repair::Dead);
                self.supervision.follow(&row, false, now, wall);
            }
        }
        for process in listed.into_iter().filter(|process| !known.contains(&process.engine_id)) {
            // Read after the listing: an engine has its row before it has a process.
            match self.registry.engine_by_id(process.engine_id).await? {
                None => findings.orphans.push(process),
                Some(row) if row.claim.is_none() && row.status != EngineStatus::Running => {
                    findings.disordered.push(row);
                }
                Some(_) => {}
            }
        }
        Ok(findings)
    }

    async fn repair_all(self: &Arc<Self>, findings: Findings) {
        let Findings { disordered, orphans } = findings;
        let repairs = disordered.into_iter().map(|row| async move {
            self.telemetry.repaired(Repair::Claim);
            if let Err(Ended::Failed(error)) = self.put_in_order(&row).await {
                tracing::warn!(engine.id = %row.engine_id, %error, "An engine could not be put in order yet.");
            }
        });
        futures::stream::iter(repairs).buffer_unordered(REPAIRS_AT_ONCE).collect::<()>().await;
        let kills = orphans.into_iter().map(|orphan| async move {
            self.telemetry.repaired(Repair::Orphan);
            tracing::warn!(engine.id = %orphan.engine_id, "An engine runs that the registry does not know; it is ended.");
            if let Err(error) = self.backend.kill(orphan.engine_id).await {
                tracing::warn!(engine.id = %orphan.engine_id, %error, "It could not be ended yet.");
            }
        });
        futures::stream::iter(kills).buffer_unordered(REPAIRS_AT_ONCE).collect::<()>().await;
    }
}
