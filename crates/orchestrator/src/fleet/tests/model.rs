//! The rules told one step after the other: what may happen at one user's seat, and what its callers may be
//! answered.
//!
//! A pure function from a seat and a call with its answer to the seats that this may lead to: none if the
//! answer is wrong there. A change that others can see or share has two steps: it begins, with a claim, and it
//! ends. All else is one step. What happens without a call, the end of a change say, is a step as well.
//! Written from the decisions, not from the code: it knows nothing of flights, rows and generations.

mod user_slot;

use api::orchestrator::{DenialReason, EngineStatus};

use crate::fleet::lifecycle::Refusal;

/// An engine's id, by the order in which a history shows it.
pub(super) type Id = u8;
/// An engine's key, likewise.
pub(super) type Key = u8;

/// What a call asks, or what happens to an engine from outside.
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
    /// The engine ended by itself. Nobody is answered: it is noticed at some time, if it still matters.
    Crash(Id),
}

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Response {
    Engine {
        status: EngineStatus,
        id: Id,
        key: Key,
    },
    /// Started, stopped, asleep, or as it happened.
    Done,
    Destroyed(Id),
    NewKey(Key),
    Denied(DenialReason),
    Refused(Refusal),
    Failed(Failure),
    /// The caller was not kept waiting any longer.
    OperationTimeout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Failure {
    Quota,
    Backend,
    BootTimeout,
}

/// What can happen in a history beside what is asked.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each may be so without the others")]
pub(super) struct Environment {
    /// How many engines the product may have.
    pub(super) quota: Option<usize>,
    /// The backend may fail.
    pub(super) faults: bool,
    /// Engines may end by themselves: each end is a call of its own.
    pub(super) exits: bool,
    /// It may take so long that callers who wait for several changes give up.
    pub(super) slow: bool,
    /// Engines may be found unwell at any time.
    pub(super) crashes: bool,
    /// Failed engines may be restarted at any time.
    pub(super) restarts: bool,
    /// Idle engines may be put to sleep at any time.
    pub(super) sleeps: bool,
    /// Keys may be rotated: then even those who only look may have to wait.
    pub(super) rotations: bool,
}

/// One user's place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct UserSlot {
    pub(super) engine: Option<Engine>,
    claim: Option<Claim>,
    /// The engines that are no more, as bits.
    past_ids: u64,
    /// The keys that hold no more, likewise.
    past_keys: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Engine {
    pub(super) status: EngineStatus,
    /// Not known before an answer tells.
    pub(super) id: Option<Id>,
    key: Option<Key>,
    /// It may have ended in a stop that failed.
    may_have_exited: bool,
}

/// A change under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Claim {
    change: Change,
    outcome: Outcome,
    /// Who made it, if they wait for it.
    owner: u64,
    /// Who shares it, as bits.
    waiters: u64,
    /// Nobody works on it: it is finished or undone at some time.
    abandoned: bool,
    /// The engine ended by itself meanwhile.
    crashed: bool,
}

impl Claim {
    /// Nobody's.
    const fn unowned(change: Change, outcome: Outcome) -> Self {
        Self { change, outcome, owner: 0, waiters: 0, abandoned: false, crashed: false }
    }

    /// Whether it may end without its end: a boot that failed whose remains stay, a key in doubt.
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
    /// A provision that does not get as far as a row.
    ProvisionAttempt,
    Provision,
    /// A start or a wake.
    Boot,
    Restart,
    Stop(EngineStatus),
    Rotate,
    Destroy,
}

/// What comes of a change: known beforehand, for the history tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Outcome {
    Unknown,
    Success,
    Failed(Failure),
    /// It fails, and nobody has been told how.
    FailedUnreported,
    Preempted,
}

impl Outcome {
    /// What is known of it, with what one more caller is told; none if both cannot be.
    fn merge(self, told: Self) -> Option<Self> {
        match (self, told) {
            (Self::Unknown, known) => Some(known),
            (Self::Failed(_), Self::FailedUnreported) => Some(self),
            (Self::FailedUnreported, Self::Failed(_)) => Some(told),
            _ => (self == told).then_some(self),
        }
    }

