//! Stop and sleep: end the instance of a running engine and keep its data.

use std::time::Duration;

use api::orchestrator::{EngineStatus, StoppedEngine};
use backend::{Instance, ProbeError};
use serde_json::json;

use super::{Changes, fulfilled};
use crate::domain::lifecycle::Change;
use crate::fleet::FleetError;
use crate::fleet::operation::Operation;
use crate::fleet::request::{OperationRequest, OperationResult, Outcome, RequestKind};
use crate::registry::{Claim, EngineRow, Event, NextState, RunningEngine};

/// How long an engine may take to exit after the signal.
pub(super) const STOP_GRACE_PERIOD: Duration = Duration::from_secs(30);

/// The audit event of a stop or sleep, and the state that it leads to.
pub(super) const fn stop_event(change: Change) -> (Event, EngineStatus) {
    if matches!(change, Change::Sleep) {
        (Event::Sleep, EngineStatus::Sleeping)
    } else {
        (Event::Stop, EngineStatus::Stopped)
    }
}

impl Changes {
    pub(super) async fn stop(
        &self,
        operation: &Operation,
        request: &OperationRequest,
        seen: EngineRow,
    ) -> Outcome {
        // If the backend is unreachable, the call fails before anything has changed.
        self.shared.backend.ping().await?;
        let call = request.claiming_call_with(&StoppedEngine { status: EngineStatus::Stopped })?;
        let claim = Claim { call, ..self.transitions.new_claim(operation.change) };
        let row = self.shared.registry.claim(&seen, &claim).await??;
        let engine = self.shared.running(&row).ok_or(FleetError::EngineNotRunning)?;
        operation.mark_claimed(row.generation);
        let only_if_idle = matches!(request.kind, RequestKind::Sleep { if_idle: true });
        if only_if_idle && !self.quiesce_if_idle(engine).await {
            return self.settle_engine(&row, NextState::Unchanged, None).await;
        }
        if operation.change == Change::Sleep && !only_if_idle {
            self.force_quiesce(engine).await;
        }
        if operation.change == Change::Sleep
            && let Err(error) = self.store_next_due(engine).await
        {
            tracing::info!(engine_id = %row.engine_id, %error, "It is unknown when an engine's schedules are due.");
            if only_if_idle {
                self.lift_quiesce(engine).await;
                return self.settle_engine(&row, NextState::Unchanged, None).await;
            }
            // It may have some, so it is woken soon.
            self.shared.registry.set_wake(&row, Some(self.shared.clock.now())).await?;
        }
        if matches!(operation.change, Change::Sleep) {
            // One that sleeps by request may still be working.
            self.backups.save_before_sleep(engine, only_if_idle).await;
        }
        // Nobody can ask it while it does not run. What is known is kept if it does not answer.
        self.inbox.refresh(engine).await;
        self.usage.collect_before_end(engine).await;
        let started = self.shared.clock.monotonic();
        if let Err(error) = self.shared.backend.stop(row.target(), STOP_GRACE_PERIOD).await
            && !self.has_ended(engine.instance).await
        {
            tracing::warn!(engine_id = %row.engine_id, %error, "An engine did not stop in time.");
            if operation.change == Change::Sleep {
                // The user may be admitted at any time: the engine keeps working.
                self.lift_quiesce(engine).await;
                self.settle(&row, NextState::Unchanged, None).await?;
            }
            // The engine may have received the signal and exit later, which is no crash. So the row keeps its
            // claim, and the stop is completed when the engine exits, or by the next reconciliation.
            return Err(error.into());
        }
        let took = self.shared.clock.monotonic().saturating_sub(started);
        let (event, to) = stop_event(operation.change);
        let mut entry = self.transitions.audit_entry(
            &row,
            event,
            json!({"from": row.status, "to": to, "reason": request.reason}),
        );
        entry = entry.by(request.actor).of_call((operation.change == Change::Stop).then(|| fulfilled(&row)));
        entry.duration_ms = Some(i64::try_from(took.as_millis()).unwrap_or(i64::MAX));
        self.settle(&row, NextState::NotRunning(to), Some(&entry)).await?;
        Ok(OperationResult::NotRunning)
    }

    /// Whether an engine whose stop failed has exited anyway; false if that is unknown.
    pub(super) async fn has_ended(&self, instance: &Instance) -> bool {
        self.shared.backend.is_running(instance).await.is_ok_and(|runs| !runs)
    }

    /// Whether an engine that seemed idle, and is now claimed, may sleep: its user was not admitted since, and it
    /// reports that it has no work. An engine that reports this refuses new turns from then on.
    async fn quiesce_if_idle(&self, engine: RunningEngine<'_>) -> bool {
        let row = engine.row;
        if !self.supervision.is_idle(row.engine_id) {
            return false;
        }
        let response = match self.shared.keys.key(row) {
            Ok(key) => self.client.quiesce(engine, &key).await,
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
            Ok(agrees) => agrees,
            Err(error) => {
                tracing::info!(
                    engine_id = %row.engine_id,
                    %error,
                    "An idle engine did not answer the quiesce command."
                );
                // The command may still arrive, and the engine would then refuse its user for a minute.
                self.lift_quiesce(engine).await;
                false
            }
        }
    }

    /// Keeps an engine that sleeps by request from setting schedules after it was asked when they are due.
    async fn force_quiesce(&self, engine: RunningEngine<'_>) {
        let row = engine.row;
        if let Ok(key) = self.shared.keys.key(row)
            && let Err(error) = self.client.force_quiesce(engine, &key).await
        {
            // It is stopped anyway, and woken soon if it cannot be asked either.
            tracing::info!(engine_id = %row.engine_id, %error, "An engine that is to sleep could not be quiesced.");
        }
    }

    /// Asks an engine that is about to sleep when a schedule is due, and stores that: nobody can ask it then.
    async fn store_next_due(&self, engine: RunningEngine<'_>) -> Result<(), FleetError> {
        let key = self.shared.keys.key(engine.row)?;
        let next_due_at = self.client.next_due_at(engine, &key).await;
        let next_due_at = next_due_at.map_err(|error| FleetError::Backend(error.to_string()))?;
        Ok(self.shared.registry.set_wake(engine.row, next_due_at).await?)
    }

    /// Whether the interrupted sleep of a running engine can be completed: the engine agrees to quiesce, or does
    /// not listen any more because it is exiting.
    pub(super) async fn can_finish_sleep(&self, engine: RunningEngine<'_>) -> bool {
        let Ok(key) = self.shared.keys.key(engine.row) else { return false };
        match self.client.quiesce(engine, &key).await {
            Ok(false) => false,
            Ok(true) => {
                let is_stored = self.store_next_due(engine).await.is_ok();
                if !is_stored {
                    self.lift_quiesce(engine).await;
                }
                is_stored
            }
            Err(error) => matches!(error, ProbeError::Unreachable { .. }),
        }
    }

    /// Lets a quiesced engine accept turns again. If the command is lost, it does so by itself a minute later.
    async fn lift_quiesce(&self, engine: RunningEngine<'_>) {
        let row = engine.row;
        if let Ok(key) = self.shared.keys.key(row)
            && let Err(error) = self.client.lift_quiesce(engine, &key).await
        {
            tracing::info!(engine_id = %row.engine_id, %error, "The quiesce of an engine could not be lifted.");
        }
    }
}
