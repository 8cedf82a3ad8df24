//! Tests of `/rpc`: its two forms, its flat errors, and the replacement of the key.

use api::rpc::RpcError;
use pretty_assertions::assert_eq;
use reqwest::Response;
use serde_json::{Value, json};
use testkit::with_deadline;

use super::app::{ENGINE_KEY, TestApp, expect_error};
use super::*;
use crate::http::auth::KeyHolder;

const OTHER_KEY: &str = "sk-svc-other";

pub(super) async fn post_rpc(app: &TestApp, key: &str, body: impl Into<reqwest::Body>) -> Response {
    with_deadline(app.request_without_key("POST", "/rpc").header("X-Engine-Key", key).body(body).send())
        .await
        .unwrap()
}

/// Returns the result of a call that must succeed.
pub(super) async fn expect_rpc_result(app: &TestApp, key: &str, body: Value) -> Value {
    let response = post_rpc(app, key, body.to_string()).await;
    assert_eq!(response.status(), 200, "{body}");
    let mut answer: Value = with_deadline(response.json()).await.unwrap();
    let result = answer["result"].take();
    assert_eq!(answer, json!({"result": null}));
    result
}

/// Asserts an error in the flat form and returns its message.
pub(super) async fn expect_rpc_error(response: Response, status: u16, code: &str) -> String {
    assert_eq!(response.status(), status);
    assert_eq!(response.headers()["content-type"], "application/json");
    let body: Value = with_deadline(response.json()).await.unwrap();
    let message = serde_json::from_value::<RpcError>(body.clone()).unwrap().message;
    assert_eq!(body, json!({"error": code, "message": message}));
    assert!(!message.is_empty());
    message
}

fn set_key_hash_call(hash: &str) -> Value {
    json!({"subsystem": "control", "op": "set_key_hash", "key_hash": hash})
}

#[tokio::test]
async fn a_call_is_of_one_form_and_whole() {
    let app = TestApp::start().await;
    let quiesce = |lift: Value| json!({"subsystem": "control", "op": "quiesce", "lift": lift});
    for (body, named) in [
        (json!({}), "`method`, `subsystem`"),
        (json!({"params": {}, "op": "activity"}), "`method`, `subsystem`"),
        (json!({"method": null, "subsystem": null}), "`method`, `subsystem`"),
        (
            json!({"method": "rpc.methods", "params": {}, "subsystem": "telemetry", "op": "activity"}),
            "`method`, `subsystem`",
        ),
        (json!({"method": "rpc.methods"}), "`params`"),
        (json!({"method": "rpc.methods", "params": null}), "`params`"),
        (json!({"method": "rpc.methods", "params": []}), "`params`"),
        (json!({"method": 7, "params": {}}), "`method`"),
        (json!({"subsystem": "telemetry"}), "`op`"),
        (json!({"subsystem": "telemetry", "op": null}), "`op`"),
        (json!({"subsystem": "telemetry", "op": ["activity"]}), "`op`"),
        (json!({"subsystem": true, "op": "activity"}), "`subsystem`"),
        (quiesce(json!("true")), "`lift`"),
        (quiesce(json!(1)), "`lift`"),
    ] {
        let message =
            expect_rpc_error(post_rpc(&app, ENGINE_KEY, body.to_string()).await, 400, "INVALID_REQUEST")
                .await;
        assert!(message.contains(named), "{body}: {message}");
    }
    for body in ["", "{", "[]", "null", "{} {}"] {
        expect_rpc_error(post_rpc(&app, ENGINE_KEY, body).await, 400, "INVALID_REQUEST").await;
    }
    expect_rpc_error(
        post_rpc(&app, ENGINE_KEY, vec![b' '; MAX_BODY_BYTES + 1]).await,
        413,
        "PAYLOAD_TOO_LARGE",
    )
    .await;
    // None of them quiesced the engine.
    app.run_turn("t", "hi").await;
    app.stop().await;
}

#[tokio::test]
async fn what_there_is_not_is_not_found() {
    let app = TestApp::start().await;
    let form_a = ["skill.none", "tool.shell", "memory.dream", "memory", "rpc", "rpc.methods.x", ""]
        .map(|method| json!({"method": method, "params": {}}));
    let form_b = [
        ("control", "sleep"),
        ("telemetry", "quiesce"),
        ("control", "activity"),
        ("x", "activity"),
        ("", ""),
    ]
    .map(|(subsystem, op)| json!({"subsystem": subsystem, "op": op}));
    for body in form_a.into_iter().chain(form_b) {
        expect_rpc_error(post_rpc(&app, ENGINE_KEY, body.to_string()).await, 404, "METHOD_NOT_FOUND").await;
    }
    app.stop().await;
}

