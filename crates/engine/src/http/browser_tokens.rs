//! Browser tokens: verifies the token of a request, and decides whether it permits the call.

use api::browser::{BrowserAccess, BrowserToken, Claims, TokenRefusal, TokenSecret};
use api::{EngineId, ErrorCode, KeyHash, Timestamp};
use axum::extract::{MatchedPath, RawPathParams};
use axum::http::request::Parts;
use http_service::http::cors::AllowOrigin;
use http_service::http::{ApiError, browser_token};
use parking_lot::RwLock;

use super::AppState;
use super::token_scopes::{Rule, TaskIn, rule_for};

/// What the engine verifies tokens with, and what its orchestrator has said about browsers.
pub(crate) struct BrowserTokens {
    /// `None` if no orchestrator gave the engine both: then every token is refused.
    identity: Option<(EngineId, TokenSecret)>,
    access: RwLock<BrowserAccess>,
}

impl BrowserTokens {
    /// The engine's id, if an orchestrator has launched it.
    pub(super) fn engine_id(&self) -> Option<EngineId> {
        self.identity.as_ref().map(|(engine_id, _)| *engine_id)
    }

    pub(crate) fn new(identity: Option<(EngineId, TokenSecret)>, access: BrowserAccess) -> Self {
        Self { identity, access: RwLock::new(access) }
    }

    /// Replaces what is known about browsers, unless something later is known: of two messages, the first one sent may
    /// be the last to arrive.
    pub(super) fn set_access(&self, access: BrowserAccess) {
        let mut known = self.access.write();
        if known.revision <= access.revision {
            *known = access;
        }
    }

    /// Verifies a token while the engine's key has the hash `key_hash`.
    pub(super) fn verify(
        &self,
        token: &BrowserToken,
        key_hash: KeyHash,
        now: Timestamp,
    ) -> Result<Claims, TokenRefusal> {
        let (engine_id, secret) = self.identity.as_ref().ok_or(TokenRefusal::Invalid)?;
        let claims = secret.signing_key(key_hash).verify(token, *engine_id, now)?;
        if self.access.read().revoked.contains(&claims.token_id) {
            return Err(TokenRefusal::Revoked);
        }
        Ok(claims)
    }
}

impl AllowOrigin for AppState {
    fn is_used(&self) -> bool {
        !self.0.browser_tokens.access.read().origins.is_empty()
    }

    fn allows(&self, origin: &str) -> bool {
        self.0.browser_tokens.access.read().origins.allow(origin)
    }
}

/// A token that permits the call that it came with.
pub(super) struct PermittedToken {
    claims: Claims,
    rule: &'static Rule,
}

impl PermittedToken {
    /// Checks that the token is not for one task only, or that the call has shown that it is about that task.
    pub(super) fn check_task_known(&self) -> Result<(), ApiError> {
        if self.rule.task == TaskIn::Body && self.claims.task_id.is_some() {
            // The handler does not say which task its body names.
            return Err(scope_error());
        }
        Ok(())
    }

    /// Checks that the token permits a call about `task_id`.
    pub(super) fn check_task(&self, task_id: &str) -> Result<(), ApiError> {
        let bound = self.claims.task_id.as_ref();
        if bound.is_none_or(|bound| bound.as_str() == task_id) { Ok(()) } else { Err(scope_error()) }
    }

    /// Whether the token is for one task only.
    pub(super) const fn is_bound(&self) -> bool {
        self.claims.task_id.is_some()
    }
}

/// Verifies the token of a request and whether it permits the call; `None` if the request has no token.
pub(super) async fn authorize(
    parts: &mut Parts,
    state: &AppState,
) -> Result<Option<PermittedToken>, ApiError> {
    let Some(token) = browser_token(&parts.headers)? else { return Ok(None) };
    let shared = &state.0;
    let verified = shared.browser_tokens.verify(&token, shared.key_guard.hash(), shared.clock.now());
    let claims = verified?;
    let route = parts.extensions.get::<MatchedPath>().cloned();
    let rule = route.and_then(|route| rule_for(&parts.method, route.as_str()));
    let rule = rule.filter(|rule| rule.scopes.iter().any(|scope| claims.scopes.contain(*scope)));
    let rule = rule.ok_or_else(scope_error)?;
    if let Some(bound) = &claims.task_id
        && !names_task(rule.task, bound.as_str(), parts, state).await
    {
        return Err(scope_error());
    }
    Ok(Some(PermittedToken { claims, rule }))
}

/// The error of a request with a token for a call that no token permits; `None` if the request has no token.
pub(super) fn closed_error(parts: &Parts, state: &AppState) -> Option<ApiError> {
    let shared = &state.0;
    let token = match browser_token(&parts.headers) {
        Ok(token) => token?,
        Err(refusal) => return Some(refusal.into()),
    };
    let verified = shared.browser_tokens.verify(&token, shared.key_guard.hash(), shared.clock.now());
    Some(verified.map_or_else(ApiError::from, |_| scope_error()))
}

/// Whether a call names `task_id` and no other task; for a task in the body, the handler checks it.
async fn names_task(place: TaskIn, task_id: &str, parts: &mut Parts, state: &AppState) -> bool {
    use axum::extract::FromRequestParts as _;
    match place {
        TaskIn::Path => {
            let params = RawPathParams::from_request_parts(parts, state).await;
            params.is_ok_and(|params| {
                let named: Vec<_> = params.iter().filter(|(name, _)| *name == "task_id").collect();
                named.iter().all(|(_, task)| *task == task_id) && named.len() == 1
            })
        }
        TaskIn::Query => {
            let query = parts.uri.query().unwrap_or_default();
            let pairs = form_urlencoded::parse(query.as_bytes());
            let named: Vec<_> = pairs.filter(|(name, _)| name == "task_id").collect();
            named.len() == 1 && named.iter().all(|(_, task)| task == task_id)
        }
        TaskIn::Body => true,
        TaskIn::Nowhere => false,
    }
}

/// The error of a call that a token does not permit. It does not say whether the task exists.
pub(super) fn scope_error() -> ApiError {
    let message = "the token does not permit this call, or not for this task; its scopes and its task are set when \
                   it is minted";
    ApiError::new(ErrorCode::TokenScope, message)
}
