//! The user's own tool servers over kills of the engine: each step has happened or not, and can be repeated.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::schedules::is_in_a_file;
use crate::support::scripted_mcp::{ScriptedMcp, tool};
use crate::support::tool_programs::tool_results;
use crate::support::{Engine, EngineFixture, HttpResponse};
use crate::user_servers::{
    add, add_approved, approve, approve_digest, call, connect, permitting_fixture, read, states,
};

#[tokio::test]
async fn every_step_outlives_a_kill() {
    let server = ScriptedMcp::start(vec![tool("look", "Looks up.")]).await;
    server.state().requires_token = true;
    let fixture = permitting_fixture().await;
    let added = add(&fixture.engine, "notes", &server.url(), json!({"auth": "oauth"})).await;
    assert_eq!(added.status, 201);

    let fixture = fixture.kill_and_start().await;
    let shown = read(&fixture.engine, "notes").await;
    assert_eq!(
        (&shown["status"], &shown["created_at"]),
        (&json!("not_connected"), &added.body["created_at"])
    );
    let asked =
        connect(&fixture.engine, "notes").await.assert_ok("status:text authorization_url:text state:text");

    let fixture = fixture.kill_and_start().await;
    assert_eq!(read(&fixture.engine, "notes").await["status"], "pending");
    let callback = json!({"code": "a-code", "state": asked["state"]});
    fixture.engine.post("/assets/callback", &callback).await.assert_ok("status:text connection:connection");

    let fixture = fixture.kill_and_start().await;
    let shown = read(&fixture.engine, "notes").await;
    assert_eq!((&shown["status"], states(&shown)), (&json!("connected"), vec![("look", "new")]));
    approve_digest(&fixture.engine, "notes", &shown["digest"]).await;

    let fixture = fixture.kill_and_start().await;
    assert_eq!(states(&read(&fixture.engine, "notes").await), [("look", "approved")]);
    assert_eq!(tool_results(&call(&fixture, "call", "notes__look").await), [Ok("look was called")]);
    fixture.engine.delete("/mcp/servers/notes").await.assert_ok("status:text");

    let fixture = fixture.kill_and_start().await;
    fixture.engine.get("/mcp/servers/notes").await.assert_error(404, "SERVER_NOT_FOUND");
    assert_eq!(server.state().revoked, ["token-0-7q41x"]);
}

/// Ends the engine with SIGKILL while it handles a request, `after` it was sent, and starts it again.
async fn kill_during<R: Future<Output = HttpResponse>>(
    fixture: EngineFixture,
    after: Duration,
    request: impl FnOnce(Engine) -> R,
) -> EngineFixture {
    let EngineFixture { provider, setup, program, engine } = fixture;
    let request = request(engine);
    // The kill is what ends the request, so its answer may not come.
    let _ = tokio::time::timeout(after, request).await;
    program.signal_and_wait(Signal::KILL).await;
    let (program, engine) = setup.start().await;
    EngineFixture { provider, setup, program, engine }
}

#[tokio::test]
async fn a_step_that_a_kill_interrupts_has_happened_or_not_and_is_repeated() {
    let server = ScriptedMcp::start(vec![tool("look", "About cedarhill9e63z.")]).await;
    let url = server.url();
    let mut fixture = permitting_fixture().await;
    for ms in [0, 1, 2, 4, 8, 20] {
        let after = Duration::from_millis(ms);
        let url_of = url.clone();
        let adding = |engine: Engine| async move { add(&engine, "notes", &url_of, json!({})).await };
        fixture = kill_during(fixture, after, adding).await;
        let listed = fixture.engine.get("/mcp/servers").await;
        assert!(listed.body["servers"].as_array().unwrap().len() <= 1, "{ms} ms: {}", listed.body);
        assert!([200, 201].contains(&add(&fixture.engine, "notes", &url, json!({})).await.status), "{ms} ms");
        connect(&fixture.engine, "notes").await.assert_ok("status:text connection:connection");

        let digest = read(&fixture.engine, "notes").await["digest"].clone();
        let approving = |engine: Engine| async move { approve_digest(&engine, "notes", &digest).await };
        fixture = kill_during(fixture, after, approving).await;
        let shown = read(&fixture.engine, "notes").await;
        assert!(
            [[("look", "new")], [("look", "approved")]].contains(&[states(&shown)[0]]),
            "{ms} ms: {shown}"
        );
        approve(&fixture.engine, "notes").await;

        let deleting = |engine: Engine| async move { engine.delete("/mcp/servers/notes").await };
        fixture = kill_during(fixture, after, deleting).await;
        let repeated = fixture.engine.delete("/mcp/servers/notes").await.status;
        assert!([200, 404].contains(&repeated), "{ms} ms: {repeated}");
        let listed = fixture.engine.get("/mcp/servers").await;
        assert_eq!(listed.body["servers"], json!([]), "{ms} ms");
        assert_eq!(fixture.engine.connections().await, [Value::Null; 0]);
    }
    // What the last deletion left to be erased is erased by the next start.
    let folder = fixture.setup.test_env.path().to_owned();
    crate::support::eventually("it is erased", async || {
        (!is_in_a_file(&folder, "cedarhill9e63z")).then_some(())
    })
    .await;
    add_approved(&fixture.engine, "notes", &server).await;
}
