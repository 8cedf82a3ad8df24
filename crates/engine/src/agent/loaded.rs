//! Skills that a conversation has loaded: their text is told once. Pure.

use serde_json::Value;

use super::branch::Branch;
use crate::brain::steps::Instead;
use crate::models::{Block, Message, ToolReply, ToolUse};
use crate::tools::LOAD_SKILL;

/// What the model is told in the place of a skill that it can see already.
pub(super) const LOADED: &str =
    "This is loaded already, and has not changed: it stands word for word further up.";

/// A result that told what a skill, or one of its files, says.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    /// What was loaded: the skill, and the file.
    what: (&'a str, Option<&'a str>),
    /// Where among the messages the result stands.
    at: usize,
    /// The call, by its provider's name for it.
    provider_id: &'a str,
    /// What it says.
    pub(super) text: &'a str,
}

impl Load<'_> {
    /// The messages that it is: the call, and the result behind it.
    pub(super) fn messages(&self) -> [usize; 2] {
        [self.at.saturating_sub(1), self.at]
    }

    /// Whether it is this result of the message at `at`.
    pub(super) fn is(&self, at: usize, reply: &ToolReply) -> bool {
        self.at == at && self.provider_id == reply.provider_id
    }
}

/// What was loaded in these messages, oldest first.
pub(super) fn loads(messages: &[Message]) -> Vec<Load<'_>> {
    let mut open: Vec<&ToolUse> = Vec::new();
    let mut loads = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        match message {
            Message::Assistant { blocks, .. } => open.extend(blocks.iter().filter_map(|block| match block {
                Block::ToolUse(call) if call.name == LOAD_SKILL => Some(call),
                _ => None,
            })),
            Message::Results(replies) => {
                for ToolReply { provider_id, text, is_error, .. } in replies {
                    let call = open.iter().position(|call| call.provider_id == *provider_id);
                    let Some(call) = call.map(|call| open.swap_remove(call)) else { continue };
                    if !is_error && text != LOADED {
                        loads.push(Load { what: what(call), at, provider_id, text });
                    }
                }
            }
            Message::User { .. } => {}
        }
    }
    loads
}

/// What was loaded in these messages, once each as it said last: a skill may have changed in between.
pub(super) fn newest(messages: &[Message]) -> Vec<Load<'_>> {
    let mut newest: Vec<Load<'_>> = Vec::new();
    for load in loads(messages) {
        newest.retain(|older| older.what != load.what);
        newest.push(load);
    }
    newest
}

/// What the model is told of what it loaded, in a conversation that stands so. A skill that has changed since it was
/// last loaded, or whose text was left out of the conversation, is told anew.
pub(super) fn told_once(branch: &Branch, call: &ToolUse, text: String) -> String {
    let is_shown = call.name == LOAD_SKILL && shows(branch, what(call), &text);
    if is_shown && text.len() > LOADED.len() { LOADED.to_owned() } else { text }
}

/// Whether the last that the model sees of what was loaded is this text.
fn shows(branch: &Branch, what: (&str, Option<&str>), text: &str) -> bool {
    let last = newest(branch.all()).into_iter().find(|load| load.what == what);
    // A summary repeats what was loaded in the messages that it stands for.
    let survives = |at| at >= branch.covered() || matches!(branch.instead(), Some(Instead::Summary { .. }));
    last.is_some_and(|last| last.text == text && survives(last.at))
}

/// What a call loads: the skill, and the file where it is not the skill's own text.
fn what(call: &ToolUse) -> (&str, Option<&str>) {
    let text = |field| call.input.get(field).and_then(Value::as_str);
    let file = text("file").map(|file| file.strip_prefix("./").unwrap_or(file));
    (text("skill").unwrap_or_default(), file)
}

#[cfg(test)]
#[path = "loaded_tests.rs"]
mod tests;
