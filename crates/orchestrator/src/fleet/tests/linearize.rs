//! Is there an order of all calls, one after the other, that explains every answer and the end?
//!
//! A search in depth over the steps that the model allows, which never comes back to where it has been. A call
//! that was answered before another one was made comes before it. A call whose answer fits and can only ever
//! fit without any effect is taken at once: it stands in nobody's way.

use std::collections::HashSet;
use std::fmt::Write as _;

use api::orchestrator::EngineStatus;

use super::model::{CallContext, CallerState, Environment, Id, Request, Response, UserSlot};
use crate::fleet::lifecycle::Refusal;

/// Where the search gives up: far more than any history of the tests needs.
const MAX_SEARCH_STATES: usize = 5_000_000;

/// One call, from its being made to its answer, by the order of all such moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedCall {
    pub(super) user: usize,
    pub(super) request: Request,
    pub(super) response: Response,
    pub(super) called_at: usize,
    /// Those that nobody waited for have none.
    pub(super) answered_at: Option<usize>,
}

/// What was seen of a product: all calls, and the engine that each user has at the end.
pub(super) struct History {
    pub(super) environment: Environment,
    pub(super) calls: Vec<RecordedCall>,
    pub(super) end: Vec<Option<(EngineStatus, Id)>>,
}

/// How far an order has got.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SearchState {
    slots: Vec<UserSlot>,
    /// The calls that wait for a change that they made or share, as bits.
    waiting: u64,
    /// The calls that have their answer.
    answered: u64,
}

impl History {
    /// Looks for an order; if there is none, tells how far the best attempt came.
    pub(super) fn linearize(&self) -> Result<(), String> {
        assert!(self.calls.len() <= 64, "too many calls for a word of bits");
        if self.environment.quota.is_some() {
            return self.search();
        }
        // Without a quota users have nothing to do with each other.
        for user in 0..self.end.len() {
            let calls = self.calls.iter().filter(|call| call.user == user);
            let calls = calls.map(|call| RecordedCall { user: 0, ..*call }).collect();
            Self { environment: self.environment, calls, end: vec![self.end[user]] }
                .search()
                .map_err(|why| format!("user {user}: {why}"))?;
        }
        Ok(())
    }

    fn search(&self) -> Result<(), String> {
        let begin = SearchState { slots: vec![UserSlot::default(); self.end.len()], waiting: 0, answered: 0 };
        let all = self.calls.iter().enumerate().fold(0, |bits, (at, _)| bits | 1 << at);
        let mut furthest = begin.clone();
        let mut seen = HashSet::from([begin.clone()]);
        let mut ahead = vec![begin];
        while let Some(place) = ahead.pop() {
            if place.answered == all && self.is_final(&place) {
                return Ok(());
            }
            if place.answered.count_ones() > furthest.answered.count_ones() {
                furthest = place.clone();
            }
            for next in self.successors(&place) {
                if seen.insert(next.clone()) {
                    ahead.push(next);
                }
            }
            assert!(seen.len() < MAX_SEARCH_STATES, "the search does not end:\n{}", self.describe());
        }
        let missing = self.calls.iter().enumerate().filter(|(at, _)| furthest.answered & 1 << at == 0);
        let missing: Vec<_> = missing.map(|(at, _)| at).collect();
        let why = if missing.is_empty() { "ends so".to_owned() } else { format!("explains {missing:?}") };
        Err(format!("no order {why}, at best left with {:?}\n{}", furthest.slots, self.describe()))
    }

    fn is_final(&self, place: &SearchState) -> bool {
        place.slots.iter().zip(&self.end).all(|(seat, end)| seat.matches_end(*end))
    }

    /// Every place one step on.
    fn successors(&self, place: &SearchState) -> Vec<SearchState> {
        let mut next = Vec::new();
        for at in self.runnable_calls(place) {
            let steps = self.call_steps(place, at);
            let idle =
                steps.iter().find(|step| **step == SearchState { answered: step.answered, ..place.clone() });
            match idle {
                Some(idle) if has_no_effect(&self.calls[at]) => return vec![idle.clone()],
                _ => next.extend(steps),
            }
        }
        for (user, seat) in place.slots.iter().enumerate() {
            for (seat, landed) in seat.spontaneous_steps(&self.environment) {
                next.push(place.with_step(user, seat, landed));
            }
        }
        next
    }

    /// The calls without a step so far that nothing has to come before.
    fn runnable_calls(&self, place: &SearchState) -> impl Iterator<Item = usize> {
        let open = |at: &usize| place.answered & 1 << at == 0;
        let unanswered = (0..self.calls.len()).filter(open);
        let first = unanswered.filter_map(|at| self.calls[at].answered_at).min().unwrap_or(usize::MAX);
        let waiting = place.waiting;
        (0..self.calls.len())
            .filter(open)
            .filter(move |at| waiting & 1 << at == 0 && self.calls[*at].called_at < first)
            .collect::<Vec<_>>()
            .into_iter()
    }

    fn call_steps(&self, place: &SearchState, at: usize) -> Vec<SearchState> {
        let call = &self.calls[at];
        let engines = place.slots.iter().filter(|seat| seat.engine.is_some()).count();
        let moment = CallContext {
            environment: &self.environment,
            slot: &place.slots[call.user],
            has_quota: self.environment.quota.is_none_or(|quota| engines < quota),
            caller_bit: 1 << at,
            request: call.request,
            response: call.response,
        };
        let steps = moment.steps().into_iter().map(|step| {
            let mut next = place.with_step(call.user, step.slot, step.completed);
            match step.caller {
                CallerState::Answered => next.answered |= 1 << at,
                CallerState::Waiting => next.waiting |= 1 << at,
                CallerState::Retry => {}
            }
            next
        });
        steps.collect()
    }

    /// The history in words.
    pub(super) fn describe(&self) -> String {
        let mut told = format!("{:?}\n", self.environment);
        for (at, call) in self.calls.iter().enumerate() {
            let RecordedCall { user, request: ask, response: answer, called_at: made, answered_at: answered } =
                call;
            let answered = answered.map_or("-".to_owned(), |answered| answered.to_string());
            writeln!(told, "{at:>3}  {made:>3} to {answered:>3}  user {user}  {ask:?} → {answer:?}").unwrap();
        }
        told + &format!("in the end {:?}", self.end)
    }
}

impl SearchState {
    fn with_step(&self, user: usize, seat: UserSlot, landed: u64) -> Self {
        let mut next = self.clone();
        next.slots[user] = seat;
        next.waiting &= !landed;
        next.answered |= landed;
        next
    }
}

/// Whether a call so answered can have had no effect, whenever it came.
const fn has_no_effect(call: &RecordedCall) -> bool {
    match (call.request, call.response) {
        (Request::Get, _)
        | (Request::Admit { provision: false, .. }, Response::Denied(_))
        | (Request::Provision, Response::Refused(Refusal::AlreadyExists)) => true,
        (ask, Response::Refused(_)) => !matches!(ask, Request::Provision),
        _ => false,
    }
}

#[path = "linearize_tests.rs"]
mod tests;
