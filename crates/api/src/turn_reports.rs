//! The outcome of a turn as one JSON object, for callers that do not read a stream.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::approvals::ApprovalRequest;
use crate::citations::Citation;
use crate::event::{Failure, HitlRequest, StopReason, Usage};
use crate::serde_helpers::BoundedInt;
use crate::turns::{BackgroundTurn, TurnState};
use crate::{CallId, MessageId, TaskId, TurnId};

/// The most tool calls that a report lists.
pub const MAX_REPORTED_CALLS: usize = 1_000;
/// The longest time that a call waits for a turn, in seconds: less than a proxy waits for a response.
pub const MAX_WAIT_S: i64 = 90;

/// Query of `POST /execute` and `GET /tasks/{task_id}/turns/{turn_id}/result`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReportQuery {
    /// How long to wait for the turn, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<BoundedInt<0, MAX_WAIT_S>>,
}

/// Response of `POST /execute` without a stream, and of `GET /tasks/{task_id}/turns/{turn_id}/result`: what the
/// turn has done so far. It is final once `status` is `completed`, `failed` or `cancelled`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TurnReport {
    /// The task.
    pub task_id: TaskId,
    /// The turn.
    pub turn_id: TurnId,
    /// What the turn is doing, or how it ended.
    pub status: TurnState,
    /// With `queued`: its place in the queue; the next turn has 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// The turn's user message, once the turn has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// With `completed`: the message with the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_message_id: Option<MessageId>,
    /// With `completed`: the text of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// With `completed`, of a turn with `response_format` that came to its end: the answer, parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub output: Option<Value>,
    /// With `completed`: why the turn ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// With `failed`: why, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// With `waiting_for_person`: the requests that wait. `POST /hitl/respond` answers them, and the turn goes on.
    pub pending: Vec<HitlRequest>,
    /// The tool calls among the requests that wait, as fields.
    pub approvals: Vec<ApprovalRequest>,
    /// The tool calls of the turn, the oldest first: at most 1,000.
    pub tool_calls: Vec<ReportedCall>,
    /// The number of tool calls of the turn.
    pub tool_call_count: u64,
    /// The pages that the answer names.
    pub citations: Vec<Citation>,
    /// The tokens that the turn has used, and their cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The `ts` of the last event that the report covers: `GET /execute/replay?after=` has those after it.
    pub last_ts: i64,
}

/// A tool call of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReportedCall {
    /// The call.
    pub tool_call_id: CallId,
    /// The tool's name.
    pub tool: String,
    /// Whether the tool has finished.
    pub finished: bool,
    /// Why the tool failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long the call took, in milliseconds, once it has finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

/// The schema of the responses of `POST /execute` for a turn that goes on.
#[derive(ToSchema)]
#[serde(untagged)]
pub enum AcceptedTurn {
    /// With `background`.
    Background(BackgroundTurn),
    /// Without a stream: what is known of the turn so far.
    Report(Box<TurnReport>),
}
