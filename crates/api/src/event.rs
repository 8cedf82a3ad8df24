//! The events of a turn, and their encoding as Server-Sent Events.
//!
//! Each event is encoded as `id: <ts>`, `event: <type>` and `data: <json>`. Every data object contains `task_id`,
//! `turn_id` and `ts` (Unix milliseconds, strictly increasing within its task), so a client that replays after the
//! last `ts` it received neither loses nor repeats an event. Only [`Event::Heartbeat`] and [`Event::BusyUpdate`]
//! have no `id:` line: they repeat the last `ts` and are neither stored nor replayed.

mod stream_schema;
mod tool_calls;

use serde::{Deserialize, Serialize, de};
use serde_json::Value;
pub use stream_schema::TurnEvent;
pub use tool_calls::{HookDecision, HookPhase, ToolCall, ToolHook, ToolResult};
use utoipa::ToSchema;

use crate::approvals::{ApprovalRequest, ApprovalResolved};
use crate::citations::Citations;
use crate::ids::HitlId;
use crate::turns::BusyUpdate;
use crate::usage_caps::UsageCapEvent;
use crate::{CallId, MessageId, TaskId, Timestamp, TurnId};

/// One event of a turn: its type and the data of that type.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Event {
    /// The start, the end or a change of phase of a turn.
    ThreadLifecycle(Lifecycle),
    /// The turn failed; nothing follows.
    Error(Failure),
    /// A chunk of output text; concatenate in order.
    TextDelta(Delta),
    /// A chunk of the model's reasoning.
    ThinkingDelta(Delta),
    /// A content block begins.
    ContentBlockStart(BlockStart),
    /// A content block ends.
    ContentBlockStop(BlockStop),
    /// The model calls a tool; sent once the call is stored.
    ToolCall(ToolCall),
    /// A tool finished.
    ToolResult(ToolResult),
    /// A hook of the catalog acted on a tool call.
    ToolHook(ToolHook),
    /// The agent paused for a person's answer.
    HitlRequest(HitlRequest),
    /// The person answered.
    HitlResolved(HitlResolved),
    /// The agent wrote to working memory.
    WorkingMemoryUpdate(WorkingMemoryUpdate),
    /// Earlier turns were replaced by a summary.
    CompactionEvent(Compaction),
    /// Sent after a period without events: the connection is alive.
    Heartbeat(Heartbeat),
    /// Tokens used by the turn so far.
    Usage(Usage),
    /// An event of a sub-agent of the turn.
    AgentEvent(AgentEvent),
    /// What became of a message to a busy task.
    BusyUpdate(BusyUpdate),
    /// A tool call waits for a person's decision.
    ApprovalRequest(Box<ApprovalRequest>),
    /// A person has decided about a tool call.
    ApprovalResolved(ApprovalResolved),
    /// Much of a cap on usage, or all of it, is used.
    UsageCap(UsageCapEvent),
    /// The pages that the turn's answer names.
    Citations(Citations),
}

/// The data of `thread_lifecycle`. Every phase names the turn's user message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum Lifecycle {
    /// The turn began.
    Started {
        /// The turn's user message.
        message_id: MessageId,
    },
    /// The turn completed.
    Completed {
        /// The turn's user message.
        message_id: MessageId,
        /// The message that contains the model's last answer.
        answer_message_id: MessageId,
        /// The text of the model's last answer.
        text: String,
        /// Why the turn ended.
        stop_reason: StopReason,
    },
    /// The turn failed; an `error` event follows, and nothing after it.
    Errored {
        /// The turn's user message.
        message_id: MessageId,
    },
    /// The engine was restarted and continues the turn.
    Resumed {
        /// The turn's user message.
        message_id: MessageId,
    },
    /// A model step is repeated: its events after `void_after` no longer count.
    Retrying {
        /// The turn's user message.
        message_id: MessageId,
        /// The `ts` of the last event before the step.
        void_after: i64,
        /// The number of the attempt that starts now; the first repetition is 2.
        attempt: u32,
    },
    /// The turn was cancelled.
    Cancelled {
        /// The turn's user message.
        message_id: MessageId,
    },
}