    const fn may_fail(self) -> bool {
        matches!(self, Self::Failed(_) | Self::FailedUnreported | Self::Unknown)
    }
}

/// Where a step leaves its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallerState {
    Answered,
    /// For the end of a change.
    Waiting,
    /// What they did came to nothing, and they look again.
    Retry,
}

pub(super) struct Step {
    pub(super) slot: UserSlot,
    pub(super) caller: CallerState,
    /// Others who have their answer by this step, as bits.
    pub(super) completed: u64,
}

/// A call at one moment.
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

impl CallContext<'_> {
    /// Where the call may lead, if it takes a step now.
    pub(super) fn steps(&self) -> Vec<Step> {
        let possible = match self.response {
            Response::Failed(Failure::Backend) => self.environment.faults || self.environment.exits,
            Response::Failed(Failure::BootTimeout) => self.environment.faults,
            Response::OperationTimeout => self.environment.faults || self.environment.slow,
            _ => true,
        };
        if !possible {
            return Vec::new();
        }
        let mut steps = self.steps_without_effect();
        steps.extend(match (&self.slot.engine, &self.slot.claim) {
            (None, None) => self.steps_without_engine(),
            (Some(engine), None) => self.steps_unclaimed(engine),
            (engine, Some(claim)) => self.steps_during_claim(engine.as_ref(), claim),
        });
        steps
    }

    /// Answers that may come at such a moment and change nothing.
    fn steps_without_effect(&self) -> Vec<Step> {
        let lost = self.slot.claim.as_ref().is_some_and(|claim| claim.abandoned);
        self.respond_if(match (self.request, self.response) {
            // Who only looks waits for a key that is in doubt, and for nothing else.
            (Request::Get, Response::OperationTimeout) => self.environment.rotations,
            (Request::Get, Response::Failed(Failure::Backend)) => lost && self.is_claimed_for(Change::Rotate),
            (Request::Get, _) => false,
            (Request::Crash(_), _) | (_, Response::OperationTimeout) => true,
            // What was left is finished first; or the backend was out of reach from the beginning.
            (ask, Response::Failed(Failure::Backend)) => {
                lost || ask == Request::Delete && self.slot.engine.is_some()
            }
            _ => false,
        })
    }

    fn is_claimed_for(&self, change: Change) -> bool {
        self.slot.claim.as_ref().is_some_and(|claim| claim.change == change)
    }

    fn steps_without_engine(&self) -> Vec<Step> {
        match self.request {
            Request::Provision | Request::Admit { provision: true, .. } => self.provision(),
            Request::Admit { provision: false, .. } => {
                self.respond_if(self.response == Response::Denied(DenialReason::EngineNotFound))
            }
            Request::Start
            | Request::Stop
            | Request::Sleep
            | Request::Delete
            | Request::Get
            | Request::Rotate => self.refuse(Refusal::NotFound),
            Request::Crash(_) => Vec::new(),
        }
    }

    fn provision(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let begin = |outcome, id, key, caller| {
            let mut seat = self.slot.clone();
            seat.engine =
                Some(Engine { status: EngineStatus::Provisioning, id, key, may_have_exited: false });
            self.begin_claim(seat, Change::Provision, outcome, caller)
        };
        let attempt = |failure| {
            self.begin_claim(
                self.slot.clone(),
                Change::ProvisionAttempt,
                Outcome::Failed(failure),
                CallerState::Waiting,
            )
        };
        match self.response {
            Response::Engine { status: EngineStatus::Running, id, key }
                if self.has_quota && self.slot.is_new(id) && self.slot.can_get_key(key) =>
            {
                steps.push(begin(Outcome::Success, Some(id), Some(key), CallerState::Waiting));
            }
            Response::Failed(Failure::Quota) if !self.has_quota => steps.push(attempt(Failure::Quota)),
            Response::Failed(failure @ (Failure::Backend | Failure::BootTimeout)) => {
                if failure == Failure::Backend && self.environment.faults {
                    steps.push(attempt(failure));
                }
                if self.has_quota {
                    steps.push(begin(Outcome::Failed(failure), None, None, CallerState::Waiting));
                }
            }
            Response::Refused(Refusal::NotFound) if self.request == Request::Provision && self.has_quota => {
                steps.push(begin(Outcome::Preempted, None, None, CallerState::Waiting));
            }
            Response::OperationTimeout if self.has_quota => {
                steps.push(begin(Outcome::Unknown, None, None, CallerState::Answered));
            }
            _ => {}
        }
        // One who is to be admitted goes on when a delete has ended what they began.
        if self.has_quota && matches!(self.request, Request::Admit { .. }) {
            steps.push(begin(Outcome::Preempted, None, None, CallerState::Retry));
        }
        steps
    }

    fn steps_unclaimed(&self, engine: &Engine) -> Vec<Step> {
        let denied = |reason| self.respond_if(self.response == Response::Denied(reason));
        match (self.request, engine.status) {
            (_, EngineStatus::Provisioning | EngineStatus::Destroying) => Vec::new(),
            (Request::Get, _) | (Request::Admit { .. }, EngineStatus::Running) => self.observe(engine.status),
            (Request::Provision, _) => self.refuse(Refusal::AlreadyExists),
            (Request::Admit { wake: true, .. }, EngineStatus::Sleeping) => self.boot(),
            (Request::Admit { .. }, EngineStatus::Sleeping) => denied(DenialReason::EngineSleeping),
            (Request::Admit { .. }, EngineStatus::Stopped) => denied(DenialReason::EngineStopped),
            // Of restarts that all work one brings it back while its user waits.
            (Request::Admit { .. }, EngineStatus::Failed)
                if self.environment.restarts && !self.environment.faults =>
            {
                Vec::new()
            }
            (Request::Admit { .. }, EngineStatus::Failed) => denied(DenialReason::EngineUnhealthy),
            (Request::Start, EngineStatus::Running) => self.refuse(Refusal::AlreadyRunning),
            (Request::Start, _) => self.boot(),
            (Request::Stop, EngineStatus::Running) => self.stop(EngineStatus::Stopped),
            (Request::Sleep, EngineStatus::Running) => self.stop(EngineStatus::Sleeping),
            (Request::Rotate, EngineStatus::Running) => self.rotate(),
            (Request::Stop | Request::Sleep | Request::Rotate, _) => self.refuse(Refusal::NotRunning),
            (Request::Delete, _) => self.destroy(0),
            (Request::Crash(id), EngineStatus::Running) => self.crash(id),
            (Request::Crash(_), _) => Vec::new(),
        }
    }

    fn steps_during_claim(&self, engine: Option<&Engine>, claim: &Claim) -> Vec<Step> {
        match (self.request, claim.change) {
            (Request::Get, change) if change != Change::Rotate => {
                engine.map_or_else(|| self.refuse(Refusal::NotFound), |engine| self.observe(engine.status))
            }
            (Request::Admit { provision: false, .. }, Change::ProvisionAttempt) => {
                self.steps_without_engine()
            }
            (Request::Provision, change) if change != Change::ProvisionAttempt => {
                self.refuse(Refusal::AlreadyExists)
            }
            (
                Request::Admit { .. },
                Change::ProvisionAttempt | Change::Provision | Change::Boot | Change::Restart,
            )
            | (Request::Start, Change::Boot | Change::Restart) => self.join(claim),
            (Request::Start, Change::Provision | Change::Rotate) => self.refuse(Refusal::AlreadyRunning),
            (
                Request::Stop | Request::Sleep | Request::Rotate,
                Change::Provision | Change::Boot | Change::Restart,
            ) => self.refuse(Refusal::NotRunning),
            (
                Request::Start | Request::Stop | Request::Sleep | Request::Rotate | Request::Delete,
                Change::ProvisionAttempt | Change::Destroy,
            ) => self.refuse(Refusal::NotFound),
            (Request::Delete, _) => {
                let ends = claim.abandoned || matches!(claim.outcome, Outcome::Unknown | Outcome::Preempted);
                if ends && claim.waiters == 0 { self.destroy(claim.owner) } else { Vec::new() }
            }
            (Request::Crash(id), Change::Provision | Change::Boot | Change::Restart) => {
                self.crash_during_boot(id, claim)
            }
            (Request::Crash(id), Change::Rotate) => self.crash(id),
            // These wait.
            (Request::Crash(_) | Request::Provision | Request::Get, _)
            | (Request::Admit { .. }, Change::Stop(_) | Change::Rotate | Change::Destroy)
            | (Request::Start, Change::Stop(_))
            | (Request::Stop | Request::Sleep | Request::Rotate, Change::Stop(_) | Change::Rotate) => {
                Vec::new()
            }
        }
    }

    /// The engine ends while it boots.
    fn crash_during_boot(&self, id: Id, claim: &Claim) -> Vec<Step> {
        let Some(outcome) = claim.outcome.merge(Outcome::FailedUnreported) else { return Vec::new() };
        let Some(mut seat) = self.slot.with_observed(id, None).filter(|_| !claim.abandoned) else {
            return Vec::new();
        };
        seat.claim = Some(Claim { crashed: true, outcome, ..claim.clone() });
        vec![self.step(seat, CallerState::Answered)]
    }

    /// The engine is found to have ended. A change of its key is settled by that: the old one holds.
    fn crash(&self, id: Id) -> Vec<Step> {
        let seat = self.slot.with_observed(id, None).map(|seat| seat.with_status(EngineStatus::Failed));
        let seat = seat.map(|seat| UserSlot { claim: None, ..seat });
        seat.map(|seat| self.step(seat, CallerState::Answered)).into_iter().collect()
    }

    fn boot(&self) -> Vec<Step> {
        let (seat, outcome, caller) = match (self.request, self.response) {
            (Request::Start, Response::Done) => {
                (Some(self.slot.clone()), Outcome::Success, CallerState::Waiting)
            }
            (Request::Admit { .. }, Response::Engine { status: EngineStatus::Running, id, key }) => {
                (self.slot.with_observed(id, Some(key)), Outcome::Success, CallerState::Waiting)
            }
            (_, Response::Failed(failure @ (Failure::Backend | Failure::BootTimeout))) => {
                (Some(self.slot.clone()), Outcome::Failed(failure), CallerState::Waiting)
            }
            (_, Response::OperationTimeout) => {
                (Some(self.slot.clone()), Outcome::Unknown, CallerState::Answered)
            }
            _ => return Vec::new(),
        };
        seat.map(|seat| self.begin_claim(seat, Change::Boot, outcome, caller)).into_iter().collect()
    }

    fn stop(&self, to: EngineStatus) -> Vec<Step> {
        match self.response {
            Response::Done => vec![self.step(self.slot.with_status(to), CallerState::Answered)],
            // Out of reach from the beginning, nothing has changed; lost in the middle, it is finished at some time.
            Response::Failed(Failure::Backend) => {
                let mut steps = vec![self.step(self.slot.with_possible_exit(), CallerState::Answered)];
                if self.environment.faults {
                    let mut step = self.begin_claim(
                        self.slot.clone(),
                        Change::Stop(to),
                        Outcome::Unknown,
                        CallerState::Answered,
                    );
                    step.slot.claim.as_mut().unwrap().abandoned = true;
                    steps.push(step);
                }
                steps
            }
            Response::OperationTimeout => {
                let seat = self.slot.clone();
                vec![self.begin_claim(seat, Change::Stop(to), Outcome::Unknown, CallerState::Answered)]
            }
            _ => Vec::new(),
        }
    }

    /// Nobody sees a rotation that ends, for all wait for it: it is one step. In doubt about the key it stays.
    fn rotate(&self) -> Vec<Step> {
        let unclear = |lost| {
            let mut step =
                self.begin_claim(self.slot.clone(), Change::Rotate, Outcome::Unknown, CallerState::Answered);
            step.slot.claim.as_mut().unwrap().abandoned = lost;
            step
        };
        match self.response {
            Response::NewKey(key) if self.slot.can_get_key(key) => {
                vec![self.step(self.slot.with_key(Some(key)), CallerState::Answered)]
            }
            Response::Failed(Failure::Backend) => {
                // The old key holds, or the engine had just ended.
                let seat =
                    if self.environment.exits { self.slot.with_possible_exit() } else { self.slot.clone() };
                let mut steps = vec![self.step(seat, CallerState::Answered)];
                steps.extend(self.environment.faults.then(|| unclear(true)));
                steps
            }
            Response::OperationTimeout => vec![unclear(false)],
            _ => Vec::new(),
        }
    }

    /// A delete that takes over whatever is under way, and answers `overtaken`.
    fn destroy(&self, overtaken: u64) -> Vec<Step> {
        let seat = match self.response {
            Response::Destroyed(id) => self.slot.with_observed(id, None),
            Response::Failed(Failure::Backend) | Response::OperationTimeout => Some(self.slot.clone()),
            _ => None,
        };
        let Some(seat) = seat.map(|seat| seat.with_status(EngineStatus::Destroying)) else {
            return Vec::new();
        };
        let lost = !matches!(self.response, Response::Destroyed(_));
        let caller = if lost { CallerState::Answered } else { CallerState::Waiting };
        let mut step = self.begin_claim(seat, Change::Destroy, Outcome::Success, caller);
        step.slot.claim.as_mut().unwrap().abandoned = lost;
        step.completed = overtaken;
        vec![step]
    }

    /// Shares the outcome of the change under way.
    fn join(&self, claim: &Claim) -> Vec<Step> {
        let (seat, told) = match (self.request, self.response) {
            (Request::Start, Response::Done) => (Some(self.slot.clone()), Outcome::Success),
            (Request::Admit { .. }, Response::Engine { status: EngineStatus::Running, id, key }) => {
                (self.slot.with_observed(id, Some(key)), Outcome::Success)
            }
            // The supervisor tries again.
            (Request::Admit { .. }, Response::Denied(DenialReason::EngineUnhealthy))
                if claim.change == Change::Restart =>
            {
                (Some(self.slot.clone()), Outcome::FailedUnreported)
            }
            (Request::Admit { .. }, Response::Failed(_)) if claim.change == Change::Restart => {
                return Vec::new();
            }
            (_, Response::Failed(failure)) => (Some(self.slot.clone()), Outcome::Failed(failure)),
            _ => return Vec::new(),
        };
        let outcome = claim.outcome.merge(told).filter(|_| !claim.abandoned);
        let (Some(mut seat), Some(outcome)) = (seat, outcome) else { return Vec::new() };
        let shared = Claim { outcome, waiters: claim.waiters | self.caller_bit, ..claim.clone() };
        seat.claim = Some(shared);
        vec![self.step(seat, CallerState::Waiting)]
    }

    /// The caller sees the engine in this state.
    fn observe(&self, state: EngineStatus) -> Vec<Step> {
        let Response::Engine { status, id, key } = self.response else { return Vec::new() };
        let seat = self.slot.with_observed(id, Some(key)).filter(|_| status == state);
        seat.map(|seat| self.step(seat, CallerState::Answered)).into_iter().collect()
    }

    fn refuse(&self, refusal: Refusal) -> Vec<Step> {
        self.respond_if(self.response == Response::Refused(refusal))
    }

    fn respond_if(&self, fits: bool) -> Vec<Step> {
        if fits { vec![self.step(self.slot.clone(), CallerState::Answered)] } else { Vec::new() }
    }

    fn begin_claim(&self, mut seat: UserSlot, change: Change, outcome: Outcome, caller: CallerState) -> Step {
        let owner = if caller == CallerState::Waiting { self.caller_bit } else { 0 };
        seat.claim = Some(Claim { owner, ..Claim::unowned(change, outcome) });
        self.step(seat, caller)
    }

    #[expect(clippy::unused_self, reason = "it is a step of this moment")]
    const fn step(&self, seat: UserSlot, caller: CallerState) -> Step {
        Step { slot: seat, caller, completed: 0 }
    }
}
