//! A message to a task whose turn runs is queued, given to that turn, or takes its place, as its request says.

use mock_llm::{Fault, Gate, Refusal, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, roles_and_texts, with_fields};
use crate::support::engine_fixture::{ask_user_reply, memory_set_reply, wait_gate_reached};
use crate::support::turn::{assert_cancelled, assert_completed, phases};
use crate::support::{EngineFixture, Event, EventStream, eventually};

fn message_with(text: &str, on_busy: &str) -> Value {
    with_fields(direct_message("task", text), json!({"on_busy": on_busy}))
}

/// An answer whose end the test releases.
fn held(text: &str, gate: &Gate) -> Reply {
    Reply::from_text(text).hold(1, gate)
}

/// An engine whose task runs a turn that the test releases, and answers later messages with `later`.
async fn busy_engine(gate: &Gate, later: &[&str]) -> (EngineFixture, EventStream) {
    let later = later.iter().map(|text| Reply::from_text(*text));
    let fixture = EngineFixture::new([held("The first answer.", gate)].into_iter().chain(later)).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "First.")).await;
    wait_gate_reached(gate).await;
    (fixture, stream)
}

/// The events of the turn of a queued message, after those about the queue.
fn own_turn(events: Vec<Event>) -> Vec<Event> {
    events.into_iter().skip_while(|event| event.kind == "busy_update").collect()
}

/// The positions that a client was told.
fn positions(events: &[Event]) -> Vec<u64> {
    events.iter().filter_map(|event| event.data["position"].as_u64()).collect()
}

async fn cancel_queued(fixture: &EngineFixture, turn: &Value) -> crate::support::HttpResponse {
    fixture.engine.delete(&format!("/tasks/task/queue/{}", turn.as_str().unwrap())).await
}

#[tokio::test]
async fn queued_messages_become_turns_in_their_order() {
    let gate = Gate::new();
    let (fixture, first) = busy_engine(&gate, &["The second answer.", "The third answer."]).await;
    let (second, position) = fixture.engine.queue_message("task", "Second.").await;
    assert_eq!(position, 1);
    let (third, position) = fixture.engine.queue_message("task", "Third.").await;
    assert_eq!(position, 2);
    assert_eq!(fixture.engine.queued("task").await, ["Second.", "Third."]);
    // Whoever says nothing about it is refused, as ever.
    let refused = fixture.engine.post_execute(&direct_message("task", "Fourth.")).await;
    refused.assert_error(409, "TASK_BUSY");
    fixture.engine.post_execute(&message_with("Fourth.", "reject")).await.assert_error(409, "TASK_BUSY");
    assert!(!fixture.engine.quiesce().await, "an engine with a queue does not sleep");

    gate.release();
    assert_eq!(assert_completed(&first.collect().await), "The first answer.");
    assert_eq!(assert_completed(&own_turn(second.collect().await)), "The second answer.");
    let third = third.collect().await;
    assert_eq!(positions(&third), [2, 1]);
    assert_eq!(assert_completed(&own_turn(third)), "The third answer.");
    let messages = fixture.engine.messages("task").await;
    let texts: Vec<&str> = roles_and_texts(&messages).into_iter().map(|(_, text)| text).collect();
    let expected =
        ["First.", "The first answer.", "Second.", "The second answer.", "Third.", "The third answer."];
    assert_eq!(texts, expected);
    assert_eq!(fixture.engine.queued("task").await, [""; 0]);
    // The events about the queue are not replayed.
    let replayed = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!(phases(&replayed), ["started", "completed", "started", "completed", "started", "completed"]);
    assert!(replayed.iter().all(|event| event.kind != "busy_update"));
}

#[tokio::test]
async fn a_message_to_an_idle_task_begins_its_turn_whatever_it_says() {
    let fixture = EngineFixture::new((0..3).map(|_| Reply::from_text("Here."))).await;
    for on_busy in ["queue", "steer", "interrupt"] {
        let events = fixture.engine.run_turn_with(&message_with("Hello.", on_busy)).await;
        assert_eq!(phases(&events), ["started", "completed"], "{on_busy}");
    }
}

