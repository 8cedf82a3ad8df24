//! The rules of a chat request: the types of its fields, and the capabilities of the model.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::can_think;
use super::error::{arguments_mismatch, invalid, type_mismatch, unknown_model};
use crate::protocol::{ApiError, IncomingRequest, Settings};

const ROLES: &[&str] = &["system", "user", "assistant", "tool"];
const THINK_LEVELS: &[&str] = &["high", "medium", "low", "max"];
/// The prefix of models with thinking levels.
const LEVEL_MODEL_PREFIX: &str = "gpt-oss";
/// The options that must be integers.
const INTEGER_OPTIONS: &[&str] = &[
    "num_ctx",
    "num_predict",
    "num_batch",
    "num_gpu",
    "num_thread",
    "num_keep",
    "seed",
    "top_k",
    "repeat_last_n",
];

/// Checks a request.
pub(super) fn check(request: &IncomingRequest, settings: &Settings) -> Result<(), ApiError> {
    let body = &request.body;
    if request.raw.is_empty() {
        return Err(invalid("missing request body"));
    }
    if !body.is_object() {
        return Err(invalid("invalid character looking for beginning of value"));
    }
    for (name, kind) in [("model", "string"), ("stream", "bool"), ("options", "map[string]interface {}")] {
        check_member_type(body, name, name, kind)?;
    }
    for message in list_member(body, "messages", "messages", "[]api.Message")? {
        check_message(message)?;
    }
    for tool in list_member(body, "tools", "tools", "api.Tools")? {
        check_tool(tool)?;
    }
    check_format(body)?;
    let model = request.model();
    if model.is_empty() {
        return Err(invalid("model is required"));
    }
    if settings.ollama_models.as_ref().is_some_and(|models| !models.iter().any(|known| known == model)) {
        return Err(unknown_model(model));
    }
    check_think(body, model)?;
    check_options(body)
}

/// Checks the form of the answer: `json` or a schema (<https://docs.ollama.com/capabilities/structured-outputs>).
fn check_format(body: &Value) -> Result<(), ApiError> {
    match body.get("format") {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(Value::String(kind)) if kind.is_empty() || kind == "json" => Ok(()),
        Some(other) => {
            Err(invalid(format!("invalid format: {other}; expected \"json\" or a valid JSON Schema object")))
        }
    }
}

fn check_message(message: &Value) -> Result<(), ApiError> {
    if !message.is_object() {
        return Err(type_mismatch(message, "messages", "api.Message"));
    }
    for name in ["role", "content", "thinking", "tool_name", "tool_call_id"] {
        check_member_type(message, name, &format!("messages.{name}"), "string")?;
    }
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    if !ROLES.contains(&role) {
        return Err(invalid(format!(
            "invalid role: {role}, role must be one of [system, user, assistant, tool]"
        )));
    }
    for image in list_member(message, "images", "messages.images", "[]api.ImageData")? {
        let Some(data) = image.as_str() else {
            return Err(type_mismatch(image, "messages.images", "api.ImageData"));
        };
        if STANDARD.decode(data).is_err() {
            return Err(invalid("illegal base64 data at input byte 0"));
        }
    }
    for call in list_member(message, "tool_calls", "messages.tool_calls", "[]api.ToolCall")? {
        check_call(call)?;
    }
    Ok(())
}

/// Checks a tool call. On this wire, the arguments are an object instead of JSON text.
fn check_call(call: &Value) -> Result<(), ApiError> {
    let function = call.get("function").cloned().unwrap_or_default();
    if !function.is_object() {
        return Err(type_mismatch(&function, "messages.tool_calls.function", "api.ToolCallFunction"));
    }
    check_member_type(&function, "name", "messages.tool_calls.function.name", "string")?;
    match function.get("arguments") {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(arguments) => Err(arguments_mismatch(arguments)),
    }
}

fn check_tool(tool: &Value) -> Result<(), ApiError> {
    let function = tool.get("function").cloned().unwrap_or_default();
    if !function.is_object() {
        return Err(type_mismatch(&function, "tools.function", "api.ToolFunction"));
    }
    for name in ["name", "description"] {
        check_member_type(&function, name, &format!("tools.function.{name}"), "string")?;
    }
    let parameters = function.get("parameters").cloned().unwrap_or_else(|| serde_json::json!({}));
    if !parameters.is_object() {
        return Err(type_mismatch(&parameters, "tools.function.parameters", "api.ToolFunctionParameters"));
    }
    check_member_type(&parameters, "type", "tools.function.parameters.type", "string")?;
    list_member(&parameters, "required", "tools.function.parameters.required", "[]string")?;
    match parameters.get("properties") {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(properties) => {
            Err(type_mismatch(properties, "tools.function.parameters.properties", "api.ToolPropertiesMap"))
        }
    }
}

fn check_think(body: &Value, model: &str) -> Result<(), ApiError> {
    let wants = match body.get("think") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Bool(thinks)) => *thinks,
        Some(Value::String(level)) if THINK_LEVELS.contains(&level.as_str()) => true,
        Some(other) => {
            return Err(invalid(format!(
                "invalid think value: {other} (must be \"high\", \"medium\", \"low\", \"max\", true, or false)"
            )));
        }
    };
    if wants && !can_think(model) {
        return Err(invalid(format!("{model:?} does not support thinking")));
    }
    match body.get("think") {
        Some(Value::String(level)) if !model.starts_with(LEVEL_MODEL_PREFIX) => {
            Err(invalid(format!("think value {level:?} is not supported for this model")))
        }
        _ => Ok(()),
    }
}

fn check_options(body: &Value) -> Result<(), ApiError> {
    let Some(options) = body.get("options").and_then(Value::as_object) else { return Ok(()) };
    let is_wrong = |name: &&str| options.get(*name).is_some_and(|value| !value.is_i64());
    match INTEGER_OPTIONS.iter().find(|name| is_wrong(name)) {
        Some(name) => Err(invalid(format!("option {name:?} must be of type integer"))),
        None => Ok(()),
    }
}

/// Checks the type of an optional member. Null counts as missing.
fn check_member_type(object: &Value, name: &str, field: &str, kind: &str) -> Result<(), ApiError> {
    let has_type = match object.get(name) {
        None | Some(Value::Null) => true,
        Some(value) => match kind {
            "string" => value.is_string(),
            "bool" => value.is_boolean(),
            _ => value.is_object(),
        },
    };
    if has_type { Ok(()) } else { Err(type_mismatch(object.get(name).unwrap_or(&Value::Null), field, kind)) }
}

/// An optional member that must be a list. Empty if it is missing or null.
fn list_member<'a>(object: &'a Value, name: &str, field: &str, kind: &str) -> Result<&'a [Value], ApiError> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(values)) => Ok(values),
        Some(other) => Err(type_mismatch(other, field, kind)),
    }
}
