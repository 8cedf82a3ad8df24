//! Story 17 (lesson e03): a request that awaits a person is neither lost, nor stuck, nor answered twice.

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

/// The request of an event as the list of pending requests must show it.
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

/// An engine whose agent awaits approval to write `notes.txt`, the events so far, and the request.
async fn fixture_awaiting_permission() -> (EngineFixture, Vec<Event>, Event) {
    let calls = Reply::new().thinking("I write.").write_file("notes.txt");
    let fixture = EngineFixture::new([calls, Reply::from_text("Done.")]).await;
    let body = with_fields(direct_message("task", "Write."), json!({"super_thinking": true}));
    let (stream, request) = fixture.engine.run_until_hitl_request(&body).await;
    (fixture, stream.received, request)
}

/// Answers the request and asserts that the turn completes. `seen` are the events that the client had received
/// before.
async fn answer_and_complete(fixture: &EngineFixture, seen: &[Event], request: &Event) {
    assert_eq!(fixture.engine.pending().await, [pending_entry(request)]);
    assert_eq!(fixture.engine.task_status("task").await, "paused");
    assert_eq!(fixture.model_calls(), 1, "the model is not asked again");
    let missed = fixture.engine.replay("task", seen.last().unwrap().ts()).await;
    let answer = fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    assert_eq!(answer["request_id"], request.data["request_id"]);

    let events = [seen, &missed.collect().await].concat();
    assert_eq!(assert_completed(&events), "Done.");
    assert_eq!(of_kind(&events, "hitl_request"), [request], "the request was made once");
    assert_eq!(of_kind(&events, "hitl_resolved").len(), 1);
    assert_eq!(fixture.engine.replay("task", 0).await.collect().await, events);
    assert_eq!(fixture.engine.pending().await, [Value::Null; 0]);
    assert_eq!(fixture.model_calls(), 2);
    assert!(fixture.setup.workspace().join("notes.txt").exists());
}

#[tokio::test]
async fn what_is_pending_is_listed_over_all_tasks_the_oldest_first() {
    let fixture =
        EngineFixture::new([ask_user_reply("One?"), write_file_reply("two.txt"), ask_user_reply("Three?")])
            .await;
    assert_eq!(fixture.engine.get("/hitl/pending").await.body, json!({"pending": []}));
    let mut requests = Vec::new();
    for task in ["one", "two", "three"] {
        requests.push(fixture.engine.run_until_hitl_request(&direct_message(task, "Begin.")).await);
    }
    let entries: Vec<Value> = requests.iter().map(|(_, request)| pending_entry(request)).collect();
    assert_eq!(fixture.engine.pending().await, entries);
    assert_eq!(entries[1]["kind"], "permission");

    fixture.engine.respond("two", "no").await.assert_ok("status:text request_id:hitl");
    assert_eq!(fixture.engine.pending().await, [entries[0].clone(), entries[2].clone()]);
    fixture.engine.respond("two", "no").await.assert_error(404, "HITL_NOT_PENDING");
    fixture.engine.respond("three", "Three!").await.assert_ok("status:text request_id:hitl");
    fixture.engine.respond("one", "One!").await.assert_ok("status:text request_id:hitl");
    for (stream, _) in requests {
        assert_completed(&stream.collect().await);
    }
    assert_eq!(fixture.engine.pending().await, [Value::Null; 0]);
}

#[tokio::test]
async fn where_nothing_is_pending_there_is_nothing_to_answer() {
    let (fixture, seen, request) = fixture_awaiting_permission().await;
    fixture.engine.respond("unknown", "yes").await.assert_error(404, "HITL_NOT_PENDING");
    fixture.engine.run_turn("other", "Hello!").await;
    fixture.engine.respond("other", "yes").await.assert_error(404, "HITL_NOT_PENDING");
    // The other task has used the model's "Done.".
    fixture.provider.enqueue(Reply::from_text("Done."));

    let other = HitlId::new().to_string();
    for id in [other.as_str(), "nonsense", ""] {
        let body = json!({"task_id": "task", "answer": "yes", "request_id": id});
        fixture.engine.respond_with(&body).await.assert_error(404, "HITL_NOT_PENDING");
    }
    assert_eq!(fixture.engine.pending().await, [pending_entry(&request)]);
    let body = json!({"task_id": "task", "answer": "yes", "request_id": request.data["request_id"]});
    fixture.engine.respond_with(&body).await.assert_ok("status:text request_id:hitl");
    let events =
        [seen.clone(), fixture.engine.replay("task", seen.last().unwrap().ts()).await.collect().await]
            .concat();
    assert_completed(&events);
    fixture.engine.respond_with(&body).await.assert_error(404, "HITL_NOT_PENDING");
}

