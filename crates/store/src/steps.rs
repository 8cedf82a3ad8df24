//! The steps of a turn, in the form in which the journal stores them.
//!
//! The journal is the conversation: the model's next input is built from it, and an interrupted turn resumes after
//! its last step. The JSON form is stored in users' brains, so it may only grow; a step of an unknown kind, which
//! a later version wrote, is ignored.

use api::approvals::ApprovalReason;
use api::citations::{Citation, NumberedPage};
use api::event::{Failure, HitlKind, StopReason};
use api::memory::Source;
use api::turn_options::TurnOverrides;
use api::{CallId, HitlId, MessageId};
use llm::{Answer, Content, TokenUsage, ToolOutcome};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One step of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// The turn was opened.
    Opened(Opened),
    /// The model answered completely.
    Answered {
        /// The id of the answer's message.
        message_id: MessageId,
        /// The model that answered.
        model: String,
        /// The answer.
        answer: Answer,
        /// The cost of the call in US dollars, if prices were known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost_usd: Option<f64>,
        /// Whether a budget allowed the answer fewer tokens than the model does.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        capped: bool,
    },
    /// A model call that is billed but gave no answer of the conversation: a failed attempt, or a summary. The
    /// step in progress continues.
    Spent {
        /// The model that was called.
        model: String,
        /// The number of tokens used.
        tokens: TokenUsage,
        /// The cost in US dollars, if prices were known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost_usd: Option<f64>,
    },
    /// From here on the beginning of the conversation is sent in a compacted form. Nothing of it is lost: going
    /// back before this step restores it.
    Compacted(Compacted),
    /// From here on the models' earlier reasoning is not sent, because a provider rejected it as invalid.
    ReasoningDropped,
    /// From here on the images, PDFs and recordings so far are not sent, because a provider refused the conversation
    /// with them and accepted it without.
    MediaDropped,
    /// Memories that are relevant to the user's message were found. A step of its own, so that the search runs while
    /// the opening is being stored.
    Recalled {
        /// The memories, as they are sent to the model: a note of the user's message, in the place that
        /// [`Opened::recall_at`] gives. Absent if only corrections were recalled, which the opening contains.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        /// The source of the note: see [`Step::source`].
        #[serde(default, skip_serializing_if = "StoredSource::is_absent")]
        source: StoredSource,
    },
    /// The turn was planned, or planning failed.
    Planned {
        /// The plan, as it is sent to the model.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<String>,
        /// The values that the plan wrote to the task's working memory.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        memory: Vec<MemoryWrite>,
        /// The source of the plan: see [`Step::source`].
        #[serde(default, skip_serializing_if = "StoredSource::is_absent")]
        source: StoredSource,
    },
    /// Working memory was written between two turns by a holder of the engine's key. The next turn is informed.
    Noted {
        /// The values that were written.
        memory: Vec<MemoryWrite>,
    },
    /// A sub-agent that runs inside a call advanced by a step of its own conversation.
    Delegated {
        /// The call that runs the sub-agent.
        call_id: CallId,
        /// The step of the sub-agent.
        did: Box<Step>,
    },
    /// The user sent a message to the running turn. The model receives it after the current step.
    Steered {
        /// The id of the message.
        message_id: MessageId,
        /// The text of the message.
        message: String,
    },
    /// The user is needed: a call requires approval, or its tool asks a question. Several requests are shown one
    /// after the other.
    Asked {
        /// The id of the request.
        request_id: HitlId,
        /// The call that needs the user.
        call_id: CallId,
        /// The kind of the request.
        kind: HitlKind,
        /// The text that is shown to the user.
        question: String,
        /// The answers to choose from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        options: Option<Vec<String>>,
        /// Why the call needs an approval; absent for a question, and from earlier versions. Clients have received
        /// the call together with this step.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<ApprovalReason>,
    },
    /// The user answered. If approval was denied, the call's result follows at once.
    Resolved {
        /// The id of the request.
        request_id: HitlId,
        /// The answer.
        answer: String,
        /// Further remarks and attachments of the user, for the model.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        remarks: Vec<Content>,
        /// The caller's own id of the answer, by which it is recognized if it is sent again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answer_id: Option<String>,
    },
    /// Hooks of the catalog have seen a call, before it runs or after it. What they decided is stored before it
    /// takes effect.
    Hooked {
        /// The call.
        call_id: CallId,
        /// The input that runs instead of the model's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Value>,
        /// What the model reads about the call, with its result.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        notes: Vec<String>,
        /// The source of input and notes: see [`Step::source`].
        #[serde(default, skip_serializing_if = "StoredSource::is_absent")]
        source: StoredSource,
    },
    /// A tool returned, and hooks are to see its outcome before anybody else does. The call's result follows.
    Returned {
        /// The call.
        call_id: CallId,
        /// The outcome of the tool.
        outcome: ToolOutcome,
        /// The values that the tool wrote to the task's working memory.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        memory: Vec<MemoryWrite>,
        /// The source of the outcome: see [`Step::source`].
        #[serde(default, skip_serializing_if = "StoredSource::is_absent")]
        source: StoredSource,
    },
    /// The user approved a call with another input. A step of its own, so that an earlier version, which does not
    /// know it, keeps waiting rather than running the call as it was.
    InputChanged {
        /// The id of the request.
        request_id: HitlId,
        /// The call.
        call_id: CallId,
        /// The input that the call runs with.
        input: Value,
        /// The answer.
        answer: String,
        /// Further remarks of the user, for the model.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        remarks: Vec<Content>,
    },
    /// A tool is about to run. From here on its outcome is unknown until a result, or a question that it asks, is
    /// stored.
    Intended {
        /// The call.
        call_id: CallId,
    },
    /// A tool finished, or will never run.
    Resulted {
        /// The call.
        call_id: CallId,
        /// The outcome of the call.
        outcome: ToolOutcome,
        /// The values that the tool wrote to the task's working memory.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        memory: Vec<MemoryWrite>,
        /// The source of the outcome: see [`Step::source`].
        #[serde(default, skip_serializing_if = "StoredSource::is_absent")]
        source: StoredSource,
    },
    /// The result of a call, which follows, shows these pages. The agent may cite them once it has the result.
    Numbered {
        /// The call.
        call_id: CallId,
        /// The pages, with the numbers that the result shows.
        pages: Vec<NumberedPage>,
    },
    /// The answer names these pages. Stored as the turn completes.
    Cited {
        /// The answer's message.
        message_id: MessageId,
        /// The pages.
        citations: Vec<Citation>,
    },
    /// The last answer does not match the schema that the request sets for the final answer. The model is told,
    /// and answers once more.
    OutputRejected {
        /// The id of the message that tells the model. It is not listed.
        message_id: MessageId,
        /// What is wrong and where, as the model reads it.
        errors: String,
    },
    /// The turn ended.
    Ended {
        /// The outcome of the turn.
        outcome: TurnOutcome,
    },
    /// A step of a kind that only a later version knows.
    #[serde(other)]
    Unknown,
}

