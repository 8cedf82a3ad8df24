//! A sequential model of the fleet's rules: what may happen to the engine of one user, and which responses its
//! callers may get.
//!
//! The model is a pure function from a slot and a call with its response to the slots that this may lead to; there
//! is none if the response is wrong. A change that others can see or share has two steps: its beginning, with a
//! claim, and its end. Everything else is one step. What happens without a call, such as the end of a change, is a
//! step too. It is written from the decision records, not from the code: it knows nothing of operations, rows and
//! generations.

mod call_steps;
mod user_slot;

use api::orchestrator::{DenialReason, EngineStatus};

use crate::domain::lifecycle::Refusal;

/// An engine's id: its number in the order in which the history shows ids.
pub(super) type Id = u8;
/// An engine's key, numbered likewise.
pub(super) type Key = u8;

/// The request of a call, or something that happens to an engine from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Provision,
    Admit {
        provision: bool,
        wake: bool,
    },
    Start,
    Stop,
    Delete,
    Get,
    Rotate,
    /// Put to sleep by the orchestrator itself.
    Sleep,
    /// The engine exited by itself. It gets no response, and is noticed at some time if it still matters.
    Crash(Id),
}

/// The response to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Response {
    Engine {
        status: EngineStatus,
        id: Id,
        key: Key,
    },
    /// The engine was started, stopped or put to sleep, or the event happened.
    Done,
    Destroyed(Id),
    NewKey(Key),
    Denied(DenialReason),
    Refused(Refusal),
    Failed(Failure),
    /// The call reached its time limit.
    OperationTimeout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Failure {
    Quota,
    Backend,
    BootTimeout,
}

/// What can happen in a history besides the calls.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct Environment {
    /// The number of engines that the product may have.
    pub(super) quota: Option<usize>,
    /// The backend may fail.
    pub(super) faults: bool,
    /// Engines may exit by themselves: each exit is a call of its own.
    pub(super) exits: bool,
    /// Changes may take so long that callers who wait for several of them give up.
    pub(super) slow: bool,
    /// Engines may be found unhealthy at any time.
    pub(super) crashes: bool,
    /// Failed engines may be restarted at any time.
    pub(super) restarts: bool,
    /// Idle engines may be put to sleep at any time.
    pub(super) sleeps: bool,
    /// Keys may be rotated: then even calls that only read may have to wait.
    pub(super) rotations: bool,
}

/// The state of one user: their engine and the change under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct UserSlot {
    pub(super) engine: Option<Engine>,
    claim: Option<Claim>,
    /// The ids of deleted engines, as bits.
    past_ids: u64,
    /// The keys that are not valid any more, as bits.
    past_keys: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Engine {
    pub(super) status: EngineStatus,
    /// `None` until a response shows it.
    pub(super) id: Option<Id>,
    key: Option<Key>,
    /// Whether it may have exited in a stop that failed.
    may_have_exited: bool,
}

/// A change under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Claim {
    change: Change,
    outcome: Outcome,
    /// The caller who began it, as a bit, if they wait for it.
    owner: u64,
    /// The callers who share it, as bits.
    waiters: u64,
    /// Nobody works on it: it is completed or rolled back at some time.
    abandoned: bool,
    /// The engine exited by itself meanwhile.
    crashed: bool,
}

impl Claim {
    /// A claim that no caller waits for.
    const fn unowned(change: Change, outcome: Outcome) -> Self {
        Self { change, outcome, owner: 0, waiters: 0, abandoned: false, crashed: false }
    }

    /// Whether it may be abandoned: a failed boot whose remains could not be removed, or a key in doubt.
    const fn may_be_abandoned(&self) -> bool {
        match self.change {
            Change::Provision | Change::Boot | Change::Restart => !self.abandoned && self.outcome.may_fail(),
            Change::Rotate => !self.abandoned,
            Change::ProvisionAttempt | Change::Stop(_) | Change::Destroy => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Change {
    /// A provision that fails before it has a row.
    ProvisionAttempt,
    Provision,
    /// A start or a wake.
    Boot,
    Restart,
    Stop(EngineStatus),
    Rotate,
    Destroy,
}

/// The outcome of a change. It is known in advance, because the history shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Outcome {
    Unknown,
    Success,
    Failed(Failure),
    /// It fails, and no response has shown how.
    FailedUnreported,
    Preempted,
}

impl Outcome {
    /// The outcome with what one more response shows of it; `None` if the two contradict each other.
    fn merge(self, reported: Self) -> Option<Self> {
        match (self, reported) {
            (Self::Unknown, known) => Some(known),
            (Self::Failed(_), Self::FailedUnreported) => Some(self),
            (Self::FailedUnreported, Self::Failed(_)) => Some(reported),
            _ => (self == reported).then_some(self),
        }
    }

    const fn may_fail(self) -> bool {
        matches!(self, Self::Failed(_) | Self::FailedUnreported | Self::Unknown)
    }
}

/// The state of the caller after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallerState {
    Answered,
    /// The caller waits for the end of a change.
    Waiting,
    /// The change had no effect, and the caller decides again.
    Retry,
}

pub(super) struct Step {
    pub(super) slot: UserSlot,
    pub(super) caller: CallerState,
    /// The other callers whose calls this step completes, as bits.
    pub(super) completed: u64,
}

/// A call, and the state in which it takes a step.
pub(super) struct CallContext<'a> {
    pub(super) environment: &'a Environment,
    pub(super) slot: &'a UserSlot,
    /// Whether the product may have one more engine.
    pub(super) has_quota: bool,
    /// The caller, as a bit.
    pub(super) caller_bit: u64,
    pub(super) request: Request,
    pub(super) response: Response,
}
