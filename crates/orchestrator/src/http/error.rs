//! The rules' refusals and failures, in the envelope.

use std::error::Error as _;

use api::ErrorCode;
use http_service::http::ApiError;

use crate::fault_injection::{self, Mutation};
use crate::fleet::FleetError;

/// What a handler answers when it does not succeed.
#[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` calls")]
pub(super) fn to_api_error(error: FleetError) -> ApiError {
    let code = error.code();
    if code == ErrorCode::InternalError {
        // Logged here, once, with its causes; the caller learns only where to look.
        tracing::error!(error = error_chain(&error), "A request failed unexpectedly.");
        return ApiError::internal();
    }
    if matches!(error, FleetError::RegistryUnavailable(_)) {
        tracing::warn!(error = error_chain(&error), "The registry was away.");
    }
    let answer = ApiError::new(code, error.to_string());
    match error.retry_after_s().filter(|_| !fault_injection::active(Mutation::NoRetryAfter)) {
        Some(seconds) => answer.retry_after(seconds),
        None => answer,
    }
}

fn error_chain(error: &FleetError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
