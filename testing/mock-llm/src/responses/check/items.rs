//! The rules of single input items (<https://platform.openai.com/docs/api-reference/responses/create>).

use serde_json::Value;

use crate::openai::check::messages::check_image_url;
use crate::openai::check::tools::check_function_name;
use crate::openai::node::Node;
use crate::protocol::ApiError;

/// The supported items. Those of the vendor's server tools are not among them, because this provider does not run
/// such tools.
const ITEMS: &[&str] = &["message", "reasoning", "function_call", "function_call_output"];
const INPUT_PARTS: &[&str] = &["input_text", "input_image", "input_file"];
const OUTPUT_PARTS: &[&str] = &["output_text", "refusal"];
const STATUSES: &[&str] = &["in_progress", "completed", "incomplete"];

pub(super) fn check(item: &Node<'_>) -> Result<(), ApiError> {
    item.object()?;
    // The type is optional for messages only.
    let kind = match item.member("type") {
        Some(kind) => kind.one_of(ITEMS)?,
        None if item.member("role").is_some() => "message",
        None => item.required("type")?.string()?,
    };
    if let Some(status) = item.member("status") {
        status.one_of(STATUSES)?;
    }
    match kind {
        "message" => check_message(item),
        "reasoning" => check_reasoning(item),
        "function_call" => check_call(item),
        _ => check_output(item),
    }
}

fn check_message(message: &Node<'_>) -> Result<(), ApiError> {
    message.only(&["type", "role", "content", "id", "status", "phase"])?;
    check_id(message, "msg")?;
    let role = message.required("role")?.one_of(&["assistant", "system", "developer", "user"])?;
    let parts = if role == "assistant" { OUTPUT_PARTS } else { INPUT_PARTS };
    check_content(&message.required("content")?, parts)
}

fn check_reasoning(item: &Node<'_>) -> Result<(), ApiError> {
    item.only(&["type", "id", "summary", "encrypted_content", "content", "status"])?;
    item.required("id")?.string()?;
    check_id(item, "rs")?;
    for part in item.required("summary")?.list()? {
        part.required("type")?.one_of(&["summary_text"])?;
        part.required("text")?.string()?;
    }
    match item.member("encrypted_content") {
        Some(content) => content.string().map(|_| ()),
        None => Ok(()),
    }
}

fn check_call(call: &Node<'_>) -> Result<(), ApiError> {
    call.only(&["type", "id", "call_id", "name", "arguments", "status", "namespace", "caller"])?;
    check_id(call, "fc")?;
    check_call_id(call)?;
    check_function_name(&call.required("name")?)?;
    call.required("arguments")?.string().map(|_| ())
}

fn check_output(output: &Node<'_>) -> Result<(), ApiError> {
    output.only(&["type", "id", "call_id", "output", "status", "caller"])?;
    check_call_id(output)?;
    check_content(&output.required("output")?, INPUT_PARTS)
}

fn check_call_id(item: &Node<'_>) -> Result<(), ApiError> {
    let call_id = item.required("call_id")?;
    match call_id.string()?.len() {
        0 => Err(call_id
            .invalid("empty string. Expected a string with minimum length 1, but got an empty string instead.")
            .with_code("empty_string")),
        length @ 65.. => Err(call_id
            .invalid(&format!(
                "string too long. Expected a string with maximum length 64, but got a string with length {length} \
                 instead."
            ))
            .with_code("string_above_max_length")),
        _ => Ok(()),
    }
}

/// Checks that an item's id has the prefix of its kind.
fn check_id(item: &Node<'_>, prefix: &str) -> Result<(), ApiError> {
    let Some(id) = item.member("id") else { return Ok(()) };
    let text = id.string()?;
    if text.starts_with(prefix) {
        return Ok(());
    }
    Err(id
        .invalid(&format!("'{text}'. Expected an ID that begins with '{prefix}'."))
        .with_code("invalid_value"))
}

fn check_content(content: &Node<'_>, parts: &[&str]) -> Result<(), ApiError> {
    if matches!(content.value, Value::String(_)) {
        return Ok(());
    }
    content.list()?.iter().try_for_each(|part| check_part(part, parts))
}

fn check_part(part: &Node<'_>, known: &[&str]) -> Result<(), ApiError> {
    match part.required("type")?.one_of(known)? {
        "input_text" => {
            part.only(&["type", "text", "prompt_cache_breakpoint"])?;
            part.required("text")?.string().map(|_| ())
        }
        "output_text" => {
            part.only(&["type", "text", "annotations", "logprobs"])?;
            part.required("text")?.string().map(|_| ())
        }
        "refusal" => part.required("refusal")?.string().map(|_| ()),
        "input_image" => {
            part.only(&["type", "image_url", "file_id", "detail", "prompt_cache_breakpoint"])?;
            match part.member("image_url") {
                Some(url) => check_image_url(&url),
                None => part.required("file_id")?.string().map(|_| ()),
            }
        }
        _ => part.object().map(|_| ()),
    }
}