impl Step {
    /// Whether the turn makes progress by this step, so that what follows belongs to the next step. Other steps
    /// are stored while a step is in progress.
    pub fn is_progress(&self) -> bool {
        match self {
            Self::Spent { .. }
            | Self::Steered { .. }
            | Self::Compacted(_)
            | Self::ReasoningDropped
            | Self::MediaDropped
            | Self::Recalled { .. }
            | Self::Noted { .. }
            | Self::Numbered { .. }
            | Self::Cited { .. }
            | Self::Unknown => false,
            Self::Delegated { did, .. } => did.is_progress(),
            _ => true,
        }
    }

    /// The caller's own id of the answer that the step is, of the turn itself or of a sub-agent.
    pub(super) fn answer_id(&self) -> Option<&str> {
        match self {
            Self::Resolved { answer_id, .. } => answer_id.as_deref(),
            Self::Delegated { did, .. } => did.answer_id(),
            _ => None,
        }
    }

    /// The number of messages that the step adds to the conversation.
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

/// How the beginning of a conversation is compacted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compacted {
    /// The number of messages that are no longer sent.
    pub covers: u64,
    /// The replacement that is sent in their place.
    pub instead: Replacement,
    /// The most characters that are sent of each tool result in the messages between the covered ones and this
    /// step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results_up_to: Option<u64>,
    /// The most bytes of working memory that are sent with the replacement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_up_to: Option<u64>,
}

