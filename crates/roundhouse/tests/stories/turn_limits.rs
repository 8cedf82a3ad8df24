//! Story 20: what a caller may say about a turn: how long it may get, how hard to think, whether to plan.

use serde_json::{Value, json};
use strict_provider::Reply;

use crate::support::calls::{message, with};
use crate::support::model::{Act as _, WIRES, note};
use crate::support::turn::{completed, of_kind, shown};
use crate::support::{Event, Rig};

/// A turn with more fields: its events.
async fn turn(rig: &Rig, fields: Value) -> Vec<Event> {
    rig.engine.tell_with(&with(message("task", "Count."), fields)).await
}

fn stop_reason(events: &[Event]) -> &str {
    events.last().unwrap().data["stop_reason"].as_str().unwrap()
}

/// A model that notes one number after the other and never comes to an end.
fn endless() -> impl Iterator<Item = Reply> {
    (0..).map(|number: i64| {
        Reply::new().thinking("Go on.").text(format!("Number {number}.")).notes("number", &number.to_string())
    })
}

#[tokio::test]
async fn a_turn_makes_as_many_model_calls_as_it_may() {
    for wire in WIRES {
        let rig = Rig::on(wire, endless().take(3)).await;
        let events = turn(&rig, json!({"max_turns": 3, "super_thinking": true})).await;
        assert_eq!((stop_reason(&events), rig.calls()), ("max_turns", 3), "{wire}");
        assert_eq!(completed(&events), "Number 2.", "{wire}: the text of the last model answer");
        // The next turn has a count of its own, and the provider takes the history.
        rig.provider.enqueue(Reply::new().thinking("Enough.").text("That will do."));
        let events = turn(&rig, json!({"max_turns": 1, "super_thinking": true})).await;
        assert_eq!((completed(&events), stop_reason(&events)), ("That will do.", "end_turn"));
    }
}

#[tokio::test]
async fn a_turn_that_ends_with_its_last_call_ended_by_itself() {
    let rig = Rig::new([note("number", "1"), Reply::of_text("Done.")]).await;
    let events = turn(&rig, json!({"max_turns": 2})).await;
    assert_eq!((completed(&events), stop_reason(&events)), ("Done.", "end_turn"));
}

#[tokio::test]
async fn a_turn_makes_fifty_model_calls_where_nobody_says_how_many() {
    let rig = Rig::new(endless().take(60)).await;
    let events = turn(&rig, json!({})).await;
    assert_eq!((stop_reason(&events), rig.calls()), ("max_turns", 50));
    assert_eq!(completed(&events), "Number 49.");
}

#[tokio::test]
async fn a_turn_of_no_model_calls_is_refused() {
    let rig = Rig::new([]).await;
    for count in [json!(0), json!(-1), json!(-50), json!(i64::MIN), json!(0.5), json!("3"), json!(1e30)] {
        let body = with(message("task", "Count."), json!({"max_turns": count}));
        let answer = rig.engine.execute_refused(&body).await;
        assert!(answer.refused(400, "INVALID_REQUEST").contains("max_turns"), "{count}");
    }
    assert_eq!((rig.calls(), rig.engine.tasks("").await.1), (0, 0));
    turn(&rig, json!({"max_turns": i64::MAX})).await;
    turn(&rig, json!({"max_turns": null})).await;
}

/// What the newest request asks of the model's thinking.
fn asked(rig: &Rig, wire: &str) -> Option<String> {
    let body = rig.provider.requests().pop().unwrap().body;
    let field = if wire == "anthropic" { &body["thinking"]["type"] } else { &body["reasoning_effort"] };
    field.as_str().filter(|word| *word != "disabled").map(str::to_owned)
}

#[tokio::test]
async fn a_model_that_is_to_think_is_told_so() {
    for wire in WIRES {
        let answer = || Reply::new().thinking("Let me count.").text("Three.");
        let rig = Rig::on(wire, [answer(), answer(), answer()]).await;
        let mut asked_before = None;
        for fields in [json!({}), json!({"super_thinking": false})] {
            let events = turn(&rig, fields).await;
            asked_before = asked(&rig, wire);
            assert_eq!(shown(&events, "thinking_delta"), "", "{wire}");
        }
        let events = turn(&rig, json!({"super_thinking": true})).await;
        let asked = asked(&rig, wire).unwrap_or_else(|| panic!("{wire}: nothing is said of thinking"));
        assert_ne!(asked_before.as_ref(), Some(&asked), "{wire}: as if it were not to think");
        if wire == "anthropic" {
            assert!(["adaptive", "enabled"].contains(&asked.as_str()), "{asked}");
            assert_eq!(shown(&events, "thinking_delta"), "Let me count.");
            let blocks: Vec<&Value> = of_kind(&events, "content_block_start")
                .iter()
                .map(|event| &event.data["block_type"])
                .collect();
            assert_eq!(blocks, ["thinking", "text"]);
        }
        assert_eq!(completed(&events), "Three.");
    }
}

#[tokio::test]
async fn turns_with_and_without_thinking_may_follow_one_another() {
    for wire in WIRES {
        let steps = |number: &str| {
            let calls = Reply::new().thinking("I note it.").notes("number", number);
            [calls, Reply::new().thinking("It is noted.").redacted_thinking().text("Noted.")]
        };
        let rig = Rig::on(wire, []).await;
        for (number, thinks) in [true, false, true, true, false, false, true].into_iter().enumerate() {
            rig.provider.enqueue_all(steps(&number.to_string()));
            turn(&rig, json!({"super_thinking": thinks})).await;
        }
        // The provider refuses thinking that is changed, missing or in another place.
        assert_eq!(rig.calls(), 14, "{wire}");
    }
}

#[tokio::test]
async fn a_direct_turn_asks_the_model_for_nothing_but_the_answer() {
    let rig = Rig::new([Reply::of_text("Three.")]).await;
    let events = turn(&rig, json!({"direct": true})).await;
    assert_eq!((completed(&events), rig.calls()), ("Three.", 1));
    rig.told().has(&["Count."]);
    turn(&rig, json!({"direct": false})).await;
    for direct in [json!("yes"), json!(1)] {
        let body = with(message("task", "Count."), json!({"direct": direct}));
        let answer = rig.engine.execute_refused(&body).await;
        assert!(answer.refused(400, "INVALID_REQUEST").contains("direct"));
    }
}
