//! Tests of the event stream on the wire, live and replayed.

use mock_llm::{Fault, Gate, Refusal, Reply};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use testkit::{SseEvent, with_deadline};

use super::app::{TestApp, events, expect_error};

/// Returns the fields of each event beside `task_id`, `turn_id` and `ts`, each with its JSON type.
fn documented_fields(seen: &SseEvent) -> Vec<(&'static str, &'static str)> {
    let started = vec![("phase", "string"), ("message_id", "string")];
    let with = |extra: &[(&'static str, &'static str)]| [&started[..], extra].concat();
    match (seen.kind.as_str(), seen.phase()) {
        ("thread_lifecycle", Some("started" | "errored")) => started,
        ("thread_lifecycle", Some("completed")) => {
            with(&[("answer_message_id", "string"), ("text", "string"), ("stop_reason", "string")])
        }
        ("thread_lifecycle", Some("retrying")) => with(&[("void_after", "number"), ("attempt", "number")]),
        ("error", _) => vec![("code", "string"), ("message", "string"), ("retryable", "boolean")],
        ("text_delta" | "thinking_delta", _) => vec![("text", "string")],
        ("content_block_start", _) => vec![("index", "number"), ("block_type", "string")],
        ("content_block_stop", _) => vec![("index", "number")],
        ("tool_call", _) => vec![("tool_call_id", "string"), ("tool", "string"), ("input", "object")],
        ("tool_result", _) => {
            let mut fields = vec![
                ("tool_call_id", "string"),
                ("tool", "string"),
                ("output", "string"),
                ("duration_ms", "number"),
            ];
            if seen.data["output"] == "" {
                fields.push(("error", "string"));
            }
            fields
        }
        ("working_memory_update", _) => vec![("key", "string"), ("value", "string")],
        ("usage", _) => vec![
            ("model", "string"),
            ("input_tokens", "number"),
            ("output_tokens", "number"),
            ("cache_read_tokens", "number"),
            ("cache_write_tokens", "number"),
            ("reasoning_tokens", "number"),
        ],
        other => panic!("an event that is not documented: {other:?}"),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Checks that an event has every documented field with its type, and no other.
fn check_fields(seen: &SseEvent) -> Result<(), String> {
    let mut expected = documented_fields(seen);
    expected.extend([("task_id", "string"), ("turn_id", "string"), ("ts", "number")]);
    expected.sort_unstable();
    let mut fields: Vec<(&str, &str)> =
        seen.data.as_object().unwrap().iter().map(|(name, value)| (name.as_str(), type_of(value))).collect();
    fields.sort_unstable();
    if fields == expected { Ok(()) } else { Err(format!("{}: {fields:?}, not {expected:?}", seen.kind)) }
}

#[test]
fn the_field_check_goes_red() {
    let usage = |data: Value| SseEvent { id: Some(1), kind: "text_delta".into(), data };
    let good = json!({"task_id": "t", "turn_id": "u", "ts": 1, "text": "x"});
    assert_eq!(check_fields(&usage(good.clone())), Ok(()));
    for (field, value) in [("text", json!(1)), ("ts", json!("1")), ("more", json!("x"))] {
        let mut broken = good.clone();
        broken[field] = value;
        assert!(check_fields(&usage(broken)).is_err(), "{field}");
    }
}

#[tokio::test]
async fn every_event_has_its_documented_fields_and_no_other() {
    let app = TestApp::start().await;
    app.provider.enqueue_all([
        Reply::new().thinking("Hm.").text("half").fault(Fault::cut_after(usize::MAX)),
        Reply::new()
            .thinking("Hm.")
            .text("On it.")
            .tool_use("working_memory_set", json!({"key": "k", "value": "v"}))
            .tool_use("read_file", json!({"path": "nothing"})),
        Reply::from_fault(Fault::refuse(Refusal::Unauthorized)),
    ]);
    let body = json!({"task_id": "t", "message": "go", "super_thinking": true}).to_string();
    let mut all = events(app.post_execute(body).await).await;
    all.extend(app.run_turn("t", "and now?").await);
    let mut kinds: Vec<&str> = Vec::new();
    for event in &all {
        assert_eq!(check_fields(event), Ok(()));
        assert_eq!(event.id, Some(event.ts()));
        kinds.push(event.phase().unwrap_or(&event.kind));
    }
    kinds.sort_unstable();
    kinds.dedup();
    let expected = [
        "completed",
        "content_block_start",
        "content_block_stop",
        "error",
        "errored",
        "retrying",
        "started",
        "text_delta",
        "thinking_delta",
        "tool_call",
        "tool_result",
        "usage",
        "working_memory_update",
    ];
    assert_eq!(kinds, expected);
    app.stop().await;
}

#[tokio::test]
async fn streams_have_the_headers_that_keep_proxies_from_holding_them_back() {
    let app = TestApp::start().await;
    let body = json!({"task_id": "t", "message": "go"}).to_string();
    let live = app.post_execute(body).await;
    let headers = live.headers().clone();
    let seen = events(live).await;
    let replayed = app.replay("").await;
    for headers in [&headers, replayed.headers()] {
        assert_eq!(headers["content-type"], "text/event-stream");
        assert_eq!(headers["cache-control"], "no-cache, no-transform");
        assert_eq!(headers["x-accel-buffering"], "no");
        assert_eq!(headers["transfer-encoding"], "chunked");
    }
    assert_eq!(events(replayed).await, seen);
    app.stop().await;
}

#[tokio::test]
async fn a_replay_gives_what_came_after_and_the_last_event_id_beats_the_query() {
    let app = TestApp::start().await;
    expect_error(app.replay("").await, 404, "TASK_NOT_FOUND").await;
    let first = app.run_turn("one", "a").await;
    let second = app.run_turn("two", "b").await;
    assert_eq!(events(app.replay("").await).await, second);
    assert_eq!(events(app.replay("?task_id=one&after=0").await).await, first);
    expect_error(app.replay("?task_id=three").await, 404, "TASK_NOT_FOUND").await;

    let ts = first[2].ts();
    assert_eq!(events(app.replay(&format!("?task_id=one&after={ts}")).await).await, first[3..]);
    assert!(events(app.replay(&format!("?task_id=one&after={}", i64::MAX)).await).await.is_empty());
    let last_event_id = |id: String| {
        let request = app.request("GET", "/execute/replay?task_id=one&after=0").header("Last-Event-ID", id);
        async { with_deadline(request.send()).await.unwrap() }
    };
    assert_eq!(events(last_event_id(ts.to_string()).await).await, first[3..]);
    // Browsers send an empty one for "none yet".
    assert_eq!(events(last_event_id(String::new()).await).await, first);
    for wrong in ["x", "-1", "1.5", "99999999999999999999"] {
        let message = expect_error(last_event_id(wrong.into()).await, 400, "INVALID_REQUEST").await;
        assert!(message.contains("`Last-Event-ID`"), "{message}");
    }
    for (query, named) in
        [("after=x", "after"), ("after=-1", "after"), ("task_id=", "task_id"), ("after=", "after")]
    {
        let message = expect_error(app.replay(&format!("?{query}")).await, 400, "INVALID_REQUEST").await;
        assert!(message.contains(named), "{query}: {message}");
    }
    app.stop().await;
}

#[tokio::test]
async fn a_replay_follows_a_turn_that_runs_to_its_end() {
    let app = TestApp::start().await;
    let gate = Gate::new();
    app.provider.enqueue(Reply::from_text("one two").deltas(2).hold(1, &gate));
    let live = app.post_execute(json!({"task_id": "t", "message": "go"}).to_string()).await;
    gate.reached().await;
    let following = app.replay("?task_id=t").await;
    assert_eq!(following.status(), 200);
    gate.release();
    let seen = events(following).await;
    assert_eq!(seen, events(live).await);
    assert_eq!(seen.last().unwrap().phase(), Some("completed"));
    app.stop().await;
}
