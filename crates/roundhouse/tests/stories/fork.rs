//! Forks: a conversation goes on from one of its messages in a task of its own, and each is deleted without the other.

use mock_llm::{Gate, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::conversations::CONVERSATION;
use crate::support::engine_calls::{answer_id, direct_message, message_id, with_fields};
use crate::support::engine_fixture::{PNG_BASE64, ReplyExt as _, wait_gate_reached};
use crate::support::http::send;
use crate::support::tool_programs::{done_reply, shell_reply};
use crate::support::turn::of_kind;
use crate::support::{Engine, EngineFixture, HttpResponse, KillRounds, eventually};

async fn fork(engine: &Engine, task: &str, body: Value) -> HttpResponse {
    engine.post(&format!("/tasks/{task}/fork"), &body).await
}

/// The ids of a task's messages.
async fn ids(engine: &Engine, task: &str) -> Vec<Value> {
    engine.messages(task).await.iter().map(|message| message["message_id"].clone()).collect()
}

async fn memory(engine: &Engine, task: &str) -> Value {
    engine.get(&format!("/tasks/{task}/memory")).await.body["memory"].clone()
}

/// The tasks in which a search finds something.
async fn found_in(engine: &Engine, words: &str) -> Vec<String> {
    let found = engine.get(&format!("/conversations/search?q={words}")).await.assert_ok("results:array");
    let results = found["results"].as_array().unwrap();
    results.iter().map(|hit| hit["task_id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_fork_goes_on_from_a_message_and_changes_nothing_of_the_original() {
    let fixture = EngineFixture::new([
        Reply::new().memory_set("colour", "green"),
        Reply::from_text("It is green."),
        Reply::new().memory_set("colour", "red"),
        Reply::from_text("It is red."),
    ])
    .await;
    let engine = &fixture.engine;
    let media = json!([{"type": "image", "media_type": "image/png", "name": "a.png", "data": PNG_BASE64}]);
    let first =
        engine.run_turn_with(&with_fields(direct_message("task", "Green?"), json!({"media": media}))).await;
    let second = engine.run_turn("task", "And red?").await;
    let change = json!({"title": "Colours", "metadata": {"project": "a"}, "pinned": true});
    send(engine.request(Method::PATCH, "/tasks/task/conversation").json(&change))
        .await
        .assert_ok(CONVERSATION);
    let original = (ids(engine, "task").await, memory(engine, "task").await);
    let shown = engine.get("/tasks/task/conversation").await.body;

    let body = json!({"task_id": "fork", "after": answer_id(&first)});
    let made = fork(engine, "task", body.clone()).await.assert_ok(CONVERSATION);
    assert_eq!(made["forked_from"], json!({"task_id": "task", "message_id": answer_id(&first)}));
    assert_eq!((&made["title"], &made["metadata"]), (&json!("Colours"), &json!({"project": "a"})));
    assert_eq!((&made["pinned"], &made["message_count"]), (&json!(false), &json!(3)));
    assert_eq!(ids(engine, "fork").await, original.0[..3]);
    assert_eq!(engine.messages("fork").await, engine.messages("task").await[..3]);
    assert_eq!(memory(engine, "fork").await, json!({"colour": "green"}));
    // Repeated, also after a kill, it is the same one.
    assert_eq!(fork(engine, "task", body.clone()).await.assert_ok(CONVERSATION), made);
    let fixture = fixture.kill_and_start().await;
    let engine = &fixture.engine;
    assert_eq!(fork(engine, "task", body).await.assert_ok(CONVERSATION), made);
    assert_eq!(fork(engine, "task", json!({"task_id": "fork"})).await.assert_ok(CONVERSATION), made);

    engine.run_turn("fork", "And blue?").await;
    fixture
        .last_messages()
        .assert_contains(&["Green?", "image/png", "It is green.", "And blue?"])
        .assert_lacks(&["And red?"]);
    // An answer of the copy is made again, and a question of it changed.
    let retry =
        json!({"task_id": "fork", "message": "", "direct": true, "retry_message_id": message_id(&first)});
    engine.run_turn_with(&retry).await;
    let edit =
        json!({"task_id": "fork", "message": "Grey?", "direct": true, "edit_message_id": message_id(&first)});
    engine.run_turn_with(&edit).await;
    fixture.last_messages().assert_contains(&["Grey?"]).assert_lacks(&["Green?", "blue"]);
    assert_eq!((ids(engine, "task").await, memory(engine, "task").await), original);
    assert_eq!(engine.get("/tasks/task/conversation").await.body, shown);

    // A question is copied without its answer, which the copy is asked for.
    let asked = json!({"task_id": "asked", "after": message_id(&second), "title": "Other"});
    let asked = fork(engine, "task", asked).await.assert_ok(CONVERSATION);
    assert_eq!((&asked["title"], &asked["message_count"]), (&json!("Other"), &json!(4)));
    let retry =
        json!({"task_id": "asked", "message": "", "direct": true, "retry_message_id": message_id(&second)});
    engine.run_turn_with(&retry).await;
    assert_eq!(ids(engine, "asked").await.len(), 5);
    // And a fork is forked.
    let again = fork(engine, "asked", json!({"task_id": "again"})).await.assert_ok(CONVERSATION);
    assert_eq!(again["forked_from"]["task_id"], "asked");
    assert_eq!(ids(engine, "again").await, ids(engine, "asked").await);
}

#[tokio::test]
async fn what_cannot_be_forked_is_refused_and_makes_no_task() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("Yes.")]).await;
    let engine = &fixture.engine;
    let first = engine.run_turn("task", "Hello?").await;
    engine.run_turn("other", "Hello?").await;
    let after = answer_id(&first);
    fork(engine, "unknown", json!({"task_id": "new"})).await.assert_error(404, "TASK_NOT_FOUND");
    for id in ["msg_7", "", "msg_0190a0b0c0d0e0f00102030405060708"] {
        let refused = fork(engine, "task", json!({"task_id": "new", "after": id})).await;
        refused.assert_error(404, "MESSAGE_NOT_FOUND");
    }
    for (body, named) in [
        (json!({}), "task_id"),
        (json!({"task_id": ""}), "task_id"),
        (json!({"task_id": "new", "after": 7}), "after"),
        (json!({"task_id": "new", "title": " "}), "title"),
    ] {
        assert!(fork(engine, "task", body).await.assert_error(400, "INVALID_REQUEST").contains(named));
    }
    for taken in ["other", "task"] {
        fork(engine, "task", json!({"task_id": taken, "after": after}))
            .await
            .assert_error(409, "TASK_EXISTS");
    }
    assert_eq!(engine.tasks("").await.1, 2);

    // A turn that is running is copied as far as it is stored.
    fixture.provider.enqueue_all([Reply::from_text("Later.").hold(0, &gate)]);
    let mut stream = engine.execute_with(&direct_message("task", "And now?")).await;
    wait_gate_reached(&gate).await;
    let made = fork(engine, "task", json!({"task_id": "new"})).await.assert_ok(CONVERSATION);
    assert_eq!((&made["message_count"], &made["status"]), (&json!(3), &json!("idle")));
    // Many at once make one.
    let body = json!({"task_id": "raced", "after": after});
    let raced = futures::future::join_all((0..8).map(|_| fork(engine, "task", body.clone()))).await;
    for answer in &raced {
        assert!(answer.status == 200 || answer.assert_error(409, "TASK_BUSY").contains("turn"), "{answer:?}");
    }
    assert!(raced.iter().any(|answer| answer.status == 200));
    gate.release();
    stream.read_until("the end", |event| event.data["phase"] == "completed").await;
    assert_eq!((ids(engine, "task").await.len(), ids(engine, "new").await.len()), (4, 3));
    assert_eq!(ids(engine, "raced").await.len(), 2);
}

