//! Story 4: authentication of calls to an engine, and its handling of odd and invalid input.

use api::EngineKey;
use mock_llm::{Gate, MockProvider, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::http::{send, send_raw};
use crate::support::turn::assert_completed;
use crate::support::{Engine, EventStream, HttpResponse, StandaloneEngine, with_deadline};

/// A script that answers everything with one word.
const SHORT_SCRIPT: &str = "rules:\n  - when: ''\n    answers:\n      - text: Done.\n";

/// An engine whose turns are short.
fn short_turn_engine() -> StandaloneEngine {
    let setup = StandaloneEngine::new();
    let script = setup.test_env.path().join("script.yaml");
    std::fs::write(&script, SHORT_SCRIPT).unwrap();
    setup.with_env("LLM_SCRIPT_PATH", script.to_str().unwrap())
}

async fn call(engine: &Engine, head: &str, body: impl AsRef<[u8]>) -> HttpResponse {
    send_raw(&engine.url, head, &[("x-engine-key", &engine.key)], body.as_ref()).await
}

#[tokio::test]
async fn without_the_right_key_every_call_is_refused_before_anything_else() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    let unknown = EngineKey::generate().unwrap();
    let (longer, hash) = (format!("{}x", engine.key), &setup.variables["ENGINE_KEY_HASH"]);
    let too_long = vec![b' '; (32 << 20) + 1];
    for head in [
        "POST /execute",
        "GET /execute/replay",
        "GET /execute/replay?after=x",
        "GET /openapi.json",
        "GET /workspace",
        "GET /workspace/%2e%2e/brain.sqlite",
        "PUT /workspace/a",
        "DELETE /workspace/a?recursive=x",
        "PATCH /workspace-uploads/x",
        "DELETE /workspace-uploads/x",
        "GET /tasks/task/media",
        "GET /tasks/task/media/x",
    ] {
        let good = br#"{"message": "Hello!", "task_id": "task"}"#;
        for body in [b"".as_slice(), b"{", good] {
            send_raw(&engine.url, head, &[], body).await.assert_error(401, "INVALID_ENGINE_KEY");
            for key in [unknown.expose(), &longer, hash, "", "sk-svc-"] {
                let answer = send_raw(&engine.url, head, &[("x-engine-key", key)], body).await;
                answer.assert_error(401, "INVALID_ENGINE_KEY");
            }
            let answer = send_raw(&engine.url, head, &[("x-platform-key", &engine.key)], body).await;
            answer.assert_error(401, "INVALID_ENGINE_KEY");
        }
    }
    send_raw(&engine.url, "POST /execute", &[], &too_long).await.assert_error(401, "INVALID_ENGINE_KEY");
    send(engine.request(Method::GET, "/execute/replay")).await.assert_error(404, "TASK_NOT_FOUND");
}

#[tokio::test]
async fn health_needs_no_key_and_the_openapi_document_does() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    let health = engine.health().await;
    assert_eq!(health["status"], "ok");
    assert_eq!(
        health["subsystems"],
        json!({"database": "ok", "llm_provider": "ok", "asset_directory": "ok"})
    );
    let later = engine.health().await;
    assert!(later["uptime_seconds"].as_f64() > health["uptime_seconds"].as_f64());

    let document = send(engine.request(Method::GET, "/openapi.json")).await.body;
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    for (path, method) in [("/health", "get"), ("/execute", "post"), ("/execute/replay", "get")] {
        assert!(document["paths"][path][method]["responses"]["200"].is_object(), "{path} is not described");
    }
}

