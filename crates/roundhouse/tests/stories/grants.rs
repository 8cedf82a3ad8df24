//! Story 18: what a person has allowed for good, and how they take it back.

use api::GrantId;
use mock_llm::Reply;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{ReplyExt as _, WIRES, write_file_reply};
use crate::support::turn::{assert_completed, of_kind};
use crate::support::{EngineFixture, Event};

/// A turn that writes a file; what a person says if they are asked. Gives whether they were.
async fn write_file_asks(rig: &EngineFixture, task: &str, answer: Value) -> bool {
    rig.provider.enqueue_all([write_file_reply("notes.txt"), Reply::from_text("Done.")]);
    let mut stream = rig.engine.execute_with(&direct_message(task, "Write.")).await;
    let paused_or_done = |event: &Event| event.kind == "hitl_request" || event.kind == "tool_result";
    let asked = stream.read_until("a request or a result", paused_or_done).await.kind == "hitl_request";
    if asked {
        let body = with_fields(json!({"task_id": task}), answer);
        rig.engine.respond_with(&body).await.assert_ok("status:text request_id:hitl");
    }
    let events = stream.collect().await;
    assert_completed(&events);
    assert_eq!(of_kind(&events, "hitl_request").len(), usize::from(asked));
    asked
}

fn yes_answer() -> Value {
    json!({"answer": "yes"})
}

fn always_answer(scope: &str) -> Value {
    json!({"answer": "always", "scope": scope})
}

#[tokio::test]
async fn a_yes_is_for_once() {
    let rig = EngineFixture::new([]).await;
    assert!(write_file_asks(&rig, "task", yes_answer()).await);
    assert!(write_file_asks(&rig, "task", yes_answer()).await, "it asks each time");
    assert_eq!(rig.engine.get("/hitl/grants").await.body, json!({"grants": []}));
}

#[tokio::test]
async fn a_yes_for_the_task_holds_in_it_and_nowhere_else() {
    for wire in WIRES {
        let rig = EngineFixture::for_wire(wire, []).await;
        assert!(write_file_asks(&rig, "task", json!({"answer": "always"})).await, "the task is the default");
        assert!(!write_file_asks(&rig, "task", yes_answer()).await, "{wire}: it asks no more");
        assert!(write_file_asks(&rig, "other", yes_answer()).await, "{wire}: another task asks");

        let grants = rig.engine.grants().await;
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
    let rig = EngineFixture::new([]).await;
    assert!(write_file_asks(&rig, "task", always_answer("engine")).await);
    assert!(!write_file_asks(&rig, "task", yes_answer()).await);
    assert!(!write_file_asks(&rig, "other", yes_answer()).await);
    let grants = rig.engine.grants().await;
    let expected = json!({
        "id": grants[0]["id"],
        "tool": "write_file",
        "scope": "engine",
        "created_at": grants[0]["created_at"],
    });
    assert_eq!(grants, [expected]);

    let rig = rig.kill_and_start().await;
    assert_eq!(rig.engine.grants().await, grants);
    assert!(!write_file_asks(&rig, "third", yes_answer()).await, "it outlives the death of the engine");
}

#[tokio::test]
async fn a_yes_for_one_tool_is_none_for_another() {
    let rig = EngineFixture::new([]).await;
    assert!(write_file_asks(&rig, "task", always_answer("engine")).await);
    let edit = json!({"path": "notes.txt", "old": "This", "new": "That"});
    rig.provider.enqueue(Reply::new().tool_use("edit_file", edit));
    let (stream, request) = rig.engine.run_until_hitl_request(&direct_message("task", "Edit.")).await;
    assert_eq!(request.data["kind"], "permission");
    rig.engine.respond("task", "no").await.assert_ok("status:text request_id:hitl");
    assert_completed(&stream.collect().await);
}

#[tokio::test]
async fn a_yes_for_good_holds_for_the_calls_beside_it() {
    let rig =
        EngineFixture::new([write_file_reply("one.txt").write_file("two.txt"), Reply::from_text("Done.")])
            .await;
    let (stream, _) = rig.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
    let body = json!({"task_id": "task", "answer": "always"});
    rig.engine.respond_with(&body).await.assert_ok("status:text request_id:hitl");
    let events = stream.collect().await;
    assert_eq!(assert_completed(&events), "Done.");
    assert_eq!(of_kind(&events, "hitl_request").len(), 1);
    assert_eq!(of_kind(&events, "hitl_resolved")[0].data["answer"], "always");
    assert!(rig.setup.workspace().join("two.txt").exists());
}

#[tokio::test]
async fn a_grant_that_is_taken_back_asks_again() {
    let rig = EngineFixture::new([]).await;
    write_file_asks(&rig, "one", always_answer("task")).await;
    write_file_asks(&rig, "two", always_answer("engine")).await;
    let grants = rig.engine.grants().await;
    let scopes: Vec<&Value> = grants.iter().map(|grant| &grant["scope"]).collect();
    assert_eq!(scopes, ["task", "engine"], "the oldest first");

    let path = format!("/hitl/grants/{}", grants[1]["id"].as_str().unwrap());
    assert_eq!(rig.engine.delete(&path).await.assert_ok("status:text"), json!({"status": "deleted"}));
    rig.engine.delete(&path).await.assert_error(404, "NOT_FOUND");
    assert_eq!(rig.engine.grants().await, grants[..1]);
    assert!(write_file_asks(&rig, "two", yes_answer()).await, "it asks again");
    assert!(!write_file_asks(&rig, "one", yes_answer()).await, "the other grant stands");

    let rig = rig.kill_and_start().await;
    assert_eq!(rig.engine.grants().await, grants[..1]);
    assert!(write_file_asks(&rig, "two", yes_answer()).await);
}

#[tokio::test]
async fn a_grant_that_there_is_not_cannot_be_taken_back() {
    let rig = EngineFixture::new([]).await;
    write_file_asks(&rig, "task", always_answer("task")).await;
    let unknown = GrantId::new().to_string();
    for id in [unknown.as_str(), "nonsense", "grant_", "%F0%9F%A6%80"] {
        rig.engine.delete(&format!("/hitl/grants/{id}")).await.assert_error(404, "NOT_FOUND");
    }
    assert_eq!(rig.engine.grants().await.len(), 1);
}

#[tokio::test]
async fn a_deleted_task_takes_its_grants_along() {
    let rig = EngineFixture::new([]).await;
    write_file_asks(&rig, "task", always_answer("task")).await;
    rig.engine.delete("/tasks/task").await.assert_ok("status:text");
    assert_eq!(rig.engine.grants().await, [Value::Null; 0]);
    assert!(write_file_asks(&rig, "task", yes_answer()).await, "a new task of that name asks");
}
