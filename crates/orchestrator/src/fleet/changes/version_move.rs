//! Moves an engine to another version: stops it, copies its brain, launches it on the other image, and rolls back
//! with the copy if it does not become healthy.
//!
//! The move is claimed like a start, because other callers see it as one. The row names the other image as soon as
//! the copy exists, so that the repair of an interrupted move continues with the new version.

use api::EngineImage;
use api::orchestrator::EngineStatus;
use api::version::ChangedVersion;
use backend::{BackendError, BrainCopy};
use serde_json::{Value, json};

use super::Changes;
use super::boot::{BootFailure, Booted};
use super::stop::{STOP_GRACE_PERIOD, stop_event};
use crate::domain::Actor;
use crate::domain::lifecycle::Change;
use crate::domain::rollout::{BrainOnRollback, brain_on_rollback};
use crate::fleet::FleetError;
use crate::fleet::engine_client::Readiness;
use crate::fleet::idempotency::Call;
use crate::fleet::operation::Operation;
use crate::fleet::request::{
    MoveOutcome, OperationError, OperationRequest, OperationResult, Outcome, VersionMove,
};
use crate::registry::{AuditEntry, Claim, ClaimRefused, EngineRow, Event, NextState, PlacedEngine};

/// A move under way.
struct PendingMove {
    /// The engine before the move.
    before: EngineRow,
    image: EngineImage,
    pinned: bool,
    brain_copy: Option<BrainCopy>,
    /// What happens to the brain.
    brain: BrainMove,
    actor: Actor,
    /// The reason that the audit log records.
    reason: &'static str,
    call: Option<Call>,
}

/// What happens to the brain of an engine that is moved.
#[derive(Clone, Copy, Debug)]
enum BrainMove {
    /// It is copied, and the copy restored if the move fails.
    Copy,
    /// It had this format before the engine was moved from the image to which it now returns.
    Return { format: Option<u32>, may_discard: bool },
}

impl Changes {
    /// Moves an engine to another image.
    pub(super) async fn move_to_version(
        &self,
        operation: &Operation,
        request: &OperationRequest,
        to: &VersionMove,
        seen: EngineRow,
    ) -> Outcome {
        let (registry, backend) = (&self.shared.registry, &self.shared.backend);
        if let VersionMove::RollOut { if_idle: true, .. } = to
            && seen.status == EngineStatus::Running
        {
            return Err(FleetError::EngineAlreadyRunning.into());
        }
        let (image, default_image) = self.images_of(to);
        let brain = match to {
            VersionMove::Pin(_) | VersionMove::Follow | VersionMove::RollOut { .. } => BrainMove::Copy,
            VersionMove::RollBack { brain_format, may_discard, .. } => {
                BrainMove::Return { format: *brain_format, may_discard: *may_discard }
            }
        };
        let mut pending = PendingMove {
            before: seen.clone(),
            image: image.clone(),
            pinned: matches!(to, VersionMove::Pin(_)),
            brain_copy: None,
            brain,
            actor: request.actor,
            reason: request.reason,
            call: request.call.clone(),
        };
        let same = image == seen.engine_version;
        if !same {
            backend.check_image(&image).await?;
            backend.check_engine_data(seen.engine_id).await?;
        }
        let claim = Claim {
            image: Some(image),
            default_image,
            call: request.claiming_call(),
            ..self.transitions.new_claim(Change::Start)
        };
        let refused_error = |refused| match (refused, &claim.image) {
            (ClaimRefused::ImageNotAllowed, Some(image)) => FleetError::image_denied(image).into(),
            (refused, _) => OperationError::from(refused),
        };
        if same {
            let row = registry.claim(&seen, &claim).await?.map_err(refused_error)?;
            operation.mark_claimed(row.generation);
            self.set_version(&row, &pending.image, pending.pinned).await?;
            return self.settle_move(row, &pending, NextState::Unchanged, None).await;
        }
        let running = self.shared.running(&seen).map(|engine| (engine.placement, engine.instance.clone()));
        let claimed = match &running {
            // It has its place already.
            Some((placement, _)) => registry.claim(&seen, &claim).await?.map(|row| row.placed(*placement)),
            None => self.boots.claim_and_place(&seen, &claim).await?,
        };
        let mut engine = claimed.map_err(refused_error)?;
        operation.mark_claimed(engine.row.generation);
        if let Some((_, instance)) = &running
            && let Err(error) = backend.stop(engine.row.target(), STOP_GRACE_PERIOD).await
            && !self.has_ended(instance).await
        {
            // The row keeps its claim until the engine's state is known.
            return Err(error.into());
        }
        match self.boot_on_new_image(&mut engine, &mut pending).await? {
            Ok(booted) => self.complete_move(engine, &pending, booted).await,
            Err(failure) => self.roll_back_move(engine, &pending, &failure).await,
        }
    }

