//! The steps that a call may take in the model.

use super::*;

impl CallContext<'_> {
    /// The steps that the call may take now.
    pub(in crate::fleet::tests) fn steps(&self) -> Vec<Step> {
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

    /// The steps whose response is possible in any state and changes nothing.
    fn steps_without_effect(&self) -> Vec<Step> {
        let abandoned = self.slot.claim.as_ref().is_some_and(|claim| claim.abandoned);
        self.respond_if(match (self.request, self.response) {
            // A read waits for a key that is in doubt, and for nothing else.
            (Request::Get, Response::OperationTimeout) => self.environment.rotations,
            (Request::Get, Response::Failed(Failure::Backend)) => {
                abandoned && self.is_claimed_for(Change::Rotate)
            }
            (Request::Get, _) => false,
            (Request::Crash(_), _) | (_, Response::OperationTimeout) => true,
            // An abandoned change is completed first; or the backend was unreachable from the start.
            (request, Response::Failed(Failure::Backend)) => {
                abandoned || request == Request::Delete && self.slot.engine.is_some()
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
            let mut slot = self.slot.clone();
            slot.engine =
                Some(Engine { status: EngineStatus::Provisioning, id, key, may_have_exited: false });
            self.begin_claim(slot, Change::Provision, outcome, caller)
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
        // An admit decides again when a delete has preempted its provision.
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
            // If no restart fails, one of them succeeds while the user waits.
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
            // These calls wait.
            (Request::Crash(_) | Request::Provision | Request::Get, _)
            | (Request::Admit { .. }, Change::Stop(_) | Change::Rotate | Change::Destroy)
            | (Request::Start, Change::Stop(_))
            | (Request::Stop | Request::Sleep | Request::Rotate, Change::Stop(_) | Change::Rotate) => {
                Vec::new()
            }
        }
    }

    /// The engine exits while it boots.
    fn crash_during_boot(&self, id: Id, claim: &Claim) -> Vec<Step> {
        let Some(outcome) = claim.outcome.merge(Outcome::FailedUnreported) else { return Vec::new() };
        let Some(mut slot) = self.slot.with_observed(id, None).filter(|_| !claim.abandoned) else {
            return Vec::new();
        };
        slot.claim = Some(Claim { crashed: true, outcome, ..claim.clone() });
        vec![self.step(slot, CallerState::Answered)]
    }

    /// The engine is found to have exited. That settles a rotation: the old key stays valid.
    fn crash(&self, id: Id) -> Vec<Step> {
        let slot = self.slot.with_observed(id, None).map(|slot| slot.with_status(EngineStatus::Failed));
        let slot = slot.map(|slot| UserSlot { claim: None, ..slot });
        slot.map(|slot| self.step(slot, CallerState::Answered)).into_iter().collect()
    }

    fn boot(&self) -> Vec<Step> {
        let (slot, outcome, caller) = match (self.request, self.response) {
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
        slot.map(|slot| self.begin_claim(slot, Change::Boot, outcome, caller)).into_iter().collect()
    }

    fn stop(&self, to: EngineStatus) -> Vec<Step> {
        match self.response {
            Response::Done => vec![self.step(self.slot.with_status(to), CallerState::Answered)],
            // If the backend was unreachable from the start, nothing has changed; an interrupted stop is completed
            // later.
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
                let slot = self.slot.clone();
                vec![self.begin_claim(slot, Change::Stop(to), Outcome::Unknown, CallerState::Answered)]
            }
            _ => Vec::new(),
        }
    }

    /// A rotation is one step, because all callers wait for its end. If the key is in doubt, the claim stays.
    fn rotate(&self) -> Vec<Step> {
        let begin_unresolved = |abandoned| {
            let mut step =
                self.begin_claim(self.slot.clone(), Change::Rotate, Outcome::Unknown, CallerState::Answered);
            step.slot.claim.as_mut().unwrap().abandoned = abandoned;
            step
        };
        match self.response {
            Response::NewKey(key) if self.slot.can_get_key(key) => {
                vec![self.step(self.slot.with_key(Some(key)), CallerState::Answered)]
            }
            Response::Failed(Failure::Backend) => {
                // The old key is valid, or the engine had just exited.
                let slot =
                    if self.environment.exits { self.slot.with_possible_exit() } else { self.slot.clone() };
                let mut steps = vec![self.step(slot, CallerState::Answered)];
                steps.extend(self.environment.faults.then(|| begin_unresolved(true)));
                steps
            }
            Response::OperationTimeout => vec![begin_unresolved(false)],
            _ => Vec::new(),
        }
    }

    /// A delete that preempts the change under way and completes the calls of `preempted`.
    fn destroy(&self, preempted: u64) -> Vec<Step> {
        let slot = match self.response {
            Response::Destroyed(id) => self.slot.with_observed(id, None),
            Response::Failed(Failure::Backend) | Response::OperationTimeout => Some(self.slot.clone()),
            _ => None,
        };
        let Some(slot) = slot.map(|slot| slot.with_status(EngineStatus::Destroying)) else {
            return Vec::new();
        };
        let abandoned = !matches!(self.response, Response::Destroyed(_));
        let caller = if abandoned { CallerState::Answered } else { CallerState::Waiting };
        let mut step = self.begin_claim(slot, Change::Destroy, Outcome::Success, caller);
        step.slot.claim.as_mut().unwrap().abandoned = abandoned;
        step.completed = preempted;
        vec![step]
    }

    /// Shares the outcome of the change under way.
    fn join(&self, claim: &Claim) -> Vec<Step> {
        let (slot, reported) = match (self.request, self.response) {
            (Request::Start, Response::Done) => (Some(self.slot.clone()), Outcome::Success),
            (Request::Admit { .. }, Response::Engine { status: EngineStatus::Running, id, key }) => {
                (self.slot.with_observed(id, Some(key)), Outcome::Success)
            }
            // The supervisor retries.
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
        let outcome = claim.outcome.merge(reported).filter(|_| !claim.abandoned);
        let (Some(mut slot), Some(outcome)) = (slot, outcome) else { return Vec::new() };
        let shared = Claim { outcome, waiters: claim.waiters | self.caller_bit, ..claim.clone() };
        slot.claim = Some(shared);
        vec![self.step(slot, CallerState::Waiting)]
    }

    /// The caller reads the engine in this state.
    fn observe(&self, state: EngineStatus) -> Vec<Step> {
        let Response::Engine { status, id, key } = self.response else { return Vec::new() };
        let slot = self.slot.with_observed(id, Some(key)).filter(|_| status == state);
        slot.map(|slot| self.step(slot, CallerState::Answered)).into_iter().collect()
    }

    fn refuse(&self, refusal: Refusal) -> Vec<Step> {
        self.respond_if(self.response == Response::Refused(refusal))
    }

    fn respond_if(&self, fits: bool) -> Vec<Step> {
        if fits { vec![self.step(self.slot.clone(), CallerState::Answered)] } else { Vec::new() }
    }

    fn begin_claim(&self, mut slot: UserSlot, change: Change, outcome: Outcome, caller: CallerState) -> Step {
        let owner = if caller == CallerState::Waiting { self.caller_bit } else { 0 };
        slot.claim = Some(Claim { owner, ..Claim::unowned(change, outcome) });
        self.step(slot, caller)
    }

    #[expect(clippy::unused_self, reason = "a step belongs to its context")]
    const fn step(&self, slot: UserSlot, caller: CallerState) -> Step {
        Step { slot, caller, completed: 0 }
    }
}
