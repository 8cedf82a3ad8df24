//! Renders the result of a server's call for the model.

use llm::Content;
use serde_json::Value;
use tools::media::picture_from_base64;

/// The most pictures of a result that a model is shown.
const MAX_PICTURES: usize = 10;

/// A rendered result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RenderedResult {
    /// The text for the model.
    pub(super) text: String,
    /// The pictures for the model.
    pub(super) media: Vec<Content>,
    /// Whether the tool reports an error.
    pub(super) is_error: bool,
}

/// Renders the result of a `tools/call`. Text is kept verbatim, pictures are shown; other content is only
/// described, because no model reads base64.
pub(super) fn render_result(result: &Value) -> RenderedResult {
    let blocks = result.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut media = Vec::new();
    let mut parts: Vec<String> = blocks.iter().map(|block| render_block(block, &mut media)).collect();
    let structured = result.get("structuredContent").filter(|structured| !structured.is_null());
    // Servers that return both repeat the structured content in the text, as the protocol asks them to.
    if let Some(structured) = structured.filter(|_| !blocks.iter().any(is_text)) {
        parts.push(structured.to_string());
    }
    if parts.is_empty() {
        parts.push("(The tool returned nothing.)".into());
    }
    let is_error = result.get("isError").and_then(Value::as_bool).unwrap_or(false);
    RenderedResult { text: parts.join("\n"), media, is_error }
}

fn is_text(block: &Value) -> bool {
    str_field(block, "type") == "text" && !str_field(block, "text").trim().is_empty()
}

fn render_block(block: &Value, media: &mut Vec<Content>) -> String {
    match str_field(block, "type") {
        "text" => str_field(block, "text").to_owned(),
        "image" => render_image(block, media),
        "audio" => describe_omitted("audio", block, str_field(block, "data")),
        "resource" => render_resource(block.get("resource").unwrap_or(&Value::Null), media),
        "resource_link" => render_link(block),
        other => format!("[content of the unknown type {other:?}, left out]"),
    }
}

/// Adds a picture to those that the model is shown, if it can be.
fn render_image(block: &Value, media: &mut Vec<Content>) -> String {
    let data = str_field(block, "data");
    show_picture(data, media).unwrap_or_else(|| describe_omitted("image", block, data))
}

/// Adds a picture to those that the model is shown; `None` if it cannot be.
fn show_picture(base64: &str, media: &mut Vec<Content>) -> Option<String> {
    let picture = picture_from_base64(base64).ok().filter(|_| media.len() < MAX_PICTURES)?;
    media.push(picture);
    Some(format!("[picture {}, shown with this result]", media.len()))
}

/// Renders an embedded resource: text verbatim, below its URI, and a picture like any other.
fn render_resource(resource: &Value, media: &mut Vec<Content>) -> String {
    let uri = str_field(resource, "uri");
    if let Some(text) = resource.get("text").and_then(Value::as_str) {
        return format!("[resource {uri}]\n{text}");
    }
    let blob = str_field(resource, "blob");
    match show_picture(blob, media) {
        Some(picture) => format!("[resource {uri}]\n{picture}"),
        None => describe_omitted(&format!("resource {uri}"), resource, blob),
    }
}

fn render_link(link: &Value) -> String {
    let mut text = format!("[link to {}", str_field(link, "uri"));
    for part in ["name", "title", "mimeType", "description"] {
        let value = str_field(link, part);
        if !value.is_empty() {
            text.push_str(", ");
            text.push_str(value);
        }
    }
    text + "]"
}

/// Describes content that is not shown.
fn describe_omitted(kind: &str, block: &Value, base64: &str) -> String {
    let bytes = base64.trim_end_matches('=').len() / 4 * 3 + base64.trim_end_matches('=').len() % 4 * 3 / 4;
    let media_type = match str_field(block, "mimeType") {
        "" => "of no known type",
        media_type => media_type,
    };
    format!("[{kind}, {media_type}, {bytes} bytes, not shown]")
}

fn str_field<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
#[path = "../../tests/unit/clients/content.rs"]
mod tests;
