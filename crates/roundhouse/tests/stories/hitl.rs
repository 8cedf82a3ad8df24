//! Story 16: the agent asks a person, for leave or for an answer, and goes on with what it is told.

use std::fs;

use serde_json::{Value, json};
use strict_provider::Reply;

use crate::support::calls::{message, with};
use crate::support::form::HITL_REQUEST;
use crate::support::model::{Act as _, PICTURE, WIRES, note, question, write};
use crate::support::turn::{completed, of_kind, phases};
use crate::support::{Answer, Event, Rig, assert_fields};

fn done() -> Reply {
    Reply::of_text("Done.")
}

fn resumed(answer: Answer, request: &Event) {
    let expected = json!({"status": "resumed", "request_id": request.data["request_id"]});
    assert_eq!(answer.ok("status:text request_id:hitl"), expected);
}

fn answer(words: &str, more: Value) -> Value {
    with(json!({"task_id": "task", "answer": words}), more)
}

#[tokio::test]
async fn with_leave_the_file_is_written() {
    for wire in WIRES {
        let rig = Rig::on(wire, [write("notes.txt"), done()]).await;
        let (mut stream, request) = rig.engine.until_asked(&message("task", "Write.")).await;
        let file = rig.place.workspace().join("notes.txt");
        assert_eq!((&request.data["kind"], &request.data["task_id"]), (&json!("permission"), &json!("task")));
        let asked = request.data["question"].as_str().unwrap();
        assert!(asked.contains("notes.txt"), "the question does not say what is to be done: {asked}");
        assert_eq!(request.data.get("options"), None);
        assert!(!file.exists(), "{wire}: it was not waited for the leave");

        resumed(rig.engine.respond("task", "yes").await, &request);
        let resolved = stream.until("hitl_resolved", |event| event.kind == "hitl_resolved").await;
        assert_eq!(resolved.data["request_id"], request.data["request_id"]);
        assert_eq!(resolved.data["answer"], "yes");
        let result = stream.until("tool_result", |event| event.kind == "tool_result").await;
        assert_eq!((&result.data["tool"], result.data.get("error")), (&json!("write_file"), None));
        let events = stream.rest().await;
        assert_eq!((completed(&events), phases(&events)), ("Done.", vec!["started", "completed"]));
        assert_eq!(fs::read_to_string(&file).unwrap(), "This is notes.txt.");
        assert_eq!(rig.engine.pending().await, [Value::Null; 0]);
        assert_eq!(rig.engine.replay("task", 0).await.rest().await, events);
        assert_eq!(rig.calls(), 2);
    }
}

#[tokio::test]
async fn without_leave_nothing_is_written_and_the_model_hears_why() {
    for wire in WIRES {
        let rig = Rig::on(wire, [write("notes.txt"), done()]).await;
        let (stream, request) = rig.engine.until_asked(&message("task", "Write.")).await;
        let no = answer("no", json!({"feedback": "The folder is being moved."}));
        resumed(rig.engine.respond_with(&no).await, &request);
        let events = stream.rest().await;
        assert_eq!(completed(&events), "Done.");
        let results = of_kind(&events, "tool_result");
        assert_eq!(results.len(), 1);
        let error = results[0].data["error"].as_str().expect("a refused tool fails");
        assert!(error.contains("The folder is being moved."), "{error}");
        rig.told().has(&["Write.", "The folder is being moved."]);
        assert!(!rig.place.workspace().join("notes.txt").exists(), "{wire}");
        assert_eq!(rig.calls(), 2);
    }
}

#[tokio::test]
async fn a_no_without_a_word_will_do() {
    let rig = Rig::new([write("notes.txt"), done()]).await;
    let (stream, request) = rig.engine.until_asked(&message("task", "Write.")).await;
    resumed(rig.engine.respond("task", "no").await, &request);
    let events = stream.rest().await;
    completed(&events);
    assert!(of_kind(&events, "tool_result")[0].data["error"].is_string());
    assert_eq!(of_kind(&events, "hitl_resolved")[0].data["answer"], "no");
}