#[tokio::test]
async fn a_tool_is_called_without_a_turn_and_without_leave() {
    let app = TestApp::start().await;
    let call = |tool: &str, params: Value| json!({"method": format!("tool.{tool}"), "params": params});
    let write = call("write_file", json!({"path": "a.txt", "content": "green"}));
    assert_eq!(
        expect_rpc_result(&app, ENGINE_KEY, write).await,
        json!({"output": "wrote 5 bytes to `a.txt`"})
    );
    let read = call("read_file", json!({"path": "a.txt"}));
    assert_eq!(expect_rpc_result(&app, ENGINE_KEY, read).await, json!({"output": "green"}));
    for (params, reason) in [(json!({"path": "b.txt"}), "no such file"), (json!({}), "path")] {
        let failed = post_rpc(&app, ENGINE_KEY, call("read_file", params).to_string()).await;
        let message = expect_rpc_error(failed, 400, "TOOL_FAILED").await;
        assert!(message.contains(reason), "{message}");
    }
    for tool in ["ask_user", "nothing", ""] {
        let unknown = post_rpc(&app, ENGINE_KEY, call(tool, json!({"question": "?"})).to_string()).await;
        expect_rpc_error(unknown, 404, "METHOD_NOT_FOUND").await;
    }
    app.stop().await;
}

#[tokio::test]
async fn the_methods_are_listed_with_what_they_take() {
    let app = TestApp::start().await;
    let listed = expect_rpc_result(&app, ENGINE_KEY, json!({"method": "rpc.methods", "params": {}})).await;
    let methods = listed["methods"].as_array().unwrap();
    let params = json!({"type": "object", "properties": {}});
    assert_eq!(methods[0], json!({"method": "rpc.methods", "params": params}));
    let named = |name: &str| methods.iter().find(|method| method["method"] == name);
    assert_eq!(named("tool.read_file").unwrap()["params"]["required"], json!(["path"]));
    let memory = ["memory.search", "memory.save", "memory.list", "memory.delete", "memory.export"];
    assert!(memory.into_iter().all(|name| named(name).is_some()), "{listed}");
    assert!(methods.iter().all(|method| method["params"]["type"] == "object"), "{listed}");
    // It asks a person, and here nobody could show the question.
    assert_eq!(named("tool.ask_user"), None);
    app.stop().await;
}

#[tokio::test]
async fn the_key_changes_at_once_and_until_the_next_start() {
    let mut app = TestApp::start().await;
    let stays = KeyHash::of(OTHER_KEY).to_hex();
    for wrong in ["", "zz", &stays[1..], &stays.to_uppercase(), &format!("{stays}0"), OTHER_KEY] {
        let answer = post_rpc(&app, ENGINE_KEY, set_key_hash_call(wrong).to_string()).await;
        let message = expect_rpc_error(answer, 400, "INVALID_REQUEST").await;
        assert!(
            message.contains("`key_hash`") && (wrong.is_empty() || !message.contains(wrong)),
            "{message}"
        );
    }
    let missing = json!({"subsystem": "control", "op": "set_key_hash"});
    let message =
        expect_rpc_error(post_rpc(&app, ENGINE_KEY, missing.to_string()).await, 400, "INVALID_REQUEST").await;
    assert!(message.contains("key_hash"), "{message}");
    expect_rpc_error(
        post_rpc(&app, OTHER_KEY, set_key_hash_call(&stays).to_string()).await,
        401,
        "INVALID_ENGINE_KEY",
    )
    .await;

    assert_eq!(expect_rpc_result(&app, ENGINE_KEY, set_key_hash_call(&stays)).await, json!({}));
    expect_error(
        with_deadline(app.request("GET", "/tasks").send()).await.unwrap(),
        401,
        "INVALID_ENGINE_KEY",
    )
    .await;
    expect_rpc_error(
        post_rpc(&app, ENGINE_KEY, set_key_hash_call(&stays).to_string()).await,
        401,
        "INVALID_ENGINE_KEY",
    )
    .await;
    let tasks = app.request_without_key("GET", "/tasks").header("X-Engine-Key", OTHER_KEY);
    assert_eq!(with_deadline(tasks.send()).await.unwrap().status(), 200);

    app.restart().await;
    expect_rpc_error(post_rpc(&app, OTHER_KEY, "{}").await, 401, "INVALID_ENGINE_KEY").await;
    app.run_turn("t", "hi").await;
    app.stop().await;
}

