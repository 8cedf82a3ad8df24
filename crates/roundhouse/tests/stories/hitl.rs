//! Story 16: the agent asks a person for approval or for an answer, and continues with the response.

use std::fs;

use mock_llm::Reply;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{
    PNG_BASE64, ReplyExt as _, WIRES, ask_user_reply, memory_set_reply, write_file_reply,
};
use crate::support::schema::HITL_REQUEST;
use crate::support::turn::{assert_completed, of_kind, phases};
use crate::support::{EngineFixture, Event, HttpResponse, assert_fields};

fn done_reply() -> Reply {
    Reply::from_text("Done.")
}

fn assert_resumed(answer: HttpResponse, request: &Event) {
    let expected = json!({"status": "resumed", "request_id": request.data["request_id"]});
    assert_eq!(answer.assert_ok("status:text request_id:hitl"), expected);
}

fn answer_body(words: &str, more: Value) -> Value {
    with_fields(json!({"task_id": "task", "answer": words}), more)
}

#[tokio::test]
async fn with_leave_the_file_is_written() {
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, [write_file_reply("notes.txt"), done_reply()]).await;
        let (mut stream, request) =
            fixture.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
        let file = fixture.setup.workspace().join("notes.txt");
        assert_eq!((&request.data["kind"], &request.data["task_id"]), (&json!("permission"), &json!("task")));
        let question = request.data["question"].as_str().unwrap();
        assert!(question.contains("notes.txt"), "the question does not name the file: {question}");
        assert_eq!(request.data.get("options"), None);
        assert!(!file.exists(), "{wire}: the write did not wait for approval");

        assert_resumed(fixture.engine.respond("task", "yes").await, &request);
        let resolved = stream.read_until("hitl_resolved", |event| event.kind == "hitl_resolved").await;
        assert_eq!(resolved.data["request_id"], request.data["request_id"]);
        assert_eq!(resolved.data["answer"], "yes");
        let result = stream.read_until("tool_result", |event| event.kind == "tool_result").await;
        assert_eq!((&result.data["tool"], result.data.get("error")), (&json!("write_file"), None));
        let events = stream.collect().await;
        assert_eq!((assert_completed(&events), phases(&events)), ("Done.", vec!["started", "completed"]));
        assert_eq!(fs::read_to_string(&file).unwrap(), "This is notes.txt.");
        assert_eq!(fixture.engine.pending().await, [Value::Null; 0]);
        assert_eq!(fixture.engine.replay("task", 0).await.collect().await, events);
        assert_eq!(fixture.model_calls(), 2);
    }
}

#[tokio::test]
async fn without_leave_nothing_is_written_and_the_model_hears_why() {
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, [write_file_reply("notes.txt"), done_reply()]).await;
        let (stream, request) =
            fixture.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
        let no = answer_body("no", json!({"feedback": "The folder is being moved."}));
        assert_resumed(fixture.engine.respond_with(&no).await, &request);
        let events = stream.collect().await;
        assert_eq!(assert_completed(&events), "Done.");
        let results = of_kind(&events, "tool_result");
        assert_eq!(results.len(), 1);
        let error = results[0].data["error"].as_str().expect("a refused tool fails");
        assert!(error.contains("The folder is being moved."), "{error}");
        fixture.last_messages().assert_contains(&["Write.", "The folder is being moved."]);
        assert!(!fixture.setup.workspace().join("notes.txt").exists(), "{wire}");
        assert_eq!(fixture.model_calls(), 2);
    }
}

#[tokio::test]
async fn a_no_without_a_word_will_do() {
    let fixture = EngineFixture::new([write_file_reply("notes.txt"), done_reply()]).await;
    let (stream, request) = fixture.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
    assert_resumed(fixture.engine.respond("task", "no").await, &request);
    let events = stream.collect().await;
    assert_completed(&events);
    assert!(of_kind(&events, "tool_result")[0].data["error"].is_string());
    assert_eq!(of_kind(&events, "hitl_resolved")[0].data["answer"], "no");
}

