//! The rules told one step after the other: what may happen at one user's seat, and what its callers may be
//! answered.
//!
//! A pure function from a seat and a call with its answer to the seats that this may lead to: none if the
//! answer is wrong there. A change that others can see or share has two steps: it begins, with a claim, and it
//! ends. All else is one step. What happens without a call, the end of a change say, is a step as well.
//! Written from the decisions, not from the code: it knows nothing of flights, rows and generations.

mod seat;

use contract::orchestrator::{DenialReason, EngineStatus};

use crate::fleet::lifecycle::Refusal;

/// An engine's id, by the order in which a history shows it.
pub(super) type Id = u8;
/// An engine's key, likewise.
pub(super) type Key = u8;

/// What a call asks, or what happens to an engine from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
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
pub(super) enum Answer {
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
    TooSlow,
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
pub(super) struct World {
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
pub(super) struct Seat {
    pub(super) engine: Option<Engine>,
    claim: Option<Claim>,
    /// The engines that are no more, as bits.
    past: u64,
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
    suspect: bool,
}

/// A change under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Claim {
    change: Change,
    outcome: Outcome,
    /// Who made it, if they wait for it.
    owner: u64,
    /// Who shares it, as bits.
    joined: u64,
    /// Nobody works on it: it is finished or undone at some time.
    lost: bool,
    /// The engine ended by itself meanwhile.
    struck: bool,
}

impl Claim {
    /// Nobody's.
    const fn of(change: Change, outcome: Outcome) -> Self {
        Self { change, outcome, owner: 0, joined: 0, lost: false, struck: false }
    }

    /// Whether it may end without its end: a boot that failed whose remains stay, a key in doubt.
    const fn may_be_lost(&self) -> bool {
        match self.change {
            Change::Provision | Change::Boot | Change::Restart => !self.lost && self.outcome.is_ill(),
            Change::Rotate => !self.lost,
            Change::Attempt | Change::Rest(_) | Change::Destroy => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Change {
    /// A provision that does not get as far as a row.
    Attempt,
    Provision,
    /// A start or a wake.
    Boot,
    Restart,
    Rest(EngineStatus),
    Rotate,
    Destroy,
}

/// What comes of a change: known beforehand, for the history tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Outcome {
    Open,
    Well,
    Failed(Failure),
    /// It fails, and nobody has been told how.
    Ill,
    Overtaken,
}

impl Outcome {
    /// What is known of it, with what one more caller is told; none if both cannot be.
    fn and(self, told: Self) -> Option<Self> {
        match (self, told) {
            (Self::Open, known) => Some(known),
            (Self::Failed(_), Self::Ill) => Some(self),
            (Self::Ill, Self::Failed(_)) => Some(told),
            _ => (self == told).then_some(self),
        }
    }

    const fn is_ill(self) -> bool {
        matches!(self, Self::Failed(_) | Self::Ill | Self::Open)
    }
}

/// Where a step leaves its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    Answered,
    /// For the end of a change.
    Waiting,
    /// What they did came to nothing, and they look again.
    Again,
}

pub(super) struct Step {
    pub(super) seat: Seat,
    pub(super) caller: Caller,
    /// Others who have their answer by this step, as bits.
    pub(super) landed: u64,
}

/// A call at one moment.
pub(super) struct Moment<'a> {
    pub(super) world: &'a World,
    pub(super) seat: &'a Seat,
    /// Whether the product may have one more engine.
    pub(super) room: bool,
    /// The caller, as a bit.
    pub(super) who: u64,
    pub(super) ask: Ask,
    pub(super) answer: Answer,
}

impl Moment<'_> {
    /// Where the call may lead, if it takes a step now.
    pub(super) fn steps(&self) -> Vec<Step> {
        let possible = match self.answer {
            Answer::Failed(Failure::Backend) => self.world.faults || self.world.exits,
            Answer::Failed(Failure::BootTimeout) => self.world.faults,
            Answer::TooSlow => self.world.faults || self.world.slow,
            _ => true,
        };
        if !possible {
            return Vec::new();
        }
        let mut steps = self.without_effect();
        steps.extend(match (&self.seat.engine, &self.seat.claim) {
            (None, None) => self.nobody(),
            (Some(engine), None) => self.settled(engine),
            (engine, Some(claim)) => self.meanwhile(engine.as_ref(), claim),
        });
        steps
    }

