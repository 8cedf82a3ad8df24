//! Decides what to do when a model does not answer: wait, fall back to another model, compact the conversation,
//! or give up. Pure.

use std::sync::Arc;
use std::time::Duration;

use llm::{ModelError, ModelErrorKind, RetryPolicy, RetryState, Route};

/// The tokens that a fallback model must have left for its answer to receive a conversation as it is.
const FALLBACK_ANSWER_TOKENS: u64 = 4_096;

/// How many times a step may summarise the conversation before it is reset.
const MAX_SUMMARIES: u32 = 2;

/// The remedy for a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Call the same model again after this delay.
    Wait(Duration),
    /// Call the fallback model, which is now the current one.
    Fallback,
    /// Compact the conversation.
    Compact,
    /// Omit the reasoning of earlier answers.
    DropReasoning,
    /// Send the text of files, or a note, in place of images, PDFs and recordings.
    DropMedia,
    /// There is no remedy.
    GiveUp,
}

/// The stages of compaction; each goes further than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompactionStage {
    /// A summary replaces the beginning; the first pass keeps more of the end than the second.
    Summary {
        /// The number of this pass within the step, from 1.
        pass: u32,
    },
    /// Only what cannot be omitted is kept.
    Reset,
}

/// What to do about a conversation that is long for the current model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowDecision {
    /// Compact the conversation.
    Compact,
    /// Send it as it is: there is room.
    SendAsIs,
    /// Call another model, which is now the current one.
    SkipModel,
    /// End the step: the model with a large enough window may soon answer again.
    GiveUp,
}

/// The failure of the primary model.
struct PrimaryFailure {
    error: ModelError,
    /// The context window of the primary model.
    context_window: u64,
    /// Whether a fallback was skipped since, because its window is too small.
    fallback_skipped: bool,
}

/// What becomes of the files of a conversation in the requests of a step.
#[derive(Clone, Copy, Debug)]
enum Files {
    /// There are none that the model takes.
    None,
    /// They are sent as they are.
    Sent,
    /// Their texts are sent, or notes in their place.
    Dropped,
}

/// The attempts at one model step.
pub(super) struct StepAttempts {
    /// The current model.
    route: Arc<Route>,
    /// The fallback models, the next one last.
    fallbacks: Vec<Arc<Route>>,
    /// The name of the primary model.
    primary: String,
    /// The failure of the primary model, if it was given up for a reason that may pass.
    primary_failure: Option<PrimaryFailure>,
    policy: RetryPolicy,
    retry: RetryState,
    /// Whether the conversation is compacted when the provider rejects it as too long.
    reactive_compaction: bool,
    attempts: u32,
    summaries: u32,
    reset: bool,
    reasoning_dropped: bool,
    files: Files,
    /// The error of each model that was given up.
    failures: Vec<String>,
}

impl StepAttempts {
    /// The attempts of a step that may call the models of `chain`, where `primary` is the preferred one; `None`
    /// if the chain is empty.
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
            files: Files::None,
            failures: Vec::new(),
        })
    }

    /// The current model.
    pub(super) const fn route(&self) -> &Arc<Route> {
        &self.route
    }

    /// The number of attempts begun.
    pub(super) const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether images, PDFs and recordings are left out.
    pub(super) const fn is_media_dropped(&self) -> bool {
        matches!(self.files, Files::Dropped)
    }

    /// Begins another attempt. Returns its number, from 1.
    pub(super) fn begin_attempt(&mut self) -> u32 {
        self.attempts += 1;
        self.attempts
    }

    /// Records whether the conversation has images, PDFs or recordings that the current model is sent.
    pub(super) const fn set_has_files(&mut self, has_files: bool) {
        match self.files {
            Files::None | Files::Sent => self.files = if has_files { Files::Sent } else { Files::None },
            Files::Dropped => {}
        }
    }

    /// Returns the remedy after an attempt failed with `error` at `now`. `jitter` is from 0 to 1.
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
            // The provider counts more tokens than were estimated.
            ModelErrorKind::TooLong if self.route.name != self.primary && self.primary_is_larger() => {
                self.skip_current(&error.message).map_or(Remedy::GiveUp, |()| Remedy::Fallback)
            }
            ModelErrorKind::TooLong if self.reactive_compaction && !self.reset => Remedy::Compact,
            ModelErrorKind::BrokenHistory if !self.reasoning_dropped => {
                self.reasoning_dropped = true;
                Remedy::DropReasoning
            }
            // A file may be too large or broken for this provider, or its model takes none. The conversation would be
            // refused for good.
            ModelErrorKind::Refused if matches!(self.files, Files::Sent) => {
                self.files = Files::Dropped;
                Remedy::DropMedia
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

    /// Returns whether the primary model has a larger window than the current one and may soon answer.
    fn primary_is_larger(&self) -> bool {
        let window = self.route.context_window;
        let queued = self.fallbacks.iter().find(|route| route.name == self.primary);
        queued.is_some_and(|primary| primary.context_window > window)
            || self.primary_failure.as_ref().is_some_and(|primary| primary.context_window > window)
    }

    /// Decides about a conversation of `prompt` tokens that is long for the current model. Compaction is
    /// permanent, so it is not done for a fallback as long as the primary model is larger and may answer.
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

    /// Moves to the next model because the current one is too small; `None` if there is none.
    fn skip_current(&mut self, reason: &str) -> Option<()> {
        self.failures.push(format!("{}: {reason}", self.route.name));
        if let Some(primary) = &mut self.primary_failure {
            primary.fallback_skipped = true;
        }
        let next = self.fallbacks.pop()?;
        self.switch_to(next);
        Some(())
    }

    /// The next stage of compaction; `None` if none is left. `allow_reset` if the provider has refused
    /// the conversation, so that even a reset is better than the current state.
    pub(super) fn next_compaction(&mut self, allow_reset: bool) -> Option<CompactionStage> {
        if self.summaries < MAX_SUMMARIES {
            self.summaries += 1;
            return Some(CompactionStage::Summary { pass: self.summaries });
        }
        if allow_reset && !self.reset {
            self.reset = true;
            return Some(CompactionStage::Reset);
        }
        None
    }

    /// The error that the step ends with. `last` is the error of the last model, if it was called. If that
    /// model was too small, the primary model's error says whether a retry is worthwhile.
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
#[path = "../../tests/unit/agent/retry_policy.rs"]
mod tests;
