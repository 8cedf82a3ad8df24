//! Story 18: lasting grants, and how a person revokes them.

use api::GrantId;
use mock_llm::Reply;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{ReplyExt as _, WIRES, write_file_reply};
use crate::support::turn::{assert_completed, of_kind};
use crate::support::{EngineFixture, Event};

/// Runs a turn that writes a file, and sends `answer` if approval is requested; returns whether it was.
async fn write_file_asks(fixture: &EngineFixture, task: &str, answer: Value) -> bool {
    fixture.provider.enqueue_all([write_file_reply("notes.txt"), Reply::from_text("Done.")]);
    let mut stream = fixture.engine.execute_with(&direct_message(task, "Write.")).await;
    let paused_or_done = |event: &Event| event.kind == "hitl_request" || event.kind == "tool_result";
    let was_asked = stream.read_until("a request or a result", paused_or_done).await.kind == "hitl_request";
    if was_asked {
        let body = with_fields(json!({"task_id": task}), answer);
        fixture.engine.respond_with(&body).await.assert_ok("status:text request_id:hitl");
    }
    let events = stream.collect().await;
    assert_completed(&events);
    assert_eq!(of_kind(&events, "hitl_request").len(), usize::from(was_asked));
    was_asked
}

fn yes_answer() -> Value {
    json!({"answer": "yes"})
}

fn always_answer(scope: &str) -> Value {
    json!({"answer": "always", "scope": scope})
}

#[tokio::test]
async fn a_yes_is_for_once() {
    let fixture = EngineFixture::new([]).await;
    assert!(write_file_asks(&fixture, "task", yes_answer()).await);
    assert!(write_file_asks(&fixture, "task", yes_answer()).await, "it asks each time");
    assert_eq!(fixture.engine.get("/hitl/grants").await.body, json!({"grants": []}));
}

#[tokio::test]
async fn a_yes_for_the_task_holds_in_it_and_nowhere_else() {
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, []).await;
        assert!(
            write_file_asks(&fixture, "task", json!({"answer": "always"})).await,
            "the task is the default"
        );
        assert!(!write_file_asks(&fixture, "task", yes_answer()).await, "{wire}: it no longer asks");
        assert!(write_file_asks(&fixture, "other", yes_answer()).await, "{wire}: another task asks");

        let grants = fixture.engine.grants().await;
        let expected = json!({
            "id": grants[0]["id"],
            "tool": "write_file",
            "scope": "task",
            "task_id": "task",
            "created_at": grants[0]["created_at"],
        });
        assert_eq!(grants, [expected]);
    }
}

#[tokio::test]
async fn a_yes_for_the_engine_holds_in_every_task() {
    let fixture = EngineFixture::new([]).await;
    assert!(write_file_asks(&fixture, "task", always_answer("engine")).await);
    assert!(!write_file_asks(&fixture, "task", yes_answer()).await);
    assert!(!write_file_asks(&fixture, "other", yes_answer()).await);
    let grants = fixture.engine.grants().await;
    let expected = json!({
        "id": grants[0]["id"],
        "tool": "write_file",
        "scope": "engine",
        "created_at": grants[0]["created_at"],
    });
    assert_eq!(grants, [expected]);

    let fixture = fixture.kill_and_start().await;
    assert_eq!(fixture.engine.grants().await, grants);
    assert!(
        !write_file_asks(&fixture, "third", yes_answer()).await,
        "the grant survives a crash of the engine"
    );
}

#[tokio::test]
async fn a_yes_for_one_tool_is_none_for_another() {
    let fixture = EngineFixture::new([]).await;
    assert!(write_file_asks(&fixture, "task", always_answer("engine")).await);
    let edit = json!({"path": "notes.txt", "old": "This", "new": "That"});
    fixture.provider.enqueue(Reply::new().tool_use("edit_file", edit));
    let (stream, request) = fixture.engine.run_until_hitl_request(&direct_message("task", "Edit.")).await;
    assert_eq!(request.data["kind"], "permission");
    fixture.engine.respond("task", "no").await.assert_ok("status:text request_id:hitl");
    assert_completed(&stream.collect().await);
}

#[tokio::test]
async fn a_yes_for_good_holds_for_the_calls_beside_it() {
    let fixture =
        EngineFixture::new([write_file_reply("one.txt").write_file("two.txt"), Reply::from_text("Done.")])
            .await;
    let (stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
    let body = json!({"task_id": "task", "answer": "always"});
    fixture.engine.respond_with(&body).await.assert_ok("status:text request_id:hitl");
    let events = stream.collect().await;
    assert_eq!(assert_completed(&events), "Done.");
    assert_eq!(of_kind(&events, "hitl_request").len(), 1);
    assert_eq!(of_kind(&events, "hitl_resolved")[0].data["answer"], "always");
    assert!(fixture.setup.workspace().join("two.txt").exists());
}

#[tokio::test]
async fn a_grant_that_is_taken_back_asks_again() {
    let fixture = EngineFixture::new([]).await;
    write_file_asks(&fixture, "one", always_answer("task")).await;
    write_file_asks(&fixture, "two", always_answer("engine")).await;
    let grants = fixture.engine.grants().await;
    let scopes: Vec<&Value> = grants.iter().map(|grant| &grant["scope"]).collect();
    assert_eq!(scopes, ["task", "engine"], "the oldest first");

    let path = format!("/hitl/grants/{}", grants[1]["id"].as_str().unwrap());
    assert_eq!(fixture.engine.delete(&path).await.assert_ok("status:text"), json!({"status": "deleted"}));
    fixture.engine.delete(&path).await.assert_error(404, "NOT_FOUND");
    assert_eq!(fixture.engine.grants().await, grants[..1]);
    assert!(write_file_asks(&fixture, "two", yes_answer()).await, "it asks again");
    assert!(!write_file_asks(&fixture, "one", yes_answer()).await, "the other grant stands");

    let fixture = fixture.kill_and_start().await;
    assert_eq!(fixture.engine.grants().await, grants[..1]);
    assert!(write_file_asks(&fixture, "two", yes_answer()).await);
}

#[tokio::test]
async fn a_grant_that_there_is_not_cannot_be_taken_back() {
    let fixture = EngineFixture::new([]).await;
    write_file_asks(&fixture, "task", always_answer("task")).await;
    let unknown = GrantId::new().to_string();
    for id in [unknown.as_str(), "nonsense", "grant_", "%F0%9F%A6%80"] {
        fixture.engine.delete(&format!("/hitl/grants/{id}")).await.assert_error(404, "NOT_FOUND");
    }
    assert_eq!(fixture.engine.grants().await.len(), 1);
}

#[tokio::test]
async fn a_deleted_task_takes_its_grants_along() {
    let fixture = EngineFixture::new([]).await;
    write_file_asks(&fixture, "task", always_answer("task")).await;
    fixture.engine.delete("/tasks/task").await.assert_ok("status:text");
    assert_eq!(fixture.engine.grants().await, [Value::Null; 0]);
    assert!(write_file_asks(&fixture, "task", yes_answer()).await, "a new task of that name asks");
}