#[tokio::test]
async fn a_copy_of_a_message_has_what_was_recalled_for_it() {
    let fixture = EngineFixture::new([]).await;
    let engine = &fixture.engine;
    let record = json!({"content": "The staging database is called heron."});
    assert_eq!(engine.post("/memory/knowledge", &record).await.status, 200);
    // On a busy machine the search may time out, and then nothing is recalled.
    let mut number = 0;
    let origin = eventually("something is recalled", async || {
        number += 1;
        let task = format!("task-{number}");
        engine.run_turn(&task, "How do I reach the staging database?").await;
        fixture.last_messages().0.contains("is called heron").then_some(task)
    })
    .await;
    let question = ids(engine, &origin).await[0].clone();
    fork(engine, &origin, json!({"task_id": "fork", "after": question})).await.assert_ok(CONVERSATION);
    let events = engine.run_turn("fork", "And is the staging database up?").await;
    let sent = fixture.last_messages().0;
    assert_eq!(sent.matches("is called heron").count(), 1, "{sent}");
    let note = sent.find("is called heron").unwrap();
    assert!(note < sent.find("How do I reach").unwrap(), "{sent}");
    // It is not recalled again, as what only the original says may be.
    let updates = of_kind(&events, "working_memory_update");
    assert!(updates.iter().all(|event| !event.data.to_string().contains("heron")), "{events:?}");
}

