//! An answer that is not a success.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use contract::{ErrorBody, ErrorCode};

/// A refusal or failure, on its way to becoming an answer in the error envelope.
#[derive(Debug)]
pub struct ApiError {
    code: ErrorCode,
    message: String,
    retry_after_s: Option<u64>,
}

impl ApiError {
    /// An error with the status of its code. `message` is for a person: what is wrong, where, what to do.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry_after_s: None }
    }

    /// A 500. What happened belongs in the log, not in the answer.
    pub fn internal() -> Self {
        Self::new(
            ErrorCode::InternalError,
            "unexpected failure; the log has the details under this request's id",
        )
    }

    /// Tells the client when to come back.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The error's code.
    pub const fn code(&self) -> ErrorCode {
        self.code
    }

    /// The code and the message, for an answer that is not in the envelope.
    pub fn into_parts(self) -> (ErrorCode, String) {
        (self.code, self.message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let code = self.code;
        let mut response = (status, Json(ErrorBody::new(self.code, self.message))).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        // For whoever counts refusals around the handlers.
        response.extensions_mut().insert(code);
        response
    }
}
