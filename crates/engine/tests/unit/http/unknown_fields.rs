//! Unknown fields of every JSON body: the contract's endpoints ignore and name them, all others refuse them.

use serde_json::{Value, json};
use testkit::unknown_fields::{BodyWithUnknownField, UNKNOWN, bodies};
use testkit::with_deadline;

use super::app::{TestApp, expect_error};
use super::document;

/// The operations that ignore unknown fields: those that the contract describes, and `run_cassette`, whose document may
/// be of a later version. This list does not grow: other operations refuse them.
const IGNORING: [&str; 12] = [
    "cancel_turn",
    "complete_authorization",
    "connect_server",
    "create_skill",
    "execute",
    "give_feedback",
    "respond_to_hitl",
    "run_cassette",
    "save_knowledge",
    "search_knowledge",
    "steer_turn",
    "update_skill",
];

/// The operations whose bodies have rules of their own, with tests of their own.
const LEFT_OUT: [&str; 7] = [
    // Other protocols.
    "call_agent",
    "call_mcp",
    "run_agui_agent",
    "openai_create_chat_completion",
    "openai_create_response",
    // Arguments, which differ from method to method.
    "call_rpc",
    // An export, which is read as it arrives.
    "import_memory",
];

/// The parts of bodies that are free: a recorded turn, of which a later version may know more.
const FREE: [&str; 2] = ["run_cassette.cassette", "execute.response_format.schema"];

/// Bodies with the objects that the examples do not have.
fn samples() -> Vec<(&'static str, Value)> {
    let source = json!({"type": "base64", "media_type": "image/png", "data": "AAAA"});
    let media = json!([
        {"type": "image", "source": source}, {"type": "text", "text": "a"},
        {"type": "document", "media_type": "text/plain", "data": "AAAA"},
    ]);
    let format = json!({"type": "json_schema", "name": "a", "schema": {"type": "object"}});
    let options = json!({"direct": true, "response_format": format});
    let when = json!({"cron": "0 8 * * *"});
    vec![
        ("execute", json!({"task_id": "t", "message": "hi", "media": media})),
        ("execute", json!({"task_id": "t", "message": "hi", "response_format": format})),
        ("respond_to_hitl", json!({"task_id": "t", "answer": "yes", "content_blocks": media})),
        ("connect_server", json!({"server": "a", "credentials": {"api_key": "k"}})),
        ("connect_user_server", json!({"credentials": {"api_key": "k"}})),
        ("create_schedule", json!({"name": "a", "message": "b", "when": when, "options": options})),
        ("update_schedule", json!({"when": when, "options": options})),
    ]
}

async fn assert_ignored_and_named(app: &TestApp, body: &BodyWithUnknownField) {
    let request = app.request(&body.method, &body.path).body(body.body.to_string());
    let response = with_deadline(request.send()).await.unwrap();
    let warning =
        response.headers().get("roundhouse-warning").map(|value| value.to_str().unwrap().to_owned());
    let status = response.status();
    assert_eq!(warning, Some(format!("unknown fields: {}", body.field)), "{body:?}: {status}");
}

async fn assert_refused(app: &TestApp, body: &BodyWithUnknownField) {
    let request = app.request(&body.method, &body.path).body(body.body.to_string());
    let response = with_deadline(request.send()).await.unwrap();
    assert!(!response.headers().contains_key("roundhouse-warning"), "{body:?}");
    let message = expect_error(response, 400, "INVALID_REQUEST").await;
    assert!(message.contains(&format!("there is no field `{UNKNOWN}`; it must be ")), "{body:?}: {message}");
    let parent = body.field.trim_end_matches(UNKNOWN).trim_end_matches('.');
    assert!(parent.is_empty() || message.starts_with(&format!("`{parent}`: ")), "{body:?}: {message}");
}

#[tokio::test]
async fn an_unknown_field_of_any_body_is_named_or_refused() {
    let app = TestApp::start().await;
    let document = serde_json::to_value(document()).unwrap();
    let bodies = bodies(&document, &samples(), &LEFT_OUT, &FREE);
    assert!(bodies.len() > 35, "{} bodies", bodies.len());
    for body in &bodies {
        if IGNORING.contains(&body.operation.as_str()) {
            assert_ignored_and_named(&app, body).await;
        } else {
            assert_refused(&app, body).await;
        }
    }
    app.stop().await;
}
