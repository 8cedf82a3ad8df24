//! Tests of results as servers send them.

use serde_json::json;

use super::*;

/// A picture of one pixel.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

fn text(result: &Value) -> String {
    render_result(result).text
}

#[test]
fn texts_come_as_they_are_and_other_content_is_named() {
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
        text(&result),
        "one\n[image, image/png, 3 bytes, not shown]\n[audio, audio/wav, 2 bytes, not shown]\n[resource file:///a]\n\
         inside\n[resource file:///b, a/b, 1 bytes, not shown]\n[link to https://c, c, far]\n\
         [content of the unknown type \"hologram\", left out]"
    );
}

#[test]
fn pictures_are_shown_up_to_a_number() {
    let block = json!({"type": "image", "data": PNG, "mimeType": "image/jpeg"});
    let rendered = render_result(&json!({"content": vec![block; MAX_PICTURES + 1]}));
    assert_eq!(rendered.media.len(), MAX_PICTURES);
    assert!(
        rendered.text.starts_with("[picture 1, shown with this result]\n[picture 2, "),
        "{}",
        rendered.text
    );
    assert!(rendered.text.ends_with("[image, image/jpeg, 70 bytes, not shown]"), "{}", rendered.text);
    // What it is, not what the server says.
    let [Content::Media(picture), ..] = &rendered.media[..] else { panic!("{:?}", rendered.media) };
    assert_eq!(picture.media_type, "image/png");
}

#[test]
fn a_resource_may_be_a_picture() {
    let resource = json!({"uri": "file:///a.png", "blob": PNG, "mimeType": "application/octet-stream"});
    let rendered = render_result(&json!({"content": [{"type": "resource", "resource": resource}]}));
    assert_eq!(rendered.text, "[resource file:///a.png]\n[picture 1, shown with this result]");
    assert_eq!(rendered.media.len(), 1);
}

#[test]
fn structured_content_is_shown_where_there_is_no_text() {
    assert_eq!(text(&json!({"content": [], "structuredContent": {"a": 1}})), "{\"a\":1}");
    let both = json!({"content": [{"type": "text", "text": "a is 1"}], "structuredContent": {"a": 1}});
    assert_eq!(text(&both), "a is 1");
    assert_eq!(text(&json!({})), "(The tool returned nothing.)");
}

#[test]
fn a_result_may_be_an_error() {
    assert!(render_result(&json!({"content": [], "isError": true})).is_error);
    assert!(!render_result(&json!({"content": [], "isError": "true"})).is_error);
}
