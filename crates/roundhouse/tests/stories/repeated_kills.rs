//! Story 22 (lessons e02, e14 and e17): no tool runs twice, no text is sent twice, and a turn without progress is
//! given up, however often the engine is killed.

use std::fs;

use futures::future::{Either, join_all, select};
use mock_llm::{Fault, Gate, Reply};
use serde_json::json;

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{ReplyExt as _, wait_gate_reached};
use crate::support::turn::{assert_completed, assert_errored, of_kind, phases, visible_text};
use crate::support::{EngineFixture, EventStream};

/// How far a client has seen a tool call that needs approval when the engine is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SeenProgress {
    /// Not even the response to its answer.
    Nothing,
    /// The answer was accepted.
    Accepted,
    /// The turn continues.
    Resolved,
    /// The tool has run.
    Result,
}

/// Approves the call and waits until the client has seen `seen`.
async fn grant_permission(fixture: &EngineFixture, stream: &mut EventStream, seen: SeenProgress) {
    let answer = fixture.engine.respond("task", "yes");
    if seen == SeenProgress::Nothing {
        // Polled once, so that the request may or may not have been sent when the caller goes on.
        let mut answer = Box::pin(answer);
        let _ = futures::poll!(answer.as_mut());
        return;
    }
    answer.await.assert_ok("status:text request_id:hitl");
    if seen == SeenProgress::Resolved {
        stream.read_until("hitl_resolved", |event| event.kind == "hitl_resolved").await;
    } else if seen == SeenProgress::Result {
        stream.read_until("tool_result", |event| event.kind == "tool_result").await;
    }
}

#[tokio::test]
async fn regression_e02_an_edit_is_never_made_twice() {
    for seen in [
        SeenProgress::Nothing,
        SeenProgress::Accepted,
        SeenProgress::Accepted,
        SeenProgress::Resolved,
        SeenProgress::Resolved,
        SeenProgress::Result,
    ] {
        let edit = json!({"path": "list.txt", "old": "END", "new": "once END"});
        let calls = Reply::new().thinking("I edit.").tool_use("edit_file", edit);
        let fixture = EngineFixture::new([calls]).await;
        fixture.provider.set_default_reply(Reply::from_text("Done."));
        fs::create_dir_all(fixture.setup.workspace()).unwrap();
        let file = fixture.setup.workspace().join("list.txt");
        fs::write(&file, "END").unwrap();
        let body = with_fields(direct_message("task", "Edit."), json!({"super_thinking": true}));
        let (mut stream, _) = fixture.engine.run_until_hitl_request(&body).await;
        grant_permission(&fixture, &mut stream, seen).await;
        let fixture = fixture.kill_and_start().await;
        if fixture.engine.pending().await.is_empty() {
            fixture.engine.respond("task", "yes").await.assert_error(404, "HITL_NOT_PENDING");
        } else {
            assert_eq!(seen, SeenProgress::Nothing, "an accepted answer is not requested again");
            fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
        }

        let events = fixture.engine.replay("task", 0).await.collect().await;
        assert_eq!(assert_completed(&events), "Done.", "{seen:?}");
        let results = of_kind(&events, "tool_result");
        assert_eq!(results.len(), 1, "{seen:?}");
        let is_known = results[0].data.get("error").is_none();
        let made = fs::read_to_string(&file).unwrap().matches("once").count();
        // After a kill between intent and result the edit may have been made or not, and the model is told so.
        assert!(made == 1 || (made == 0 && !is_known), "{seen:?}: made {made} times, {results:?}");
        assert!(is_known || seen != SeenProgress::Result, "{seen:?}: {results:?}");
        fixture.last_messages().assert_contains(&["Edit.", "edit_file", "tool_result"]);
    }
}

