//! Story 13 (lesson e15): a turn that is cancelled ends at once, wherever it is.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use strict_provider::{Fault, Gate, Refusal, Reply};

use crate::support::calls::{message, said, with};
use crate::support::http::ask;
use crate::support::model::{Act as _, WIRES, left_alone, reached};
use crate::support::turn::{cancelled, of_kind, shown};
use crate::support::{Event, EventStream, Rig};

fn thinking_message(text: &str) -> Value {
    with(message("task", text), json!({"super_thinking": true}))
}

/// Cancels the turn and asserts that it ends at once, for good, and as every reader sees.
async fn cancel(rig: &Rig, stream: EventStream) -> Vec<Event> {
    let start = Instant::now();
    let answer = rig.engine.cancel("task").await;
    let took = start.elapsed();
    eprintln!("cancelled within {took:?}");
    let answer = answer.ok("status:text turn_id:turn");
    // 250 ms are promised; a busy machine is given some more.
    assert!(took < Duration::from_secs(1), "it took {took:?}");

    let events = stream.rest().await;
    cancelled(&events);
    assert_eq!(answer, json!({"status": "cancelled", "turn_id": events[0].data["turn_id"]}));
    assert_eq!(rig.engine.task_status("task").await, "idle");
    assert_eq!(rig.engine.pending().await, [Value::Null; 0]);
    rig.engine.cancel("task").await.refused(404, "TASK_NOT_RUNNING");
    rig.engine.respond("task", "yes").await.refused(404, "HITL_NOT_PENDING");
    left_alone(&rig.provider).await;
    events
}

/// The task goes on, and the provider, which refuses a broken history, takes it.
async fn goes_on(rig: &Rig) {
    let calls = rig.calls();
    rig.provider.enqueue(Reply::new().thinking("Here I am.").text("I am listening."));
    let events = rig.engine.tell_with(&thinking_message("Are you there?")).await;
    assert_eq!(events.last().unwrap().text(), "I am listening.");
    rig.told().has(&["Are you there?"]);
    assert_eq!(rig.calls(), calls + 1, "the cancelled turn asks the model no more");
}

#[tokio::test]
async fn lesson_e15_a_turn_is_cancelled_while_the_model_speaks() {
    for wire in WIRES {
        let gate = Gate::new();
        let answer = Reply::new().thinking("Let me see.").text("One two three four.").deltas(4);
        // The Anthropic model thinks for four deltas first, the other one does not show that it thinks.
        let after = if wire == "anthropic" { 6 } else { 2 };
        let rig = Rig::on(wire, [answer.hold(after, &gate)]).await;
        let mut stream = rig.engine.execute_with(&thinking_message("Count.")).await;
        reached(&gate).await;
        while !shown(&stream.seen, "text_delta").starts_with("One two") {
            stream.next().await.expect("the stream goes on");
        }
        let events = cancel(&rig, stream).await;
        assert!(!shown(&events, "text_delta").contains("four"), "{events:#?}");
        assert_eq!(rig.engine.replay("task", 0).await.rest().await, events, "{wire}");
        assert_eq!(said(&rig.engine.messages("task").await)[0], ("user", "Count."));
        goes_on(&rig).await;
    }
}

#[tokio::test]
async fn lesson_e15_a_turn_is_cancelled_while_the_model_thinks() {
    let gate = Gate::new();
    let answer = Reply::new().thinking("Let me see whether I can count.").text("One.").deltas(4);
    let rig = Rig::new([answer.hold(2, &gate)]).await;
    let mut stream = rig.engine.execute_with(&thinking_message("Count.")).await;
    reached(&gate).await;
    stream.until("thinking", |event| event.kind == "thinking_delta").await;
    cancel(&rig, stream).await;
    goes_on(&rig).await;
}

#[tokio::test]
async fn lesson_e15_a_turn_is_cancelled_before_the_model_says_anything() {
    let gate = Gate::new();
    let rig = Rig::new([Reply::of_text("One.").hold(0, &gate)]).await;
    let stream = rig.engine.execute_with(&thinking_message("Count.")).await;
    reached(&gate).await;
    cancel(&rig, stream).await;
    goes_on(&rig).await;
}

#[tokio::test]
async fn lesson_e15_a_turn_is_cancelled_while_a_tool_waits_for_leave() {
    for wire in WIRES {
        let rig = Rig::on(wire, [Reply::new().thinking("I write.").writes("notes.txt")]).await;
        let (stream, _) = rig.engine.until_asked(&thinking_message("Write.")).await;
        let events = cancel(&rig, stream).await;
        assert_eq!(of_kind(&events, "hitl_request").len(), 1);
        assert!(!rig.place.workspace().join("notes.txt").exists(), "{wire}: it was written all the same");
        goes_on(&rig).await;
    }
}

#[tokio::test]
async fn lesson_e15_a_turn_is_cancelled_while_it_waits_for_an_answer() {
    for wire in WIRES {
        let rig = Rig::on(wire, [Reply::new().thinking("I ask.").asks("Which colour?")]).await;
        let (stream, _) = rig.engine.until_asked(&thinking_message("Paint.")).await;
        cancel(&rig, stream).await;
        goes_on(&rig).await;
    }
}

