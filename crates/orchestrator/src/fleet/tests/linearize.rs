//! Is there an order of all calls, one after the other, that explains every answer and the end?
//!
//! A search in depth over the steps that the model allows, which never comes back to where it has been. A call
//! that was answered before another one was made comes before it. A call whose answer fits and can only ever
//! fit without any effect is taken at once: it stands in nobody's way.

use std::collections::HashSet;
use std::fmt::Write as _;

use contract::orchestrator::EngineStatus;

use super::model::{Answer, Ask, Caller, Id, Moment, Seat, World};
use crate::fleet::lifecycle::Refusal;

/// Where the search gives up: far more than any history of the tests needs.
const TOO_MANY: usize = 5_000_000;

/// One call, from its being made to its answer, by the order of all such moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) user: usize,
    pub(super) ask: Ask,
    pub(super) answer: Answer,
    pub(super) made: usize,
    /// Those that nobody waited for have none.
    pub(super) answered: Option<usize>,
}

/// What was seen of a product: all calls, and the engine that each user has at the end.
pub(super) struct History {
    pub(super) world: World,
    pub(super) calls: Vec<Call>,
    pub(super) end: Vec<Option<(EngineStatus, Id)>>,
}

/// How far an order has got.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    seats: Vec<Seat>,
    /// The calls that wait for a change that they made or share, as bits.
    waiting: u64,
    /// The calls that have their answer.
    answered: u64,
}

impl History {
    /// Looks for an order; if there is none, tells how far the best attempt came.
    pub(super) fn explain(&self) -> Result<(), String> {
        assert!(self.calls.len() <= 64, "too many calls for a word of bits");
        if self.world.quota.is_some() {
            return self.search();
        }
        // Without a quota users have nothing to do with each other.
        for user in 0..self.end.len() {
            let calls = self.calls.iter().filter(|call| call.user == user);
            let calls = calls.map(|call| Call { user: 0, ..*call }).collect();
            Self { world: self.world, calls, end: vec![self.end[user]] }
                .search()
                .map_err(|why| format!("user {user}: {why}"))?;
        }
        Ok(())
    }

    fn search(&self) -> Result<(), String> {
        let begin = Place { seats: vec![Seat::default(); self.end.len()], waiting: 0, answered: 0 };
        let all = self.calls.iter().enumerate().fold(0, |bits, (at, _)| bits | 1 << at);
        let mut furthest = begin.clone();
        let mut seen = HashSet::from([begin.clone()]);
        let mut ahead = vec![begin];
        while let Some(place) = ahead.pop() {
            if place.answered == all && self.is_the_end(&place) {
                return Ok(());
            }
            if place.answered.count_ones() > furthest.answered.count_ones() {
                furthest = place.clone();
            }
            for next in self.leading_on(&place) {
                if seen.insert(next.clone()) {
                    ahead.push(next);
                }
            }
            assert!(seen.len() < TOO_MANY, "the search does not end:\n{}", self.told());
        }
        let missing = self.calls.iter().enumerate().filter(|(at, _)| furthest.answered & 1 << at == 0);
        let missing: Vec<_> = missing.map(|(at, _)| at).collect();
        let why = if missing.is_empty() { "ends so".to_owned() } else { format!("explains {missing:?}") };
        Err(format!("no order {why}, at best left with {:?}\n{}", furthest.seats, self.told()))
    }

    fn is_the_end(&self, place: &Place) -> bool {
        place.seats.iter().zip(&self.end).all(|(seat, end)| seat.has_come_to(*end))
    }

    /// Every place one step on.
    fn leading_on(&self, place: &Place) -> Vec<Place> {
        let mut next = Vec::new();
        for at in self.whose_turn_it_can_be(place) {
            let steps = self.steps(place, at);
            let idle = steps.iter().find(|step| **step == Place { answered: step.answered, ..place.clone() });
            match idle {
                Some(idle) if is_idle(&self.calls[at]) => return vec![idle.clone()],
                _ => next.extend(steps),
            }
        }
        for (user, seat) in place.seats.iter().enumerate() {
            for (seat, landed) in seat.silent(&self.world) {
                next.push(place.with(user, seat, landed));
            }
        }
        next
    }

    /// The calls without a step so far that nothing has to come before.
    fn whose_turn_it_can_be(&self, place: &Place) -> impl Iterator<Item = usize> {
        let open = |at: &usize| place.answered & 1 << at == 0;
        let unanswered = (0..self.calls.len()).filter(open);
        let first = unanswered.filter_map(|at| self.calls[at].answered).min().unwrap_or(usize::MAX);
        let waiting = place.waiting;
        (0..self.calls.len())
            .filter(open)
            .filter(move |at| waiting & 1 << at == 0 && self.calls[*at].made < first)
            .collect::<Vec<_>>()
            .into_iter()
    }

    fn steps(&self, place: &Place, at: usize) -> Vec<Place> {
        let call = &self.calls[at];
        let engines = place.seats.iter().filter(|seat| seat.engine.is_some()).count();
        let moment = Moment {
            world: &self.world,
            seat: &place.seats[call.user],
            room: self.world.quota.is_none_or(|quota| engines < quota),
            who: 1 << at,
            ask: call.ask,
            answer: call.answer,
        };
        let steps = moment.steps().into_iter().map(|step| {
            let mut next = place.with(call.user, step.seat, step.landed);
            match step.caller {
                Caller::Answered => next.answered |= 1 << at,
                Caller::Waiting => next.waiting |= 1 << at,
                Caller::Again => {}
            }
            next
        });
        steps.collect()
    }

    /// The history in words.
    pub(super) fn told(&self) -> String {
        let mut told = format!("{:?}\n", self.world);
        for (at, call) in self.calls.iter().enumerate() {
            let Call { user, ask, answer, made, answered } = call;
            let answered = answered.map_or("-".to_owned(), |answered| answered.to_string());
            writeln!(told, "{at:>3}  {made:>3} to {answered:>3}  user {user}  {ask:?} → {answer:?}").unwrap();
        }
        told + &format!("in the end {:?}", self.end)
    }
}

impl Place {
    fn with(&self, user: usize, seat: Seat, landed: u64) -> Self {
        let mut next = self.clone();
        next.seats[user] = seat;
        next.waiting &= !landed;
        next.answered |= landed;
        next
    }
}

/// Whether a call so answered can have had no effect, whenever it came.
const fn is_idle(call: &Call) -> bool {
    match (call.ask, call.answer) {
        (Ask::Get, _)
        | (Ask::Admit { provision: false, .. }, Answer::Denied(_))
        | (Ask::Provision, Answer::Refused(Refusal::AlreadyExists)) => true,
        (ask, Answer::Refused(_)) => !matches!(ask, Ask::Provision),
        _ => false,
    }
}

#[path = "linearize_tests.rs"]
mod tests;
