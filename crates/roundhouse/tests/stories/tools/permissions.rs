//! `permissions.json` of the catalog: the product's permissions for tools.

use serde_json::json;

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::{WIRES, write_file_reply};
use crate::support::tool_programs::{done_reply, shell_reply, tool_reply, tool_results};
use crate::support::turn::{assert_completed, of_kind};
use crate::support::{EngineFixture, Event, StandaloneEngine, is_installed};

/// An engine with `permissions` as its `permissions.json`.
async fn new_fixture(permissions: &str) -> EngineFixture {
    EngineFixture::with_setup("anthropic", [], |setup| {
        setup.allowing_unconfined().with_catalog_file("permissions.json", permissions)
    })
    .await
}

/// Runs a turn, asserts that it asks the user nothing, and returns its events.
async fn run_turn_without_hitl(fixture: &EngineFixture, reply: mock_llm::Reply) -> Vec<Event> {
    fixture.provider.enqueue_all([reply, done_reply()]);
    let events = fixture.engine.run_turn("task", "Go on.").await;
    assert_eq!(of_kind(&events, "hitl_request").len(), 0);
    events
}

/// Whether the user is asked to approve the call in `reply`.
async fn is_asked(fixture: &EngineFixture, reply: mock_llm::Reply) -> bool {
    fixture.provider.enqueue_all([reply, done_reply()]);
    let mut stream = fixture.engine.execute_with(&direct_message("task", "Go on.")).await;
    let asked_or_done = |event: &Event| event.kind == "hitl_request" || event.kind == "tool_result";
    let is_prompt = stream.read_until("a request or a result", asked_or_done).await.kind == "hitl_request";
    if is_prompt {
        fixture.engine.respond("task", "no").await.assert_ok("status:text request_id:hitl");
    }
    assert_completed(&stream.collect().await);
    is_prompt
}

#[tokio::test]
async fn what_is_allowed_does_not_ask() {
    for wire in WIRES {
        let fixture = EngineFixture::with_setup(wire, [], StandaloneEngine::allowing_all_tools).await;
        let events = run_turn_without_hitl(
            &fixture,
            shell_reply("echo allowed").tool_use("list_files", json!({"path": "."})),
        )
        .await;
        assert!(tool_results(&events).iter().any(|result| result.is_ok_and(|text| text.contains("allowed"))));
        run_turn_without_hitl(&fixture, write_file_reply("notes.txt")).await;
        assert!(fixture.setup.workspace().join("notes.txt").exists());
    }
}

#[tokio::test]
async fn what_is_denied_is_not_told_of_and_not_run() {
    for wire in WIRES {
        let permissions = r#"{"default": "allow", "tools": {"shell": "deny", "write_*": "deny"}}"#;
        let fixture = EngineFixture::with_setup(wire, [], |setup| {
            setup.allowing_unconfined().with_catalog_file("permissions.json", permissions)
        })
        .await;
        for (reply, tool) in [(shell_reply("touch ran"), "shell"), (write_file_reply("ran"), "write_file")] {
            let events = run_turn_without_hitl(&fixture, reply).await;
            assert!(tool_results(&events)[0].is_err(), "{wire}: {tool}");
        }
        assert!(!fixture.setup.workspace().join("ran").exists());
        let tools = fixture.provider.requests().pop().unwrap().body["tools"].to_string();
        assert!(!tools.contains("\"shell\"") && !tools.contains("\"write_file\""), "{tools}");
        assert!(tools.contains("\"edit_file\""), "{tools}");
    }
}

#[tokio::test]
async fn the_last_rule_that_fits_holds() {
    let fixture = new_fixture(
        r#"{"default": "allow", "tools": {"write_file": "deny", "*_file": "ask", "edit_*": "allow"}}"#,
    )
    .await;
    assert!(
        is_asked(&fixture, write_file_reply("notes.txt")).await,
        "a later glob takes precedence over an earlier name"
    );
    assert!(
        is_asked(&fixture, tool_reply("read_file", json!({"path": "notes.txt"}))).await,
        "also for a tool that is allowed by default"
    );
    assert!(!is_asked(&fixture, tool_reply("edit_file", json!({"path": "x", "old": "a", "new": "b"}))).await);
    assert!(!is_asked(&fixture, shell_reply("true")).await, "`default` applies to tools without a rule");
}

#[tokio::test]
async fn without_a_default_a_tool_is_as_it_is_by_itself() {
    let fixture = new_fixture(r#"{"tools": {"write_*": "allow"}}"#).await;
    assert!(!is_asked(&fixture, write_file_reply("notes.txt")).await);
    assert!(is_asked(&fixture, shell_reply("true")).await);
    assert!(!is_asked(&fixture, tool_reply("read_file", json!({"path": "notes.txt"}))).await);
}

#[tokio::test]
async fn a_file_that_cannot_be_read_asks_for_everything() {
    for invalid in ["{", "[]", r#"{"tools": "allow"}"#, r#"{"default": "allow"} x"#] {
        let fixture = new_fixture(invalid).await;
        for reply in [
            tool_reply("read_file", json!({"path": "x"})),
            tool_reply("list_files", json!({"path": "."})),
            write_file_reply("ran"),
            shell_reply("touch ran"),
        ] {
            assert!(is_asked(&fixture, reply).await, "{invalid}");
        }
        assert!(!fixture.setup.workspace().join("ran").exists());
        let output = fixture.program.output();
        assert!(output.contains("permissions.json"), "the log says what is wrong: {output}");
        assert_eq!(fixture.engine.health().await["status"], "ok");
    }
}

#[tokio::test]
async fn a_value_that_is_no_permission_denies() {
    let fixture =
        new_fixture(r#"{"default": "allow", "tools": {"shell": "alow", "write_file": true}}"#).await;
    for reply in [shell_reply("touch ran"), write_file_reply("ran")] {
        assert!(tool_results(&run_turn_without_hitl(&fixture, reply).await)[0].is_err());
    }
    assert!(!fixture.setup.workspace().join("ran").exists());
}

#[tokio::test]
async fn the_network_is_off_for_the_shell_unless_it_is_granted() {
    if !is_installed("perl") {
        return;
    }
    // The script only opens a network socket; it connects to nothing.
    let command =
        "perl -MSocket -e 'socket(my $s, AF_INET, SOCK_STREAM, 0) ? print \"opened\" : print \"refused\"'";
    for (permissions, granted) in
        [(r#"{"default": "allow"}"#, false), (r#"{"default": "allow", "network": ["shell"]}"#, true)]
    {
        let fixture = new_fixture(permissions).await;
        if !super::is_confined(&fixture).await {
            return;
        }
        let events = run_turn_without_hitl(&fixture, shell_reply(command)).await;
        let output = tool_results(&events)[0].unwrap();
        assert!(output.contains(if granted { "opened" } else { "refused" }), "{permissions}: {output}");
    }
}
