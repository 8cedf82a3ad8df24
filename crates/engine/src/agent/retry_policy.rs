//! What to do about a model that does not answer: wait, ask another one, shorten the conversation, or give up. Pure.

use std::sync::Arc;
use std::time::Duration;

use crate::fault_injection::{self, Mutation};
use crate::llm::{ModelError, ModelErrorKind, RetryPolicy, RetryState, Route};

/// How many tokens a model that stands in must have left for its answer, if a conversation is sent to it as it is.
const FALLBACK_ANSWER_TOKENS: u64 = 4_096;

/// How often a step may summarise the conversation before it is reset.
const MAX_SUMMARIES: u32 = 2;

/// What helps against a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Ask the same model again, after this long.
    Wait(Duration),
    /// Ask the model that stands in for it, which is now the one to ask.
    Fallback,
    /// Shorten the conversation.
    Compact,
    /// Leave out the reasoning of earlier answers.
    DropReasoning,
    /// Nothing does.
    GiveUp,
}

/// How a conversation is shortened: each stage goes further than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompactionStage {
    /// A summary stands for its beginning; the first time more of its end is kept than the second.
    Summary {
        /// How often it was done in this step, this time included.
        pass: u32,
    },
    /// Only what cannot be left out is kept.
    Reset,
}

/// What to do about a model for which the conversation has become long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowDecision {
    /// Shorten the conversation for it.
    Compact,
    /// Ask it all the same: there is room.
    SendAsIs,
    /// Ask another model, which is now the one to ask.
    SkipModel,
    /// End the step: the model whose window is large enough may soon answer again.
    GiveUp,
}

/// The failure of the model that should answer.
struct PrimaryFailure {
    error: ModelError,
    /// Its context window.
    context_window: u64,
    /// Whether another one was passed over since, because its window is too small.
    fallback_skipped: bool,
}

/// The attempts at one model step.
pub(super) struct StepAttempts {
    /// The model to ask.
    route: Arc<Route>,
    /// The models that stand in for it, the next one last.
    fallbacks: Vec<Arc<Route>>,
    /// The name of the model that should answer.
    primary: String,
    /// What became of that one, where it was given up for something that may pass.
    primary_failure: Option<PrimaryFailure>,
    policy: RetryPolicy,
    retry: RetryState,
    /// Whether the provider's word that the conversation is too long is acted on.
    reactive_compaction: bool,
    attempts: u32,
    summaries: u32,
    reset: bool,
    reasoning_dropped: bool,
    /// What each model that was given up said.
    failures: Vec<String>,
}