    /// Answers that may come at such a moment and change nothing.
    fn without_effect(&self) -> Vec<Step> {
        let lost = self.seat.claim.as_ref().is_some_and(|claim| claim.lost);
        self.answered_if(match (self.ask, self.answer) {
            // Who only looks waits for a key that is in doubt, and for nothing else.
            (Ask::Get, Answer::TooSlow) => self.world.rotations,
            (Ask::Get, Answer::Failed(Failure::Backend)) => lost && self.is_claimed_for(Change::Rotate),
            (Ask::Get, _) => false,
            (Ask::Crash(_), _) | (_, Answer::TooSlow) => true,
            // What was left is finished first; or the backend was out of reach from the beginning.
            (ask, Answer::Failed(Failure::Backend)) => {
                lost || ask == Ask::Delete && self.seat.engine.is_some()
            }
            _ => false,
        })
    }

    fn is_claimed_for(&self, change: Change) -> bool {
        self.seat.claim.as_ref().is_some_and(|claim| claim.change == change)
    }

    fn nobody(&self) -> Vec<Step> {
        match self.ask {
            Ask::Provision | Ask::Admit { provision: true, .. } => self.provision(),
            Ask::Admit { provision: false, .. } => {
                self.answered_if(self.answer == Answer::Denied(DenialReason::EngineNotFound))
            }
            Ask::Start | Ask::Stop | Ask::Sleep | Ask::Delete | Ask::Get | Ask::Rotate => {
                self.refused(Refusal::NotFound)
            }
            Ask::Crash(_) => Vec::new(),
        }
    }

    fn provision(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let begin = |outcome, id, key, caller| {
            let mut seat = self.seat.clone();
            seat.engine = Some(Engine { status: EngineStatus::Provisioning, id, key, suspect: false });
            self.claim(seat, Change::Provision, outcome, caller)
        };
        let attempt = |failure| {
            self.claim(self.seat.clone(), Change::Attempt, Outcome::Failed(failure), Caller::Waiting)
        };
        match self.answer {
            Answer::Engine { status: EngineStatus::Running, id, key }
                if self.room && self.seat.is_new(id) && self.seat.may_hold(key) =>
            {
                steps.push(begin(Outcome::Well, Some(id), Some(key), Caller::Waiting));
            }
            Answer::Failed(Failure::Quota) if !self.room => steps.push(attempt(Failure::Quota)),
            Answer::Failed(failure @ (Failure::Backend | Failure::BootTimeout)) => {
                if failure == Failure::Backend && self.world.faults {
                    steps.push(attempt(failure));
                }
                if self.room {
                    steps.push(begin(Outcome::Failed(failure), None, None, Caller::Waiting));
                }
            }
            Answer::Refused(Refusal::NotFound) if self.ask == Ask::Provision && self.room => {
                steps.push(begin(Outcome::Overtaken, None, None, Caller::Waiting));
            }
            Answer::TooSlow if self.room => steps.push(begin(Outcome::Open, None, None, Caller::Answered)),
            _ => {}
        }
        // One who is to be admitted goes on when a delete has ended what they began.
        if self.room && matches!(self.ask, Ask::Admit { .. }) {
            steps.push(begin(Outcome::Overtaken, None, None, Caller::Again));
        }
        steps
    }

    fn settled(&self, engine: &Engine) -> Vec<Step> {
        let denied = |reason| self.answered_if(self.answer == Answer::Denied(reason));
        match (self.ask, engine.status) {
            (_, EngineStatus::Provisioning | EngineStatus::Destroying) => Vec::new(),
            (Ask::Get, _) | (Ask::Admit { .. }, EngineStatus::Running) => self.sees(engine.status),
            (Ask::Provision, _) => self.refused(Refusal::AlreadyExists),
            (Ask::Admit { wake: true, .. }, EngineStatus::Sleeping) => self.boot(),
            (Ask::Admit { .. }, EngineStatus::Sleeping) => denied(DenialReason::EngineSleeping),
            (Ask::Admit { .. }, EngineStatus::Stopped) => denied(DenialReason::EngineStopped),
            // Of restarts that all work one brings it back while its user waits.
            (Ask::Admit { .. }, EngineStatus::Failed) if self.world.restarts && !self.world.faults => {
                Vec::new()
            }
            (Ask::Admit { .. }, EngineStatus::Failed) => denied(DenialReason::EngineUnhealthy),
            (Ask::Start, EngineStatus::Running) => self.refused(Refusal::AlreadyRunning),
            (Ask::Start, _) => self.boot(),
            (Ask::Stop, EngineStatus::Running) => self.rest(EngineStatus::Stopped),
            (Ask::Sleep, EngineStatus::Running) => self.rest(EngineStatus::Sleeping),
            (Ask::Rotate, EngineStatus::Running) => self.rotate(),
            (Ask::Stop | Ask::Sleep | Ask::Rotate, _) => self.refused(Refusal::NotRunning),
            (Ask::Delete, _) => self.destroy(0),
            (Ask::Crash(id), EngineStatus::Running) => self.crashes(id),
            (Ask::Crash(_), _) => Vec::new(),
        }
    }

