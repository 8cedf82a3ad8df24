//! Authentication of callers: with the engine's key, or with a browser token that permits the call.

use api::engine::ENGINE_KEY_HEADER;
use api::proof::Challenge;
use api::{ErrorCode, KeyHash, TaskId};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use http_service::http::ApiError;
use parking_lot::RwLock;

use super::AppState;
use super::browser_tokens::{self, PermittedToken};

/// The hash that the key must match. It can be changed while the engine runs; a start restores the one from the
/// environment.
pub(super) struct KeyGuard(RwLock<KeyHash>);

impl KeyGuard {
    pub(super) const fn new(hash: KeyHash) -> Self {
        Self(RwLock::new(hash))
    }

    /// Replaces the hash on behalf of `caller`, whose own key is invalid from then on.
    ///
    /// # Errors
    /// Another caller has replaced it meanwhile: the holder of an old key cannot undo that.
    pub(super) fn replace_hash(&self, caller: &KeyHolder, hash: KeyHash) -> Result<(), ApiError> {
        let mut current = self.0.write();
        if *current != caller.0 {
            return Err(invalid_key_error());
        }
        *current = hash;
        Ok(())
    }

    /// Returns the proof, for whoever sent this challenge, that this engine has the key.
    pub(super) fn proof(&self, challenge: &Challenge) -> String {
        challenge.proof(self.hash())
    }

    pub(super) fn hash(&self) -> KeyHash {
        *self.0.read()
    }
}

/// A caller with the valid key, and the key's hash.
pub(super) struct KeyHolder(pub(super) KeyHash);

impl FromRequestParts<AppState> for KeyHolder {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let Some(key) = parts.headers.get(ENGINE_KEY_HEADER) else {
            return Err(browser_tokens::closed_error(parts, state).unwrap_or_else(invalid_key_error));
        };
        let hash = state.0.key_guard.hash();
        if key.to_str().is_ok_and(|key| hash.matches(key)) {
            Ok(Self(hash))
        } else {
            Err(invalid_key_error())
        }
    }
}

/// A caller that may make this call. A handler that takes it must check the task that the body names: those whose task
/// is elsewhere take [`Authenticated`].
pub(super) enum Caller {
    /// With the engine's key.
    Key,
    /// With a browser token.
    Token(Box<PermittedToken>),
}

impl Caller {
    /// Checks that the caller may make a call about `task_id`.
    pub(super) fn check_task(&self, task_id: &TaskId) -> Result<(), ApiError> {
        match self {
            Self::Key => Ok(()),
            Self::Token(token) => token.check_task(task_id.as_str()),
        }
    }

    /// Checks that the caller may make a call with consequences for all tasks.
    pub(super) fn check_all_tasks(&self) -> Result<(), ApiError> {
        match self {
            Self::Token(token) if token.is_bound() => Err(browser_tokens::scope_error()),
            Self::Key | Self::Token(_) => Ok(()),
        }
    }
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        // A key takes precedence: the orchestrator's proxy sets it, whatever the caller sends in the other header.
        if !parts.headers.contains_key(ENGINE_KEY_HEADER)
            && let Some(token) = browser_tokens::authorize(parts, state).await?
        {
            return Ok(Self::Token(Box::new(token)));
        }
        KeyHolder::from_request_parts(parts, state).await.map(|_| Self::Key)
    }
}

/// A caller that may make this call. The first argument of every handler but health's.
pub(super) struct Authenticated;

impl FromRequestParts<AppState> for Authenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        match Caller::from_request_parts(parts, state).await? {
            Caller::Key => {}
            Caller::Token(token) => token.check_task_known()?,
        }
        Ok(Self)
    }
}

/// A caller with the valid key, as `Authorization: Bearer` or in the engine's own header: for the protocols of
/// others, whose programs send a key in the first way.
pub(super) struct BearerAuthenticated;

impl FromRequestParts<AppState> for BearerAuthenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        authenticate_bearer(parts, state)?;
        Ok(Self)
    }
}

/// Checks the key of a caller that may send it as `Authorization: Bearer`, as other programs do.
pub(super) fn authenticate_bearer(parts: &Parts, state: &AppState) -> Result<(), ApiError> {
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = header("authorization").and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let hash = state.0.key_guard.hash();
    // The orchestrator's proxy sets the engine's own header, whatever the caller sends in the other one.
    let keys = [header(ENGINE_KEY_HEADER), bearer];
    if keys.into_iter().flatten().any(|key| hash.matches(key)) {
        return Ok(());
    }
    if let Some(error) = browser_tokens::closed_error(parts, state) {
        return Err(error);
    }
    let message =
        "the key is missing or is not this engine's: send it as `Authorization: Bearer` or `X-Engine-Key`";
    Err(ApiError::new(ErrorCode::InvalidEngineKey, message))
}

fn invalid_key_error() -> ApiError {
    let message = "X-Engine-Key is missing or is not this engine's key; admit returns the right one";
    ApiError::new(ErrorCode::InvalidEngineKey, message)
}