#[test]
fn who_holds_an_old_key_cannot_turn_a_change_back() {
    let lock = KeyGuard::new(KeyHash::of(ENGINE_KEY));
    // Both were authenticated before either change.
    let (first, second) = (KeyHolder(KeyHash::of(ENGINE_KEY)), KeyHolder(KeyHash::of(ENGINE_KEY)));
    lock.replace_hash(&first, KeyHash::of(OTHER_KEY)).unwrap();
    let refused = lock.replace_hash(&second, KeyHash::of("sk-svc-mine")).unwrap_err();
    assert_eq!(refused.code(), api::ErrorCode::InvalidEngineKey);
    lock.replace_hash(&KeyHolder(KeyHash::of(OTHER_KEY)), KeyHash::of(ENGINE_KEY)).unwrap();
}

#[tokio::test]
async fn a_quiesced_engine_says_so_and_when_to_come_back() {
    let app = TestApp::start().await;
    let quiesce = json!({"subsystem": "control", "op": "quiesce"});
    assert_eq!(expect_rpc_result(&app, ENGINE_KEY, quiesce.clone()).await, json!({"quiesced": true}));
    assert_eq!(expect_rpc_result(&app, ENGINE_KEY, quiesce).await, json!({"quiesced": true}));
    let body = json!({"task_id": "t", "message": "hi"}).to_string();
    let response = app.post_execute(body).await;
    assert_eq!(response.headers()["retry-after"], "1");
    expect_error(response, 503, "QUIESCED").await;
    let lift = json!({"subsystem": "control", "op": "quiesce", "lift": true});
    assert_eq!(expect_rpc_result(&app, ENGINE_KEY, lift.clone()).await, json!({"quiesced": false}));
    assert_eq!(expect_rpc_result(&app, ENGINE_KEY, lift).await, json!({"quiesced": false}));
    app.run_turn("t", "hi").await;
    app.stop().await;
}

#[tokio::test]
async fn activity_has_exactly_its_fields() {
    let app = TestApp::start().await;
    let activity = json!({"subsystem": "telemetry", "op": "activity"});
    let expected = json!({
        "running_turns": 0, "pending_hitl": 0, "last_activity_at": null, "confinement": "none",
    });
    assert_eq!(expect_rpc_result(&app, ENGINE_KEY, activity.clone()).await, expected);
    app.run_turn("t", "hi").await;
    let mut after = expect_rpc_result(&app, ENGINE_KEY, activity).await;
    let at = after["last_activity_at"].take();
    assert_eq!(after, expected);
    assert!(at.as_str().unwrap().parse::<api::Timestamp>().unwrap().to_string() == at, "{at}");
    app.stop().await;
}

#[tokio::test]
async fn health_proves_the_key_that_holds_to_whoever_asks_with_a_challenge() {
    use api::proof::{CHALLENGE_HEADER, Challenge, PROOF_HEADER};

    let app = TestApp::start().await;
    let asked = async |challenge: Option<&str>| {
        let mut request = app.request_without_key("GET", "/health");
        if let Some(challenge) = challenge {
            request = request.header(CHALLENGE_HEADER, challenge);
        }
        let answer = with_deadline(request.send()).await.unwrap();
        assert_eq!(answer.status(), 200);
        Some(answer.headers().get(PROOF_HEADER)?.to_str().unwrap().to_owned())
    };
    let challenge = Challenge::generate().unwrap();
    let proof = asked(Some(&challenge.to_string())).await.unwrap();
    assert!(challenge.verify(&proof, KeyHash::of(ENGINE_KEY)));
    for none in [None, Some(""), Some("no challenge"), Some(&*"a".repeat(129))] {
        assert_eq!(asked(none).await, None, "{none:?}");
    }
    expect_rpc_result(&app, ENGINE_KEY, set_key_hash_call(&KeyHash::of(OTHER_KEY).to_hex())).await;
    let proof = asked(Some(&challenge.to_string())).await.unwrap();
    assert!(challenge.verify(&proof, KeyHash::of(OTHER_KEY)));
    app.stop().await;
}