#[tokio::test]
async fn regression_e03_of_many_answers_at_once_one_counts() {
    let fixture = EngineFixture::new([ask_user_reply("Which?"), Reply::from_text("Done.")]).await;
    let (stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "Begin.")).await;
    let words: Vec<String> = (0..10).map(|number| format!("Pear number {number}.")).collect();
    let answers = join_all(words.iter().map(|words| fixture.engine.respond("task", words))).await;
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
    assert_eq!((assert_completed(&events), fixture.model_calls()), ("Done.", 2));
    let resolved = of_kind(&events, "hitl_resolved");
    assert_eq!((resolved.len(), &resolved[0].data["answer"]), (1, &json!(won[0])));
    fixture.last_messages().assert_contains(&[won[0]]);
    assert_eq!(fixture.last_messages().0.matches("Pear number ").count(), 1);
}

#[tokio::test]
async fn regression_e03_a_client_that_comes_later_sees_what_is_asked_and_what_follows() {
    let (fixture, seen, request) = fixture_awaiting_permission().await;
    let mut late = fixture.engine.replay("task", 0).await;
    assert_eq!(late.next_hitl_request().await, request);
    assert_eq!(late.received, seen);
    answer_and_complete(&fixture, &seen, &request).await;
    assert_completed(&late.collect().await);
}

#[tokio::test]
async fn regression_e03_what_is_pending_outlives_the_death_of_the_engine() {
    let (fixture, seen, request) = fixture_awaiting_permission().await;
    let fixture = fixture.kill_and_start().await;
    answer_and_complete(&fixture, &seen, &request).await;
}

#[tokio::test]
async fn regression_e03_what_is_pending_outlives_the_end_of_the_engine() {
    let fixture = EngineFixture::new([Reply::new().write_file("notes.txt"), Reply::from_text("Done.")]).await;
    let (stream, request) = fixture.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
    // `stop_and_start` asserts the exit code 0.
    let fixture = fixture.stop_and_start().await;
    let seen = stream.collect().await;
    answer_and_complete(&fixture, &seen, &request).await;
}

#[tokio::test]
async fn a_turn_that_waits_is_not_given_up_however_often_the_engine_starts() {
    let (mut fixture, seen, request) = fixture_awaiting_permission().await;
    for _ in 0..10 {
        fixture = fixture.kill_and_start().await;
        assert_eq!(fixture.engine.pending().await, [pending_entry(&request)]);
    }
    answer_and_complete(&fixture, &seen, &request).await;
}

#[tokio::test]
async fn regression_e03_an_answer_outlives_the_death_of_the_engine() {
    let fixture =
        EngineFixture::new([ask_user_reply("Which colour?"), Reply::from_text("Green, then.")]).await;
    let (stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "Paint.")).await;
    fixture.engine.respond("task", "The green one.").await.assert_ok("status:text request_id:hitl");
    let fixture = fixture.kill_and_start().await;
    drop(stream);
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_completed(&events);
    assert_eq!(of_kind(&events, "hitl_request").len(), 1);
    assert_eq!(of_kind(&events, "hitl_resolved").len(), 1);
    fixture.last_messages().assert_contains(&["Paint.", "The green one."]);
    fixture.engine.respond("task", "The red one.").await.assert_error(404, "HITL_NOT_PENDING");
}

/// An engine on which a person has one second to answer, and whose agent has made a request.
async fn fixture_with_short_hitl_ttl() -> (EngineFixture, Event) {
    let configure = |setup: StandaloneEngine| setup.with_env("CHANNEL_STATE_TTL_HITL", "1");
    let fixture = EngineFixture::with_setup(
        "anthropic",
        [Reply::new().thinking("I write.").write_file("notes.txt")],
        configure,
    )
    .await;
    let (_, request) = fixture
        .engine
        .run_until_hitl_request(&with_fields(
            direct_message("task", "Write."),
            json!({"super_thinking": true}),
        ))
        .await;
    (fixture, request)
}

