//! Story 11: the tasks of an engine are listed, shown and deleted.

use std::time::{SystemTime, UNIX_EPOCH};

use api::Timestamp;
use mock_llm::{Gate, Reply};
use serde_json::{Value, json};

use crate::support::engine_calls::{answer_id, direct_message, message_id, roles_and_texts, with_fields};
use crate::support::engine_fixture::{
    PNG_BASE64, ReplyExt as _, ask_user_reply, memory_set_reply, wait_gate_reached, write_file_reply,
};
use crate::support::http::{path_segment, send_raw};
use crate::support::turn::assert_completed;
use crate::support::{Engine, EngineFixture, HttpResponse, StandaloneEngine};

fn names(tasks: &[Value]) -> Vec<&str> {
    tasks.iter().map(|task| task["task_id"].as_str().unwrap()).collect()
}

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

/// Asserts that a time is from the last 30 s; the clock of a task may run 2 s ahead.
#[track_caller]
fn assert_recent(at: Timestamp) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let age = i64::try_from(now).unwrap() - at.unix_ms();
    assert!((-2_000..30_000).contains(&age), "{at} is {age} ms old");
}

/// Sends a request with exactly this path, without a client's normalization.
async fn raw(engine: &Engine, head: &str) -> HttpResponse {
    send_raw(&engine.url, head, &[("x-engine-key", &engine.key)], b"").await
}

#[tokio::test]
async fn a_new_engine_has_no_tasks() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    assert_eq!(engine.get("/tasks").await.body, json!({"tasks": [], "total": 0}));
    for head in ["GET /tasks/unknown", "DELETE /tasks/unknown"] {
        raw(&engine, head).await.assert_error(404, "TASK_NOT_FOUND");
    }
    for (head, key) in [("GET /tasks", ""), ("GET /tasks/unknown", "wrong"), ("DELETE /tasks/unknown", "")] {
        send_raw(&engine.url, head, &[("x-engine-key", key)], b"")
            .await
            .assert_error(401, "INVALID_ENGINE_KEY");
    }
}

#[tokio::test]
async fn tasks_are_listed_the_one_changed_last_first() {
    let fixture = EngineFixture::new([]).await;
    for task in ["one", "two", "three", "one"] {
        fixture.engine.run_turn(task, "Hello!").await;
    }
    let (all, total) = fixture.engine.tasks("").await;
    assert_eq!((names(&all), total), (vec!["one", "three", "two"], 3));
    for (task, count) in all.iter().zip([4, 2, 2]) {
        assert_eq!((&task["status"], &task["message_count"]), (&json!("idle"), &json!(count)), "{task}");
        assert_recent(time(&task["updated_at"]));
    }
    assert!(all.is_sorted_by(|a, b| time(&a["updated_at"]) >= time(&b["updated_at"])), "{all:?}");

    assert_eq!(fixture.engine.tasks("?limit=2").await, (all[..2].to_vec(), 3));
    assert_eq!(fixture.engine.tasks("?offset=1").await, (all[1..].to_vec(), 3));
    assert_eq!(fixture.engine.tasks("?limit=1&offset=1").await, (all[1..2].to_vec(), 3));
    assert_eq!(fixture.engine.tasks("?limit=1000&offset=3").await, (Vec::new(), 3));
    for (field, query) in [
        ("limit", "limit=0"),
        ("limit", "limit=1001"),
        ("limit", "limit=-1"),
        ("limit", "limit=x"),
        ("offset", "offset=-1"),
        ("offset", "offset=1.5"),
    ] {
        let answer = fixture.engine.get(&format!("/tasks?{query}")).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains(field), "{query}");
    }
}

#[tokio::test]
async fn fifty_tasks_are_listed_where_nobody_says_how_many() {
    let fixture = EngineFixture::new([]).await;
    for number in 0..51 {
        fixture.engine.run_turn(&format!("task-{number}"), "Hello!").await;
    }
    let (tasks, total) = fixture.engine.tasks("").await;
    assert_eq!((tasks.len(), total), (50, 51));
    assert_eq!((names(&tasks)[0], names(&tasks)[49]), ("task-50", "task-1"));
}

