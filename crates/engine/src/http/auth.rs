//! The engine key.

use std::sync::{PoisonError, RwLock};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use contract::engine::ENGINE_KEY_HEADER;
use contract::proof::Challenge;
use contract::{ErrorCode, KeyHash};
use service::http::ApiError;

use super::AppState;

/// What the key must fit. It can be changed while the engine runs; a start puts back what the environment says.
pub(super) struct KeyGuard(RwLock<KeyHash>);

impl KeyGuard {
    pub(super) const fn new(hash: KeyHash) -> Self {
        Self(RwLock::new(hash))
    }

    /// Has `caller` change what the key must fit. From then on the caller's own key opens nothing.
    ///
    /// # Errors
    /// Another caller has changed it meanwhile: who holds an old key cannot turn that back.
    pub(super) fn replace_hash(&self, caller: &Authenticated, hash: KeyHash) -> Result<(), ApiError> {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if *current != caller.0 {
            return Err(invalid_key_error());
        }
        *current = hash;
        Ok(())
    }

    /// What shows whoever asked with this challenge that the key is this engine's.
    pub(super) fn proof(&self, challenge: &Challenge) -> String {
        challenge.proof(self.hash())
    }

    fn hash(&self) -> KeyHash {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller who holds the key, of which this is the hash. The first argument of every handler but health's.
pub(super) struct Authenticated(pub(super) KeyHash);

impl FromRequestParts<AppState> for Authenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let key = parts.headers.get(ENGINE_KEY_HEADER).and_then(|key| key.to_str().ok());
        let hash = state.0.key_guard.hash();
        if key.is_some_and(|key| hash.matches(key)) { Ok(Self(hash)) } else { Err(invalid_key_error()) }
    }
}

fn invalid_key_error() -> ApiError {
    let message = "X-Engine-Key is missing or is not this engine's key; admit returns the right one";
    ApiError::new(ErrorCode::InvalidEngineKey, message)
}