#[tokio::test]
async fn a_queued_message_is_taken_out_and_its_turn_never_begins() {
    let gate = Gate::new();
    let (fixture, first) = busy_engine(&gate, &["The third answer."]).await;
    let (second, _) = fixture.engine.queue_message("task", "Mangrovesecret.").await;
    let (third, _) = fixture.engine.queue_message("task", "Third.").await;
    let turn = second.received[0].data["turn_id"].clone();
    let answer = cancel_queued(&fixture, &turn).await.assert_ok("status:text turn_id:turn");
    assert_eq!(answer, json!({"status": "cancelled", "turn_id": turn}));
    let second = second.collect().await;
    assert_eq!(second.last().unwrap().data["status"], "cancelled");
    assert_eq!(fixture.engine.queued("task").await, ["Third."]);
    cancel_queued(&fixture, &turn).await.assert_error(404, "TURN_NOT_FOUND");
    cancel_queued(&fixture, &json!("turn_x")).await.assert_error(404, "TURN_NOT_FOUND");
    let elsewhere = fixture.engine.delete("/tasks/other/queue/turn_x").await;
    elsewhere.assert_error(404, "TASK_NOT_FOUND");
    let record = fixture.engine.turn("task", &turn).await;
    assert_eq!(record["state"], "cancelled");
    assert!(record["ended_at"].is_string() && record.get("started_at").is_none(), "{record}");

    gate.release();
    assert_completed(&first.collect().await);
    let third = third.collect().await;
    assert_eq!(positions(&third), [2, 1]);
    assert_completed(&own_turn(third));
    assert_eq!(fixture.model_calls(), 2);
    // Its words are nowhere any more.
    let folder = fixture.setup.brain().parent().unwrap().to_owned();
    for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let bytes = std::fs::read(&file).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&bytes).contains("Mangrovesecret"), "{}", file.display());
    }
}

#[tokio::test]
async fn a_queue_waits_for_a_person_and_goes_on_after_a_cancelled_and_a_failed_turn() {
    let refusal = Reply::from_fault(Fault::Refuse { refusal: Refusal::Unauthorized });
    let replies = [ask_user_reply("Which?"), refusal, ask_user_reply("Who?")];
    let fixture = EngineFixture::new(replies).await;
    let (stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "First.")).await;
    let (second, _) = fixture.engine.queue_message("task", "Second.").await;
    let (third, _) = fixture.engine.queue_message("task", "Third.").await;
    assert_eq!(fixture.engine.task_status("task").await, "paused");
    assert_eq!(fixture.engine.queued("task").await, ["Second.", "Third."]);
    assert!(fixture.engine.quiesce().await, "what waits for a person can wait asleep");
    fixture.engine.control("quiesce", json!({"lift": true})).await.assert_ok("result:object");
    fixture.engine.cancel("task").await.assert_ok("status:text turn_id:turn");
    assert_cancelled(&stream.collect().await);
    assert_eq!(second.collect().await.last().unwrap().kind, "error");
    // The third one asks in its turn.
    let mut third = third;
    third.next_hitl_request().await;
    fixture.provider.enqueue(Reply::from_text("Good."));
    fixture.engine.respond("task", "Me.").await.assert_ok("status:text request_id:hitl");
    assert_completed(&own_turn(third.collect().await));
    assert!(fixture.engine.quiesce().await);
}

