//! The events about a tool call: the call, its result, and what hooks of the catalog did about it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::CallId;

/// The data of `tool_call`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolCall {
    /// The id of the call, which its result repeats.
    pub tool_call_id: CallId,
    /// The tool's name.
    pub tool: String,
    /// The tool's input.
    pub input: Value,
}

/// The data of `tool_result`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolResult {
    /// The id of the call.
    pub tool_call_id: CallId,
    /// The tool's name.
    pub tool: String,
    /// The tool's output; empty if it failed.
    pub output: String,
    /// The reason of a failure; absent if the tool succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long the call took, in milliseconds.
    pub duration_ms: u64,
}

/// The data of `tool_hook`: what a hook of the catalog did about a tool call. A hook that allows a call as it is
/// sends none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolHook {
    /// The call.
    pub tool_call_id: CallId,
    /// The name of the tool.
    pub tool: String,
    /// The name of the hook.
    pub hook: String,
    /// When it ran.
    pub on: HookPhase,
    /// Its decision, or what follows from its failure.
    pub decision: HookDecision,
    /// Why it refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The input that replaces the call's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// What it notes for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Whether it replaced the call's result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub result_replaced: bool,
}

/// When a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HookPhase {
    /// Before the tool: before a person is asked for approval.
    Before,
    /// After the tool, before anybody sees its result.
    After,
}

/// The decision of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HookDecision {
    /// The call goes on, or its result is passed on.
    Allow,
    /// The call is not run, or its result is withheld.
    Refuse,
}
