//! Admission of large requests: their memory is reserved as they arrive, and they are parsed on threads of their
//! own.

use std::sync::LazyLock;

use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use http_service::http::{
    ApiError, BodyAdmission, ResponseWarnings, parse_json_noting_unknown, parse_json_refusing_unknown,
    read_admitted_body,
};
use resources::memory_budget::{GrowingReservation, MAX_UNCOUNTED_BYTES, MemoryUse};
use resources::threads::{BODY_PARSE_THREADS, Lane};
use serde::de::DeserializeOwned;

use super::AppState;
use crate::agent::AgentError;

/// The memory of a body and its parsed content (texts, attached bytes), as a multiple of the body's size.
const PARSED_SIZE_FACTOR: usize = 3;

/// The threads that parse large bodies.
static PARSE_LANE: LazyLock<Lane> = LazyLock::new(|| Lane::new(BODY_PARSE_THREADS));

/// A parsed JSON body, and the memory of both forms, which is held until the response. Unknown fields are refused. It
/// comes after `Authenticated` in a handler's arguments: a caller without a key reserves nothing.
pub(super) struct Admitted<T>(pub(super) T, pub(super) BodyMemory);

/// Like [`Admitted`] for the endpoints of the contract: unknown fields are ignored, and a header of the response names
/// them.
pub(super) struct AdmittedLenient<T>(pub(super) T, pub(super) BodyMemory);

/// The memory of a request's body.
pub(super) struct BodyMemory(GrowingReservation);

impl BodyAdmission for BodyMemory {
    async fn admit(&mut self, bytes: usize) -> Result<(), ApiError> {
        let large = self.0.grow_to(if bytes > MAX_UNCOUNTED_BYTES {
            bytes.saturating_mul(PARSED_SIZE_FACTOR)
        } else {
            bytes
        });
        Ok(large.await.map_err(AgentError::NoMemory)?)
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<AppState> for Admitted<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (parsed, memory) = admit(request, state, parse_json_refusing_unknown).await?;
        Ok(Self(parsed, memory))
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<AppState> for AdmittedLenient<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let warnings = ResponseWarnings::of(request.extensions());
        let ((parsed, unknown), memory) = admit(request, state, parse_json_noting_unknown).await?;
        warnings.name(unknown);
        Ok(Self(parsed, memory))
    }
}

/// Reads a body and parses it with `parse`.
pub(super) async fn admit<T: Send + 'static>(
    request: Request,
    state: &AppState,
    parse: fn(&[u8]) -> Result<T, ApiError>,
) -> Result<(T, BodyMemory), ApiError> {
    let mut memory = BodyMemory(state.0.agent.memory_budget().growing_reservation(MemoryUse::Requests));
    let body = read_admitted_body(request, &mut memory).await?;
    parse_body(&PARSE_LANE, body, memory, parse).await
}

/// Parses `body`. A large one would block all streams for as long as it is parsed, so it is parsed in the lane.
/// Its memory goes along: parsing continues to the end even if nobody waits for it any more.
async fn parse_body<T, M>(
    lane: &Lane,
    body: Bytes,
    memory: M,
    parse: fn(&[u8]) -> Result<T, ApiError>,
) -> Result<(T, M), ApiError>
where
    T: Send + 'static,
    M: Send + 'static,
{
    if body.len() <= MAX_UNCOUNTED_BYTES {
        return parse(&body).map(|parsed| (parsed, memory));
    }
    let parsed = lane.run(move || parse(&body).map(|parsed| (parsed, memory))).await;
    parsed.unwrap_or_else(|| Err(AgentError::Stopping.into()))
}

#[cfg(test)]
mod tests {
    use std::thread::ThreadId;

    use serde::{Deserialize, Deserializer};

    use super::*;

    /// The thread on which it was parsed.
    struct Parsed(ThreadId);

    impl<'de> Deserialize<'de> for Parsed {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            serde::de::IgnoredAny::deserialize(from)?;
            Ok(Self(std::thread::current().id()))
        }
    }

    #[tokio::test]
    async fn a_large_body_is_parsed_where_it_holds_nobody_up() {
        let lane = Lane::new(1);
        let here = std::thread::current().id();
        for (length, is_here) in [(10, true), (MAX_UNCOUNTED_BYTES + 1, false)] {
            let body = format!("{{\"text\": \"{}\"}}", "x".repeat(length));
            let (Parsed(thread), ()) =
                parse_body(&lane, body.into(), (), parse_json_refusing_unknown).await.unwrap();
            assert_eq!(thread == here, is_here, "{length}");
        }
        let torn = format!("{{\"text\": \"{}", "x".repeat(MAX_UNCOUNTED_BYTES));
        assert!(parse_body::<Parsed, _>(&lane, torn.into(), (), parse_json_refusing_unknown).await.is_err());
    }
}
