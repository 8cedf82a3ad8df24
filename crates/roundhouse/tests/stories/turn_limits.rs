//! Story 20: what a caller may say about a turn: how long it may get, how hard to think, whether to plan.

use mock_llm::Reply;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{ReplyExt as _, WIRES, memory_set_reply};
use crate::support::turn::{assert_completed, of_kind, visible_text};
use crate::support::{EngineFixture, Event};

/// A turn with more fields: its events.
async fn run_turn_with_fields(rig: &EngineFixture, fields: Value) -> Vec<Event> {
    rig.engine.run_turn_with(&with_fields(direct_message("task", "Count."), fields)).await
}

fn stop_reason(events: &[Event]) -> &str {
    events.last().unwrap().data["stop_reason"].as_str().unwrap()
}

/// A model that notes one number after the other and never comes to an end.
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
        let rig = EngineFixture::for_wire(wire, endless_replies().take(3)).await;
        let events = run_turn_with_fields(&rig, json!({"max_turns": 3, "super_thinking": true})).await;
        assert_eq!((stop_reason(&events), rig.model_calls()), ("max_turns", 3), "{wire}");
        assert_eq!(assert_completed(&events), "Number 2.", "{wire}: the text of the last model answer");
        // The next turn has a count of its own, and the provider takes the history.
        rig.provider.enqueue(Reply::new().thinking("Enough.").text("That will do."));
        let events = run_turn_with_fields(&rig, json!({"max_turns": 1, "super_thinking": true})).await;
        assert_eq!((assert_completed(&events), stop_reason(&events)), ("That will do.", "end_turn"));
    }
}

#[tokio::test]
async fn a_turn_that_ends_with_its_last_call_ended_by_itself() {
    let rig = EngineFixture::new([memory_set_reply("number", "1"), Reply::from_text("Done.")]).await;
    let events = run_turn_with_fields(&rig, json!({"max_turns": 2})).await;
    assert_eq!((assert_completed(&events), stop_reason(&events)), ("Done.", "end_turn"));
}

#[tokio::test]
async fn a_turn_makes_fifty_model_calls_where_nobody_says_how_many() {
    let rig = EngineFixture::new(endless_replies().take(60)).await;
    let events = run_turn_with_fields(&rig, json!({})).await;
    assert_eq!((stop_reason(&events), rig.model_calls()), ("max_turns", 50));
    assert_eq!(assert_completed(&events), "Number 49.");
}

#[tokio::test]
async fn a_turn_of_no_model_calls_is_refused() {
    let rig = EngineFixture::new([]).await;
    for count in [json!(0), json!(-1), json!(-50), json!(i64::MIN), json!(0.5), json!("3"), json!(1e30)] {
        let body = with_fields(direct_message("task", "Count."), json!({"max_turns": count}));
        let answer = rig.engine.post_execute(&body).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains("max_turns"), "{count}");
    }
    assert_eq!((rig.model_calls(), rig.engine.tasks("").await.1), (0, 0));
    run_turn_with_fields(&rig, json!({"max_turns": i64::MAX})).await;
    run_turn_with_fields(&rig, json!({"max_turns": null})).await;
}

/// What the newest request asks of the model's thinking.
fn requested_thinking(rig: &EngineFixture, wire: &str) -> Option<String> {
    let body = rig.provider.requests().pop().unwrap().body;
    let field = if wire == "anthropic" { &body["thinking"]["type"] } else { &body["reasoning_effort"] };
    field.as_str().filter(|word| *word != "disabled").map(str::to_owned)
}

#[tokio::test]
async fn a_model_that_is_to_think_is_told_so() {
    for wire in WIRES {
        let answer = || Reply::new().thinking("Let me count.").text("Three.");
        let rig = EngineFixture::for_wire(wire, [answer(), answer(), answer()]).await;
        let mut asked_before = None;
        for fields in [json!({}), json!({"super_thinking": false})] {
            let events = run_turn_with_fields(&rig, fields).await;
            asked_before = requested_thinking(&rig, wire);
            assert_eq!(visible_text(&events, "thinking_delta"), "", "{wire}");
        }
        let events = run_turn_with_fields(&rig, json!({"super_thinking": true})).await;
        let asked =
            requested_thinking(&rig, wire).unwrap_or_else(|| panic!("{wire}: nothing is said of thinking"));
        assert_ne!(asked_before.as_ref(), Some(&asked), "{wire}: as if it were not to think");
        if wire == "anthropic" {
            assert!(["adaptive", "enabled"].contains(&asked.as_str()), "{asked}");
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
        let rig = EngineFixture::for_wire(wire, []).await;
        for (number, thinks) in [true, false, true, true, false, false, true].into_iter().enumerate() {
            rig.provider.enqueue_all(steps(&number.to_string()));
            run_turn_with_fields(&rig, json!({"super_thinking": thinks})).await;
        }
        // The provider refuses thinking that is changed, missing or in another place.
        assert_eq!(rig.model_calls(), 14, "{wire}");
    }
}

#[tokio::test]
async fn a_direct_turn_asks_the_model_for_nothing_but_the_answer() {
    let rig = EngineFixture::new([Reply::from_text("Three.")]).await;
    let events = run_turn_with_fields(&rig, json!({"direct": true})).await;
    assert_eq!((assert_completed(&events), rig.model_calls()), ("Three.", 1));
    rig.last_messages().assert_contains(&["Count."]);
    run_turn_with_fields(&rig, json!({"direct": false})).await;
    for direct in [json!("yes"), json!(1)] {
        let body = with_fields(direct_message("task", "Count."), json!({"direct": direct}));
        let answer = rig.engine.post_execute(&body).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains("direct"));
    }
}