/// Why a completed turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended its answer.
    EndTurn,
    /// The turn's limit on model calls was reached.
    MaxTurns,
    /// A token budget was exhausted.
    Budget,
    /// The model kept making the same call with the same result.
    Loop,
}

/// The data of `error`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// A stable code.
    pub code: FailureCode,
    /// What went wrong and what to do, for a person.
    pub message: String,
    /// Whether the same message may succeed later without a change of configuration.
    pub retryable: bool,
}

/// Why a turn failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FailureCode {
    /// No usable provider is configured; the message says what to set.
    ProviderNotConfigured,
    /// The provider refused the key.
    ProviderAuth,
    /// The provider refused the request.
    ProviderRefused,
    /// The provider was overloaded, out of quota or unreachable, even after retries.
    ProviderUnavailable,
    /// Eight starts of the engine in a row resumed the turn without progress.
    ResumeLimit,
    /// The person's answer did not arrive in time.
    HitlExpired,
    /// The final answer did not match the schema of the request, even after one correction.
    OutputInvalid,
    /// A cap on usage was reached before the turn had an answer; the message names the cap.
    UsageCapReached,
    /// An unexpected failure.
    InternalError,
}

/// The data of `text_delta` and `thinking_delta`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Delta {
    /// The chunk.
    pub text: String,
}

/// The data of `content_block_start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlockStart {
    /// The block's number, counted through the turn.
    pub index: u32,
    /// The type of the block's content.
    pub block_type: BlockType,
}

/// The type of a content block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockType {
    /// Output text.
    Text,
    /// Reasoning.
    Thinking,
    /// A tool call.
    ToolUse,
}

/// The data of `content_block_stop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlockStop {
    /// The number of the block that ends.
    pub index: u32,
}

/// The data of `hitl_request`, which is also an entry of `GET /hitl/pending`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HitlRequest {
    /// The request's id, needed for the answer.
    pub request_id: HitlId,
    /// The task whose agent is paused.
    pub task_id: TaskId,
    /// What kind of answer is needed.
    pub kind: HitlKind,
    /// The text to show.
    pub question: String,
    /// When it was asked.
    pub created_at: Timestamp,
    /// The answers to choose from, if the agent provides any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<Vec<String>>,
}

/// The kind of answer that a paused agent needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HitlKind {
    /// An approval of a tool call.
    Permission,
    /// The answer to a question.
    Question,
}

impl HitlKind {
    /// Returns the kind's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Permission => "permission",
            Self::Question => "question",
        }
    }
}

impl std::str::FromStr for HitlKind {
    type Err = UnknownHitlKind;

    fn from_str(text: &str) -> Result<Self, UnknownHitlKind> {
        [Self::Permission, Self::Question]
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or(UnknownHitlKind)
    }
}

/// The error for an unknown kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be `permission` or `question`")]
pub struct UnknownHitlKind;

/// The data of `hitl_resolved`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HitlResolved {
    /// The request that was answered.
    pub request_id: HitlId,
    /// The answer.
    pub answer: String,
}

/// The data of `working_memory_update`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkingMemoryUpdate {
    /// The key that was written.
    pub key: String,
    /// The key's new value.
    pub value: Value,
}

/// The data of `compaction_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Compaction {
    /// What caused the compaction.
    pub reason: CompactionReason,
    /// The number of messages that were replaced.
    pub messages_collapsed: u64,
    /// The size of the prompt before, in tokens.
    pub tokens_before: u64,
    /// The size of the prompt after, in tokens.
    pub tokens_after: u64,
}

/// What caused a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompactionReason {
    /// The prompt had reached its share of the context window.
    Threshold,
    /// The provider reported that the prompt was too long.
    Reactive,
}

/// The data of `heartbeat`, which has no fields of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Heartbeat {}

