//! What becomes of a message to a busy task, and the turns of a task as they can be looked up.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::event::{Failure, StopReason};
use crate::serde_helpers::BoundedInt;
use crate::{MessageId, TaskId, Timestamp, TurnId};

/// What `POST /execute` does while another turn runs on the task, or waits for a person.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnBusy {
    /// Refuse the message with 409 `TASK_BUSY`.
    #[default]
    Reject,
    /// Store the message; it becomes a turn of its own after the running turn and those queued before it.
    Queue,
    /// Give the message to the running turn, like `POST /execute/steer`.
    Steer,
    /// Cancel the running turn, and begin the turn of this message before all queued ones.
    Interrupt,
}

/// The data of `busy_update`: what became of a message that was sent while its task was busy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum BusyUpdate {
    /// It is stored and waits for its turn. Sent first, and again whenever the position has changed.
    Queued {
        /// How many turns of the queue begin up to this one; the next one has 1.
        position: u64,
    },
    /// The turn that was running has it. The events of that turn follow, from then on.
    Steered {
        /// The id of the message in the thread.
        message_id: MessageId,
    },
    /// It was taken out of the queue before its turn began; nothing follows.
    Cancelled {},
    /// Its turn could not begin; nothing follows.
    Failed {
        /// Why, for a person.
        message: String,
    },
}

/// Response of `POST /execute` with `background`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackgroundTurn {
    /// What became of the message.
    pub status: BackgroundStatus,
    /// The task.
    pub task_id: TaskId,
    /// The turn of the message.
    pub turn_id: TurnId,
    /// With `queued`: how many turns of the queue begin up to this one; the next one has 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// With `steered`: the id of the message in the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackgroundStatus {
    /// Its turn has begun.
    Started,
    /// It waits for its turn.
    Queued,
    /// The turn that was running has it.
    Steered,
    /// It was taken out of the queue before its turn began; only a repeated request gets this.
    Cancelled,
    /// Its turn could not begin; only a repeated request gets this.
    Failed,
}

/// The state of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnState {
    /// Its message is in the task's queue.
    Queued,
    /// It runs.
    Running,
    /// It waits for a person.
    WaitingForPerson,
    /// It completed.
    Completed,
    /// It failed.
    Failed,
    /// It was cancelled, while it ran or before it began.
    Cancelled,
}

/// Response of `GET /tasks/{task_id}/turns/{turn_id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TurnRecord {
    /// The turn's id.
    pub turn_id: TurnId,
    /// What it is doing, or how it ended.
    pub state: TurnState,
    /// The turn's user message, once it has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// When its message was queued, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<Timestamp>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Its place in the queue, if it is queued; the next one has 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Why a completed turn ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// The message with the last answer of a completed turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_message_id: Option<MessageId>,
    /// The text of the last answer of a completed turn. Lists leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Why the turn failed, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// Query of `GET /tasks/{task_id}/turns`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListTurns {
    /// The maximum number of turns; 50 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<BoundedInt<1, 1_000>>,
    /// Return only turns before this one; by default the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// Response of `GET /tasks/{task_id}/turns`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TurnList {
    /// The turns, the newest first: those that are queued before the others.
    pub turns: Vec<TurnRecord>,
}

/// Response of `GET /tasks/{task_id}/queue`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskQueue {
    /// The queued messages in the order in which their turns will begin.
    pub entries: Vec<QueuedMessage>,
    /// The limits of the queue.
    pub limits: QueueLimits,
}

/// A message that waits for its turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuedMessage {
    /// The turn that it will become, by which it can be taken out of the queue.
    pub turn_id: TurnId,
    /// Its place; the next one has 1.
    pub position: u64,
    /// The text of the message.
    pub message: String,
    /// How many blocks are attached to it.
    pub media_count: u64,
    /// Its size in the queue, in bytes.
    pub size_bytes: u64,
    /// When it was queued.
    pub queued_at: Timestamp,
}

/// How much a queue may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueLimits {
    /// The maximum number of messages of one task.
    pub task_entries: u64,
    /// The maximum size of the messages of one task, in bytes.
    pub task_bytes: u64,
    /// The maximum number of messages of all tasks.
    pub engine_entries: u64,
    /// The maximum size of the messages of all tasks, in bytes.
    pub engine_bytes: u64,
}
