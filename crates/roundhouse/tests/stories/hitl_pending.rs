//! Story 17 (lesson e03): what waits for a person is neither lost, nor stuck, nor answered twice.

use api::HitlId;
use futures::future::join_all;
use mock_llm::Reply;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{ReplyExt as _, ask_user_reply, write_file_reply};
use crate::support::http::send;
use crate::support::schema::HITL_REQUEST;
use crate::support::turn::{assert_complete_turn, assert_completed, assert_errored, of_kind, phases};
use crate::support::{EngineFixture, Event, StandaloneEngine, assert_fields, eventually};

/// The request of an event as the list of those pending must show it.
fn pending_entry(request: &Event) -> Value {
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
async fn fixture_awaiting_permission() -> (EngineFixture, Vec<Event>, Event) {
    let calls = Reply::new().thinking("I write.").write_file("notes.txt");
    let rig = EngineFixture::new([calls, Reply::from_text("Done.")]).await;
    let body = with_fields(direct_message("task", "Write."), json!({"super_thinking": true}));
    let (stream, request) = rig.engine.run_until_hitl_request(&body).await;
    (rig, stream.received, request)
}

/// The person answers, and the turn ends well. `seen` is what a client had seen of it before.
async fn answer_and_complete(rig: &EngineFixture, seen: &[Event], request: &Event) {
    assert_eq!(rig.engine.pending().await, [pending_entry(request)]);
    assert_eq!(rig.engine.task_status("task").await, "paused");
    assert_eq!(rig.model_calls(), 1, "the model is not asked again");
    let missed = rig.engine.replay("task", seen.last().unwrap().ts()).await;
    let answer = rig.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    assert_eq!(answer["request_id"], request.data["request_id"]);

    let events = [seen, &missed.collect().await].concat();
    assert_eq!(assert_completed(&events), "Done.");
    assert_eq!(of_kind(&events, "hitl_request"), [request], "it was asked once");
    assert_eq!(of_kind(&events, "hitl_resolved").len(), 1);
    assert_eq!(rig.engine.replay("task", 0).await.collect().await, events);
    assert_eq!(rig.engine.pending().await, [Value::Null; 0]);
    assert_eq!(rig.model_calls(), 2);
    assert!(rig.setup.workspace().join("notes.txt").exists());
}

#[tokio::test]
async fn what_is_pending_is_listed_over_all_tasks_the_oldest_first() {
    let rig =
        EngineFixture::new([ask_user_reply("One?"), write_file_reply("two.txt"), ask_user_reply("Three?")])
            .await;
    assert_eq!(rig.engine.get("/hitl/pending").await.body, json!({"pending": []}));
    let mut requests = Vec::new();
    for task in ["one", "two", "three"] {
        requests.push(rig.engine.run_until_hitl_request(&direct_message(task, "Begin.")).await);
    }
    let entries: Vec<Value> = requests.iter().map(|(_, request)| pending_entry(request)).collect();
    assert_eq!(rig.engine.pending().await, entries);
    assert_eq!(entries[1]["kind"], "permission");

    rig.engine.respond("two", "no").await.assert_ok("status:text request_id:hitl");
    assert_eq!(rig.engine.pending().await, [entries[0].clone(), entries[2].clone()]);
    rig.engine.respond("two", "no").await.assert_error(404, "HITL_NOT_PENDING");
    rig.engine.respond("three", "Three!").await.assert_ok("status:text request_id:hitl");
    rig.engine.respond("one", "One!").await.assert_ok("status:text request_id:hitl");
    for (stream, _) in requests {
        assert_completed(&stream.collect().await);
    }
    assert_eq!(rig.engine.pending().await, [Value::Null; 0]);
}

#[tokio::test]
async fn where_nothing_is_pending_there_is_nothing_to_answer() {
    let (rig, seen, request) = fixture_awaiting_permission().await;
    rig.engine.respond("unknown", "yes").await.assert_error(404, "HITL_NOT_PENDING");
    rig.engine.run_turn("other", "Hello!").await;
    rig.engine.respond("other", "yes").await.assert_error(404, "HITL_NOT_PENDING");
    // The story's model has said "Done." to the other task.
    rig.provider.enqueue(Reply::from_text("Done."));

    let other = HitlId::new().to_string();
    for id in [other.as_str(), "nonsense", ""] {
        let body = json!({"task_id": "task", "answer": "yes", "request_id": id});
        rig.engine.respond_with(&body).await.assert_error(404, "HITL_NOT_PENDING");
    }
    assert_eq!(rig.engine.pending().await, [pending_entry(&request)]);
    let body = json!({"task_id": "task", "answer": "yes", "request_id": request.data["request_id"]});
    rig.engine.respond_with(&body).await.assert_ok("status:text request_id:hitl");
    let events =
        [seen.clone(), rig.engine.replay("task", seen.last().unwrap().ts()).await.collect().await].concat();
    assert_completed(&events);
    rig.engine.respond_with(&body).await.assert_error(404, "HITL_NOT_PENDING");
}

#[tokio::test]
async fn lesson_e03_of_many_answers_at_once_one_counts() {
    let rig = EngineFixture::new([ask_user_reply("Which?"), Reply::from_text("Done.")]).await;
    let (stream, _) = rig.engine.run_until_hitl_request(&direct_message("task", "Begin.")).await;
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
        answer.assert_error(404, "HITL_NOT_PENDING");
    }
    let events = stream.collect().await;
    assert_eq!((assert_completed(&events), rig.model_calls()), ("Done.", 2));
    let resolved = of_kind(&events, "hitl_resolved");
    assert_eq!((resolved.len(), &resolved[0].data["answer"]), (1, &json!(won[0])));
    rig.last_messages().assert_contains(&[won[0]]);
    assert_eq!(rig.last_messages().0.matches("Pear number ").count(), 1);
}

