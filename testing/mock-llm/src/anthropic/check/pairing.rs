//! The pairing of tool calls and results
//! (<https://platform.claude.com/docs/en/agents-and-tools/tool-use/implement-tool-use>): the message after a
//! message with calls must begin with one result for each of the calls.

use std::collections::HashSet;

use serde_json::Value;

use super::super::node::{Node, block_type};
use super::content::role;
use crate::protocol::ApiError;

pub(super) fn check(messages: &[Node<'_>]) -> Result<(), ApiError> {
    let mut all_calls = HashSet::new();
    let mut open_calls: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        check_results(message, &open_calls)?;
        check_answered(index, &open_calls, &leading_results(message))?;
        open_calls = calls(message);
        for (block, call) in
            blocks_of(message).filter(|block| block_type(block.value) == "tool_use").zip(&open_calls)
        {
            if !all_calls.insert(*call) {
                return Err(block.error("`tool_use` ids must be unique"));
            }
        }
    }
    check_answered(messages.len(), &open_calls, &HashSet::new())
}

/// Checks that every result belongs to a call of the previous message, and that no call has two results.
fn check_results(message: &Node<'_>, open_calls: &[&str]) -> Result<(), ApiError> {
    let mut answered = HashSet::new();
    for block in blocks_of(message) {
        let Some(id) = result_id(block.value) else { continue };
        if !open_calls.contains(&id) {
            return Err(block.error(&format!(
                "unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must have \
                 a corresponding `tool_use` block in the previous message."
            )));
        }
        if !answered.insert(id) {
            return Err(block.error(&format!(
                "each tool_use must have a single result. Found multiple `tool_result` blocks with id: {id}"
            )));
        }
    }
    Ok(())
}

/// Checks that every call of the previous message has a result. Results after other content do not count, so a
/// message that begins with text is refused with the same error.
fn check_answered(index: usize, open_calls: &[&str], results: &HashSet<&str>) -> Result<(), ApiError> {
    let missing: Vec<&str> = open_calls.iter().copied().filter(|id| !results.contains(id)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "messages.{}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` \
         block must have a corresponding `tool_result` block in the next message.",
        index.saturating_sub(1),
        missing.join(", ")
    )))
}

fn calls<'a>(message: &Node<'a>) -> Vec<&'a str> {
    if role(message) != "assistant" {
        return Vec::new();
    }
    blocks_of(message)
        .filter(|block| block_type(block.value) == "tool_use")
        .filter_map(|block| block.value.get("id").and_then(Value::as_str))
        .collect()
}

fn leading_results<'a>(message: &Node<'a>) -> HashSet<&'a str> {
    blocks_of(message).map_while(|block| result_id(block.value)).collect()
}

fn result_id(block: &Value) -> Option<&str> {
    block.get("tool_use_id").filter(|_| block_type(block) == "tool_result")?.as_str()
}

/// The blocks of a message. A content that is a string has none.
fn blocks_of<'a>(message: &Node<'a>) -> impl Iterator<Item = Node<'a>> {
    message.member("content").and_then(|content| content.list().ok()).unwrap_or_default().into_iter()
}
