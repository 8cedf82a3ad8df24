//! Story 21: on SIGTERM an engine ends soon and cleanly, and its turns continue at the next start.

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

/// Sends SIGTERM and waits until the engine accepts no more turns. Returns the time of the signal.
async fn request_shutdown(fixture: &EngineFixture) -> Instant {
    let start = Instant::now();
    processes::signal(fixture.program.pid(), Signal::TERM);
    eventually("the engine accepts no more turns", async || {
        let request = client()
            .post(format!("{}/execute", fixture.engine.url))
            .header("x-engine-key", &fixture.engine.key);
        let answer = request.json(&direct_message("task", "Am I too late?")).send().await;
        // The engine no longer listens, or answers that it is shutting down.
        let Ok(answer) = answer else { return Some(()) };
        if answer.status() == 200 {
            // It has not handled the signal yet. The new turn is read to its end.
            let _ = answer.bytes().await;
            return None;
        }
        if answer.status() == 409 {
            // It has not handled the signal yet, and the task's turn is running.
            return None;
        }
        assert_eq!(answer.status(), 503);
        let retry_after =
            answer.headers().get("retry-after").expect("a Retry-After").to_str().unwrap().to_owned();
        assert!(retry_after.parse::<u64>().is_ok(), "{retry_after:?} is no number of seconds");
        let body: serde_json::Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["code"], "SHUTTING_DOWN");
        Some(())
    })
    .await;
    start
}

/// Waits until the engine has ended, asserts that this took at most 10 s since `start`, and starts it again.
async fn restart(fixture: EngineFixture, start: Instant) -> EngineFixture {
    let EngineFixture { provider, setup, program, .. } = fixture;
    program.wait().await.assert_success();
    let elapsed = start.elapsed();
    eprintln!("ended within {elapsed:?}");
    assert!(elapsed < Duration::from_secs(10), "it took {elapsed:?}");
    remove_wal(&setup);
    let (program, engine) = setup.start().await;
    EngineFixture { provider, setup, program, engine }
}

/// Removes SQLite's `-wal` and `-shm` files: a checkpointed brain needs only its main file.
fn remove_wal(setup: &StandaloneEngine) {
    for suffix in ["-wal", "-shm"] {
        let mut file = setup.brain().into_os_string();
        file.push(suffix);
        if let Err(error) = fs::remove_file(file) {
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
    }
}

/// Stops the engine in the middle of an answer, and lets the model answer with `second` after the restart. Returns
/// the events that a client sees that reads its stream to the end and reconnects after the last event.
async fn run_turn_stopped_mid_stream(second: &str) -> Vec<Event> {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text(TEXT).hold(5, &gate)]).await;
    let mut stream = fixture.engine.execute_with(&direct_message("task", "Count.")).await;
    wait_gate_reached(&gate).await;
    while visible_text(&stream.received, "text_delta").len() < 20 {
        stream.next().await.expect("the stream goes on");
    }
    let start = request_shutdown(&fixture).await;
    let before = stream.collect().await;
    fixture.provider.enqueue(Reply::from_text(second));
    let fixture = restart(fixture, start).await;

    let rest = fixture.engine.replay("task", before.last().unwrap().ts()).await.collect().await;
    let events = [before, rest].concat();
    assert_eq!(fixture.engine.replay("task", 0).await.collect().await, events);
    assert_complete_turn(&events);
    assert_eq!(assert_completed(&events), second);
    assert_eq!(
        visible_text(&events, "text_delta"),
        second,
        "a client that honours void_after sees the text once"
    );
    assert_eq!(fixture.engine.task_status("task").await, "idle");
    events
}

#[tokio::test]
async fn a_turn_that_is_stopped_in_mid_stream_goes_on_without_a_seam() {
    let events = run_turn_stopped_mid_stream(TEXT).await;
    assert_eq!(phases(&events), ["started", "resumed", "completed"]);
    let all: String = of_kind(&events, "text_delta").iter().map(|event| event.text()).collect();
    assert_eq!(all, TEXT, "also for a client that ignores void_after");
}

