//! One user's place: how it changes, and what happens there without a call.

use contract::orchestrator::EngineStatus;

use super::{Change, Claim, Engine, Failure, Id, Key, Outcome, Seat, World};

impl Seat {
    /// Whether all is over here, with this engine, or none, left.
    pub(in crate::fleet::tests) fn has_come_to(&self, end: Option<(EngineStatus, Id)>) -> bool {
        let left = self.engine.as_ref().map(|engine| (engine.status, engine.id));
        let fits = match (left, end) {
            (None, None) => true,
            (Some((status, id)), Some((end, end_id))) => status == end && id.is_none_or(|id| id == end_id),
            _ => false,
        };
        fits && self.claim.is_none()
    }

    /// What may happen here without a call, and who has their answer by it.
    pub(in crate::fleet::tests) fn silent(&self, world: &World) -> Vec<(Self, u64)> {
        let Some(engine) = &self.engine else {
            // An attempt ends as it began.
            return self.claim.iter().map(|claim| self.ended(claim)).collect();
        };
        let Some(claim) = &self.claim else { return self.by_itself(world, engine) };
        let (free, landed) = self.ended(claim);
        let mut ends = free.after(world, engine, claim);
        if world.faults && claim.may_be_lost() {
            // What is left of it cannot be removed, or found out, yet.
            let lost = Claim { lost: true, ..Claim::of(claim.change, claim.outcome) };
            ends.push(Self { claim: Some(lost), ..free });
        }
        ends.into_iter().map(|seat| (seat, landed)).collect()
    }

    /// What the end of `claim`, which is off by now, leads to.
    fn after(&self, world: &World, engine: &Engine, claim: &Claim) -> Vec<Self> {
        let well = !claim.lost && !claim.struck && matches!(claim.outcome, Outcome::Well | Outcome::Open);
        let ill = claim.lost || (world.faults || claim.struck) && claim.outcome.is_ill();
        let mut ends = Vec::new();
        match claim.change {
            Change::Attempt => {}
            Change::Provision | Change::Boot | Change::Restart => {
                ends.extend(well.then(|| self.moved(EngineStatus::Running)));
                ends.extend(ill.then(|| self.not_booted(engine, claim)).into_iter().flatten());
            }
            Change::Rest(to) => ends.extend([self.moved(to), self.suspected()]),
            Change::Rotate => {
                // The old key, or one that is not known yet; or the engine is found to be unwell.
                ends.extend([self.clone(), self.keyed(None)]);
                let fails = engine.suspect || world.crashes;
                ends.extend(fails.then(|| self.moved(EngineStatus::Failed)));
            }
            Change::Destroy => ends.push(self.emptied()),
        }
        ends
    }

    /// What becomes of an engine that did not come up.
    fn not_booted(&self, engine: &Engine, claim: &Claim) -> Vec<Self> {
        let timeout = claim.outcome == Outcome::Failed(Failure::BootTimeout);
        match claim.change {
            Change::Provision => vec![self.emptied()],
            Change::Boot if claim.lost => vec![self.clone()],
            Change::Boot if timeout && engine.status != EngineStatus::Failed => {
                vec![self.moved(EngineStatus::Failed)]
            }
            // A backend out of reach says nothing about the engine.
            Change::Boot => vec![self.clone(), self.moved(EngineStatus::Failed)],
            _ => vec![self.clone()],
        }
    }

    /// What befalls an engine that nobody changes.
    fn by_itself(&self, world: &World, engine: &Engine) -> Vec<(Self, u64)> {
        let mut seats = Vec::new();
        match engine.status {
            EngineStatus::Running => {
                if engine.suspect || world.crashes {
                    seats.push((self.moved(EngineStatus::Failed), 0));
                }
                if world.sleeps {
                    seats.push((self.moved(EngineStatus::Sleeping), 0));
                    if world.faults {
                        // It was to sleep, and nobody knows whether it has ended: that is finished at some time.
                        seats.push((self.suspected(), 0));
                        let rest = Claim::of(Change::Rest(EngineStatus::Sleeping), Outcome::Open);
                        let claim = Some(Claim { lost: true, ..rest });
                        seats.push((Self { claim, ..self.clone() }, 0));
                    }
                }
            }
            EngineStatus::Failed if world.restarts => {
                let claim = Some(Claim::of(Change::Restart, Outcome::Open));
                seats.push((Self { claim, ..self.clone() }, 0));
            }
            _ => {}
        }
        seats
    }

    /// Without its claim, and who waited for that.
    fn ended(&self, claim: &Claim) -> (Self, u64) {
        (Self { claim: None, ..self.clone() }, claim.owner | claim.joined)
    }

    pub(super) fn is_new(&self, id: Id) -> bool {
        self.past & (1 << id) == 0
    }

    /// Whether an engine may come to have this key here: none that it had before.
    pub(super) fn may_hold(&self, key: Key) -> bool {
        let holds = self.engine.as_ref().and_then(|engine| engine.key) == Some(key);
        !holds && self.past_keys & (1 << key) == 0
    }

    /// With what an answer tells of its engine, unless that cannot be.
    pub(super) fn known(&self, id: Id, key: Option<Key>) -> Option<Self> {
        let mut seat = self.clone();
        let engine = seat.engine.as_mut()?;
        let fits = engine.id.is_none_or(|known| known == id)
            && key
                .is_none_or(|key| engine.key.map_or(self.past_keys & (1 << key) == 0, |known| known == key));
        engine.id = Some(id);
        engine.key = key.or(engine.key);
        (fits && self.is_new(id)).then_some(seat)
    }

    pub(super) fn moved(&self, status: EngineStatus) -> Self {
        let engine = self.engine.clone().map(|engine| Engine { status, suspect: false, ..engine });
        Self { engine, ..self.clone() }
    }

    pub(super) fn suspected(&self) -> Self {
        let engine = self.engine.clone().map(|engine| Engine { suspect: true, ..engine });
        Self { engine, ..self.clone() }
    }

    pub(super) fn keyed(&self, key: Option<Key>) -> Self {
        let engine = self.engine.clone().map(|engine| Engine { key, ..engine });
        Self { engine, past_keys: self.past_keys | self.key_as_bit(), ..self.clone() }
    }

    fn emptied(&self) -> Self {
        let gone = self.engine.as_ref().and_then(|engine| engine.id).map_or(0, |id| 1 << id);
        let (past, past_keys) = (self.past | gone, self.past_keys | self.key_as_bit());
        Self { engine: None, claim: None, past, past_keys }
    }

    fn key_as_bit(&self) -> u64 {
        self.engine.as_ref().and_then(|engine| engine.key).map_or(0, |key| 1 << key)
    }
}
