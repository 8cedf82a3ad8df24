//! Learning: a correction applies from the next turn on, and becomes a lesson that survives a kill of the engine.

use mock_llm::{CapturedRequest, Gate, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_fixture::wait_gate_reached;
use crate::support::http::send;
use crate::support::turn::assert_completed;
use crate::support::{EngineFixture, assert_fields, eventually};

pub(crate) const QUESTION: &str = "What is the capital of Australia?";
const FEEDBACK: &str = "status:text feedback_id:text";
const BATCH: &str = "status:text batch_id:text trajectory_count:int";

/// A mock model that follows corrections, drafts lessons and passes every evaluation.
pub(crate) fn learning_model(request: &CapturedRequest) -> Reply {
    let system = request.body["system"].to_string();
    let messages = request.body["messages"].to_string();
    if system.contains("into a lesson") {
        return Reply::from_text(r#"{"lesson": "The capital of Australia is Canberra.", "merges": null}"#);
    }
    if system.contains("You judge whether") {
        return Reply::from_text(r#"{"passed": true, "reason": "It is so."}"#);
    }
    let last = request.body["messages"].as_array().unwrap().last().unwrap()["content"].to_string();
    Reply::from_text(match (last.contains("Australia?"), messages.contains("Canberra")) {
        (true, true) => "Canberra.",
        (true, false) => "Sydney.",
        _ => "As ever.",
    })
}

async fn lessons(fixture: &EngineFixture) -> Vec<Value> {
    let answer =
        send(fixture.engine.request(Method::GET, "/memory/lessons")).await.assert_ok("lessons:array");
    answer["lessons"].as_array().unwrap().clone()
}

async fn run_turn_text(fixture: &EngineFixture, task: &str, message: &str) -> String {
    assert_completed(&fixture.engine.run_turn(task, message).await).to_owned()
}

async fn correct(fixture: &EngineFixture, task: &str, text: &str) {
    let body = json!({"task_id": task, "feedback_type": "correction", "correction_text": text});
    let answer = fixture.engine.post("/feedback", &body).await.assert_ok(FEEDBACK);
    assert_eq!(answer["status"], "recorded");
    assert!(answer["feedback_id"].as_str().unwrap().starts_with("fb-"), "{answer}");
}

#[tokio::test]
async fn feedback_is_recorded_by_its_rules_and_a_correction_holds_from_the_next_turn_on() {
    let fixture = EngineFixture::new([]).await;
    fixture.provider.set_responder(learning_model);
    assert_eq!(run_turn_text(&fixture, "task", QUESTION).await, "Sydney.");
    for body in [
        json!({"task_id": "task", "feedback_type": "rating", "rating": 2}),
        json!({"task_id": "task", "feedback_type": "rating"}),
        json!({"task_id": "task", "feedback_type": "error_report", "comment": "Wrong."}),
    ] {
        fixture.engine.post("/feedback", &body).await.assert_ok(FEEDBACK);
    }
    assert_eq!(run_turn_text(&fixture, "task", QUESTION).await, "Sydney.", "a rating changes nothing");
    for body in [
        json!({"task_id": "task", "feedback_type": "correction"}),
        json!({"task_id": "task", "feedback_type": "correction", "correction_text": "  "}),
        json!({"task_id": "task", "feedback_type": "rating", "rating": 6}),
        json!({"task_id": "task", "feedback_type": "applause"}),
        json!({"feedback_type": "rating"}),
    ] {
        fixture.engine.post("/feedback", &body).await.assert_error(400, "INVALID_REQUEST");
    }
    let unknown = json!({"task_id": "nobody", "feedback_type": "rating"});
    fixture.engine.post("/feedback", &unknown).await.assert_error(404, "TASK_NOT_FOUND");

    correct(&fixture, "task", "It is Canberra.").await;
    assert_eq!(run_turn_text(&fixture, "task", QUESTION).await, "Canberra.");
    fixture.last_messages().assert_contains(&["What the user taught you", "It is Canberra.", QUESTION]);
    assert_eq!(run_turn_text(&fixture, "another", QUESTION).await, "Canberra.");
    fixture.last_messages().assert_contains(&["What the user taught you", "It is Canberra.", QUESTION]);
}

#[tokio::test]
async fn a_batch_killed_in_its_middle_ends_once_and_its_lesson_is_listed_and_undone() {
    let fixture = EngineFixture::new([]).await;
    fixture.provider.set_responder(learning_model);
    assert_eq!(run_turn_text(&fixture, "song", "Sing me a song.").await, "As ever.");
    assert_eq!(run_turn_text(&fixture, "task", QUESTION).await, "Sydney.");
    correct(&fixture, "task", "It is Canberra.").await;
    let gate = Gate::new();
    let held = gate.clone();
    fixture.provider.set_responder(move |request| match request.body["system"].to_string() {
        system if system.contains("You judge whether") => learning_model(request).hold(0, &held),
        _ => learning_model(request),
    });
    let started = fixture.engine.post("/admin/lc/trigger", &json!({})).await.assert_ok(BATCH);
    assert_eq!((&started["status"], &started["trajectory_count"]), (&json!("started"), &json!(2)));
    wait_gate_reached(&gate).await;
    let quiesced = fixture.engine.control("quiesce", json!({})).await.assert_ok("result:object");
    assert_eq!(quiesced["result"]["quiesced"], false);
    let again = fixture.engine.post("/admin/lc/trigger", &json!({})).await.assert_ok(BATCH);
    assert_eq!(again, started, "only one batch runs at a time");

    fixture.provider.set_responder(learning_model);
    let fixture = fixture.kill_and_start().await;
    let learned = eventually("the batch has ended", async || {
        let learned = lessons(&fixture).await;
        (!learned.is_empty()).then_some(learned)
    })
    .await;
    assert_eq!(learned.len(), 1);
    assert_fields(&learned[0], "id:text content:text evidence:object created_at:time");
    let evidence = &learned[0]["evidence"];
    assert_fields(evidence, "batch_id:text corrections:array verdicts:array");
    assert_eq!(evidence["batch_id"], started["batch_id"]);
    assert_eq!(evidence["corrections"][0]["correction_text"], "It is Canberra.");
    let checks: Vec<(&Value, &Value)> = evidence["verdicts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|verdict| (&verdict["check"], &verdict["passed"]))
        .collect();
    assert_eq!(checks, [(&json!("corrected"), &json!(true)), (&json!("unharmed"), &json!(true))]);
    assert_eq!(run_turn_text(&fixture, "new", QUESTION).await, "Canberra.");
    fixture
        .last_messages()
        .assert_contains(&["The capital of Australia is Canberra."])
        .assert_lacks(&["It is Canberra."]);

    let path = format!("/memory/lessons/{}", learned[0]["id"].as_str().unwrap());
    let deleted = send(fixture.engine.request(Method::DELETE, &path)).await.assert_ok("status:text");
    assert_eq!(deleted["status"], "deleted");
    send(fixture.engine.request(Method::DELETE, &path)).await.assert_error(404, "NOT_FOUND");
    assert_eq!(lessons(&fixture).await, Vec::<Value>::new());
    assert_eq!(run_turn_text(&fixture, "newer", QUESTION).await, "Canberra.", "the correction still applies");
    fixture
        .last_messages()
        .assert_contains(&["It is Canberra."])
        .assert_lacks(&["The capital of Australia is Canberra."]);
}
