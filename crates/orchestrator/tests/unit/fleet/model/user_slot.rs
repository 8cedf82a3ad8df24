//! The state of one user in the model: its transitions, and the steps that happen without a call.

use api::orchestrator::EngineStatus;

use super::{Change, Claim, Engine, Environment, Failure, Id, Key, Outcome, UserSlot};

impl UserSlot {
    /// Whether no change is under way and the slot has the engine of `end`, or none.
    pub(in crate::fleet::tests) fn matches_end(&self, end: Option<(EngineStatus, Id)>) -> bool {
        let current = self.engine.as_ref().map(|engine| (engine.status, engine.id));
        let fits = match (current, end) {
            (None, None) => true,
            (Some((status, id)), Some((end, end_id))) => status == end && id.is_none_or(|id| id == end_id),
            _ => false,
        };
        fits && self.claim.is_none()
    }

    /// The steps that may happen without a call: the slot after each, and the callers whose calls it completes, as
    /// bits.
    pub(in crate::fleet::tests) fn spontaneous_steps(&self, environment: &Environment) -> Vec<(Self, u64)> {
        let Some(engine) = &self.engine else {
            // An attempt without a row ends without an effect.
            return self.claim.iter().map(|claim| self.without_claim(claim)).collect();
        };
        let Some(claim) = &self.claim else { return self.unclaimed_steps(environment, engine) };
        let (unclaimed, completed) = self.without_claim(claim);
        let mut ends = unclaimed.states_after(environment, engine, claim);
        if environment.faults && claim.may_be_abandoned() {
            // Its remains cannot be removed yet, or its outcome is not known yet.
            let abandoned_claim = Claim { abandoned: true, ..Claim::unowned(claim.change, claim.outcome) };
            ends.push(Self { claim: Some(abandoned_claim), ..unclaimed });
        }
        ends.into_iter().map(|slot| (slot, completed)).collect()
    }

    /// The states after the end of `claim`, which `self` does not hold any more.
    fn states_after(&self, environment: &Environment, engine: &Engine, claim: &Claim) -> Vec<Self> {
        let can_succeed = !claim.abandoned
            && !claim.crashed
            && matches!(claim.outcome, Outcome::Success | Outcome::Unknown);
        let can_fail = claim.abandoned || (environment.faults || claim.crashed) && claim.outcome.may_fail();
        let mut ends = Vec::new();
        match claim.change {
            Change::ProvisionAttempt => {}
            Change::Provision | Change::Boot | Change::Restart => {
                ends.extend(can_succeed.then(|| self.with_status(EngineStatus::Running)));
                ends.extend(
                    can_fail.then(|| self.states_after_failed_boot(engine, claim)).into_iter().flatten(),
                );
            }
            Change::Stop(to) => ends.extend([self.with_status(to), self.with_possible_exit()]),
            Change::Rotate => {
                // The old key, or one that is not known yet; or the engine is found to be unhealthy.
                ends.extend([self.clone(), self.with_key(None)]);
                let fails = engine.may_have_exited || environment.crashes;
                ends.extend(fails.then(|| self.with_status(EngineStatus::Failed)));
            }
            Change::Destroy => ends.push(self.without_engine()),
        }
        ends
    }

    /// The states after a failed boot.
    fn states_after_failed_boot(&self, engine: &Engine, claim: &Claim) -> Vec<Self> {
        let timed_out = claim.outcome == Outcome::Failed(Failure::BootTimeout);
        match claim.change {
            Change::Provision => vec![self.without_engine()],
            Change::Boot if claim.abandoned => vec![self.clone()],
            Change::Boot if timed_out && engine.status != EngineStatus::Failed => {
                vec![self.with_status(EngineStatus::Failed)]
            }
            // An unreachable backend says nothing about the engine.
            Change::Boot => vec![self.clone(), self.with_status(EngineStatus::Failed)],
            _ => vec![self.clone()],
        }
    }

