//! The fingerprint of a conversation before an answer, for the vendor's "preserved thinking": the newest models
//! bind a thinking block to `system`, `tools` and the messages before it
//! (<https://platform.claude.com/docs/en/build-with-claude/preserved-thinking>).
//!
//! It does not include cache marks, nor earlier thinking, which a client may leave out.

use serde_json::{Value, json};

use super::node::{block_type, blocks};
use crate::cache::without_marks;
use crate::issued::{Fingerprint, Prefix};

/// The fingerprint of everything before the message at `end`.
pub(super) fn prefix(body: &Value, end: usize) -> Prefix {
    let system = body.get("system").map(blocks).unwrap_or_default();
    let tools = body.get("tools").cloned().unwrap_or_default();
    let messages = body.get("messages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let messages: Vec<Value> = messages.iter().take(end).map(without_thinking_and_marks).collect();
    Prefix {
        system: Fingerprint::compute(&without_marks(Value::Array(system))),
        tools: Fingerprint::compute(&without_marks(tools)),
        messages: Fingerprint::compute(&Value::Array(messages)),
    }
}

/// A message without thinking and cache marks, and with its content as blocks.
fn without_thinking_and_marks(message: &Value) -> Value {
    let content = message.get("content").map(blocks).unwrap_or_default();
    let content: Vec<Value> = content
        .into_iter()
        .filter(|block| !matches!(block_type(block), "thinking" | "redacted_thinking"))
        .map(without_marks)
        .collect();
    json!({"role": message.get("role"), "content": content})
}
