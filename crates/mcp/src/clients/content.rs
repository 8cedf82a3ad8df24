//! Renders the result of a server's call for the model.

use serde_json::Value;

/// A rendered result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RenderedResult {
    /// The text for the model.
    pub(super) text: String,
    /// Whether the tool reports an error.
    pub(super) is_error: bool,
}

/// Renders the result of a `tools/call`. Text is kept verbatim; other content is only described, because no model
/// reads base64.
pub(super) fn render_result(result: &Value) -> RenderedResult {
    let blocks = result.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut parts: Vec<String> = blocks.iter().map(render_block).collect();
    let structured = result.get("structuredContent").filter(|structured| !structured.is_null());
    // Servers that return both repeat the structured content in the text, as the protocol asks them to.
    if let Some(structured) = structured.filter(|_| !blocks.iter().any(is_text)) {
        parts.push(structured.to_string());
    }
    if parts.is_empty() {
        parts.push("(The tool returned nothing.)".into());
    }
    let is_error = result.get("isError").and_then(Value::as_bool).unwrap_or(false);
    RenderedResult { text: parts.join("\n"), is_error }
}

fn is_text(block: &Value) -> bool {
    str_field(block, "type") == "text" && !str_field(block, "text").trim().is_empty()
}

fn render_block(block: &Value) -> String {
    match str_field(block, "type") {
        "text" => str_field(block, "text").to_owned(),
        "image" => describe_omitted("image", block, str_field(block, "data")),
        "audio" => describe_omitted("audio", block, str_field(block, "data")),
        "resource" => render_resource(block.get("resource").unwrap_or(&Value::Null)),
        "resource_link" => render_link(block),
        other => format!("[content of the unknown type {other:?}, left out]"),
    }
}

/// Renders an embedded resource: text verbatim, below its URI.
fn render_resource(resource: &Value) -> String {
    let uri = str_field(resource, "uri");
    match resource.get("text").and_then(Value::as_str) {
        Some(text) => format!("[resource {uri}]\n{text}"),
        None => describe_omitted(&format!("resource {uri}"), resource, str_field(resource, "blob")),
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