    /// The steps that may happen to an engine without a claim.
    fn unclaimed_steps(&self, environment: &Environment, engine: &Engine) -> Vec<(Self, u64)> {
        let mut steps = Vec::new();
        match engine.status {
            EngineStatus::Running => {
                if engine.may_have_exited || environment.crashes {
                    steps.push((self.with_status(EngineStatus::Failed), 0));
                }
                if environment.sleeps {
                    steps.push((self.with_status(EngineStatus::Sleeping), 0));
                    if environment.faults {
                        // A sleep whose outcome is unknown is completed at some time.
                        steps.push((self.with_possible_exit(), 0));
                        let sleep = Claim::unowned(Change::Stop(EngineStatus::Sleeping), Outcome::Unknown);
                        let claim = Some(Claim { abandoned: true, ..sleep });
                        steps.push((Self { claim, ..self.clone() }, 0));
                    }
                }
            }
            // One that could not be asked for its schedules before it slept is woken to be asked.
            EngineStatus::Sleeping if environment.faults || environment.exits => {
                let claim = Some(Claim::unowned(Change::Boot, Outcome::Unknown));
                steps.push((Self { claim, ..self.clone() }, 0));
            }
            EngineStatus::Failed if environment.restarts => {
                let claim = Some(Claim::unowned(Change::Restart, Outcome::Unknown));
                steps.push((Self { claim, ..self.clone() }, 0));
            }
            _ => {}
        }
        steps
    }

    /// The slot without its claim, and the callers who waited for it, as bits.
    fn without_claim(&self, claim: &Claim) -> (Self, u64) {
        (Self { claim: None, ..self.clone() }, claim.owner | claim.waiters)
    }

    pub(super) fn is_new(&self, id: Id) -> bool {
        self.past_ids & (1 << id) == 0
    }

    /// Whether an engine may get this key: not one that was used before.
    pub(super) fn can_get_key(&self, key: Key) -> bool {
        let holds = self.engine.as_ref().and_then(|engine| engine.key) == Some(key);
        !holds && self.past_keys & (1 << key) == 0
    }

    /// The slot with the id and key that a response shows; `None` if they contradict what is known.
    pub(super) fn with_observed(&self, id: Id, key: Option<Key>) -> Option<Self> {
        let mut slot = self.clone();
        let engine = slot.engine.as_mut()?;
        let fits = engine.id.is_none_or(|known| known == id)
            && key
                .is_none_or(|key| engine.key.map_or(self.past_keys & (1 << key) == 0, |known| known == key));
        engine.id = Some(id);
        engine.key = key.or(engine.key);
        (fits && self.is_new(id)).then_some(slot)
    }

    pub(super) fn with_status(&self, status: EngineStatus) -> Self {
        let engine = self.engine.clone().map(|engine| Engine { status, may_have_exited: false, ..engine });
        Self { engine, ..self.clone() }
    }

    pub(super) fn with_possible_exit(&self) -> Self {
        let engine = self.engine.clone().map(|engine| Engine { may_have_exited: true, ..engine });
        Self { engine, ..self.clone() }
    }

    pub(super) fn with_key(&self, key: Option<Key>) -> Self {
        let engine = self.engine.clone().map(|engine| Engine { key, ..engine });
        Self { engine, past_keys: self.past_keys | self.key_as_bit(), ..self.clone() }
    }

    fn without_engine(&self) -> Self {
        let gone = self.engine.as_ref().and_then(|engine| engine.id).map_or(0, |id| 1 << id);
        let (past_ids, past_keys) = (self.past_ids | gone, self.past_keys | self.key_as_bit());
        Self { engine: None, claim: None, past_ids, past_keys }
    }

    fn key_as_bit(&self) -> u64 {
        self.engine.as_ref().and_then(|engine| engine.key).map_or(0, |key| 1 << key)
    }
}
