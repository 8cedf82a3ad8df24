//! Export and import as a client sees them: a conversation that moves from one engine into another goes on there.

use std::time::Duration;

use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use strict_provider::{Gate, Reply};

use super::app::{App, KEY, events, refusal};
use super::rpc_tests::{call_with, flat, result};
use crate::testing::within;

async fn export(app: &App) -> String {
    let response = within(app.request("GET", "/memory/export").send()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    within(response.text()).await.unwrap()
}

async fn import(app: &App, query: &str, document: impl Into<reqwest::Body>) -> reqwest::Response {
    let path = format!("/memory/import{query}");
    within(app.request("POST", &path).body(document).send()).await.unwrap()
}

async fn get(app: &App, path: &str) -> Value {
    let response = within(app.request("GET", path).send()).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    within(response.json()).await.unwrap()
}

/// What clients are told of a task for good: no deltas.
async fn kept(app: &App, task: &str) -> Vec<(String, Value)> {
    let seen = events(app.replay(&format!("?task_id={task}")).await).await;
    let passes = |kind: &str| kind.ends_with("_delta") || kind.starts_with("content_block_");
    seen.into_iter().filter(|seen| !passes(&seen.kind)).map(|seen| (seen.kind, seen.data)).collect()
}

/// An engine with something to remember of everything that a turn does.
async fn lived() -> App {
    let app = App::start().await;
    let set = json!({"key": "colour", "value": "green"});
    app.provider.enqueue(Reply::new().tool_use("working_memory_set", set));
    app.provider.enqueue(Reply::of_text("Otters it is."));
    let body = json!({
        "task_id": "t", "message": "Tell me of otters.", "direct": true, "client_request_id": "first",
        "media": [{"type": "text", "text": "see here"}],
    });
    events(app.post(body.to_string()).await).await;
    app.say("t", "And of seals.").await;
    app.say("other", "My sister Marta lives in Porto.").await;
    let messages = get(&app, "/tasks/t").await;
    let edited = messages["messages"].as_array().unwrap().last().unwrap()["message_id"].clone();
    let retry = json!({"task_id": "t", "message": "", "retry_message_id": edited, "direct": true});
    events(app.post(retry.to_string()).await).await;
    let known = json!({"content": "The heron is the staging database.", "tags": ["db"]});
    let saved =
        within(app.request("POST", "/memory/knowledge").body(known.to_string()).send()).await.unwrap();
    assert_eq!(saved.status(), 200);
    app
}

#[tokio::test]
async fn a_conversation_moves_from_one_engine_into_another_and_goes_on() {
    let (one, other) = (lived().await, App::start().await);
    let document = export(&one).await;
    let answer = import(&other, "", document.clone()).await;
    assert_eq!(answer.status(), 200);
    let answer: Value = within(answer.json()).await.unwrap();
    let counts = json!({
        "tasks": 2, "turns": 4, "knowledge": 1, "episodes": 3, "trajectories": 4, "media": 0, "skills": 0,
        "feedback": 0, "batches": 0, "lessons": 0,
    });
    assert_eq!(answer, json!({"status": "imported", "mode": "merge", "counts": counts}));
    assert_eq!(export(&other).await, document);
    for path in ["/tasks", "/tasks/t", "/tasks/other", "/memory/knowledge", "/memory/episodes"] {
        assert_eq!(get(&one, path).await, get(&other, path).await, "{path}");
    }
    assert_eq!(kept(&one, "t").await, kept(&other, "t").await);
    let found = result(&other, KEY, json!({"method": "memory.search", "params": {"query": "otters"}})).await;
    let kinds: Vec<&Value> =
        found["results"].as_array().unwrap().iter().map(|found| &found["kind"]).collect();
    assert!(kinds.contains(&&json!("message")) && kinds.contains(&&json!("episode")), "{found}");

    // Whoever asks once more for the turn that a request began gets that turn.
    let again = json!({
        "task_id": "t", "message": "Tell me of otters.", "direct": true, "client_request_id": "first",
        "media": [{"type": "text", "text": "see here"}],
    });
    let joined = events(other.post(again.to_string()).await).await;
    assert_eq!(joined.last().unwrap().data["text"], "Otters it is.");
    // And both go on alike.
    for app in [&one, &other] {
        let go_on = json!({"task_id": "t", "message": "Go on.", "direct": true});
        let seen = events(app.post(go_on.to_string()).await).await;
        assert_eq!(seen.last().unwrap().phase(), Some("completed"));
    }
    let last = |app: &App| {
        let request = app.provider.requests().last().unwrap().body.clone();
        let said = request["messages"].to_string();
        (said.matches("Otters it is.").count(), said.matches("see here").count(), said.contains("colour"))
    };
    assert_eq!(last(&one), last(&other));
    assert_eq!(last(&other), (1, 1, true));
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn what_cannot_be_imported_is_refused_and_changes_nothing() {
    let app = lived().await;
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
        // The fault stands long before the end of what is sent.
        ("", format!("{{\"version\":2,{}{}", " ".repeat(8 * 1024 * 1024), &document[1..]), "newer engine"),
    ] {
        let message = refusal(import(&app, query, body).await, 400, "INVALID_REQUEST").await;
        assert!(message.contains(named), "{named}: {message}");
        assert_eq!(export(&app).await, document, "{named}");
    }
    for (method, path) in [("GET", "/memory/export"), ("POST", "/memory/import")] {
        let keyless = within(app.keyless(method, path).send()).await.unwrap();
        refusal(keyless, 401, "INVALID_ENGINE_KEY").await;
    }
    // Larger than any other body may be.
    let large = format!("{{{}{}", " ".repeat(40 * 1024 * 1024), &document[1..]);
    let answer: Value = within(import(&app, "?mode=replace", large).await.json()).await.unwrap();
    assert_eq!((&answer["mode"], &answer["counts"]["tasks"]), (&json!("replace"), &json!(2)));
    assert_eq!(export(&app).await, document);
    app.stop().await;
}

#[tokio::test]
async fn nothing_is_replaced_under_a_turn_and_more_can_be_merged_into_it() {
    let (one, app) = (lived().await, App::start().await);
    let document = export(&one).await;
    let gate = Gate::new();
    app.provider.enqueue(Reply::of_text("This takes a while.").hold(1, &gate));
    let body = json!({"task_id": "at work", "message": "Hello.", "direct": true}).to_string();
    let running = app.post(body).await;
    within(gate.reached()).await;
    let message = refusal(import(&app, "?mode=replace", document.clone()).await, 409, "TASK_BUSY").await;
    assert!(message.contains("mode=merge"), "{message}");
    assert_eq!(import(&app, "?mode=merge", document.clone()).await.status(), 200);
    // An export shows it as far as it has come, and holds it up no more than that.
    let now: Value = serde_json::from_str(&export(&app).await).unwrap();
    assert_eq!(now["tasks"].as_array().unwrap().len(), 3);
    gate.release();
    assert_eq!(events(running).await.last().unwrap().phase(), Some("completed"));

    assert_eq!(import(&app, "?mode=replace", document.clone()).await.status(), 200);
    assert_eq!(export(&app).await, document);
    let gone = within(app.request("GET", "/tasks/at%20work").send()).await.unwrap();
    refusal(gone, 404, "TASK_NOT_FOUND").await;
    // The name is free again.
    assert_eq!(app.say("at work", "Hello again.").await.last().unwrap().phase(), Some("completed"));
    assert_eq!(get(&app, "/tasks/at%20work").await["messages"].as_array().unwrap().len(), 2);
    one.stop().await;
    app.stop().await;
}

#[tokio::test]
async fn rpc_exports_the_same_document_unless_it_is_too_large() {
    let app = lived().await;
    let document: Value = serde_json::from_str(&export(&app).await).unwrap();
    let call = json!({"method": "memory.export", "params": {}});
    assert_eq!(result(&app, KEY, call.clone()).await, document);
    let content = "x".repeat(16_000);
    let record = |_| {
        json!({"id": contract::MemoryId::new(), "content": content, "source": "user",
                            "created_at": "2026-01-01T00:00:00.000Z"})
    };
    let many: Vec<Value> = (0..600).map(record).collect();
    let many = json!({"version": 1, "knowledge": many}).to_string();
    assert_eq!(import(&app, "", many).await.status(), 200);
    let message = flat(call_with(&app, KEY, call.to_string()).await, 400, "INVALID_REQUEST").await;
    assert!(message.contains("GET /memory/export"), "{message}");
    app.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_leaves_nothing_behind() {
    let app = lived().await;
    let document = export(&app).await;
    let half = bytes::Bytes::from(document[..document.len() / 2].to_owned());
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<bytes::Bytes, std::io::Error>>(1);
    sender.send(Ok(half)).await.unwrap();
    let body = reqwest::Body::wrap_stream(futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    }));
    let importing = tokio::spawn(app.request("POST", "/memory/import").body(body).send());
    within(async {
        while !app.agent.is_importing() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // While it is under way there is no other one, and the engine is not put to sleep.
    let quiesce = json!({"subsystem": "control", "op": "quiesce"});
    assert_eq!(result(&app, KEY, quiesce).await, json!({"quiesced": false}));
    refusal(import(&app, "", document.clone()).await, 503, "OVERLOADED").await;
    importing.abort();
    drop(sender);
    within(async {
        while app.agent.is_importing() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(export(&app).await, document);
    app.stop().await;
}
