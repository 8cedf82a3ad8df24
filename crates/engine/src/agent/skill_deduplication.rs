//! Sends each text of a skill once: a load of what the model sees already is answered with a reference. Pure.

use api::tool_names::LOAD_SKILL;
use llm::ToolUse;
use store::steps::Replacement;

use super::branch::Branch;
use super::loaded_skills::{ALREADY_LOADED, load_target, newest_loads};

/// Returns the result for the model: a reference if the text is visible already, else the text itself. A skill
/// that has changed since it was last loaded, or whose text was removed from the conversation, is sent again.
pub(super) fn deduplicate(branch: &Branch, call: &ToolUse, text: String) -> String {
    let is_shown = call.name == LOAD_SKILL && is_visible(branch, load_target(call), &text);
    if is_shown && text.len() > ALREADY_LOADED.len() { ALREADY_LOADED.to_owned() } else { text }
}

/// Returns whether this text is the latest visible load of the skill or file.
fn is_visible(branch: &Branch, target: (&str, Option<&str>), text: &str) -> bool {
    let last = newest_loads(branch.all_messages()).into_iter().find(|load| load.target == target);
    // A summary repeats the skills loaded in the messages that it replaces.
    let is_retained = |at| {
        at >= branch.compacted_count() || matches!(branch.replacement(), Some(Replacement::Summary { .. }))
    };
    last.is_some_and(|last| last.text == text && is_retained(last.message_index))
}

#[cfg(test)]
#[path = "../../tests/unit/agent/skill_deduplication.rs"]
mod tests;
