//! Places the cache breakpoints at which the provider stores the prompt, so that the next request finds it in the
//! cache (<https://platform.claude.com/docs/en/build-with-claude/prompt-caching>).
//!
//! A request may have four breakpoints. At each of them the provider stores the prompt up to there, and looks for
//! an earlier entry at the breakpoint and at the twenty blocks before it. One breakpoint is on the system prompt;
//! this module places the other three.

use serde_json::{Value, json};

use crate::http::insert;

/// The maximum number of blocks between two breakpoints, so that the lookup from the later one reaches the
/// earlier.
const MAX_BREAKPOINT_GAP_BLOCKS: usize = 18;

/// Sets breakpoints at the end of the conversation and at the end of the previous user message, where the last
/// request ended. If many blocks lie between them, one of those gets a breakpoint too.
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

/// The ends of the user's messages: the indices of their last blocks among all blocks.
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

/// Whether a block may have a breakpoint. The provider refuses them on reasoning.
fn allows_breakpoint(block: &Value) -> bool {
    !matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking"))
}

/// Sets a breakpoint on a block of a message or of the system prompt.
pub(super) fn set_breakpoint(block: &mut Value) {
    insert(block, "cache_control", cache_control());
}

/// The value of the `cache_control` field that makes a breakpoint.
pub(super) fn cache_control() -> Value {
    json!({"type": "ephemeral"})
}

#[cfg(test)]
#[path = "../../tests/unit/anthropic/prompt_cache.rs"]
mod tests;
