//! What to do about a model that does not answer: wait, ask another one, shorten the conversation, or give up. Pure.

use std::sync::Arc;
use std::time::Duration;

use crate::models::{ModelError, ModelErrorKind, Retry, RetryPolicy, Route};
use crate::sabotage::{self, Saboteur};

/// How many tokens a model that stands in must have left for its answer, if a conversation is sent to it as it is.
const ROOM_TO_ANSWER: u64 = 4_096;

/// How often a step may summarise the conversation before it is reset.
const MAX_SUMMARIES: u32 = 2;

/// What helps against a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Ask the same model again, after this long.
    Wait(Duration),
    /// Ask the model that stands in for it, which is now the one to ask.
    StandIn,
    /// Shorten the conversation.
    Shorten,
    /// Leave out the reasoning of earlier answers.
    DropReasoning,
    /// Nothing does.
    GiveUp,
}

/// How a conversation is shortened: each stage goes further than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortening {
    /// A summary stands for its beginning; the first time more of its end is kept than the second.
    Summary {
        /// How often it was done in this step, this time included.
        time: u32,
    },
    /// Only what cannot be left out is kept.
    Reset,
}

/// What to do about a model for which the conversation has become long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TooSmall {
    /// Shorten the conversation for it.
    Shorten,
    /// Ask it all the same: there is room.
    AsItIs,
    /// Ask another model, which is now the one to ask.
    PassOver,
    /// End the step: the model whose window is large enough may soon answer again.
    GiveUp,
}

/// The failure of the model that should answer.
struct UsualFailed {
    error: ModelError,
    /// Its context window.
    window: u64,
    /// Whether another one was passed over since, because its window is too small.
    passed_over: bool,
}

/// The attempts at one model step.
pub(super) struct Asking {
    /// The model to ask.
    route: Arc<Route>,
    /// The models that stand in for it, the next one last.
    others: Vec<Arc<Route>>,
    /// The name of the model that should answer.
    usual: String,
    /// What became of that one, where it was given up for something that may pass.
    usual_failed: Option<UsualFailed>,
    policy: RetryPolicy,
    retry: Retry,
    /// Whether the provider's word that the conversation is too long is acted on.
    reactive: bool,
    attempts: u32,
    summaries: u32,
    reset: bool,
    reasoning_dropped: bool,
    /// What each model that was given up said.
    given_up: Vec<String>,
}

impl Asking {
    /// A step that may ask the models of `chain`, of which the one called `usual` should answer; none if there are none.
    pub(super) fn new(
        mut chain: Vec<Arc<Route>>,
        usual: String,
        policy: RetryPolicy,
        reactive: bool,
    ) -> Option<Self> {
        chain.reverse();
        let route = chain.pop()?;
        Some(Self {
            route,
            others: chain,
            usual,
            usual_failed: None,
            policy,
            retry: Retry::first(policy),
            reactive,
            attempts: 0,
            summaries: 0,
            reset: false,
            reasoning_dropped: false,
            given_up: Vec::new(),
        })
    }

    /// The model to ask now.
    pub(super) const fn route(&self) -> &Arc<Route> {
        &self.route
    }

    /// How many attempts have begun.
    pub(super) const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Another attempt begins: its number, from 1.
    pub(super) fn begin(&mut self) -> u32 {
        self.attempts += 1;
        self.attempts
    }

    /// What to do after the attempt failed with `error` at `now`. `jitter` is from 0 to 1.
    pub(super) fn after(&mut self, error: &ModelError, now: Duration, jitter: f64) -> Remedy {
        match error.kind {
            ModelErrorKind::Empty | ModelErrorKind::Busy | ModelErrorKind::Broken => {
                match self.retry.after(error, now, jitter) {
                    Some(delay) => Remedy::Wait(delay),
                    None => self.stand_in(error),
                }
            }
            ModelErrorKind::NotConfigured
            | ModelErrorKind::Auth
            | ModelErrorKind::NoSuchModel
            | ModelErrorKind::Quota => self.stand_in(error),
            // Who counts its tokens otherwise than they were estimated.
            ModelErrorKind::TooLong if self.route.name != self.usual && self.usual_is_larger() => {
                self.pass_over(&error.message).map_or(Remedy::GiveUp, |()| Remedy::StandIn)
            }
            ModelErrorKind::TooLong if self.reactive && self.may_shorten() => Remedy::Shorten,
            ModelErrorKind::BrokenHistory if !self.reasoning_dropped => {
                self.reasoning_dropped = true;
                Remedy::DropReasoning
            }
            ModelErrorKind::TooLong | ModelErrorKind::BrokenHistory | ModelErrorKind::Refused => {
                Remedy::GiveUp
            }
        }
    }

