//! Story 21: an engine that is asked to end does so soon and cleanly, and its turns go on at the next start.

use std::fs;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use mock_llm::{Fault, Gate, Refusal, Reply};
use rustix::process::Signal;

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::{memory_set_reply, wait_gate_reached};
use crate::support::http::client;
use crate::support::turn::{assert_complete_turn, assert_completed, of_kind, phases, visible_text};
use crate::support::{EngineFixture, Event, StandaloneEngine, eventually, processes};

const TEXT: &str = "One two three four five six seven eight.";

/// Asks the engine to end and waits until it takes no more turns. Gives the time at which it was asked.
async fn request_shutdown(rig: &EngineFixture) -> Instant {
    let start = Instant::now();
    processes::signal(rig.program.pid(), Signal::TERM);
    eventually("the engine takes no more turns", async || {
        let request =
            client().post(format!("{}/execute", rig.engine.url)).header("x-engine-key", &rig.engine.key);
        let answer = request.json(&direct_message("task", "Am I too late?")).send().await;
        // It no longer listens, or says that it is about to end.
        let Ok(answer) = answer else { return Some(()) };
        if answer.status() == 200 {
            // It has not heard yet. The turn that has begun comes to its end, and to that of its stream.
            let _ = answer.bytes().await;
            return None;
        }
        if answer.status() == 409 {
            // It has not heard yet, and the turn runs.
            return None;
        }
        assert_eq!(answer.status(), 503);
        let again = answer.headers().get("retry-after").expect("a Retry-After").to_str().unwrap().to_owned();
        assert!(again.parse::<u64>().is_ok(), "{again:?} is no number of seconds");
        let body: serde_json::Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["code"], "SHUTTING_DOWN");
        Some(())
    })
    .await;
    start
}

/// Waits until the engine that was asked at `start` has ended, and starts it again.
async fn restart(rig: EngineFixture, start: Instant) -> EngineFixture {
    let EngineFixture { provider, setup: place, program, .. } = rig;
    program.wait().await.assert_success();
    let took = start.elapsed();
    eprintln!("ended within {took:?}");
    assert!(took < Duration::from_secs(10), "it took {took:?}");
    remove_wal(&place);
    let (program, engine) = place.start().await;
    EngineFixture { provider, setup: place, program, engine }
}