#[tokio::test]
async fn a_task_shows_whether_it_is_idle_runs_or_waits_for_a_person() {
    let gate = Gate::new();
    let asking_reply = ask_user_reply("Which colour?").hold(1, &gate);
    let fixture = EngineFixture::new([asking_reply, Reply::from_text("Green, then.")]).await;
    let mut stream = fixture.engine.execute_with(&direct_message("task", "Paint it.")).await;
    wait_gate_reached(&gate).await;
    assert_eq!(fixture.engine.task_status("task").await, "running");
    gate.release();
    stream.next_hitl_request().await;
    assert_eq!(fixture.engine.task_status("task").await, "paused");
    fixture.engine.post_execute(&direct_message("task", "Hurry.")).await.assert_error(409, "TASK_BUSY");
    fixture.engine.respond("task", "Green.").await.assert_ok("status:text request_id:hitl");
    assert_completed(&stream.collect().await);
    assert_eq!(fixture.engine.task_status("task").await, "idle");
}

#[tokio::test]
async fn the_messages_of_a_task_are_listed_in_their_order() {
    let fixture = EngineFixture::new(["Hello Ada.", "You are Ada."].map(Reply::from_text)).await;
    let first = fixture.engine.run_turn("task", "I am Ada.").await;
    let second = fixture.engine.run_turn("task", "Who am I?").await;
    fixture.engine.run_turn("other", "Something else.").await;

    let messages = fixture.engine.messages("task").await;
    let expected = [
        (message_id(&first), "user", "I am Ada."),
        (answer_id(&first), "assistant", "Hello Ada."),
        (message_id(&second), "user", "Who am I?"),
        (answer_id(&second), "assistant", "You are Ada."),
    ];
    let times: Vec<Timestamp> = messages.iter().map(|message| time(&message["created_at"])).collect();
    let expected: Vec<Value> = expected
        .iter()
        .zip(&times)
        .map(|((id, role, content), at)| {
            json!({"message_id": id, "role": role, "content": content, "created_at": at.to_string()})
        })
        .collect();
    assert_eq!(messages, expected);
    assert!(times.is_sorted(), "{times:?}");
    times.iter().copied().for_each(assert_recent);

    let fixture = fixture.kill_and_start().await;
    assert_eq!(fixture.engine.messages("task").await, expected);
    assert_eq!(fixture.engine.tasks("?limit=1&offset=1").await.0[0]["message_count"], 4);
}

#[tokio::test]
async fn what_is_more_than_a_text_is_listed_as_blocks() {
    let fixture = EngineFixture::new([
        Reply::new().text("A moment.").memory_set("colour", "green"),
        Reply::from_text("Noted."),
    ])
    .await;
    let picture = json!([{"type": "image", "media_type": "image/png", "data": PNG_BASE64}]);
    fixture
        .engine
        .run_turn_with(&with_fields(direct_message("task", "What is this?"), json!({"media": picture})))
        .await;

    let messages = fixture.engine.messages("task").await;
    let types = |message: &Value| -> Vec<String> {
        let blocks = message["content"].as_array().unwrap_or_else(|| panic!("no blocks: {message}"));
        blocks.iter().map(|block| block["type"].as_str().unwrap().to_owned()).collect()
    };
    let mut first_types = types(&messages[0]);
    first_types.sort();
    assert_eq!(
        (&messages[0]["role"], first_types),
        (&json!("user"), vec!["image".to_owned(), "text".to_owned()])
    );
    assert!(messages[0].to_string().contains("What is this?"), "{}", messages[0]);
    assert_eq!(
        (&messages[1]["role"], types(&messages[1])),
        (&json!("assistant"), vec!["text".to_owned(), "tool_use".to_owned(), "tool_result".to_owned()])
    );
    let all = Value::from(messages.clone()).to_string();
    assert!(all.contains("tool_result") && all.contains("working_memory_set"), "{all}");
    assert!(!all.contains(&PNG_BASE64[..40]), "the data of media is not listed: {all}");
    let last = messages.last().unwrap();
    assert_eq!((&last["role"], &last["content"]), (&json!("assistant"), &json!("Noted.")));
    let count = fixture.engine.tasks("").await.0[0]["message_count"].as_u64();
    assert_eq!(
        count,
        Some(u64::try_from(messages.len()).unwrap()),
        "the count equals the number of listed messages"
    );
}