#[tokio::test]
async fn a_copied_message_is_found_once_and_still_after_the_original_is_deleted() {
    let fixture = EngineFixture::new([Reply::from_text("Far away.")]).await;
    let engine = &fixture.engine;
    let first = engine.run_turn("task", "Where is the zanzibarlighthouse?").await;
    let body = |task: &str| json!({"task_id": task, "after": answer_id(&first)});
    fork(engine, "task", body("fork")).await.assert_ok(CONVERSATION);
    fork(engine, "fork", body("second")).await.assert_ok(CONVERSATION);
    engine.run_turn("fork", "And the kiribatiharbour?").await;
    assert_eq!(found_in(engine, "zanzibarlighthouse").await, ["task"]);
    assert_eq!(found_in(engine, "kiribatiharbour").await, ["fork"]);
    // What a conversation shows is not recalled into it from the task that it was copied from.
    let calls = fixture.model_calls();
    engine.run_turn("second", "What about the zanzibarlighthouse?").await;
    let request = fixture.all_messages()[calls].0.clone();
    assert_eq!(request.matches("Where is the zanzibarlighthouse?").count(), 1, "{request}");

    // Exported and imported, it is the same, and still found once.
    let export = async |engine: &Engine| send(engine.request(Method::GET, "/memory/export")).await.body;
    let document = export(engine).await;
    let other = EngineFixture::new([]).await;
    for mode in ["replace", "replace", "merge"] {
        let import = other.engine.request(Method::POST, &format!("/memory/import?mode={mode}"));
        send(import.json(&document)).await.assert_ok("status:text mode:text counts:object");
        assert_eq!(export(&other.engine).await, document);
        let found = engine.get("/conversations/search?q=zanzibarlighthouse").await.body;
        assert_eq!(
            other.engine.get("/conversations/search?q=zanzibarlighthouse").await.body["results"]
                .as_array()
                .unwrap()
                .len(),
            found["results"].as_array().unwrap().len()
        );
    }

    engine.delete("/tasks/task").await.assert_ok("status:text");
    let shown = engine.get("/tasks/fork/conversation").await.assert_ok(CONVERSATION);
    assert_eq!(shown["forked_from"], Value::Null);
    assert_eq!(ids(engine, "fork").await.len(), 4);
    let found = found_in(engine, "zanzibarlighthouse").await;
    assert!(found.contains(&"fork".to_owned()), "{found:?}");
    let fixture = fixture.kill_and_start().await;
    fixture.engine.delete("/tasks/fork").await.assert_ok("status:text");
    let found = found_in(&fixture.engine, "zanzibarlighthouse").await;
    assert!(!found.is_empty() && found.iter().all(|task| task == "second"), "{found:?}");
}

