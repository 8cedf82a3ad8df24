//! Error responses: the envelope, the status of a code, and `Retry-After`.

use api::{ErrorBody, ErrorCode};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// A refusal or failure that becomes a response in the error envelope.
#[derive(Debug)]
pub struct ApiError {
    code: ErrorCode,
    message: String,
    retry_after_s: Option<u64>,
}

impl ApiError {
    /// Creates an error with the status of its code. `message` is for a person: what is wrong, where, what to do.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry_after_s: None }
    }

    /// Creates a 500. The cause belongs in the log, not in the response.
    pub fn internal() -> Self {
        Self::new(
            ErrorCode::InternalError,
            "unexpected failure; the log has the details under this request's id",
        )
    }

    /// Sets `Retry-After`: the client should retry after `seconds`.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Returns the error's code.
    pub const fn code(&self) -> ErrorCode {
        self.code
    }

    /// Returns the number of seconds after which the client should retry, if that helps.
    pub const fn retry_after_s(&self) -> Option<u64> {
        self.retry_after_s
    }

    /// Returns the code and the message.
    pub fn into_parts(self) -> (ErrorCode, String) {
        (self.code, self.message)
    }

    /// Builds the response with a body of another form than the envelope.
    pub fn with_body<B: Serialize>(self, body: impl FnOnce(ErrorCode, String) -> B) -> Response {
        let Self { code, message, retry_after_s } = self;
        let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(body(code, message))).into_response();
        if let Some(seconds) = retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if code == ErrorCode::RequestTimeout {
            // The rest of the body may still arrive, and would be parsed as the next request.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        // For the layer that counts errors.
        response.extensions_mut().insert(code);
        response
    }
}

/// A request's body was abandoned: no data arrived for 30 seconds, or the average rate stayed below 4 KiB per
/// second.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the request's body did not arrive in time")]
pub struct BodyTimeout;

/// Whether reading the body of a request failed with a [`BodyTimeout`].
pub fn is_body_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(<dyn std::error::Error>::is::<BodyTimeout>)
}

impl From<BodyTimeout> for ApiError {
    fn from(_: BodyTimeout) -> Self {
        let message = "the body did not arrive in time: data must arrive at least every 30 seconds, and at an average \
                       of 4 KiB per second";
        Self::new(ErrorCode::RequestTimeout, message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.with_body(ErrorBody::new)
    }
}
