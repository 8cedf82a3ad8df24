//! Documents that are no cassettes, turns that have none, and cassettes that are edited by hand.

use std::fmt::Write as _;

use mock_llm::{Reply, Wire};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::cassettes::turn_of;
use crate::support::engine_calls::{direct_message, message_id, with_fields};
use crate::support::engine_fixture::memory_set_reply;
use crate::support::http::send;
use crate::support::{EngineFixture, HttpResponse};

const MODELS: [&str; Wire::COUNT] = ["anthropic", "openai", "responses", "gemini", "ollama"];

async fn fixture_with_cassette() -> (EngineFixture, Value) {
    let replies = [memory_set_reply("a", "b"), Reply::from_text("Done.")];
    let fixture = EngineFixture::with_models(&MODELS, replies, |setup| setup).await;
    let events = fixture.engine.run_turn("task", "Go.").await;
    let cassette = fixture.cassette("task", turn_of(&events)).await;
    (fixture, cassette)
}

async fn post(fixture: &EngineFixture, body: String) -> HttpResponse {
    let request = fixture.engine.request(Method::POST, "/cassettes/run");
    send(request.header("content-type", "application/json").body(body)).await
}

#[tokio::test]
async fn what_is_no_cassette_is_refused_with_its_reason() {
    let (fixture, cassette) = fixture_with_cassette().await;
    let calls = fixture.model_calls();
    let with = |pointer: &str, value: Value| {
        let mut changed = cassette.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        changed
    };
    for (document, expected) in [
        (json!({}), "`format` must be `roundhouse.cassette`"),
        (json!("cassette"), "cassette"),
        (with("/version", json!(2)), "its `version` is 2"),
        (with("/format", json!("mixtape")), "`format`"),
        (with("/prompt", json!({"system": "s"})), "messages"),
        (with("/prompt/messages", json!([])), "`prompt.messages`"),
        (with("/steps", json!(vec![json!({"model": "m"}); 1_001])), "at most 1000 `steps`"),
        (with("/steps/0/calls", json!(vec![cassette["steps"][0]["calls"][0].clone(); 4_001])), "`calls`"),
    ] {
        let message = fixture.refused_replay(&document, json!({})).await;
        assert!(message.contains("`cassette`") && message.contains(expected), "{expected}: {message}");
    }
    let text = json!({"cassette": cassette}).to_string();
    post(&fixture, text[..text.len() / 2].to_owned()).await.assert_error(400, "INVALID_REQUEST");
    post(&fixture, "{}".into()).await.assert_error(400, "INVALID_REQUEST");
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let inner = if open == "[" { "" } else { "1" };
        let deep = format!("{}{inner}{}", open.repeat(100_000), close.repeat(100_000));
        let mut body = String::new();
        let _ = write!(
            body,
            "{{\"cassette\": {{\"format\": \"roundhouse.cassette\", \"version\": 1, \"task_id\": \"t\", \"steps\": [{{\"model\": \"m\", \"calls\": [{{\"tool\": \"t\", \"input\": {deep}}}]}}]}}}}"
        );
        let answer = post(&fixture, body).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains("recursion"), "{}", answer.body);
    }
    let huge = with("/prompt/system", Value::from("x".repeat(25 << 20)));
    let message = fixture.refused_replay(&huge, json!({})).await;
    assert!(message.contains("at most 25165824 bytes"), "{message}");
    let answer = post(&fixture, format!("{{\"cassette\": \"{}\"}}", "x".repeat(100 << 20))).await;
    answer.assert_error(413, "PAYLOAD_TOO_LARGE");
    assert_eq!(fixture.model_calls(), calls, "no model was called");
    assert_eq!(fixture.engine.tasks("").await.1, 1, "the engine goes on");
}

#[tokio::test]
async fn what_people_have_edited_is_made_valid_for_every_vendor() {
    let (fixture, mut cassette) = fixture_with_cassette().await;
    cassette["prompt"]["messages"] = json!([
        {"role": "assistant", "content": [{"type": "tool_use", "id": "é 1", "tool": "no such.tool", "input": 7}]},
        {"role": "tool", "results": [{"id": "other", "text": "lost", "is_error": true}]},
        {"role": "assistant", "content": []},
        {"role": "user", "content": [{"type": "text", "text": "Wohin?"}]},
    ]);
    cassette["prompt"]["tools"] = json!([
        {"name": "ort suchen", "input_schema": {"type": "object"}}, {"name": "ort suchen", "input_schema": true},
    ]);
    cassette["steps"] =
        json!([{"model": "m", "calls": [{"tool": "ort suchen", "input": {}, "result": {"text": "Bonn"}}]}]);
    for model in MODELS {
        fixture.provider.enqueue(Reply::from_text("Nach Bonn."));
        let report = fixture.replay(&cassette, json!({"model": model})).await;
        assert_eq!(
            (&report["end"]["state"], &report["text"]["run"]),
            (&json!("completed"), &json!("Nach Bonn.")),
            "{model}"
        );
        assert_eq!(report["missing_calls"][0]["tool"], "ort suchen");
    }
    fixture.provider.assert_no_refusals();
}

#[tokio::test]
async fn turns_that_are_not_there_have_no_cassette() {
    let (fixture, cassette) = fixture_with_cassette().await;
    let turn = cassette["turn_id"].as_str().unwrap();
    let get = async |task: &str, turn: &str| {
        fixture.engine.get(&format!("/tasks/{task}/turns/{turn}/cassette")).await
    };
    get("other", turn).await.assert_error(404, "TASK_NOT_FOUND");
    for unknown in ["turn", &api::TurnId::new().to_string()] {
        get("task", unknown).await.assert_error(404, "TURN_NOT_FOUND");
        let answer = fixture.engine.rpc("cassette.export", json!({"turn_id": unknown})).await;
        answer.assert_flat_error(400, "INVALID_REQUEST");
    }
    fixture.engine.rpc("cassette.eject", json!({})).await.assert_flat_error(404, "METHOD_NOT_FOUND");
    // A turn that an edit has taken back is not shown any more, and neither is one of a deleted task.
    fixture.provider.enqueue(Reply::from_text("Two."));
    let events = fixture.engine.replay("task", 0).await.collect().await;
    let edit = json!({"edit_message_id": message_id(&events)});
    let edited = fixture.engine.run_turn_with(&with_fields(direct_message("task", "Else."), edit)).await;
    get("task", turn).await.assert_error(404, "TURN_NOT_FOUND");
    let cassette = fixture.cassette("task", turn_of(&edited)).await;
    assert!(!cassette.to_string().contains("Go."), "{cassette}");
    fixture.engine.delete("/tasks/task").await.assert_ok("status:text");
    get("task", turn_of(&edited)).await.assert_error(404, "TASK_NOT_FOUND");
}