    /// The image of a move, and the deployment's image by which it is judged whether the product may use that: an
    /// operator who rolls one out makes it the deployment's.
    fn images_of(&self, to: &VersionMove) -> (EngineImage, EngineImage) {
        let default = self.policies.default_image();
        match to {
            VersionMove::Pin(image) => (image.clone(), default),
            VersionMove::Follow => (default.clone(), default),
            VersionMove::RollOut { image, .. } | VersionMove::RollBack { image, .. } => {
                (image.clone(), image.clone())
            }
        }
    }

    async fn set_version(
        &self,
        row: &EngineRow,
        image: &EngineImage,
        pinned: bool,
    ) -> Result<(), OperationError> {
        let stored = self.shared.registry.set_version(row, image, pinned).await;
        stored.map_err(OperationError::from_settle_error)
    }

    async fn boot_on_new_image(
        &self,
        engine: &mut PlacedEngine,
        pending: &mut PendingMove,
    ) -> Result<Result<Booted, BootFailure>, OperationError> {
        if let Err(error) = self.prepare_brain(engine, pending).await {
            return Ok(Err(BootFailure::of_backend(error)));
        }
        self.set_version(&engine.row, &pending.image, pending.pinned).await?;
        engine.row.engine_version.clone_from(&pending.image);
        Ok(self.boots.boot(engine, Readiness::BrainOnly).await)
    }

    /// Prepares the brain of a stopped engine for the other image.
    async fn prepare_brain(
        &self,
        engine: &PlacedEngine,
        pending: &mut PendingMove,
    ) -> Result<(), BackendError> {
        let (backend, target) = (&self.shared.backend, engine.row.target());
        match pending.brain {
            BrainMove::Copy => pending.brain_copy = Some(backend.copy_brain(target).await?),
            BrainMove::Return { format, may_discard } => {
                let formats = backend.brain_formats(target).await?;
                match brain_on_rollback(&formats, format, may_discard) {
                    Ok(BrainOnRollback::Keep) => {}
                    Ok(BrainOnRollback::Restore) => backend.restore_brain(target).await?,
                    Err(reason) => return Err(BackendError::Failed(reason.to_owned())),
                }
            }
        }
        Ok(())
    }

    /// Completes the move of an engine that is healthy on the other image. If it was stopped or asleep before, it
    /// is stopped again; otherwise it keeps running.
    async fn complete_move(&self, engine: PlacedEngine, pending: &PendingMove, booted: Booted) -> Outcome {
        let next = match pending.before.status {
            status @ (EngineStatus::Stopped | EngineStatus::Sleeping) => {
                self.shared.backend.stop(engine.row.target(), STOP_GRACE_PERIOD).await?;
                NextState::NotRunning(status)
            }
            EngineStatus::Provisioning
            | EngineStatus::Running
            | EngineStatus::Failed
            | EngineStatus::Destroying => booted.into_state(&engine, true),
        };
        self.settle_move(engine.row, pending, next, None).await
    }

