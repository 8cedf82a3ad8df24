//! The state of the current turn within a thread. Pure.

use api::MessageId;
use api::event::Usage;
use api::turn_options::TurnOverrides;
use llm::{Answer, TokenUsage};
use store::steps::{TurnBase, TurnOptions};

use super::loop_detector::LoopDetector;

/// The current turn.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(super) message_id: MessageId,
    pub(super) options: TurnOptions,
    pub(super) answers: u64,
    /// How often its sub-agents' models have answered.
    pub(super) sub_agent_answers: u64,
    pub(super) last_answer: Option<(MessageId, Answer)>,
    pub(super) totals: TurnUsage,
    /// Whether a budget limited the last answer to less than its model's maximum.
    pub(super) answer_capped: bool,
    /// Whether the turn was planned, or planning was tried.
    pub(super) planned: bool,
    /// The number of notes before the one with recalled memories; `None` once a step follows the opening.
    pub(super) recall_at: Option<usize>,
    /// The `traceparent` of the request that opened the turn.
    pub(super) traceparent: Option<String>,
    /// The number of model calls beyond the limit that steering messages have added.
    pub(super) extra_calls: u64,
    /// Whether the turn repeats itself.
    pub(super) loop_detector: LoopDetector,
    /// Whether a final answer did not match the schema of the request, so that the model corrects it.
    pub(super) output_rejected: bool,
    pub(super) last_step_ts: i64,
}

/// The usage of a turn.
#[derive(Debug, Default)]
pub(super) struct TurnUsage {
    usage: Usage,
    /// Whether part of it has not been sent to clients.
    unsent: bool,
    /// Whether the price of any part is unknown.
    unpriced: bool,
}

impl TurnUsage {
    /// The usage after another call that used `tokens` and cost `cost_usd`.
    fn after_call(&self, model: &str, tokens: TokenUsage, cost_usd: Option<f64>) -> Usage {
        let mut usage = self.usage.clone();
        tokens.add_to(&mut usage);
        model.clone_into(&mut usage.model);
        let known = cost_usd.filter(|_| !self.unpriced);
        usage.cost_usd = known.map(|cost| cost + self.usage.cost_usd.unwrap_or(0.0));
        usage
    }

    /// Adds the usage of another call. `sent` is whether clients receive it with that call.
    pub(super) fn add(&mut self, model: &str, tokens: TokenUsage, cost_usd: Option<f64>, sent: bool) {
        self.usage = self.after_call(model, tokens, cost_usd);
        self.unpriced |= cost_usd.is_none();
        self.unsent = !sent;
    }
}

impl Turn {
    /// Creates a turn that was just opened by the event `ts`.
    pub(super) fn new(message_id: MessageId, options: TurnOptions, base: TurnBase, ts: i64) -> Self {
        Self {
            message_id,
            options,
            answers: 0,
            sub_agent_answers: 0,
            last_answer: None,
            totals: TurnUsage::default(),
            answer_capped: false,
            // The plan of a retried answer accompanies its question already.
            planned: base.is_retry(),
            recall_at: None,
            traceparent: None,
            extra_calls: 0,
            loop_detector: LoopDetector::default(),
            output_rejected: false,
            last_step_ts: ts,
        }
    }

    /// The id of the user's message.
    pub(crate) fn message_id(&self) -> MessageId {
        self.message_id
    }

    /// The options of the turn.
    pub(crate) fn options(&self) -> &TurnOptions {
        &self.options
    }

    /// The span of the request that opened the turn, whose trace the turn belongs to.
    pub(super) fn trace_parent(&self) -> Option<traces::Parent> {
        traces::Parent::from_headers(self.traceparent.as_deref()?, None)
    }

    /// What the request set for this turn only.
    pub(super) fn overrides(&self) -> Option<&TurnOverrides> {
        self.options.overrides.as_deref()
    }

    /// The name of the model that the request chose.
    pub(super) fn model(&self) -> Option<&str> {
        self.overrides()?.model.as_deref()
    }

    /// Whether a final answer did not match the schema of the request, so that the model corrects it.
    pub(super) fn output_rejected(&self) -> bool {
        self.output_rejected
    }

    /// The cost so far in US dollars; `None` if the price of any part is unknown.
    pub(super) fn cost_usd(&self) -> Option<f64> {
        (!self.totals.unpriced).then(|| self.totals.usage.cost_usd.unwrap_or(0.0))
    }

    /// The last answer and the id of its message.
    pub(crate) fn last_answer(&self) -> Option<&(MessageId, Answer)> {
        self.last_answer.as_ref()
    }

    /// Returns whether the turn's model has answered before, with text or calls.
    pub(crate) fn has_answered(&self) -> bool {
        self.answers > 0
    }

    /// The usage so far.
    pub(crate) fn usage(&self) -> &Usage {
        &self.totals.usage
    }

    /// The usage so far, if part of it has not been sent to clients.
    pub(crate) fn unsent_usage(&self) -> Option<&Usage> {
        self.totals.unsent.then_some(&self.totals.usage)
    }

    /// The `ts` of the newest event when the last step was committed.
    pub(crate) fn last_step_ts(&self) -> i64 {
        self.last_step_ts
    }

    /// How often the model has answered.
    pub(crate) fn answers(&self) -> u64 {
        self.answers
    }

    /// Whether the turn was planned, or planning was tried.
    pub(crate) fn planned(&self) -> bool {
        self.planned
    }

    /// The usage including the next call, with its tokens and its cost `cost_usd`.
    pub(crate) fn usage_after_call(&self, model: &str, tokens: TokenUsage, cost_usd: Option<f64>) -> Usage {
        self.totals.after_call(model, tokens, cost_usd)
    }
}
