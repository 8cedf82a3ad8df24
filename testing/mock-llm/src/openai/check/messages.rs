//! The rules of single messages: roles and the form of their content
//! (<https://platform.openai.com/docs/api-reference/chat/create>).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::super::node::Node;
use super::audio::check_input_audio;
use super::tools::check_function_name;
use crate::protocol::{ApiError, Settings};

const ROLES: &[&str] = &["system", "assistant", "user", "function", "tool", "developer"];
const USER_PARTS: &[&str] = &["text", "image_url", "input_audio", "file"];
const ASSISTANT_PARTS: &[&str] = &["text", "refusal"];
const TEXT_PARTS: &[&str] = &["text"];

pub(super) fn check(messages: &[Node<'_>], settings: &Settings) -> Result<(), ApiError> {
    messages.iter().enumerate().try_for_each(|(index, message)| check_message(index, message, settings))
}

fn check_message(index: usize, message: &Node<'_>, settings: &Settings) -> Result<(), ApiError> {
    message.object()?;
    match message.required("role")?.one_of(ROLES)? {
        "assistant" => check_assistant(index, message, settings),
        "user" => {
            message.only(&["role", "content", "name"])?;
            check_content(index, message, USER_PARTS)
        }
        "tool" => {
            message.only(&["role", "content", "tool_call_id"])?;
            message.required("tool_call_id")?.string()?;
            check_content(index, message, TEXT_PARTS)
        }
        _ => {
            message.only(&["role", "content", "name"])?;
            check_content(index, message, TEXT_PARTS)
        }
    }
}

fn check_assistant(index: usize, message: &Node<'_>, settings: &Settings) -> Result<(), ApiError> {
    let mut known =
        vec!["role", "content", "name", "tool_calls", "refusal", "audio", "function_call", "annotations"];
    if settings.reasoning_content {
        known.push("reasoning_content");
    }
    message.only(&known)?;
    let Some(calls) = message.member("tool_calls") else {
        // A message with a refusal needs no content: the answer with the refusal had none either.
        if message.member("refusal").is_some() && message.member("content").is_none() {
            return Ok(());
        }
        return check_content(index, message, ASSISTANT_PARTS);
    };
    if message.member("content").is_some() {
        check_content(index, message, ASSISTANT_PARTS)?;
    }
    calls.non_empty_list()?.iter().try_for_each(check_call)
}

fn check_call(call: &Node<'_>) -> Result<(), ApiError> {
    call.only(&["id", "type", "function"])?;
    call.required("id")?.string()?;
    call.required("type")?.one_of(&["function"])?;
    let function = call.required("function")?;
    function.only(&["name", "arguments"])?;
    check_function_name(&function.required("name")?)?;
    function.required("arguments")?.string().map(|_| ())
}

/// Checks the required content: a string or a list of parts.
fn check_content(index: usize, message: &Node<'_>, parts: &[&str]) -> Result<(), ApiError> {
    let Some(content) = message.member("content") else {
        return Err(ApiError::invalid("Invalid value for 'content': expected a string, got null.")
            .with_param(format!("messages.[{index}].content")));
    };
    if matches!(content.value, Value::String(_)) {
        return Ok(());
    }
    content.non_empty_list()?.iter().try_for_each(|part| check_part(part, parts))
}

fn check_part(part: &Node<'_>, known: &[&str]) -> Result<(), ApiError> {
    let kind = part.required("type")?.one_of(known)?;
    let body = part.required(kind)?;
    match kind {
        "text" => {
            part.only(&["type", "text", "prompt_cache_breakpoint"])?;
            body.string().map(|_| ())
        }
        "refusal" => body.string().map(|_| ()),
        "image_url" => {
            body.only(&["url", "detail"])?;
            check_image_url(&body.required("url")?)
        }
        "input_audio" => {
            part.only(&["type", "input_audio", "prompt_cache_breakpoint"])?;
            check_input_audio(&body)
        }
        _ => body.object().map(|_| ()),
    }
}

/// Checks the URL of an image, or its data as a data URL.
pub(crate) fn check_image_url(url: &Node<'_>) -> Result<(), ApiError> {
    let text = url.string()?;
    if text.starts_with("https://") || text.starts_with("http://") {
        return Ok(());
    }
    let formats = ["data:image/png;", "data:image/jpeg;", "data:image/gif;", "data:image/webp;"];
    let data = formats
        .iter()
        .find_map(|format| text.strip_prefix(format))
        .and_then(|rest| rest.strip_prefix("base64,"));
    match data.map(|data| STANDARD.decode(data)) {
        Some(Ok(bytes)) if !bytes.is_empty() => Ok(()),
        _ => Err(ApiError::invalid(
            "You uploaded an unsupported image. Please make sure your image has of one the following formats: \
             ['png', 'jpeg', 'gif', 'webp'].",
        )
        .with_param(&url.path)
        .with_code("invalid_image_format")),
    }
}
