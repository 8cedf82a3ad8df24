//! Story 7: a turn survives a crash of its engine.

use std::time::{Duration, Instant};

use mock_llm::{Gate, MockProvider, Reply};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::schema::ENGINE_RECORD;
use crate::support::turn::{assert_complete_turn, assert_completed, phases, visible_text};
use crate::support::{Engine, Event, Fleet, Product, eventually, processes, with_deadline};

/// The request of all turns of this story.
fn execute_body() -> Value {
    json!({"task_id": "task", "message": "Tell me.", "direct": true})
}

/// Kills the user's engine, waits until the orchestrator knows, and starts it again.
async fn kill_and_start(fleet: &Fleet, product: &Product) -> Engine {
    processes::kill(fleet.engine_process());
    let start = Instant::now();
    eventually("the engine is failed", async || (product.status("ada").await == "failed").then_some(()))
        .await;
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
    product.stop("ada").await.assert_error(409, "ENGINE_NOT_RUNNING");
    product.start("ada").await.assert_ok("status:text url:url");
    product.engine("ada").await
}

/// Streams `first` until a part of it was sent, kills the engine, and has the provider answer `second` after the
/// restart. Returns all events of the turn.
async fn run_turn_killed_mid_stream(first: &str, second: &str) -> Vec<Event> {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    provider.enqueue(Reply::from_text(first).chars_per_delta(4).hold(5, &gate));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;

    let mut stream = engine.execute_with(&execute_body()).await;
    with_deadline("the provider holds the answer", gate.reached()).await;
    while visible_text(&stream.received, "text_delta").len() < 20 {
        stream.next().await.expect("the stream goes on");
    }
    provider.enqueue(Reply::from_text(second).chars_per_delta(4));
    let again = kill_and_start(&fleet, &product).await;
    let before = stream.collect_until_broken().await;
    assert_eq!(fleet.audit_rows("crash").len(), 1);
    assert_eq!(fleet.audit_rows("crash")[0].1["cause"], "exit");

    // The client continues where it was.
    let rest = again.replay("task", before.last().unwrap().ts()).await.collect().await;
    let events = again.replay("task", 0).await.collect().await;
    assert_eq!([before, rest].concat(), events);
    assert_complete_turn(&events);
    assert_eq!(provider.requests().len(), 2);
    assert_eq!(provider.requests()[0].body["messages"], provider.requests()[1].body["messages"]);
    events
}

#[tokio::test]
async fn a_turn_whose_model_says_the_same_again_goes_on_without_a_seam() {
    let text = "One two three four five six seven eight nine ten.";
    let events = run_turn_killed_mid_stream(text, text).await;
    assert_eq!(phases(&events), ["started", "resumed", "completed"]);
    assert_eq!(assert_completed(&events), text);
    assert_eq!(visible_text(&events, "text_delta"), text, "the text appears once");
}

#[tokio::test]
async fn a_turn_whose_model_says_something_else_voids_what_it_said() {
    let text = "One two buckle my shoe, three four knock at the door.";
    let events = run_turn_killed_mid_stream("One two three four five six seven eight.", text).await;
    assert_eq!(phases(&events), ["started", "resumed", "retrying", "completed"]);
    assert_eq!(assert_completed(&events), text);
    assert_eq!(
        visible_text(&events, "text_delta"),
        text,
        "a client that honours void_after shows the text once"
    );
    assert_step_voided(&events);
}

#[tokio::test]
async fn a_turn_whose_model_says_less_voids_what_it_said() {
    let events = run_turn_killed_mid_stream("One two three four five six seven eight.", "One two").await;
    assert_eq!(phases(&events), ["started", "resumed", "retrying", "completed"]);
    assert_eq!(assert_completed(&events), "One two");
    assert_eq!(visible_text(&events, "text_delta"), "One two");
    assert_step_voided(&events);
}

/// Asserts that `void_after` is the timestamp of the last event before the step whose text is void.
#[track_caller]
fn assert_step_voided(events: &[Event]) {
    let retrying = events.iter().find(|event| event.phase() == Some("retrying")).unwrap();
    let step = events.iter().position(|event| event.kind == "content_block_start").unwrap();
    assert_eq!(retrying.data["void_after"], events[step - 1].ts(), "{events:#?}");
    assert_eq!(retrying.data["attempt"], 2);
}

