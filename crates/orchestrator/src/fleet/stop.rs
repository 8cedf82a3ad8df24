//! Stop and sleep: a running engine comes to rest, its data stays.

use std::sync::Arc;
use std::time::Duration;

use api::orchestrator::EngineStatus;
use serde_json::json;

use super::execute::OperationRequest;
use super::lifecycle::{Change, Trigger};
use super::operation::{Operation, OperationError, OperationResult, Outcome};
use super::{Fleet, FleetError};
use crate::backend::ProbeError;
use crate::fault_injection::{self, Mutation};
use crate::registry::{EngineRow, Event, NextState};

/// How long an engine may take to end by itself.
pub(super) const STOP_GRACE_PERIOD: Duration = Duration::from_secs(30);

/// How long changes under way are waited for before all engines are put to sleep.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How the ledger records a change that ends in rest, and the state that it ends in.
pub(super) const fn stop_event(change: Change) -> (Event, EngineStatus) {
    if matches!(change, Change::Sleep) {
        (Event::Sleep, EngineStatus::Sleeping)
    } else {
        (Event::Stop, EngineStatus::Stopped)
    }
}

impl Fleet {
    pub(super) async fn stop_engine(
        self: &Arc<Self>,
        flight: &Arc<Operation>,
        job: &OperationRequest,
        seen: EngineRow,
    ) -> Outcome {
        // Out of reach from the beginning: nothing has changed.
        self.backend.ping().await?;
        let Ok(row) = self.registry.claim(&seen, &self.new_claim(flight.change), None).await? else {
            return Err(OperationError::Stale);
        };
        flight.mark_claimed(row.generation);
        let quiesced = job.trigger == (Trigger::Sleep { if_idle: true });
        if quiesced && !self.quiesce_if_idle(&row).await {
            let row = self
                .settle(&row, NextState::Unchanged, None)
                .await
                .map_err(OperationError::from_settle_error)?;
            return row.map_or(Err(OperationError::Stale), |row| Ok(OperationResult::Engine(Box::new(row))));
        }
        let begun = self.clock.monotonic();
        if let Err(error) = self.backend.stop(row.target(), STOP_GRACE_PERIOD).await
            && !self.has_ended(&row).await
        {
            tracing::warn!(engine.id = %row.engine_id, %error, "An engine did not come to rest in time.");
            if quiesced {
                // Nobody asked for this sleep, and its user may come at any time: it goes on as if nothing had been.
                self.lift_quiesce(&row).await;
            }
            if flight.change == Change::Sleep || fault_injection::active(Mutation::ForgetStop) {
                self.settle(&row, NextState::Unchanged, None)
                    .await
                    .map_err(OperationError::from_settle_error)?;
            }
            // An engine that was asked to stop may have been told to end, and end later: that is no crash. So the row
            // keeps its claim, and the stop is finished as soon as the engine has ended, or by the next comparison.
            return Err(error.into());
        }
        let took = self.clock.monotonic().saturating_sub(begun);
        let (event, to) = stop_event(flight.change);
        let mut entry =
            self.audit_entry(&row, event, json!({"from": row.status, "to": to, "reason": job.reason}));
        entry.duration_ms = Some(i64::try_from(took.as_millis()).unwrap_or(i64::MAX));
        self.settle(&row, NextState::NotRunning(to), Some(&entry))
            .await
            .map_err(OperationError::from_settle_error)?;
        Ok(OperationResult::NotRunning)
    }

    /// Whether an engine whose stop failed has ended all the same: false if nobody knows.
    pub(super) async fn has_ended(&self, row: &EngineRow) -> bool {
        match &row.instance {
            Some(instance) => self.backend.is_running(instance).await.is_ok_and(|runs| !runs),
            None => false,
        }
    }

    /// Whether an engine that seemed idle, and is claimed now, may sleep: nobody has been admitted since, and by
    /// its own word it has no work. From its word on it takes none.
    async fn quiesce_if_idle(&self, row: &EngineRow) -> bool {
        if !self.supervision.is_idle(row.engine_id, self.now_mono_millis()) {
            return false;
        }
        let said = match self.engine_key(row) {
            Ok(key) => self.send_command(row, &key, &json!({"subsystem": "control", "op": "quiesce"})).await,
            Err(error) => {
                tracing::error!(engine.id = %row.engine_id, %error, "An idle engine could not be asked to rest.");
                return false;
            }
        };
        match said {
            Ok(_) if fault_injection::active(Mutation::SleepThoughBusy) => true,
            Ok(result) => result.get("quiesced") == Some(&true.into()),
            Err(unwell) => {
                tracing::info!(engine.id = %row.engine_id, %unwell, "An idle engine did not say whether it may sleep.");
                // It may yet hear that it was to rest, and would then refuse its user for a minute.
                self.lift_quiesce(row).await;
                false
            }
        }
    }

    /// Whether an engine whose sleep was cut off goes on with it: it agrees to rest, or does not listen any more
    /// because it is ending.
    pub(super) async fn can_finish_sleep(&self, row: &EngineRow) -> bool {
        let Ok(key) = self.engine_key(row) else { return false };
        match self.send_command(row, &key, &json!({"subsystem": "control", "op": "quiesce"})).await {
            Ok(result) => result.get("quiesced") == Some(&true.into()),
            Err(unwell) => matches!(unwell, ProbeError::Unreachable { .. }),
        }
    }

    /// Lets a quiesced engine work again. If this is lost, it does so by itself a minute later.
    async fn lift_quiesce(&self, row: &EngineRow) {
        let lift = json!({"subsystem": "control", "op": "quiesce", "lift": true});
        if let Ok(key) = self.engine_key(row)
            && let Err(unwell) = self.send_command(row, &key, &lift).await
        {
            tracing::info!(engine.id = %row.engine_id, %unwell, "An engine could not be told to go on.");
        }
    }

    /// Puts every running engine to sleep, all at once, with the grace of a stop. Returns how many sleep now
    /// that ran before. `reason` is what the ledger says.
    pub async fn sleep_all(self: &Arc<Self>, reason: &'static str) -> Result<usize, FleetError> {
        self.operations.drained(DRAIN_TIMEOUT).await;
        let running = self.registry.running_engines().await?;
        let sleeps = running.into_iter().map(|row| {
            let job = OperationRequest::new(row.owner, Trigger::Sleep { if_idle: false }, reason);
            async move { self.execute(&job).await }
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
