//! Compares the tools that a server lists with those that the user has approved. It is pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::user_servers::ToolState;
use tools::fingerprint;

use super::ToolDefinition;

type Definition<'a> = &'a Arc<ToolDefinition>;
type Tools = [Arc<ToolDefinition>];

/// A tool, compared with what was approved.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReviewedTool {
    pub(super) state: ToolState,
    /// The definition now; the approved one if the tool is gone.
    pub(super) definition: Arc<ToolDefinition>,
    /// The approved definition, if it is another one.
    pub(super) before: Option<Arc<ToolDefinition>>,
}

/// Returns all tools that are listed or approved, sorted by name.
pub(super) fn review(pinned: &Tools, listed: &Tools) -> Vec<ReviewedTool> {
    let mut tools: BTreeMap<&str, (Option<Definition<'_>>, Option<Definition<'_>>)> = BTreeMap::new();
    for tool in pinned {
        tools.entry(&tool.name).or_default().0.get_or_insert(tool);
    }
    for tool in listed {
        tools.entry(&tool.name).or_default().1.get_or_insert(tool);
    }
    let reviewed = tools.into_values().filter_map(|(pinned, listed)| {
        let (state, definition, before) = match (pinned, listed) {
            (Some(pinned), Some(listed)) if pinned == listed => (ToolState::Approved, pinned, None),
            (Some(pinned), Some(listed)) => (ToolState::Changed, listed, Some(pinned)),
            (None, Some(listed)) => (ToolState::New, listed, None),
            (Some(pinned), None) => (ToolState::Gone, pinned, None),
            (None, None) => return None,
        };
        Some(ReviewedTool { state, definition: Arc::clone(definition), before: before.cloned() })
    });
    reviewed.collect()
}

/// Returns the tools that are listed as they were approved.
pub(super) fn approved(pinned: &Tools, listed: &Tools) -> Vec<Arc<ToolDefinition>> {
    let is_approved = |tool: &ReviewedTool| tool.state == ToolState::Approved;
    review(pinned, listed).into_iter().filter(is_approved).map(|tool| tool.definition).collect()
}

/// Whether a tool waits for the user's approval.
pub(super) fn awaits_approval(pinned: &Tools, listed: &Tools) -> bool {
    let waits = |tool: &ReviewedTool| matches!(tool.state, ToolState::Changed | ToolState::New);
    review(pinned, listed).iter().any(waits)
}

/// Returns a hash of the tools that a server lists, whatever their order.
pub(super) fn digest(server: &str, listed: &Tools) -> String {
    // The text of one tool at a time is in memory.
    let mut hashes: Vec<_> = listed.iter().map(|tool| definition_hash(tool)).collect();
    hashes.sort_unstable();
    let parts = hashes.iter().map(String::as_str);
    fingerprint::hash(&[server].into_iter().chain(parts).collect::<Vec<_>>())
}

fn definition_hash(tool: &ToolDefinition) -> String {
    let ToolDefinition { name, description, input_schema, read_only, idempotent } = tool;
    // JSON values are sorted, and can always be written.
    let (schema, hints) = (input_schema.to_string(), format!("{read_only} {idempotent}"));
    fingerprint::hash(&[name, description, &schema, &hints])
}

/// Returns a definition as a text of lines, in which people see what differs. Different definitions have different texts; the order of the
/// fields in the schema makes no difference.
pub(super) fn definition_text(tool: &ToolDefinition) -> String {
    let ToolDefinition { name: _, description, input_schema, read_only, idempotent } = tool;
    // JSON values can always be serialized, and their objects are sorted.
    let schema = serde_json::to_string_pretty(input_schema).unwrap_or_default();
    format!(
        "input schema: {schema}\nread-only: {read_only}\nidempotent: {idempotent}\ndescription:\n{description}\n"
    )
}

#[cfg(test)]
#[path = "../tests/unit/pins.rs"]
mod tests;
