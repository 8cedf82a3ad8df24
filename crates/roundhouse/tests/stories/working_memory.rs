//! What the agent keeps in view of a task is bounded, and can be read.

use serde_json::{Value, json};
use strict_provider::Reply;

use crate::support::Rig;
use crate::support::turn::of_kind;

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
