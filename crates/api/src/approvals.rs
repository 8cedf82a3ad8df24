//! Approvals: the tool calls that wait for a person, as fields that a product can show, the person's decisions, and
//! the lasting ones among them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::ids::{GrantId, HitlId};
use crate::{CallId, TaskId, Timestamp};

/// The data of `approval_request`: a tool call that waits for a person's decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalRequest {
    /// The id of the request, which `hitl_request` has too.
    pub request_id: HitlId,
    /// The call, whose `tool_call` event comes just before.
    pub tool_call_id: CallId,
    /// The tool's name.
    pub tool: String,
    /// The sub-agent that makes the call; absent if the task's own agent does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The input of the call.
    #[schema(value_type = Object)]
    pub input: Value,
    /// What the call would do.
    pub preview: ApprovalPreview,
    /// How much harm the call could do.
    pub risk: ApprovalRisk,
    /// Why the call needs an approval.
    pub reason: ApprovalReason,
    /// The decisions that are possible.
    pub decisions: Vec<ApprovalDecision>,
    /// What a lasting approval can be limited to with `pattern`; absent if it always covers the whole tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern_kind: Option<PatternKind>,
    /// The pattern of a lasting approval that names none; absent if it covers the whole tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_pattern: Option<String>,
    /// When it was asked.
    pub created_at: Timestamp,
}

/// What a call would do, as far as it can be shown. Characters that could hide something are shown as escapes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ApprovalPreview {
    /// The change of a file.
    Diff {
        /// The file, relative to the workspace.
        path: String,
        /// What is there now.
        present: PresentFile,
        /// The changed lines, with `-` or `+` before them, and some around them.
        diff: String,
        /// Whether `diff` is only the beginning.
        truncated: bool,
    },
    /// The run of a command.
    Command {
        /// The whole command.
        command: String,
        /// The folder in which it begins, relative to the workspace; absent if that is the workspace itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        folder: Option<String>,
        /// Whether it can use the network.
        network: bool,
    },
    /// A request to a server.
    Address {
        /// The method of the request.
        method: String,
        /// The address that is fetched, or the server that the input is sent to.
        url: String,
    },
    /// Any other call, in words.
    Text {
        /// The text.
        text: String,
        /// Whether `text` is only the beginning.
        truncated: bool,
    },
}

/// What is at the path of a file before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PresentFile {
    /// Nothing: the file is new.
    Missing,
    /// A text file; `diff` compares with it.
    Text,
    /// Something that is no text or cannot be read; `diff` shows the new content only.
    Other,
}

/// How much harm a call could do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalRisk {
    /// It only reads what belongs to the user.
    Low,
    /// It changes something, or sends something out, within known limits.
    Medium,
    /// It runs a program, erases something, or does what only the server knows.
    High,
}

/// Why a call needs an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalReason {
    /// The permission of the tool is `ask`.
    Permission,
    /// The conversation has content that nobody has vouched for.
    UntrustedContent,
    /// It was allowed for good, but the tool has changed since.
    ToolChanged,
}

/// A person's decision about a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalDecision {
    /// Run this call.
    AllowOnce,
    /// Run this call and those like it in this task.
    AllowTask,
    /// Run this call and those like it in all tasks.
    AllowAlways,
    /// Do not run it.
    Deny,
}

impl ApprovalDecision {
    /// Returns the decision's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllowOnce => "allow_once",
            Self::AllowTask => "allow_task",
            Self::AllowAlways => "allow_always",
            Self::Deny => "deny",
        }
    }
}

/// What the pattern of a lasting approval is matched against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PatternKind {
    /// A command.
    Command,
    /// The path of a file.
    Path,
    /// An address.
    Address,
}

/// The data of `approval_resolved`: what was decided about a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalResolved {
    /// The request.
    pub request_id: HitlId,
    /// The call.
    pub tool_call_id: CallId,
    /// The decision.
    pub decision: ApprovalDecision,
    /// The input that the call runs with, if the person changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub input: Option<Value>,
    /// The person's word to the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The lasting approval that was given with it, or that covers the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_id: Option<GrantId>,
}

/// Response of `GET /tasks/{task_id}/approvals`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ApprovalList)]
pub struct Approvals {
    /// The calls that wait for a decision, oldest first.
    pub approvals: Vec<ApprovalRequest>,
}

/// Body of `POST /tasks/{task_id}/approvals/{request_id}`. Unknown fields are refused: with a misspelled `input`, the
/// model's own would run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRespond {
    /// The decision.
    pub decision: ApprovalDecision,
    /// With `allow_task` and `allow_always`: which later calls are covered, if not those of `default_pattern`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// The input to run the call with, in place of the model's; not with `deny`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub input: Option<Value>,
    /// A word to the agent, of at most 4,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Response of `POST /tasks/{task_id}/approvals/{request_id}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalResponded {
    /// The request that was answered.
    pub request_id: HitlId,
    /// The decision, which is stored.
    pub decision: ApprovalDecision,
}

/// Response of `GET /approvals/grants`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ApprovalGrantList)]
pub struct ApprovalGrants {
    /// The lasting approvals, oldest first.
    pub grants: Vec<ApprovalGrant>,
}

/// A lasting approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalGrant {
    /// The id, by which it can be revoked.
    pub id: GrantId,
    /// The tool.
    pub tool: String,
    /// Where it holds.
    pub scope: ApprovalScope,
    /// The task, if the scope is `task`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// The calls that it covers; absent if it covers all of the tool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// The request with whose answer it was given; absent if an earlier version stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<HitlId>,
    /// When it was given.
    pub created_at: Timestamp,
}

/// Where a lasting approval holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalScope {
    /// In one task.
    Task,
    /// In all tasks.
    Always,
}