#[tokio::test]
async fn a_yes_may_come_with_advice() {
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, [write_file_reply("notes.txt"), done_reply()]).await;
        let (stream, request) =
            fixture.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
        let yes = answer_body("yes", json!({"feedback": "But be brief next time."}));
        assert_resumed(fixture.engine.respond_with(&yes).await, &request);
        assert_completed(&stream.collect().await);
        fixture.last_messages().assert_contains(&["Write.", "But be brief next time."]);
        assert!(fixture.setup.workspace().join("notes.txt").exists());
    }
}

#[tokio::test]
async fn an_edit_of_a_file_needs_leave_and_reading_does_not() {
    let edit = json!({"path": "notes.txt", "old": "red", "new": "green"});
    let read = Reply::new().tool_use("list_files", json!({"path": "."}));
    let script = [
        read.tool_use("read_file", json!({"path": "notes.txt"})),
        Reply::new().tool_use("edit_file", edit),
        done_reply(),
    ];
    let fixture = EngineFixture::new(script).await;
    fs::create_dir_all(fixture.setup.workspace()).unwrap();
    let file = fixture.setup.workspace().join("notes.txt");
    fs::write(&file, "a red apple").unwrap();
    let (stream, request) = fixture.engine.run_until_hitl_request(&direct_message("task", "Paint.")).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "a red apple");
    fixture.last_messages().assert_contains(&["a red apple"]);
    assert_resumed(fixture.engine.respond("task", "yes").await, &request);
    let events = stream.collect().await;
    assert_completed(&events);
    assert_eq!(of_kind(&events, "hitl_request").len(), 1);
    assert_eq!(fs::read_to_string(&file).unwrap(), "a green apple");
}

#[tokio::test]
async fn a_question_is_put_with_its_options_and_answered_in_free_words() {
    for wire in WIRES {
        let asks = json!({"question": "Which colour?", "options": ["red", "green"]});
        let fixture =
            EngineFixture::for_wire(wire, [Reply::new().tool_use("ask_user", asks), done_reply()]).await;
        let (stream, request) =
            fixture.engine.run_until_hitl_request(&direct_message("task", "Paint.")).await;
        let data = &request.data;
        assert_eq!((&data["kind"], &data["question"]), (&json!("question"), &json!("Which colour?")));
        assert_eq!(data["options"], json!(["red", "green"]));
        let pending = fixture.engine.pending().await;
        assert_eq!(pending.len(), 1);
        assert_fields(&pending[0], HITL_REQUEST);

        assert_resumed(fixture.engine.respond("task", "Turquoise, rather.").await, &request);
        let events = stream.collect().await;
        assert_eq!(assert_completed(&events), "Done.");
        assert_eq!(of_kind(&events, "hitl_resolved")[0].data["answer"], "Turquoise, rather.");
        let result = of_kind(&events, "tool_result")[0];
        assert!(result.data["output"].as_str().unwrap().contains("Turquoise, rather."), "{result:?}");
        fixture.last_messages().assert_contains(&["Paint.", "Which colour?", "Turquoise, rather."]);
        assert_eq!(fixture.model_calls(), 2);
    }
}

#[tokio::test]
async fn an_answer_may_come_with_a_picture_and_a_word() {
    for wire in WIRES {
        let fixture =
            EngineFixture::for_wire(wire, [ask_user_reply("What does it look like?"), done_reply()]).await;
        let (stream, request) =
            fixture.engine.run_until_hitl_request(&direct_message("task", "Paint.")).await;
        let blocks = json!([
            {"type": "text", "text": "Taken this morning."},
            {"type": "image", "media_type": "image/png", "data": PNG_BASE64},
        ]);
        let more = json!({"feedback": "Sorry for the delay.", "content_blocks": blocks});
        assert_resumed(fixture.engine.respond_with(&answer_body("Like this.", more)).await, &request);
        assert_completed(&stream.collect().await);
        let sent = fixture.last_messages();
        for word in ["Like this.", "Sorry for the delay.", "Taken this morning.", PNG_BASE64] {
            sent.assert_contains(&["Paint.", word]);
        }
        // The picture stays in the conversation of later turns.
        fixture.engine.run_turn("task", "And now?").await;
        fixture.last_messages().assert_contains(&[PNG_BASE64, "And now?"]);
    }
}

