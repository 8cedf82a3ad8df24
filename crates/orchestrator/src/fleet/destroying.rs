//! Delete: takes over whatever is under way, ends the engine at once, and removes all that is its own.

use std::sync::Arc;

use contract::orchestrator::EngineStatus;
use serde_json::json;

use super::Fleet;
use super::flight::{Ended, Flight, Outcome, Settled};
use super::lifecycle::Change;
use crate::registry::{EngineRow, Event, Next};
use crate::sabotage::{self, Saboteur};

impl Fleet {
    pub(super) async fn destroy_engine(self: &Arc<Self>, flight: &Arc<Flight>, seen: EngineRow) -> Outcome {
        // Out of reach from the beginning: nothing has changed.
        self.backend.ping().await?;
        let Ok(row) = self.registry.claim(&seen, &self.claim(Change::Destroy), None).await? else {
            return Err(Ended::Stale);
        };
        self.flights.take_over(flight, row.generation);
        self.finish_destroy(&row, "requested").await
    }

    /// Ends and removes an engine that is `destroying`. On failure the row stays so, to be finished later.
    pub(super) async fn finish_destroy(&self, row: &EngineRow, reason: &'static str) -> Outcome {
        if !sabotage::by(Saboteur::CommitBeforeAct) {
            self.backend.remove(row.target()).await?;
        }
        let detail = json!({"from": row.settled_status(), "to": None::<EngineStatus>, "reason": reason});
        let entry = self.entry(row, Event::Destroy, detail);
        self.settle(row, Next::Gone, Some(&entry)).await.map_err(Ended::unsettled)?;
        if sabotage::by(Saboteur::CommitBeforeAct) {
            sabotage::linger(Saboteur::CommitBeforeAct);
            self.backend.remove(row.target()).await?;
        }
        Ok(Settled::Destroyed(row.engine_id))
    }
}
