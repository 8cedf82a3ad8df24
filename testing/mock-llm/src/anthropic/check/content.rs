//! The rules of single messages: roles, and the form of each content block
//! (<https://platform.claude.com/docs/en/api/messages>).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::super::node::{Node, block_type, blocks};
use super::tools::is_tool_name;
use crate::protocol::ApiError;

/// The supported content blocks. Those of the vendor's server tools are not among them, because this provider does
/// not run such tools.
const BLOCK_TYPES: &[&str] = &[
    "text",
    "image",
    "document",
    "search_result",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
];
const IMAGE_TYPES: &[&str] = &["image/jpeg", "image/png", "image/gif", "image/webp"];

pub(super) fn check_messages(root: &Node<'_>, messages: &[Node<'_>]) -> Result<(), ApiError> {
    let Some(first) = messages.first() else {
        return Err(root.required("messages")?.error("at least one message is required"));
    };
    for (index, message) in messages.iter().enumerate() {
        check_message(message, index + 1 == messages.len())?;
    }
    if role(first) != "user" {
        return Err(ApiError::invalid("messages: first message must use the \"user\" role"));
    }
    check_last(messages)
}

/// The role of a message, which [`check_messages`] has checked.
pub(super) fn role<'a>(message: &Node<'a>) -> &'a str {
    message.value.get("role").and_then(Value::as_str).unwrap_or_default()
}

/// Checks a text block of a message, of `system` or of a tool result. `section` begins the error message.
pub(super) fn check_text(block: &Node<'_>, section: &str) -> Result<(), ApiError> {
    block.as_variant("text").only(&["type", "text", "cache_control", "citations"])?;
    let text = block.as_variant("text").required("text")?.string()?;
    if text.is_empty() {
        if block.member("cache_control").is_some() {
            return Err(block.error("cache_control cannot be set for empty text blocks"));
        }
        return Err(ApiError::invalid(format!("{section}: text content blocks must be non-empty")));
    }
    if text.trim().is_empty() {
        return Err(ApiError::invalid(format!(
            "{section}: text content blocks must contain non-whitespace text"
        )));
    }
    Ok(())
}

fn check_message(message: &Node<'_>, is_last: bool) -> Result<(), ApiError> {
    message.only(&["role", "content"])?;
    match message.required("role")?.string()? {
        "user" | "assistant" => {}
        other => {
            return Err(ApiError::invalid(format!(
                "messages: Unexpected role \"{other}\". The Messages API accepts a top-level `system` parameter, \
                 not \"system\" as an input message role."
            )));
        }
    }
    let content = message.required("content")?;
    let is_assistant = role(message) == "assistant";
    let is_empty = match content.value {
        Value::String(text) => text.trim().is_empty(),
        Value::Array(blocks) => blocks.is_empty(),
        _ => false,
    };
    if is_empty {
        // Only the answer that the model is to continue may be empty.
        if is_last && is_assistant {
            return Ok(());
        }
        return Err(message.error(
            "all messages must have non-empty content except for the optional final assistant message",
        ));
    }
    if matches!(content.value, Value::String(_)) {
        return Ok(());
    }
    content.list()?.iter().try_for_each(|block| check_block(block, is_assistant))
}

