//! OpenAI's errors: statuses and bodies of <https://platform.openai.com/docs/guides/error-codes>.

use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::fault::Refusal;
use crate::protocol::ApiError;
use crate::transcript::single_event;

/// The body of an error response or of an error within a stream.
pub(crate) fn body(error: &ApiError) -> Value {
    json!({"error": {
        "message": error.message, "type": error.kind, "param": error.param, "code": error.code,
    }})
}

/// An error within a stream: a `data` event without a name.
pub(crate) fn event(error: &ApiError) -> Bytes {
    single_event(None, &body(error))
}

/// The error for a key that is not accepted.
pub(crate) fn invalid_key() -> ApiError {
    ApiError::new(
        StatusCode::UNAUTHORIZED,
        "invalid_request_error",
        "Incorrect API key provided. You can find your API key at https://platform.openai.com/account/api-keys.",
    )
    .with_code("invalid_api_key")
}

/// A scripted refusal.
pub(crate) fn refusal(refusal: &Refusal, model: &str) -> ApiError {
    match refusal {
        Refusal::RateLimited { retry_after_s } => {
            let message = format!("Rate limit reached for {model}. Please try again later.");
            let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "requests", message)
                .with_code("rate_limit_exceeded");
            match retry_after_s {
                Some(seconds) => error.with_header("retry-after", seconds.to_string()),
                None => error,
            }
        }
        Refusal::Overloaded => ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "server_error",
            "The engine is currently overloaded, please try again later",
        ),
        Refusal::ServerError => ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "server_error",
            "The server had an error while processing your request. Sorry about that!",
        ),
        Refusal::Unauthorized => invalid_key(),
        Refusal::Forbidden => ApiError::new(
            StatusCode::FORBIDDEN,
            "invalid_request_error",
            format!("Project does not have access to model `{model}`"),
        )
        .with_code("model_not_found"),
        Refusal::UnknownModel => ApiError::new(
            StatusCode::NOT_FOUND,
            "invalid_request_error",
            format!("The model `{model}` does not exist or you do not have access to it."),
        )
        .with_code("model_not_found"),
        Refusal::PromptTooLong => ApiError::invalid(
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 \
             tokens. Please reduce the length of the messages.",
        )
        .with_param("messages")
        .with_code("context_length_exceeded"),
        Refusal::QuotaExhausted => ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            "insufficient_quota",
            "You exceeded your current quota, please check your plan and billing details.",
        )
        .with_code("insufficient_quota"),
        Refusal::BrokenHistory => ApiError::invalid(
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with \
             'tool_calls'.",
        )
        .with_param("messages.[1].role"),
        Refusal::Other { status, error_type, message, headers } => {
            // Numbers that are not HTTP statuses become 500.
            let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let mut error = ApiError::new(status, error_type, message);
            error.headers.clone_from(headers);
            error
        }
    }
}
