//! One user's place: how it changes, and what happens there without a call.

use api::orchestrator::EngineStatus;

use super::{Change, Claim, Engine, Environment, Failure, Id, Key, Outcome, UserSlot};

impl UserSlot {
    /// Whether all is over here, with this engine, or none, left.
    pub(in crate::fleet::tests) fn matches_end(&self, end: Option<(EngineStatus, Id)>) -> bool {
        let left = self.engine.as_ref().map(|engine| (engine.status, engine.id));
        let fits = match (left, end) {
            (None, None) => true,
            (Some((status, id)), Some((end, end_id))) => status == end && id.is_none_or(|id| id == end_id),
            _ => false,
        };
        fits && self.claim.is_none()
    }

    /// What may happen here without a call, and who has their answer by it.
    pub(in crate::fleet::tests) fn spontaneous_steps(&self, world: &Environment) -> Vec<(Self, u64)> {
        let Some(engine) = &self.engine else {
            // An attempt ends as it began.
            return self.claim.iter().map(|claim| self.without_claim(claim)).collect();
        };
        let Some(claim) = &self.claim else { return self.unclaimed_steps(world, engine) };
        let (free, landed) = self.without_claim(claim);
        let mut ends = free.states_after(world, engine, claim);
        if world.faults && claim.may_be_abandoned() {
            // What is left of it cannot be removed, or found out, yet.
            let lost = Claim { abandoned: true, ..Claim::unowned(claim.change, claim.outcome) };
            ends.push(Self { claim: Some(lost), ..free });
        }
        ends.into_iter().map(|seat| (seat, landed)).collect()
    }

    /// What the end of `claim`, which is off by now, leads to.
    fn states_after(&self, world: &Environment, engine: &Engine, claim: &Claim) -> Vec<Self> {
        let well = !claim.abandoned
            && !claim.crashed
            && matches!(claim.outcome, Outcome::Success | Outcome::Unknown);
        let ill = claim.abandoned || (world.faults || claim.crashed) && claim.outcome.may_fail();
        let mut ends = Vec::new();
        match claim.change {
            Change::ProvisionAttempt => {}
            Change::Provision | Change::Boot | Change::Restart => {
                ends.extend(well.then(|| self.with_status(EngineStatus::Running)));
                ends.extend(ill.then(|| self.states_after_failed_boot(engine, claim)).into_iter().flatten());
            }
            Change::Stop(to) => ends.extend([self.with_status(to), self.with_possible_exit()]),
            Change::Rotate => {
                // The old key, or one that is not known yet; or the engine is found to be unwell.
                ends.extend([self.clone(), self.with_key(None)]);
                let fails = engine.may_have_exited || world.crashes;
                ends.extend(fails.then(|| self.with_status(EngineStatus::Failed)));
            }
            Change::Destroy => ends.push(self.without_engine()),
        }
        ends
    }

    /// What becomes of an engine that did not come up.
    fn states_after_failed_boot(&self, engine: &Engine, claim: &Claim) -> Vec<Self> {
        let timeout = claim.outcome == Outcome::Failed(Failure::BootTimeout);
        match claim.change {
            Change::Provision => vec![self.without_engine()],
            Change::Boot if claim.abandoned => vec![self.clone()],
            Change::Boot if timeout && engine.status != EngineStatus::Failed => {
                vec![self.with_status(EngineStatus::Failed)]
            }
            // A backend out of reach says nothing about the engine.
            Change::Boot => vec![self.clone(), self.with_status(EngineStatus::Failed)],
            _ => vec![self.clone()],
        }
    }

    /// What befalls an engine that nobody changes.
    fn unclaimed_steps(&self, world: &Environment, engine: &Engine) -> Vec<(Self, u64)> {
        let mut seats = Vec::new();
        match engine.status {
            EngineStatus::Running => {
                if engine.may_have_exited || world.crashes {
                    seats.push((self.with_status(EngineStatus::Failed), 0));
                }
                if world.sleeps {
                    seats.push((self.with_status(EngineStatus::Sleeping), 0));
                    if world.faults {
                        // It was to sleep, and nobody knows whether it has ended: that is finished at some time.
                        seats.push((self.with_possible_exit(), 0));
                        let rest = Claim::unowned(Change::Stop(EngineStatus::Sleeping), Outcome::Unknown);
                        let claim = Some(Claim { abandoned: true, ..rest });
                        seats.push((Self { claim, ..self.clone() }, 0));
                    }
                }
            }
            EngineStatus::Failed if world.restarts => {
                let claim = Some(Claim::unowned(Change::Restart, Outcome::Unknown));
                seats.push((Self { claim, ..self.clone() }, 0));
            }
            _ => {}
        }
        seats
    }

    /// Without its claim, and who waited for that.
    fn without_claim(&self, claim: &Claim) -> (Self, u64) {
        (Self { claim: None, ..self.clone() }, claim.owner | claim.waiters)
    }

    pub(super) fn is_new(&self, id: Id) -> bool {
        self.past_ids & (1 << id) == 0
    }

    /// Whether an engine may come to have this key here: none that it had before.
    pub(super) fn can_get_key(&self, key: Key) -> bool {
        let holds = self.engine.as_ref().and_then(|engine| engine.key) == Some(key);
        !holds && self.past_keys & (1 << key) == 0
    }

    /// With what an answer tells of its engine, unless that cannot be.
    pub(super) fn with_observed(&self, id: Id, key: Option<Key>) -> Option<Self> {
        let mut seat = self.clone();
        let engine = seat.engine.as_mut()?;
        let fits = engine.id.is_none_or(|known| known == id)
            && key
                .is_none_or(|key| engine.key.map_or(self.past_keys & (1 << key) == 0, |known| known == key));
        engine.id = Some(id);
        engine.key = key.or(engine.key);
        (fits && self.is_new(id)).then_some(seat)
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
