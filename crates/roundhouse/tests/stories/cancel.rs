//! Story 13 (lesson e15): cancelling a turn ends it at once, in every phase.

use std::time::{Duration, Instant};

use mock_llm::{Fault, Gate, Refusal, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, roles_and_texts, with_fields};
use crate::support::engine_fixture::{ReplyExt as _, WIRES, wait_gate_reached, wait_provider_idle};
use crate::support::http::send;
use crate::support::turn::{assert_cancelled, of_kind, visible_text};
use crate::support::{EngineFixture, Event, EventStream};

fn thinking_message(text: &str) -> Value {
    with_fields(direct_message("task", text), json!({"super_thinking": true}))
}

/// Cancels the turn and asserts that it ends at once and permanently, and that its events say so.
async fn cancel_and_assert(fixture: &EngineFixture, stream: EventStream) -> Vec<Event> {
    let start = Instant::now();
    let answer = fixture.engine.cancel("task").await;
    let took = start.elapsed();
    eprintln!("cancelled within {took:?}");
    let answer = answer.assert_ok("status:text turn_id:turn");
    // The contract promises 250 ms; a busy machine gets some more.
    assert!(took < Duration::from_secs(1), "it took {took:?}");

    let events = stream.collect().await;
    assert_cancelled(&events);
    assert_eq!(answer, json!({"status": "cancelled", "turn_id": events[0].data["turn_id"]}));
    assert_eq!(fixture.engine.task_status("task").await, "idle");
    assert_eq!(fixture.engine.pending().await, [Value::Null; 0]);
    fixture.engine.cancel("task").await.assert_error(404, "TASK_NOT_RUNNING");
    fixture.engine.respond("task", "yes").await.assert_error(404, "HITL_NOT_PENDING");
    wait_provider_idle(&fixture.provider).await;
    events
}

/// Asserts that the task continues and that the provider, which refuses a broken history, accepts it.
async fn assert_task_continues(fixture: &EngineFixture) {
    let calls = fixture.model_calls();
    fixture.provider.enqueue(Reply::new().thinking("Here I am.").text("I am listening."));
    let events = fixture.engine.run_turn_with(&thinking_message("Are you there?")).await;
    assert_eq!(events.last().unwrap().text(), "I am listening.");
    fixture.last_messages().assert_contains(&["Are you there?"]);
    assert_eq!(fixture.model_calls(), calls + 1, "the cancelled turn makes no more model calls");
}

#[tokio::test]
async fn regression_e15_a_turn_is_cancelled_while_the_model_speaks() {
    for wire in WIRES {
        let gate = Gate::new();
        let answer = Reply::new().thinking("Let me see.").text("One two three four.").deltas(4);
        // The Anthropic model thinks for four deltas first; the other one does not show its thinking.
        let after = if wire == "anthropic" { 6 } else { 2 };
        let fixture = EngineFixture::for_wire(wire, [answer.hold(after, &gate)]).await;
        let mut stream = fixture.engine.execute_with(&thinking_message("Count.")).await;
        wait_gate_reached(&gate).await;
        while !visible_text(&stream.received, "text_delta").starts_with("One two") {
            stream.next().await.expect("the stream goes on");
        }
        let events = cancel_and_assert(&fixture, stream).await;
        assert!(!visible_text(&events, "text_delta").contains("four"), "{events:#?}");
        assert_eq!(fixture.engine.replay("task", 0).await.collect().await, events, "{wire}");
        assert_eq!(roles_and_texts(&fixture.engine.messages("task").await)[0], ("user", "Count."));
        assert_task_continues(&fixture).await;
    }
}

#[tokio::test]
async fn regression_e15_a_turn_is_cancelled_while_the_model_thinks() {
    let gate = Gate::new();
    let answer = Reply::new().thinking("Let me see whether I can count.").text("One.").deltas(4);
    let fixture = EngineFixture::new([answer.hold(2, &gate)]).await;
    let mut stream = fixture.engine.execute_with(&thinking_message("Count.")).await;
    wait_gate_reached(&gate).await;
    stream.read_until("thinking", |event| event.kind == "thinking_delta").await;
    cancel_and_assert(&fixture, stream).await;
    assert_task_continues(&fixture).await;
}