    fn meanwhile(&self, engine: Option<&Engine>, claim: &Claim) -> Vec<Step> {
        match (self.ask, claim.change) {
            (Ask::Get, change) if change != Change::Rotate => {
                engine.map_or_else(|| self.refused(Refusal::NotFound), |engine| self.sees(engine.status))
            }
            (Ask::Admit { provision: false, .. }, Change::Attempt) => self.nobody(),
            (Ask::Provision, change) if change != Change::Attempt => self.refused(Refusal::AlreadyExists),
            (Ask::Admit { .. }, Change::Attempt | Change::Provision | Change::Boot | Change::Restart)
            | (Ask::Start, Change::Boot | Change::Restart) => self.join(claim),
            (Ask::Start, Change::Provision | Change::Rotate) => self.refused(Refusal::AlreadyRunning),
            (Ask::Stop | Ask::Sleep | Ask::Rotate, Change::Provision | Change::Boot | Change::Restart) => {
                self.refused(Refusal::NotRunning)
            }
            (
                Ask::Start | Ask::Stop | Ask::Sleep | Ask::Rotate | Ask::Delete,
                Change::Attempt | Change::Destroy,
            ) => self.refused(Refusal::NotFound),
            (Ask::Delete, _) => {
                let ends = claim.lost || matches!(claim.outcome, Outcome::Open | Outcome::Overtaken);
                if ends && claim.joined == 0 { self.destroy(claim.owner) } else { Vec::new() }
            }
            (Ask::Crash(id), Change::Provision | Change::Boot | Change::Restart) => self.strikes(id, claim),
            (Ask::Crash(id), Change::Rotate) => self.crashes(id),
            // These wait.
            (Ask::Crash(_) | Ask::Provision | Ask::Get, _)
            | (Ask::Admit { .. }, Change::Rest(_) | Change::Rotate | Change::Destroy)
            | (Ask::Start, Change::Rest(_))
            | (Ask::Stop | Ask::Sleep | Ask::Rotate, Change::Rest(_) | Change::Rotate) => Vec::new(),
        }
    }

    /// The engine ends while it boots.
    fn strikes(&self, id: Id, claim: &Claim) -> Vec<Step> {
        let Some(outcome) = claim.outcome.and(Outcome::Ill) else { return Vec::new() };
        let Some(mut seat) = self.seat.known(id, None).filter(|_| !claim.lost) else { return Vec::new() };
        seat.claim = Some(Claim { struck: true, outcome, ..claim.clone() });
        vec![self.step(seat, Caller::Answered)]
    }

    /// The engine is found to have ended. A change of its key is settled by that: the old one holds.
    fn crashes(&self, id: Id) -> Vec<Step> {
        let seat = self.seat.known(id, None).map(|seat| seat.moved(EngineStatus::Failed));
        let seat = seat.map(|seat| Seat { claim: None, ..seat });
        seat.map(|seat| self.step(seat, Caller::Answered)).into_iter().collect()
    }

    fn boot(&self) -> Vec<Step> {
        let (seat, outcome, caller) = match (self.ask, self.answer) {
            (Ask::Start, Answer::Done) => (Some(self.seat.clone()), Outcome::Well, Caller::Waiting),
            (Ask::Admit { .. }, Answer::Engine { status: EngineStatus::Running, id, key }) => {
                (self.seat.known(id, Some(key)), Outcome::Well, Caller::Waiting)
            }
            (_, Answer::Failed(failure @ (Failure::Backend | Failure::BootTimeout))) => {
                (Some(self.seat.clone()), Outcome::Failed(failure), Caller::Waiting)
            }
            (_, Answer::TooSlow) => (Some(self.seat.clone()), Outcome::Open, Caller::Answered),
            _ => return Vec::new(),
        };
        seat.map(|seat| self.claim(seat, Change::Boot, outcome, caller)).into_iter().collect()
    }

    fn rest(&self, to: EngineStatus) -> Vec<Step> {
        match self.answer {
            Answer::Done => vec![self.step(self.seat.moved(to), Caller::Answered)],
            // Out of reach from the beginning, nothing has changed; lost in the middle, it is finished at some time.
            Answer::Failed(Failure::Backend) => {
                let mut steps = vec![self.step(self.seat.suspected(), Caller::Answered)];
                if self.world.faults {
                    let mut step =
                        self.claim(self.seat.clone(), Change::Rest(to), Outcome::Open, Caller::Answered);
                    step.seat.claim.as_mut().unwrap().lost = true;
                    steps.push(step);
                }
                steps
            }
            Answer::TooSlow => {
                let seat = self.seat.clone();
                vec![self.claim(seat, Change::Rest(to), Outcome::Open, Caller::Answered)]
            }
            _ => Vec::new(),
        }
    }