#[tokio::test]
async fn lesson_e03_a_client_that_comes_later_sees_what_is_asked_and_what_follows() {
    let (rig, seen, request) = fixture_awaiting_permission().await;
    let mut late = rig.engine.replay("task", 0).await;
    assert_eq!(late.next_hitl_request().await, request);
    assert_eq!(late.received, seen);
    answer_and_complete(&rig, &seen, &request).await;
    assert_completed(&late.collect().await);
}

#[tokio::test]
async fn lesson_e03_what_is_pending_outlives_the_death_of_the_engine() {
    let (rig, seen, request) = fixture_awaiting_permission().await;
    let rig = rig.kill_and_start().await;
    answer_and_complete(&rig, &seen, &request).await;
}

#[tokio::test]
async fn lesson_e03_what_is_pending_outlives_the_end_of_the_engine() {
    let rig = EngineFixture::new([Reply::new().write_file("notes.txt"), Reply::from_text("Done.")]).await;
    let (stream, request) = rig.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
    // Ends with 0, or this fails.
    let rig = rig.stop_and_start().await;
    let seen = stream.collect().await;
    answer_and_complete(&rig, &seen, &request).await;
}

#[tokio::test]
async fn a_turn_that_waits_is_not_given_up_however_often_the_engine_starts() {
    let (mut rig, seen, request) = fixture_awaiting_permission().await;
    for _ in 0..10 {
        rig = rig.kill_and_start().await;
        assert_eq!(rig.engine.pending().await, [pending_entry(&request)]);
    }
    answer_and_complete(&rig, &seen, &request).await;
}

#[tokio::test]
async fn lesson_e03_an_answer_outlives_the_death_of_the_engine() {
    let rig = EngineFixture::new([ask_user_reply("Which colour?"), Reply::from_text("Green, then.")]).await;
    let (stream, _) = rig.engine.run_until_hitl_request(&direct_message("task", "Paint.")).await;
    rig.engine.respond("task", "The green one.").await.assert_ok("status:text request_id:hitl");
    let rig = rig.kill_and_start().await;
    drop(stream);
    let events = rig.engine.replay("task", 0).await.collect().await;
    assert_completed(&events);
    assert_eq!(of_kind(&events, "hitl_request").len(), 1);
    assert_eq!(of_kind(&events, "hitl_resolved").len(), 1);
    rig.last_messages().assert_contains(&["Paint.", "The green one."]);
    rig.engine.respond("task", "The red one.").await.assert_error(404, "HITL_NOT_PENDING");
}