#[tokio::test]
async fn regression_e15_a_turn_is_cancelled_before_the_model_says_anything() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("One.").hold(0, &gate)]).await;
    let stream = fixture.engine.execute_with(&thinking_message("Count.")).await;
    wait_gate_reached(&gate).await;
    cancel_and_assert(&fixture, stream).await;
    assert_task_continues(&fixture).await;
}

#[tokio::test]
async fn regression_e15_a_turn_is_cancelled_while_a_tool_waits_for_leave() {
    for wire in WIRES {
        let fixture =
            EngineFixture::for_wire(wire, [Reply::new().thinking("I write.").write_file("notes.txt")]).await;
        let (stream, _) = fixture.engine.run_until_hitl_request(&thinking_message("Write.")).await;
        let events = cancel_and_assert(&fixture, stream).await;
        assert_eq!(of_kind(&events, "hitl_request").len(), 1);
        assert!(!fixture.setup.workspace().join("notes.txt").exists(), "{wire}: the file was written anyway");
        assert_task_continues(&fixture).await;
    }
}

#[tokio::test]
async fn regression_e15_a_turn_is_cancelled_while_it_waits_for_an_answer() {
    for wire in WIRES {
        let fixture =
            EngineFixture::for_wire(wire, [Reply::new().thinking("I ask.").ask_user("Which colour?")]).await;
        let (stream, _) = fixture.engine.run_until_hitl_request(&thinking_message("Paint.")).await;
        cancel_and_assert(&fixture, stream).await;
        assert_task_continues(&fixture).await;
    }
}

#[tokio::test]
async fn regression_e15_a_turn_of_several_calls_is_cancelled_between_them() {
    for wire in WIRES {
        let calls = Reply::new().thinking("Much to do.").memory_set("colour", "green");
        let fixture =
            EngineFixture::for_wire(wire, [calls.write_file("one.txt").write_file("two.txt")]).await;
        let (stream, _) = fixture.engine.run_until_hitl_request(&thinking_message("Write.")).await;
        cancel_and_assert(&fixture, stream).await;
        assert_task_continues(&fixture).await;
        assert!(!fixture.setup.workspace().join("two.txt").exists(), "{wire}");
    }
}

#[tokio::test]
async fn regression_e15_a_turn_is_cancelled_while_it_waits_for_a_failing_provider() {
    for wire in WIRES {
        let busy = Refusal::RateLimited { retry_after_s: Some(20) };
        let fixture = EngineFixture::for_wire(wire, [Reply::from_fault(Fault::refuse(busy))]).await;
        let stream = fixture.engine.execute_with(&direct_message("task", "Count.")).await;
        fixture.provider.wait_for_requests(1).await;
        wait_provider_idle(&fixture.provider).await;
        cancel_and_assert(&fixture, stream).await;
        assert_eq!(fixture.model_calls(), 1);
        assert_task_continues(&fixture).await;
    }
}

#[tokio::test]
async fn a_cancelled_turn_stays_so_when_the_engine_is_killed() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("One two three.").hold(1, &gate)]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Count.")).await;
    wait_gate_reached(&gate).await;
    let events = cancel_and_assert(&fixture, stream).await;
    let fixture = fixture.kill_and_start().await;
    assert_eq!(fixture.engine.replay("task", 0).await.collect().await, events);
    assert_eq!(fixture.engine.task_status("task").await, "idle");
    assert_task_continues(&fixture).await;
}

