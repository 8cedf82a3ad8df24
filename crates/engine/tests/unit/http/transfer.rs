//! Tests of export and import as a client sees them: a conversation that moves to another engine continues there.

use std::time::Duration;

use mock_llm::{Gate, Reply};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use testkit::with_deadline;

use super::app::{ENGINE_KEY, TestApp, events, expect_error};
use super::rpc_tests::{expect_rpc_error, expect_rpc_result, post_rpc};

async fn export(app: &TestApp) -> String {
    let response = with_deadline(app.request("GET", "/memory/export").send()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    with_deadline(response.text()).await.unwrap()
}

async fn import(app: &TestApp, query: &str, document: impl Into<reqwest::Body>) -> reqwest::Response {
    let path = format!("/memory/import{query}");
    with_deadline(app.request("POST", &path).body(document).send()).await.unwrap()
}

async fn get(app: &TestApp, path: &str) -> Value {
    let response = with_deadline(app.request("GET", path).send()).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    with_deadline(response.json()).await.unwrap()
}

/// Returns the durable events of a task, without deltas.
async fn durable_events(app: &TestApp, task: &str) -> Vec<(String, Value)> {
    let seen = events(app.replay(&format!("?task_id={task}")).await).await;
    let is_transient = |kind: &str| kind.ends_with("_delta") || kind.starts_with("content_block_");
    seen.into_iter().filter(|seen| !is_transient(&seen.kind)).map(|seen| (seen.kind, seen.data)).collect()
}

/// Returns an engine whose memory contains everything that a turn can produce.
async fn app_with_history() -> TestApp {
    let app = TestApp::start().await;
    let set = json!({"key": "colour", "value": "green"});
    app.provider.enqueue(Reply::new().tool_use("working_memory_set", set));
    app.provider.enqueue(Reply::from_text("Otters it is."));
    let body = json!({
        "task_id": "t", "message": "Tell me of otters.", "direct": true, "client_request_id": "first",
        "media": [{"type": "text", "text": "see here"}],
    });
    events(app.post_execute(body.to_string()).await).await;
    app.run_turn("t", "And of seals.").await;
    app.run_turn("other", "My sister Marta lives in Porto.").await;
    let messages = get(&app, "/tasks/t").await;
    let last_message = messages["messages"].as_array().unwrap().last().unwrap()["message_id"].clone();
    let retry = json!({"task_id": "t", "message": "", "retry_message_id": last_message, "direct": true});
    events(app.post_execute(retry.to_string()).await).await;
    let known = json!({"content": "The heron is the staging database.", "tags": ["db"]});
    let saved =
        with_deadline(app.request("POST", "/memory/knowledge").body(known.to_string()).send()).await.unwrap();
    assert_eq!(saved.status(), 200);
    app
}

#[tokio::test]
async fn a_conversation_moves_from_one_engine_into_another_and_goes_on() {
    let (one, other) = (app_with_history().await, TestApp::start().await);
    let document = export(&one).await;
    let answer = import(&other, "", document.clone()).await;
    assert_eq!(answer.status(), 200);
    let answer: Value = with_deadline(answer.json()).await.unwrap();
    let counts = json!({
        "tasks": 2, "turns": 4, "knowledge": 1, "episodes": 3, "trajectories": 4, "media": 0, "skills": 0,
        "feedback": 0, "batches": 0, "lessons": 0,
    });
    assert_eq!(answer, json!({"status": "imported", "mode": "merge", "counts": counts}));
    assert_eq!(export(&other).await, document);
    for path in ["/tasks", "/tasks/t", "/tasks/other", "/memory/knowledge", "/memory/episodes"] {
        assert_eq!(get(&one, path).await, get(&other, path).await, "{path}");
    }
    assert_eq!(durable_events(&one, "t").await, durable_events(&other, "t").await);
    let found = expect_rpc_result(
        &other,
        ENGINE_KEY,
        json!({"method": "memory.search", "params": {"query": "otters"}}),
    )
    .await;
    let kinds: Vec<&Value> =
        found["results"].as_array().unwrap().iter().map(|found| &found["kind"]).collect();
    assert!(kinds.contains(&&json!("message")) && kinds.contains(&&json!("episode")), "{found}");

    // Repeating the request of a turn returns that turn.
    let retry = json!({
        "task_id": "t", "message": "Tell me of otters.", "direct": true, "client_request_id": "first",
        "media": [{"type": "text", "text": "see here"}],
    });
    let joined = events(other.post_execute(retry.to_string()).await).await;
    assert_eq!(joined.last().unwrap().data["text"], "Otters it is.");
    // Both continue alike.
    for app in [&one, &other] {
        let go_on = json!({"task_id": "t", "message": "Go on.", "direct": true});
        let seen = events(app.post_execute(go_on.to_string()).await).await;
        assert_eq!(seen.last().unwrap().phase(), Some("completed"));
    }
    let last = |app: &TestApp| {
        let request = app.provider.requests().last().unwrap().body.clone();
        let messages = request["messages"].to_string();
        (
            messages.matches("Otters it is.").count(),
            messages.matches("see here").count(),
            messages.contains("colour"),
        )
    };
    assert_eq!(last(&one), last(&other));
    assert_eq!(last(&other), (1, 1, true));
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn what_cannot_be_imported_is_refused_and_changes_nothing() {
    let app = app_with_history().await;
    let document = export(&app).await;
    for (query, body, named) in [
        ("?mode=forget", document.clone(), "mode"),
        ("", "{}".to_owned(), "version"),
        (
            "?mode=replace",
            document.replace("\"version\":1", "\"version\":9"),
            "import it into a newer engine",
        ),
        ("?mode=replace", document[..document.len() - 1].to_owned(), "cut off"),
        ("?mode=replace", document.replace("\"source\":\"user\"", "\"source\":\"me\""), "`knowledge[0]`"),
        // The fault occurs long before the end of the body.
        ("", format!("{{\"version\":2,{}{}", " ".repeat(8 * 1024 * 1024), &document[1..]), "newer engine"),
    ] {
        let message = expect_error(import(&app, query, body).await, 400, "INVALID_REQUEST").await;
        assert!(message.contains(named), "{named}: {message}");
        assert_eq!(export(&app).await, document, "{named}");
    }
    for (method, path) in [("GET", "/memory/export"), ("POST", "/memory/import")] {
        let unauthorized = with_deadline(app.request_without_key(method, path).send()).await.unwrap();
        expect_error(unauthorized, 401, "INVALID_ENGINE_KEY").await;
    }
    // Larger than any other body may be.
    let large = format!("{{{}{}", " ".repeat(40 * 1024 * 1024), &document[1..]);
    let answer: Value = with_deadline(import(&app, "?mode=replace", large).await.json()).await.unwrap();
    assert_eq!((&answer["mode"], &answer["counts"]["tasks"]), (&json!("replace"), &json!(2)));
    assert_eq!(export(&app).await, document);
    app.stop().await;
}

#[tokio::test]
async fn nothing_is_replaced_under_a_turn_and_more_can_be_merged_into_it() {
    let (one, app) = (app_with_history().await, TestApp::start().await);
    let document = export(&one).await;
    let gate = Gate::new();
    app.provider.enqueue(Reply::from_text("This takes a while.").hold(1, &gate));
    let body = json!({"task_id": "at work", "message": "Hello.", "direct": true}).to_string();
    let running = app.post_execute(body).await;
    with_deadline(gate.reached()).await;
    let message = expect_error(import(&app, "?mode=replace", document.clone()).await, 409, "TASK_BUSY").await;
    assert!(message.contains("mode=merge"), "{message}");
    assert_eq!(import(&app, "?mode=merge", document.clone()).await.status(), 200);
    // An export contains it as far as it has come, and delays it no further.
    let now: Value = serde_json::from_str(&export(&app).await).unwrap();
    assert_eq!(now["tasks"].as_array().unwrap().len(), 3);
    gate.release();
    assert_eq!(events(running).await.last().unwrap().phase(), Some("completed"));

    assert_eq!(import(&app, "?mode=replace", document.clone()).await.status(), 200);
    assert_eq!(export(&app).await, document);
    let gone = with_deadline(app.request("GET", "/tasks/at%20work").send()).await.unwrap();
    expect_error(gone, 404, "TASK_NOT_FOUND").await;
    // The name is free again.
    assert_eq!(app.run_turn("at work", "Hello again.").await.last().unwrap().phase(), Some("completed"));
    assert_eq!(get(&app, "/tasks/at%20work").await["messages"].as_array().unwrap().len(), 2);
    one.stop().await;
    app.stop().await;
}

#[tokio::test]
async fn rpc_exports_the_same_document_unless_it_is_too_large() {
    let app = app_with_history().await;
    let document: Value = serde_json::from_str(&export(&app).await).unwrap();
    let call = json!({"method": "memory.export", "params": {}});
    assert_eq!(expect_rpc_result(&app, ENGINE_KEY, call.clone()).await, document);
    let content = "x".repeat(16_000);
    let record = |_| {
        json!({"id": api::MemoryId::new(), "content": content, "source": "user",
                            "created_at": "2026-01-01T00:00:00.000Z"})
    };
    let many: Vec<Value> = (0..600).map(record).collect();
    let many = json!({"version": 1, "knowledge": many}).to_string();
    assert_eq!(import(&app, "", many).await.status(), 200);
    let message =
        expect_rpc_error(post_rpc(&app, ENGINE_KEY, call.to_string()).await, 400, "INVALID_REQUEST").await;
    assert!(message.contains("GET /memory/export"), "{message}");
    app.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_leaves_nothing_behind() {
    let app = app_with_history().await;
    let document = export(&app).await;
    let half = bytes::Bytes::from(document[..document.len() / 2].to_owned());
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<bytes::Bytes, std::io::Error>>(1);
    sender.send(Ok(half)).await.unwrap();
    let body = reqwest::Body::wrap_stream(futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    }));
    let importing = tokio::spawn(app.request("POST", "/memory/import").body(body).send());
    with_deadline(async {
        while !app.agent.is_importing() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // Meanwhile there can be no other import, and the engine is not put to sleep.
    let quiesce = json!({"subsystem": "control", "op": "quiesce"});
    assert_eq!(expect_rpc_result(&app, ENGINE_KEY, quiesce).await, json!({"quiesced": false}));
    expect_error(import(&app, "", document.clone()).await, 503, "OVERLOADED").await;
    importing.abort();
    drop(sender);
    with_deadline(async {
        while app.agent.is_importing() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(export(&app).await, document);
    app.stop().await;
}
