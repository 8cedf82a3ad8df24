//! What a thread knows of the turn that runs. Pure.

use contract::MessageId;
use contract::event::Usage;

use super::loop_detector::LoopDetector;
use crate::llm::{Answer, TokenUsage};
use crate::store::steps::{TurnBase, TurnOptions};

/// The turn that runs.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(super) message_id: MessageId,
    pub(super) options: TurnOptions,
    pub(super) answers: u64,
    /// How often its sub-agents' models have answered.
    pub(super) sub_agent_answers: u64,
    pub(super) last_answer: Option<(MessageId, Answer)>,
    pub(super) totals: TurnUsage,
    /// Whether the last answer had less room than its model has, for a budget left no more.
    pub(super) answer_capped: bool,
    /// Whether it was planned, or that was tried.
    pub(super) planned: bool,
    /// How many model calls beyond the cap the user's words have earned.
    pub(super) extra_calls: u64,
    /// The calls that ended last.
    pub(super) loop_detector: LoopDetector,
    /// Whether it repeats itself.
    pub(super) is_looping: bool,
    pub(super) last_step_ts: i64,
}

/// What a turn has used.
#[derive(Debug, Default)]
pub(super) struct TurnUsage {
    usage: Usage,
    /// Whether clients have not been told of all of it.
    unsent: bool,
    /// Whether something was used whose price nobody knows.
    unpriced: bool,
}

impl TurnUsage {
    /// What it is once another call has used `tokens` and cost `cost_usd`.
    fn after_call(&self, model: &str, tokens: TokenUsage, cost_usd: Option<f64>) -> Usage {
        let mut usage = self.usage.clone();
        tokens.add_to(&mut usage);
        model.clone_into(&mut usage.model);
        let known = cost_usd.filter(|_| !self.unpriced);
        usage.cost_usd = known.map(|cost| cost + self.usage.cost_usd.unwrap_or(0.0));
        usage
    }

    /// Another call has used `tokens`; whether clients are told with it.
    pub(super) fn add(&mut self, model: &str, tokens: TokenUsage, cost_usd: Option<f64>, told: bool) {
        self.usage = self.after_call(model, tokens, cost_usd);
        self.unpriced |= cost_usd.is_none();
        self.unsent = !told;
    }
}

impl Turn {
    /// A turn that was just opened, with the event `ts`.
    pub(super) fn new(message_id: MessageId, options: TurnOptions, base: TurnBase, ts: i64) -> Self {
        Self {
            message_id,
            options,
            answers: 0,
            sub_agent_answers: 0,
            last_answer: None,
            totals: TurnUsage::default(),
            answer_capped: false,
            // An answer that is given anew has its plan beside its question.
            planned: base.is_retry(),
            extra_calls: 0,
            loop_detector: LoopDetector::default(),
            is_looping: false,
            last_step_ts: ts,
        }
    }

    /// The user's message.
    pub(crate) fn message_id(&self) -> MessageId {
        self.message_id
    }

    /// How the turn is to run.
    pub(crate) fn options(&self) -> TurnOptions {
        self.options
    }

    /// The last answer and its message.
    pub(crate) fn last_answer(&self) -> Option<&(MessageId, Answer)> {
        self.last_answer.as_ref()
    }

    /// Whether its model has answered before, with a text or with calls.
    pub(crate) fn has_answered(&self) -> bool {
        self.answers > 0
    }

    /// The tokens used so far.
    pub(crate) fn usage(&self) -> &Usage {
        &self.totals.usage
    }

    /// The tokens used so far, if clients have not been told of all of them.
    pub(crate) fn unsent_usage(&self) -> Option<&Usage> {
        self.totals.unsent.then_some(&self.totals.usage)
    }

    /// The `ts` of the newest event when the last step was on record.
    pub(crate) fn last_step_ts(&self) -> i64 {
        self.last_step_ts
    }

    /// How often a model has answered.
    pub(crate) fn answers(&self) -> u64 {
        self.answers
    }

    /// Whether it was planned, or that was tried.
    pub(crate) fn planned(&self) -> bool {
        self.planned
    }

    /// The tokens used so far, and what they cost if `cost_usd` is what the next call costs.
    pub(crate) fn usage_after_call(&self, model: &str, tokens: TokenUsage, cost_usd: Option<f64>) -> Usage {
        self.totals.after_call(model, tokens, cost_usd)
    }
}
