//! Story 15: repeating a request whose response was lost starts no second turn.

use futures::future::join_all;
use mock_llm::{Gate, Reply};
use serde_json::{Value, json};

use crate::support::EngineFixture;
use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{ask_user_reply, wait_gate_reached};
use crate::support::turn::{assert_completed, phases};

const TEXT: &str = "One two three four five.";

/// The body of a message that may be repeated.
fn execute_body(id: &str) -> Value {
    with_fields(direct_message("task", "Count."), json!({"client_request_id": id}))
}

#[tokio::test]
async fn a_repeated_request_joins_its_turn() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text(TEXT).hold(3, &gate)]).await;
    let first = fixture.engine.execute_with(&execute_body("once")).await;
    wait_gate_reached(&gate).await;
    let mut second = fixture.engine.execute_with(&execute_body("once")).await;
    let started = second.next().await.unwrap();
    assert_eq!(started.phase(), Some("started"), "the stream starts with the turn's first event");
    gate.release();
    let events = first.collect().await;
    assert_eq!(assert_completed(&events), TEXT);
    assert_eq!(second.collect().await, events);
    assert_eq!(fixture.model_calls(), 1);
    assert_eq!(fixture.engine.messages("task").await.len(), 2);
}

#[tokio::test]
async fn of_twenty_requests_at_once_one_begins_a_turn_and_all_see_it() {
    let fixture = EngineFixture::new([Reply::from_text(TEXT)]).await;
    let streams = join_all(
        (0..20).map(async |_| fixture.engine.execute_with(&execute_body("once")).await.collect().await),
    )
    .await;
    for events in &streams {
        assert_eq!(assert_completed(events), TEXT);
        assert_eq!(events, &streams[0]);
    }
    assert_eq!(fixture.model_calls(), 1);
    assert_eq!(fixture.engine.replay("task", 0).await.collect().await, streams[0]);
}

#[tokio::test]
async fn a_request_that_is_repeated_late_is_shown_its_own_turn() {
    let fixture = EngineFixture::new([Reply::from_text(TEXT)]).await;
    let first = fixture.engine.run_turn_with(&execute_body("once")).await;
    assert_eq!(fixture.engine.run_turn_with(&execute_body("once")).await, first);
    let later = fixture.engine.run_turn("task", "Go on.").await;
    assert_ne!(later[0].data["turn_id"], first[0].data["turn_id"]);
    assert_eq!(
        fixture.engine.run_turn_with(&execute_body("once")).await,
        first,
        "all events of its own turn, and no others"
    );
    assert_eq!(fixture.model_calls(), 2);

    let fixture = fixture.kill_and_start().await;
    assert_eq!(fixture.engine.run_turn_with(&execute_body("once")).await, first);
    assert_eq!(fixture.model_calls(), 2);
}

#[tokio::test]
async fn a_request_that_is_repeated_after_the_death_of_the_engine_joins_its_turn() {
    let gates = [Gate::new(), Gate::new()];
    let fixture = EngineFixture::new(gates.each_ref().map(|gate| Reply::from_text(TEXT).hold(3, gate))).await;
    let mut stream = fixture.engine.execute_with(&execute_body("once")).await;
    let started = stream.next().await.unwrap();
    wait_gate_reached(&gates[0]).await;
    let fixture = fixture.kill_and_start().await;
    drop(stream);
    let again = fixture.engine.execute_with(&execute_body("once")).await;
    wait_gate_reached(&gates[1]).await;
    gates[1].release();
    let events = again.collect().await;
    assert_eq!(events[0], started);
    assert_eq!((assert_completed(&events), phases(&events)), (TEXT, vec!["started", "resumed", "completed"]));
    assert_eq!(fixture.model_calls(), 2);
    assert_eq!(fixture.engine.messages("task").await.len(), 2);
}

#[tokio::test]
async fn a_request_that_is_repeated_while_a_person_is_asked_joins_its_turn() {
    let fixture = EngineFixture::new([ask_user_reply("How far?"), Reply::from_text(TEXT)]).await;
    let (first, request) = fixture.engine.run_until_hitl_request(&execute_body("once")).await;
    let mut second = fixture.engine.execute_with(&execute_body("once")).await;
    assert_eq!(second.next_hitl_request().await, request);
    fixture.engine.respond("task", "To five.").await.assert_ok("status:text request_id:hitl");
    let events = first.collect().await;
    assert_eq!((assert_completed(&events), second.collect().await), (TEXT, events.clone()));
}

#[tokio::test]
async fn another_request_does_not_join() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text(TEXT).hold(3, &gate)]).await;
    let first = fixture.engine.execute_with(&execute_body("once")).await;
    wait_gate_reached(&gate).await;
    fixture.engine.post_execute(&execute_body("twice")).await.assert_error(409, "TASK_BUSY");
    fixture.engine.post_execute(&direct_message("task", "Count.")).await.assert_error(409, "TASK_BUSY");
    gate.release();
    let first = first.collect().await;
    let second = fixture.engine.run_turn_with(&execute_body("twice")).await;
    assert_ne!(second[0].data["turn_id"], first[0].data["turn_id"]);
    assert_eq!(fixture.model_calls(), 2);
}

#[tokio::test]
async fn an_id_that_was_used_for_another_message_is_refused() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text(TEXT).hold(3, &gate)]).await;
    let stream = fixture.engine.execute_with(&execute_body("once")).await;
    wait_gate_reached(&gate).await;
    let other = with_fields(execute_body("once"), json!({"message": "Count backwards."}));
    let refused = fixture.engine.post_execute(&other).await;
    assert!(refused.assert_error(400, "INVALID_REQUEST").contains("client_request_id"));
    gate.release();
    assert_completed(&stream.collect().await);
    fixture.engine.post_execute(&other).await.assert_error(400, "INVALID_REQUEST");
    assert_eq!(fixture.model_calls(), 1);
}

#[tokio::test]
async fn a_malformed_id_is_refused() {
    let fixture = EngineFixture::new([]).await;
    for id in [json!(""), json!("x".repeat(257)), json!(7), json!(["once"])] {
        let body = with_fields(direct_message("task", "Count."), json!({"client_request_id": id}));
        let answer = fixture.engine.post_execute(&body).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains("client_request_id"));
    }
    let none = with_fields(direct_message("task", "Count."), json!({"client_request_id": null}));
    fixture.engine.run_turn_with(&none).await;
    fixture.engine.run_turn_with(&execute_body(&"🦀".repeat(64))).await;
}
