//! Reads the input of a request.

use serde_json::Value;

/// The items of the input. An input that is a string, a shorthand for one message, has none.
pub(super) fn items(body: &Value) -> &[Value] {
    body.get("input").and_then(Value::as_array).map_or(&[][..], Vec::as_slice)
}

/// The type of an item. It is optional for messages.
pub(super) fn item_type(item: &Value) -> &str {
    item.get("type").and_then(Value::as_str).unwrap_or("message")
}

/// A member that is a string. Empty if it is missing.
pub(super) fn text_member<'a>(item: &'a Value, member: &str) -> &'a str {
    item.get(member).and_then(Value::as_str).unwrap_or_default()
}

/// The last text of the last user message that has one.
pub(super) fn last_user_text(body: &Value) -> String {
    if let Some(Value::String(text)) = body.get("input") {
        return text.clone();
    }
    let text_of = |content: &Value| match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            parts.iter().rev().find_map(|part| part.get("text").and_then(Value::as_str).map(str::to_owned))
        }
        _ => None,
    };
    items(body)
        .iter()
        .rev()
        .filter(|item| item_type(item) == "message" && text_member(item, "role") == "user")
        .find_map(|item| item.get("content").and_then(text_of))
        .unwrap_or_default()
}