#[tokio::test]
async fn regression_e17_a_turn_that_never_gets_on_is_given_up_and_the_engine_lives() {
    let fixture = EngineFixture::new([]).await;
    fixture.provider.set_default_reply(Reply::from_fault(Fault::hang_after(0)));
    let stream = fixture.engine.execute_with(&direct_message("task", "Count.")).await;
    fixture.provider.wait_for_requests(1).await;
    drop(stream);
    let (mut fixture, mut starts) = (fixture, 0);
    loop {
        fixture = fixture.kill_and_start().await;
        starts += 1;
        let ended = Box::pin(fixture.engine.replay("task", 0).await.collect());
        let tried_again = Box::pin(fixture.provider.wait_for_requests(starts + 1));
        let has_ended = matches!(select(ended, tried_again).await, Either::Left(_));
        if has_ended {
            break;
        }
        assert!(starts < 9, "eight starts may try a turn");
    }
    assert!(starts >= 8, "the turn was given up after {starts} starts");
    let events = fixture.engine.replay("task", 0).await.collect().await;
    let error = assert_errored(&events);
    assert_eq!(error["code"], "RESUME_LIMIT", "{error}");

    fixture.provider.set_default_reply(Reply::from_text("One two three."));
    fixture.engine.run_turn("task", "Count again.").await;
    fixture.engine.run_turn("other", "Count too.").await;
    assert_eq!(fixture.engine.health().await["status"], "ok");
}

#[tokio::test]
async fn regression_e14_a_text_is_told_once_however_late_the_model_breaks_off() {
    join_all([1, 100, 10_000].map(assert_break_off_after)).await;
}

/// Breaks off the model's stream after `deltas` deltas: one turn's retry repeats the text, another's differs.
async fn assert_break_off_after(deltas: usize) {
    let full_text = "One word after the other. ".repeat(deltas / 5 + 10);
    let text = || Reply::from_text(full_text.trim_end()).chars_per_delta(5);
    let fixture = EngineFixture::new([text().fault(Fault::cut_after(deltas)), text()]).await;
    let events = fixture.engine.run_turn("task", "Count.").await;
    assert_eq!(
        (visible_text(&events, "text_delta").as_str(), fixture.model_calls()),
        (full_text.trim_end(), 2)
    );
    assert_eq!(phases(&events), ["started", "completed"], "after {deltas} deltas");

    fixture.provider.enqueue_all([text().fault(Fault::cut_after(deltas)), Reply::from_text("Sorry, no.")]);
    let events = fixture.engine.run_turn("other", "Count.").await;
    assert_eq!((visible_text(&events, "text_delta").as_str(), fixture.model_calls()), ("Sorry, no.", 4));
    assert_eq!(phases(&events), ["started", "retrying", "completed"], "after {deltas} deltas");
}

#[tokio::test]
async fn a_turn_of_many_steps_is_killed_in_each_of_them() {
    let steps = 6;
    let fixture = EngineFixture::new([]).await;
    let mut gate = Gate::new();
    fixture.provider.enqueue(step_reply(0, &gate));
    let body = with_fields(direct_message("task", "Count."), json!({"super_thinking": true}));
    let stream = fixture.engine.execute_with(&body).await;
    let mut fixture = fixture;
    for number in 0..steps {
        // Kills the engine in the middle of an answer; the repeated answer is complete, and the next one is held.
        wait_gate_reached(&gate).await;
        gate = Gate::new();
        let released_gate = Gate::new();
        released_gate.release();
        let next = if number + 1 < steps { step_reply(number + 1, &gate) } else { Reply::from_text("Done.") };
        fixture.provider.enqueue_all([step_reply(number, &released_gate), next]);
        fixture = fixture.kill_and_start().await;
    }
    drop(stream);
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), "Done.");
    assert_eq!(of_kind(&events, "tool_call").len(), steps);
    assert_eq!(of_kind(&events, "tool_result").len(), steps);
    assert_eq!(fixture.model_calls(), 2 * steps + 1, "each step was requested twice, the last answer once");
    let texts: Vec<String> = (0..steps).map(|number| format!("Number {number}.")).collect();
    fixture.last_messages().assert_contains(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    let expected: String = texts.concat() + "Done.";
    assert_eq!(visible_text(&events, "text_delta"), expected);
}

/// A reply that notes a number and is held in its middle.
fn step_reply(number: usize, gate: &Gate) -> Reply {
    let answer = Reply::new().thinking("Go on.").text(format!("Number {number}."));
    answer.memory_set("number", &number.to_string()).hold(4, gate)
}