#[tokio::test]
async fn a_yes_may_come_with_advice() {
    for wire in WIRES {
        let rig = Rig::on(wire, [write("notes.txt"), done()]).await;
        let (stream, request) = rig.engine.until_asked(&message("task", "Write.")).await;
        let yes = answer("yes", json!({"feedback": "But be brief next time."}));
        resumed(rig.engine.respond_with(&yes).await, &request);
        completed(&stream.rest().await);
        rig.told().has(&["Write.", "But be brief next time."]);
        assert!(rig.place.workspace().join("notes.txt").exists());
    }
}

#[tokio::test]
async fn an_edit_of_a_file_needs_leave_and_reading_does_not() {
    let edit = json!({"path": "notes.txt", "old": "red", "new": "green"});
    let read = Reply::new().tool_use("list_files", json!({"path": "."}));
    let script = [
        read.tool_use("read_file", json!({"path": "notes.txt"})),
        Reply::new().tool_use("edit_file", edit),
        done(),
    ];
    let rig = Rig::new(script).await;
    fs::create_dir_all(rig.place.workspace()).unwrap();
    let file = rig.place.workspace().join("notes.txt");
    fs::write(&file, "a red apple").unwrap();
    let (stream, request) = rig.engine.until_asked(&message("task", "Paint.")).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "a red apple");
    rig.told().has(&["a red apple"]);
    resumed(rig.engine.respond("task", "yes").await, &request);
    let events = stream.rest().await;
    completed(&events);
    assert_eq!(of_kind(&events, "hitl_request").len(), 1);
    assert_eq!(fs::read_to_string(&file).unwrap(), "a green apple");
}

#[tokio::test]
async fn a_question_is_put_with_its_options_and_answered_in_free_words() {
    for wire in WIRES {
        let asks = json!({"question": "Which colour?", "options": ["red", "green"]});
        let rig = Rig::on(wire, [Reply::new().tool_use("ask_user", asks), done()]).await;
        let (stream, request) = rig.engine.until_asked(&message("task", "Paint.")).await;
        let data = &request.data;
        assert_eq!((&data["kind"], &data["question"]), (&json!("question"), &json!("Which colour?")));
        assert_eq!(data["options"], json!(["red", "green"]));
        let pending = rig.engine.pending().await;
        assert_eq!(pending.len(), 1);
        assert_fields(&pending[0], HITL_REQUEST);

        resumed(rig.engine.respond("task", "Turquoise, rather.").await, &request);
        let events = stream.rest().await;
        assert_eq!(completed(&events), "Done.");
        assert_eq!(of_kind(&events, "hitl_resolved")[0].data["answer"], "Turquoise, rather.");
        let result = of_kind(&events, "tool_result")[0];
        assert!(result.data["output"].as_str().unwrap().contains("Turquoise, rather."), "{result:?}");
        rig.told().has(&["Paint.", "Which colour?", "Turquoise, rather."]);
        assert_eq!(rig.calls(), 2);
    }
}

#[tokio::test]
async fn an_answer_may_come_with_a_picture_and_a_word() {
    for wire in WIRES {
        let rig = Rig::on(wire, [question("What does it look like?"), done()]).await;
        let (stream, request) = rig.engine.until_asked(&message("task", "Paint.")).await;
        let blocks = json!([
            {"type": "text", "text": "Taken this morning."},
            {"type": "image", "media_type": "image/png", "data": PICTURE},
        ]);
        let more = json!({"feedback": "Sorry for the delay.", "content_blocks": blocks});
        resumed(rig.engine.respond_with(&answer("Like this.", more)).await, &request);
        completed(&stream.rest().await);
        let told = rig.told();
        for word in ["Like this.", "Sorry for the delay.", "Taken this morning.", PICTURE] {
            told.has(&["Paint.", word]);
        }
        // The picture stays where it is in the turns that follow.
        rig.engine.tell("task", "And now?").await;
        rig.told().has(&[PICTURE, "And now?"]);
    }
}

