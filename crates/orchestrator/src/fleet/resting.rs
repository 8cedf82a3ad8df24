//! Stop and sleep: a running engine comes to rest, its data stays.

use std::sync::Arc;
use std::time::Duration;

use contract::orchestrator::EngineStatus;
use serde_json::json;

use super::flight::{Ended, Flight, Outcome, Settled};
use super::lifecycle::{Change, Trigger};
use super::pursuit::Job;
use super::{Fleet, FleetError};
use crate::registry::{EngineRow, Event, Next};

/// How long an engine may take to end by itself.
const GRACE: Duration = Duration::from_secs(30);

/// How long changes under way are waited for before all engines are put to sleep.
const LANDING: Duration = Duration::from_secs(10);

impl Fleet {
    pub(super) async fn put_to_rest(
        self: &Arc<Self>,
        flight: &Arc<Flight>,
        job: &Job,
        seen: EngineRow,
    ) -> Outcome {
        let Ok(row) = self.registry.claim(&seen, &self.claim(flight.change), None).await? else {
            return Err(Ended::Stale);
        };
        flight.claimed(row.generation);
        let begun = self.clock.monotonic();
        if let Err(error) = self.backend.stop(row.engine_id, GRACE).await {
            // Whether it has ended nobody knows; if it has, its exit is seen as any other.
            self.registry.settle(&row, Next::Unchanged, None).await.map_err(Ended::unsettled)?;
            return Err(error.into());
        }
        let took = self.clock.monotonic().saturating_sub(begun);
        let (event, to) = if flight.change == Change::Sleep {
            (Event::Sleep, EngineStatus::Sleeping)
        } else {
            (Event::Stop, EngineStatus::Stopped)
        };
        let mut entry = self.entry(&row, event, json!({"from": row.status, "to": to, "reason": job.reason}));
        entry.duration_ms = Some(i64::try_from(took.as_millis()).unwrap_or(i64::MAX));
        self.registry.settle(&row, Next::AtRest(to), Some(&entry)).await.map_err(Ended::unsettled)?;
        Ok(Settled::AtRest)
    }

    /// Puts every running engine to sleep, all at once, with the grace of a stop. Returns how many sleep now
    /// that ran before. `reason` is what the ledger says.
    pub async fn sleep_all(self: &Arc<Self>, reason: &'static str) -> Result<usize, FleetError> {
        self.flights.landed(LANDING).await;
        let running = self.registry.running_engines().await?;
        let sleeps = running.into_iter().map(|row| {
            let job = Job::new(row.seat, Trigger::Sleep, reason);
            async move { self.pursue(&job).await }
        });
        let mut asleep = 0;
        for slept in futures::future::join_all(sleeps).await {
            match slept {
                Ok(_) => asleep += 1,
                // Stopped or deleted by someone else at the same time.
                Err(FleetError::EngineNotRunning | FleetError::EngineNotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(asleep)
    }
}
