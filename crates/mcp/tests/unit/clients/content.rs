//! Tests of results as servers send them. No program reads documents here.

use std::path::Path;

use serde_json::json;

use super::*;

/// A picture of one pixel.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

async fn show(result: &Value) -> ToolOutput {
    let documents = DocumentReader::new(None, Path::new("/nonexistent"));
    CallResult::parse(result).show(&documents, true).await
}

async fn text(result: &Value) -> String {
    show(result).await.text
}

#[tokio::test]
async fn texts_come_as_they_are_and_other_content_is_named() {
    let result = json!({"content": [
        {"type": "text", "text": "one"},
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "audio", "data": "AAA=", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "AA==", "mimeType": "a/b"}},
        {"type": "resource_link", "uri": "https://c", "name": "c", "description": "far"},
        {"type": "hologram"},
    ]});
    assert_eq!(
        text(&result).await,
        "one\n[image, image/png, 3 bytes, not shown: it is no picture, PDF, DOCX or XLSX]\n[audio, audio/wav, 2 bytes, not shown]\n[resource file:///a]\n\
         inside\n[resource file:///b, a/b, 1 bytes, not shown: it is no picture, PDF, DOCX or XLSX]\n[link to https://c, c, far]\n\
         [content of the unknown type \"hologram\", left out]"
    );
}

#[tokio::test]
async fn pictures_are_shown_up_to_a_number() {
    let block = json!({"type": "image", "data": PNG, "mimeType": "image/jpeg"});
    let rendered = show(&json!({"content": vec![block; MAX_PICTURES + 1]})).await;
    assert_eq!(rendered.media.len(), MAX_PICTURES);
    assert!(
        rendered.text.starts_with("[picture 1, shown with this result]\n[picture 2, "),
        "{}",
        rendered.text
    );
    assert!(
        rendered
            .text
            .ends_with("[image, image/jpeg, 70 bytes, not shown: at most 10 pictures of a result are]"),
        "{}",
        rendered.text
    );
    // What it is, not what the server says.
    let [Content::Media(picture), ..] = &rendered.media[..] else { panic!("{:?}", rendered.media) };
    assert_eq!(picture.media_type, "image/png");
}

#[tokio::test]
async fn a_resource_may_be_a_picture() {
    let resource = json!({"uri": "file:///a.png", "blob": PNG, "mimeType": "application/octet-stream"});
    let rendered = show(&json!({"content": [{"type": "resource", "resource": resource}]})).await;
    assert_eq!(rendered.text, "[resource file:///a.png]\n[picture 1, shown with this result]");
    assert_eq!(rendered.media.len(), 1);
}

#[tokio::test]
async fn structured_content_is_shown_where_there_is_no_text() {
    assert_eq!(text(&json!({"content": [], "structuredContent": {"a": 1}})).await, "{\"a\":1}");
    let both = json!({"content": [{"type": "text", "text": "a is 1"}], "structuredContent": {"a": 1}});
    assert_eq!(text(&both).await, "a is 1");
    assert_eq!(text(&json!({})).await, "(The tool returned nothing.)");
}

#[tokio::test]
async fn a_result_may_be_an_error() {
    assert!(show(&json!({"content": [], "isError": true})).await.is_error);
    assert!(!show(&json!({"content": [], "isError": "true"})).await.is_error);
}

#[tokio::test]
async fn a_document_that_is_not_read_is_described_with_the_reason() {
    let resource = |blob: &str| json!({"type": "resource", "resource": {"uri": "file:///a.pdf", "blob": blob, "mimeType": "application/pdf"}});
    // "%PDF-1.4"
    let result = json!({"content": vec![resource("JVBERi0xLjQ="); MAX_DOCUMENTS + 1], "isError": true});
    let output = show(&result).await;
    let lines: Vec<_> = output.text.lines().collect();
    assert_eq!(lines.len(), MAX_DOCUMENTS + 1);
    assert_eq!(
        lines[0],
        "[resource file:///a.pdf, application/pdf, 8 bytes, not shown: this engine's machine cannot confine programs, so it \
         reads no PDF, DOCX or XLSX]"
    );
    assert!(lines[MAX_DOCUMENTS].ends_with("not shown: at most 10 documents of a result are]"), "{lines:?}");
    assert_eq!((output.media.len(), output.is_error), (0, true));
    let broken = text(&json!({"content": [resource("???")]})).await;
    assert!(broken.ends_with("not shown: its base64 is broken]"), "{broken}");
}
