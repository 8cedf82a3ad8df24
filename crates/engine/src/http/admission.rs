//! The memory of large requests, reserved before they are read.

use axum::extract::FromRequestParts;
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use service::http::ApiError;

use super::{MAX_BODY, State};
use crate::agent::AgentError;
use crate::memory_budget::{MemoryUse, Reserved};

/// How many times as large as a body it is together with what is read out of it: its texts, and the bytes of what is
/// attached.
const IN_ALL: usize = 3;

/// The memory of a request's body. It stands behind `Authenticated`, before the body, and is held until the request is
/// answered: who has no key reserves nothing.
pub(super) struct Admitted(#[expect(dead_code, reason = "held, not read")] Reserved);

impl FromRequestParts<State> for Admitted {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, ApiError> {
        let length = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        // One that is larger is refused, not read.
        let length = length.unwrap_or(MAX_BODY).min(MAX_BODY);
        let reserved =
            state.0.agent.memory().reserve(MemoryUse::Requests, length.saturating_mul(IN_ALL)).await;
        Ok(Self(reserved.map_err(AgentError::NoMemory)?))
    }
}
