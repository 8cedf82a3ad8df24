//! Restart: one attempt of the supervisor to boot a failed engine again.

use std::sync::Arc;
use std::time::Duration;

use api::orchestrator::EngineStatus;
use serde_json::{Value, json};

use super::Fleet;
use super::boot::Booted;
use super::lifecycle::Change;
use super::operation::{Operation, OperationError, OperationResult, Outcome};
use crate::backend::BackendError;
use crate::registry::{AuditEntry, EngineRow, Event, NextState};

impl Fleet {
    /// Attempts a restart. A failure before the launch does not count as an attempt, and neither does one that
    /// says nothing about the engine, such as a full host.
    pub(super) async fn restart_engine(
        self: &Arc<Self>,
        operation: &Arc<Operation>,
        seen: EngineRow,
    ) -> Outcome {
        let image = self.launch_image(&seen).clone();
        let permanent = match self.backend.check_image(&image).await {
            Ok(()) => None,
            Err(error @ BackendError::NoImage(_)) => Some(error),
            Err(error) => return Err(error.into()),
        };
        self.backend.check_engine_data(seen.engine_id).await?;
        let ports = permanent.is_none().then_some(&self.ports);
        let mut row = match self.registry.claim(&seen, &self.new_claim(Change::Restart), ports).await? {
            Ok(row) => row,
            Err(refused) => return Err(refused.into()),
        };
        operation.mark_claimed(row.generation);
        // From here on, waiting callers share this operation.
        self.supervision.notify_waiters(row.engine_id);
        if let Some(error) = permanent {
            let entry = self.restart_entry(&row, EngineStatus::Failed, &error.to_string(), None);
            self.settle(&row, NextState::Failed { restart_at: None, restarts: row.restarts }, Some(&entry))
                .await
                .map_err(OperationError::from_settle_error)?;
            return Err(error.into());
        }
        let previous_image = row.engine_version.clone();
        match self.boot_with_image(&mut row, image).await {
            Ok(booted) => self.settle_restart(&row, booted).await,
            Err(failure) => {
                // As in the registry: the image of a failed launch is not the one that the engine runs.
                row.engine_version = previous_image;
                tracing::warn!(engine_id = %row.engine_id, reason = failure.message(), "A restart failed.");
                // If the kill fails, the row keeps its claim until it is repaired.
                self.backend.kill(row.target()).await?;
                if failure.cause.is_host_failure() {
                    let next = self.failed_state_after_host_failure(row.restarts.saturating_sub(1));
                    self.settle(&row, next, None).await.map_err(OperationError::from_settle_error)?;
                    return Err(failure.to_fleet_error().into());
                }
                let mut entry = self.restart_entry(&row, EngineStatus::Failed, &failure.message(), None);
                if let Value::Object(detail) = &mut entry.detail {
                    detail.insert("cause".to_owned(), failure.cause.audit_cause().into());
                    detail.insert("log".to_owned(), failure.log.clone().into());
                }
                let next = self.failed_state(row.restarts);
                self.settle(&row, next, Some(&entry)).await.map_err(OperationError::from_settle_error)?;
                Err(failure.to_fleet_error().into())
            }
        }
    }

    async fn settle_restart(&self, row: &EngineRow, booted: Booted) -> Outcome {
        let took = Duration::from_millis(booted.took_ms.unsigned_abs());
        let entry = self.restart_entry(row, EngineStatus::Running, "crash", Some(took));
        let next = NextState::Running {
            instance: booted.instance,
            image: row.engine_version.clone(),
            health_at: booted.health_at,
            on_demand: false,
        };
        match self.settle(row, next, Some(&entry)).await.map_err(OperationError::from_settle_error)? {
            Some(row) => Ok(OperationResult::Engine(Box::new(row))),
            None => Err(OperationError::Stale),
        }
    }

    /// The audit log's row of an attempt that ended in the state `to`.
    pub(super) fn restart_entry(
        &self,
        row: &EngineRow,
        to: EngineStatus,
        reason: &str,
        took: Option<Duration>,
    ) -> AuditEntry {
        let outcome = if to == EngineStatus::Running { "running" } else { "failed" };
        let detail = json!({
            "from": EngineStatus::Failed, "to": to, "reason": reason,
            "attempt": row.restarts, "outcome": outcome,
        });
        let duration_ms = took.map(|took| i64::try_from(took.as_millis()).unwrap_or(i64::MAX));
        AuditEntry { duration_ms, ..self.audit_entry(row, Event::Restart, detail) }
    }
}
