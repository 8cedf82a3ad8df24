//! Repair of engines whose change was abandoned, for example because the orchestrator was killed: the change is
//! completed, rolled back or dropped.

use api::orchestrator::EngineStatus;
use serde_json::json;

use super::stop::{STOP_GRACE_PERIOD, stop_event};
use super::{Changes, fulfilled};
use crate::domain::Actor;
use crate::domain::lifecycle::Change;
use crate::fleet::FleetError;
use crate::fleet::request::{OperationError, Outcome};
use crate::registry::{EngineRow, Event, NextState};

impl Changes {
    /// Repairs the engine of `seen`: ends the change that its claim names, or removes a process that should not
    /// exist. On success the outcome is [`OperationError::Stale`], so that the caller reads the row again.
    pub(in crate::fleet) async fn repair(&self, seen: &EngineRow) -> Outcome {
        // Read again now that the operation is registered: the change may have been settled just before.
        let Some(row) = self.shared.registry.engine(&seen.owner).await? else {
            return Err(OperationError::Stale);
        };
        if row.generation != seen.generation {
            return Err(OperationError::Stale);
        }
        // If another orchestrator has taken over, the claim and the engine are its own.
        self.shared.registry.check_leadership().await?;
        match row.claim {
            Some(Change::Provision) => {
                self.shared.backend.remove_with_data(row.target()).await?;
                let detail = json!({"from": null, "to": null, "reason": "interrupted"});
                let entry = self.transitions.audit_entry(&row, Event::ProvisionFailed, detail);
                self.settle(&row, NextState::Removed, Some(&entry)).await?;
            }
            Some(Change::Destroy) => {
                self.finish_destroy(&row, "interrupted", Actor::Implied).await?;
            }
            Some(Change::Start | Change::Wake) => {
                self.shared.backend.remove_instance(row.target()).await?;
                let (next, entry) = match row.status {
                    // It was being moved to another version or restored, and does not run any more.
                    EngineStatus::Running => {
                        let reason = "the orchestrator exited while it moved the engine to another version or restored it";
                        (
                            self.transitions.failed_state(row.restarts),
                            Some(self.transitions.crash_entry(&row, reason, "interrupted")),
                        )
                    }
                    // The start of a failed engine has reset its restart count.
                    EngineStatus::Failed => (self.transitions.failed_state(row.restarts), None),
                    _ => (NextState::Unchanged, None),
                };
                self.settle(&row, next, entry.as_ref()).await?;
            }
            Some(Change::Restart) => {
                self.shared.backend.remove_instance(row.target()).await?;
                let entry = self.transitions.restart_entry(&row, EngineStatus::Failed, "interrupted", None);
                let next = self.transitions.failed_state(row.restarts);
                self.settle(&row, next, Some(&entry)).await?;
            }
            Some(change @ (Change::Stop | Change::Sleep)) => self.finish_stop(&row, change).await?,
            Some(Change::Rotate) => {
                let engine = self.shared.running(&row).ok_or(FleetError::EngineNotRunning)?;
                self.settle_rotation(engine, "interrupted", Actor::Implied).await?;
            }
            None if row.status != EngineStatus::Running => {
                self.shared.backend.remove_instance(row.target()).await?;
            }
            None => {}
        }
        Err(OperationError::Stale)
    }

    /// Completes an interrupted stop or sleep: the engine may have been sent the signal to exit already, and its
    /// exit would then look like a crash. An engine that still runs and does not agree to sleep keeps running.
    async fn finish_stop(&self, row: &EngineRow, change: Change) -> Result<(), OperationError> {
        let runs = self
            .shared
            .backend
            .list()
            .await?
            .iter()
            .any(|listed| listed.running && listed.engine_id == row.engine_id);
        if runs
            && change == Change::Sleep
            && let Some(engine) = self.shared.running(row)
            && !self.can_finish_sleep(engine).await
        {
            self.settle(row, NextState::Unchanged, None).await?;
            return Ok(());
        }
        if runs {
            self.shared.backend.stop(row.target(), STOP_GRACE_PERIOD).await?;
        } else {
            self.shared.backend.remove_instance(row.target()).await?;
        }
        if change == Change::Sleep {
            let now = self.shared.clock.now();
            self.shared.registry.set_wake_unless_asked(row, now).await?;
        }
        let (event, to) = stop_event(change);
        let detail = json!({"from": row.status, "to": to, "reason": "interrupted"});
        let entry = self.transitions.audit_entry(row, event, detail).of_call(Some(fulfilled(row)));
        self.settle(row, NextState::NotRunning(to), Some(&entry)).await?;
        Ok(())
    }
}
