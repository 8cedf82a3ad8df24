//! Where the provider is asked to keep what it has read of a prompt, so that the next request finds it
//! (<https://platform.claude.com/docs/en/build-with-claude/prompt-caching>).
//!
//! A request may have four marks. At each of them the provider stores the prompt up to there, and looks for what it
//! stored before: at the mark, and at the twenty blocks in front of it. One mark is on the system's text; here are
//! the other three.

use serde_json::{Value, json};

use crate::llm::http::insert;

/// How many blocks there may be between two marks, so that from the later one the earlier is still seen.
const MAX_BREAKPOINT_GAP_BLOCKS: usize = 18;

/// Marks the end of the conversation, and the end of the user's message before: that is where the last request
/// ended. Where many blocks lie between them, one of those is marked too.
pub(super) fn set_breakpoints(messages: &mut [Value]) {
    let ends: Vec<usize> = user_message_ends(messages);
    let mut blocks: Vec<&mut Value> =
        messages.iter_mut().filter_map(|message| message["content"].as_array_mut()).flatten().collect();
    let (last, before) = match *ends {
        [.., before, last] => (last, Some(before)),
        [last] => (last, None),
        [] => return,
    };
    let between = before.and_then(|before| {
        let far = last.checked_sub(MAX_BREAKPOINT_GAP_BLOCKS).filter(|far| *far > before)?;
        (before + 1..=far).rev().find(|at| blocks.get(*at).is_some_and(|block| allows_breakpoint(block)))
    });
    for at in [Some(last), before, between].into_iter().flatten() {
        if let Some(block) = blocks.get_mut(at) {
            set_breakpoint(block);
        }
    }
}

/// Where the user's messages end: the places of their last blocks among all blocks.
fn user_message_ends(messages: &[Value]) -> Vec<usize> {
    let mut blocks = 0;
    let mut ends = Vec::new();
    for message in messages {
        blocks += message["content"].as_array().map_or(0, Vec::len);
        if message["role"] == "user" && blocks > 0 {
            ends.push(blocks - 1);
        }
    }
    ends
}

/// The provider refuses marks on reasoning.
fn allows_breakpoint(block: &Value) -> bool {
    !matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking"))
}

/// Marks a block of a message, or of the system's text.
pub(super) fn set_breakpoint(block: &mut Value) {
    insert(block, "cache_control", cache_control());
}

/// What a mark is: the `cache_control` of what is marked.
pub(super) fn cache_control() -> Value {
    json!({"type": "ephemeral"})
}

#[cfg(test)]
#[path = "prompt_cache_tests.rs"]
mod tests;
