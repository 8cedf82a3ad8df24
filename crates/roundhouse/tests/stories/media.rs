//! Story 19: pictures and documents reach the model and are stored once; media that the model does not support are
//! refused.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use mock_llm::Reply;
use reqwest::Method;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{PNG_BASE64, WIRES};
use crate::support::{EngineFixture, StandaloneEngine};

/// Another picture, a GIF.
const OTHER_IMAGE_BASE64: &str = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";
/// `%PDF-1.4`, and nothing else.
const PDF_BASE64: &str = "JVBERi0xLjQK";
/// `Pears are green.`
const PLAIN_TEXT_BASE64: &str = "UGVhcnMgYXJlIGdyZWVuLg==";

fn picture() -> Value {
    json!({"type": "image", "media_type": "image/png", "data": PNG_BASE64})
}

fn document() -> Value {
    json!({"type": "document", "media_type": "application/pdf", "data": PDF_BASE64, "name": "pears.pdf"})
}

/// A direct message with media.
fn media_message(media: &[Value]) -> Value {
    with_fields(direct_message("task", "What is this?"), json!({"media": media}))
}

/// The content parts of type `kind` in all messages of the newest request, without cache marks.
fn parts(fixture: &EngineFixture, kind: &str) -> Vec<Value> {
    let request = fixture.provider.requests().pop().unwrap().body;
    let messages = request["messages"].as_array().unwrap();
    let parts = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let mut parts: Vec<Value> = parts.filter(|part| part["type"] == kind).cloned().collect();
    for part in &mut parts {
        part.as_object_mut().unwrap().remove("cache_control");
    }
    parts
}

/// Asserts that the newest request contains the picture once, in the wire's format.
fn assert_picture(fixture: &EngineFixture, wire: &str) {
    if wire == "anthropic" {
        let source = json!({"type": "base64", "media_type": "image/png", "data": PNG_BASE64});
        assert_eq!(parts(fixture, "image"), [json!({"type": "image", "source": source})]);
    } else {
        let images = parts(fixture, "image_url");
        assert_eq!(images.len(), 1, "{images:?}");
        assert_eq!(images[0]["image_url"]["url"], format!("data:image/png;base64,{PNG_BASE64}"));
    }
}

/// Asserts that the newest request contains the document once, in the wire's format.
fn assert_document(fixture: &EngineFixture, wire: &str) {
    if wire == "anthropic" {
        let source = json!({"type": "base64", "media_type": "application/pdf", "data": PDF_BASE64});
        let expected = json!({"type": "document", "source": source, "title": "pears.pdf"});
        assert_eq!(parts(fixture, "document"), [expected]);
    } else {
        let data = format!("data:application/pdf;base64,{PDF_BASE64}");
        let expected = json!({"type": "file", "file": {"filename": "pears.pdf", "file_data": data}});
        assert_eq!(parts(fixture, "file"), [expected]);
    }
}

/// The number of rows in the brain's media table.
fn stored_media_count(setup: &StandaloneEngine) -> i64 {
    let brain = Connection::open_with_flags(setup.brain(), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    brain.query_row("SELECT count(*) FROM media", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_picture_and_a_document_reach_the_model_in_its_form() {
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, []).await;
        fixture.engine.run_turn_with(&media_message(&[picture(), document()])).await;
        assert_picture(&fixture, wire);
        assert_document(&fixture, wire);
        // They are part of the message that they were sent with.
        let request = fixture.provider.requests().pop().unwrap().body;
        let last = request["messages"].as_array().unwrap().last().unwrap().to_string();
        for part in ["What is this?", PNG_BASE64, PDF_BASE64] {
            assert!(last.contains(part), "{wire}: no {part:?} in: {last}");
        }
    }
}

#[tokio::test]
async fn the_form_of_the_vendors_is_taken_too() {
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, []).await;
        let picture = json!({"type": "base64", "media_type": "image/png", "data": PNG_BASE64});
        let pdf = json!({"type": "base64", "media_type": "application/pdf", "data": PDF_BASE64});
        let media = [
            json!({"type": "image", "source": picture}),
            json!({"type": "document", "source": pdf, "name": "pears.pdf"}),
        ];
        fixture.engine.run_turn_with(&media_message(&media)).await;
        assert_picture(&fixture, wire);
        assert_document(&fixture, wire);
    }
}