#[tokio::test]
async fn a_queue_behind_a_question_sleeps_and_goes_on_after_the_answer() {
    let replies = [ask_user_reply("Which?"), Reply::from_text("That one."), Reply::from_text("Done.")];
    let fixture = EngineFixture::new(replies).await;
    let (asking, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "First.")).await;
    drop(asking);
    let second = fixture.engine.execute_in_background(message_with("Second.", "queue")).await;
    assert!(fixture.engine.quiesce().await);
    let fixture = fixture.stop_and_start().await;
    assert_eq!(fixture.engine.queued("task").await, ["Second."]);
    assert!(fixture.engine.quiesce().await);
    fixture.engine.control("quiesce", json!({"lift": true})).await.assert_ok("result:object");
    fixture.engine.respond("task", "This.").await.assert_ok("status:text request_id:hitl");
    eventually("the queued message has its answer", async || {
        let state = fixture.engine.turn("task", &second["turn_id"]).await["state"].clone();
        (state == "completed").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_full_queue_names_its_limit() {
    let gate = Gate::new();
    let (fixture, first) = busy_engine(&gate, &[]).await;
    let mut turns = Vec::new();
    for number in 0..32 {
        let body = message_with(&format!("Message {number}."), "queue");
        let answer = fixture.engine.execute_in_background(body).await;
        assert_eq!((&answer["status"], &answer["position"]), (&json!("queued"), &json!(number + 1)));
        turns.push(answer["turn_id"].clone());
    }
    let refused = fixture.engine.post_execute(&message_with("One more.", "queue")).await;
    assert!(refused.assert_error(429, "QUEUE_FULL").contains("32 messages"), "{}", refused.body);
    for turn in &turns {
        cancel_queued(&fixture, turn).await.assert_ok("status:text turn_id:turn");
    }
    gate.release();
    assert_completed(&first.collect().await);
    assert_eq!(fixture.model_calls(), 1);
}

#[tokio::test]
async fn a_message_is_given_to_the_running_turn() {
    let gate = Gate::new();
    let replies = [memory_set_reply("colour", "green").hold(1, &gate), Reply::from_text("En français.")];
    let fixture = EngineFixture::new(replies).await;
    let first = fixture.engine.execute_with(&direct_message("task", "Note it.")).await;
    wait_gate_reached(&gate).await;
    let mut steering = fixture.engine.execute_with(&message_with("Say it in French.", "steer")).await;
    let update = steering.next().await.unwrap();
    assert_eq!((update.kind.as_str(), &update.data["status"]), ("busy_update", &json!("steered")));
    gate.release();
    let events = first.collect().await;
    assert_eq!(update.data["turn_id"], events[0].data["turn_id"]);
    assert_eq!(assert_completed(&events), "En français.");
    assert_eq!(steering.collect().await.last(), events.last(), "its sender sees the turn end");
    assert_eq!(fixture.model_calls(), 2);
    fixture.last_messages().assert_contains(&["Note it.", "Say it in French."]);
    let messages = fixture.engine.messages("task").await;
    assert!(messages.iter().any(|message| message["message_id"] == update.data["message_id"]));
}

#[tokio::test]
async fn a_message_takes_the_place_of_the_running_turn_and_comes_before_the_queue() {
    let gate = Gate::new();
    let (fixture, first) = busy_engine(&gate, &["The urgent answer.", "The queued answer."]).await;
    let (queued, _) = fixture.engine.queue_message("task", "Queued.").await;
    let urgent = fixture.engine.execute_with(&message_with("Urgent.", "interrupt")).await;
    let urgent = urgent.collect().await;
    assert_eq!(positions(&urgent), [1], "before the queue");
    assert_eq!(assert_completed(&own_turn(urgent)), "The urgent answer.");
    assert_cancelled(&first.collect().await);
    assert_eq!(assert_completed(&own_turn(queued.collect().await)), "The queued answer.");
    let messages = fixture.engine.messages("task").await;
    let texts = roles_and_texts(&messages);
    let users: Vec<&str> = texts.iter().filter(|(role, _)| *role == "user").map(|(_, text)| *text).collect();
    assert_eq!(users, ["First.", "Urgent.", "Queued."]);
    gate.release();
}

#[tokio::test]
async fn a_turn_that_waits_for_a_person_is_interrupted_too() {
    let fixture = EngineFixture::new([ask_user_reply("Which?"), Reply::from_text("Never mind.")]).await;
    let (stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "First.")).await;
    let events = fixture.engine.execute_with(&message_with("Forget it.", "interrupt")).await.collect().await;
    assert_eq!(assert_completed(&own_turn(events)), "Never mind.");
    assert_cancelled(&stream.collect().await);
    assert_eq!(fixture.engine.pending().await, [Value::Null; 0]);
}

#[tokio::test]
async fn an_interruption_can_edit_the_message_that_is_being_answered_and_nothing_that_is_not_there() {
    let gate = Gate::new();
    let (fixture, mut first) = busy_engine(&gate, &["The edited answer."]).await;
    first.read_until("the beginning", |event| event.data["message_id"].is_string()).await;
    let begun = first.received.iter().find(|event| event.data["message_id"].is_string()).unwrap();
    let edited = begun.data["message_id"].clone();
    let edit = with_fields(message_with("Edited.", "interrupt"), json!({"edit_message_id": edited}));
    let events = fixture.engine.execute_with(&edit).await.collect().await;
    assert_eq!(assert_completed(&own_turn(events)), "The edited answer.");
    assert_cancelled(&first.collect().await);
    let messages = fixture.engine.messages("task").await;
    assert_eq!(roles_and_texts(&messages), [("user", "Edited."), ("assistant", "The edited answer.")]);

    let gate = Gate::new();
    fixture.provider.enqueue(Reply::from_text("Held.").hold(0, &gate));
    fixture.engine.execute_in_background(direct_message("task", "Second.")).await;
    wait_gate_reached(&gate).await;
    let unknown = json!({"edit_message_id": "msg_0199aaaaaaaa7aaaaaaaaaaaaaaaaaaa"});
    let body = with_fields(message_with("Else.", "interrupt"), unknown);
    let events = fixture.engine.execute_with(&body).await.collect().await;
    let last = &events.last().unwrap().data;
    assert_eq!(last["status"], "failed", "{last}");
    assert!(last["message"].as_str().unwrap().contains("not in the conversation"), "{last}");
    assert_eq!(fixture.engine.turn("task", &last["turn_id"]).await["state"], "failed");
    assert_eq!(fixture.engine.queued("task").await, [""; 0]);
}

#[tokio::test]
async fn what_cannot_be_combined_is_refused_and_named() {
    let fixture = EngineFixture::new([Reply::from_text("Hello.")]).await;
    fixture.engine.run_turn("task", "Hello.").await;
    let picture = json!([{"type": "text", "text": "A note."}]);
    for (fields, field) in [
        (json!({"on_busy": "later"}), "on_busy"),
        (json!({"on_busy": 1}), "on_busy"),
        (json!({"background": "yes"}), "background"),
        (json!({"on_busy": "queue", "edit_message_id": "msg_x"}), "on_busy"),
        (json!({"on_busy": "steer", "retry_message_id": "msg_x"}), "on_busy"),
        (json!({"on_busy": "steer", "media": picture}), "media"),
        (json!({"on_busy": "steer", "instructions": "Be brief."}), "on_busy"),
        (json!({"on_busy": "steer", "client_request_id": "once"}), "client_request_id"),
        (json!({"on_busy": "queue", "message": "  "}), "message"),
    ] {
        let body = with_fields(direct_message("task", "Hello."), fields.clone());
        let refused = fixture.engine.post_execute(&body).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains(field), "{fields}: {}", refused.body);
    }
    let nulls = json!({"on_busy": null, "background": null});
    fixture.provider.enqueue(Reply::from_text("Hello."));
    fixture.engine.run_turn_with(&with_fields(direct_message("task", "Hello."), nulls)).await;
}

