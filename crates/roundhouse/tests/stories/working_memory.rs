//! What the agent keeps in view of a task is bounded, and can be read.

use reqwest::Method;
use serde_json::{Value, json};
use strict_provider::{Gate, Reply};

use crate::support::calls::{message, message_id, with};
use crate::support::http::ask;
use crate::support::model::reached;
use crate::support::turn::of_kind;
use crate::support::{Answer, Rig};

async fn memory(rig: &Rig, task: &str) -> Value {
    rig.engine.get(&format!("/tasks/{task}/memory")).await.ok("memory:object")["memory"].clone()
}

fn kept(key: &str, value: &Value) -> Reply {
    Reply::new().tool_use("working_memory_set", json!({"key": key, "value": value}))
}

#[tokio::test]
async fn what_is_kept_is_bounded_in_all_and_can_be_read() {
    let large = json!("x".repeat(15_000));
    let rig = Rig::new([
        kept("first", &large),
        kept("second", &large),
        kept("third", &large),
        kept("first", &Value::Null),
        kept("third", &large),
        Reply::of_text("It is kept."),
    ])
    .await;
    let events = rig.engine.tell("task", "Store this document.").await;
    let errors: Vec<_> =
        of_kind(&events, "tool_result").into_iter().map(|event| event.data["error"].as_str()).collect();
    let [None, None, Some(refused), None, None] = errors[..] else { panic!("{errors:?}") };
    assert!(refused.contains("at most 32768 bytes in all") && refused.contains("null"), "{refused}");
    assert_eq!(memory(&rig, "task").await, json!({"second": large, "third": large}));

    let rig = rig.kill_and_start().await;
    assert_eq!(memory(&rig, "task").await, json!({"second": large, "third": large}));
    rig.engine.get("/tasks/unknown/memory").await.refused(404, "TASK_NOT_FOUND");
}

async fn put(rig: &Rig, path: &str, value: &Value) -> Answer {
    ask(rig.engine.request(Method::PUT, path).json(&json!({"value": value}))).await
}

#[tokio::test]
async fn it_is_written_from_outside_between_turns_and_the_next_turn_is_told() {
    let rig = Rig::new([kept("colour", &json!("green")), Reply::of_text("Kept.")]).await;
    put(&rig, "/tasks/task/memory/colour", &json!("red")).await.refused(404, "TASK_NOT_FOUND");
    let first = rig.engine.tell("task", "Paint it green.").await;
    let second = rig.engine.tell("task", "And then?").await;
    let written = put(&rig, "/tasks/task/memory/colour", &json!({"name": "red"})).await.ok("memory:object");
    assert_eq!(written["memory"], json!({"colour": {"name": "red"}}));
    put(&rig, "/tasks/task/memory/size%2Fin%20m", &json!(7)).await.ok("memory:object");
    rig.engine.delete("/tasks/task/memory/size%2Fin%20m").await.ok("status:text");
    rig.engine.delete("/tasks/task/memory/size").await.refused(404, "NOT_FOUND");
    for (value, field) in [(Value::Null, "value"), (json!("x".repeat(17_000)), "value")] {
        let answer = put(&rig, "/tasks/task/memory/colour", &value).await;
        assert!(answer.refused(400, "INVALID_REQUEST").contains(field));
    }

    let rig = rig.kill_and_start().await;
    assert_eq!(memory(&rig, "task").await, json!({"colour": {"name": "red"}}));
    rig.engine.tell("task", "Which colour?").await;
    rig.told().has(&[
        "was changed between the messages",
        r#"colour: {\"name\":\"red\"}"#,
        "size/in m was taken out",
    ]);
    let told = rig.told().0.matches("was changed between the messages").count();
    rig.engine.tell("task", "Thanks.").await;
    assert_eq!(rig.told().0.matches("was changed between the messages").count(), told, "it is told once");

    // It goes with what it came after.
    let edit = with(message("task", "Or not?"), json!({"edit_message_id": message_id(&second)}));
    rig.engine.tell_with(&edit).await;
    assert_eq!(memory(&rig, "task").await, json!({"colour": "green"}));
    let edit = with(message("task", "Hello."), json!({"edit_message_id": message_id(&first)}));
    rig.engine.tell_with(&edit).await;
    assert_eq!(memory(&rig, "task").await, json!({}));
}

#[tokio::test]
async fn it_is_not_written_while_a_turn_runs() {
    let gate = Gate::new();
    let rig = Rig::new([Reply::of_text("Slowly.").hold(1, &gate)]).await;
    let stream = rig.engine.execute_with(&message("task", "Hi!")).await;
    reached(&gate).await;
    put(&rig, "/tasks/task/memory/colour", &json!("red")).await.refused(409, "TASK_BUSY");
    gate.release();
    stream.rest().await;
    put(&rig, "/tasks/task/memory/colour", &json!("red")).await.ok("memory:object");
}
