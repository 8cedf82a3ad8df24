//! Tests of the comparison of tools with the approved ones.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn tool(name: &str, description: &str, input_schema: Value) -> Arc<ToolDefinition> {
    let (name, description) = (name.to_owned(), description.to_owned());
    Arc::new(ToolDefinition { name, description, input_schema, read_only: false, idempotent: false })
}

fn any_tools() -> impl Strategy<Value = Vec<Arc<ToolDefinition>>> {
    let one =
        ("[a-d]", "[xy\u{e9}\n]{0,2}", 0_u8..3, any::<bool>()).prop_map(|(name, text, field, read_only)| {
            let definition = tool(&name, &text, json!({"type": "object", "properties": {"f": field}}));
            Arc::new(ToolDefinition { read_only, ..(*definition).clone() })
        });
    // A server's list has each name once.
    proptest::collection::vec(one, 0..6).prop_map(|tools| {
        let unique: BTreeMap<_, _> = tools.into_iter().map(|tool| (tool.name.clone(), tool)).collect();
        unique.into_values().collect()
    })
}

fn find<'a>(tools: &'a Tools, name: &str) -> Option<&'a Arc<ToolDefinition>> {
    tools.iter().find(|tool| tool.name == name)
}

#[test]
fn the_order_of_tools_and_of_the_fields_of_schemas_makes_no_difference() {
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let one = tool("a", "A", parse(r#"{"type": "object", "properties": {"x": {}, "y": {}}}"#));
    let same = tool("a", "A", parse(r#"{"properties": {"y": {}, "x": {}}, "type": "object"}"#));
    let other = tool("b", "B", json!({}));
    let (first, second) = ([one, Arc::clone(&other)], [other, same]);
    assert_eq!(digest("s", &first), digest("s", &second));
    assert!(!awaits_approval(&first, &second));
    assert_ne!(digest("s", &first), digest("t", &first));
}

#[test]
fn what_looks_like_another_field_is_still_another_definition() {
    let forged = tool("a", "x\nread-only: true", json!({}));
    let honest = Arc::new(ToolDefinition { read_only: true, ..(*tool("a", "x", json!({}))).clone() });
    assert_ne!(definition_text(&forged), definition_text(&honest));
}

proptest! {
    #[test]
    fn only_what_is_exactly_as_approved_is_offered(pinned in any_tools(), listed in any_tools()) {
        let offered = approved(&pinned, &listed);
        for tool in &offered {
            prop_assert_eq!(find(&pinned, &tool.name), Some(tool));
            prop_assert_eq!(find(&listed, &tool.name), Some(tool));
        }
        let same = listed.iter().filter(|tool| find(&pinned, &tool.name) == Some(*tool)).count();
        prop_assert_eq!(offered.len(), same);
    }

    #[test]
    fn each_tool_is_reviewed_once_in_its_state(pinned in any_tools(), listed in any_tools()) {
        let reviewed = review(&pinned, &listed);
        let names: Vec<_> = reviewed.iter().map(|tool| tool.definition.name.as_str()).collect();
        let mut all: Vec<_> = pinned.iter().chain(&listed).map(|tool| tool.name.as_str()).collect();
        all.sort_unstable();
        all.dedup();
        prop_assert_eq!(names, all);
        for tool in &reviewed {
            let (before, now) = (find(&pinned, &tool.definition.name), find(&listed, &tool.definition.name));
            let expected = match (before, now) {
                (Some(before), Some(now)) if before == now => ToolState::Approved,
                (Some(_), Some(_)) => ToolState::Changed,
                (None, _) => ToolState::New,
                (_, None) => ToolState::Gone,
            };
            prop_assert_eq!(tool.state, expected);
            prop_assert_eq!(tool.before.is_some(), tool.state == ToolState::Changed);
        }
        let waits = reviewed.iter().any(|tool| matches!(tool.state, ToolState::New | ToolState::Changed));
        prop_assert_eq!(awaits_approval(&pinned, &listed), waits);
    }

    #[test]
    fn after_an_approval_everything_listed_is_offered(listed in any_tools()) {
        prop_assert_eq!(approved(&listed, &listed), listed.clone());
        prop_assert!(!awaits_approval(&listed, &listed));
    }

    #[test]
    fn digests_are_equal_for_equal_tools_only(one in any_tools(), other in any_tools()) {
        let reversed: Vec<_> = one.iter().rev().cloned().collect();
        prop_assert_eq!(digest("s", &one), digest("s", &reversed));
        prop_assert_eq!(digest("s", &one) == digest("s", &other), one == other);
    }

    #[test]
    fn what_is_stored_is_what_was_listed(listed in any_tools()) {
        let stored = serde_json::to_string(&listed.iter().map(|tool| &**tool).collect::<Vec<_>>()).unwrap();
        let read: Vec<ToolDefinition> = serde_json::from_str(&stored).unwrap();
        let read: Vec<_> = read.into_iter().map(Arc::new).collect();
        prop_assert_eq!(digest("s", &read), digest("s", &listed));
        prop_assert!(!awaits_approval(&read, &listed));
    }
}
