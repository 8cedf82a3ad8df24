//! How the steps of a turn end, and why a turn stops running.

use api::TurnId;
use api::event::{Failure, StopReason};
use store::WriteError;

use super::AgentError;
use super::turn_registry::Reply;

/// Why a turn stops running.
pub(super) enum Interrupt {
    /// The turn failed and reports the failure to clients.
    Failed(Failure),
    /// The user cancelled the turn.
    Cancelled(Reply<TurnId>),
    /// The engine stops. The turn is resumed at the next start.
    EngineStopping,
    /// The brain cannot be written, so no event can be sent. The turn stays open until it can.
    StoreUnavailable(WriteError),
}

impl From<WriteError> for Interrupt {
    fn from(error: WriteError) -> Self {
        Self::StoreUnavailable(error)
    }
}

/// How a model step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    /// The model answered.
    Answered,
    /// The model was not called because that would exceed a budget.
    BudgetExhausted,
}

/// How a run of the steps of a conversation ended.
pub(super) enum StepsOutcome {
    /// Nothing is left to do, for this reason.
    Complete(StopReason),
    /// The conversation waits for the user.
    AwaitingHuman,
}

/// Answers a command with `value` if the commit succeeded, else with its error.
pub(super) fn reply_committed<T>(
    reply: Reply<T>,
    value: T,
    committed: Result<(), WriteError>,
) -> Result<(), WriteError> {
    // The caller may be gone.
    let _ = reply.send(committed.clone().map(|()| value).map_err(AgentError::from));
    committed
}