#[tokio::test]
async fn regression_e15_a_turn_that_was_resumed_can_be_cancelled() {
    let gates = [Gate::new(), Gate::new()];
    let text = || Reply::from_text("One two three.");
    let fixture = EngineFixture::new([text().hold(1, &gates[0]), text().hold(1, &gates[1])]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Count.")).await;
    wait_gate_reached(&gates[0]).await;
    let fixture = fixture.kill_and_start().await;
    drop(stream);
    wait_gate_reached(&gates[1]).await;
    let stream = fixture.engine.replay("task", 0).await;
    cancel_and_assert(&fixture, stream).await;
    assert_task_continues(&fixture).await;
}

#[tokio::test]
async fn a_cancel_touches_no_other_task() {
    let gates = [Gate::new(), Gate::new()];
    let fixture = EngineFixture::new([]).await;
    fixture.provider.enqueue(Reply::from_text("One two three.").hold(1, &gates[0]));
    let other = fixture.engine.execute_with(&direct_message("other", "Count.")).await;
    wait_gate_reached(&gates[0]).await;
    fixture.provider.enqueue(Reply::from_text("One two three.").hold(1, &gates[1]));
    let stream = fixture.engine.execute_with(&direct_message("task", "Count.")).await;
    wait_gate_reached(&gates[1]).await;

    fixture.engine.cancel("task").await.assert_ok("status:text turn_id:turn");
    assert_cancelled(&stream.collect().await);
    assert_eq!(fixture.engine.task_status("other").await, "running");
    gates[0].release();
    assert_eq!(other.collect().await.last().unwrap().text(), "One two three.");
}

#[tokio::test]
async fn of_two_cancels_at_once_one_ends_the_turn() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("One two three.").hold(1, &gate)]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Count.")).await;
    wait_gate_reached(&gate).await;
    let (one, two) = futures::join!(fixture.engine.cancel("task"), fixture.engine.cancel("task"));
    let (won, lost) = if one.status == 200 { (one, two) } else { (two, one) };
    won.assert_ok("status:text turn_id:turn");
    lost.assert_error(404, "TASK_NOT_RUNNING");
    assert_cancelled(&stream.collect().await);
}

/// A page that asks for the end of a turn may be late: the next one may run by then.
#[tokio::test]
async fn a_request_that_names_a_turn_reaches_no_other_one() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::new().text("One.")]).await;
    let ended = fixture.engine.run_turn("task", "Hello!").await[0].data["turn_id"].clone();
    fixture.provider.enqueue(Reply::new().text("Two.").hold(1, &gate));
    let mut stream = fixture.engine.execute("task", "And now?").await;
    wait_gate_reached(&gate).await;
    let running = stream.next().await.unwrap().data["turn_id"].clone();
    for (path, message) in [("/execute/cancel", Value::Null), ("/execute/steer", json!("Stop."))] {
        let mut body = json!({"task_id": "task", "turn_id": ended});
        if !message.is_null() {
            body["message"] = message;
        }
        fixture.engine.post(path, &body).await.assert_error(404, "TASK_NOT_RUNNING");
        for turn_id in [json!("turn_x"), json!(7), json!("")] {
            body["turn_id"] = turn_id;
            fixture.engine.post(path, &body).await.assert_error(400, "INVALID_REQUEST");
        }
    }
    let steer = json!({"task_id": "task", "turn_id": running, "message": "In French."});
    fixture.engine.post("/execute/steer", &steer).await.assert_ok("status:text message_id:message");
    let cancel = json!({"task_id": "task", "turn_id": running});
    let cancelled = fixture.engine.post("/execute/cancel", &cancel).await;
    assert_eq!(cancelled.assert_ok("status:text turn_id:turn")["turn_id"], running);
    assert_cancelled(&stream.collect().await);
}

#[tokio::test]
async fn where_nothing_runs_there_is_nothing_to_cancel() {
    let fixture = EngineFixture::new([]).await;
    fixture.engine.cancel("task").await.assert_error(404, "TASK_NOT_FOUND");
    fixture.engine.run_turn("task", "Hello!").await;
    fixture.engine.cancel("task").await.assert_error(404, "TASK_NOT_RUNNING");
    fixture.engine.cancel("other").await.assert_error(404, "TASK_NOT_FOUND");
    for body in [json!({}), json!({"task_id": ""}), json!({"task_id": 7}), json!([])] {
        fixture.engine.post("/execute/cancel", &body).await.assert_error(400, "INVALID_REQUEST");
    }
    let mut with_wrong_key = fixture.engine.clone();
    with_wrong_key.key = "sk-svc-wrong".to_owned();
    with_wrong_key.cancel("task").await.assert_error(401, "INVALID_ENGINE_KEY");
    send(fixture.engine.request(Method::GET, "/execute/cancel"))
        .await
        .assert_error(405, "METHOD_NOT_ALLOWED");
}
