//! Requests and answers of the engine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::content::ContentBlock;
use crate::event::HitlKind;
use crate::ids::{GrantId, HitlId};
use crate::serde_helpers::{BoundedInt, null_as_default};
use crate::text::ClientRequestId;
use crate::{MessageId, TaskId, Timestamp, TurnId};

/// The header that opens an engine.
pub const ENGINE_KEY_HEADER: &str = "x-engine-key";

/// The status of a part that works.
pub const HEALTHY: &str = "ok";

/// Answer of `GET /health`. Its schema and meaning are strictly stable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineHealth {
    /// `ok` when fully ready; `degraded` when a subsystem is unwell.
    pub status: String,
    /// Seconds since the engine started.
    pub uptime_seconds: f64,
    /// The state of each subsystem.
    pub subsystems: Subsystems,
}

/// The state of each subsystem: `ok`, or what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Subsystems {
    /// The brain.
    pub database: String,
    /// The language model provider: its configuration and its last calls. Checking it spends no tokens.
    pub llm_provider: String,
    /// The directory of tool servers.
    pub asset_directory: String,
}

/// The most model calls in one turn: at least 1.
pub type MaxTurns = BoundedInt<1, { i64::MAX }>;

/// Body of `POST /execute`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Execute {
    /// The user's message. Only with `retry_message_id` it may be left out.
    #[serde(default, deserialize_with = "null_as_default")]
    pub message: String,
    /// The thread to start or continue.
    pub task_id: TaskId,
    /// Attached texts, images and documents.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<ContentBlock>,
    /// Skip planning and run the loop directly.
    #[serde(default, deserialize_with = "null_as_default")]
    pub direct: bool,
    /// Replace this earlier message with the new one. Any text is taken: an id that there is not is a 404.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edit_message_id: Option<String>,
    /// Keep all messages and run the loop again from this one. Any text is taken, as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_message_id: Option<String>,
    /// The most model calls in this turn; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<MaxTurns>,
    /// Let the model think before it answers.
    #[serde(default, deserialize_with = "null_as_default")]
    pub super_thinking: bool,
    /// Makes the request safe to repeat: a request with the same id joins the turn that the first one began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_request_id: Option<ClientRequestId>,
}

/// Query of `GET /execute/replay`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Replay {
    /// Events after this time (Unix milliseconds); 0, the default, for all. `Last-Event-ID` beats it.
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
}

/// Answer of `POST /execute/cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cancelled {
    /// `cancelled`.
    pub status: CancelledStatus,
    /// The turn that was cancelled.
    pub turn_id: TurnId,
}

/// The one status of [`Cancelled`].
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
    /// What the running turn is told.
    pub message: String,
}

/// Answer of `POST /execute/steer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Steered {
    /// `accepted`.
    pub status: SteeredStatus,
    /// The id of the message in the thread.
    pub message_id: MessageId,
}

/// The one status of [`Steered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SteeredStatus {
    /// The message is on record, and the turn will see it.
    Accepted,
}

/// Body of `POST /hitl/respond`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct HitlRespond {
    /// The task whose agent is paused.
    pub task_id: TaskId,
    /// `yes`, `no` or `always` for a permission, free text for a question.
    pub answer: String,
    /// What else the agent is to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
    /// Texts, images and documents for the agent.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub content_blocks: Vec<ContentBlock>,
    /// The request that is answered; by default the pending one. Any text is taken: another one is a 404.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// How far an `always` goes; `task` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<GrantScope>,
}

/// How far a grant goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrantScope {
    /// The task in which it was given.
    #[default]
    Task,
    /// All tasks of the engine.
    Engine,
}

/// Answer of `POST /hitl/respond`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HitlResponded {
    /// `resumed`.
    pub status: HitlRespondedStatus,
    /// The request that was answered.
    pub request_id: HitlId,
}

/// The one status of [`HitlResponded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HitlRespondedStatus {
    /// The answer is on record, and the turn goes on.
    Resumed,
}

/// Answer of `GET /hitl/pending`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HitlPending {
    /// What waits for a person, over all tasks, oldest first.
    pub pending: Vec<PendingRequest>,
}

/// A request that waits for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PendingRequest {
    /// Its id.
    pub request_id: HitlId,
    /// The task whose agent is paused.
    pub task_id: TaskId,
    /// What is wanted.
    pub kind: HitlKind,
    /// The text to show.
    pub question: String,
    /// When it was asked.
    pub created_at: Timestamp,
}

/// Answer of `GET /hitl/grants`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Grants {
    /// What a person has allowed for good, oldest first.
    pub grants: Vec<Grant>,
}

/// What a person has allowed for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// Revoke it by this id.
    pub id: GrantId,
    /// The tool that needs no leave any more.
    pub tool: String,
    /// How far it goes.
    pub scope: GrantScope,
    /// The task, where the scope is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// What a command must begin with, where the tool runs commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// When it was given.
    pub created_at: Timestamp,
}

/// Answer of a `DELETE` that took something away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Deleted {
    /// `deleted`.
    pub status: DeletedStatus,
}

/// The one status of [`Deleted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeletedStatus {
    /// It is gone.
    Deleted,
}

/// Query of `GET /tasks`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ListTasks {
    /// How many tasks at most; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 1_000>>,
    /// How many to leave out; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<BoundedInt<0, { i64::MAX }>>,
}

/// Query of `GET /tasks/{task_id}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListMessages {
    /// How many messages at most, the newest; all by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 1_000>>,
    /// The message before which they stand; the newest by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// Query of `DELETE /tasks/{task_id}`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct DeleteTask {
    /// What goes beside the conversation; nothing by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forget: Option<Forget>,
}

/// What goes with a task beside its conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Forget {
    /// What was learned from it: the records of knowledge that its turns saved, what people said of them, and the
    /// lessons drawn from that.
    Knowledge,
}

/// Answer of `GET /tasks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tasks {
    /// The tasks, the one changed last first.
    pub tasks: Vec<TaskSummary>,
    /// How many there are in all.
    pub total: u64,
}

/// A task as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskSummary {
    /// Its id.
    pub task_id: TaskId,
    /// What it is at.
    pub status: TaskStatus,
    /// How many messages `GET /tasks/{task_id}` lists.
    pub message_count: u64,
    /// When it changed last.
    pub updated_at: Timestamp,
}

/// What a task is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// No turn is under way.
    Idle,
    /// A turn runs.
    Running,
    /// A turn waits for a person.
    Paused,
}

/// Answer of `GET /tasks/{task_id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskMessages {
    /// The messages, oldest first.
    pub messages: Vec<TaskMessage>,
}

/// Answer of `GET /tasks/{task_id}/memory`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskMemory {
    /// The values of the task's working memory, by key.
    pub memory: BTreeMap<String, Value>,
}

/// Body of `PUT /tasks/{task_id}/memory/{key}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SetMemory {
    /// The value, in the place of what was there: any JSON value but null.
    pub value: Value,
}

/// A message of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskMessage {
    /// Its id.
    pub message_id: MessageId,
    /// Who said it.
    pub role: Role,
    /// A text, or, where there is more than one text, blocks: `text`, `image` and `document` (without their data),
    /// `tool_use` and `tool_result`.
    pub content: serde_json::Value,
    /// When it was said.
    pub created_at: Timestamp,
    /// Whether a retry took its place: then the model no longer sees it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
}

/// Who said a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The user.
    User,
    /// The agent.
    Assistant,
}
