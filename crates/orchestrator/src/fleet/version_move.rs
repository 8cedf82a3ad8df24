//! Moves an engine to another version: stops it, copies its brain, launches it on the other image, and rolls back
//! with the copy if it does not become healthy.
//!
//! The move is claimed like a start, because other callers see it as one. The row names the other image as soon as
//! the copy exists, so that the repair of an interrupted move continues with the new version.

use std::sync::Arc;

use api::EngineImage;
use api::orchestrator::EngineStatus;
use serde_json::{Value, json};

use super::boot::{BootFailure, BootFailureCause, Booted, Readiness};
use super::execute::OperationRequest;
use super::lifecycle::Change;
use super::operation::{Operation, OperationError, OperationResult, Outcome};
use super::policies::image_denied_error;
use super::stop::{STOP_GRACE_PERIOD, stop_event};
use super::{Fleet, FleetError};
use crate::backend::BrainCopy;
use crate::registry::{AuditEntry, Claim, ClaimRefused, EngineRow, Event, NextState};

/// The outcome of a move.
#[derive(Clone, Debug)]
pub(super) struct MoveOutcome {
    /// The engine after the move.
    pub(super) row: EngineRow,
    /// The image that it ran before.
    pub(super) previous_image: EngineImage,
    /// The copy of its brain; `None` if the image is the same.
    pub(super) brain_copy: Option<BrainCopy>,
    /// Why it was rolled back to the previous image; `None` if it was moved.
    pub(super) failure: Option<FleetError>,
}

/// A move under way.
struct PendingMove {
    /// The engine before the move.
    before: EngineRow,
    image: EngineImage,
    pinned: bool,
    brain_copy: Option<BrainCopy>,
}

impl Fleet {
    /// Moves an engine to the image of `request`, to which it is then pinned, or if there is none to the
    /// deployment's image, which it then follows.
    pub(super) async fn move_engine(
        self: &Arc<Self>,
        operation: &Arc<Operation>,
        request: &OperationRequest,
        seen: EngineRow,
    ) -> Outcome {
        let pinned = request.image.is_some();
        let image = request.image.clone().unwrap_or_else(|| self.settings.engine_image.clone());
        let (same, runs) = (image == seen.engine_version, seen.status == EngineStatus::Running);
        if !same {
            self.backend.check_image(&image).await?;
            self.backend.check_engine_data(seen.engine_id).await?;
        }
        let claim = Claim { image: Some(image.clone()), ..self.new_claim(Change::Start) };
        // A running engine has its port already.
        let ports = (!same && !runs).then_some(&self.ports);
        let mut row = match self.registry.claim(&seen, &claim, ports).await? {
            Ok(row) => row,
            Err(ClaimRefused::ImageNotAllowed) => return Err(image_denied_error(&image).into()),
            Err(refused) => return Err(refused.into()),
        };
        operation.mark_claimed(row.generation);
        let mut pending = PendingMove { before: seen, image, pinned, brain_copy: None };
        if same {
            self.registry
                .set_version(&row, &pending.image, pinned)
                .await
                .map_err(OperationError::from_settle_error)?;
            return self.settle_move(row, &pending, NextState::Unchanged, None).await;
        }
        if runs
            && let Err(error) = self.backend.stop(row.target(), STOP_GRACE_PERIOD).await
            && !self.has_ended(&row).await
        {
            // The row keeps its claim until the engine's state is known.
            return Err(error.into());
        }
        match self.boot_on_new_image(&mut row, &mut pending).await? {
            Ok(booted) => self.complete_move(row, &pending, booted).await,
            Err(failure) => self.roll_back_move(row, &pending, &failure).await,
        }
    }

    async fn boot_on_new_image(
        self: &Arc<Self>,
        row: &mut EngineRow,
        pending: &mut PendingMove,
    ) -> Result<Result<Booted, BootFailure>, OperationError> {
        match self.backend.copy_brain(row.target()).await {
            Ok(copy) => pending.brain_copy = Some(copy),
            Err(error) => {
                return Ok(Err(BootFailure { cause: BootFailureCause::Backend(error), log: Vec::new() }));
            }
        }
        self.registry
            .set_version(row, &pending.image, pending.pinned)
            .await
            .map_err(OperationError::from_settle_error)?;
        row.engine_version.clone_from(&pending.image);
        Ok(self.boot(row, Readiness::BrainOnly).await)
    }

    /// Completes the move of an engine that is healthy on the other image. If it was stopped or asleep before, it
    /// is stopped again; otherwise it keeps running.
    async fn complete_move(
        self: &Arc<Self>,
        row: EngineRow,
        pending: &PendingMove,
        booted: Booted,
    ) -> Outcome {
        let idle_status = match pending.before.status {
            status @ (EngineStatus::Stopped | EngineStatus::Sleeping) => Some(status),
            EngineStatus::Provisioning
            | EngineStatus::Running
            | EngineStatus::Failed
            | EngineStatus::Destroying => None,
        };
        let next = match idle_status {
            Some(status) => {
                self.backend.stop(row.target(), STOP_GRACE_PERIOD).await?;
                NextState::NotRunning(status)
            }
            None => running_state(&row, booted),
        };
        self.settle_move(row, pending, next, None).await
    }