/// An engine on which a person has a second to answer, and the agent asks.
async fn fixture_with_short_hitl_ttl() -> (EngineFixture, Event) {
    let short = |place: StandaloneEngine| place.with_env("CHANNEL_STATE_TTL_HITL", "1");
    let rig = EngineFixture::with_setup(
        "anthropic",
        [Reply::new().thinking("I write.").write_file("notes.txt")],
        short,
    )
    .await;
    let (_, request) = rig
        .engine
        .run_until_hitl_request(&with_fields(
            direct_message("task", "Write."),
            json!({"super_thinking": true}),
        ))
        .await;
    (rig, request)
}

/// The turn ends because nobody answered, and the task goes on.
async fn assert_expires(rig: &EngineFixture, request: &Event) {
    let events = rig.engine.replay("task", 0).await.collect().await;
    assert_eq!(assert_errored(&events)["code"], "HITL_EXPIRED");
    assert_eq!(of_kind(&events, "hitl_request"), [request]);
    assert_eq!(of_kind(&events, "hitl_resolved").len(), 0);
    assert_eq!(rig.engine.pending().await, [Value::Null; 0]);
    rig.engine.respond("task", "yes").await.assert_error(404, "HITL_NOT_PENDING");
    assert!(!rig.setup.workspace().join("notes.txt").exists());
    assert_eq!((rig.engine.task_status("task").await.as_str(), rig.model_calls()), ("idle", 1));
    rig.engine
        .run_turn_with(&with_fields(direct_message("task", "Go on."), json!({"super_thinking": true})))
        .await;
    rig.last_messages().assert_contains(&["Go on."]);
}

#[tokio::test]
async fn lesson_e03_a_request_that_nobody_answers_ends_its_turn() {
    let (rig, request) = fixture_with_short_hitl_ttl().await;
    assert_expires(&rig, &request).await;
}

#[tokio::test]
async fn lesson_e03_a_request_that_nobody_answers_ends_its_turn_across_a_restart() {
    let (rig, request) = fixture_with_short_hitl_ttl().await;
    let rig = rig.kill_and_start().await;
    assert_expires(&rig, &request).await;
}

#[tokio::test]
async fn an_answer_in_time_leaves_the_turn_alone() {
    let ready = |place: StandaloneEngine| place.with_env("CHANNEL_STATE_TTL_HITL", "90m");
    let rig = EngineFixture::with_setup(
        "anthropic",
        [write_file_reply("notes.txt"), Reply::from_text("Done.")],
        ready,
    )
    .await;
    let (stream, _) = rig.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
    rig.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    let events = stream.collect().await;
    assert_eq!(phases(&events), ["started", "completed"]);
    assert_complete_turn(&events);
}

#[tokio::test]
async fn only_who_has_the_key_sees_and_answers() {
    let (rig, seen, request) = fixture_awaiting_permission().await;
    assert_fields(&rig.engine.pending().await[0], HITL_REQUEST);
    let mut stranger = rig.engine.clone();
    stranger.key = "sk-svc-wrong".to_owned();
    stranger.get("/hitl/pending").await.assert_error(401, "INVALID_ENGINE_KEY");
    stranger.get("/hitl/grants").await.assert_error(401, "INVALID_ENGINE_KEY");
    stranger.respond("task", "yes").await.assert_error(401, "INVALID_ENGINE_KEY");
    let get = rig.engine.request(Method::GET, "/hitl/respond");
    send(get).await.assert_error(405, "METHOD_NOT_ALLOWED");
    answer_and_complete(&rig, &seen, &request).await;
}

#[tokio::test]
async fn an_answer_to_a_turn_that_cannot_be_read_just_now_is_asked_for_again() {
    let rig = EngineFixture::new([ask_user_reply("Which colour?"), Reply::from_text("Green, then.")]).await;
    let (stream, _) = rig.engine.run_until_hitl_request(&direct_message("task", "Paint it.")).await;
    let brain = rusqlite::Connection::open(rig.setup.brain()).unwrap();
    brain
        .execute_batch("CREATE TABLE kept AS SELECT step, body FROM steps; UPDATE steps SET body = 'torn'")
        .unwrap();
    let answer = rig.engine.respond("task", "Green.").await;
    assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    answer.assert_error(503, "OVERLOADED");
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
    assert_completed(&stream.collect().await);
}
