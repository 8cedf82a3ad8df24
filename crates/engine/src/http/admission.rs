//! Large requests: their memory is reserved as they come, and they are parsed where that holds nobody up.

use std::sync::LazyLock;

use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use service::http::{ApiError, BodyAdmission, parse_json, read_admitted_body};

use super::AppState;
use crate::agent::AgentError;
use crate::memory_budget::{GrowingReservation, MAX_UNCOUNTED_BYTES, MemoryUse};
use crate::threads::{BODY_PARSE_THREADS, Lane};

/// How many times as large as a body it is together with what is read out of it: its texts, and the bytes of what is
/// attached.
const PARSED_SIZE_FACTOR: usize = 3;

/// Where large bodies are parsed.
static PARSE_LANE: LazyLock<Lane> = LazyLock::new(|| Lane::new(BODY_PARSE_THREADS));

/// What a JSON body holds, and the memory of both, which is held until the request is answered. It stands behind
/// `Authenticated`: who has no key reserves nothing.
pub(super) struct Admitted<T>(pub(super) T, pub(super) BodyMemory);

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
        let mut memory = BodyMemory(state.0.agent.memory_budget().growing_reservation(MemoryUse::Requests));
        let body = read_admitted_body(request, &mut memory).await?;
        let (parsed, memory) = parse_body(&PARSE_LANE, body, memory).await?;
        Ok(Self(parsed, memory))
    }
}

/// What `body` holds. A large one would keep all streams waiting for as long as it is parsed. Its memory goes along: it is
/// parsed to the end also where nobody waits for it any more.
async fn parse_body<T, M>(lane: &Lane, body: Bytes, memory: M) -> Result<(T, M), ApiError>
where
    T: DeserializeOwned + Send + 'static,
    M: Send + 'static,
{
    if body.len() <= MAX_UNCOUNTED_BYTES {
        return parse_json(&body).map(|parsed| (parsed, memory));
    }
    let parsed = lane.run(move || parse_json(&body).map(|parsed| (parsed, memory))).await;
    parsed.unwrap_or_else(|| Err(AgentError::Stopping.into()))
}

#[cfg(test)]
mod tests {
    use std::thread::ThreadId;

    use serde::{Deserialize, Deserializer};

    use super::*;

    /// Where it was parsed.
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
            let (Parsed(thread), ()) = parse_body(&lane, body.into(), ()).await.unwrap();
            assert_eq!(thread == here, is_here, "{length}");
        }
        let torn = format!("{{\"text\": \"{}", "x".repeat(MAX_UNCOUNTED_BYTES));
        assert!(parse_body::<Parsed, _>(&lane, torn.into(), ()).await.is_err());
    }
}