#[tokio::test]
async fn any_text_can_name_a_task_in_a_path() {
    let fixture = EngineFixture::new([]).await;
    let odd = ["a/b", "50%", "%2F", "🦀 crab", " ", "..", ".", "a?b#c&d=e", "grün\n\0", &"x".repeat(1_024)];
    for task in odd {
        fixture.engine.run_turn(task, &format!("I am {task:?}.")).await;
    }
    assert_eq!(fixture.engine.tasks("").await.1, 10);
    for task in odd {
        let path = format!("/tasks/{}", path_segment(task));
        let messages = raw(&fixture.engine, &format!("GET {path}")).await.assert_ok("messages:array");
        assert_eq!(messages["messages"][0]["content"], format!("I am {task:?}."));
        let deleted = raw(&fixture.engine, &format!("DELETE {path}")).await;
        assert_eq!(deleted.assert_ok("status:text"), json!({"status": "deleted"}), "{task:?}");
        raw(&fixture.engine, &format!("GET {path}")).await.assert_error(404, "TASK_NOT_FOUND");
    }
    assert_eq!(fixture.engine.tasks("").await, (Vec::new(), 0));
    for malformed in ["%", "%zz", "%F", "%FF", "a%C3"] {
        raw(&fixture.engine, &format!("GET /tasks/{malformed}")).await.assert_error(400, "INVALID_REQUEST");
        raw(&fixture.engine, &format!("DELETE /tasks/{malformed}"))
            .await
            .assert_error(400, "INVALID_REQUEST");
    }
    raw(&fixture.engine, "GET /tasks/a/b").await.assert_error(404, "NOT_FOUND");
    raw(&fixture.engine, "POST /tasks").await.assert_error(405, "METHOD_NOT_ALLOWED");
    raw(&fixture.engine, "POST /tasks/a").await.assert_error(405, "METHOD_NOT_ALLOWED");
}

#[tokio::test]
async fn of_a_deleted_task_nothing_is_left() {
    let fixture = EngineFixture::new([]).await;
    fixture.engine.run_turn("kept", "Stay.").await;
    fixture.provider.enqueue_all([memory_set_reply("word", "quicksilver"), Reply::from_text("Noted.")]);
    fixture.engine.run_turn("task", "The word is quicksilver.").await;
    fixture.engine.run_turn("task", "What is the word?").await;

    assert_eq!(
        fixture.engine.delete("/tasks/task").await.assert_ok("status:text"),
        json!({"status": "deleted"})
    );
    assert_gone(&fixture.engine).await;
    let fixture = fixture.kill_and_start().await;
    assert_gone(&fixture.engine).await;

    let fresh = fixture.engine.run_turn("task", "Hello, who is there?").await;
    fixture.last_messages().assert_contains(&["Hello, who is there?"]).assert_lacks(&[
        "quicksilver",
        "Noted.",
        "What is the word?",
    ]);
    assert_eq!(roles_and_texts(&fixture.engine.messages("task").await).len(), 2);
    assert_eq!(fixture.engine.replay("task", 0).await.collect().await, fresh);
    assert_eq!(roles_and_texts(&fixture.engine.messages("kept").await)[0], ("user", "Stay."));
}

/// Asserts that the task `task` is gone and only `kept` exists.
async fn assert_gone(engine: &Engine) {
    engine.get("/tasks/task").await.assert_error(404, "TASK_NOT_FOUND");
    engine.delete("/tasks/task").await.assert_error(404, "TASK_NOT_FOUND");
    engine.get("/execute/replay?task_id=task").await.assert_error(404, "TASK_NOT_FOUND");
    engine.cancel("task").await.assert_error(404, "TASK_NOT_FOUND");
    let (tasks, total) = engine.tasks("").await;
    assert_eq!((names(&tasks), total), (vec!["kept"], 1));
}

#[tokio::test]
async fn a_task_that_runs_or_waits_cannot_be_deleted() {
    let gate = Gate::new();
    let fixture =
        EngineFixture::new([write_file_reply("notes.txt").hold(1, &gate), Reply::from_text("Written.")])
            .await;
    let mut stream = fixture.engine.execute_with(&direct_message("task", "Write.")).await;
    wait_gate_reached(&gate).await;
    fixture.engine.delete("/tasks/task").await.assert_error(409, "TASK_BUSY");
    gate.release();
    stream.next_hitl_request().await;
    fixture.engine.delete("/tasks/task").await.assert_error(409, "TASK_BUSY");
    assert_eq!(fixture.engine.pending().await.len(), 1, "the refusal changes nothing");
    fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    assert_completed(&stream.collect().await);
    fixture.engine.delete("/tasks/task").await.assert_ok("status:text");
    fixture.engine.get("/tasks/task").await.assert_error(404, "TASK_NOT_FOUND");
}
