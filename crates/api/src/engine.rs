//! Requests and responses of the engine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::content::ContentBlock;
use crate::event::HitlKind;
use crate::ids::{GrantId, HitlId};
use crate::response_format::ResponseFormat;
use crate::serde_helpers::{BoundedInt, is_default, null_as_default};
use crate::text::ClientRequestId;
use crate::turn_options::{
    AllowedTools, Effort, Instructions, MaxCost, MaxOutputTokens, MaxTokens, Metadata, TurnOverrides,
};
use crate::turns::OnBusy;
use crate::{MessageId, TaskId, Timestamp, TurnId};

/// The header with the engine's key.
pub const ENGINE_KEY_HEADER: &str = "x-engine-key";

/// The status of a healthy subsystem.
pub const HEALTHY: &str = "ok";

/// Response of `GET /health`. Its schema and meaning are stable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineHealth {
    /// `ok` when fully ready; `degraded` when a subsystem is unhealthy.
    pub status: String,
    /// Seconds since the engine started.
    pub uptime_seconds: f64,
    /// The state of each subsystem.
    pub subsystems: Subsystems,
}

/// The state of each subsystem: `ok`, or a description of the problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Subsystems {
    /// The brain: the database with all of the engine's data.
    pub database: String,
    /// The language model provider, judged by its configuration and its last calls. The check spends no tokens.
    pub llm_provider: String,
    /// The list of tool servers.
    pub asset_directory: String,
}

/// The maximum number of model calls in one turn: at least 1.
pub type MaxTurns = BoundedInt<1, { i64::MAX }>;

/// Body of `POST /execute`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Execute {
    /// The user's message. May be left out only with `retry_message_id`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub message: String,
    /// The thread to start or continue.
    pub task_id: TaskId,
    /// Attached text, images, documents and audio.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<ContentBlock>,
    /// Skip planning and run the loop directly.
    #[serde(default, deserialize_with = "null_as_default")]
    pub direct: bool,
    /// Replace this earlier message by the new one. Any text is accepted; an unknown id results in a 404.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edit_message_id: Option<String>,
    /// Keep all messages and run the loop again from this one. Any text is accepted, as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_message_id: Option<String>,
    /// The maximum number of model calls in this turn; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<MaxTurns>,
    /// Let the model think before it answers.
    #[serde(default, deserialize_with = "null_as_default")]
    pub super_thinking: bool,
    /// Makes the request safe to repeat: a request with the same id joins the turn that the first one started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_request_id: Option<ClientRequestId>,
    /// What to do while another turn runs on the task, or waits for a person; `reject` by default.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub on_busy: OnBusy,
    /// Answer at once with the turn's id (202) instead of its events.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// `false`: wait for the turn and answer with its outcome as JSON, instead of its events. By default the
    /// header `Accept` decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// The model that answers in this turn: a name from `models` of the gateway's configuration. By default the
    /// configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Let the model think before it answers, this much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Instructions for this turn only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<Instructions>,
    /// The only tools that may be called in this turn: names, and patterns with `*`. Allows nothing that is not
    /// allowed without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<AllowedTools>,
    /// The maximum number of output tokens of this turn, its sub-agents included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<MaxOutputTokens>,
    /// The maximum number of tokens of this turn, input and output, its sub-agents included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<MaxTokens>,
    /// The maximum cost of this turn in US dollars. The model must have prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<MaxCost>,
    /// The caller's own data about this turn. No model sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// The form of the final answer: JSON that matches a schema. By default any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<ResponseFormat>,
}

impl Execute {
    /// Creates a request that only sends a message.
    pub fn new(task_id: TaskId, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            task_id,
            media: Vec::new(),
            direct: false,
            edit_message_id: None,
            retry_message_id: None,
            max_turns: None,
            super_thinking: false,
            client_request_id: None,
            on_busy: OnBusy::default(),
            background: false,
            stream: None,
            model: None,
            effort: None,
            instructions: None,
            allowed_tools: None,
            max_output_tokens: None,
            max_tokens: None,
            max_cost_usd: None,
            metadata: None,
            response_format: None,
        }
    }

    /// Takes out what the request sets for its own turn only.
    pub fn take_overrides(&mut self) -> TurnOverrides {
        TurnOverrides {
            model: self.model.take(),
            effort: self.effort.take(),
            instructions: self.instructions.take(),
            allowed_tools: self.allowed_tools.take(),
            max_output_tokens: self.max_output_tokens.take(),
            max_tokens: self.max_tokens.take(),
            max_cost_usd: self.max_cost_usd.take(),
            metadata: self.metadata.take(),
            response_format: self.response_format.take(),
        }
    }
}

/// Query of `GET /execute/replay`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Replay {
    /// Return the events after this time (Unix milliseconds); 0, the default, returns all. `Last-Event-ID` takes
    /// precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<BoundedInt<0, { i64::MAX }>>,
    /// The task; by default the one that ran last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
}

/// Body of `POST /execute/cancel`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Cancel {
    /// The task whose turn is to be cancelled.
    pub task_id: TaskId,
    /// Only this turn is to be cancelled: 404 `TASK_NOT_RUNNING` if it has ended, also if another one runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
}

/// Response of `POST /execute/cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cancelled {
    /// `cancelled`.
    pub status: CancelledStatus,
    /// The turn that was cancelled.
    pub turn_id: TurnId,
}

/// The only status of [`Cancelled`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelledStatus {
    /// The turn has ended.
    Cancelled,
}

