//! Tests of feedback, learning batches and lessons over HTTP.

use serde_json::{Value, json};
use testkit::with_deadline;

use super::app::{TestApp, expect_error};

async fn post(app: &TestApp, path: &str, body: Value) -> reqwest::Response {
    with_deadline(app.request("POST", path).body(body.to_string()).send()).await.unwrap()
}

async fn get(app: &TestApp, path: &str) -> Value {
    with_deadline(with_deadline(app.request("GET", path).send()).await.unwrap().json()).await.unwrap()
}

fn has_id(value: &Value, prefix: &str) -> bool {
    value.as_str().is_some_and(|id| id.starts_with(prefix) && id.len() == prefix.len() + 32)
}

#[tokio::test]
async fn feedback_of_each_type_is_recorded_and_what_is_none_is_refused() {
    let app = TestApp::start().await;
    app.run_turn("t", "Hello!").await;
    for body in [
        json!({"feedback_type": "correction", "correction_text": "Say good morning."}),
        json!({"feedback_type": "correction", "correction_text": "x".repeat(8_192), "rating": 2, "comment": "c"}),
        json!({"feedback_type": "rating"}),
        json!({"feedback_type": "rating", "rating": 5}),
        json!({"feedback_type": "error_report"}),
        json!({"feedback_type": "error_report", "comment": "It said nothing."}),
    ] {
        let mut body = body;
        body["task_id"] = "t".into();
        let response = post(&app, "/feedback", body.clone()).await;
        assert_eq!(response.status(), 200, "{body}");
        let answer: Value = with_deadline(response.json()).await.unwrap();
        assert_eq!((answer["status"].as_str(), answer.as_object().unwrap().len()), (Some("recorded"), 2));
        assert!(has_id(&answer["feedback_id"], "fb-"), "{answer}");
    }
    for (body, named) in [
        (json!({}), "task_id"),
        (json!({"task_id": "t"}), "feedback_type"),
        (json!({"task_id": "t", "feedback_type": "praise"}), "feedback_type"),
        (json!({"task_id": "t", "feedback_type": "correction"}), "`correction_text`"),
        (
            json!({"task_id": "t", "feedback_type": "correction", "correction_text": " \n"}),
            "`correction_text`",
        ),
        (
            json!({"task_id": "t", "feedback_type": "correction", "correction_text": "x".repeat(8_193)}),
            "`correction_text`",
        ),
        (json!({"task_id": "t", "feedback_type": "rating", "rating": 0}), "rating"),
        (json!({"task_id": "t", "feedback_type": "rating", "rating": 6}), "rating"),
        (json!({"task_id": "t", "feedback_type": "error_report", "comment": "x".repeat(8_193)}), "`comment`"),
    ] {
        let message = expect_error(post(&app, "/feedback", body.clone()).await, 400, "INVALID_REQUEST").await;
        assert!(message.contains(named), "{body}: {message}");
    }
    let unknown = json!({"task_id": "u", "feedback_type": "rating"});
    expect_error(post(&app, "/feedback", unknown.clone()).await, 404, "TASK_NOT_FOUND").await;
    for (method, path) in [("POST", "/feedback"), ("POST", "/admin/lc/trigger"), ("GET", "/memory/lessons")] {
        let response = with_deadline(app.request_without_key(method, path).body(unknown.to_string()).send())
            .await
            .unwrap();
        expect_error(response, 401, "INVALID_ENGINE_KEY").await;
    }
    app.stop().await;
}

#[tokio::test]
async fn a_batch_is_started_and_lessons_are_listed_and_undone() {
    let app = TestApp::start().await;
    app.run_turn("t", "Hello!").await;
    let started: Value =
        with_deadline(post(&app, "/admin/lc/trigger", json!(null)).await.json()).await.unwrap();
    assert_eq!((&started["status"], &started["trajectory_count"]), (&json!("started"), &json!(1)));
    assert!(has_id(&started["batch_id"], "lc-"), "{started}");
    assert_eq!(get(&app, "/memory/lessons").await, json!({"lessons": []}));
    for id in ["mem_7", &api::MemoryId::new().to_string()] {
        let response =
            with_deadline(app.request("DELETE", &format!("/memory/lessons/{id}")).send()).await.unwrap();
        expect_error(response, 404, "NOT_FOUND").await;
    }
    app.stop().await;
}