    /// Rolls back a move that did not lead to a healthy engine.
    async fn roll_back_move(
        self: &Arc<Self>,
        mut row: EngineRow,
        pending: &PendingMove,
        failure: &BootFailure,
    ) -> Outcome {
        tracing::warn!(
            engine_id = %row.engine_id,
            reason = failure.message(),
            "A move to another version failed; rolling it back."
        );
        self.backend.kill(row.target()).await?;
        if pending.brain_copy.is_some() {
            self.backend.restore_brain(row.target()).await?;
        }
        let before = &pending.before;
        self.registry
            .set_version(&row, &before.engine_version, before.pinned)
            .await
            .map_err(OperationError::from_settle_error)?;
        row.engine_version.clone_from(&before.engine_version);
        let next = match before.status {
            EngineStatus::Running => match self.boot(&mut row, Readiness::BrainOnly).await {
                Ok(booted) => running_state(&row, booted),
                Err(relaunch_failure) => {
                    tracing::warn!(
                        engine_id = %row.engine_id,
                        reason = relaunch_failure.message(),
                        "An engine failed to boot after its move was rolled back."
                    );
                    self.backend.kill(row.target()).await?;
                    self.failed_state(0)
                }
            },
            EngineStatus::Failed => self.failed_state(0),
            status => NextState::NotRunning(status),
        };
        self.settle_move(row, pending, next, Some(failure)).await
    }

    async fn settle_move(
        &self,
        mut row: EngineRow,
        pending: &PendingMove,
        next: NextState,
        failure: Option<&BootFailure>,
    ) -> Outcome {
        row.pinned = if failure.is_some() { pending.before.pinned } else { pending.pinned };
        let entry = self.move_entry(&row, pending, &next, failure);
        let settled =
            self.settle(&row, next, Some(&entry)).await.map_err(OperationError::from_settle_error)?;
        let row = settled.ok_or(OperationError::Stale)?;
        let from = pending.before.engine_version.clone();
        let failure = failure.map(|failure| rolled_back_error(failure.to_fleet_error(), &from));
        Ok(OperationResult::Moved(Box::new(MoveOutcome {
            row,
            previous_image: from,
            brain_copy: pending.brain_copy,
            failure,
        })))
    }

    /// The audit log's row of a move, under the event of the state that the engine ends in.
    fn move_entry(
        &self,
        row: &EngineRow,
        pending: &PendingMove,
        next: &NextState,
        failure: Option<&BootFailure>,
    ) -> AuditEntry {
        let from = pending.before.status;
        let to = match next {
            NextState::Running { .. } => EngineStatus::Running,
            NextState::NotRunning(status) => *status,
            NextState::Failed { .. } => EngineStatus::Failed,
            NextState::Unchanged | NextState::KeyRotated(_) | NextState::Removed => from,
        };
        let event = match to {
            EngineStatus::Sleeping => stop_event(Change::Sleep).0,
            EngineStatus::Stopped => stop_event(Change::Stop).0,
            EngineStatus::Failed if from != EngineStatus::Failed => Event::Crash,
            _ => Event::Start,
        };
        let mut detail = json!({
            "from": from, "to": to, "reason": "version",
            "version": {"from": pending.before.engine_version, "to": pending.image, "pinned": pending.pinned},
            "outcome": if failure.is_some() { "taken_back" } else { "moved" },
        });
        if let (Value::Object(detail), Some(failure)) = (&mut detail, failure) {
            detail.insert("cause".to_owned(), failure.cause.audit_cause().into());
            detail.insert("message".to_owned(), failure.message().into());
            detail.insert("log".to_owned(), failure.log.clone().into());
        }
        self.audit_entry(row, event, detail)
    }
}

fn running_state(row: &EngineRow, booted: Booted) -> NextState {
    NextState::Running {
        instance: booted.instance,
        image: row.engine_version.clone(),
        health_at: booted.health_at,
        on_demand: true,
    }
}

/// The error for the caller of a move that was rolled back.
fn rolled_back_error(error: FleetError, to: &EngineImage) -> FleetError {
    let append = |reason: String| format!("{reason}; the engine is on {to} again, with its brain as it was");
    match error {
        FleetError::BootTimeout(reason) => FleetError::BootTimeout(append(reason)),
        FleetError::Backend(reason) => FleetError::Backend(append(reason)),
        FleetError::CapacityExhausted(reason) => FleetError::CapacityExhausted(append(reason)),
        error => error,
    }
}
