//! The user's own tool servers over kills of the engine: each step has happened or not, and can be repeated.

use reqwest::Method;
use serde_json::{Value, json};

use crate::schedules::is_in_a_file;
use crate::support::KillRounds;
use crate::support::scripted_mcp::{ScriptedMcp, tool};
use crate::support::tool_programs::tool_results;
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

#[tokio::test]
async fn a_step_that_a_kill_interrupts_has_happened_or_not_and_is_repeated() {
    let server = ScriptedMcp::start(vec![tool("look", "About cedarhill9e63z.")]).await;
    let url = server.url();
    let mut fixture = permitting_fixture().await;
    let [mut additions, mut approvals, mut deletions] =
        ["a server is added", "its tools are approved", "it is deleted"].map(KillRounds::around);
    let mut is_answered;
    while ![&additions, &approvals, &deletions].into_iter().all(KillRounds::is_over) {
        let adding = fixture.engine.request(Method::POST, "/mcp/servers");
        let adding = adding.json(&json!({"name": "notes", "url": url}));
        (fixture, is_answered) = fixture.kill_during(adding, additions.delay()).await;
        let listed = fixture.engine.get("/mcp/servers").await;
        let count = listed.body["servers"].as_array().unwrap().len();
        assert!(count == 1 || (count == 0 && !is_answered), "{is_answered}: {}", listed.body);
        additions.record(count == 1);
        let repeated = add(&fixture.engine, "notes", &url, json!({})).await.status;
        assert_eq!(repeated, if count == 1 { 200 } else { 201 });
        connect(&fixture.engine, "notes").await.assert_ok("status:text connection:connection");

        let digest = read(&fixture.engine, "notes").await["digest"].clone();
        let approving = fixture.engine.request(Method::POST, "/mcp/servers/notes/approve");
        let approving = approving.json(&json!({"digest": digest}));
        (fixture, is_answered) = fixture.kill_during(approving, approvals.delay()).await;
        let shown = read(&fixture.engine, "notes").await;
        let is_approved = states(&shown) == [("look", "approved")];
        assert!(
            is_approved || (states(&shown) == [("look", "new")] && !is_answered),
            "{is_answered}: {shown}"
        );
        approvals.record(is_approved);
        approve(&fixture.engine, "notes").await;

        let deleting = fixture.engine.request(Method::DELETE, "/mcp/servers/notes");
        (fixture, is_answered) = fixture.kill_during(deleting, deletions.delay()).await;
        let repeated = fixture.engine.delete("/mcp/servers/notes").await.status;
        assert!(repeated == 404 || (repeated == 200 && !is_answered), "{is_answered}: {repeated}");
        deletions.record(repeated == 404);
        let listed = fixture.engine.get("/mcp/servers").await;
        assert_eq!(listed.body["servers"], json!([]));
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