/// The replacement that is sent in place of the covered messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "instead", rename_all = "snake_case")]
pub enum Replacement {
    /// A summary of them, together with what must be preserved.
    Summary {
        /// The text of the summary.
        text: String,
    },
    /// Only what is indispensable: working memory and the user's last message.
    Reset,
}

/// How a turn was opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opened {
    /// The user's message: a new one, or, for a retry, the one that is answered again.
    pub message_id: MessageId,
    /// Notes that the engine put before the message, such as the time at which it was sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The source of the notes, which is a tool if one of them contains content from a tool: see
    /// [`Opened::source_of_notes`].
    #[serde(default, skip_serializing_if = "StoredSource::is_absent")]
    pub notes_source: StoredSource,
    /// The number of notes before the one that [`Step::Recalled`] adds. Absent if none is added: a retry and a
    /// sub-agent recall nothing, and the notes of earlier versions contain what was recalled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recall_at: Option<usize>,
    /// The text of the user's message; meaningless for a retry.
    pub message: String,
    /// The user's attachments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<Content>,
    /// The options of the turn.
    pub options: TurnOptions,
    /// The point from which the conversation continues.
    #[serde(default, skip_serializing_if = "TurnBase::is_end")]
    pub base: TurnBase,
    /// Hashes of what the model is sent before the conversation; absent for sub-agents and from earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PromptHashes>,
    /// The `traceparent` of the request that opened the turn; absent if traces were not exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

impl Opened {
    /// The name of the model that the request chose.
    pub fn model(&self) -> Option<&str> {
        self.options.overrides.as_ref()?.model.as_deref()
    }
}

/// SHA-256 of what a model is sent before the conversation, in lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptHashes {
    /// Of the system prompt.
    pub system: String,
    /// Of the declarations of the tools.
    pub tools: String,
}

/// The point of the conversation from which a turn continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum TurnBase {
    /// The end of the conversation.
    #[default]
    End,
    /// Before this message, which is removed with everything after it.
    Edit {
        /// The edited message.
        message_id: MessageId,
    },
    /// After this message if it is the user's, before it if it is the agent's. What followed is still listed but
    /// no longer sent.
    Retry {
        /// The message to retry from.
        message_id: MessageId,
    },
}

impl TurnBase {
    /// Whether an earlier message is answered again.
    pub fn is_retry(self) -> bool {
        matches!(self, Self::Retry { .. })
    }

    fn is_end(&self) -> bool {
        *self == Self::End
    }
}

/// A write to a task's working memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryWrite {
    /// The key.
    pub key: String,
    /// The new value.
    pub value: Value,
}

/// The options of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnOptions {
    /// The most model calls.
    pub max_turns: u64,
    /// Whether the model may think before it answers.
    pub super_thinking: bool,
    /// Whether planning is skipped: the request or the catalog says so, or the message is not worth a plan.
    #[serde(default)]
    pub direct: bool,
    /// What the request set for this turn only; absent if it set nothing. Instructions are among the turn's notes
    /// instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<Box<TurnOverrides>>,
}

/// The outcome of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum TurnOutcome {
    /// The turn completed normally.
    Completed {
        /// The reason why the model stopped.
        stop_reason: StopReason,
    },
    /// The turn failed.
    Errored {
        /// The error.
        failure: Failure,
    },
    /// The user cancelled the turn.
    Cancelled {
        /// The part of the answer that the model had produced, if it had begun one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said: Option<PartialAnswer>,
    },
    /// An outcome that only a later version knows.
    #[serde(other)]
    Unknown,
}

/// The beginning of an answer that was cancelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialAnswer {
    /// The id of the answer's message.
    pub message_id: MessageId,
    /// The text produced so far.
    pub text: String,
}

/// The stored source of a text; absent from journals that are older than this field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoredSource(pub(crate) Option<Source>);

impl From<Source> for StoredSource {
    fn from(source: Source) -> Self {
        Self(Some(source))
    }
}

impl StoredSource {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) fn is_absent(&self) -> bool {
        self.0.is_none()
    }
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
