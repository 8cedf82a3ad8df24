//! The engine key.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use contract::ErrorCode;
use contract::engine::ENGINE_KEY_HEADER;
use service::http::ApiError;

use super::State;

/// A caller who holds the key. The first argument of every handler but health's.
pub(super) struct Authenticated;

impl FromRequestParts<State> for Authenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, ApiError> {
        let key = parts.headers.get(ENGINE_KEY_HEADER).and_then(|key| key.to_str().ok());
        if key.is_some_and(|key| state.0.key_hash.matches(key)) {
            Ok(Self)
        } else {
            let message = "X-Engine-Key is missing or is not this engine's key; admit returns the right one";
            Err(ApiError::new(ErrorCode::InvalidEngineKey, message))
        }
    }
}
