//! Another version for an engine: stopped, its brain copied, launched on the other image, and taken back with the copy
//! if it does not become healthy.
//!
//! It is claimed like a start, which is what it is for everybody else. The row names the other image as soon as the
//! copy is there: whoever finishes a move that was cut off goes forward.

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

/// What came of a move.
#[derive(Clone, Debug)]
pub(super) struct MoveOutcome {
    /// The engine as it is now.
    pub(super) row: EngineRow,
    /// The image that it ran before.
    pub(super) previous_image: EngineImage,
    /// The copy of its brain; none if the image is the same.
    pub(super) brain_copy: Option<BrainCopy>,
    /// Why it is on the image of before.
    pub(super) failure: Option<FleetError>,
}

/// A move under way.
struct PendingMove {
    /// The engine as it was before.
    before: EngineRow,
    image: EngineImage,
    pinned: bool,
    brain_copy: Option<BrainCopy>,
}

impl Fleet {
    /// Moves an engine to the image that `job` asks for, which it stays with; to the deployment's, which it follows, if
    /// it asks for none.
    pub(super) async fn move_engine(
        self: &Arc<Self>,
        flight: &Arc<Operation>,
        job: &OperationRequest,
        seen: EngineRow,
    ) -> Outcome {
        let pinned = job.image.is_some();
        let image = job.image.clone().unwrap_or_else(|| self.settings.engine_image.clone());
        let (same, runs) = (image == seen.engine_version, seen.status == EngineStatus::Running);
        if !same {
            self.backend.check_image(&image).await?;
            self.backend.check_engine_data(seen.engine_id).await?;
        }
        let claim = Claim { image: Some(image.clone()), ..self.new_claim(Change::Start) };
        // One that runs has its port.
        let ports = (!same && !runs).then_some(&self.ports);
        let mut row = match self.registry.claim(&seen, &claim, ports).await? {
            Ok(row) => row,
            Err(ClaimRefused::ImageNotAllowed) => return Err(image_denied_error(&image).into()),
            Err(refused) => return Err(refused.into()),
        };
        flight.mark_claimed(row.generation);
        let mut moving = PendingMove { before: seen, image, pinned, brain_copy: None };
        if same {
            self.registry
                .set_version(&row, &moving.image, pinned)
                .await
                .map_err(OperationError::from_settle_error)?;
            return self.settle_move(row, &moving, NextState::Unchanged, None).await;
        }
        if runs
            && let Err(error) = self.backend.stop(row.target(), STOP_GRACE_PERIOD).await
            && !self.has_ended(&row).await
        {
            // The row keeps its claim until it is known what has become of the engine.
            return Err(error.into());
        }
        match self.boot_on_new_image(&mut row, &mut moving).await? {
            Ok(booted) => self.complete_move(row, &moving, booted).await,
            Err(failure) => self.roll_back_move(row, &moving, &failure).await,
        }
    }

    async fn boot_on_new_image(
        self: &Arc<Self>,
        row: &mut EngineRow,
        moving: &mut PendingMove,
    ) -> Result<Result<Booted, BootFailure>, OperationError> {
        match self.backend.copy_brain(row.target()).await {
            Ok(copy) => moving.brain_copy = Some(copy),
            Err(error) => {
                return Ok(Err(BootFailure { cause: BootFailureCause::Backend(error), log: Vec::new() }));
            }
        }
        self.registry
            .set_version(row, &moving.image, moving.pinned)
            .await
            .map_err(OperationError::from_settle_error)?;
        row.engine_version.clone_from(&moving.image);
        Ok(self.boot(row, Readiness::BrainOnly).await)
    }

    /// The engine is healthy on the other image: it stays up if it ran before or had failed, else it rests again.
    async fn complete_move(
        self: &Arc<Self>,
        row: EngineRow,
        moving: &PendingMove,
        booted: Booted,
    ) -> Outcome {
        let rests = match moving.before.status {
            status @ (EngineStatus::Stopped | EngineStatus::Sleeping) => Some(status),
            EngineStatus::Provisioning
            | EngineStatus::Running
            | EngineStatus::Failed
            | EngineStatus::Destroying => None,
        };
        let next = match rests {
            Some(status) => {
                self.backend.stop(row.target(), STOP_GRACE_PERIOD).await?;
                NextState::NotRunning(status)
            }
            None => running_state(&row, booted),
        };
        self.settle_move(row, moving, next, None).await
    }

    /// Takes a move back that did not lead to a healthy engine.
    async fn roll_back_move(
        self: &Arc<Self>,
        mut row: EngineRow,
        moving: &PendingMove,
        failure: &BootFailure,
    ) -> Outcome {
        tracing::warn!(engine.id = %row.engine_id, reason = failure.message(), "A move to another version failed.");
        self.backend.kill(row.target()).await?;
        if moving.brain_copy.is_some() {
            self.backend.restore_brain(row.target()).await?;
        }
        let before = &moving.before;
        self.registry
            .set_version(&row, &before.engine_version, before.pinned)
            .await
            .map_err(OperationError::from_settle_error)?;
        row.engine_version.clone_from(&before.engine_version);
        let next = match before.status {
            EngineStatus::Running => match self.boot(&mut row, Readiness::BrainOnly).await {
                Ok(booted) => running_state(&row, booted),
                Err(again) => {
                    tracing::warn!(engine.id = %row.engine_id, reason = again.message(), "Nor does it come up as before.");
                    self.backend.kill(row.target()).await?;
                    self.failed_state(0)
                }
            },
            EngineStatus::Failed => self.failed_state(0),
            status => NextState::NotRunning(status),
        };
        self.settle_move(row, moving, next, Some(failure)).await
    }

    async fn settle_move(
        &self,
        mut row: EngineRow,
        moving: &PendingMove,
        next: NextState,
        failure: Option<&BootFailure>,
    ) -> Outcome {
        row.pinned = if failure.is_some() { moving.before.pinned } else { moving.pinned };
        let entry = self.move_entry(&row, moving, &next, failure);
        let settled =
            self.settle(&row, next, Some(&entry)).await.map_err(OperationError::from_settle_error)?;
        let row = settled.ok_or(OperationError::Stale)?;
        let from = moving.before.engine_version.clone();
        let failure = failure.map(|failure| rolled_back_error(failure.to_fleet_error(), &from));
        Ok(OperationResult::Moved(Box::new(MoveOutcome {
            row,
            previous_image: from,
            brain_copy: moving.brain_copy,
            failure,
        })))
    }

    /// The audit log's row of a move, under the event of the state that the engine ends in.
    fn move_entry(
        &self,
        row: &EngineRow,
        moving: &PendingMove,
        next: &NextState,
        failure: Option<&BootFailure>,
    ) -> AuditEntry {
        let from = moving.before.status;
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
            "version": {"from": moving.before.engine_version, "to": moving.image, "pinned": moving.pinned},
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

/// What the caller of a move is answered that was taken back.
fn rolled_back_error(error: FleetError, to: &EngineImage) -> FleetError {
    let add = |why: String| format!("{why}; the engine is on {to} again, with its brain as it was");
    match error {
        FleetError::BootTimeout(why) => FleetError::BootTimeout(add(why)),
        FleetError::Backend(why) => FleetError::Backend(add(why)),
        FleetError::CapacityExhausted(why) => FleetError::CapacityExhausted(add(why)),
        error => error,
    }
}
