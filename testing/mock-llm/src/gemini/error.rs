//! Gemini's errors: codes, statuses and details of
//! <https://ai.google.dev/gemini-api/docs/troubleshooting> and of <https://google.aip.dev/193>.

use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::fault::Refusal;
use crate::protocol::ApiError;
use crate::transcript::single_event;

/// The body of an error response or of an error within a stream.
pub(super) fn body(error: &ApiError) -> Value {
    let mut members = json!({"code": error.status.as_u16(), "message": error.message, "status": error.kind});
    if let (false, Some(members)) = (error.details.is_empty(), members.as_object_mut()) {
        members.insert("details".to_owned(), error.details.to_vec().into());
    }
    json!({"error": members})
}

/// An error within a stream: a `data` event without a name.
pub(super) fn event(error: &ApiError) -> Bytes {
    single_event(None, &body(error))
}

/// A violation of a rule.
pub(super) fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", message)
}

/// A field that does not match the schema of the request.
pub(super) fn invalid_field(field: &str, message: impl Into<String>) -> ApiError {
    let message = message.into();
    let violation = json!({"field": field, "description": message});
    invalid(message).with_detail(json!({
        "@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation],
    }))
}

/// The error for a key that is not accepted.
pub(super) fn invalid_key() -> ApiError {
    invalid("API key not valid. Please pass a valid API key.").with_detail(json!({
        "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID",
        "domain": "googleapis.com", "metadata": {"service": "generativelanguage.googleapis.com"},
    }))
}

/// The error for a request without a key.
pub(super) fn missing_key() -> ApiError {
    ApiError::new(
        StatusCode::FORBIDDEN,
        "PERMISSION_DENIED",
        "Method doesn't allow unregistered callers (callers without established identity). Please use API Key or \
         other form of API consumer identity to call this API.",
    )
}

/// The error for a call without its signature. `position` is that of its turn, counted from one. The text is
/// quoted in <https://github.com/nanbingxyz/5ire/issues/405>.
pub(super) fn missing_signature(function: &str, position: usize) -> ApiError {
    invalid(format!(
        "Function call is missing a thought_signature in functionCall parts. This is required for tools to work \
         correctly, and missing thought_signature may lead to degraded model performance. Additional data, function \
         call `default_api:{function}` , position {position}. Please refer to \
         https://ai.google.dev/gemini-api/docs/thought-signatures for more details."
    ))
}

/// The error for a model that does not exist.
pub(super) fn unknown_model(model: &str) -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "NOT_FOUND",
        format!(
            "models/{model} is not found for API version v1beta, or is not supported for generateContent. Call \
             ListModels to see the list of available models and their supported methods."
        ),
    )
}

/// A scripted refusal.
pub(super) fn refusal(refusal: &Refusal, model: &str) -> ApiError {
    match refusal {
        Refusal::RateLimited { retry_after_s } => {
            let error = rate_limited(model, *retry_after_s);
            match retry_after_s {
                Some(seconds) => error.with_detail(json!({
                    "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": format!("{seconds}s"),
                })),
                None => error,
            }
        }
        Refusal::QuotaExhausted => ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            "RESOURCE_EXHAUSTED",
            "Your prepayment credits are depleted. Please go to AI Studio at https://ai.studio/projects to manage your \
             project and billing.",
        ),
        Refusal::Overloaded => ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "UNAVAILABLE",
            "The model is overloaded. Please try again later.",
        ),
        Refusal::ServerError => ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "INTERNAL",
            "An internal error has occurred. Please retry or report in \
             https://developers.generativeai.google/guide/troubleshooting",
        ),
        Refusal::Unauthorized => invalid_key(),
        Refusal::Forbidden => {
            ApiError::new(StatusCode::FORBIDDEN, "PERMISSION_DENIED", "The caller does not have permission")
        }
        Refusal::UnknownModel => unknown_model(model),
        Refusal::PromptTooLong => {
            invalid("The input token count (1048579) exceeds the maximum number of tokens allowed (1048576).")
        }
        Refusal::BrokenHistory => missing_signature("lost", 2),
        Refusal::Other { status, error_type, message, headers } => {
            // Numbers that are not HTTP statuses become 500.
            let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let mut error = ApiError::new(status, error_type, message);
            error.headers.clone_from(headers);
            error
        }
    }
}

/// The error for an exhausted quota of requests per minute (<https://ai.google.dev/gemini-api/docs/rate-limits>).
fn rate_limited(model: &str, retry_after_s: Option<u64>) -> ApiError {
    let wait = retry_after_s.map_or(String::new(), |seconds| format!("\nPlease retry in {seconds}s."));
    let message = format!(
        "You exceeded your current quota, please check your plan and billing details. For more information on this \
         error, head to: https://ai.google.dev/gemini-api/docs/rate-limits.{wait}"
    );
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED", message).with_detail(json!({
        "@type": "type.googleapis.com/google.rpc.QuotaFailure",
        "violations": [{
            "quotaMetric": "generativelanguage.googleapis.com/generate_requests_per_model",
            "quotaId": "GenerateRequestsPerMinutePerProjectPerModel",
            "quotaDimensions": {"location": "global", "model": model}, "quotaValue": "10",
        }],
    }))
}
