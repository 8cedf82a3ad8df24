//! Stop and sleep: end the instance of a running engine and keep its data.

use std::sync::Arc;
use std::time::Duration;

use api::orchestrator::EngineStatus;
use serde_json::json;

use super::execute::OperationRequest;
use super::lifecycle::{Change, Trigger};
use super::operation::{Operation, OperationError, OperationResult, Outcome};
use super::{Fleet, FleetError};
use crate::backend::ProbeError;
use crate::registry::{EngineRow, Event, NextState};

/// How long an engine may take to exit after the signal.
pub(super) const STOP_GRACE_PERIOD: Duration = Duration::from_secs(30);

/// How long operations under way may take before all engines are put to sleep.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The audit event of a stop or sleep, and the state that it leads to.
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
        operation: &Arc<Operation>,
        request: &OperationRequest,
        seen: EngineRow,
    ) -> Outcome {
        // If the backend is unreachable, the call fails before anything has changed.
        self.backend.ping().await?;
        let Ok(row) = self.registry.claim(&seen, &self.new_claim(operation.change), None).await? else {
            return Err(OperationError::Stale);
        };
        operation.mark_claimed(row.generation);
        let only_if_idle = request.trigger == (Trigger::Sleep { if_idle: true });
        if only_if_idle && !self.quiesce_if_idle(&row).await {
            let row = self
                .settle(&row, NextState::Unchanged, None)
                .await
                .map_err(OperationError::from_settle_error)?;
            return row.map_or(Err(OperationError::Stale), |row| Ok(OperationResult::Engine(Box::new(row))));
        }
        let started = self.clock.monotonic();
        if let Err(error) = self.backend.stop(row.target(), STOP_GRACE_PERIOD).await
            && !self.has_ended(&row).await
        {
            tracing::warn!(engine_id = %row.engine_id, %error, "An engine did not stop in time.");
            if only_if_idle {
                // Nobody requested this sleep, and the user may be admitted at any time: the engine keeps working.
                self.lift_quiesce(&row).await;
            }
            if operation.change == Change::Sleep {
                self.settle(&row, NextState::Unchanged, None)
                    .await
                    .map_err(OperationError::from_settle_error)?;
            }
            // The engine may have received the signal and exit later, which is no crash. So the row keeps its
            // claim, and the stop is completed when the engine exits, or by the next reconciliation.
            return Err(error.into());
        }
        let took = self.clock.monotonic().saturating_sub(started);
        let (event, to) = stop_event(operation.change);
        let mut entry =
            self.audit_entry(&row, event, json!({"from": row.status, "to": to, "reason": request.reason}));
        entry.duration_ms = Some(i64::try_from(took.as_millis()).unwrap_or(i64::MAX));
        self.settle(&row, NextState::NotRunning(to), Some(&entry))
            .await
            .map_err(OperationError::from_settle_error)?;
        Ok(OperationResult::NotRunning)
    }

    /// Whether an engine whose stop failed has exited anyway; false if that is unknown.
    pub(super) async fn has_ended(&self, row: &EngineRow) -> bool {
        match &row.instance {
            Some(instance) => self.backend.is_running(instance).await.is_ok_and(|runs| !runs),
            None => false,
        }
    }

    /// Whether an engine that seemed idle, and is now claimed, may sleep: its user was not admitted since, and it
    /// reports that it has no work. An engine that reports this refuses new turns from then on.
    async fn quiesce_if_idle(&self, row: &EngineRow) -> bool {
        if !self.supervision.is_idle(row.engine_id, self.now_mono_millis()) {
            return false;
        }
        let response = match self.engine_key(row) {
            Ok(key) => self.send_command(row, &key, &json!({"subsystem": "control", "op": "quiesce"})).await,
            Err(error) => {
                tracing::error!(
                    engine_id = %row.engine_id,
                    %error,
                    "The key of an idle engine could not be unsealed."
                );
                return false;
            }
        };
        match response {
            Ok(result) => result.get("quiesced") == Some(&true.into()),
            Err(error) => {
                tracing::info!(
                    engine_id = %row.engine_id,
                    %error,
                    "An idle engine did not answer the quiesce command."
                );
                // The command may still arrive, and the engine would then refuse its user for a minute.
                self.lift_quiesce(row).await;
                false
            }
        }
    }

    /// Whether the interrupted sleep of a running engine can be completed: the engine agrees to quiesce, or does
    /// not listen any more because it is exiting.
    pub(super) async fn can_finish_sleep(&self, row: &EngineRow) -> bool {
        let Ok(key) = self.engine_key(row) else { return false };
        match self.send_command(row, &key, &json!({"subsystem": "control", "op": "quiesce"})).await {
            Ok(result) => result.get("quiesced") == Some(&true.into()),
            Err(error) => matches!(error, ProbeError::Unreachable { .. }),
        }
    }

    /// Lets a quiesced engine accept turns again. If the command is lost, it does so by itself a minute later.
    async fn lift_quiesce(&self, row: &EngineRow) {
        let lift = json!({"subsystem": "control", "op": "quiesce", "lift": true});
        if let Ok(key) = self.engine_key(row)
            && let Err(error) = self.send_command(row, &key, &lift).await
        {
            tracing::info!(engine_id = %row.engine_id, %error, "The quiesce of an engine could not be lifted.");
        }
    }

    /// Puts all running engines to sleep at once, each with the grace period of a stop. Returns the number of
    /// engines that were put to sleep. `reason` is recorded in the audit log.
    pub async fn sleep_all(self: &Arc<Self>, reason: &'static str) -> Result<usize, FleetError> {
        self.operations.drained(DRAIN_TIMEOUT).await;
        let running = self.registry.running_engines().await?;
        let sleeps = running.into_iter().map(|row| {
            let request = OperationRequest::new(row.owner, Trigger::Sleep { if_idle: false }, reason);
            async move { self.execute(&request).await }
        });
        let mut asleep = 0;
        for result in futures::future::join_all(sleeps).await {
            match result {
                Ok(_) => asleep += 1,
                // Stopped or deleted by another call at the same time.
                Err(FleetError::EngineNotRunning | FleetError::EngineNotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(asleep)
    }
}