#[tokio::test]
async fn a_turn_that_is_stopped_in_mid_stream_voids_what_the_model_takes_back() {
    let events = run_turn_stopped_mid_stream("One two buckle my shoe.").await;
    assert_eq!(phases(&events), ["started", "resumed", "retrying", "completed"]);
}

#[tokio::test]
async fn an_answer_that_comes_in_time_is_kept_and_the_next_step_waits_for_the_next_start() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([memory_set_reply("colour", "green").hold(2, &gate)]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Note it.")).await;
    wait_gate_reached(&gate).await;
    let start = request_shutdown(&fixture).await;
    fixture.provider.enqueue(Reply::from_text("Noted."));
    gate.release();
    let before = stream.collect().await;
    assert_eq!(phases(&before), ["started"], "the turn was interrupted and has not ended");
    assert_eq!(fixture.provider.pending_replies(), 1, "the model is not called again");

    let fixture = restart(fixture, start).await;
    let rest = fixture.engine.replay("task", before.last().unwrap().ts()).await.collect().await;
    let events = [before, rest].concat();
    assert_eq!(assert_completed(&events), "Noted.");
    assert_eq!(phases(&events), ["started", "resumed", "completed"]);
    assert_eq!(of_kind(&events, "tool_call").len(), 1);
    assert_eq!(of_kind(&events, "tool_result").len(), 1);
    let requests = fixture.all_messages();
    assert_eq!(
        requests.iter().filter(|messages| messages.0.contains("Note it.")).count(),
        2,
        "no answer was requested twice"
    );
    fixture.last_messages().assert_contains(&["Note it.", "tool_result"]);
}

#[tokio::test]
async fn a_last_answer_that_comes_in_time_is_not_asked_for_again() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text(TEXT).hold(5, &gate)]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Count.")).await;
    wait_gate_reached(&gate).await;
    let start = request_shutdown(&fixture).await;
    gate.release();
    let before = stream.collect().await;
    let fixture = restart(fixture, start).await;
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!(events[..before.len()], before, "what was sent is unchanged");
    assert_eq!((assert_completed(&events), visible_text(&events, "text_delta").as_str()), (TEXT, TEXT));
    assert!(!phases(&events).contains(&"retrying"));
    assert_eq!(fixture.all_messages().iter().filter(|messages| messages.0.contains("Count.")).count(), 1);
}

#[tokio::test]
async fn a_turn_that_waits_for_a_failing_provider_does_not_hold_up_the_end() {
    let busy = Refusal::RateLimited { retry_after_s: Some(20) };
    let fixture = EngineFixture::new([Reply::from_fault(Fault::refuse(busy))]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Count.")).await;
    fixture.provider.wait_for_requests(1).await;
    let start = request_shutdown(&fixture).await;
    stream.collect().await;
    fixture.provider.enqueue(Reply::from_text(TEXT));
    let fixture = restart(fixture, start).await;
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!((assert_completed(&events), phases(&events)), (TEXT, vec!["started", "resumed", "completed"]));
}

#[tokio::test]
async fn an_idle_engine_ends_at_once_and_keeps_what_it_knows() {
    let fixture = EngineFixture::new([]).await;
    let events = fixture.engine.run_turn("task", "Hello!").await;
    let start = Instant::now();
    processes::signal(fixture.program.pid(), Signal::TERM);
    let fixture = restart(fixture, start).await;
    assert_eq!(fixture.engine.replay("task", 0).await.collect().await, events);
    fixture.engine.run_turn("task", "Hello again!").await;
    fixture.last_messages().assert_contains(&["Hello!", "Hello again!"]);
}

#[tokio::test]
async fn clients_that_only_listen_do_not_hold_up_the_end() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text(TEXT).hold(5, &gate)]).await;
    let first = fixture.engine.execute_with(&direct_message("task", "Count.")).await;
    wait_gate_reached(&gate).await;
    let second = fixture.engine.replay("task", 0).await;
    let start = request_shutdown(&fixture).await;
    gate.release();
    let (first, second) = (first.collect().await, second.collect().await);
    assert_eq!(first, second, "both see the same events, and their streams end cleanly");
    restart(fixture, start).await;
}