#[tokio::test]
async fn texts_and_plain_documents_reach_the_model_as_text() {
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, []).await;
        let media = [
            json!({"type": "text", "text": "Apples are red."}),
            json!({"type": "document", "media_type": "text/plain", "data": PLAIN_TEXT_BASE64}),
            json!({"type": "document", "source": {"type": "text", "data": "Plums are blue."}}),
        ];
        fixture.engine.run_turn_with(&media_message(&media)).await;
        for text in ["What is this?", "Apples are red.", "Pears are green.", "Plums are blue."] {
            fixture.last_messages().assert_contains(&[text]);
        }
    }
}

#[tokio::test]
async fn what_the_model_cannot_take_is_refused_before_the_turn_begins() {
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, []).await;
        for (kind, media_type) in [
            ("image", "image/tiff"),
            ("image", "image/svg+xml"),
            ("document", "application/zip"),
            ("document", "video/mp4"),
        ] {
            let block = json!({"type": kind, "media_type": media_type, "data": PLAIN_TEXT_BASE64});
            // A supported picture in the same message makes no difference.
            let answer = fixture.engine.post_execute(&media_message(&[picture(), block])).await;
            let message = answer.assert_error(400, "INVALID_REQUEST");
            assert!(message.contains("media"), "{wire}: {message}");
        }
        assert_no_turn(&fixture).await;
    }
}

async fn assert_no_turn(fixture: &EngineFixture) {
    assert_eq!(fixture.model_calls(), 0);
    assert_eq!(fixture.engine.tasks("").await, (Vec::new(), 0));
    fixture.engine.get("/execute/replay?task_id=task").await.assert_error(404, "TASK_NOT_FOUND");
}

#[tokio::test]
async fn malformed_media_are_refused() {
    let fixture = EngineFixture::new([]).await;
    let image = |fields: Value| with_fields(json!({"type": "image"}), fields);
    let malformed_blocks = [
        image(json!({"media_type": "image/png", "data": "no base64"})),
        image(json!({"media_type": "image/png", "data": &PNG_BASE64[1..]})),
        image(json!({"media_type": "image/png", "data": ""})),
        image(json!({"media_type": "image/png"})),
        image(json!({"data": PNG_BASE64})),
        image(json!({"media_type": "png", "data": PNG_BASE64})),
        image(json!({"media_type": "image/png", "data": 7})),
        image(json!({"source": {"type": "base64", "media_type": "image/png", "data": "no base64"}})),
        image(json!({"source": {"type": "url", "url": "file:///pear.png"}})),
        json!({"type": "text", "text": " "}),
        json!({"type": "video", "media_type": "video/mp4", "data": PLAIN_TEXT_BASE64}),
        json!({"media_type": "image/png", "data": PNG_BASE64}),
        json!("picture"),
    ];
    for block in malformed_blocks {
        let answer = fixture.engine.post_execute(&media_message(&[block])).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains("media"));
    }
    let many = vec![json!({"type": "text", "text": "Look!"}); api::content::MAX_CONTENT_BLOCKS + 1];
    fixture.engine.post_execute(&media_message(&many)).await.assert_error(400, "INVALID_REQUEST");
    let mut without_text = media_message(&[picture()]);
    without_text["message"] = json!("");
    fixture.engine.post_execute(&without_text).await.assert_error(400, "INVALID_REQUEST");
    assert_no_turn(&fixture).await;
}

