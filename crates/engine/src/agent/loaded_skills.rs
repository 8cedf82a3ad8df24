//! The skills that a conversation has loaded, found in its messages. Pure.

use api::tool_names::LOAD_SKILL;
use llm::{Block, Message, ToolReply, ToolUse};
use serde_json::Value;

/// The result of loading a skill whose text is already visible to the model.
pub(super) const ALREADY_LOADED: &str =
    "This is loaded already, and has not changed: it stands word for word further up.";

/// A tool result that contains the text of a skill or of one of its files.
#[derive(Clone, Copy)]
pub(super) struct SkillLoad<'a> {
    /// The skill and the file that were loaded.
    pub(super) target: (&'a str, Option<&'a str>),
    /// The index of the message that contains the result.
    pub(super) message_index: usize,
    /// The provider's id of the call.
    provider_id: &'a str,
    /// The loaded text.
    pub(super) text: &'a str,
}

impl SkillLoad<'_> {
    /// The indexes of the two messages it consists of: the call, and the result after it.
    pub(super) fn message_indexes(&self) -> [usize; 2] {
        [self.message_index.saturating_sub(1), self.message_index]
    }

    /// Returns whether it is this reply in the message at `at`.
    pub(super) fn is_reply(&self, at: usize, reply: &ToolReply) -> bool {
        self.message_index == at && self.provider_id == reply.provider_id
    }
}

/// The loads in these messages, oldest first.
pub(super) fn skill_loads(messages: &[Message]) -> Vec<SkillLoad<'_>> {
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
                    if !is_error && text != ALREADY_LOADED {
                        loads.push(SkillLoad {
                            target: load_target(call),
                            message_index: at,
                            provider_id,
                            text,
                        });
                    }
                }
            }
            Message::User { .. } => {}
        }
    }
    loads
}

/// The latest load of each skill or file in these messages; a skill may have changed in between.
pub(super) fn newest_loads(messages: &[Message]) -> Vec<SkillLoad<'_>> {
    let mut newest: Vec<SkillLoad<'_>> = Vec::new();
    for load in skill_loads(messages) {
        newest.retain(|older| older.target != load.target);
        newest.push(load);
    }
    newest
}

/// What a call loads: the skill, and the file unless it is the skill's own text.
pub(super) fn load_target(call: &ToolUse) -> (&str, Option<&str>) {
    let text = |field| call.input.get(field).and_then(Value::as_str);
    let file = text("file").map(|file| file.strip_prefix("./").unwrap_or(file));
    (text("skill").unwrap_or_default(), file)
}
