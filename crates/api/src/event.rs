//! The events of a turn, and their form as Server-Sent Events.
//!
//! Each event is written as `id: <ts>`, `event: <type>` and `data: <json>`. Every data object carries
//! `task_id`, `turn_id` and `ts` (Unix milliseconds, strictly increasing within its task), so a client that
//! replays after the last `ts` it saw neither loses nor repeats an event. A [`Event::Heartbeat`] alone has no
//! `id:` line: it repeats the last `ts` and is neither stored nor replayed.

use serde::{Deserialize, Serialize, de};
use serde_json::Value;
use utoipa::ToSchema;

use crate::ids::HitlId;
use crate::{CallId, MessageId, TaskId, Timestamp, TurnId};

/// One event of a turn: its type and the data of that type.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Event {
    /// Start, end and turning points of a turn.
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
    /// The model calls a tool; sent once the call is on record.
    ToolCall(ToolCall),
    /// A tool finished.
    ToolResult(ToolResult),
    /// The agent paused for a person's answer.
    HitlRequest(HitlRequest),
    /// The person answered.
    HitlResolved(HitlResolved),
    /// The agent wrote to working memory.
    WorkingMemoryUpdate(WorkingMemoryUpdate),
    /// Earlier turns were collapsed.
    CompactionEvent(Compaction),
    /// Nothing happened for a while, and the connection is alive.
    Heartbeat(Heartbeat),
    /// Tokens used by the turn so far.
    Usage(Usage),
    /// Something that a sub-agent of the turn did.
    AgentEvent(AgentEvent),
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
    /// The turn ended well.
    Completed {
        /// The turn's user message.
        message_id: MessageId,
        /// The message that holds the last model answer.
        answer_message_id: MessageId,
        /// The text of the last model answer.
        text: String,
        /// Why the turn ended.
        stop_reason: StopReason,
    },
    /// The turn failed; an `error` event follows, and nothing after it.
    Errored {
        /// The turn's user message.
        message_id: MessageId,
    },
    /// The engine was restarted and goes on with the turn.
    Resumed {
        /// The turn's user message.
        message_id: MessageId,
    },
    /// A model step is repeated: events after `void_after` that belong to it no longer count.
    Retrying {
        /// The turn's user message.
        message_id: MessageId,
        /// The `ts` of the last event before the step.
        void_after: i64,
        /// The number of the attempt at the step that begins now; the first repetition is 2.
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
    /// The model was done.
    EndTurn,
    /// The turn's cap on model calls was reached.
    MaxTurns,
    /// A token budget was used up.
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
    /// The provider was overloaded, out of quota or unreachable, also after retries.
    ProviderUnavailable,
    /// The turn was begun by eight starts of the engine in a row without getting on.
    ResumeLimit,
    /// The person's answer did not come in time.
    HitlExpired,
    /// Unexpected failure.
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
    /// Counts through the turn.
    pub index: u32,
    /// What the block holds.
    pub block_type: BlockType,
}

/// What a content block holds.
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
    /// The block that ends.
    pub index: u32,
}

/// The data of `tool_call`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolCall {
    /// Identifies the call; its result carries the same.
    pub tool_call_id: CallId,
    /// The tool's name.
    pub tool: String,
    /// What the tool is given.
    pub input: Value,
}

/// The data of `tool_result`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolResult {
    /// The call that this answers.
    pub tool_call_id: CallId,
    /// The tool's name.
    pub tool: String,
    /// What the tool gave; empty if it failed.
    pub output: String,
    /// Why it failed; absent if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long it took.
    pub duration_ms: u64,
}

/// The data of `hitl_request`, which is also an entry of `GET /hitl/pending`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HitlRequest {
    /// Answer with this id.
    pub request_id: HitlId,
    /// The task whose agent is paused.
    pub task_id: TaskId,
    /// What is wanted.
    pub kind: HitlKind,
    /// The text to show.
    pub question: String,
    /// When it was asked.
    pub created_at: Timestamp,
    /// Answers to choose from, where the agent named some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<Vec<String>>,
}

/// What a paused agent wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HitlKind {
    /// Leave for a tool call.
    Permission,
    /// An answer to a question.
    Question,
}

impl HitlKind {
    /// The kind as it is written.
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

/// A kind that there is not.
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
    /// Its new value.
    pub value: Value,
}

/// The data of `compaction_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Compaction {
    /// What brought it about.
    pub reason: CompactionReason,
    /// How many messages were collapsed.
    pub messages_collapsed: u64,
    /// The size of the prompt before.
    pub tokens_before: u64,
    /// The size of the prompt after.
    pub tokens_after: u64,
}

/// What brought a compaction about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompactionReason {
    /// The prompt had grown to its share of the context window.
    Threshold,
    /// The provider said that the prompt was too long.
    Reactive,
}