/// Forks of an answer that was made again, a fork of a fork with a retry, a fork under a running turn, and an import
/// leave every task deletable and every message findable, once.
#[tokio::test]
async fn forks_at_odd_points_can_be_searched_imported_and_deleted_in_any_order() {
    let gate = Gate::new();
    let replies = ["The oldzanzibar answer.", "The newzanzibar answer."].map(Reply::from_text);
    let fixture = EngineFixture::new(replies).await;
    let engine = &fixture.engine;
    let first = engine.run_turn("task", "Where is the kiribatiharbour?").await;
    let retry =
        json!({"task_id": "task", "message": "", "direct": true, "retry_message_id": message_id(&first)});
    engine.run_turn_with(&retry).await;
    for task in ["old-1", "old-2"] {
        fork(engine, "task", json!({"task_id": task, "after": answer_id(&first)}))
            .await
            .assert_ok(CONVERSATION);
    }
    fork(engine, "task", json!({"task_id": "retried"})).await.assert_ok(CONVERSATION);
    fork(engine, "retried", json!({"task_id": "again"})).await.assert_ok(CONVERSATION);
    fixture.provider.enqueue(Reply::from_text("The heldtarawa answer.").hold(0, &gate));
    let mut stream = engine.execute_with(&direct_message("task", "And the tarawalagoon?")).await;
    wait_gate_reached(&gate).await;
    fork(engine, "task", json!({"task_id": "early"})).await.assert_ok(CONVERSATION);
    gate.release();
    stream.read_until("the end", |event| event.data["phase"] == "completed").await;
    let words = ["kiribatiharbour", "newzanzibar", "tarawalagoon"];
    for word in words {
        assert_eq!(found_in(engine, word).await, ["task"], "{word}");
    }
    assert_eq!(found_in(engine, "oldzanzibar").await.len(), 1);
    let turns = engine.get("/tasks/old-1/turns").await.assert_ok("turns:array");
    assert_eq!(turns["turns"], json!([]), "the copied turns are the original's");

    let document = send(engine.request(Method::GET, "/memory/export")).await.body;
    let import = engine.request(Method::POST, "/memory/import?mode=merge");
    send(import.json(&document)).await.assert_ok("status:text mode:text counts:object");
    // An edit takes the messages out of one of them, and the others have them still.
    let edit = json!({"task_id": "old-1", "message": "Else?", "direct": true, "edit_message_id": message_id(&first)});
    engine.run_turn_with(&edit).await;
    assert_eq!(found_in(engine, "oldzanzibar").await.len(), 1);
    for task in ["old-1", "task", "again"] {
        engine.delete(&format!("/tasks/{task}")).await.assert_ok("status:text");
    }
    assert_eq!(found_in(engine, "newzanzibar").await, ["retried"]);
    assert_eq!(found_in(engine, "tarawalagoon").await, ["early"]);
    assert_eq!(found_in(engine, "oldzanzibar").await, ["old-2"]);
    engine.run_turn("old-2", "And the funafutiatoll?").await;
    assert_eq!(found_in(engine, "funafutiatoll").await, ["old-2"]);
    for task in ["early", "old-2", "retried"] {
        engine.delete(&format!("/tasks/{task}")).await.assert_ok("status:text");
    }
    for word in words.into_iter().chain(["oldzanzibar", "funafutiatoll"]) {
        assert!(found_in(engine, word).await.is_empty(), "{word}");
    }
}

