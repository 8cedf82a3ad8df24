//! The events that tell clients about a tool call.

use api::CallId;
use api::event::{Event, ToolCall, ToolResult};
use llm::{ToolOutcome, ToolUse};

/// The event that announces a call.
pub(super) fn tool_call_event(call: &ToolUse) -> Event {
    Event::ToolCall(ToolCall {
        tool_call_id: call.call_id,
        tool: call.name.clone(),
        input: call.input.clone(),
    })
}

/// The event with the result of a call.
pub(super) fn tool_result_event(call: &ToolUse, outcome: &ToolOutcome) -> Event {
    Event::ToolResult(ToolResult {
        tool_call_id: call.call_id,
        tool: call.name.clone(),
        output: outcome.output.clone(),
        error: outcome.error.clone(),
        duration_ms: outcome.duration_ms,
    })
}

/// The result event of a call that was announced with a request for its approval, and never ran.
pub(super) fn never_run_event(tool_call_id: CallId, tool: String) -> Event {
    let error = Some("it was not run: the turn ended before it was approved".to_owned());
    Event::ToolResult(ToolResult { tool_call_id, tool, output: String::new(), error, duration_ms: 0 })
}

/// The result event of a call whose outcome will never be known.
pub(super) fn unknown_outcome_event(tool_call_id: CallId, tool: String) -> Event {
    let error = Some("its outcome is unknown: the turn ended before the call did".to_owned());
    Event::ToolResult(ToolResult { tool_call_id, tool, output: String::new(), error, duration_ms: 0 })
}