impl StepAttempts {
    /// A step that may ask the models of `chain`, of which the one called `primary` should answer; none if there are none.
    pub(super) fn new(
        mut chain: Vec<Arc<Route>>,
        primary: String,
        policy: RetryPolicy,
        reactive: bool,
    ) -> Option<Self> {
        chain.reverse();
        let route = chain.pop()?;
        Some(Self {
            route,
            fallbacks: chain,
            primary,
            primary_failure: None,
            policy,
            retry: RetryState::new(policy),
            reactive_compaction: reactive,
            attempts: 0,
            summaries: 0,
            reset: false,
            reasoning_dropped: false,
            failures: Vec::new(),
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
    pub(super) fn begin_attempt(&mut self) -> u32 {
        self.attempts += 1;
        self.attempts
    }

    /// What to do after the attempt failed with `error` at `now`. `jitter` is from 0 to 1.
    pub(super) fn remedy_for(&mut self, error: &ModelError, now: Duration, jitter: f64) -> Remedy {
        match error.kind {
            ModelErrorKind::Empty | ModelErrorKind::Busy | ModelErrorKind::Broken => {
                match self.retry.next_delay(error, now, jitter) {
                    Some(delay) => Remedy::Wait(delay),
                    None => self.fall_back(error),
                }
            }
            ModelErrorKind::NotConfigured
            | ModelErrorKind::Auth
            | ModelErrorKind::NoSuchModel
            | ModelErrorKind::Quota => self.fall_back(error),
            // Who counts its tokens otherwise than they were estimated.
            ModelErrorKind::TooLong if self.route.name != self.primary && self.primary_is_larger() => {
                self.skip_current(&error.message).map_or(Remedy::GiveUp, |()| Remedy::Fallback)
            }
            ModelErrorKind::TooLong if self.reactive_compaction && self.may_compact() => Remedy::Compact,
            ModelErrorKind::BrokenHistory if !self.reasoning_dropped => {
                self.reasoning_dropped = true;
                Remedy::DropReasoning
            }
            ModelErrorKind::TooLong | ModelErrorKind::BrokenHistory | ModelErrorKind::Refused => {
                Remedy::GiveUp
            }
        }
    }

    fn fall_back(&mut self, error: &ModelError) -> Remedy {
        self.failures.push(format!("{}: {}", self.route.name, error.message));
        if self.route.name == self.primary
            && matches!(error.kind, ModelErrorKind::Busy | ModelErrorKind::Broken)
        {
            let (error, window) = (error.clone(), self.route.context_window);
            self.primary_failure =
                Some(PrimaryFailure { error, context_window: window, fallback_skipped: false });
        }
        let Some(next) = self.fallbacks.pop() else { return Remedy::GiveUp };
        self.switch_to(next);
        Remedy::Fallback
    }

    fn switch_to(&mut self, route: Arc<Route>) {
        self.route = route;
        self.retry = RetryState::new(self.policy);
    }

    /// Whether the usual model has a larger window than the one to ask now, and may soon answer.
    fn primary_is_larger(&self) -> bool {
        let window = self.route.context_window;
        let rests = self.fallbacks.iter().find(|route| route.name == self.primary);
        rests.is_some_and(|primary| primary.context_window > window)
            || self.primary_failure.as_ref().is_some_and(|primary| primary.context_window > window)
    }

    /// What to do where a conversation of `prompt` tokens is long for the model to ask now. What is shortened stays
    /// shortened, so that is not done for one that only stands in, as long as the usual one is larger and may answer.
    pub(super) fn fit_window(&mut self, prompt: u64) -> WindowDecision {
        if self.route.name == self.primary || !self.primary_is_larger() {
            return WindowDecision::Compact;
        }
        if prompt.saturating_add(FALLBACK_ANSWER_TOKENS) <= self.route.context_window {
            return WindowDecision::SendAsIs;
        }
        if let Some(at) = self.fallbacks.iter().position(|route| route.name == self.primary) {
            let primary = self.fallbacks.remove(at);
            let small = Arc::clone(&self.route);
            self.fallbacks.push(small);
            self.switch_to(primary);
            return WindowDecision::SkipModel;
        }
        self.skip_current(&format!("its context window of {} tokens is too small", self.route.context_window))
            .map_or(WindowDecision::GiveUp, |()| WindowDecision::SkipModel)
    }

    /// Goes to the next model, for the one to ask now is too small; none if there is none.
    fn skip_current(&mut self, why: &str) -> Option<()> {
        self.failures.push(format!("{}: {why}", self.route.name));
        if let Some(primary) = &mut self.primary_failure {
            primary.fallback_skipped = true;
        }
        let next = self.fallbacks.pop()?;
        self.switch_to(next);
        Some(())
    }

    fn may_compact(&self) -> bool {
        !self.reset || fault_injection::active(Mutation::CompactForever) && self.attempts < 40
    }

    /// The next stage of shortening; none if nothing is left to try. `for_good` where the provider has refused the
    /// conversation, so that even a reset is better than what there is.
    pub(super) fn next_compaction(&mut self, for_good: bool) -> Option<CompactionStage> {
        if self.summaries < MAX_SUMMARIES {
            self.summaries += 1;
            return Some(CompactionStage::Summary { pass: self.summaries });
        }
        if for_good && self.may_compact() {
            self.reset = true;
            return Some(CompactionStage::Reset);
        }
        None
    }

    /// The error that the step ends with, where `last` is what the last model said, if it was asked. Where
    /// that one was too small, what the usual one said tells whether another try is worth it.
    pub(super) fn into_error(self, last: Option<ModelError>) -> ModelError {
        let was_too_small = last.as_ref().is_none_or(|error| error.kind == ModelErrorKind::TooLong);
        let primary = self.primary_failure.filter(|primary| primary.fallback_skipped && was_too_small);
        let last = primary.map(|primary| primary.error).or(last).unwrap_or_else(ModelError::ended_early);
        if self.failures.len() < 2 {
            return last;
        }
        ModelError { message: format!("no model answers: {}", self.failures.join("; ")), ..last }
    }
}

#[cfg(test)]
#[path = "retry_policy_tests.rs"]
mod tests;
