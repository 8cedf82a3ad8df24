//! A task's conversation and the state of its turn, folded from the journal. Pure: no clock, no store.
//!
//! Whatever happened to earlier turns, what the fold gives is a valid conversation: every call is followed by
//! its result, one that was never run by a result that says so.

use contract::event::{StopReason, Usage};
use contract::{CallId, MessageId, TurnId};

use crate::brain::steps::{Step, TurnOptions};
use crate::brain::{Brain, StoredStep, TaskRow};
use crate::models::{Answer, Message, ToolOutcome, ToolReply, ToolUse};

/// What a turn does next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Next {
    /// Ask the model.
    AskModel,
    /// See to the calls of the last answer that have no result.
    RunTools(Vec<OpenCall>),
    /// End well.
    Complete(StopReason),
}

/// A call without a result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenCall {
    /// The call.
    pub(crate) call: ToolUse,
    /// Whether its intent is on record: then it may have run.
    pub(crate) intended: bool,
}

/// A conversation and its current turn.
#[derive(Debug)]
pub(crate) struct Thread {
    messages: Vec<Message>,
    calls: Vec<CallState>,
    turn: Turn,
}

#[derive(Debug)]
struct CallState {
    call: ToolUse,
    intended: bool,
    outcome: Option<ToolOutcome>,
}

/// The turn that runs.
#[derive(Debug)]
pub(crate) struct Turn {
    message_id: MessageId,
    options: TurnOptions,
    answers: u64,
    last_answer: Option<(MessageId, Answer)>,
    usage: Usage,
    step_ts: i64,
}

impl Turn {
    fn opened(message_id: MessageId, options: TurnOptions) -> Self {
        Self { message_id, options, answers: 0, last_answer: None, usage: Usage::default(), step_ts: 0 }
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

    /// The tokens used so far.
    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// The `ts` of the newest event when the last step was on record.
    pub(crate) fn step_ts(&self) -> i64 {
        self.step_ts
    }
}

/// A journal that does not begin a turn before it goes on with it.
#[derive(Debug, thiserror::Error)]
#[error("the journal of turn {0} does not begin with its opening")]
pub(crate) struct NotOpened(TurnId);

impl Thread {
    /// Reads the conversation of `task` up to where `turn_id` stands.
    pub(crate) fn load(brain: &Brain, task: TaskRow, turn_id: TurnId) -> Result<Self, LoadError> {
        Ok(Self::fold(brain.steps(task)?, turn_id)?)
    }

    fn fold(steps: Vec<StoredStep>, turn_id: TurnId) -> Result<Self, NotOpened> {
        let mut thread: Option<Self> = None;
        let mut current = None;
        for StoredStep { turn_id: of, ts, step } in steps {
            current = Some(of);
            match (step, &mut thread) {
                (Step::Opened { message_id, message, options }, thread) => {
                    let turn = Turn::opened(message_id, options);
                    let thread = match thread {
                        Some(thread) => {
                            thread.settle_calls();
                            thread.turn = turn;
                            thread
                        }
                        None => thread.insert(Self { messages: Vec::new(), calls: Vec::new(), turn }),
                    };
                    thread.messages.push(Message::user(message));
                    thread.turn.step_ts = ts;
                }
                (step, Some(thread)) => thread.apply(step, ts),
                (_, None) => return Err(NotOpened(of)),
            }
        }
        match thread {
            Some(thread) if current == Some(turn_id) => Ok(thread),
            _ => Err(NotOpened(turn_id)),
        }
    }

    /// The conversation, as a model is sent it. Valid whenever [`Thread::next`] says [`Next::AskModel`].
    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The turn that runs.
    pub(crate) fn turn(&self) -> &Turn {
        &self.turn
    }

    /// What the turn does next.
    pub(crate) fn next(&self) -> Next {
        let open: Vec<OpenCall> = self
            .calls
            .iter()
            .filter(|state| state.outcome.is_none())
            .map(|state| OpenCall { call: state.call.clone(), intended: state.intended })
            .collect();
        if !open.is_empty() {
            return Next::RunTools(open);
        }
        if self.turn.last_answer.as_ref().is_some_and(|(_, answer)| answer.calls().next().is_none()) {
            return Next::Complete(StopReason::EndTurn);
        }
        if self.turn.answers >= self.turn.options.max_turns {
            return Next::Complete(StopReason::MaxTurns);
        }
        Next::AskModel
    }

    /// Takes in a step after the opening that is now on record.
    pub(crate) fn apply(&mut self, step: Step, ts: i64) {
        self.turn.step_ts = ts;
        match step {
            // Folded where the turn changes.
            Step::Opened { .. } => {}
            Step::Answered { message_id, model, answer } => {
                self.turn.answers += 1;
                answer.usage.add_to(&mut self.turn.usage);
                self.turn.usage.model.clone_from(&model);
                let state = |call: &ToolUse| CallState { call: call.clone(), intended: false, outcome: None };
                self.calls = answer.calls().map(state).collect();
                self.messages.push(Message::Assistant { model, blocks: answer.blocks.clone() });
                self.turn.last_answer = Some((message_id, answer));
            }
            Step::Intended { call_id } => {
                if let Some(state) = self.call(call_id) {
                    state.intended = true;
                }
            }
            Step::Resulted { call_id, outcome } => {
                if let Some(state) = self.call(call_id) {
                    state.outcome = Some(outcome);
                }
                if self.calls.iter().all(|state| state.outcome.is_some()) {
                    self.settle_calls();
                }
            }
            Step::Ended { .. } => self.settle_calls(),
        }
    }

    fn call(&mut self, call_id: CallId) -> Option<&mut CallState> {
        self.calls.iter_mut().find(|state| state.call.call_id == call_id)
    }

    /// Turns the calls of the last answer into the message that answers them.
    fn settle_calls(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let replies = self.calls.drain(..).map(|CallState { call, intended, outcome }| {
            let (text, is_error) = match outcome {
                Some(ToolOutcome { error: Some(error), .. }) => (error, true),
                Some(ToolOutcome { output, error: None, .. }) => (output, false),
                None if intended => (OUTCOME_UNKNOWN.to_owned(), true),
                None => (NEVER_RUN.to_owned(), true),
            };
            ToolReply { provider_id: call.provider_id, text, remarks: Vec::new(), is_error }
        });
        self.messages.push(Message::Results(replies.collect()));
    }
}

/// What the model is told of a call that was begun and whose result nobody saw.
pub(crate) const OUTCOME_UNKNOWN: &str = "The outcome of this call is unknown: it was cut off after it had begun. \
                                          It may have taken effect. Check before you call it again.";
const NEVER_RUN: &str = "This call was not run: the turn ended before.";

/// Why a conversation could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The brain could not be read.
    #[error(transparent)]
    Read(#[from] rusqlite::Error),
    /// The journal makes no sense.
    #[error(transparent)]
    NotOpened(#[from] NotOpened),
}

#[cfg(test)]
#[path = "thread_tests.rs"]
mod tests;
