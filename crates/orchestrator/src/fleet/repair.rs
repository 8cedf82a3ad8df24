//! Repair of engines whose change was abandoned, for example because the orchestrator was killed: the change is
//! completed, rolled back or dropped.

use std::sync::Arc;

use api::orchestrator::EngineStatus;
use serde_json::json;

use super::Fleet;
use super::lifecycle::Change;
use super::operation::{OperationError, Outcome};
use super::stop::{STOP_GRACE_PERIOD, stop_event};
use crate::registry::{EngineRow, Event, NextState};

impl Fleet {
    /// Repairs the engine of `row`: ends the change that its claim names, or removes a process that should not
    /// exist. On success the outcome is [`OperationError::Stale`], so that the caller reads the row again.
    pub(super) async fn repair(self: &Arc<Self>, row: &EngineRow) -> Outcome {
        let operation = match self.operations.begin_for_row(row, row.claim.unwrap_or(Change::Stop)) {
            Ok(operation) => operation,
            // Another operation was registered first.
            Err(other) => {
                other.wait_until_claimed().await;
                return Err(OperationError::Stale);
            }
        };
        let (fleet, seen) = (Arc::clone(self), row.clone());
        self.operations.spawn(Arc::clone(&operation), async move { fleet.perform_repair(&seen).await });
        operation.outcome().await
    }

    async fn perform_repair(&self, seen: &EngineRow) -> Outcome {
        // Read again now that the operation is registered: the change may have been settled just before.
        let Some(row) = self.registry.engine(&seen.owner).await? else { return Err(OperationError::Stale) };
        if row.generation != seen.generation {
            return Err(OperationError::Stale);
        }
        // If another orchestrator has taken over, the claim and the engine are its own.
        self.registry.check_leadership().await?;
        match row.claim {
            Some(Change::Provision) => {
                self.backend.remove_with_data(row.target()).await?;
                let detail = json!({"from": null, "to": null, "reason": "interrupted"});
                let entry = self.audit_entry(&row, Event::ProvisionFailed, detail);
                self.settle(&row, NextState::Removed, Some(&entry))
                    .await
                    .map_err(OperationError::from_settle_error)?;
            }
            Some(Change::Destroy) => {
                self.finish_destroy(&row, "interrupted").await?;
            }
            Some(Change::Start | Change::Wake) => {
                self.backend.remove_instance(row.target()).await?;
                let (next, entry) = match row.status {
                    // It was being moved to another version, and does not run any more.
                    EngineStatus::Running => {
                        let reason = "the orchestrator exited while moving the engine to another version";
                        (self.failed_state(row.restarts), Some(self.crash_entry(&row, reason, "interrupted")))
                    }
                    // The start of a failed engine has reset its restart count.
                    EngineStatus::Failed => (self.failed_state(row.restarts), None),
                    _ => (NextState::Unchanged, None),
                };
                self.settle(&row, next, entry.as_ref()).await.map_err(OperationError::from_settle_error)?;
            }
            Some(Change::Restart) => {
                self.backend.remove_instance(row.target()).await?;
                let entry = self.restart_entry(&row, EngineStatus::Failed, "interrupted", None);
                let next = self.failed_state(row.restarts);
                self.settle(&row, next, Some(&entry)).await.map_err(OperationError::from_settle_error)?;
            }
            Some(change @ (Change::Stop | Change::Sleep)) => self.finish_stop(&row, change).await?,
            Some(Change::Rotate) => {
                self.settle_rotation(&row, "interrupted").await?;
            }
            None if row.status != EngineStatus::Running => self.backend.remove_instance(row.target()).await?,
            None => {}
        }
        Err(OperationError::Stale)
    }

    /// Completes an interrupted stop or sleep: the engine may have been sent the signal to exit already, and its
    /// exit would then look like a crash. An engine that still runs and does not agree to sleep keeps running.
    async fn finish_stop(&self, row: &EngineRow, change: Change) -> Result<(), OperationError> {
        let runs = self
            .backend
            .list()
            .await?
            .iter()
            .any(|listed| listed.running && listed.engine_id == row.engine_id);
        if runs && change == Change::Sleep && !self.can_finish_sleep(row).await {
            self.settle(row, NextState::Unchanged, None).await.map_err(OperationError::from_settle_error)?;
            return Ok(());
        }
        if runs {
            self.backend.stop(row.target(), STOP_GRACE_PERIOD).await?;
        } else {
            self.backend.remove_instance(row.target()).await?;
        }
        let (event, to) = stop_event(change);
        let detail = json!({"from": row.status, "to": to, "reason": "interrupted"});
        let entry = self.audit_entry(row, event, detail);
        self.settle(row, NextState::NotRunning(to), Some(&entry))
            .await
            .map_err(OperationError::from_settle_error)?;
        Ok(())
    }
}
