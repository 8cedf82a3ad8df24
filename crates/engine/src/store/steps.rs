//! The steps of a turn, as the journal keeps them.
//!
//! The journal is the thread: what the model is sent next is read from it, and a turn that was cut off goes on
//! after its last step. Its JSON form is stored in users' brains, so it may only grow; a step of a kind that is
//! not known, which a later version wrote, is left out.

use contract::event::{Failure, HitlKind, StopReason};
use contract::{CallId, HitlId, MessageId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::llm::{Answer, Content, TokenUsage, ToolOutcome};

/// One step of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// The turn was opened.
    Opened(Opened),
    /// The model answered, to the end of its answer.
    Answered {
        /// The message that the answer is.
        message_id: MessageId,
        /// The model that answered.
        model: String,
        /// What it said.
        answer: Answer,
        /// What the call cost in US dollars, where prices were known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost_usd: Option<f64>,
        /// Whether a budget left the answer less room than the model has.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        capped: bool,
    },
    /// A model was asked and gave no answer of the conversation, and will be billed: an attempt that failed, or a
    /// summary. The step itself goes on.
    Spent {
        /// The model.
        model: String,
        /// How many tokens it was.
        tokens: TokenUsage,
        /// What it cost in US dollars, where prices were known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost_usd: Option<f64>,
    },
    /// The beginning of the conversation is sent in a shorter form from here on. Nothing of it is lost: going back
    /// behind this step brings it back.
    Compacted(Compacted),
    /// What the models reasoned so far is not sent from here on: a provider takes it for invalid.
    ReasoningDropped,
    /// The turn was planned, or could not be.
    Planned {
        /// The plan, as the model is told it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<String>,
        /// What it put into the task's working memory.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        memory: Vec<MemoryWrite>,
    },
    /// Working memory was written between two turns, by whoever holds the engine's key. The next turn is told.
    Noted {
        /// What was written.
        memory: Vec<MemoryWrite>,
    },
    /// A sub-agent that a call runs got on by a step of its own conversation.
    Delegated {
        /// The call.
        call_id: CallId,
        /// The step.
        did: Box<Step>,
    },
    /// The user said something to the running turn. The model is told after the step under way.
    Steered {
        /// The message's id.
        message_id: MessageId,
        /// What the user wrote.
        message: String,
    },
    /// A person is needed: a call wants leave, or its tool asks something. Where several wait, they are shown to
    /// the person one after the other.
    Asked {
        /// The request.
        request_id: HitlId,
        /// The call.
        call_id: CallId,
        /// What is wanted.
        kind: HitlKind,
        /// The text to show.
        question: String,
        /// Answers to choose from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        options: Option<Vec<String>>,
    },
    /// The person answered. Where leave was refused, the call's result follows at once.
    Resolved {
        /// The request.
        request_id: HitlId,
        /// The answer.
        answer: String,
        /// What else the person said and gave, for the model.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        remarks: Vec<Content>,
    },
    /// A tool is about to run: from here on its outcome is unknown until a result is on record, or a question
    /// that it asks.
    Intended {
        /// The call.
        call_id: CallId,
    },
    /// A tool finished, or will never run.
    Resulted {
        /// The call.
        call_id: CallId,
        /// What came of it.
        outcome: ToolOutcome,
        /// What it wrote to the task's working memory.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        memory: Vec<MemoryWrite>,
    },
    /// The turn ended.
    Ended {
        /// How.
        outcome: TurnOutcome,
    },
    /// A step of a kind that a later version knows.
    #[serde(other)]
    Unknown,
}

impl Step {
    /// Whether the turn gets on by it: what comes after belongs to the next step. The others are taken down while
    /// a step is under way.
    pub fn is_progress(&self) -> bool {
        match self {
            Self::Spent { .. }
            | Self::Steered { .. }
            | Self::Compacted(_)
            | Self::ReasoningDropped
            | Self::Noted { .. }
            | Self::Unknown => false,
            Self::Delegated { did, .. } => did.is_progress(),
            _ => true,
        }
    }

    /// How many messages it adds to the thread.
    pub fn message_count(&self) -> i64 {
        let adds = match self {
            Self::Opened(opened) => !matches!(opened.base, TurnBase::Retry { .. }),
            Self::Answered { .. } | Self::Steered { .. } => true,
            Self::Ended { outcome: TurnOutcome::Cancelled { said } } => said.is_some(),
            _ => false,
        };
        i64::from(adds)
    }
}

/// How the beginning of a conversation is sent in a shorter form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compacted {
    /// How many messages are no longer sent.
    pub covers: u64,
    /// What is sent in their place.
    pub instead: Replacement,
    /// The most characters of a result that are sent of the messages behind them, up to here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results_up_to: Option<u64>,
    /// The most bytes of working memory that are sent with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_up_to: Option<u64>,
}

/// What is sent in the place of messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "instead", rename_all = "snake_case")]
pub enum Replacement {
    /// A summary of them, with what must survive it.
    Summary {
        /// The summary.
        text: String,
    },
    /// Only what cannot be left out: working memory and the user's last message.
    Reset,
}

/// How a turn was opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opened {
    /// The user's message: a new one, or, for a retry, the one that is answered anew.
    pub message_id: MessageId,
    /// What the engine put before it, such as when it was sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What the user wrote; of no meaning for a retry.
    pub message: String,
    /// What the user attached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<Content>,
    /// How the turn is to run.
    pub options: TurnOptions,
    /// From where the thread goes on.
    #[serde(default, skip_serializing_if = "TurnBase::is_end")]
    pub base: TurnBase,
}

/// From where in the thread a turn goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum TurnBase {
    /// Its end.
    #[default]
    End,
    /// Before this message, which is gone with all that followed.
    Edit {
        /// The message.
        message_id: MessageId,
    },
    /// After this message if it is the user's, before it if it is the agent's. What followed stays listed and is
    /// no longer sent.
    Retry {
        /// The message.
        message_id: MessageId,
    },
}

impl TurnBase {
    /// Whether an earlier message is answered anew.
    pub fn is_retry(self) -> bool {
        matches!(self, Self::Retry { .. })
    }

    fn is_end(&self) -> bool {
        *self == Self::End
    }
}

/// A value that was written to a task's working memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryWrite {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Value,
}

/// How a turn is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnOptions {
    /// The most model calls.
    pub max_turns: u64,
    /// Whether the model may think before it answers.
    pub super_thinking: bool,
    /// Whether planning is left out.
    #[serde(default)]
    pub direct: bool,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum TurnOutcome {
    /// Well.
    Completed {
        /// Why it ended.
        stop_reason: StopReason,
    },
    /// With an error.
    Errored {
        /// What went wrong.
        failure: Failure,
    },
    /// By the user's wish.
    Cancelled {
        /// What the model had said of its answer, if it had begun one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said: Option<PartialAnswer>,
    },
    /// In a way that a later version knows.
    #[serde(other)]
    Unknown,
}

/// The beginning of an answer that was cancelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialAnswer {
    /// The message that it is.
    pub message_id: MessageId,
    /// Its text.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_a_later_version_is_read_as_unknown() {
        let step: Step = serde_json::from_str(r#"{"step":"dreamt","of":{"sheep":7}}"#).unwrap();
        assert_eq!(step, Step::Unknown);
        let step: Step =
            serde_json::from_str(r#"{"step":"ended","outcome":{"outcome":"postponed","to":1}}"#).unwrap();
        assert_eq!(step, Step::Ended { outcome: TurnOutcome::Unknown });
    }
}