fn check_block(block: &Node<'_>, is_assistant: bool) -> Result<(), ApiError> {
    let kind = block.tag(BLOCK_TYPES)?;
    let wrong_role = match kind {
        "text" => None,
        "thinking" | "redacted_thinking" | "tool_use" => (!is_assistant).then_some("assistant"),
        _ => is_assistant.then_some("user"),
    };
    if let Some(role) = wrong_role {
        return Err(block.error(&format!("`{kind}` blocks can only be in `{role}` messages")));
    }
    let variant = block.as_variant(kind);
    match kind {
        "text" => check_text(block, "messages"),
        "image" => check_image(&variant),
        "document" => {
            variant.only(&["type", "source", "title", "context", "citations", "cache_control"])?;
            variant.required("source")?.object().map(|_| ())
        }
        "search_result" => {
            variant.only(&["type", "source", "title", "content", "citations", "cache_control"]).map(|_| ())
        }
        // No cache mark is allowed: "thinking blocks cannot be cached directly".
        "thinking" => {
            variant.only(&["type", "thinking", "signature"])?;
            variant.required("signature")?.string()?;
            variant.required("thinking")?.string().map(|_| ())
        }
        "redacted_thinking" => {
            variant.only(&["type", "data"])?;
            variant.required("data")?.string().map(|_| ())
        }
        "tool_use" => check_tool_use(&variant),
        _ => check_tool_result(&variant),
    }
}

fn check_tool_use(block: &Node<'_>) -> Result<(), ApiError> {
    block.only(&["type", "id", "name", "input", "cache_control", "caller"])?;
    let id = block.required("id")?;
    let is_id_character = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
    if id.string()?.is_empty() || !id.string()?.chars().all(is_id_character) {
        return Err(id.error("String should match pattern '^[a-zA-Z0-9_-]+$'"));
    }
    let name = block.required("name")?;
    if !is_tool_name(name.string()?) {
        return Err(name.error("String should match pattern '^[a-zA-Z0-9_-]{1,64}$'"));
    }
    block.required("input")?.object().map(|_| ())
}

fn check_tool_result(block: &Node<'_>) -> Result<(), ApiError> {
    block.only(&["type", "tool_use_id", "content", "is_error", "cache_control"])?;
    block.required("tool_use_id")?.string()?;
    if let Some(is_error) = block.member("is_error") {
        is_error.boolean()?;
    }
    let Some(content) = block.member("content") else { return Ok(()) };
    if matches!(content.value, Value::String(_)) {
        return Ok(());
    }
    for part in content.list()? {
        match part.tag(&["text", "image", "document", "search_result"])? {
            "text" => check_text(&part, "messages")?,
            "image" => check_image(&part.as_variant("image"))?,
            _ => {}
        }
    }
    Ok(())
}

fn check_image(block: &Node<'_>) -> Result<(), ApiError> {
    block.only(&["type", "source", "cache_control"])?;
    let source = block.required("source")?;
    match source.tag(&["base64", "url", "file"])? {
        "base64" => {
            let source = source.as_variant("base64");
            source.only(&["type", "media_type", "data"])?;
            source.required("media_type")?.one_of(IMAGE_TYPES)?;
            let data = source.required("data")?;
            match STANDARD.decode(data.string()?) {
                Ok(bytes) if !bytes.is_empty() => Ok(()),
                Ok(_) => Err(data.error("image cannot be empty")),
                Err(_) => Err(data.error("invalid base64 data")),
            }
        }
        "url" => {
            let url = source.as_variant("url").required("url")?;
            if url.string()?.starts_with("https://") {
                return Ok(());
            }
            Err(ApiError::invalid("Only HTTPS URLs are supported."))
        }
        _ => source.as_variant("file").required("file_id")?.string().map(|_| ()),
    }
}

/// Checks the rules of a final assistant message, which the model continues.
fn check_last(messages: &[Node<'_>]) -> Result<(), ApiError> {
    let Some(last) = messages.last().filter(|last| role(last) == "assistant") else { return Ok(()) };
    let content = last.value.get("content").map(blocks).unwrap_or_default();
    let Some(block) = content.last() else { return Ok(()) };
    let text = block.get("text").and_then(Value::as_str).unwrap_or_default();
    if text.ends_with(char::is_whitespace) {
        return Err(ApiError::invalid(
            "messages: final assistant content cannot end with trailing whitespace",
        ));
    }
    if matches!(block_type(block), "thinking" | "redacted_thinking") {
        return Err(last
            .error(&format!("The final block in an assistant message cannot be `{}`.", block_type(block))));
    }
    Ok(())
}
