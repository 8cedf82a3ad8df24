//! Story 17 (lesson e03): what waits for a person is neither lost, nor stuck, nor answered twice.

use contract::HitlId;
use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use strict_provider::Reply;

use crate::support::calls::{message, with};
use crate::support::form::HITL_REQUEST;
use crate::support::http::ask;
use crate::support::model::{Act as _, question, write};
use crate::support::turn::{assert_whole, completed, errored, of_kind, phases};
use crate::support::{Event, LoneEngine, Rig, assert_fields, eventually};

/// The request of an event as the list of those pending must show it.
fn entry(request: &Event) -> Value {
    let field = |name: &str| request.data[name].clone();
    json!({
        "request_id": field("request_id"),
        "task_id": field("task_id"),
        "kind": field("kind"),
        "question": field("question"),
        "created_at": field("created_at"),
    })
}

/// An engine whose agent waits for leave to write `notes.txt`, and what was seen until then.
async fn waiting() -> (Rig, Vec<Event>, Event) {
    let calls = Reply::new().thinking("I write.").writes("notes.txt");
    let rig = Rig::new([calls, Reply::of_text("Done.")]).await;
    let body = with(message("task", "Write."), json!({"super_thinking": true}));
    let (stream, request) = rig.engine.until_asked(&body).await;
    (rig, stream.seen, request)
}

/// The person answers, and the turn ends well. `seen` is what a client had seen of it before.
async fn goes_on(rig: &Rig, seen: &[Event], request: &Event) {
    assert_eq!(rig.engine.pending().await, [entry(request)]);
    assert_eq!(rig.engine.task_status("task").await, "paused");
    assert_eq!(rig.calls(), 1, "the model is not asked again");
    let missed = rig.engine.replay("task", seen.last().unwrap().ts()).await;
    let answer = rig.engine.respond("task", "yes").await.ok("status:text request_id:hitl");
    assert_eq!(answer["request_id"], request.data["request_id"]);

    let events = [seen, &missed.rest().await].concat();
    assert_eq!(completed(&events), "Done.");
    assert_eq!(of_kind(&events, "hitl_request"), [request], "it was asked once");
    assert_eq!(of_kind(&events, "hitl_resolved").len(), 1);
    assert_eq!(rig.engine.replay("task", 0).await.rest().await, events);
    assert_eq!(rig.engine.pending().await, [Value::Null; 0]);
    assert_eq!(rig.calls(), 2);
    assert!(rig.place.workspace().join("notes.txt").exists());
}

#[tokio::test]
async fn what_is_pending_is_listed_over_all_tasks_the_oldest_first() {
    let rig = Rig::new([question("One?"), write("two.txt"), question("Three?")]).await;
    assert_eq!(rig.engine.get("/hitl/pending").await.body, json!({"pending": []}));
    let mut requests = Vec::new();
    for task in ["one", "two", "three"] {
        requests.push(rig.engine.until_asked(&message(task, "Begin.")).await);
    }
    let entries: Vec<Value> = requests.iter().map(|(_, request)| entry(request)).collect();
    assert_eq!(rig.engine.pending().await, entries);
    assert_eq!(entries[1]["kind"], "permission");

    rig.engine.respond("two", "no").await.ok("status:text request_id:hitl");
    assert_eq!(rig.engine.pending().await, [entries[0].clone(), entries[2].clone()]);
    rig.engine.respond("two", "no").await.refused(404, "HITL_NOT_PENDING");
    rig.engine.respond("three", "Three!").await.ok("status:text request_id:hitl");
    rig.engine.respond("one", "One!").await.ok("status:text request_id:hitl");
    for (stream, _) in requests {
        completed(&stream.rest().await);
    }
    assert_eq!(rig.engine.pending().await, [Value::Null; 0]);
}