#[tokio::test]
async fn a_tool_that_had_answered_is_not_called_again() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    let set = json!({"key": "colour", "value": "green"});
    provider.enqueue(Reply::new().tool_use("working_memory_set", set));
    provider.enqueue(Reply::from_text("This is not yet all.").hold(2, &gate));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let product = up.product();
    let stream = product.engine("ada").await.execute_with(&execute_body()).await;
    with_deadline("the provider holds the answer", gate.reached()).await;
    provider.enqueue(Reply::from_text("Now it is all."));
    let again = kill_and_start(&fleet, &product).await;
    drop(stream);

    let events = again.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), "Now it is all.");
    assert!(phases(&events).contains(&"resumed"), "{:?}", phases(&events));
    let calls = events.iter().filter(|event| event.kind == "tool_call").count();
    assert_eq!(calls, 1, "{events:#?}");
    let last = provider.requests().last().unwrap().body["messages"].to_string();
    assert!(last.contains("tool_result") && last.contains("colour"), "{last}");
}

#[tokio::test]
async fn a_turn_outlives_two_deaths() {
    let provider = MockProvider::start().await.unwrap();
    let text = "One two three four five six seven eight nine ten.";
    let gates = [Gate::new(), Gate::new()];
    for gate in &gates {
        provider.enqueue(Reply::from_text(text).chars_per_delta(4).hold(5, gate));
    }
    provider.enqueue(Reply::from_text(text).chars_per_delta(4));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let product = up.product();
    let stream = product.engine("ada").await.execute_with(&execute_body()).await;
    with_deadline("the first answer is held", gates[0].reached()).await;
    kill_and_start(&fleet, &product).await;
    drop(stream);
    with_deadline("the second answer is held", gates[1].reached()).await;
    let again = kill_and_start(&fleet, &product).await;

    let events = again.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), text);
    assert_eq!(visible_text(&events, "text_delta"), text);
    assert_eq!(phases(&events).iter().filter(|phase| **phase == "resumed").count(), 2);
    // The task is free again.
    assert_completed(&again.execute_with(&execute_body()).await.collect().await);
}

#[tokio::test]
async fn a_stop_in_mid_turn_lets_the_turn_go_on_at_the_next_start() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    let text = "One two three four five six seven eight nine ten.";
    provider.enqueue(Reply::from_text(text).hold(5, &gate));
    provider.enqueue(Reply::from_text(text));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let product = up.product();
    let stream = product.engine("ada").await.execute_with(&execute_body()).await;
    with_deadline("the provider holds the answer", gate.reached()).await;
    let start = Instant::now();
    product.stop("ada").await.assert_ok("status:text");
    assert!(start.elapsed() < Duration::from_secs(12), "an engine ends within 10 s: {:?}", start.elapsed());
    drop(stream);
    product.start("ada").await.assert_ok("status:text url:url");
    let events = product.engine("ada").await.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), text);
    assert_eq!(visible_text(&events, "text_delta"), text);
}

#[tokio::test]
async fn a_turn_outlives_the_end_of_up() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    let text = "One two three four five six seven eight nine ten.";
    provider.enqueue(Reply::from_text(text).hold(5, &gate));
    provider.enqueue(Reply::from_text(text));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let stream = up.product().engine("ada").await.execute_with(&execute_body()).await;
    with_deadline("the provider holds the answer", gate.reached()).await;
    up.signal_and_wait(Signal::TERM).await.assert_success();
    let before = stream.collect_until_broken().await;

    let up = fleet.start_up().await;
    let again = up.product().engine("ada").await;
    let events = again.replay("task", 0).await.collect().await;
    assert_eq!(events[..before.len()], before, "events that were sent stay");
    assert_eq!(assert_completed(&events), text);
    assert_eq!(visible_text(&events, "text_delta"), text);
}

#[tokio::test]
async fn an_engine_that_hangs_can_be_deleted_at_once() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    processes::signal(fleet.engine_process(), Signal::STOP);
    let start = Instant::now();
    product.get("ada").await.assert_ok(ENGINE_RECORD);
    product.engine("bob").await.health().await;
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "the hanging engine delayed others: {:?}",
        start.elapsed()
    );
    assert!(!fleet.engine_folder(&engine.id).exists());
    assert_eq!(fleet.engine_processes().len(), 1);
}