#[tokio::test]
async fn a_bad_answer_is_refused_and_the_request_stays_pending() {
    let rig = Rig::new([write("notes.txt"), done()]).await;
    let (stream, request) = rig.engine.until_asked(&message("task", "Write.")).await;
    for words in ["", "maybe", "YES", "yes please", "y", "true", " no "] {
        let refused = rig.engine.respond("task", words).await;
        assert!(refused.refused(400, "INVALID_REQUEST").contains("answer"), "{words:?}");
    }
    for (field, body) in [
        ("scope", answer("always", json!({"scope": "world"}))),
        ("scope", answer("always", json!({"scope": 7}))),
        ("answer", json!({"task_id": "task"})),
        ("answer", json!({"task_id": "task", "answer": true})),
        ("task_id", json!({"answer": "yes"})),
        ("task_id", json!({"task_id": "", "answer": "yes"})),
        ("feedback", answer("no", json!({"feedback": 7}))),
        ("content_blocks", answer("yes", json!({"content_blocks": "picture"}))),
        ("content_blocks", answer("yes", json!({"content_blocks": [{"type": "video"}]}))),
        (
            "content_blocks",
            answer(
                "yes",
                json!({"content_blocks": [
                    {"type": "image", "media_type": "image/png", "data": "no base64"}
                ]}),
            ),
        ),
    ] {
        let refused = rig.engine.respond_with(&body).await;
        assert!(refused.refused(400, "INVALID_REQUEST").contains(field), "{body}");
    }
    assert_eq!(rig.engine.pending().await[0]["request_id"], request.data["request_id"]);
    assert_eq!((rig.engine.task_status("task").await.as_str(), rig.calls()), ("paused", 1));
    resumed(rig.engine.respond("task", "yes").await, &request);
    let events = stream.rest().await;
    completed(&events);
    assert_eq!(of_kind(&events, "hitl_resolved").len(), 1);
}

#[tokio::test]
async fn several_calls_ask_one_after_the_other() {
    for wire in WIRES {
        let calls =
            Reply::new().thinking("Much to do.").writes("one.txt").writes("two.txt").writes("three.txt");
        let rig = Rig::on(wire, [calls, done()]).await;
        let body = with(message("task", "Write."), json!({"super_thinking": true}));
        let mut stream = rig.engine.execute_with(&body).await;
        let mut ids = Vec::new();
        for (name, words) in [("one.txt", "yes"), ("two.txt", "no"), ("three.txt", "yes")] {
            let request = stream.asked().await;
            let pending = rig.engine.pending().await;
            assert_eq!(pending.len(), 1, "one request at a time");
            assert_eq!(pending[0]["request_id"], request.data["request_id"]);
            assert!(!rig.place.workspace().join(name).exists(), "{wire}: {name}");
            resumed(rig.engine.respond("task", words).await, &request);
            ids.push(request.data["request_id"].clone());
        }
        ids.dedup();
        assert_eq!(ids.len(), 3, "each has an id of its own");
        let events = stream.rest().await;
        assert_eq!((completed(&events), rig.calls()), ("Done.", 2));
        let written =
            ["one.txt", "two.txt", "three.txt"].map(|name| rig.place.workspace().join(name).exists());
        assert_eq!(written, [true, false, true], "{wire}");
        // In whichever order: what is refused is over at once.
        let mut failed: Vec<bool> =
            of_kind(&events, "tool_result").iter().map(|result| result.data["error"].is_string()).collect();
        failed.sort_unstable();
        assert_eq!(failed, [false, false, true], "{wire}");
    }
}

#[tokio::test]
async fn what_needs_no_leave_does_not_ask() {
    let rig = Rig::new([note("colour", "green"), done()]).await;
    let events = rig.engine.tell("task", "Note it.").await;
    assert_eq!(of_kind(&events, "hitl_request").len(), 0);
    rig.engine.respond("task", "yes").await.refused(404, "HITL_NOT_PENDING");
}