    /// Rolls back a move that did not lead to a healthy engine.
    async fn roll_back_move(
        &self,
        mut engine: PlacedEngine,
        pending: &PendingMove,
        failure: &BootFailure,
    ) -> Outcome {
        let (backend, target) = (&self.shared.backend, engine.row.target());
        tracing::warn!(
            engine_id = %target.engine_id,
            reason = failure.message(),
            "A move to another version failed; rolling it back."
        );
        backend.kill(target).await?;
        if pending.brain_copy.is_some() {
            backend.restore_brain(target).await?;
        }
        let before = &pending.before;
        self.set_version(&engine.row, &before.engine_version, before.pinned).await?;
        engine.row.engine_version.clone_from(&before.engine_version);
        let next = match before.status {
            EngineStatus::Running => match self.boots.boot(&mut engine, Readiness::BrainOnly).await {
                Ok(booted) => booted.into_state(&engine, true),
                Err(relaunch_failure) => {
                    tracing::warn!(
                        engine_id = %target.engine_id,
                        reason = relaunch_failure.message(),
                        "An engine failed to boot after its move was rolled back."
                    );
                    backend.kill(target).await?;
                    self.transitions.failed_state(0)
                }
            },
            EngineStatus::Failed => self.transitions.failed_state(0),
            status => NextState::NotRunning(status),
        };
        self.settle_move(engine.row, pending, next, Some(failure)).await
    }

    async fn settle_move(
        &self,
        mut row: EngineRow,
        pending: &PendingMove,
        next: NextState,
        failure: Option<&BootFailure>,
    ) -> Outcome {
        row.pinned = if failure.is_some() { pending.before.pinned } else { pending.pinned };
        let call = pending.call.as_ref().filter(|_| failure.is_none());
        let call = call.map(|call| call.applied_with(&self.changed_version(&row, pending, &next)));
        let entry = self.move_entry(&row, pending, &next, failure).of_call(call.transpose()?);
        let settled = self.settle(&row, next, Some(&entry)).await?;
        let row = settled.ok_or(OperationError::Stale)?;
        let from = pending.before.engine_version.clone();
        let is_host_failure = failure.is_some_and(|failure| failure.cause.is_host_failure());
        let failure = failure.map(|failure| rolled_back_error(failure.to_fleet_error(), &from));
        Ok(OperationResult::Moved(Box::new(MoveOutcome {
            row,
            previous_image: from,
            brain_copy: pending.brain_copy,
            failure,
            is_host_failure,
        })))
    }

    /// The answer to a call that moved an engine.
    fn changed_version(&self, row: &EngineRow, pending: &PendingMove, next: &NextState) -> ChangedVersion {
        let from = &pending.before.engine_version;
        ChangedVersion {
            engine_id: row.engine_id,
            status: status_after(pending.before.status, next),
            url: self.shared.last_url(row.engine_id, row.port),
            pinned: pending.pinned,
            crosses_major: from.major() != pending.image.major(),
            copied_brain_format: pending.brain_copy.and_then(|copy| copy.format),
            engine_version: pending.image.clone(),
            previous_version: from.clone(),
        }
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
        let to = status_after(from, next);
        let event = match to {
            EngineStatus::Sleeping => stop_event(Change::Sleep).0,
            EngineStatus::Stopped => stop_event(Change::Stop).0,
            EngineStatus::Failed if from != EngineStatus::Failed => Event::Crash,
            _ => Event::Start,
        };
        let mut detail = json!({
            "from": from, "to": to, "reason": pending.reason,
            "version": {"from": pending.before.engine_version, "to": pending.image, "pinned": pending.pinned},
            "outcome": if failure.is_some() { "taken_back" } else { "moved" },
        });
        if let (Value::Object(detail), Some(failure)) = (&mut detail, failure) {
            detail.insert("cause".to_owned(), failure.cause.audit_cause().into());
            detail.insert("message".to_owned(), failure.message().into());
            detail.insert("log".to_owned(), failure.log.clone().into());
        }
        self.transitions.audit_entry(row, event, detail).by(pending.actor)
    }
}

/// The state of an engine that was in `before` and goes on in `next`.
const fn status_after(before: EngineStatus, next: &NextState) -> EngineStatus {
    match next {
        NextState::Running { .. } => EngineStatus::Running,
        NextState::NotRunning(status) => *status,
        NextState::Failed { .. } => EngineStatus::Failed,
        NextState::Unchanged | NextState::KeyRotated(_) | NextState::Removed => before,
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
