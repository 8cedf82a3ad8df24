//! Classifies failures of a server by what they mean for the request.

use resources::text::{error_chain, first_bytes};
use rmcp::model::ErrorData;
use rmcp::service::{ClientInitializeError, ServiceError};
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use super::ClientError;
use super::http::{SESSION_EXPIRED, http_status};
use super::transport_guard::TransportState;
use crate::request_auth::AuthError;

/// The maximum length of a server's error text that is reported, in bytes.
const MAX_ERROR_BYTES: usize = 4 * 1024;

/// The state of a call that has no result.
pub(super) enum CallFailure {
    /// It was not sent: it may be sent again.
    NotSent(String),
    /// It was not answered in time. It may have taken effect, or still may.
    TimedOut(String),
    /// It may have taken effect.
    OutcomeUnknown(String),
    /// The server rejected the credentials.
    Unauthorized(String),
    /// The server refused it, or reported its failure.
    Refused(ClientError),
}

impl CallFailure {
    /// Converts the failure to an error, if the state of the call does not matter.
    pub(super) fn into_error(self) -> ClientError {
        match self {
            Self::NotSent(reason) | Self::TimedOut(reason) | Self::OutcomeUnknown(reason) => {
                ClientError::Failed(reason)
            }
            Self::Unauthorized(reason) => ClientError::Unauthorized(reason),
            Self::Refused(error) => error,
        }
    }
}

/// Classifies a failed request.
pub(super) fn call_failure(error: ServiceError, transport_state: &TransportState) -> CallFailure {
    match error {
        ServiceError::McpError(error) => CallFailure::Refused(ClientError::Failed(error_text(&error))),
        ServiceError::TransportSend(error) => send_failure(&error),
        ServiceError::TransportClosed => CallFailure::OutcomeUnknown(transport_state.reason().to_owned()),
        ServiceError::Cancelled { .. } => CallFailure::OutcomeUnknown("it was cancelled".into()),
        error => CallFailure::OutcomeUnknown(first_bytes(&error.to_string(), MAX_ERROR_BYTES).to_owned()),
    }
}

/// Returns the reason why a server cannot be connected.
pub(super) fn connect_error(error: ClientInitializeError, transport_state: &TransportState) -> ClientError {
    let reason = match error {
        ClientInitializeError::TransportError { error, .. } => return send_failure(&error).into_error(),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => {
            return connect_error(*fallback, transport_state);
        }
        ClientInitializeError::JsonRpcError(error) => error_text(&error),
        ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::Cancelled => {
            transport_state.reason().to_owned()
        }
        ClientInitializeError::NoCompatibleProtocolVersion { .. } => {
            "it supports no protocol revision that this client knows".into()
        }
        _ => "it sent an unexpected response".into(),
    };
    ClientError::Failed(reason)
}

/// Returns the HTTP status with which a server refused the connection.
pub(super) fn refusal_status(error: &ClientInitializeError) -> Option<u16> {
    match error {
        ClientInitializeError::TransportError { error, .. } => http_error(error).and_then(http_status),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => refusal_status(fallback),
        _ => None,
    }
}

fn http_error(error: &DynamicTransportError) -> Option<&StreamableHttpError<reqwest::Error>> {
    error.error.downcast_ref()
}

/// Formats a JSON-RPC error.
fn error_text(error: &ErrorData) -> String {
    format!("it refused the request: {} ({})", first_bytes(&error.message, MAX_ERROR_BYTES), error.code.0)
}

fn send_failure(error: &DynamicTransportError) -> CallFailure {
    let refused = |reason: String| CallFailure::Refused(ClientError::Failed(reason));
    let Some(failure) = http_error(error) else {
        return CallFailure::NotSent(first_bytes(&error_chain(&*error.error), MAX_ERROR_BYTES).to_owned());
    };
    if let StreamableHttpError::Io(error) = failure
        && let Some(auth_error) = error.get_ref().and_then(|error| error.downcast_ref::<AuthError>())
    {
        return CallFailure::Refused(ClientError::Auth(auth_error.clone()));
    }
    match (http_status(failure), failure) {
        (Some(401), _) => {
            CallFailure::Unauthorized("it rejected the user's credentials (401): connect it again".into())
        }
        (Some(403), StreamableHttpError::InsufficientScope(error)) => {
            let scope = error
                .get_required_scope()
                .map(|scope| format!(" for the scope {scope:?}"))
                .unwrap_or_default();
            CallFailure::Unauthorized(format!("it requires more permissions (403){scope}: connect it again"))
        }
        (Some(429), _) => refused("it limits the request rate (HTTP 429); try again later".into()),
        (Some(status @ 500..), _) => CallFailure::OutcomeUnknown(format!("it failed (HTTP {status})")),
        (Some(_), failure) => {
            refused(format!("it refused the request: {}", first_bytes(&failure.to_string(), MAX_ERROR_BYTES)))
        }
        (None, StreamableHttpError::ResponseBodyTooLarge { max_size }) => {
            CallFailure::OutcomeUnknown(format!("its response has over {} MiB", max_size >> 20))
        }
        (None, StreamableHttpError::Client(error)) if error.is_connect() || error.is_builder() => {
            CallFailure::NotSent(format!("it cannot be reached: {}", error_chain(error)))
        }
        (None, StreamableHttpError::Client(error)) => CallFailure::OutcomeUnknown(error_chain(error)),
        (None, StreamableHttpError::SessionExpired) => CallFailure::NotSent(SESSION_EXPIRED.into()),
        (None, failure) => {
            CallFailure::OutcomeUnknown(first_bytes(&error_chain(failure), MAX_ERROR_BYTES).to_owned())
        }
    }
}
