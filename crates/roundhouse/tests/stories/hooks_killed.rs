//! An engine is killed at each durable step around a hooked tool call. What a hook has decided is kept, and what it
//! has not is asked again; no tool runs twice.

use std::fs;
use std::path::Path;

use mock_llm::{Gate, Reply};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::wait_gate_reached;
use crate::support::hook_server::HookServer;
use crate::support::tool_programs::{done_reply, tool_reply, tool_results};
use crate::support::turn::{assert_completed, of_kind};
use crate::support::{EngineFixture, Event, KillRounds, StandaloneEngine, eventually};

/// A script that counts its run in `<name>-runs`, and waits for `<name>-go` if there is a `<name>-wait`.
fn counted(name: &str, then: &str) -> String {
    format!(
        "cat > {name}-seen; echo x >> {name}-runs; \
         while [ -e {name}-wait ] && [ ! -e {name}-go ]; do sleep 0.02; done; {then}"
    )
}

/// An engine whose tool `act` and whose hooks before and after it count their runs. The tool is not idempotent. The
/// hook before it changes the input to the number of its own runs.
async fn fixture(waits: &[&str], permission: &str, last: Reply) -> EngineFixture {
    let before = counted(
        "before",
        r#"printf '{"decision": "allow", "input": {"n": "%s"}, "note": "checked"}' "$(wc -l < before-runs | tr -d ' ')""#,
    );
    let after = counted("after", r#"echo '{"decision": "allow", "result": "replaced", "note": "filed"}'"#);
    let hook = |name: &str, script: &str| json!({"name": name, "on": name, "tools": ["act"], "command": ["sh", "-c", script], "timeout": 60});
    fixture_with([hook("before", &before), hook("after", &after)], waits, permission, last).await
}

/// The same with requests to a server as hooks.
async fn url_fixture(server: &HookServer, permission: &str) -> EngineFixture {
    let hook = |name: &str| json!({"name": name, "on": name, "tools": ["act"], "url": server.url(name), "timeout": 60});
    fixture_with([hook("before"), hook("after")], &[], permission, done_reply()).await
}

async fn fixture_with(hooks: [Value; 2], waits: &[&str], permission: &str, last: Reply) -> EngineFixture {
    let hooks = json!({"hooks": hooks}).to_string();
    let tool = json!({"description": "Acts.", "permission": permission,
                      "command": ["sh", "-c", counted("tool", "cat tool-seen")]});
    let replies = [tool_reply("act", json!({"n": "0"})), last];
    EngineFixture::with_setup("anthropic", replies, |setup: StandaloneEngine| {
        fs::create_dir_all(setup.workspace()).unwrap();
        for name in waits {
            fs::write(setup.workspace().join(format!("{name}-wait")), "").unwrap();
        }
        setup
            .allowing_unconfined()
            .with_catalog_file("hooks.json", &hooks)
            .with_catalog_file("tools/act.json", &tool.to_string())
    })
    .await
}

/// The number of runs of a hook or the tool.
fn runs(workspace: &Path, name: &str) -> usize {
    fs::read_to_string(workspace.join(format!("{name}-runs"))).unwrap_or_default().lines().count()
}

/// The numbers of runs of the hook before the tool, of the tool, and of the hook after it.
fn all_runs(fixture: &EngineFixture) -> [usize; 3] {
    ["before", "tool", "after"].map(|name| runs(&fixture.setup.workspace(), name))
}

/// Starts the turn, kills the engine once the program `name` has begun, and starts the engine again.
async fn killed_while_running(name: &str) -> EngineFixture {
    let fixture = fixture(&[name], "allow", done_reply()).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Go.")).await;
    let workspace = fixture.setup.workspace();
    eventually(name, async || (runs(&workspace, name) == 1).then_some(())).await;
    drop(stream);
    let EngineFixture { provider, setup, program, .. } = fixture;
    program.signal_and_wait(Signal::KILL).await;
    fs::write(workspace.join(format!("{name}-go")), "").unwrap();
    let (program, engine) = setup.start().await;
    EngineFixture { provider, setup, program, engine }
}

async fn all_events(fixture: &EngineFixture) -> Vec<Event> {
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), "Done.");
    fixture.provider.assert_no_refusals();
    events
}

/// Asserts that the tool ran with the input `n`, and that its result is the hook's.
#[track_caller]
fn assert_hooked(fixture: &EngineFixture, events: &[Event], n: &str) {
    assert_eq!(tool_results(events), [Ok("replaced")]);
    let seen = fs::read_to_string(fixture.setup.workspace().join("tool-seen")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&seen).unwrap(), json!({"n": n}));
    assert_eq!(of_kind(events, "tool_call")[0].data["input"], json!({"n": n}));
    assert_eq!(of_kind(events, "tool_hook").len(), 2, "each hook is reported once");
    fixture.last_messages().assert_contains(&["replaced", "checked", "filed"]);
}

#[tokio::test]
async fn before_its_decision_is_stored_a_hook_is_asked_again() {
    let fixture = killed_while_running("before").await;
    let events = all_events(&fixture).await;
    // The decision that is stored is the one that takes effect.
    assert_hooked(&fixture, &events, "2");
    assert_eq!(all_runs(&fixture), [2, 1, 1]);
}

