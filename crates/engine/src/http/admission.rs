//! Large requests: their memory is reserved as they come, and they are parsed where that holds nobody up.

use std::sync::LazyLock;

use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use service::http::{ApiError, BodyAdmission, admitted_body, from_json};

use super::State;
use crate::agent::AgentError;
use crate::memory_budget::{Growing, MemoryUse, SMALL};
use crate::threads::{BODY_THREADS, Lane};

/// How many times as large as a body it is together with what is read out of it: its texts, and the bytes of what is
/// attached.
const IN_ALL: usize = 3;

/// Where large bodies are parsed.
static PARSING: LazyLock<Lane> = LazyLock::new(|| Lane::of(BODY_THREADS));

/// What a JSON body holds, and the memory of both, which is held until the request is answered. It stands behind
/// `Authenticated`: who has no key reserves nothing.
pub(super) struct Admitted<T>(pub(super) T, pub(super) Memory);

/// The memory of a request's body.
pub(super) struct Memory(Growing);

impl BodyAdmission for Memory {
    async fn admit(&mut self, bytes: usize) -> Result<(), ApiError> {
        let large = self.0.grow(if bytes > SMALL { bytes.saturating_mul(IN_ALL) } else { bytes });
        Ok(large.await.map_err(AgentError::NoMemory)?)
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<State> for Admitted<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &State) -> Result<Self, ApiError> {
        let mut memory = Memory(state.0.agent.memory().growing(MemoryUse::Requests));
        let body = admitted_body(request, &mut memory).await?;
        let (parsed, memory) = parsed(&PARSING, body, memory).await?;
        Ok(Self(parsed, memory))
    }
}

/// What `body` holds. A large one would keep all streams waiting for as long as it is parsed. Its memory goes along: it is
/// parsed to the end also where nobody waits for it any more.
async fn parsed<T, M>(lane: &Lane, body: Bytes, memory: M) -> Result<(T, M), ApiError>
where
    T: DeserializeOwned + Send + 'static,
    M: Send + 'static,
{
    if body.len() <= SMALL {
        return from_json(&body).map(|parsed| (parsed, memory));
    }
    let parsed = lane.run(move || from_json(&body).map(|parsed| (parsed, memory))).await;
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
        let lane = Lane::of(1);
        let here = std::thread::current().id();
        for (length, is_here) in [(10, true), (SMALL + 1, false)] {
            let body = format!("{{\"text\": \"{}\"}}", "x".repeat(length));
            let (Parsed(thread), ()) = parsed(&lane, body.into(), ()).await.unwrap();
            assert_eq!(thread == here, is_here, "{length}");
        }
        let torn = format!("{{\"text\": \"{}", "x".repeat(SMALL));
        assert!(parsed::<Parsed, _>(&lane, torn.into(), ()).await.is_err());
    }
}