/// Asserts that the turn ends because nobody answered, and that the task continues.
async fn assert_expires(fixture: &EngineFixture, request: &Event) {
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!(assert_errored(&events)["code"], "HITL_EXPIRED");
    assert_eq!(of_kind(&events, "hitl_request"), [request]);
    assert_eq!(of_kind(&events, "hitl_resolved").len(), 0);
    assert_eq!(fixture.engine.pending().await, [Value::Null; 0]);
    fixture.engine.respond("task", "yes").await.assert_error(404, "HITL_NOT_PENDING");
    assert!(!fixture.setup.workspace().join("notes.txt").exists());
    assert_eq!((fixture.engine.task_status("task").await.as_str(), fixture.model_calls()), ("idle", 1));
    fixture
        .engine
        .run_turn_with(&with_fields(direct_message("task", "Go on."), json!({"super_thinking": true})))
        .await;
    fixture.last_messages().assert_contains(&["Go on."]);
}

#[tokio::test]
async fn regression_e03_a_request_that_nobody_answers_ends_its_turn() {
    let (fixture, request) = fixture_with_short_hitl_ttl().await;
    assert_expires(&fixture, &request).await;
}

#[tokio::test]
async fn regression_e03_a_request_that_nobody_answers_ends_its_turn_across_a_restart() {
    let (fixture, request) = fixture_with_short_hitl_ttl().await;
    let fixture = fixture.kill_and_start().await;
    assert_expires(&fixture, &request).await;
}

#[tokio::test]
async fn an_answer_in_time_leaves_the_turn_alone() {
    let configure = |setup: StandaloneEngine| setup.with_env("CHANNEL_STATE_TTL_HITL", "90m");
    let fixture = EngineFixture::with_setup(
        "anthropic",
        [write_file_reply("notes.txt"), Reply::from_text("Done.")],
        configure,
    )
    .await;
    let (stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
    fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    let events = stream.collect().await;
    assert_eq!(phases(&events), ["started", "completed"]);
    assert_complete_turn(&events);
}

#[tokio::test]
async fn only_who_has_the_key_sees_and_answers() {
    let (fixture, seen, request) = fixture_awaiting_permission().await;
    assert_fields(&fixture.engine.pending().await[0], HITL_REQUEST);
    let mut with_wrong_key = fixture.engine.clone();
    with_wrong_key.key = "sk-svc-wrong".to_owned();
    with_wrong_key.get("/hitl/pending").await.assert_error(401, "INVALID_ENGINE_KEY");
    with_wrong_key.get("/hitl/grants").await.assert_error(401, "INVALID_ENGINE_KEY");
    with_wrong_key.respond("task", "yes").await.assert_error(401, "INVALID_ENGINE_KEY");
    let get = fixture.engine.request(Method::GET, "/hitl/respond");
    send(get).await.assert_error(405, "METHOD_NOT_ALLOWED");
    answer_and_complete(&fixture, &seen, &request).await;
}

#[tokio::test]
async fn an_answer_to_a_turn_that_cannot_be_read_just_now_is_asked_for_again() {
    let fixture =
        EngineFixture::new([ask_user_reply("Which colour?"), Reply::from_text("Green, then.")]).await;
    let (stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "Paint it.")).await;
    let brain = rusqlite::Connection::open(fixture.setup.brain()).unwrap();
    brain
        .execute_batch("CREATE TABLE kept AS SELECT step, body FROM steps; UPDATE steps SET body = 'torn'")
        .unwrap();
    let answer = fixture.engine.respond("task", "Green.").await;
    assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    answer.assert_error(503, "OVERLOADED");
    assert_eq!(fixture.engine.pending().await.len(), 1, "the request is still pending");
    brain
        .execute_batch(
            "UPDATE steps SET body = (SELECT body FROM kept WHERE kept.step = steps.step); DROP TABLE kept",
        )
        .unwrap();
    eventually("the answer is accepted", async || {
        (fixture.engine.respond("task", "Green.").await.status == 200).then_some(())
    })
    .await;
    assert_completed(&stream.collect().await);
}