#[tokio::test]
async fn a_repeated_request_joins_its_message_in_the_queue() {
    let gate = Gate::new();
    let (fixture, first) = busy_engine(&gate, &["The second answer."]).await;
    let body = with_fields(message_with("Second.", "queue"), json!({"client_request_id": "once"}));
    let sent = fixture.engine.execute_in_background(body.clone()).await;
    assert_eq!(fixture.engine.execute_in_background(body.clone()).await, sent);
    let other = with_fields(body.clone(), json!({"message": "Another."}));
    fixture.engine.post_execute(&other).await.assert_error(400, "INVALID_REQUEST");
    let stream = fixture.engine.execute_with(&body).await;
    assert_eq!(fixture.engine.queued("task").await, ["Second."]);
    let cancelled = with_fields(message_with("Third.", "queue"), json!({"client_request_id": "twice"}));
    let third = fixture.engine.execute_in_background(cancelled.clone()).await;
    cancel_queued(&fixture, &third["turn_id"]).await.assert_ok("status:text turn_id:turn");
    let again = fixture.engine.execute_in_background(cancelled).await;
    assert_eq!((&again["status"], &again["turn_id"]), (&json!("cancelled"), &third["turn_id"]));
    gate.release();
    assert_completed(&first.collect().await);
    let events = own_turn(stream.collect().await);
    assert_eq!(assert_completed(&events), "The second answer.");
    assert_eq!(events[0].data["turn_id"], sent["turn_id"]);
    let again = fixture.engine.execute_in_background(body).await;
    assert_eq!((&again["status"], &again["turn_id"]), (&json!("started"), &sent["turn_id"]));
    assert_eq!(fixture.model_calls(), 2);
}

#[tokio::test]
async fn queued_messages_are_exported_and_an_import_starts_none() {
    let gate = Gate::new();
    let (fixture, first) = busy_engine(&gate, &["The second answer."]).await;
    let (second, _) = fixture.engine.queue_message("task", "Second.").await;
    let exported = fixture.engine.request(Method::GET, "/memory/export").send().await.unwrap();
    let document = exported.text().await.unwrap();
    let parsed: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(parsed["queue"][0]["request"]["message"], "Second.");
    assert_eq!(parsed["queue"][0]["turn_id"], second.received[0].data["turn_id"]);
    let replace = |engine: &crate::support::Engine| {
        crate::support::http::send(
            engine.request(Method::POST, "/memory/import?mode=replace").body(document.clone()),
        )
    };
    replace(&fixture.engine).await.assert_error(409, "TASK_BUSY");
    fixture.engine.delete("/tasks/task").await.assert_error(409, "TASK_BUSY");
    gate.release();
    assert_completed(&first.collect().await);
    assert_completed(&own_turn(second.collect().await));

    let other = EngineFixture::new([]).await;
    replace(&other.engine).await.assert_ok("status:text mode:text counts:object");
    assert_eq!(other.engine.queued("task").await, [""; 0]);
    assert!(other.engine.quiesce().await);
    assert_eq!(other.model_calls(), 0);
}