#[tokio::test]
async fn a_bad_answer_is_refused_and_the_request_stays_pending() {
    let fixture = EngineFixture::new([write_file_reply("notes.txt"), done_reply()]).await;
    let (stream, request) = fixture.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
    for words in ["", "maybe", "YES", "yes please", "y", "true", " no "] {
        let refused = fixture.engine.respond("task", words).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains("answer"), "{words:?}");
    }
    for (field, body) in [
        ("scope", answer_body("always", json!({"scope": "world"}))),
        ("scope", answer_body("always", json!({"scope": 7}))),
        ("answer", json!({"task_id": "task"})),
        ("answer", json!({"task_id": "task", "answer": true})),
        ("task_id", json!({"answer": "yes"})),
        ("task_id", json!({"task_id": "", "answer": "yes"})),
        ("feedback", answer_body("no", json!({"feedback": 7}))),
        ("content_blocks", answer_body("yes", json!({"content_blocks": "picture"}))),
        ("content_blocks", answer_body("yes", json!({"content_blocks": [{"type": "video"}]}))),
        (
            "content_blocks",
            answer_body(
                "yes",
                json!({"content_blocks": [
                    {"type": "image", "media_type": "image/png", "data": "no base64"}
                ]}),
            ),
        ),
    ] {
        let refused = fixture.engine.respond_with(&body).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains(field), "{body}");
    }
    assert_eq!(fixture.engine.pending().await[0]["request_id"], request.data["request_id"]);
    assert_eq!((fixture.engine.task_status("task").await.as_str(), fixture.model_calls()), ("paused", 1));
    assert_resumed(fixture.engine.respond("task", "yes").await, &request);
    let events = stream.collect().await;
    assert_completed(&events);
    assert_eq!(of_kind(&events, "hitl_resolved").len(), 1);
}

#[tokio::test]
async fn several_calls_ask_one_after_the_other() {
    for wire in WIRES {
        let calls = Reply::new()
            .thinking("Much to do.")
            .write_file("one.txt")
            .write_file("two.txt")
            .write_file("three.txt");
        let fixture = EngineFixture::for_wire(wire, [calls, done_reply()]).await;
        let body = with_fields(direct_message("task", "Write."), json!({"super_thinking": true}));
        let mut stream = fixture.engine.execute_with(&body).await;
        let mut ids = Vec::new();
        for (name, words) in [("one.txt", "yes"), ("two.txt", "no"), ("three.txt", "yes")] {
            let request = stream.next_hitl_request().await;
            let pending = fixture.engine.pending().await;
            assert_eq!(pending.len(), 1, "one request at a time");
            assert_eq!(pending[0]["request_id"], request.data["request_id"]);
            assert!(!fixture.setup.workspace().join(name).exists(), "{wire}: {name}");
            assert_resumed(fixture.engine.respond("task", words).await, &request);
            ids.push(request.data["request_id"].clone());
        }
        ids.dedup();
        assert_eq!(ids.len(), 3, "each has an id of its own");
        let events = stream.collect().await;
        assert_eq!((assert_completed(&events), fixture.model_calls()), ("Done.", 2));
        let written =
            ["one.txt", "two.txt", "three.txt"].map(|name| fixture.setup.workspace().join(name).exists());
        assert_eq!(written, [true, false, true], "{wire}");
        // In any order: a refused call ends at once.
        let mut failed: Vec<bool> =
            of_kind(&events, "tool_result").iter().map(|result| result.data["error"].is_string()).collect();
        failed.sort_unstable();
        assert_eq!(failed, [false, false, true], "{wire}");
    }
}

#[tokio::test]
async fn what_needs_no_leave_does_not_ask() {
    let fixture = EngineFixture::new([memory_set_reply("colour", "green"), done_reply()]).await;
    let events = fixture.engine.run_turn("task", "Note it.").await;
    assert_eq!(of_kind(&events, "hitl_request").len(), 0);
    fixture.engine.respond("task", "yes").await.assert_error(404, "HITL_NOT_PENDING");
}
