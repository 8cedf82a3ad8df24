//! Converts the fleet's errors to responses in the API's error envelope.

use api::ErrorCode;
use http_service::http::ApiError;
use resources::text::error_chain;

use crate::fleet::FleetError;

/// Converts an error of the fleet to a response. Unexpected errors are logged, and answered without their causes.
#[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` calls")]
pub(super) fn to_api_error(error: FleetError) -> ApiError {
    let code = error.code();
    if code == ErrorCode::InternalError {
        // The caller gets only the request id, by which the operator finds this line.
        tracing::error!(error = error_chain(&error), "A request failed unexpectedly.");
        return ApiError::internal();
    }
    if matches!(error, FleetError::RegistryUnavailable(_)) {
        tracing::warn!(error = error_chain(&error), "The registry was unreachable.");
    }
    let response = ApiError::new(code, error.to_string());
    match error.retry_after_s() {
        Some(seconds) => response.retry_after(seconds),
        None => response,
    }
}
