//! Story 15: a request that is repeated, because its answer was lost, begins no second turn.

use futures::future::join_all;
use serde_json::{Value, json};
use strict_provider::{Gate, Reply};

use crate::support::Rig;
use crate::support::calls::{message, with};
use crate::support::model::{question, reached};
use crate::support::turn::{completed, phases};

const TEXT: &str = "One two three four five.";

/// A message that may be repeated.
fn body(id: &str) -> Value {
    with(message("task", "Count."), json!({"client_request_id": id}))
}

#[tokio::test]
async fn a_repeated_request_joins_its_turn() {
    let gate = Gate::new();
    let rig = Rig::new([Reply::of_text(TEXT).hold(3, &gate)]).await;
    let first = rig.engine.execute_with(&body("once")).await;
    reached(&gate).await;
    let mut second = rig.engine.execute_with(&body("once")).await;
    let started = second.next().await.unwrap();
    assert_eq!(started.phase(), Some("started"), "it begins at the turn's beginning");
    gate.release();
    let events = first.rest().await;
    assert_eq!(completed(&events), TEXT);
    assert_eq!(second.rest().await, events);
    assert_eq!(rig.calls(), 1);
    assert_eq!(rig.engine.messages("task").await.len(), 2);
}

#[tokio::test]
async fn of_twenty_requests_at_once_one_begins_a_turn_and_all_see_it() {
    let rig = Rig::new([Reply::of_text(TEXT)]).await;
    let streams =
        join_all((0..20).map(async |_| rig.engine.execute_with(&body("once")).await.rest().await)).await;
    for events in &streams {
        assert_eq!(completed(events), TEXT);
        assert_eq!(events, &streams[0]);
    }
    assert_eq!(rig.calls(), 1);
    assert_eq!(rig.engine.replay("task", 0).await.rest().await, streams[0]);
}

#[tokio::test]
async fn a_request_that_is_repeated_late_is_shown_its_own_turn() {
    let rig = Rig::new([Reply::of_text(TEXT)]).await;
    let first = rig.engine.tell_with(&body("once")).await;
    assert_eq!(rig.engine.tell_with(&body("once")).await, first);
    let later = rig.engine.tell("task", "Go on.").await;
    assert_ne!(later[0].data["turn_id"], first[0].data["turn_id"]);
    assert_eq!(rig.engine.tell_with(&body("once")).await, first, "its own turn, to its end, and no other");
    assert_eq!(rig.calls(), 2);

    let rig = rig.kill_and_start().await;
    assert_eq!(rig.engine.tell_with(&body("once")).await, first);
    assert_eq!(rig.calls(), 2);
}

#[tokio::test]
async fn a_request_that_is_repeated_after_the_death_of_the_engine_joins_its_turn() {
    let gates = [Gate::new(), Gate::new()];
    let rig = Rig::new(gates.each_ref().map(|gate| Reply::of_text(TEXT).hold(3, gate))).await;
    let mut stream = rig.engine.execute_with(&body("once")).await;
    let started = stream.next().await.unwrap();
    reached(&gates[0]).await;
    let rig = rig.kill_and_start().await;
    drop(stream);
    let again = rig.engine.execute_with(&body("once")).await;
    reached(&gates[1]).await;
    gates[1].release();
    let events = again.rest().await;
    assert_eq!(events[0], started);
    assert_eq!((completed(&events), phases(&events)), (TEXT, vec!["started", "resumed", "completed"]));
    assert_eq!(rig.calls(), 2);
    assert_eq!(rig.engine.messages("task").await.len(), 2);
}

#[tokio::test]
async fn a_request_that_is_repeated_while_a_person_is_asked_joins_its_turn() {
    let rig = Rig::new([question("How far?"), Reply::of_text(TEXT)]).await;
    let (first, request) = rig.engine.until_asked(&body("once")).await;
    let mut second = rig.engine.execute_with(&body("once")).await;
    assert_eq!(second.asked().await, request);
    rig.engine.respond("task", "To five.").await.ok("status:text request_id:hitl");
    let events = first.rest().await;
    assert_eq!((completed(&events), second.rest().await), (TEXT, events.clone()));
}

#[tokio::test]
async fn another_request_does_not_join() {
    let gate = Gate::new();
    let rig = Rig::new([Reply::of_text(TEXT).hold(3, &gate)]).await;
    let first = rig.engine.execute_with(&body("once")).await;
    reached(&gate).await;
    rig.engine.execute_refused(&body("twice")).await.refused(409, "TASK_BUSY");
    rig.engine.execute_refused(&message("task", "Count.")).await.refused(409, "TASK_BUSY");
    gate.release();
    let first = first.rest().await;
    let second = rig.engine.tell_with(&body("twice")).await;
    assert_ne!(second[0].data["turn_id"], first[0].data["turn_id"]);
    assert_eq!(rig.calls(), 2);
}

#[tokio::test]
async fn an_id_that_was_used_for_another_message_is_refused() {
    let gate = Gate::new();
    let rig = Rig::new([Reply::of_text(TEXT).hold(3, &gate)]).await;
    let stream = rig.engine.execute_with(&body("once")).await;
    reached(&gate).await;
    let other = with(body("once"), json!({"message": "Count backwards."}));
    let refused = rig.engine.execute_refused(&other).await;
    assert!(refused.refused(400, "INVALID_REQUEST").contains("client_request_id"));
    gate.release();
    completed(&stream.rest().await);
    rig.engine.execute_refused(&other).await.refused(400, "INVALID_REQUEST");
    assert_eq!(rig.calls(), 1);
}

#[tokio::test]
async fn a_malformed_id_is_refused() {
    let rig = Rig::new([]).await;
    for id in [json!(""), json!("x".repeat(257)), json!(7), json!(["once"])] {
        let body = with(message("task", "Count."), json!({"client_request_id": id}));
        let answer = rig.engine.execute_refused(&body).await;
        assert!(answer.refused(400, "INVALID_REQUEST").contains("client_request_id"));
    }
    let none = with(message("task", "Count."), json!({"client_request_id": null}));
    rig.engine.tell_with(&none).await;
    rig.engine.tell_with(&body(&"🦀".repeat(64))).await;
}
