//! Ollama's errors: a status and one sentence. Those of its cloud are known from users' quotes.

use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::fault::Refusal;
use crate::protocol::ApiError;
use crate::transcript::single_line;

/// The body of an error response.
pub(super) fn body(error: &ApiError) -> Value {
    json!({"error": error.message})
}

/// An error as the last line of a stream.
pub(super) fn line(error: &ApiError) -> Bytes {
    single_line(&body(error))
}

/// The error for an invalid request.
pub(super) fn invalid(message: impl Into<String>) -> ApiError {
    error(400, message)
}

/// The error for a key that the cloud does not accept.
pub(super) fn unauthorized() -> ApiError {
    error(401, "unauthorized")
}

/// The error for a model that was not pulled.
pub(super) fn unknown_model(model: &str) -> ApiError {
    error(404, format!("model {model:?} not found, try pulling it first"))
}

/// The error for a value of the wrong type, as the server's JSON parser words it.
pub(super) fn type_mismatch(value: &Value, field: &str, kind: &str) -> ApiError {
    let got = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    invalid(format!("json: cannot unmarshal {got} into Go struct field ChatRequest.{field} of type {kind}"))
}

/// A scripted refusal.
pub(super) fn refusal(refusal: &Refusal, model: &str) -> ApiError {
    match refusal {
        Refusal::RateLimited { retry_after_s } => {
            let error = error(429, "too many concurrent requests");
            match retry_after_s {
                Some(seconds) => error.with_header("retry-after", seconds.to_string()),
                None => error,
            }
        }
        Refusal::QuotaExhausted => error(
            429,
            "you (account) have reached your weekly usage limit, upgrade for higher limits: https://ollama.com/upgrade",
        ),
        // The server's message has two spaces, too.
        Refusal::Overloaded => {
            error(503, "server busy, please try again.  maximum pending requests exceeded")
        }
        Refusal::ServerError => {
            error(500, "an error was encountered while running the model: unexpected EOF")
        }
        Refusal::Unauthorized => unauthorized(),
        Refusal::Forbidden => {
            error(403, "this model requires a subscription, upgrade for access: https://ollama.com/upgrade")
        }
        Refusal::UnknownModel => unknown_model(model),
        Refusal::PromptTooLong => error(400, "the input length exceeds the context length"),
        Refusal::BrokenHistory => arguments_mismatch(&Value::String(String::new())),
        Refusal::Other { status, message, headers, .. } => {
            let mut error = error(*status, message);
            error.headers.clone_from(headers);
            error
        }
    }
}

/// The error for arguments of a call that are not an object.
pub(super) fn arguments_mismatch(arguments: &Value) -> ApiError {
    type_mismatch(arguments, "messages.tool_calls.function.arguments", "api.ToolCallFunctionArguments")
}

/// Creates an error. Numbers that are not HTTP statuses become 500. This wire has no error types.
fn error(status: u16, message: impl Into<String>) -> ApiError {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    ApiError::new(status, "", message)
}