    /// Nobody sees a rotation that ends, for all wait for it: it is one step. In doubt about the key it stays.
    fn rotate(&self) -> Vec<Step> {
        let unclear = |lost| {
            let mut step = self.claim(self.seat.clone(), Change::Rotate, Outcome::Open, Caller::Answered);
            step.seat.claim.as_mut().unwrap().lost = lost;
            step
        };
        match self.answer {
            Answer::NewKey(key) if self.seat.may_hold(key) => {
                vec![self.step(self.seat.keyed(Some(key)), Caller::Answered)]
            }
            Answer::Failed(Failure::Backend) => {
                // The old key holds, or the engine had just ended.
                let seat = if self.world.exits { self.seat.suspected() } else { self.seat.clone() };
                let mut steps = vec![self.step(seat, Caller::Answered)];
                steps.extend(self.world.faults.then(|| unclear(true)));
                steps
            }
            Answer::TooSlow => vec![unclear(false)],
            _ => Vec::new(),
        }
    }

    /// A delete that takes over whatever is under way, and answers `overtaken`.
    fn destroy(&self, overtaken: u64) -> Vec<Step> {
        let seat = match self.answer {
            Answer::Destroyed(id) => self.seat.known(id, None),
            Answer::Failed(Failure::Backend) | Answer::TooSlow => Some(self.seat.clone()),
            _ => None,
        };
        let Some(seat) = seat.map(|seat| seat.moved(EngineStatus::Destroying)) else { return Vec::new() };
        let lost = !matches!(self.answer, Answer::Destroyed(_));
        let caller = if lost { Caller::Answered } else { Caller::Waiting };
        let mut step = self.claim(seat, Change::Destroy, Outcome::Well, caller);
        step.seat.claim.as_mut().unwrap().lost = lost;
        step.landed = overtaken;
        vec![step]
    }

    /// Shares the outcome of the change under way.
    fn join(&self, claim: &Claim) -> Vec<Step> {
        let (seat, told) = match (self.ask, self.answer) {
            (Ask::Start, Answer::Done) => (Some(self.seat.clone()), Outcome::Well),
            (Ask::Admit { .. }, Answer::Engine { status: EngineStatus::Running, id, key }) => {
                (self.seat.known(id, Some(key)), Outcome::Well)
            }
            // The supervisor tries again.
            (Ask::Admit { .. }, Answer::Denied(DenialReason::EngineUnhealthy))
                if claim.change == Change::Restart =>
            {
                (Some(self.seat.clone()), Outcome::Ill)
            }
            (Ask::Admit { .. }, Answer::Failed(_)) if claim.change == Change::Restart => return Vec::new(),
            (_, Answer::Failed(failure)) => (Some(self.seat.clone()), Outcome::Failed(failure)),
            _ => return Vec::new(),
        };
        let outcome = claim.outcome.and(told).filter(|_| !claim.lost);
        let (Some(mut seat), Some(outcome)) = (seat, outcome) else { return Vec::new() };
        let shared = Claim { outcome, joined: claim.joined | self.who, ..claim.clone() };
        seat.claim = Some(shared);
        vec![self.step(seat, Caller::Waiting)]
    }

    /// The caller sees the engine in this state.
    fn sees(&self, state: EngineStatus) -> Vec<Step> {
        let Answer::Engine { status, id, key } = self.answer else { return Vec::new() };
        let seat = self.seat.known(id, Some(key)).filter(|_| status == state);
        seat.map(|seat| self.step(seat, Caller::Answered)).into_iter().collect()
    }

    fn refused(&self, refusal: Refusal) -> Vec<Step> {
        self.answered_if(self.answer == Answer::Refused(refusal))
    }

    fn answered_if(&self, fits: bool) -> Vec<Step> {
        if fits { vec![self.step(self.seat.clone(), Caller::Answered)] } else { Vec::new() }
    }

    fn claim(&self, mut seat: Seat, change: Change, outcome: Outcome, caller: Caller) -> Step {
        let owner = if caller == Caller::Waiting { self.who } else { 0 };
        seat.claim = Some(Claim { owner, ..Claim::of(change, outcome) });
        self.step(seat, caller)
    }

    #[expect(clippy::unused_self, reason = "it is a step of this moment")]
    const fn step(&self, seat: Seat, caller: Caller) -> Step {
        Step { seat, caller, landed: 0 }
    }
}