#[tokio::test]
async fn where_nothing_is_pending_there_is_nothing_to_answer() {
    let (rig, seen, request) = waiting().await;
    rig.engine.respond("unknown", "yes").await.refused(404, "HITL_NOT_PENDING");
    rig.engine.tell("other", "Hello!").await;
    rig.engine.respond("other", "yes").await.refused(404, "HITL_NOT_PENDING");
    // The story's model has said "Done." to the other task.
    rig.provider.enqueue(Reply::of_text("Done."));

    let other = HitlId::new().to_string();
    for id in [other.as_str(), "nonsense", ""] {
        let body = json!({"task_id": "task", "answer": "yes", "request_id": id});
        rig.engine.respond_with(&body).await.refused(404, "HITL_NOT_PENDING");
    }
    assert_eq!(rig.engine.pending().await, [entry(&request)]);
    let body = json!({"task_id": "task", "answer": "yes", "request_id": request.data["request_id"]});
    rig.engine.respond_with(&body).await.ok("status:text request_id:hitl");
    let events =
        [seen.clone(), rig.engine.replay("task", seen.last().unwrap().ts()).await.rest().await].concat();
    completed(&events);
    rig.engine.respond_with(&body).await.refused(404, "HITL_NOT_PENDING");
}

#[tokio::test]
async fn lesson_e03_of_many_answers_at_once_one_counts() {
    let rig = Rig::new([question("Which?"), Reply::of_text("Done.")]).await;
    let (stream, _) = rig.engine.until_asked(&message("task", "Begin.")).await;
    let words: Vec<String> = (0..10).map(|number| format!("Pear number {number}.")).collect();
    let answers = join_all(words.iter().map(|words| rig.engine.respond("task", words))).await;
    let won: Vec<&String> = words
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| answer.status == 200)
        .map(|(words, _)| words)
        .collect();
    assert_eq!(won.len(), 1, "{won:?}");
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        answer.refused(404, "HITL_NOT_PENDING");
    }
    let events = stream.rest().await;
    assert_eq!((completed(&events), rig.calls()), ("Done.", 2));
    let resolved = of_kind(&events, "hitl_resolved");
    assert_eq!((resolved.len(), &resolved[0].data["answer"]), (1, &json!(won[0])));
    rig.told().has(&[won[0]]);
    assert_eq!(rig.told().0.matches("Pear number ").count(), 1);
}

#[tokio::test]
async fn lesson_e03_a_client_that_comes_later_sees_what_is_asked_and_what_follows() {
    let (rig, seen, request) = waiting().await;
    let mut late = rig.engine.replay("task", 0).await;
    assert_eq!(late.asked().await, request);
    assert_eq!(late.seen, seen);
    goes_on(&rig, &seen, &request).await;
    completed(&late.rest().await);
}

#[tokio::test]
async fn lesson_e03_what_is_pending_outlives_the_death_of_the_engine() {
    let (rig, seen, request) = waiting().await;
    let rig = rig.kill_and_start().await;
    goes_on(&rig, &seen, &request).await;
}

#[tokio::test]
async fn lesson_e03_what_is_pending_outlives_the_end_of_the_engine() {
    let rig = Rig::new([Reply::new().writes("notes.txt"), Reply::of_text("Done.")]).await;
    let (stream, request) = rig.engine.until_asked(&message("task", "Write.")).await;
    // Ends with 0, or this fails.
    let rig = rig.stop_and_start().await;
    let seen = stream.rest().await;
    goes_on(&rig, &seen, &request).await;
}

#[tokio::test]
async fn a_turn_that_waits_is_not_given_up_however_often_the_engine_starts() {
    let (mut rig, seen, request) = waiting().await;
    for _ in 0..10 {
        rig = rig.kill_and_start().await;
        assert_eq!(rig.engine.pending().await, [entry(&request)]);
    }
    goes_on(&rig, &seen, &request).await;
}

#[tokio::test]
async fn lesson_e03_an_answer_outlives_the_death_of_the_engine() {
    let rig = Rig::new([question("Which colour?"), Reply::of_text("Green, then.")]).await;
    let (stream, _) = rig.engine.until_asked(&message("task", "Paint.")).await;
    rig.engine.respond("task", "The green one.").await.ok("status:text request_id:hitl");
    let rig = rig.kill_and_start().await;
    drop(stream);
    let events = rig.engine.replay("task", 0).await.rest().await;
    completed(&events);
    assert_eq!(of_kind(&events, "hitl_request").len(), 1);
    assert_eq!(of_kind(&events, "hitl_resolved").len(), 1);
    rig.told().has(&["Paint.", "The green one."]);
    rig.engine.respond("task", "The red one.").await.refused(404, "HITL_NOT_PENDING");
}

