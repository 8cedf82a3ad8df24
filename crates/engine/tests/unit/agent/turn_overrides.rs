//! What a request may set for its turn, and what of it applies where.

use llm::Prices;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn overrides(fields: Value) -> TurnOverrides {
    serde_json::from_value(fields).unwrap()
}

#[test]
fn a_request_without_a_list_allows_every_tool_and_an_empty_list_none() {
    assert!(allows_tool(None, "shell"));
    assert!(allows_tool(Some(&overrides(json!({"model": "m"}))), "shell"));
    let none = overrides(json!({"allowed_tools": []}));
    assert!(["shell", TOOL_SEARCH].iter().all(|tool| !allows_tool(Some(&none), tool)));
    assert!(tools_note(&none).unwrap().starts_with(NOTE_MARK));
}

#[test]
fn a_list_allows_its_names_and_what_its_patterns_match() {
    let some = overrides(json!({"allowed_tools": ["read_file", "github__*"]}));
    for (tool, is_allowed) in [
        ("read_file", true),
        ("read_files", false),
        ("github__search", true),
        ("shell", false),
        (TOOL_SEARCH, true),
    ] {
        assert_eq!(allows_tool(Some(&some), tool), is_allowed, "{tool}");
    }
    assert!(tools_note(&some).unwrap().contains("read_file, github__*"));
}

#[test]
fn instructions_become_a_note_and_are_stored_only_there() {
    let mut all = overrides(json!({"instructions": "Answer in French.", "allowed_tools": ["shell"]}));
    let notes = take_notes(&mut all);
    assert!(notes[0].starts_with(NOTE_MARK) && notes[0].ends_with("Answer in French."), "{notes:?}");
    assert_eq!((notes.len(), all.instructions.is_none()), (2, true));
    let contents: Vec<Content> = notes.iter().cloned().map(|text| Content::Note { text }).collect();
    assert_eq!(notes_in(&contents).collect::<Vec<_>>(), notes);
    // What a user writes is no note, whatever it says.
    assert_eq!(notes_in(&[Content::Text { text: notes[0].clone() }]).count(), 0);
}

#[test]
fn a_sub_agent_thinks_as_the_turn_and_has_nothing_else_of_it() {
    let all = overrides(json!({"effort": "low", "model": "m", "metadata": {"a": "b"}, "max_tokens": 9}));
    assert_eq!(for_sub_agent(Some(&all)).map(|own| *own), Some(overrides(json!({"effort": "low"}))));
    assert_eq!(for_sub_agent(Some(&overrides(json!({"model": "m"})))), None);
}

proptest! {
    #[test]
    fn an_affordable_answer_costs_no_more_than_is_there(
        prompt in 0..1_000_000u64, usd in -1.0..50.0f64, input in 0.0..20.0f64, output in 0.01..90.0f64,
    ) {
        let prices = Prices { input, output, cache_read: 0.0, cache_write: input * 1.25 };
        let tokens = prices.affordable_output(prompt, usd);
        let usage = llm::TokenUsage { input: prompt, output: tokens, cache_write: prompt, ..Default::default() };
        prop_assert!(tokens == 0 || prices.cost(&usage) <= usd + 1e-6);
    }
}
