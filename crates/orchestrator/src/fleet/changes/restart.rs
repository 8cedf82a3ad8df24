//! Restart: one attempt of the supervisor to boot a failed engine again.

use api::orchestrator::EngineStatus;
use backend::BackendError;
use serde_json::Value;

use super::Changes;
use crate::domain::lifecycle::Change;
use crate::fleet::operation::Operation;
use crate::fleet::request::Outcome;
use crate::registry::{EngineRow, NextState};

impl Changes {
    /// Attempts a restart. A failure before the launch does not count as an attempt, and neither does one that
    /// says nothing about the engine, such as a full host.
    pub(super) async fn restart(&self, operation: &Operation, seen: EngineRow) -> Outcome {
        let (backend, transitions) = (&self.shared.backend, &self.transitions);
        let image = self.policies.launch_image(&seen);
        let permanent = match backend.check_image(&image).await {
            Ok(()) => None,
            Err(error @ BackendError::NoImage(_)) => Some(error),
            Err(error) => return Err(error.into()),
        };
        backend.check_engine_data(seen.engine_id).await?;
        let claim = transitions.new_claim(Change::Restart);
        if let Some(error) = permanent {
            let row = self.shared.registry.claim(&seen, &claim).await??;
            self.mark_claimed(operation, &row);
            let entry = transitions.restart_entry(&row, EngineStatus::Failed, &error.to_string(), None);
            self.settle(&row, NextState::Failed { restart_at: None, restarts: row.restarts }, Some(&entry))
                .await?;
            return Err(error.into());
        }
        let mut engine = self.boots.claim_and_place(&seen, &claim).await??;
        self.mark_claimed(operation, &engine.row);
        let failure = match self.boot_with_image(&mut engine, image).await {
            Ok(booted) => {
                let took_ms = Some(booted.took_ms);
                let entry = transitions.restart_entry(&engine.row, EngineStatus::Running, "crash", took_ms);
                let next = booted.into_state(&engine, false);
                return self.settle_engine(&engine.row, next, Some(&entry)).await;
            }
            Err(failure) => failure,
        };
        // As in the registry: the image of a failed launch is not the one that the engine runs.
        let row = EngineRow { engine_version: seen.engine_version, ..engine.row };
        tracing::warn!(engine_id = %row.engine_id, reason = failure.message(), "A restart failed.");
        // If the kill fails, the row keeps its claim until it is repaired.
        backend.kill(row.target()).await?;
        if failure.cause.is_host_failure() {
            let next = transitions.failed_state_after_host_failure(row.restarts.saturating_sub(1));
            self.settle(&row, next, None).await?;
            return Err(failure.to_fleet_error().into());
        }
        let mut entry = transitions.restart_entry(&row, EngineStatus::Failed, &failure.message(), None);
        if let Value::Object(detail) = &mut entry.detail {
            detail.insert("cause".to_owned(), failure.cause.audit_cause().into());
            detail.insert("log".to_owned(), failure.log.clone().into());
        }
        self.settle(&row, transitions.failed_state(row.restarts), Some(&entry)).await?;
        Err(failure.to_fleet_error().into())
    }

    /// Marks the restart as claimed: from now on, waiting callers share this operation.
    fn mark_claimed(&self, operation: &Operation, row: &EngineRow) {
        operation.mark_claimed(row.generation);
        self.supervision.notify_waiters(row.engine_id);
    }
}
