//! `permissions.json` of the catalog: what the product has decided on tools.

use serde_json::json;

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::{WIRES, write_file_reply};
use crate::support::tool_programs::{done_reply, shell_reply, tool_reply, tool_results};
use crate::support::turn::{assert_completed, of_kind};
use crate::support::{EngineFixture, Event, StandaloneEngine, is_installed};

/// An engine with these permissions.
async fn fixture(permissions: &str) -> EngineFixture {
    EngineFixture::with_setup("anthropic", [], |place| {
        place.allowing_unconfined().with_catalog_file("permissions.json", permissions)
    })
    .await
}

/// A turn that asks nobody: its events.
async fn run_turn_without_hitl(rig: &EngineFixture, reply: mock_llm::Reply) -> Vec<Event> {
    rig.provider.enqueue_all([reply, done_reply()]);
    let events = rig.engine.run_turn("task", "Go on.").await;
    assert_eq!(of_kind(&events, "hitl_request").len(), 0);
    events
}

/// Whether a person is asked about this.
async fn is_asked(rig: &EngineFixture, reply: mock_llm::Reply) -> bool {
    rig.provider.enqueue_all([reply, done_reply()]);
    let mut stream = rig.engine.execute_with(&direct_message("task", "Go on.")).await;
    let asked_or_done = |event: &Event| event.kind == "hitl_request" || event.kind == "tool_result";
    let asked = stream.read_until("a request or a result", asked_or_done).await.kind == "hitl_request";
    if asked {
        rig.engine.respond("task", "no").await.assert_ok("status:text request_id:hitl");
    }
    assert_completed(&stream.collect().await);
    asked
}

#[tokio::test]
async fn what_is_allowed_does_not_ask() {
    for wire in WIRES {
        let rig = EngineFixture::with_setup(wire, [], StandaloneEngine::allowing_all_tools).await;
        let events = run_turn_without_hitl(
            &rig,
            shell_reply("echo allowed").tool_use("list_files", json!({"path": "."})),
        )
        .await;
        assert!(tool_results(&events).iter().any(|result| result.is_ok_and(|text| text.contains("allowed"))));
        run_turn_without_hitl(&rig, write_file_reply("notes.txt")).await;
        assert!(rig.setup.workspace().join("notes.txt").exists());
    }
}

#[tokio::test]
async fn what_is_denied_is_not_told_of_and_not_run() {
    for wire in WIRES {
        let permissions = r#"{"default": "allow", "tools": {"shell": "deny", "write_*": "deny"}}"#;
        let rig = EngineFixture::with_setup(wire, [], |place| {
            place.allowing_unconfined().with_catalog_file("permissions.json", permissions)
        })
        .await;
        for (reply, tool) in [(shell_reply("touch ran"), "shell"), (write_file_reply("ran"), "write_file")] {
            let events = run_turn_without_hitl(&rig, reply).await;
            assert!(tool_results(&events)[0].is_err(), "{wire}: {tool}");
        }
        assert!(!rig.setup.workspace().join("ran").exists());
        let told = rig.provider.requests().pop().unwrap().body["tools"].to_string();
        assert!(!told.contains("\"shell\"") && !told.contains("\"write_file\""), "{told}");
        assert!(told.contains("\"edit_file\""), "{told}");
    }
}

#[tokio::test]
async fn the_last_rule_that_fits_holds() {
    let rig = fixture(
        r#"{"default": "allow", "tools": {"write_file": "deny", "*_file": "ask", "edit_*": "allow"}}"#,
    )
    .await;
    assert!(is_asked(&rig, write_file_reply("notes.txt")).await, "a later glob comes before an earlier name");
    assert!(
        is_asked(&rig, tool_reply("read_file", json!({"path": "notes.txt"}))).await,
        "also where it would be allowed"
    );
    assert!(!is_asked(&rig, tool_reply("edit_file", json!({"path": "x", "old": "a", "new": "b"}))).await);
    assert!(!is_asked(&rig, shell_reply("true")).await, "what no rule is for is as `default` says");
}

#[tokio::test]
async fn without_a_default_a_tool_is_as_it_is_by_itself() {
    let rig = fixture(r#"{"tools": {"write_*": "allow"}}"#).await;
    assert!(!is_asked(&rig, write_file_reply("notes.txt")).await);
    assert!(is_asked(&rig, shell_reply("true")).await);
    assert!(!is_asked(&rig, tool_reply("read_file", json!({"path": "notes.txt"}))).await);
}

#[tokio::test]
async fn a_file_that_cannot_be_read_asks_for_everything() {
    for invalid_field in ["{", "[]", r#"{"tools": "allow"}"#, r#"{"default": "allow"} x"#] {
        let rig = fixture(invalid_field).await;
        for reply in [
            tool_reply("read_file", json!({"path": "x"})),
            tool_reply("list_files", json!({"path": "."})),
            write_file_reply("ran"),
            shell_reply("touch ran"),
        ] {
            assert!(is_asked(&rig, reply).await, "{invalid_field}");
        }
        assert!(!rig.setup.workspace().join("ran").exists());
        let said = rig.program.output();
        assert!(said.contains("permissions.json"), "the log says what is wrong: {said}");
        assert_eq!(rig.engine.health().await["status"], "ok");
    }
}

#[tokio::test]
async fn a_value_that_is_no_permission_denies() {
    let rig = fixture(r#"{"default": "allow", "tools": {"shell": "alow", "write_file": true}}"#).await;
    for reply in [shell_reply("touch ran"), write_file_reply("ran")] {
        assert!(tool_results(&run_turn_without_hitl(&rig, reply).await)[0].is_err());
    }
    assert!(!rig.setup.workspace().join("ran").exists());
}

#[tokio::test]
async fn the_network_is_off_for_the_shell_unless_it_is_granted() {
    if !is_installed("perl") {
        return;
    }
    // A socket of the network is all that is asked for, nobody is called.
    let line =
        "perl -MSocket -e 'socket(my $s, AF_INET, SOCK_STREAM, 0) ? print \"opened\" : print \"refused\"'";
    for (permissions, may) in
        [(r#"{"default": "allow"}"#, false), (r#"{"default": "allow", "network": ["shell"]}"#, true)]
    {
        let rig = fixture(permissions).await;
        if !super::is_confined(&rig).await {
            return;
        }
        let events = run_turn_without_hitl(&rig, shell_reply(line)).await;
        let said = tool_results(&events)[0].unwrap();
        assert!(said.contains(if may { "opened" } else { "refused" }), "{permissions}: {said}");
    }
}
