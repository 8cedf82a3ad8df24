//! Errors in the vendor's form: `{"error": {"message", "type", "param", "code"}}`.

use api::ErrorCode;
use api::event::{Failure, FailureCode};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_service::http::ApiError;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::agent::AgentError;

/// The body of a refusal or failure in the vendor's form.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct VendorErrorBody {
    error: VendorErrorDetails,
}

/// The error of a [`VendorErrorBody`].
#[derive(Debug, Serialize, ToSchema)]
struct VendorErrorDetails {
    /// What is wrong, where, and what to do.
    message: String,
    /// The class of the error.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    kind: &'static str,
    /// The field that the error is about, if it is about one.
    param: Option<String>,
    /// The code, by which programs recognize it.
    code: String,
}

/// A refusal or failure in the vendor's form.
#[derive(Debug)]
pub(crate) struct VendorError {
    status: u16,
    code: String,
    message: String,
    param: Option<String>,
    retry_after: Option<HeaderValue>,
}

impl VendorError {
    fn new(status: u16, code: &str, message: impl Into<String>) -> Self {
        Self { status, code: code.to_owned(), message: message.into(), param: None, retry_after: None }
    }

    /// A field is invalid; `expected` says what it must be.
    pub(in crate::http) fn invalid(param: &str, expected: impl std::fmt::Display) -> Self {
        let message = format!("`{param}`: {expected}");
        Self { param: Some(param.to_owned()), ..Self::new(400, "invalid_value", message) }
    }

    /// A field, or this value of it, has no meaning for an agent of this kind.
    pub(in crate::http) fn unsupported(param: &str, reason: impl std::fmt::Display) -> Self {
        Self { code: "unsupported_parameter".to_owned(), ..Self::invalid(param, reason) }
    }

    /// A field is not known.
    pub(in crate::http) fn unknown(param: &str) -> Self {
        let name: String = param.chars().take(64).collect();
        Self { code: "unknown_parameter".to_owned(), ..Self::invalid(&name, "there is no such parameter") }
    }

    pub(in crate::http) fn not_found(message: &str, code: &str) -> Self {
        Self::new(404, code, message)
    }

    pub(in crate::http) fn conflict(message: &str, code: &str) -> Self {
        Self::new(409, code, message)
    }

    /// The turn goes on, and its answer does not come in this response.
    pub(in crate::http) fn unfinished(code: &str, message: &str) -> Self {
        Self::new(503, code, message)
    }

    /// Names the field that the error is about, unless it names one.
    pub(in crate::http) fn about(mut self, param: &str) -> Self {
        self.param.get_or_insert_with(|| param.to_owned());
        self
    }

    /// The code.
    pub(in crate::http) fn code(&self) -> &str {
        &self.code
    }

    /// The message.
    pub(in crate::http) fn message(&self) -> &str {
        &self.message
    }

    fn kind(&self) -> &'static str {
        match self.status {
            401 => "authentication_error",
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// The body.
    pub(crate) fn body(&self) -> Value {
        let Self { code, message, param, .. } = self;
        let (message, param, code) = (message.clone(), param.clone(), code.clone());
        let error = VendorErrorDetails { message, kind: self.kind(), param, code };
        // Texts can always be serialized as JSON.
        serde_json::to_value(VendorErrorBody { error }).unwrap_or_default()
    }
}

/// The vendor's code for one of ours; ours in lower case where the vendor has none.
fn vendor_code(code: ErrorCode) -> String {
    match code {
        ErrorCode::InvalidEngineKey => "invalid_api_key".to_owned(),
        ErrorCode::ModelNotPermitted => "model_not_found".to_owned(),
        ErrorCode::UsageCapReached => "insufficient_quota".to_owned(),
        code => code.to_string().to_lowercase(),
    }
}

/// The field at the beginning of a message, such as `` `metadata`: must be … ``.
fn named_field(message: &str) -> Option<String> {
    let (field, _) = message.strip_prefix('`')?.split_once("`: ")?;
    Some(field.to_owned())
}

impl From<ApiError> for VendorError {
    fn from(error: ApiError) -> Self {
        let retry_after = error.retry_after_s().map(HeaderValue::from);
        let (code, message) = error.into_parts();
        Self {
            // The vendor answers 404 to an unknown model.
            status: if code == ErrorCode::ModelNotPermitted { 404 } else { code.status() },
            code: vendor_code(code),
            param: named_field(&message),
            message,
            retry_after,
        }
    }
}

impl From<AgentError> for VendorError {
    fn from(error: AgentError) -> Self {
        ApiError::from(error).into()
    }
}

impl From<Failure> for VendorError {
    fn from(Failure { code, message, .. }: Failure) -> Self {
        let (status, code) = match code {
            FailureCode::ProviderUnavailable => (503, "provider_unavailable"),
            FailureCode::ProviderNotConfigured => (503, "provider_not_configured"),
            FailureCode::ProviderAuth => (502, "provider_auth"),
            FailureCode::ProviderRefused => (502, "provider_refused"),
            FailureCode::OutputInvalid => (502, "output_invalid"),
            FailureCode::UsageCapReached => (429, "insufficient_quota"),
            FailureCode::HitlExpired => (504, "hitl_expired"),
            FailureCode::ResumeLimit => (500, "resume_limit"),
            FailureCode::InternalError => (500, "internal_error"),
        };
        Self::new(status, code, message)
    }
}

impl IntoResponse for VendorError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        if status == StatusCode::REQUEST_TIMEOUT {
            // The rest of the body may still arrive, and would be parsed as the next request.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
