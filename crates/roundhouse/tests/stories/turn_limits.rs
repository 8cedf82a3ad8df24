//! Story 20: a caller's options for a turn: its maximum of model calls, thinking, and planning.

use mock_llm::Reply;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{ReplyExt as _, WIRES, memory_set_reply};
use crate::support::turn::{assert_completed, of_kind, visible_text};
use crate::support::{EngineFixture, Event};

/// The events of a turn whose request has these additional fields.
async fn run_turn_with_fields(fixture: &EngineFixture, fields: Value) -> Vec<Event> {
    fixture.engine.run_turn_with(&with_fields(direct_message("task", "Count."), fields)).await
}

fn stop_reason(events: &[Event]) -> &str {
    events.last().unwrap().data["stop_reason"].as_str().unwrap()
}

/// Replies of a model that notes one number after the other and never ends its turn.
fn endless_replies() -> impl Iterator<Item = Reply> {
    (0..).map(|number: i64| {
        Reply::new()
            .thinking("Go on.")
            .text(format!("Number {number}."))
            .memory_set("number", &number.to_string())
    })
}

#[tokio::test]
async fn a_turn_makes_as_many_model_calls_as_it_may() {
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, endless_replies().take(3)).await;
        let events = run_turn_with_fields(&fixture, json!({"max_turns": 3, "super_thinking": true})).await;
        assert_eq!((stop_reason(&events), fixture.model_calls()), ("max_turns", 3), "{wire}");
        assert_eq!(assert_completed(&events), "Number 2.", "{wire}: the text of the last model answer");
        // The next turn has its own count, and the provider accepts the history.
        fixture.provider.enqueue(Reply::new().thinking("Enough.").text("That will do."));
        let events = run_turn_with_fields(&fixture, json!({"max_turns": 1, "super_thinking": true})).await;
        assert_eq!((assert_completed(&events), stop_reason(&events)), ("That will do.", "end_turn"));
    }
}

#[tokio::test]
async fn a_turn_that_ends_with_its_last_call_ended_by_itself() {
    let fixture = EngineFixture::new([memory_set_reply("number", "1"), Reply::from_text("Done.")]).await;
    let events = run_turn_with_fields(&fixture, json!({"max_turns": 2})).await;
    assert_eq!((assert_completed(&events), stop_reason(&events)), ("Done.", "end_turn"));
}

#[tokio::test]
async fn a_turn_makes_fifty_model_calls_where_nobody_says_how_many() {
    let fixture = EngineFixture::new(endless_replies().take(60)).await;
    let events = run_turn_with_fields(&fixture, json!({})).await;
    assert_eq!((stop_reason(&events), fixture.model_calls()), ("max_turns", 50));
    assert_eq!(assert_completed(&events), "Number 49.");
}

#[tokio::test]
async fn a_turn_of_no_model_calls_is_refused() {
    let fixture = EngineFixture::new([]).await;
    for count in [json!(0), json!(-1), json!(-50), json!(i64::MIN), json!(0.5), json!("3"), json!(1e30)] {
        let body = with_fields(direct_message("task", "Count."), json!({"max_turns": count}));
        let answer = fixture.engine.post_execute(&body).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains("max_turns"), "{count}");
    }
    assert_eq!((fixture.model_calls(), fixture.engine.tasks("").await.1), (0, 0));
    run_turn_with_fields(&fixture, json!({"max_turns": i64::MAX})).await;
    run_turn_with_fields(&fixture, json!({"max_turns": null})).await;
}

/// The thinking mode or reasoning effort that the newest request asks for, `None` if thinking is disabled.
fn requested_thinking(fixture: &EngineFixture, wire: &str) -> Option<String> {
    let body = fixture.provider.requests().pop().unwrap().body;
    let field = if wire == "anthropic" { &body["thinking"]["type"] } else { &body["reasoning_effort"] };
    field.as_str().filter(|word| *word != "disabled").map(str::to_owned)
}

#[tokio::test]
async fn a_model_that_is_to_think_is_told_so() {
    for wire in WIRES {
        let answer = || Reply::new().thinking("Let me count.").text("Three.");
        let fixture = EngineFixture::for_wire(wire, [answer(), answer(), answer()]).await;
        let mut without_thinking = None;
        for fields in [json!({}), json!({"super_thinking": false})] {
            let events = run_turn_with_fields(&fixture, fields).await;
            without_thinking = requested_thinking(&fixture, wire);
            assert_eq!(visible_text(&events, "thinking_delta"), "", "{wire}");
        }
        let events = run_turn_with_fields(&fixture, json!({"super_thinking": true})).await;
        let with_thinking = requested_thinking(&fixture, wire)
            .unwrap_or_else(|| panic!("{wire}: the request does not ask for thinking"));
        assert_ne!(without_thinking.as_ref(), Some(&with_thinking), "{wire}: the same as without thinking");
        if wire == "anthropic" {
            assert!(["adaptive", "enabled"].contains(&with_thinking.as_str()), "{with_thinking}");
            assert_eq!(visible_text(&events, "thinking_delta"), "Let me count.");
            let blocks: Vec<&Value> = of_kind(&events, "content_block_start")
                .iter()
                .map(|event| &event.data["block_type"])
                .collect();
            assert_eq!(blocks, ["thinking", "text"]);
        }
        assert_eq!(assert_completed(&events), "Three.");
    }
}

#[tokio::test]
async fn turns_with_and_without_thinking_may_follow_one_another() {
    for wire in WIRES {
        let steps = |number: &str| {
            let calls = Reply::new().thinking("I note it.").memory_set("number", number);
            [calls, Reply::new().thinking("It is noted.").redacted_thinking().text("Noted.")]
        };
        let fixture = EngineFixture::for_wire(wire, []).await;
        for (number, thinks) in [true, false, true, true, false, false, true].into_iter().enumerate() {
            fixture.provider.enqueue_all(steps(&number.to_string()));
            run_turn_with_fields(&fixture, json!({"super_thinking": thinks})).await;
        }
        // The mock provider refuses thinking blocks that are changed, missing or moved.
        assert_eq!(fixture.model_calls(), 14, "{wire}");
    }
}

#[tokio::test]
async fn a_direct_turn_asks_the_model_for_nothing_but_the_answer() {
    let fixture = EngineFixture::new([Reply::from_text("Three.")]).await;
    let events = run_turn_with_fields(&fixture, json!({"direct": true})).await;
    assert_eq!((assert_completed(&events), fixture.model_calls()), ("Three.", 1));
    fixture.last_messages().assert_contains(&["Count."]);
    run_turn_with_fields(&fixture, json!({"direct": false})).await;
    for direct in [json!("yes"), json!(1)] {
        let body = with_fields(direct_message("task", "Count."), json!({"direct": direct}));
        let answer = fixture.engine.post_execute(&body).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains("direct"));
    }
}