#[tokio::test]
async fn the_same_picture_is_stored_once() {
    let fixture = EngineFixture::new([]).await;
    fixture.engine.run_turn_with(&media_message(&[picture(), picture()])).await;
    fixture.engine.run_turn_with(&media_message(&[picture()])).await;
    let mut other_task = media_message(&[picture()]);
    other_task["task_id"] = json!("other");
    fixture.engine.run_turn_with(&other_task).await;
    assert_eq!(stored_media_count(&fixture.setup), 1);
    let other = json!({"type": "image", "media_type": "image/gif", "data": OTHER_IMAGE_BASE64});
    fixture.engine.run_turn_with(&media_message(&[other])).await;
    assert_eq!(stored_media_count(&fixture.setup), 2);
    fixture.last_messages().assert_contains(&[PNG_BASE64, PNG_BASE64, PNG_BASE64, OTHER_IMAGE_BASE64]);
}

#[tokio::test]
async fn media_outlive_the_death_of_the_engine() {
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, [Reply::from_text("A pear.")]).await;
        fixture.engine.run_turn_with(&media_message(&[picture(), document()])).await;
        let fixture = fixture.kill_and_start().await;
        fixture.engine.run_turn("task", "What colour is it?").await;
        assert_picture(&fixture, wire);
        assert_document(&fixture, wire);
        fixture.last_messages().assert_contains(&["What is this?", "A pear.", "What colour is it?"]);
    }
}

#[tokio::test]
async fn an_edited_message_brings_media_of_its_own() {
    let fixture = EngineFixture::new([]).await;
    let first = fixture.engine.run_turn_with(&media_message(&[picture()])).await;
    let other = json!({"type": "image", "media_type": "image/gif", "data": OTHER_IMAGE_BASE64});
    let edit = json!({"edit_message_id": first[0].data["message_id"]});
    fixture.engine.run_turn_with(&with_fields(media_message(&[other]), edit)).await;
    fixture.last_messages().assert_contains(&[OTHER_IMAGE_BASE64]).assert_lacks(&[PNG_BASE64]);
}

#[tokio::test]
async fn attached_media_can_be_fetched_again_until_their_task_is_deleted() {
    let fixture = EngineFixture::new([]).await;
    let mut message = media_message(&[picture(), document()]);
    fixture.engine.run_turn_with(&message).await;
    message["task_id"] = json!("other");
    fixture.engine.run_turn_with(&message).await;
    let fixture = fixture.kill_and_start().await;
    let listed = fixture.engine.get("/tasks/task/media").await.assert_ok("media:array");
    let media = listed["media"].as_array().unwrap();
    let kinds: Vec<_> =
        media.iter().map(|file| (&file["kind"], &file["media_type"], &file["name"])).collect();
    let expected = [
        (json!("image"), json!("image/png"), json!(null)),
        (json!("document"), json!("application/pdf"), json!("pears.pdf")),
    ];
    assert_eq!(kinds, expected.each_ref().map(|(kind, media_type, name)| (kind, media_type, name)));
    for (file, base64) in media.iter().zip([PNG_BASE64, PDF_BASE64]) {
        let path = format!("/tasks/task/media/{}", file["hash"].as_str().unwrap());
        let response = fixture.engine.request(Method::GET, &path).send().await.unwrap();
        assert_eq!(response.headers()["etag"], format!("\"{}\"", file["hash"].as_str().unwrap()));
        assert_eq!(response.headers()["content-type"], file["media_type"].as_str().unwrap());
        let content = response.bytes().await.unwrap();
        assert_eq!(BASE64_STANDARD.encode(&content), base64);
        assert_eq!(file["size"], content.len());
    }
    let hash = media[0]["hash"].as_str().unwrap();
    fixture.engine.get("/tasks/task/media/..%2f..").await.assert_error(404, "FILE_NOT_FOUND");
    fixture.engine.get(&format!("/tasks/none/media/{hash}")).await.assert_error(404, "TASK_NOT_FOUND");
    fixture.engine.delete("/tasks/task").await.assert_ok("status:text");
    fixture.engine.get(&format!("/tasks/task/media/{hash}")).await.assert_error(404, "TASK_NOT_FOUND");
    // Another task still has it.
    let path = format!("/tasks/other/media/{hash}");
    assert_eq!(fixture.engine.request(Method::GET, &path).send().await.unwrap().status(), 200);
}