#[tokio::test]
async fn a_bad_message_is_refused_and_its_field_is_named() {
    let setup = short_turn_engine();
    let (_program, engine) = setup.start().await;
    let good = json!({"message": "Hello!", "task_id": "task"});
    let cases: Vec<(&str, Value)> = vec![
        ("message", json!(null)),
        ("message", json!(7)),
        ("message", json!("")),
        ("message", json!(["Hello!"])),
        ("task_id", json!(null)),
        ("task_id", json!(7)),
        ("task_id", json!("")),
        ("task_id", json!("x".repeat(1_025))),
        ("max_turns", json!(0)),
        ("max_turns", json!(-1)),
        ("max_turns", json!(1.5)),
        ("max_turns", json!("5")),
        ("direct", json!("yes")),
        ("super_thinking", json!(1)),
        ("media", json!("picture")),
        ("media", json!({})),
        ("edit_message_id", json!(7)),
        ("retry_message_id", json!(7)),
    ];
    for (field, value) in cases {
        let mut body = good.clone();
        body[field] = value;
        let answer = call(&engine, "POST /execute", body.to_string()).await;
        let message = answer.assert_error(400, "INVALID_REQUEST");
        assert!(message.contains(field), "no {field:?} in: {message}");
    }
    for field in ["message", "task_id"] {
        let mut body = good.clone();
        body.as_object_mut().unwrap().remove(field);
        let answer = call(&engine, "POST /execute", body.to_string()).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains(field));
    }
    let bodies: [&[u8]; 7] =
        [b"", b"{", b"[]", b"null", b"{} {}", b"nonsense", b"{\"message\": \"\xff\", \"task_id\": \"t\"}"];
    for body in bodies {
        call(&engine, "POST /execute", body).await.assert_error(400, "INVALID_REQUEST");
    }
    // None of them was a turn.
    send(engine.request(Method::GET, "/execute/replay")).await.assert_error(404, "TASK_NOT_FOUND");
}

#[tokio::test]
async fn optional_fields_may_be_null_and_unknown_ones_are_ignored() {
    let setup = short_turn_engine();
    let (_program, engine) = setup.start().await;
    let body = json!({
        "message": "Hello!", "task_id": "task", "media": null, "direct": null, "edit_message_id": null,
        "retry_message_id": null, "max_turns": null, "super_thinking": null, "colour": "green",
    });
    assert_eq!(assert_completed(&engine.execute_with(&body).await.collect().await), "Done.");
    let body = json!({"message": "Hello!", "task_id": "task", "media": [], "max_turns": 1, "direct": true});
    assert_eq!(assert_completed(&engine.execute_with(&body).await.collect().await), "Done.");
    let request =
        engine.request(Method::POST, "/execute").header("content-type", "text/plain").body(body.to_string());
    assert_eq!(assert_completed(&EventStream::open(request).await.collect().await), "Done.");
}

#[tokio::test]
async fn any_text_can_be_a_task() {
    let setup = short_turn_engine();
    let (_program, engine) = setup.start().await;
    for task in [" ", "a/b", "..", "🦀\n\0", "a?b#c&d=e", "\"}", &"x".repeat(1_024)] {
        let events = engine.execute(task, "Hello!").await.collect().await;
        assert_eq!(assert_completed(&events), "Done.");
        assert_eq!(events[0].data["task_id"], task);
        assert_eq!(engine.replay(task, 0).await.collect().await, events, "{task:?}");
    }
}

#[tokio::test]
async fn a_long_message_is_taken_and_one_over_the_limit_is_not() {
    let setup = short_turn_engine();
    let (_program, engine) = setup.start().await;
    let long = "word ".repeat(400_000);
    assert_eq!(assert_completed(&engine.execute("task", &long).await.collect().await), "Done.");
    let too_long = format!("{{}}{}", " ".repeat(32 << 20));
    call(&engine, "POST /execute", too_long).await.assert_error(413, "PAYLOAD_TOO_LARGE");
}

#[tokio::test]
async fn a_bad_replay_is_refused() {
    let setup = short_turn_engine();
    let (_program, engine) = setup.start().await;
    engine.execute("task", "Hello!").await.collect().await;
    for query in ["after=x", "after=-1", "after=1.5", "task_id="] {
        call(&engine, &format!("GET /execute/replay?{query}"), "").await.assert_error(400, "INVALID_REQUEST");
    }
}