#[tokio::test]
async fn files_and_long_outputs_stay_as_long_as_one_of_the_conversations() {
    let long = shell_reply("echo mangrovespill5x; seq 30000");
    let fixture = EngineFixture::allowing_all_tools([long, done_reply()]).await;
    let engine = &fixture.engine;
    let media = json!([{"type": "image", "media_type": "image/png", "data": PNG_BASE64}]);
    engine.run_turn_with(&with_fields(direct_message("task", "Run."), json!({"media": media}))).await;
    fork(engine, "task", json!({"task_id": "fork"})).await.assert_ok(CONVERSATION);
    let spilled =
        || std::fs::read_dir(fixture.setup.workspace().join("tool-output")).map_or(0, Iterator::count);
    assert_eq!(spilled(), 1);
    engine.delete("/tasks/task").await.assert_ok("status:text");
    assert_eq!(spilled(), 1);
    engine.run_turn("fork", "And the picture?").await;
    fixture.last_messages().assert_contains(&["image", "And the picture?"]);
    engine.delete("/tasks/fork").await.assert_ok("status:text");
    assert_eq!(spilled(), 0);
}

#[tokio::test]
async fn a_kill_at_any_moment_leaves_a_whole_fork_or_none() {
    let mut fixture = EngineFixture::new([]).await;
    let mut last = Vec::new();
    for number in 0..6 {
        last = fixture.engine.run_turn("task", &format!("Question {number}")).await;
    }
    let expected = ids(&fixture.engine, "task").await;
    let mut kills = KillRounds::around("the commit of a fork");
    let mut rounds = 0;
    while let Some(delay) = kills.next_delay() {
        rounds += 1;
        let task = format!("fork-{rounds}");
        let body = json!({"task_id": task, "after": answer_id(&last)});
        let request = fixture.engine.request(Method::POST, "/tasks/task/fork").json(&body);
        let is_acknowledged;
        (fixture, is_acknowledged) = fixture.kill_during(request, delay).await;
        let found = fixture.engine.get(&format!("/tasks/{task}")).await;
        assert!(found.status == 200 || !is_acknowledged, "an acknowledged fork is lost");
        kills.record(found.status == 200);
        if found.status == 200 {
            assert_eq!(ids(&fixture.engine, &task).await, expected);
        }
        let made = fork(&fixture.engine, "task", body).await.assert_ok(CONVERSATION);
        assert_eq!(made["message_count"], 12);
        fixture.engine.run_turn(&task, "Go on.").await;
    }
    eventually("all are listed", async || (fixture.engine.tasks("").await.1 == rounds + 1).then_some(()))
        .await;
}

/// Whether a file below `folder` has the word.
fn is_left(folder: &std::path::Path, word: &str) -> bool {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        let holds = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).contains(word);
        if path.is_dir() { is_left(&path, word) } else { holds(&path) }
    })
}

#[tokio::test]
async fn nothing_is_left_of_a_conversation_once_it_and_its_forks_are_deleted() {
    let fixture = EngineFixture::new([Reply::from_text("It is hickoryanswer7x.")]).await;
    let engine = &fixture.engine;
    engine.run_turn("walnuttask3z", "What of the pinequestion9q?").await;
    let body = json!({"task_id": "fork", "title": "Of the sprucetitle5w"});
    fork(engine, "walnuttask3z", body).await.assert_ok(CONVERSATION);
    let folder = fixture.setup.brain().parent().unwrap().to_owned();
    // Words in full are in the rows; the index keeps what differs from the word before.
    let left = |words: &[&'static str]| -> Vec<&str> {
        words.iter().copied().filter(|word| is_left(&folder, word)).collect()
    };
    let words = ["hickoryanswer7x", "pinequestion9q", "sprucetitle5w"];
    assert_eq!(left(&words), words);
    engine.delete("/tasks/walnuttask3z").await.assert_ok("status:text");
    assert_eq!(left(&["walnuttask3z"]), [""; 0], "the fork does not name the task that is gone");
    assert_eq!(left(&words), words);
    engine.delete("/tasks/fork").await.assert_ok("status:text");
    assert_eq!(left(&words), [""; 0]);
}