#[tokio::test]
async fn a_stored_decision_holds_while_the_user_is_asked_and_after_a_kill() {
    let fixture = fixture(&[], "ask", done_reply()).await;
    let (stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "Go.")).await;
    drop(stream);
    let fixture = fixture.kill_and_start().await;
    fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    let events = all_events(&fixture).await;
    assert_hooked(&fixture, &events, "1");
    assert_eq!(all_runs(&fixture), [1, 1, 1]);
}

#[tokio::test]
async fn a_tool_that_was_cut_off_is_not_run_again_and_neither_are_its_hooks() {
    let fixture = killed_while_running("tool").await;
    let events = all_events(&fixture).await;
    let results = tool_results(&events);
    assert!(results[0].is_err_and(|error| error.contains("unknown")), "{results:?}");
    assert_eq!(all_runs(&fixture), [1, 1, 0]);
    fixture.last_messages().assert_contains(&["unknown", "checked"]);
}

#[tokio::test]
async fn a_tool_that_has_returned_is_not_run_again_while_the_hook_after_it_is() {
    let fixture = killed_while_running("after").await;
    let events = all_events(&fixture).await;
    assert_hooked(&fixture, &events, "1");
    assert_eq!(all_runs(&fixture), [1, 1, 2]);
}

#[tokio::test]
async fn once_the_result_is_stored_nothing_is_run_again() {
    let gate = Gate::new();
    let fixture = fixture(&[], "allow", done_reply().hold(0, &gate)).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Go.")).await;
    wait_gate_reached(&gate).await;
    drop(stream);
    fixture.provider.enqueue(done_reply());
    let fixture = fixture.kill_and_start().await;
    let events = all_events(&fixture).await;
    assert_hooked(&fixture, &events, "1");
    assert_eq!(all_runs(&fixture), [1, 1, 1]);
}

#[tokio::test]
async fn a_turn_that_is_cancelled_during_a_hook_stops_it_and_shows_no_unchecked_result() {
    for name in ["before", "after"] {
        let fixture = fixture(&[name], "allow", done_reply()).await;
        let stream = fixture.engine.execute_with(&direct_message("task", "Go.")).await;
        let workspace = fixture.setup.workspace();
        eventually(name, async || (runs(&workspace, name) == 1).then_some(())).await;
        fixture.engine.cancel("task").await.assert_ok("status:text turn_id:turn");
        let events = stream.collect().await;
        assert_eq!(events.last().unwrap().phase(), Some("cancelled"));
        fixture.provider.enqueue(done_reply());
        fixture.engine.run_turn("task", "And now?").await;
        fixture.last_messages().assert_contains(&["And now?"]).assert_lacks(&["replaced"]);
        if name == "after" {
            fixture.last_messages().assert_contains(&["withheld", "checked"]);
        }
        assert_eq!(all_runs(&fixture)[1], usize::from(name == "after"));
    }
}

/// The numbers of requests to the hook before the tool, of its runs, and of requests to the hook after it.
fn all_requests(server: &HookServer, fixture: &EngineFixture) -> [usize; 3] {
    let tool = runs(&fixture.setup.workspace(), "tool");
    [server.requests("before").len(), tool, server.requests("after").len()]
}

#[tokio::test]
async fn a_request_that_a_kill_cut_off_is_made_again_about_the_same_call() {
    for name in ["before", "after"] {
        let server = HookServer::start().await;
        let fixture = url_fixture(&server, "allow").await;
        server.hold(Some(name));
        let stream = fixture.engine.execute_with(&direct_message("task", "Go.")).await;
        server.wait_asked(name).await;
        drop(stream);
        let fixture = fixture.kill_and_start().await;
        server.hold(None);
        let events = all_events(&fixture).await;
        let is_before = name == "before";
        assert_hooked(&fixture, &events, if is_before { "2" } else { "1" });
        assert_eq!(all_requests(&server, &fixture), if is_before { [2, 1, 1] } else { [1, 1, 2] });
        let requests = server.requests(name);
        assert_eq!(requests[0], requests[1], "{name}: the product sees that it is the same call");
    }
}

/// The kill comes after the answer of the server: what the engine has stored of it holds, and what it has not, it
/// requests again.
#[tokio::test]
async fn an_answer_that_is_stored_holds_after_a_kill_and_no_other_is_requested() {
    // While the user is asked, the decision before the tool is all that is done.
    for (name, permission) in [("before", "ask"), ("after", "allow")] {
        let mut kills = KillRounds::around(&format!("the answer of the hook {name} the tool is stored"));
        while let Some(delay) = kills.next_delay() {
            let server = HookServer::start().await;
            let fixture = url_fixture(&server, permission).await;
            // For an answer of the model that the kill cuts off.
            fixture.provider.enqueue(done_reply());
            server.hold(Some(name));
            let stream = fixture.engine.execute_with(&direct_message("task", "Go.")).await;
            server.wait_asked(name).await;
            server.hold(None);
            // A timer takes a millisecond at least.
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            drop(stream);
            let fixture = fixture.kill_and_start().await;
            if permission == "ask" {
                let is_asked = async || (!fixture.engine.pending().await.is_empty()).then_some(());
                eventually("the user is asked", is_asked).await;
                fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
            }
            let events = all_events(&fixture).await;
            let requests = all_requests(&server, &fixture);
            let count = server.requests(name).len();
            assert_hooked(&fixture, &events, &requests[0].to_string());
            let expected = if name == "before" { [count, 1, 1] } else { [1, 1, count] };
            assert!(requests == expected && count <= 2, "{name}, killed after {delay:?}: {requests:?}");
            kills.record(count == 1);
        }
    }
}