    fn stand_in(&mut self, error: &ModelError) -> Remedy {
        self.given_up.push(format!("{}: {}", self.route.name, error.message));
        if self.route.name == self.usual
            && matches!(error.kind, ModelErrorKind::Busy | ModelErrorKind::Broken)
        {
            let (error, window) = (error.clone(), self.route.context_window);
            self.usual_failed = Some(UsualFailed { error, window, passed_over: false });
        }
        let Some(next) = self.others.pop() else { return Remedy::GiveUp };
        self.go_to(next);
        Remedy::StandIn
    }

    fn go_to(&mut self, route: Arc<Route>) {
        self.route = route;
        self.retry = Retry::first(self.policy);
    }

    /// Whether the usual model has a larger window than the one to ask now, and may soon answer.
    fn usual_is_larger(&self) -> bool {
        let window = self.route.context_window;
        let rests = self.others.iter().find(|route| route.name == self.usual);
        rests.is_some_and(|usual| usual.context_window > window)
            || self.usual_failed.as_ref().is_some_and(|usual| usual.window > window)
    }

    /// What to do where a conversation of `prompt` tokens is long for the model to ask now. What is shortened stays
    /// shortened, so that is not done for one that only stands in, as long as the usual one is larger and may answer.
    pub(super) fn too_small(&mut self, prompt: u64) -> TooSmall {
        if self.route.name == self.usual || !self.usual_is_larger() {
            return TooSmall::Shorten;
        }
        if prompt.saturating_add(ROOM_TO_ANSWER) <= self.route.context_window {
            return TooSmall::AsItIs;
        }
        if let Some(at) = self.others.iter().position(|route| route.name == self.usual) {
            let usual = self.others.remove(at);
            let small = Arc::clone(&self.route);
            self.others.push(small);
            self.go_to(usual);
            return TooSmall::PassOver;
        }
        self.pass_over(&format!("its context window of {} tokens is too small", self.route.context_window))
            .map_or(TooSmall::GiveUp, |()| TooSmall::PassOver)
    }

    /// Goes to the next model, for the one to ask now is too small; none if there is none.
    fn pass_over(&mut self, why: &str) -> Option<()> {
        self.given_up.push(format!("{}: {why}", self.route.name));
        if let Some(usual) = &mut self.usual_failed {
            usual.passed_over = true;
        }
        let next = self.others.pop()?;
        self.go_to(next);
        Some(())
    }

    fn may_shorten(&self) -> bool {
        !self.reset || sabotage::by(Saboteur::CompactForever) && self.attempts < 40
    }

    /// The next stage of shortening; none if nothing is left to try. `for_good` where the provider has refused the
    /// conversation, so that even a reset is better than what there is.
    pub(super) fn shorten(&mut self, for_good: bool) -> Option<Shortening> {
        if self.summaries < MAX_SUMMARIES {
            self.summaries += 1;
            return Some(Shortening::Summary { time: self.summaries });
        }
        if for_good && self.may_shorten() {
            self.reset = true;
            return Some(Shortening::Reset);
        }
        None
    }

    /// The error that the step ends with, where `last` is what the last model said, if it was asked. Where
    /// that one was too small, what the usual one said tells whether another try is worth it.
    pub(super) fn gave_up(self, last: Option<ModelError>) -> ModelError {
        let was_too_small = last.as_ref().is_none_or(|error| error.kind == ModelErrorKind::TooLong);
        let usual = self.usual_failed.filter(|usual| usual.passed_over && was_too_small);
        let last = usual.map(|usual| usual.error).or(last).unwrap_or_else(ModelError::ended_early);
        if self.given_up.len() < 2 {
            return last;
        }
        ModelError { message: format!("no model answers: {}", self.given_up.join("; ")), ..last }
    }
}

#[cfg(test)]
#[path = "asking_tests.rs"]
mod tests;