/// The data of `usage`: cumulative for the turn, including voided model steps, which are billed too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// The model that answered last.
    pub model: String,
    /// All prompt tokens, including cached ones.
    pub input_tokens: u64,
    /// All output tokens, including reasoning.
    pub output_tokens: u64,
    /// Prompt tokens read from the provider's cache.
    pub cache_read_tokens: u64,
    /// Prompt tokens written to the provider's cache.
    pub cache_write_tokens: u64,
    /// Output tokens spent on reasoning.
    pub reasoning_tokens: u64,
    /// The cost in US dollars, if prices are configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

/// The data of `agent_event`: an event of a sub-agent, wrapped because the turn itself did not send it.
///
/// Events that a person must answer, that change the task's working memory or that are billed are sent as events
/// of the turn itself, even if a sub-agent causes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentEvent {
    /// The call that runs the sub-agent.
    pub tool_call_id: CallId,
    /// The sub-agent's name.
    pub agent: String,
    /// The type of its event.
    pub event: String,
    /// The data of its event.
    pub data: Value,
}

impl AgentEvent {
    /// Wraps `event` as an event of the sub-agent `agent`, which the call runs.
    ///
    /// # Errors
    /// Fails if `event` cannot be serialized as JSON, which is possible for every existing event.
    pub fn new(tool_call_id: CallId, agent: &str, event: &Event) -> Result<Self, serde_json::Error> {
        let data = serde_json::to_value(event)?;
        Ok(Self { tool_call_id, agent: agent.to_owned(), event: event.kind().to_owned(), data })
    }

    /// Returns the sub-agent's event; `None` if this version does not know its type.
    pub fn inner(&self) -> Option<Event> {
        Event::from_parts(&self.event, self.data.clone()).ok()
    }
}

impl Event {
    /// Returns the event's type, the value of its `event:` line.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::ThreadLifecycle(_) => "thread_lifecycle",
            Self::Error(_) => "error",
            Self::TextDelta(_) => "text_delta",
            Self::ThinkingDelta(_) => "thinking_delta",
            Self::ContentBlockStart(_) => "content_block_start",
            Self::ContentBlockStop(_) => "content_block_stop",
            Self::ToolCall(_) => "tool_call",
            Self::ToolResult(_) => "tool_result",
            Self::ToolHook(_) => "tool_hook",
            Self::HitlRequest(_) => "hitl_request",
            Self::HitlResolved(_) => "hitl_resolved",
            Self::WorkingMemoryUpdate(_) => "working_memory_update",
            Self::CompactionEvent(_) => "compaction_event",
            Self::Heartbeat(_) => "heartbeat",
            Self::Usage(_) => "usage",
            Self::AgentEvent(_) => "agent_event",
            Self::BusyUpdate(_) => "busy_update",
            Self::ApprovalRequest(_) => "approval_request",
            Self::ApprovalResolved(_) => "approval_resolved",
            Self::UsageCap(_) => "usage_cap",
            Self::Citations(_) => "citations",
        }
    }

    /// Parses the data of an event of type `kind`. Unknown fields are ignored.
    ///
    /// # Errors
    /// Fails if this version does not know the type, or if the data does not match it.
    pub fn from_parts(kind: &str, data: Value) -> Result<Self, serde_json::Error> {
        use serde_json::from_value;
        Ok(match kind {
            "thread_lifecycle" => Self::ThreadLifecycle(from_value(data)?),
            "error" => Self::Error(from_value(data)?),
            "text_delta" => Self::TextDelta(from_value(data)?),
            "thinking_delta" => Self::ThinkingDelta(from_value(data)?),
            "content_block_start" => Self::ContentBlockStart(from_value(data)?),
            "content_block_stop" => Self::ContentBlockStop(from_value(data)?),
            "tool_call" => Self::ToolCall(from_value(data)?),
            "tool_result" => Self::ToolResult(from_value(data)?),
            "tool_hook" => Self::ToolHook(from_value(data)?),
            "hitl_request" => Self::HitlRequest(from_value(data)?),
            "hitl_resolved" => Self::HitlResolved(from_value(data)?),
            "working_memory_update" => Self::WorkingMemoryUpdate(from_value(data)?),
            "compaction_event" => Self::CompactionEvent(from_value(data)?),
            "heartbeat" => Self::Heartbeat(from_value(data)?),
            "usage" => Self::Usage(from_value(data)?),
            "agent_event" => Self::AgentEvent(from_value(data)?),
            "busy_update" => Self::BusyUpdate(from_value(data)?),
            "approval_request" => Self::ApprovalRequest(from_value(data)?),
            "approval_resolved" => Self::ApprovalResolved(from_value(data)?),
            "usage_cap" => Self::UsageCap(from_value(data)?),
            "citations" => Self::Citations(from_value(data)?),
            unknown => return Err(de::Error::custom(format!("unknown event type `{unknown}`"))),
        })
    }

    /// Whether this is the last event of a turn.
    pub const fn ends_turn(&self) -> bool {
        matches!(
            self,
            Self::Error(_) | Self::ThreadLifecycle(Lifecycle::Completed { .. } | Lifecycle::Cancelled { .. })
        )
    }
}