/// Body of `POST /execute/steer`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Steer {
    /// The task whose turn is to be steered.
    pub task_id: TaskId,
    /// Only this turn is to be steered: 404 `TASK_NOT_RUNNING` if it has ended, also if another one runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// The message to the running turn.
    pub message: String,
}

/// Response of `POST /execute/steer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Steered {
    /// `accepted`.
    pub status: SteeredStatus,
    /// The id of the message in the thread.
    pub message_id: MessageId,
}

/// The only status of [`Steered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SteeredStatus {
    /// The message is stored, and the turn will see it.
    Accepted,
}

/// Body of `POST /hitl/respond`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct HitlRespond {
    /// The task whose agent is paused.
    pub task_id: TaskId,
    /// `yes`, `no` or `always` for an approval, free text for a question.
    pub answer: String,
    /// Further information for the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
    /// Text, images, documents and audio for the agent.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub content_blocks: Vec<ContentBlock>,
    /// The request that is answered; by default the pending one. Any text is accepted; an id that is not pending
    /// results in a 404.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The scope of an `always`; `task` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<GrantScope>,
}

/// The scope of a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrantScope {
    /// The task in which it was given.
    #[default]
    Task,
    /// All tasks of the engine.
    Engine,
}

/// Response of `POST /hitl/respond`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HitlResponded {
    /// `resumed`.
    pub status: HitlRespondedStatus,
    /// The request that was answered.
    pub request_id: HitlId,
}

/// The only status of [`HitlResponded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HitlRespondedStatus {
    /// The answer is stored, and the turn continues.
    Resumed,
}

/// Query of `GET /hitl/pending`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListPending {
    /// Only requests of this task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
}

/// Response of `GET /hitl/pending`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HitlPending {
    /// The requests of all tasks that wait for a person, oldest first.
    pub pending: Vec<PendingRequest>,
}

/// A request that waits for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PendingRequest {
    /// The request's id.
    pub request_id: HitlId,
    /// The task whose agent is paused.
    pub task_id: TaskId,
    /// What kind of answer is needed.
    pub kind: HitlKind,
    /// The text to show.
    pub question: String,
    /// When it was asked.
    pub created_at: Timestamp,
}

/// Response of `GET /hitl/grants`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = GrantList)]
pub struct Grants {
    /// The grants, oldest first.
    pub grants: Vec<Grant>,
}

/// A lasting approval of a tool, given by a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// The grant's id, by which it can be revoked.
    pub id: GrantId,
    /// The tool that needs no approval any more.
    pub tool: String,
    /// The scope of the grant.
    pub scope: GrantScope,
    /// The task, if the scope is `task`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// The required beginning of a command, if the tool runs commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// When it was given.
    pub created_at: Timestamp,
}

/// Response of a `DELETE` that deleted something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Deleted {
    /// `deleted`.
    pub status: DeletedStatus,
}

/// The only status of [`Deleted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeletedStatus {
    /// It was deleted.
    Deleted,
}

/// Query of `GET /tasks`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ListTasks {
    /// The maximum number of tasks; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 1_000>>,
    /// The number of tasks to skip; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<BoundedInt<0, { i64::MAX }>>,
}

/// Query of `GET /tasks/{task_id}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListMessages {
    /// The maximum number of messages, of which the newest are returned; all by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 1_000>>,
    /// Return only messages before this one; by default the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// Query of `DELETE /tasks/{task_id}`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct DeleteTask {
    /// What to delete in addition to the conversation; nothing by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forget: Option<Forget>,
}

/// What is deleted with a task in addition to its conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Forget {
    /// Everything learned from it: the knowledge saved by its turns, the feedback on them, and the lessons drawn
    /// from that feedback.
    Knowledge,
}

/// Response of `GET /tasks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = TaskList)]
pub struct Tasks {
    /// The tasks, the one changed last first.
    pub tasks: Vec<TaskSummary>,
    /// The total number of tasks.
    pub total: u64,
}

/// A task in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskSummary {
    /// The task's id.
    pub task_id: TaskId,
    /// What the task is doing.
    pub status: TaskStatus,
    /// The number of messages that `GET /tasks/{task_id}` lists.
    pub message_count: u64,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// What a task is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// No turn is under way.
    Idle,
    /// A turn is running.
    Running,
    /// A turn waits for a person.
    Paused,
}

/// Response of `GET /tasks/{task_id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskMessages {
    /// The messages, oldest first.
    pub messages: Vec<TaskMessage>,
}

/// Response of `GET /tasks/{task_id}/memory`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskMemory {
    /// The values of the task's working memory, by key.
    pub memory: BTreeMap<String, Value>,
}

/// Body of `PUT /tasks/{task_id}/memory`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplaceMemory {
    /// All values, by key: any JSON values but null. At most 100.
    pub memory: BTreeMap<String, Value>,
}

/// Body of `PUT /tasks/{task_id}/memory/{key}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SetMemory {
    /// The new value: any JSON value but null.
    pub value: Value,
}

/// A message of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskMessage {
    /// The message's id.
    pub message_id: MessageId,
    /// The author.
    pub role: Role,
    /// A string or, if the message is more than text, an array of blocks: `text`, `image` and `document` (without
    /// their data), `tool_use` and `tool_result`.
    pub content: serde_json::Value,
    /// When it was written.
    pub created_at: Timestamp,
    /// Whether a retry has replaced it, so that the model no longer sees it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The user.
    User,
    /// The agent.
    Assistant,
}
