//! What is requested of one engine, and what comes of it.

use std::sync::Arc;

use api::orchestrator::DenialReason;
use api::{EngineId, EngineImage};
use backend::BrainCopy;
use serde::Serialize;

use super::backup_transfers::{MaintenanceOrder, Transferred};
use super::error::FleetError;
use super::idempotency::Call;
use crate::domain::lifecycle::Trigger;
use crate::domain::{Actor, EngineOwner};
use crate::registry::{CallMark, ClaimRefused, ClaimingCall, EngineRow, RegistryError};

/// A request, with everything that is needed to perform it.
#[derive(Clone, Debug)]
pub(super) struct OperationRequest {
    pub(super) engine_owner: EngineOwner,
    pub(super) kind: RequestKind,
    /// The reason that the audit log records.
    pub(super) reason: &'static str,
    /// Who makes it.
    pub(super) actor: Actor,
    /// The call with an `Idempotency-Key` that it is made for.
    pub(super) call: Option<Call>,
}

/// What is requested: a [`Trigger`] with its data.
#[derive(Clone, Debug)]
pub(super) enum RequestKind {
    /// With this image, to which the engine is then pinned, or with the deployment's.
    Provision(Option<EngineImage>),
    Admit {
        provision: bool,
        wake: bool,
    },
    Start,
    Stop,
    Rotate,
    Sleep {
        if_idle: bool,
    },
    Restart {
        /// The generation of the row in which the engine had failed; a later failure schedules its own restart.
        generation: i64,
    },
    Destroy,
    Get,
    Proxy,
    ChangeVersion(VersionMove),
    /// To back it up although it does not run, or to restore it.
    Maintain(Arc<MaintenanceOrder>),
}

/// Where an engine is moved to.
#[derive(Clone, Debug)]
pub(super) enum VersionMove {
    /// To this image, to which it is then pinned.
    Pin(EngineImage),
    /// To the deployment's image, which it then follows.
    Follow,
    /// To the image of a rollout, which will be the deployment's.
    RollOut {
        image: EngineImage,
        /// Only if it does not run.
        if_idle: bool,
    },
    /// Back to the image that it had before a rollout.
    RollBack {
        image: EngineImage,
        /// The format of its brain before the rollout, if known.
        brain_format: Option<u32>,
        /// Whether what happened since may be lost.
        may_discard: bool,
    },
}

impl OperationRequest {
    pub(super) const fn new(owner: EngineOwner, kind: RequestKind, reason: &'static str) -> Self {
        Self { engine_owner: owner, kind, reason, actor: Actor::Implied, call: None }
    }

    /// The same request, made by `actor`.
    pub(super) fn by(self, actor: Actor) -> Self {
        Self { actor, ..self }
    }

    /// The same request, made for this call.
    pub(super) fn for_call(self, call: Option<&Call>) -> Self {
        Self { call: call.cloned(), ..self }
    }

    /// What the claim of the engine says of the call that it is made for.
    pub(super) fn claiming_call(&self) -> Option<ClaimingCall> {
        self.call.as_ref().map(Call::claiming)
    }

    /// Like [`OperationRequest::claiming_call`], if it is known by then how the call is answered once the change is made.
    pub(super) fn claiming_call_with<T: Serialize>(
        &self,
        answer: &T,
    ) -> Result<Option<ClaimingCall>, FleetError> {
        Ok(self.call.as_ref().map(|call| call.claiming_with(answer)).transpose()?)
    }

    /// What the transaction that commits the change says of the call.
    pub(super) fn applied_call<T: Serialize>(
        &self,
        answer: Option<&T>,
    ) -> Result<Option<CallMark>, FleetError> {
        let Some(call) = &self.call else { return Ok(None) };
        Ok(Some(answer.map_or_else(|| Ok(call.applied()), |answer| call.applied_with(answer))?))
    }

    /// The input of the decision table.
    pub(super) const fn trigger(&self) -> Trigger {
        match self.kind {
            RequestKind::Provision(_) => Trigger::Provision,
            RequestKind::Admit { provision, wake } => Trigger::Admit { provision, wake },
            RequestKind::Start => Trigger::Start,
            RequestKind::Stop => Trigger::Stop,
            RequestKind::Rotate => Trigger::Rotate,
            RequestKind::Sleep { if_idle } => Trigger::Sleep { if_idle },
            RequestKind::Restart { .. } => Trigger::Restart,
            RequestKind::Destroy => Trigger::Destroy,
            RequestKind::Get => Trigger::Get,
            RequestKind::Proxy => Trigger::Proxy,
            RequestKind::ChangeVersion(_) => Trigger::ChangeVersion,
            RequestKind::Maintain(_) => Trigger::Maintain,
        }
    }
}

/// The result of a request.
#[derive(Clone, Debug)]
pub(super) enum OperationResult {
    /// The engine as requested: it runs, or the caller only reads it.
    Engine(Box<EngineRow>),
    /// The engine does not run.
    NotRunning,
    /// The engine is removed.
    Destroyed(EngineId),
    /// Nothing was changed, and the user is not admitted.
    Denied(DenialReason),
    /// The engine was moved to another version, or rolled back; callers who did not request that decide again.
    Moved(Box<MoveOutcome>),
    /// The engine was backed up or restored, or is as it was; callers who did not request that decide again.
    Maintained(Result<Transferred, FleetError>),
}

/// The outcome of a move to another version.
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
    /// Whether the failure is one of the host, and says nothing about the engine.
    pub(super) is_host_failure: bool,
}

/// Why an operation ended without settling what its callers requested.
#[derive(Clone, Debug)]
pub(super) enum OperationError {
    /// The engine was not in the expected state, or was only repaired: decide again.
    Stale,
    /// A delete preempted the operation.
    Preempted,
    /// The operation failed.
    Failed(FleetError),
}

/// The outcome of an operation.
pub(super) type Outcome = Result<OperationResult, OperationError>;

impl From<ClaimRefused> for OperationError {
    fn from(refused: ClaimRefused) -> Self {
        match refused {
            // For an existing engine, the image is not judged here.
            ClaimRefused::Stale | ClaimRefused::ImageNotAllowed => Self::Stale,
            ClaimRefused::NoPort => FleetError::PortExhaustion.into(),
            ClaimRefused::Quota { max_engines } => FleetError::QuotaExceeded { max_engines }.into(),
            ClaimRefused::Suspended => FleetError::suspended().into(),
        }
    }
}

impl<E: Into<FleetError>> From<E> for OperationError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl OperationError {
    /// The error of an operation whose row could not be settled.
    pub(super) fn from_settle_error(error: RegistryError) -> Self {
        match error {
            RegistryError::ClaimLost { .. } => Self::Preempted,
            error => error.into(),
        }
    }
}
