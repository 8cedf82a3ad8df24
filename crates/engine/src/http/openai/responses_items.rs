//! The items of a response, and the fields of its object.

use api::citations::Citation;
use api::engine::Execute;
use api::event::{HitlRequest, ToolCall, ToolResult, Usage};
use api::response_format::ResponseFormat;
use api::turn_options::{Effort, MaxOutputTokens, Metadata, TurnOverrides};
use api::{TaskId, TurnId};
use serde_json::{Value, json};

use super::ids;
use super::options::DEFAULT_MODEL;

/// The server that the agent's own tools belong to, in the vendor's terms.
const SERVER_LABEL: &str = "roundhouse";

/// What a request set for its response, as the response repeats it.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) model: Option<String>,
    pub(super) effort: Option<Effort>,
    pub(super) max_output_tokens: Option<MaxOutputTokens>,
    pub(super) metadata: Option<Metadata>,
    pub(super) response_format: Option<ResponseFormat>,
    /// Whether the request was for a response in the background. The log does not know.
    pub(super) in_background: bool,
}

impl Settings {
    pub(super) fn of_request(execute: &Execute, in_background: bool) -> Self {
        let Execute { model, effort, max_output_tokens, metadata, response_format, .. } = execute;
        Self {
            model: model.clone(),
            effort: *effort,
            max_output_tokens: *max_output_tokens,
            metadata: metadata.clone(),
            response_format: response_format.clone(),
            in_background,
        }
    }

    pub(super) fn of_turn(overrides: Option<Box<TurnOverrides>>) -> Self {
        let TurnOverrides { model, effort, max_output_tokens, metadata, response_format, .. } =
            overrides.map(|overrides| *overrides).unwrap_or_default();
        Self { model, effort, max_output_tokens, metadata, response_format, in_background: false }
    }
}

/// The fields of a response that stay the same.
pub(super) fn response_fields(
    turn_id: TurnId,
    task_id: &TaskId,
    created_at: i64,
    settings: &Settings,
) -> Value {
    let format = match &settings.response_format {
        Some(format) => json!(format),
        None => json!({"type": "text"}),
    };
    json!({
        "id": ids::with_prefix("resp_", turn_id),
        "object": "response",
        "created_at": created_at,
        "model": settings.model.as_deref().unwrap_or(DEFAULT_MODEL),
        "conversation": {"id": task_id},
        "background": settings.in_background,
        "error": null,
        "incomplete_details": null,
        "instructions": null,
        "max_output_tokens": settings.max_output_tokens,
        "metadata": settings.metadata.clone().unwrap_or_default(),
        "parallel_tool_calls": true,
        "previous_response_id": null,
        "reasoning": {"effort": settings.effort, "summary": null},
        "store": true,
        "temperature": 1.0,
        "text": {"format": format},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": null,
    })
}

/// The id of an item: `number` counts the items of its turn.
pub(super) fn item_id(prefix: &str, turn_id: TurnId, number: usize) -> String {
    format!("{}_{number}", ids::with_prefix(prefix, turn_id))
}

pub(super) fn text_part(text: &str, annotations: &[Value]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": annotations, "logprobs": []})
}

pub(super) fn message(id: &str, status: &str, content: &[Value]) -> Value {
    json!({"id": id, "type": "message", "role": "assistant", "status": status, "content": content})
}

pub(super) fn reasoning(id: &str, status: &str, text: Option<&str>) -> Value {
    let content: Vec<Value> =
        text.iter().map(|text| json!({"type": "reasoning_text", "text": text})).collect();
    json!({"id": id, "type": "reasoning", "status": status, "summary": [], "content": content})
}

pub(super) fn tool_call(call: &ToolCall) -> Value {
    json!({
        "id": format!("mcp_{}", call.tool_call_id),
        "type": "mcp_call",
        "server_label": SERVER_LABEL,
        "name": call.tool,
        "arguments": call.input.to_string(),
        "status": "in_progress",
        "output": null,
        "error": null,
        "approval_request_id": null,
    })
}

/// Adds the result to the item of its call.
pub(super) fn finish_call(item: &mut Value, result: &ToolResult) {
    let Some(fields) = item.as_object_mut() else { return };
    let status = if result.error.is_some() { "failed" } else { "completed" };
    let output = result.error.is_none().then_some(&result.output);
    for (name, value) in
        [("status", json!(status)), ("output", json!(output)), ("error", json!(result.error))]
    {
        fields.insert(name.to_owned(), value);
    }
}

/// A request to a person. `POST /hitl/respond` answers it.
pub(super) fn approval_request(request: &HitlRequest) -> Value {
    let arguments = json!({"question": request.question, "options": request.options});
    json!({
        "id": request.request_id,
        "type": "mcp_approval_request",
        "server_label": SERVER_LABEL,
        "name": request.kind,
        "arguments": arguments.to_string(),
        "roundhouse": {"hitl_request": request},
    })
}

/// Pages that an answer names, as the vendor's annotations: one for each mark.
pub(super) fn annotations(citations: &[Citation]) -> Vec<Value> {
    let marks = citations.iter().flat_map(|page| page.ranges.iter().map(move |range| (page, range)));
    let annotation = |(page, range): (&Citation, &api::citations::TextRange)| {
        json!({
            "type": "url_citation",
            "url": page.url,
            "title": page.title.as_deref().unwrap_or_default(),
            "start_index": range.start,
            "end_index": range.end,
        })
    };
    marks.map(annotation).collect()
}

pub(super) fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    })
}