#[tokio::test]
async fn no_path_and_no_method_leaves_the_envelope() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    for head in ["GET /", "GET /nothing", "POST /execute/nothing"] {
        call(&engine, head, "").await.assert_error(404, "NOT_FOUND");
    }
    for (head, allowed) in
        [("GET /execute", "POST"), ("POST /execute/replay", "GET"), ("DELETE /health", "GET")]
    {
        let answer = call(&engine, head, "").await;
        answer.assert_error(405, "METHOD_NOT_ALLOWED");
        let allow = answer.header("allow").expect("an Allow header");
        assert!(allow.split(',').any(|method| method.trim() == allowed), "{head}: {allow}");
    }
}

#[tokio::test]
async fn every_answer_names_its_request() {
    let setup = short_turn_engine();
    let (_program, engine) = setup.start().await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let traceparent = format!("00-{trace}-00f067aa0ba902b7-01");
    let body = r#"{"message": "Hello!", "task_id": "task"}"#;
    for (head, key) in [
        ("GET /health", ""),
        ("POST /execute", engine.key.as_str()),
        ("POST /execute", "wrong"),
        ("GET /execute/replay?after=x", &engine.key),
        ("GET /nothing", &engine.key),
    ] {
        let headers = [("x-engine-key", key), ("x-request-id", "order-66"), ("traceparent", &traceparent)];
        let answer = send_raw(&engine.url, head, &headers, body.as_bytes()).await;
        assert_eq!(answer.header("x-request-id"), Some("order-66"), "{head}");
        let returned = answer.header("traceparent").unwrap_or_else(|| panic!("{head}: no traceparent"));
        assert_eq!(returned.split('-').nth(1), Some(trace), "{head}: {returned}");
    }
}

#[tokio::test]
async fn a_task_runs_one_turn_at_a_time() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    provider.enqueue(Reply::from_text("This takes a while.").hold(1, &gate));
    let setup = StandaloneEngine::new().with_provider("anthropic", &provider);
    let (_program, engine) = setup.start().await;
    let body = json!({"message": "Hello!", "task_id": "task", "direct": true});
    let stream = engine.execute_with(&body).await;
    with_deadline("the answer is held", gate.reached()).await;
    for _ in 0..3 {
        call(&engine, "POST /execute", body.to_string()).await.assert_error(409, "TASK_BUSY");
    }
    let other = json!({"message": "Hello!", "task_id": "other", "direct": true});
    assert_completed(&engine.execute_with(&other).await.collect().await);
    gate.release();
    assert_eq!(assert_completed(&stream.collect().await), "This takes a while.");
    assert_completed(&engine.execute_with(&body).await.collect().await);
}

#[tokio::test]
async fn of_many_turns_of_a_task_begun_at_once_one_runs() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    let body = json!({"message": "Hello!", "task_id": "task"}).to_string();
    let answers = futures::future::join_all((0..10).map(|_| call(&engine, "POST /execute", &body))).await;
    let won = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(won, 1);
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        answer.assert_error(409, "TASK_BUSY");
    }
    assert_completed(&engine.replay("task", 0).await.collect().await);
}

#[tokio::test]
async fn max_turns_caps_the_model_calls_of_a_turn() {
    let provider = MockProvider::start().await.unwrap();
    for number in 0..5 {
        provider
            .enqueue(Reply::new().tool_use("working_memory_set", json!({"key": "count", "value": number})));
    }
    let setup = StandaloneEngine::new().with_provider("anthropic", &provider);
    let (_program, engine) = setup.start().await;
    let body = json!({"message": "Hello!", "task_id": "task", "direct": true, "max_turns": 2});
    let events = engine.execute_with(&body).await.collect().await;
    assert_completed(&events);
    assert_eq!(events.last().unwrap().data["stop_reason"], "max_turns");
    assert_eq!(provider.requests().len(), 2);
}