#[tokio::test]
async fn lesson_e15_a_turn_of_several_calls_is_cancelled_between_them() {
    for wire in WIRES {
        let calls = Reply::new().thinking("Much to do.").notes("colour", "green");
        let rig = Rig::on(wire, [calls.writes("one.txt").writes("two.txt")]).await;
        let (stream, _) = rig.engine.until_asked(&thinking_message("Write.")).await;
        cancel(&rig, stream).await;
        goes_on(&rig).await;
        assert!(!rig.place.workspace().join("two.txt").exists(), "{wire}");
    }
}

#[tokio::test]
async fn lesson_e15_a_turn_is_cancelled_while_it_waits_for_a_failing_provider() {
    for wire in WIRES {
        let busy = Refusal::RateLimited { retry_after_s: Some(20) };
        let rig = Rig::on(wire, [Reply::of_fault(Fault::refuse(busy))]).await;
        let stream = rig.engine.execute_with(&message("task", "Count.")).await;
        rig.provider.wait_for_requests(1).await;
        left_alone(&rig.provider).await;
        cancel(&rig, stream).await;
        assert_eq!(rig.calls(), 1);
        goes_on(&rig).await;
    }
}

#[tokio::test]
async fn a_cancelled_turn_stays_so_when_the_engine_is_killed() {
    let gate = Gate::new();
    let rig = Rig::new([Reply::of_text("One two three.").hold(1, &gate)]).await;
    let stream = rig.engine.execute_with(&message("task", "Count.")).await;
    reached(&gate).await;
    let events = cancel(&rig, stream).await;
    let rig = rig.kill_and_start().await;
    assert_eq!(rig.engine.replay("task", 0).await.rest().await, events);
    assert_eq!(rig.engine.task_status("task").await, "idle");
    goes_on(&rig).await;
}

#[tokio::test]
async fn lesson_e15_a_turn_that_was_resumed_can_be_cancelled() {
    let gates = [Gate::new(), Gate::new()];
    let text = || Reply::of_text("One two three.");
    let rig = Rig::new([text().hold(1, &gates[0]), text().hold(1, &gates[1])]).await;
    let stream = rig.engine.execute_with(&message("task", "Count.")).await;
    reached(&gates[0]).await;
    let rig = rig.kill_and_start().await;
    drop(stream);
    reached(&gates[1]).await;
    let stream = rig.engine.replay("task", 0).await;
    cancel(&rig, stream).await;
    goes_on(&rig).await;
}

#[tokio::test]
async fn a_cancel_touches_no_other_task() {
    let gates = [Gate::new(), Gate::new()];
    let rig = Rig::new([]).await;
    rig.provider.enqueue(Reply::of_text("One two three.").hold(1, &gates[0]));
    let other = rig.engine.execute_with(&message("other", "Count.")).await;
    reached(&gates[0]).await;
    rig.provider.enqueue(Reply::of_text("One two three.").hold(1, &gates[1]));
    let stream = rig.engine.execute_with(&message("task", "Count.")).await;
    reached(&gates[1]).await;

    rig.engine.cancel("task").await.ok("status:text turn_id:turn");
    cancelled(&stream.rest().await);
    assert_eq!(rig.engine.task_status("other").await, "running");
    gates[0].release();
    assert_eq!(other.rest().await.last().unwrap().text(), "One two three.");
}

#[tokio::test]
async fn of_two_cancels_at_once_one_ends_the_turn() {
    let gate = Gate::new();
    let rig = Rig::new([Reply::of_text("One two three.").hold(1, &gate)]).await;
    let stream = rig.engine.execute_with(&message("task", "Count.")).await;
    reached(&gate).await;
    let (one, two) = futures::join!(rig.engine.cancel("task"), rig.engine.cancel("task"));
    let (won, lost) = if one.status == 200 { (one, two) } else { (two, one) };
    won.ok("status:text turn_id:turn");
    lost.refused(404, "TASK_NOT_RUNNING");
    cancelled(&stream.rest().await);
}

#[tokio::test]
async fn where_nothing_runs_there_is_nothing_to_cancel() {
    let rig = Rig::new([]).await;
    rig.engine.cancel("task").await.refused(404, "TASK_NOT_FOUND");
    rig.engine.tell("task", "Hello!").await;
    rig.engine.cancel("task").await.refused(404, "TASK_NOT_RUNNING");
    rig.engine.cancel("other").await.refused(404, "TASK_NOT_FOUND");
    for body in [json!({}), json!({"task_id": ""}), json!({"task_id": 7}), json!([])] {
        rig.engine.post("/execute/cancel", &body).await.refused(400, "INVALID_REQUEST");
    }
    let mut stranger = rig.engine.clone();
    stranger.key = "sk-svc-wrong".to_owned();
    stranger.cancel("task").await.refused(401, "INVALID_ENGINE_KEY");
    ask(rig.engine.request(Method::GET, "/execute/cancel")).await.refused(405, "METHOD_NOT_ALLOWED");
}
