//! `tool.<name>` of `/rpc`: a tool call without a turn, for holders of the engine's key.

use serde_json::{Value, json};

use crate::support::{Engine, EngineFixture, HttpResponse, StandaloneEngine};

async fn call(engine: &Engine, method: &str, params: Value) -> HttpResponse {
    engine.post("/rpc", &json!({"method": method, "params": params})).await
}

/// The output of a successful call.
async fn output(engine: &Engine, method: &str, params: Value) -> String {
    let answer = call(engine, method, params).await.assert_ok("result:object");
    answer["result"]["output"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_tool_is_called_and_nobody_is_asked() {
    let fixture = EngineFixture::allowing_unconfined([]).await;
    let shell_output = output(&fixture.engine, "tool.shell", json!({"command": "echo hello; pwd"})).await;
    let workspace = fixture.setup.workspace();
    assert!(
        shell_output.contains("hello") && shell_output.contains(workspace.to_str().unwrap()),
        "{shell_output}"
    );
    output(&fixture.engine, "tool.write_file", json!({"path": "notes.txt", "content": "Kept."})).await;
    assert_eq!(output(&fixture.engine, "tool.read_file", json!({"path": "notes.txt"})).await.trim(), "Kept.");
    assert_eq!(fixture.engine.pending().await, [Value::Null; 0]);
    assert_eq!((fixture.engine.tasks("").await.1, fixture.model_calls()), (0, 0), "no turn, no task");
}

#[tokio::test]
async fn what_is_denied_stays_denied_and_what_is_wrong_is_named() {
    let permissions = r#"{"tools": {"shell": "deny", "write_*": "ask"}}"#;
    let fixture = EngineFixture::with_setup("anthropic", [], |setup| {
        setup.allowing_unconfined().with_catalog_file("permissions.json", permissions)
    })
    .await;
    let engine = &fixture.engine;
    call(engine, "tool.shell", json!({"command": "touch ran"})).await.assert_flat_error(400, "TOOL_DENIED");
    assert!(!fixture.setup.workspace().join("ran").exists());
    output(engine, "tool.write_file", json!({"path": "written", "content": "x"})).await;
    let answer = call(engine, "tool.write_file", json!({"path": 7})).await;
    let message = answer.assert_flat_error(400, "TOOL_FAILED");
    assert!(
        message.contains("path") && message.contains("content"),
        "the message names each invalid field: {message}"
    );
    call(engine, "tool.read_file", json!({"path": "nowhere"})).await.assert_flat_error(400, "TOOL_FAILED");
    for method in ["tool.nothing", "tool.", "tool.ask_user", "tool.run_agent", "tool.SHELL"] {
        call(engine, method, json!({})).await.assert_flat_error(404, "METHOD_NOT_FOUND");
    }
    let unauthorized = engine.with_key("sk-svc-not-the-key");
    call(&unauthorized, "tool.read_file", json!({"path": "written"}))
        .await
        .assert_flat_error(401, "INVALID_ENGINE_KEY");
}

#[tokio::test]
async fn telemetry_tells_how_far_programs_are_confined() {
    let setup = StandaloneEngine::new().allowing_unconfined();
    let (_program, engine) = setup.start().await;
    let confinement = async || engine.activity().await["confinement"].as_str().unwrap().to_owned();
    let before = confinement().await;
    assert!(!before.is_empty());
    output(&engine, "tool.shell", json!({"command": "true"})).await;
    let after = confinement().await;
    assert!(after.starts_with(&before), "{before:?}, then {after:?}");
    if before.contains("landlock") {
        assert!(before.contains("seccomp") && after.contains("processes by"), "{after}");
    }
}
