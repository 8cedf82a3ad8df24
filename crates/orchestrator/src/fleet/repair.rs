//! Engines whose change nobody works on any more: finished, rolled back or let go.

use std::sync::Arc;

use contract::orchestrator::EngineStatus;
use serde_json::json;

use super::Fleet;
use super::flight::{Ended, Outcome};
use super::lifecycle::Change;
use super::resting::{GRACE, resting_as};
use crate::registry::{EngineRow, Event, Next};
use crate::sabotage::{self, Saboteur};

impl Fleet {
    /// Puts the engine of `row` in order: ends the change that its claim names, or a process that should not
    /// be. What it was before and is then is for the caller to look at anew.
    pub(super) async fn put_in_order(self: &Arc<Self>, row: &EngineRow) -> Outcome {
        let flight = match self.flights.begin_on(row, row.claim.unwrap_or(Change::Stop)) {
            Ok(flight) => flight,
            // Someone came first.
            Err(other) => {
                other.past_claiming().await;
                return Err(Ended::Stale);
            }
        };
        let (fleet, seen) = (Arc::clone(self), row.clone());
        self.flights.fly(Arc::clone(&flight), async move { fleet.repair(&seen).await });
        flight.over().await
    }

    async fn repair(&self, seen: &EngineRow) -> Outcome {
        // Read again now that the seat is ours: the change may have been settled just before.
        let Some(row) = self.registry.engine(&seen.seat).await? else { return Err(Ended::Stale) };
        if row.generation != seen.generation {
            return Err(Ended::Stale);
        }
        // Where another orchestrator has taken over, the claim is its own, and so is the engine.
        self.registry.check_ours().await?;
        match row.claim {
            Some(Change::Provision) if sabotage::by(Saboteur::ForgetRollBack) => {}
            Some(Change::Provision) => {
                self.backend.remove(row.target()).await?;
                let detail = json!({"from": null, "to": null, "reason": "interrupted"});
                let entry = self.entry(&row, Event::ProvisionFailed, detail);
                self.settle(&row, Next::Gone, Some(&entry)).await.map_err(Ended::unsettled)?;
            }
            Some(Change::Destroy) => {
                self.finish_destroy(&row, "interrupted").await?;
            }
            Some(Change::Start | Change::Wake) => {
                self.backend.clear(row.target()).await?;
                let (next, entry) = match row.status {
                    // It was being moved to another version, and runs no more.
                    EngineStatus::Running => {
                        let why = "the orchestrator ended while it moved the engine to another version";
                        (self.failed(row.restarts), Some(self.crash(&row, why, "interrupted")))
                    }
                    // The start of a failed engine began the count of restarts anew.
                    EngineStatus::Failed => (self.failed(row.restarts), None),
                    _ => (Next::Unchanged, None),
                };
                self.settle(&row, next, entry.as_ref()).await.map_err(Ended::unsettled)?;
            }
            Some(Change::Restart) => {
                self.backend.clear(row.target()).await?;
                let entry = self.attempt(&row, EngineStatus::Failed, "interrupted", None);
                let next = self.failed(row.restarts);
                self.settle(&row, next, Some(&entry)).await.map_err(Ended::unsettled)?;
            }
            Some(change @ (Change::Stop | Change::Sleep)) => self.finish_rest(&row, change).await?,
            Some(Change::Rotate) => {
                self.settle_rotation(&row, "interrupted").await?;
            }
            None if row.status != EngineStatus::Running => self.backend.clear(row.target()).await?,
            None => {}
        }
        Err(Ended::Stale)
    }

    /// A stop or sleep that was cut off is finished: the engine may have been told to end already, and what ends
    /// because it was told to has not failed. One that runs and was only about to be put to sleep may stay.
    async fn finish_rest(&self, row: &EngineRow, change: Change) -> Result<(), Ended> {
        let runs =
            self.backend.list().await?.iter().any(|listed| listed.alive && listed.engine_id == row.engine_id);
        if runs && change == Change::Sleep && !self.goes_to_sleep(row).await {
            self.settle(row, Next::Unchanged, None).await.map_err(Ended::unsettled)?;
            return Ok(());
        }
        if runs {
            self.backend.stop(row.target(), GRACE).await?;
        } else {
            self.backend.clear(row.target()).await?;
        }
        let (event, to) = resting_as(change);
        let detail = json!({"from": row.status, "to": to, "reason": "interrupted"});
        let entry = self.entry(row, event, detail);
        self.settle(row, Next::AtRest(to), Some(&entry)).await.map_err(Ended::unsettled)?;
        Ok(())
    }
}
