//! Linearizability check: is there a sequential order of all calls that explains every response and the end?
//!
//! A depth-first search over the steps that the model allows, which visits no state twice. A call that was
//! answered before another one was made comes before it. A call whose response fits and that cannot have an effect
//! is taken at once, because it excludes no other order.

use std::collections::HashSet;
use std::fmt::Write as _;

use api::orchestrator::EngineStatus;

use super::model::{CallContext, CallerState, Environment, Id, Request, Response, UserSlot};
use crate::domain::lifecycle::Refusal;

/// The number of states at which the search gives up: far more than any history of the tests needs.
const MAX_SEARCH_STATES: usize = 5_000_000;

/// One call of a history. The times of calls and answers are positions in the order of all events.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedCall {
    pub(super) user: usize,
    pub(super) request: Request,
    pub(super) response: Response,
    pub(super) called_at: usize,
    /// `None` for calls whose response nobody waited for.
    pub(super) answered_at: Option<usize>,
}

/// The observed history of a product: all calls, and the engine that each user has at the end.
pub(super) struct History {
    pub(super) environment: Environment,
    pub(super) calls: Vec<RecordedCall>,
    pub(super) end: Vec<Option<(EngineStatus, Id)>>,
}

/// A state of the search: the slots after the steps taken so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SearchState {
    slots: Vec<UserSlot>,
    /// The calls that wait for a change that they began or share, as bits.
    waiting: u64,
    /// The calls that are answered, as bits.
    answered: u64,
}

impl History {
    /// Searches for an order. If there is none, the error describes how far the best attempt got.
    pub(super) fn linearize(&self) -> Result<(), String> {
        assert!(self.calls.len() <= 64, "too many calls for a bit set of 64");
        if self.environment.quota.is_some() {
            return self.search();
        }
        // Without a quota, users do not affect each other.
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
        let initial =
            SearchState { slots: vec![UserSlot::default(); self.end.len()], waiting: 0, answered: 0 };
        let all = self.calls.iter().enumerate().fold(0, |bits, (index, _)| bits | 1 << index);
        let mut furthest = initial.clone();
        let mut seen = HashSet::from([initial.clone()]);
        let mut stack = vec![initial];
        while let Some(state) = stack.pop() {
            if state.answered == all && self.is_final(&state) {
                return Ok(());
            }
            if state.answered.count_ones() > furthest.answered.count_ones() {
                furthest = state.clone();
            }
            for next in self.successors(&state) {
                if seen.insert(next.clone()) {
                    stack.push(next);
                }
            }
            assert!(seen.len() < MAX_SEARCH_STATES, "the search does not end:\n{}", self.describe());
        }
        let missing = self.calls.iter().enumerate().filter(|(index, _)| furthest.answered & 1 << index == 0);
        let missing: Vec<_> = missing.map(|(index, _)| index).collect();
        let why = if missing.is_empty() { "ends so".to_owned() } else { format!("explains {missing:?}") };
        Err(format!("no order {why}, at best left with {:?}\n{}", furthest.slots, self.describe()))
    }

    fn is_final(&self, state: &SearchState) -> bool {
        state.slots.iter().zip(&self.end).all(|(slot, end)| slot.matches_end(*end))
    }

    /// All states that are one step further.
    fn successors(&self, state: &SearchState) -> Vec<SearchState> {
        let mut next = Vec::new();
        for index in self.runnable_calls(state) {
            let steps = self.call_steps(state, index);
            let unchanged =
                steps.iter().find(|step| **step == SearchState { answered: step.answered, ..state.clone() });
            match unchanged {
                Some(unchanged) if has_no_effect(&self.calls[index]) => return vec![unchanged.clone()],
                _ => next.extend(steps),
            }
        }
        for (user, slot) in state.slots.iter().enumerate() {
            for (slot, completed) in slot.spontaneous_steps(&self.environment) {
                next.push(state.with_step(user, slot, completed));
            }
        }
        next
    }

    /// The calls that may take a step now: neither answered nor waiting in `state`, and made before any call that
    /// is still to be explained was answered.
    fn runnable_calls(&self, state: &SearchState) -> impl Iterator<Item = usize> {
        let is_unanswered = |index: &usize| state.answered & 1 << index == 0;
        let unanswered = (0..self.calls.len()).filter(is_unanswered);
        let first = unanswered.filter_map(|index| self.calls[index].answered_at).min().unwrap_or(usize::MAX);
        let waiting = state.waiting;
        (0..self.calls.len())
            .filter(is_unanswered)
            .filter(move |index| waiting & 1 << index == 0 && self.calls[*index].called_at < first)
            .collect::<Vec<_>>()
            .into_iter()
    }

    fn call_steps(&self, state: &SearchState, index: usize) -> Vec<SearchState> {
        let call = &self.calls[index];
        let engines = state.slots.iter().filter(|slot| slot.engine.is_some()).count();
        let context = CallContext {
            environment: &self.environment,
            slot: &state.slots[call.user],
            has_quota: self.environment.quota.is_none_or(|quota| engines < quota),
            caller_bit: 1 << index,
            request: call.request,
            response: call.response,
        };
        let steps = context.steps().into_iter().map(|step| {
            let mut next = state.with_step(call.user, step.slot, step.completed);
            match step.caller {
                CallerState::Answered => next.answered |= 1 << index,
                CallerState::Waiting => next.waiting |= 1 << index,
                CallerState::Retry => {}
            }
            next
        });
        steps.collect()
    }

    /// The history as text, for failure messages.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("{:?}\n", self.environment);
        for (index, call) in self.calls.iter().enumerate() {
            let RecordedCall { user, request, response, called_at, answered_at: answered } = call;
            let answered = answered.map_or("-".to_owned(), |answered| answered.to_string());
            writeln!(
                text,
                "{index:>3}  {called_at:>3} to {answered:>3}  user {user}  {request:?} → {response:?}"
            )
            .unwrap();
        }
        text + &format!("in the end {:?}", self.end)
    }
}

impl SearchState {
    fn with_step(&self, user: usize, slot: UserSlot, completed: u64) -> Self {
        let mut next = self.clone();
        next.slots[user] = slot;
        next.waiting &= !completed;
        next.answered |= completed;
        next
    }
}

/// Whether a call with this response can have had no effect, whenever it took place.
const fn has_no_effect(call: &RecordedCall) -> bool {
    match (call.request, call.response) {
        (Request::Get, _)
        | (Request::Admit { provision: false, .. }, Response::Denied(_))
        | (Request::Provision, Response::Refused(Refusal::AlreadyExists)) => true,
        (request, Response::Refused(_)) => !matches!(request, Request::Provision),
        _ => false,
    }
}

mod tests;
