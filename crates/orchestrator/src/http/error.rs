//! The rules' refusals and failures, in the envelope.

use std::error::Error as _;

use contract::ErrorCode;
use service::http::ApiError;

use crate::fleet::FleetError;
use crate::sabotage::{self, Saboteur};

/// What a handler answers when it does not succeed.
#[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` calls")]
pub(super) fn answer(error: FleetError) -> ApiError {
    let code = error.code();
    if code == ErrorCode::InternalError {
        // Logged here, once, with its causes; the caller learns only where to look.
        tracing::error!(error = chain(&error), "A request failed unexpectedly.");
        return ApiError::internal();
    }
    if matches!(error, FleetError::RegistryAway(_)) {
        tracing::warn!(error = chain(&error), "The registry was away.");
    }
    let answer = ApiError::new(code, error.to_string());
    match error.retry_after_s().filter(|_| !sabotage::by(Saboteur::NoRetryAfter)) {
        Some(seconds) => answer.retry_after(seconds),
        None => answer,
    }
}

fn chain(error: &FleetError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
