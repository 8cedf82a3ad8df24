//! The pairing of tool calls and results (<https://platform.openai.com/docs/guides/function-calling>): a message
//! with calls must be followed by one result per call, before a message of any other role.

use serde_json::Value;

use super::super::node::Node;
use crate::protocol::ApiError;

pub(super) fn check(messages: &[Node<'_>]) -> Result<(), ApiError> {
    let mut open_calls: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if text(message.value, "role") == "tool" {
            let id = text(message.value, "tool_call_id");
            let Some(position) = open_calls.iter().position(|call| *call == id) else {
                return Err(ApiError::invalid(
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with \
                     'tool_calls'.",
                )
                .with_param(format!("messages.[{index}].role")));
            };
            open_calls.remove(position);
        } else {
            check_answered(&open_calls, Some(index))?;
            open_calls = calls(message.value);
        }
    }
    check_answered(&open_calls, None)
}

fn check_answered(open_calls: &[&str], next_message: Option<usize>) -> Result<(), ApiError> {
    if open_calls.is_empty() {
        return Ok(());
    }
    let param = next_message.map_or("messages".to_owned(), |index| format!("messages.[{index}].role"));
    Err(ApiError::invalid(format!(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. \
         The following tool_call_ids did not have response messages: {}",
        open_calls.join(", ")
    ))
    .with_param(param))
}

fn calls(message: &Value) -> Vec<&str> {
    let calls = message.get("tool_calls").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    calls.iter().map(|call| text(call, "id")).collect()
}

fn text<'a>(object: &'a Value, member: &str) -> &'a str {
    object.get(member).and_then(Value::as_str).unwrap_or_default()
}