/// An engine on which a person has a second to answer, and the agent asks.
async fn hurried() -> (Rig, Event) {
    let short = |place: LoneEngine| place.with("CHANNEL_STATE_TTL_HITL", "1");
    let rig = Rig::of("anthropic", [Reply::new().thinking("I write.").writes("notes.txt")], short).await;
    let (_, request) =
        rig.engine.until_asked(&with(message("task", "Write."), json!({"super_thinking": true}))).await;
    (rig, request)
}

/// The turn ends because nobody answered, and the task goes on.
async fn expires(rig: &Rig, request: &Event) {
    let events = rig.engine.replay("task", 0).await.rest().await;
    assert_eq!(errored(&events)["code"], "HITL_EXPIRED");
    assert_eq!(of_kind(&events, "hitl_request"), [request]);
    assert_eq!(of_kind(&events, "hitl_resolved").len(), 0);
    assert_eq!(rig.engine.pending().await, [Value::Null; 0]);
    rig.engine.respond("task", "yes").await.refused(404, "HITL_NOT_PENDING");
    assert!(!rig.place.workspace().join("notes.txt").exists());
    assert_eq!((rig.engine.task_status("task").await.as_str(), rig.calls()), ("idle", 1));
    rig.engine.tell_with(&with(message("task", "Go on."), json!({"super_thinking": true}))).await;
    rig.told().has(&["Go on."]);
}

#[tokio::test]
async fn lesson_e03_a_request_that_nobody_answers_ends_its_turn() {
    let (rig, request) = hurried().await;
    expires(&rig, &request).await;
}

#[tokio::test]
async fn lesson_e03_a_request_that_nobody_answers_ends_its_turn_across_a_restart() {
    let (rig, request) = hurried().await;
    let rig = rig.kill_and_start().await;
    expires(&rig, &request).await;
}

#[tokio::test]
async fn an_answer_in_time_leaves_the_turn_alone() {
    let ready = |place: LoneEngine| place.with("CHANNEL_STATE_TTL_HITL", "90m");
    let rig = Rig::of("anthropic", [write("notes.txt"), Reply::of_text("Done.")], ready).await;
    let (stream, _) = rig.engine.until_asked(&message("task", "Write.")).await;
    rig.engine.respond("task", "yes").await.ok("status:text request_id:hitl");
    let events = stream.rest().await;
    assert_eq!(phases(&events), ["started", "completed"]);
    assert_whole(&events);
}

#[tokio::test]
async fn only_who_has_the_key_sees_and_answers() {
    let (rig, seen, request) = waiting().await;
    assert_fields(&rig.engine.pending().await[0], HITL_REQUEST);
    let mut stranger = rig.engine.clone();
    stranger.key = "sk-svc-wrong".to_owned();
    stranger.get("/hitl/pending").await.refused(401, "INVALID_ENGINE_KEY");
    stranger.get("/hitl/grants").await.refused(401, "INVALID_ENGINE_KEY");
    stranger.respond("task", "yes").await.refused(401, "INVALID_ENGINE_KEY");
    let get = rig.engine.request(Method::GET, "/hitl/respond");
    ask(get).await.refused(405, "METHOD_NOT_ALLOWED");
    goes_on(&rig, &seen, &request).await;
}

#[tokio::test]
async fn an_answer_to_a_turn_that_cannot_be_read_just_now_is_asked_for_again() {
    let rig = Rig::new([question("Which colour?"), Reply::of_text("Green, then.")]).await;
    let (stream, _) = rig.engine.until_asked(&message("task", "Paint it.")).await;
    let brain = rusqlite::Connection::open(rig.place.brain()).unwrap();
    brain
        .execute_batch("CREATE TABLE kept AS SELECT step, body FROM steps; UPDATE steps SET body = 'torn'")
        .unwrap();
    let answer = rig.engine.respond("task", "Green.").await;
    assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    answer.refused(503, "OVERLOADED");
    assert_eq!(rig.engine.pending().await.len(), 1, "it still waits");
    brain
        .execute_batch(
            "UPDATE steps SET body = (SELECT body FROM kept WHERE kept.step = steps.step); DROP TABLE kept",
        )
        .unwrap();
    eventually("the answer is taken", async || {
        (rig.engine.respond("task", "Green.").await.status == 200).then_some(())
    })
    .await;
    completed(&stream.rest().await);
}
