//! Anthropic's errors: statuses, types and bodies of <https://platform.claude.com/docs/en/api/errors>.

use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::fault::Refusal;
use crate::protocol::ApiError;
use crate::transcript::single_event;

/// The body of an error. Errors within a stream have no request id.
pub(super) fn body(error: &ApiError, request_id: Option<&str>) -> Value {
    let mut body = json!({"type": "error", "error": {"type": error.kind, "message": error.message}});
    if let (Some(request_id), Some(members)) = (request_id, body.as_object_mut()) {
        members.insert("request_id".to_owned(), request_id.into());
    }
    body
}

/// An error within a stream: an `error` event.
pub(super) fn event(error: &ApiError) -> Bytes {
    single_event(Some("error"), &body(error, None))
}

/// A scripted refusal.
pub(super) fn refusal(refusal: &Refusal, model: &str) -> ApiError {
    let error = |status: u16, kind: &str, message: &str| ApiError::new(status_or_500(status), kind, message);
    match refusal {
        Refusal::RateLimited { retry_after_s } => {
            let message = "This request would exceed your organization's rate limit. Please try again later.";
            let error = error(429, "rate_limit_error", message);
            match retry_after_s {
                Some(seconds) => error.with_header("retry-after", seconds.to_string()),
                None => error,
            }
        }
        Refusal::Overloaded => error(529, "overloaded_error", "Overloaded"),
        Refusal::ServerError => error(500, "api_error", "Internal server error"),
        Refusal::Unauthorized => error(401, "authentication_error", "invalid x-api-key"),
        Refusal::Forbidden => error(
            403,
            "permission_error",
            "Your API key does not have permission to use the specified resource.",
        ),
        Refusal::UnknownModel => error(404, "not_found_error", &format!("model: {model}")),
        Refusal::PromptTooLong => {
            error(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")
        }
        Refusal::QuotaExhausted => error(
            400,
            "invalid_request_error",
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade \
             or purchase credits.",
        ),
        Refusal::BrokenHistory => error(
            400,
            "invalid_request_error",
            "messages.1.content.0: Invalid `signature` in `thinking` block",
        ),
        Refusal::Other { status, error_type, message, headers } => {
            let mut error = error(*status, error_type, message);
            error.headers.clone_from(headers);
            error
        }
    }
}

/// Converts a status. Numbers that are not HTTP statuses become 500.
fn status_or_500(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