/// An event as a client receives it, with its task, turn and time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SentEvent {
    /// The task that it belongs to.
    pub task_id: TaskId,
    /// The turn that it belongs to.
    pub turn_id: TurnId,
    /// The event's time in Unix milliseconds, strictly increasing within the task.
    pub ts: i64,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

#[derive(Deserialize)]
struct EventHeader {
    task_id: TaskId,
    turn_id: TurnId,
    ts: i64,
}

impl SentEvent {
    /// Encodes the event as a Server-Sent Event, including the empty line at its end.
    pub fn to_sse(&self) -> Result<String, serde_json::Error> {
        let data = serde_json::to_string(&self.event)?;
        Ok(encode_sse(&self.task_id, self.turn_id, self.ts, self.event.kind(), &data))
    }

    /// Parses an event from the values of its `event:` and `data:` lines.
    ///
    /// # Errors
    /// Fails like [`Event::from_parts`], and if the data lacks `task_id`, `turn_id` or `ts`.
    pub fn from_sse(kind: &str, data: &str) -> Result<Self, serde_json::Error> {
        let EventHeader { task_id, turn_id, ts } = serde_json::from_str(data)?;
        let event = Event::from_parts(kind, serde_json::from_str(data)?)?;
        Ok(Self { task_id, turn_id, ts, event })
    }
}

/// Whether events of this type have an `id:` line: those are stored and replayed.
fn has_id(kind: &str) -> bool {
    !matches!(kind, "heartbeat" | "busy_update")
}

/// Encodes an event whose data is already serialized as the JSON object `data`, as in a store.
pub fn encode_sse(task_id: &TaskId, turn_id: TurnId, ts: i64, kind: &str, data: &str) -> String {
    use std::fmt::Write as _;

    let mut sse = String::with_capacity(data.len() + 192);
    if has_id(kind) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(sse, "id: {ts}");
    }
    let task = Value::from(task_id.as_str());
    let _ = write!(sse, "event: {kind}\ndata: {{\"task_id\":{task},\"turn_id\":\"{turn_id}\",\"ts\":{ts}");
    match data.strip_prefix('{') {
        // A HITL request has the same `task_id` in its own data; the JSON must not contain it twice.
        _ if kind == "hitl_request" => {
            for (key, value) in without_task_id(data) {
                let _ = write!(sse, ",{}:{value}", Value::from(key));
            }
            sse.push('}');
        }
        Some("}") | None => sse.push('}'),
        Some(fields) => {
            sse.push(',');
            sse.push_str(fields);
        }
    }
    sse.push_str("\n\n");
    sse
}

fn without_task_id(data: &str) -> serde_json::Map<String, Value> {
    let mut fields: serde_json::Map<String, Value> = serde_json::from_str(data).unwrap_or_default();
    fields.remove("task_id");
    fields
}

#[cfg(test)]
#[path = "../tests/unit/event.rs"]
mod tests;
