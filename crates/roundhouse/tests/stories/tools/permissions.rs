//! `permissions.json` of the catalog: what the product has decided on tools.

use serde_json::json;

use crate::support::calls::message;
use crate::support::model::{WIRES, write};
use crate::support::programs::{call, done, results, shell};
use crate::support::turn::{completed, of_kind};
use crate::support::{Event, LoneEngine, Rig, has};

/// An engine with these permissions.
async fn rig(permissions: &str) -> Rig {
    Rig::of("anthropic", [], |place| place.with_programs().with_file("permissions.json", permissions)).await
}

/// A turn that asks nobody: its events.
async fn unasked(rig: &Rig, reply: strict_provider::Reply) -> Vec<Event> {
    rig.provider.enqueue_all([reply, done()]);
    let events = rig.engine.tell("task", "Go on.").await;
    assert_eq!(of_kind(&events, "hitl_request").len(), 0);
    events
}

/// Whether a person is asked about this.
async fn asks(rig: &Rig, reply: strict_provider::Reply) -> bool {
    rig.provider.enqueue_all([reply, done()]);
    let mut stream = rig.engine.execute_with(&message("task", "Go on.")).await;
    let asked_or_done = |event: &Event| event.kind == "hitl_request" || event.kind == "tool_result";
    let asked = stream.until("a request or a result", asked_or_done).await.kind == "hitl_request";
    if asked {
        rig.engine.respond("task", "no").await.ok("status:text request_id:hitl");
    }
    completed(&stream.rest().await);
    asked
}

#[tokio::test]
async fn what_is_allowed_does_not_ask() {
    for wire in WIRES {
        let rig = Rig::of(wire, [], LoneEngine::allowing_all).await;
        let events = unasked(&rig, shell("echo allowed").tool_use("list_files", json!({"path": "."}))).await;
        assert!(results(&events).iter().any(|result| result.is_ok_and(|text| text.contains("allowed"))));
        unasked(&rig, write("notes.txt")).await;
        assert!(rig.place.workspace().join("notes.txt").exists());
    }
}

#[tokio::test]
async fn what_is_denied_is_not_told_of_and_not_run() {
    for wire in WIRES {
        let permissions = r#"{"default": "allow", "tools": {"shell": "deny", "write_*": "deny"}}"#;
        let rig =
            Rig::of(wire, [], |place| place.with_programs().with_file("permissions.json", permissions)).await;
        for (reply, tool) in [(shell("touch ran"), "shell"), (write("ran"), "write_file")] {
            let events = unasked(&rig, reply).await;
            assert!(results(&events)[0].is_err(), "{wire}: {tool}");
        }
        assert!(!rig.place.workspace().join("ran").exists());
        let told = rig.provider.requests().pop().unwrap().body["tools"].to_string();
        assert!(!told.contains("\"shell\"") && !told.contains("\"write_file\""), "{told}");
        assert!(told.contains("\"edit_file\""), "{told}");
    }
}

#[tokio::test]
async fn the_last_rule_that_fits_holds() {
    let rig =
        rig(r#"{"default": "allow", "tools": {"write_file": "deny", "*_file": "ask", "edit_*": "allow"}}"#)
            .await;
    assert!(asks(&rig, write("notes.txt")).await, "a later glob comes before an earlier name");
    assert!(
        asks(&rig, call("read_file", json!({"path": "notes.txt"}))).await,
        "also where it would be allowed"
    );
    assert!(!asks(&rig, call("edit_file", json!({"path": "x", "old": "a", "new": "b"}))).await);
    assert!(!asks(&rig, shell("true")).await, "what no rule is for is as `default` says");
}

#[tokio::test]
async fn without_a_default_a_tool_is_as_it_is_by_itself() {
    let rig = rig(r#"{"tools": {"write_*": "allow"}}"#).await;
    assert!(!asks(&rig, write("notes.txt")).await);
    assert!(asks(&rig, shell("true")).await);
    assert!(!asks(&rig, call("read_file", json!({"path": "notes.txt"}))).await);
}

#[tokio::test]
async fn a_file_that_cannot_be_read_asks_for_everything() {
    for faulty in ["{", "[]", r#"{"tools": "allow"}"#, r#"{"default": "allow"} x"#] {
        let rig = rig(faulty).await;
        for reply in [
            call("read_file", json!({"path": "x"})),
            call("list_files", json!({"path": "."})),
            write("ran"),
            shell("touch ran"),
        ] {
            assert!(asks(&rig, reply).await, "{faulty}");
        }
        assert!(!rig.place.workspace().join("ran").exists());
        let said = rig.program.output();
        assert!(said.contains("permissions.json"), "the log says what is wrong: {said}");
        assert_eq!(rig.engine.health().await["status"], "ok");
    }
}

#[tokio::test]
async fn a_value_that_is_no_permission_denies() {
    let rig = rig(r#"{"default": "allow", "tools": {"shell": "alow", "write_file": true}}"#).await;
    for reply in [shell("touch ran"), write("ran")] {
        assert!(results(&unasked(&rig, reply).await)[0].is_err());
    }
    assert!(!rig.place.workspace().join("ran").exists());
}

#[tokio::test]
async fn the_network_is_off_for_the_shell_unless_it_is_granted() {
    if !has("perl") {
        return;
    }
    // A socket of the network is all that is asked for, nobody is called.
    let line =
        "perl -MSocket -e 'socket(my $s, AF_INET, SOCK_STREAM, 0) ? print \"opened\" : print \"refused\"'";
    for (permissions, may) in
        [(r#"{"default": "allow"}"#, false), (r#"{"default": "allow", "network": ["shell"]}"#, true)]
    {
        let rig = rig(permissions).await;
        if !super::is_confined(&rig).await {
            return;
        }
        let events = unasked(&rig, shell(line)).await;
        let said = results(&events)[0].unwrap();
        assert!(said.contains(if may { "opened" } else { "refused" }), "{permissions}: {said}");
    }
}
