//! What went wrong with a server, and what that means for what it was asked to do.

use rmcp::model::ErrorData;
use rmcp::service::{ClientInitializeError, ServiceError};
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use super::ClientError;
use super::http::{SESSION_OVER, chain, status};
use super::line::Line;
use crate::assets::access::AccessError;
use crate::assets::definition::beginning;

/// How much of what a server says of an error is told, in bytes.
const MAX_TOLD: usize = 4 * 1024;

/// What became of a call that has no result.
pub(super) enum Lost {
    /// It never left: it may be sent again.
    Unsent(String),
    /// It was not answered in time. It may have been done, and may still be.
    Late(String),
    /// It may have been done.
    Unknown(String),
    /// The server did not take what shows it who the user is.
    NotLetIn(String),
    /// The server did not do it, or said how it ended.
    Refused(ClientError),
}

impl Lost {
    /// Why, where it does not matter what became of it.
    pub(super) fn error(self) -> ClientError {
        match self {
            Self::Unsent(reason) | Self::Late(reason) | Self::Unknown(reason) => ClientError::Failed(reason),
            Self::NotLetIn(reason) => ClientError::NotLetIn(reason),
            Self::Refused(error) => error,
        }
    }
}

/// What became of a request that failed so.
pub(super) fn lost(error: ServiceError, line: &Line) -> Lost {
    match error {
        ServiceError::McpError(error) => Lost::Refused(ClientError::Failed(refusal(&error))),
        ServiceError::TransportSend(error) => not_sent(&error),
        ServiceError::TransportClosed => Lost::Unknown(line.reason().to_owned()),
        ServiceError::Cancelled { .. } => Lost::Unknown("it was cancelled".into()),
        error => Lost::Unknown(beginning(&error.to_string(), MAX_TOLD).to_owned()),
    }
}

/// Why a server cannot be connected.
pub(super) fn not_connected(error: ClientInitializeError, line: &Line) -> ClientError {
    let told = match error {
        ClientInitializeError::TransportError { error, .. } => return not_sent(&error).error(),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => {
            return not_connected(*fallback, line);
        }
        ClientInitializeError::JsonRpcError(error) => refusal(&error),
        ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::Cancelled => {
            line.reason().to_owned()
        }
        ClientInitializeError::NoCompatibleProtocolVersion { .. } => {
            "it speaks no revision of the protocol that is known here".into()
        }
        _ => "it answers with something else than what it was asked".into(),
    };
    ClientError::Failed(told)
}

/// The status by which a server at an address refused to be connected.
pub(super) fn refused_by(error: &ClientInitializeError) -> Option<u16> {
    match error {
        ClientInitializeError::TransportError { error, .. } => over_http(error).and_then(status),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => refused_by(fallback),
        _ => None,
    }
}

fn over_http(error: &DynamicTransportError) -> Option<&StreamableHttpError<reqwest::Error>> {
    error.error.downcast_ref()
}

/// A JSON-RPC error in words.
fn refusal(error: &ErrorData) -> String {
    format!("it refuses: {} ({})", beginning(&error.message, MAX_TOLD), error.code.0)
}

fn not_sent(error: &DynamicTransportError) -> Lost {
    let refused = |reason: String| Lost::Refused(ClientError::Failed(reason));
    let Some(failure) = over_http(error) else {
        return Lost::Unsent(beginning(&chain(&*error.error), MAX_TOLD).to_owned());
    };
    if let StreamableHttpError::Io(error) = failure
        && let Some(access) = error.get_ref().and_then(|error| error.downcast_ref::<AccessError>())
    {
        return Lost::Refused(ClientError::Access(access.clone()));
    }
    match (status(failure), failure) {
        (Some(401), _) => {
            Lost::NotLetIn("it refuses what shows it who the user is (401): connect it again".into())
        }
        (Some(403), StreamableHttpError::InsufficientScope(error)) => {
            let scope =
                error.get_required_scope().map(|scope| format!(", for {scope:?}")).unwrap_or_default();
            Lost::NotLetIn(format!("it wants more leave (403){scope}: connect it again"))
        }
        (Some(429), _) => refused("it takes nothing more now (HTTP 429); try later".into()),
        (Some(status @ 500..), _) => Lost::Unknown(format!("it failed (HTTP {status})")),
        (Some(_), failure) => refused(format!("it refuses: {}", beginning(&failure.to_string(), MAX_TOLD))),
        (None, StreamableHttpError::ResponseBodyTooLarge { max_size }) => {
            Lost::Unknown(format!("its answer has over {} MiB", max_size >> 20))
        }
        (None, StreamableHttpError::Client(error)) if error.is_connect() || error.is_builder() => {
            Lost::Unsent(format!("it cannot be reached: {}", chain(error)))
        }
        (None, StreamableHttpError::Client(error)) => Lost::Unknown(chain(error)),
        (None, StreamableHttpError::SessionExpired) => Lost::Unsent(SESSION_OVER.into()),
        (None, failure) => Lost::Unknown(beginning(&chain(failure), MAX_TOLD).to_owned()),
    }
}
