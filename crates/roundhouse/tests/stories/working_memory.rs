//! A task's working memory: it is bounded, and can be read and written over HTTP between turns.

use mock_llm::{Gate, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, message_id, with_fields};
use crate::support::engine_fixture::wait_gate_reached;
use crate::support::http::send;
use crate::support::turn::of_kind;
use crate::support::{EngineFixture, HttpResponse};

async fn memory(fixture: &EngineFixture, task: &str) -> Value {
    fixture.engine.get(&format!("/tasks/{task}/memory")).await.assert_ok("memory:object")["memory"].clone()
}

fn memory_set_reply(key: &str, value: &Value) -> Reply {
    Reply::new().tool_use("working_memory_set", json!({"key": key, "value": value}))
}

#[tokio::test]
async fn what_is_kept_is_bounded_in_all_and_can_be_read() {
    let large = json!("x".repeat(15_000));
    let fixture = EngineFixture::new([
        memory_set_reply("first", &large),
        memory_set_reply("second", &large),
        memory_set_reply("third", &large),
        memory_set_reply("first", &Value::Null),
        memory_set_reply("third", &large),
        Reply::from_text("It is kept."),
    ])
    .await;
    let events = fixture.engine.run_turn("task", "Store this document.").await;
    let errors: Vec<_> =
        of_kind(&events, "tool_result").into_iter().map(|event| event.data["error"].as_str()).collect();
    let [None, None, Some(refused), None, None] = errors[..] else { panic!("{errors:?}") };
    assert!(refused.contains("at most 32768 bytes in all") && refused.contains("null"), "{refused}");
    assert_eq!(memory(&fixture, "task").await, json!({"second": large, "third": large}));

    let fixture = fixture.kill_and_start().await;
    assert_eq!(memory(&fixture, "task").await, json!({"second": large, "third": large}));
    fixture.engine.get("/tasks/unknown/memory").await.assert_error(404, "TASK_NOT_FOUND");
}

async fn put(fixture: &EngineFixture, path: &str, value: &Value) -> HttpResponse {
    send(fixture.engine.request(Method::PUT, path).json(&json!({"value": value}))).await
}

#[tokio::test]
async fn it_is_written_from_outside_between_turns_and_the_next_turn_is_told() {
    let fixture =
        EngineFixture::new([memory_set_reply("colour", &json!("green")), Reply::from_text("Kept.")]).await;
    put(&fixture, "/tasks/task/memory/colour", &json!("red")).await.assert_error(404, "TASK_NOT_FOUND");
    let first = fixture.engine.run_turn("task", "Paint it green.").await;
    let second = fixture.engine.run_turn("task", "And then?").await;
    let written =
        put(&fixture, "/tasks/task/memory/colour", &json!({"name": "red"})).await.assert_ok("memory:object");
    assert_eq!(written["memory"], json!({"colour": {"name": "red"}}));
    put(&fixture, "/tasks/task/memory/size%2Fin%20m", &json!(7)).await.assert_ok("memory:object");
    fixture.engine.delete("/tasks/task/memory/size%2Fin%20m").await.assert_ok("status:text");
    fixture.engine.delete("/tasks/task/memory/size").await.assert_error(404, "NOT_FOUND");
    for (value, field) in [(Value::Null, "value"), (json!("x".repeat(17_000)), "value")] {
        let answer = put(&fixture, "/tasks/task/memory/colour", &value).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains(field));
    }

    let fixture = fixture.kill_and_start().await;
    assert_eq!(memory(&fixture, "task").await, json!({"colour": {"name": "red"}}));
    fixture.engine.run_turn("task", "Which colour?").await;
    fixture.last_messages().assert_contains(&[
        "was changed between the messages",
        r#"colour: {\"name\":\"red\"}"#,
        "size/in m was removed",
    ]);
    let note_count = fixture.last_messages().0.matches("was changed between the messages").count();
    fixture.engine.run_turn("task", "Thanks.").await;
    assert_eq!(
        fixture.last_messages().0.matches("was changed between the messages").count(),
        note_count,
        "the model is told once"
    );

    // An edit of an earlier message also reverts the memory written after it.
    let edit =
        with_fields(direct_message("task", "Or not?"), json!({"edit_message_id": message_id(&second)}));
    fixture.engine.run_turn_with(&edit).await;
    assert_eq!(memory(&fixture, "task").await, json!({"colour": "green"}));
    let edit = with_fields(direct_message("task", "Hello."), json!({"edit_message_id": message_id(&first)}));
    fixture.engine.run_turn_with(&edit).await;
    assert_eq!(memory(&fixture, "task").await, json!({}));
}

#[tokio::test]
async fn it_is_not_written_while_a_turn_runs() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("Slowly.").hold(1, &gate)]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Hi!")).await;
    wait_gate_reached(&gate).await;
    put(&fixture, "/tasks/task/memory/colour", &json!("red")).await.assert_error(409, "TASK_BUSY");
    gate.release();
    stream.collect().await;
    put(&fixture, "/tasks/task/memory/colour", &json!("red")).await.assert_ok("memory:object");
}