/// A brain that was checkpointed lies in its one file, and needs none of what SQLite keeps beside it.
fn remove_wal(place: &StandaloneEngine) {
    for suffix in ["-wal", "-shm"] {
        let mut file = place.brain().into_os_string();
        file.push(suffix);
        if let Err(error) = fs::remove_file(file) {
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
    }
}

/// A turn that is stopped in the middle of an answer, after which the model says `second`: what a client sees that
/// stays to the end of its connection and comes back where it was.
async fn run_turn_stopped_mid_stream(second: &str) -> Vec<Event> {
    let gate = Gate::new();
    let rig = EngineFixture::new([Reply::from_text(TEXT).hold(5, &gate)]).await;
    let mut stream = rig.engine.execute_with(&direct_message("task", "Count.")).await;
    wait_gate_reached(&gate).await;
    while visible_text(&stream.received, "text_delta").len() < 20 {
        stream.next().await.expect("the stream goes on");
    }
    let start = request_shutdown(&rig).await;
    let before = stream.collect().await;
    rig.provider.enqueue(Reply::from_text(second));
    let rig = restart(rig, start).await;

    let rest = rig.engine.replay("task", before.last().unwrap().ts()).await.collect().await;
    let events = [before, rest].concat();
    assert_eq!(rig.engine.replay("task", 0).await.collect().await, events);
    assert_complete_turn(&events);
    assert_eq!(assert_completed(&events), second);
    assert_eq!(visible_text(&events, "text_delta"), second, "who honours void_after sees the text once");
    assert_eq!(rig.engine.task_status("task").await, "idle");
    events
}

#[tokio::test]
async fn a_turn_that_is_stopped_in_mid_stream_goes_on_without_a_seam() {
    let events = run_turn_stopped_mid_stream(TEXT).await;
    assert_eq!(phases(&events), ["started", "resumed", "completed"]);
    let all: String = of_kind(&events, "text_delta").iter().map(|event| event.text()).collect();
    assert_eq!(all, TEXT, "also for a client that knows no void_after");
}

#[tokio::test]
async fn a_turn_that_is_stopped_in_mid_stream_voids_what_the_model_takes_back() {
    let events = run_turn_stopped_mid_stream("One two buckle my shoe.").await;
    assert_eq!(phases(&events), ["started", "resumed", "retrying", "completed"]);
}

#[tokio::test]
async fn an_answer_that_comes_in_time_is_kept_and_the_next_step_waits_for_the_next_start() {
    let gate = Gate::new();
    let rig = EngineFixture::new([memory_set_reply("colour", "green").hold(2, &gate)]).await;
    let stream = rig.engine.execute_with(&direct_message("task", "Note it.")).await;
    wait_gate_reached(&gate).await;
    let start = request_shutdown(&rig).await;
    rig.provider.enqueue(Reply::from_text("Noted."));
    gate.release();
    let before = stream.collect().await;
    assert_eq!(phases(&before), ["started"], "the turn has stopped and not ended");
    assert_eq!(rig.provider.pending_replies(), 1, "the model is asked no more");

    let rig = restart(rig, start).await;
    let rest = rig.engine.replay("task", before.last().unwrap().ts()).await.collect().await;
    let events = [before, rest].concat();
    assert_eq!(assert_completed(&events), "Noted.");
    assert_eq!(phases(&events), ["started", "resumed", "completed"]);
    assert_eq!(of_kind(&events, "tool_call").len(), 1);
    assert_eq!(of_kind(&events, "tool_result").len(), 1);
    let told = rig.all_messages();
    assert_eq!(
        told.iter().filter(|told| told.0.contains("Note it.")).count(),
        2,
        "no answer was asked for twice"
    );
    rig.last_messages().assert_contains(&["Note it.", "tool_result"]);
}

#[tokio::test]
async fn a_last_answer_that_comes_in_time_is_not_asked_for_again() {
    let gate = Gate::new();
    let rig = EngineFixture::new([Reply::from_text(TEXT).hold(5, &gate)]).await;
    let stream = rig.engine.execute_with(&direct_message("task", "Count.")).await;
    wait_gate_reached(&gate).await;
    let start = request_shutdown(&rig).await;
    gate.release();
    let before = stream.collect().await;
    let rig = restart(rig, start).await;
    let events = rig.engine.replay("task", 0).await.collect().await;
    assert_eq!(events[..before.len()], before, "what was sent stands");
    assert_eq!((assert_completed(&events), visible_text(&events, "text_delta").as_str()), (TEXT, TEXT));
    assert!(!phases(&events).contains(&"retrying"));
    assert_eq!(rig.all_messages().iter().filter(|told| told.0.contains("Count.")).count(), 1);
}

#[tokio::test]
async fn a_turn_that_waits_for_a_failing_provider_does_not_hold_up_the_end() {
    let busy = Refusal::RateLimited { retry_after_s: Some(20) };
    let rig = EngineFixture::new([Reply::from_fault(Fault::refuse(busy))]).await;
    let stream = rig.engine.execute_with(&direct_message("task", "Count.")).await;
    rig.provider.wait_for_requests(1).await;
    let start = request_shutdown(&rig).await;
    stream.collect().await;
    rig.provider.enqueue(Reply::from_text(TEXT));
    let rig = restart(rig, start).await;
    let events = rig.engine.replay("task", 0).await.collect().await;
    assert_eq!((assert_completed(&events), phases(&events)), (TEXT, vec!["started", "resumed", "completed"]));
}

#[tokio::test]
async fn an_idle_engine_ends_at_once_and_keeps_what_it_knows() {
    let rig = EngineFixture::new([]).await;
    let events = rig.engine.run_turn("task", "Hello!").await;
    let start = Instant::now();
    processes::signal(rig.program.pid(), Signal::TERM);
    let rig = restart(rig, start).await;
    assert_eq!(rig.engine.replay("task", 0).await.collect().await, events);
    rig.engine.run_turn("task", "Hello again!").await;
    rig.last_messages().assert_contains(&["Hello!", "Hello again!"]);
}

#[tokio::test]
async fn clients_that_only_listen_do_not_hold_up_the_end() {
    let gate = Gate::new();
    let rig = EngineFixture::new([Reply::from_text(TEXT).hold(5, &gate)]).await;
    let first = rig.engine.execute_with(&direct_message("task", "Count.")).await;
    wait_gate_reached(&gate).await;
    let second = rig.engine.replay("task", 0).await;
    let start = request_shutdown(&rig).await;
    gate.release();
    let (first, second) = (first.collect().await, second.collect().await);
    assert_eq!(first, second, "both see the same, and their streams are closed well");
    restart(rig, start).await;
}