/// The data of `heartbeat`: none of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Heartbeat {}

/// The data of `usage`: cumulative for the turn, voided model steps included, since they are billed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// The model that answered last.
    pub model: String,
    /// All of the prompt, cached parts included.
    pub input_tokens: u64,
    /// All that the model wrote, reasoning included.
    pub output_tokens: u64,
    /// Prompt tokens read from the provider's cache.
    pub cache_read_tokens: u64,
    /// Prompt tokens written to the provider's cache.
    pub cache_write_tokens: u64,
    /// Output tokens spent on reasoning.
    pub reasoning_tokens: u64,
    /// What it cost, where prices are configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

/// The data of `agent_event`: an event of a sub-agent, in the place of the one that the turn itself would send.
///
/// What a person has to answer, what changes the task's working memory and what is billed are events of the turn
/// itself, also where a sub-agent brings them about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentEvent {
    /// The call that runs the sub-agent.
    pub tool_call_id: CallId,
    /// The sub-agent.
    pub agent: String,
    /// The type of its event.
    pub event: String,
    /// The data of its event.
    pub data: Value,
}

impl AgentEvent {
    /// `event` as one of the sub-agent that the call runs.
    ///
    /// # Errors
    /// Never, for the events there are: each can be written as JSON.
    pub fn new(tool_call_id: CallId, agent: &str, event: &Event) -> Result<Self, serde_json::Error> {
        let data = serde_json::to_value(event)?;
        Ok(Self { tool_call_id, agent: agent.to_owned(), event: event.kind().to_owned(), data })
    }

    /// The sub-agent's event; none of a type that this version does not know.
    pub fn inner(&self) -> Option<Event> {
        Event::from_parts(&self.event, self.data.clone()).ok()
    }
}

impl Event {
    /// The event's type, as its `event:` line carries it.
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
            Self::HitlRequest(_) => "hitl_request",
            Self::HitlResolved(_) => "hitl_resolved",
            Self::WorkingMemoryUpdate(_) => "working_memory_update",
            Self::CompactionEvent(_) => "compaction_event",
            Self::Heartbeat(_) => "heartbeat",
            Self::Usage(_) => "usage",
            Self::AgentEvent(_) => "agent_event",
        }
    }

    /// Reads the data of an event of type `kind`. Fields beyond the type's own are ignored.
    ///
    /// # Errors
    /// A type that this version does not know, or data that is not of the type's form.
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
            "hitl_request" => Self::HitlRequest(from_value(data)?),
            "hitl_resolved" => Self::HitlResolved(from_value(data)?),
            "working_memory_update" => Self::WorkingMemoryUpdate(from_value(data)?),
            "compaction_event" => Self::CompactionEvent(from_value(data)?),
            "heartbeat" => Self::Heartbeat(from_value(data)?),
            "usage" => Self::Usage(from_value(data)?),
            "agent_event" => Self::AgentEvent(from_value(data)?),
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

/// An event with its place: what a client receives.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct SentEvent {
    /// The task.
    pub task_id: TaskId,
    /// The turn.
    pub turn_id: TurnId,
    /// Unix milliseconds, strictly increasing within the task.
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
    /// The event in its form on the wire, the empty line that ends it included.
    pub fn to_sse(&self) -> Result<String, serde_json::Error> {
        let data = serde_json::to_string(&self.event)?;
        Ok(encode_sse(&self.task_id, self.turn_id, self.ts, self.event.kind(), &data))
    }

    /// Reads an event from its `event:` and `data:` lines.
    ///
    /// # Errors
    /// See [`Event::from_parts`]; also data without its place.
    pub fn from_sse(kind: &str, data: &str) -> Result<Self, serde_json::Error> {
        let EventHeader { task_id, turn_id, ts } = serde_json::from_str(data)?;
        let event = Event::from_parts(kind, serde_json::from_str(data)?)?;
        Ok(Self { task_id, turn_id, ts, event })
    }
}

/// Writes an event whose own data is already serialised as the JSON object `data`, as a store keeps it.
pub fn encode_sse(task_id: &TaskId, turn_id: TurnId, ts: i64, kind: &str, data: &str) -> String {
    use std::fmt::Write as _;

    let mut sse = String::with_capacity(data.len() + 192);
    if kind != "heartbeat" {
        // Writing to a `String` cannot fail.
        let _ = writeln!(sse, "id: {ts}");
    }
    let task = Value::from(task_id.as_str());
    let _ = write!(sse, "event: {kind}\ndata: {{\"task_id\":{task},\"turn_id\":\"{turn_id}\",\"ts\":{ts}");
    match data.strip_prefix('{') {
        // A HITL request has a `task_id` of its own, the same one; JSON must not name it twice.
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
#[path = "event_tests.rs"]
mod tests;
