//! Manages the tokens of one server: hands them out, refreshes them, and replaces them.
//!
//! Every change of the stored grant is an *operation*: a task of its own, one at a time, which others wait for and
//! no caller who goes away cancels. Thus a refresh token is used only once, and the new tokens are stored before
//! anybody uses them.

use std::sync::Arc;
use std::time::Duration;

use catalog::{McpServerSpec, ServerOrigin};
use fetch::WebAllowlist;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use reqwest::Url;
use secrecy::{ExposeSecret as _, SecretString};

use super::grant::{Consent, Grant, TokenAction};
use super::http::AuthHttpClient;
use super::oauth_client::{OAuthClient, TokenError, Tokens};
use super::{configured_client, oauth_server_url};
use crate::McpError;
use crate::connections::Connections;
use crate::request_auth::{AuthError, TokenSource};
use crate::server_directory::ServerDirectory;

/// How long to wait after a failure to reach the authorization server before the next request.
const RETRY_BACKOFF: Duration = Duration::from_secs(1);
/// The reason for refusing requests while the engine stops.
const STOPPING_REASON: &str = "the engine is stopping";
/// The time limit of a revocation.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The token manager of one server.
pub(super) struct TokenManager {
    spec: Arc<McpServerSpec>,
    url: Url,
    connections: Arc<Connections>,
    directory: Arc<ServerDirectory>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current_operation: Option<TokenOperation>,
    /// Whether the stored grant was revoked.
    revoked: bool,
    /// A grant that could not be stored; it is newer than the one in the brain.
    unsaved: Option<Grant>,
    /// Why the authorization server could not be reached last, and when, by the monotonic clock.
    last_failure: Option<(Duration, String)>,
}

/// The result of an operation: a token, unless it ends the grant.
type TokenResult = Result<SecretString, AuthError>;
type TokenOperation = Shared<BoxFuture<'static, TokenResult>>;

/// The purpose of an operation.
#[derive(Clone)]
enum OperationKind {
    /// Get a token other than this one.
    GetToken(Option<SecretString>),
    /// Replace the stored grant by this one.
    Install(Box<Grant>),
    /// Revoke the stored grant.
    Revoke,
}

/// Clears the current operation when it has ended, however it ended.
struct CompletionGuard(Arc<TokenManager>);

impl Drop for CompletionGuard {
    fn drop(&mut self) {
        self.0.state.lock().current_operation = None;
    }
}

impl TokenManager {
    /// Creates the manager for the tokens of the server at `url`.
    pub(super) fn new(
        spec: Arc<McpServerSpec>,
        url: Url,
        (connections, directory): (Arc<Connections>, Arc<ServerDirectory>),
    ) -> Self {
        Self { spec, url, connections, directory, state: Mutex::default() }
    }

    /// Whether this manager is for the server at this URL.
    pub(super) fn is_for(&self, spec: &McpServerSpec, url: &Url) -> bool {
        self.url == *url && self.spec.origin == spec.origin
    }

    /// Replaces the stored grant. The new one is durable on return.
    pub(super) async fn install(self: &Arc<Self>, grant: Grant) -> Result<(), AuthError> {
        self.run_operation(OperationKind::Install(Box::new(grant))).await.map(drop)
    }

    /// Revokes the stored grant, as far as possible.
    pub(super) async fn revoke(self: &Arc<Self>) {
        let _ended = self.run_operation(OperationKind::Revoke).await;
    }

    async fn token(self: &Arc<Self>, refused: Option<&SecretString>) -> TokenResult {
        if self.state.lock().revoked {
            return Err(disconnected_error());
        }
        // A token that is not stored yet is handed to nobody.
        let is_stored = self.state.lock().unsaved.is_none();
        if is_stored
            && let Some(grant) = self.stored_grant()?
            && let TokenAction::Use(token) = grant.token_action(self.connections.now(), refused)
        {
            return Ok(token);
        }
        loop {
            let (current_operation, is_own) = self.join_or_start(OperationKind::GetToken(refused.cloned()));
            match current_operation.await {
                // That operation began before the token was refused.
                Ok(token) if !is_own && refused.is_some_and(|refused| is_same_secret(refused, &token)) => {}
                result => return result,
            }
        }
    }

    /// Runs an operation of its own, after the current ones.
    async fn run_operation(self: &Arc<Self>, kind: OperationKind) -> TokenResult {
        loop {
            let (current_operation, is_own) = self.join_or_start(kind.clone());
            let result = current_operation.await;
            if is_own {
                return result;
            }
        }
    }

    /// Returns the current operation, or else starts one of this kind; also returns whether it was started.
    fn join_or_start(self: &Arc<Self>, kind: OperationKind) -> (TokenOperation, bool) {
        let mut state = self.state.lock();
        if let Some(current_operation) = &state.current_operation {
            return (current_operation.clone(), false);
        }
        let manager = Arc::clone(self);
        let task = self.connections.spawn(async move {
            let guard = CompletionGuard(manager);
            let manager = &guard.0;
            match kind {
                OperationKind::GetToken(refused) => manager.get_or_refresh(refused.as_ref()).await,
                OperationKind::Install(grant) => manager.replace(*grant).await,
                OperationKind::Revoke => manager.perform_revoke().await,
            }
        });
        let lost = || AuthError::Unavailable(STOPPING_REASON.into());
        let current_operation = async move { task.await.unwrap_or_else(|_| Err(lost())) }.boxed().shared();
        state.current_operation = Some(current_operation.clone());
        (current_operation, true)
    }

    /// Returns a token other than `refused`.
    async fn get_or_refresh(&self, refused: Option<&SecretString>) -> TokenResult {
        self.store_unsaved().await?;
        let Some(grant) = self.current_grant()? else {
            return Err(AuthError::Expired("no token is stored".into()));
        };
        match grant.token_action(self.connections.now(), refused) {
            TokenAction::Use(token) => Ok(token),
            TokenAction::Expired(reason) => Err(AuthError::Expired(reason)),
            TokenAction::Expire(reason) => self.expire(grant.party, reason).await,
            TokenAction::Refresh { refresh_token, still_valid } => {
                let refreshed = match self.recent_failure() {
                    // A refresh token can be used once, and its replacement might arrive too late to be stored.
                    _ if self.connections.is_closing() => {
                        Err(TokenError::Unavailable(STOPPING_REASON.into()))
                    }
                    Some(reason) => Err(TokenError::Unavailable(reason)),
                    None => self.refresh(&grant.party, &refresh_token).await,
                };
                let result = match refreshed {
                    Ok(tokens) => self.replace(Grant { leave: Consent::Given(tokens), ..grant }).await,
                    Err(TokenError::Unavailable(reason)) => Err(AuthError::Unavailable(reason)),
                    Err(error @ TokenError::Refused { .. }) => self.handle_refusal(grant.party, error).await,
                };
                match (result, still_valid) {
                    (Err(AuthError::Unavailable(_)), Some(token)) => Ok(token),
                    (result, _) => result,
                }
            }
        }
    }

    async fn refresh(
        &self,
        oauth_client: &OAuthClient,
        refresh_token: &zeroize::Zeroizing<String>,
    ) -> Result<Tokens, TokenError> {
        let request = async {
            let allowlist = self.connections.web_allowlist();
            let http = AuthHttpClient::for_server(&self.url, self.spec.origin, allowlist).await?;
            oauth_client.refresh(&http, self.connections.now(), refresh_token).await
        };
        let refreshed = request.await;
        let failure = match &refreshed {
            Err(TokenError::Unavailable(reason)) => {
                tracing::warn!(server = self.spec.name, reason, "A token could not be refreshed.");
                Some((self.connections.clock().monotonic(), reason.clone()))
            }
            _ => None,
        };
        self.state.lock().last_failure = failure;
        let mut tokens = refreshed?;
        // Without a new refresh token, the old one stays valid (RFC 6749, section 6).
        if tokens.refresh.is_none() {
            tokens.refresh = Some(refresh_token.clone());
        }
        Ok(tokens)
    }

    /// Handles the authorization server's refusal to refresh.
    async fn handle_refusal(&self, oauth_client: OAuthClient, error: TokenError) -> TokenResult {
        // A wrong secret in the catalog is for the operator to correct: the user's consent still holds.
        let is_revoked = match &error {
            TokenError::Refused { code, .. } if code == "invalid_grant" => true,
            error => error.is_client_error() && !oauth_client.client.has_catalog_secret(),
        };
        if !is_revoked {
            let mut reason = error.to_string();
            if error.is_client_error() {
                reason.push_str(": it must know the `client_id` and the `client_secret` of mcp.json");
            }
            self.state.lock().last_failure = Some((self.connections.clock().monotonic(), reason.clone()));
            return Err(AuthError::Unavailable(reason));
        }
        if error.is_client_error() && oauth_client.client.registered {
            let deleted = self.connections.store_registration(&oauth_client.registered_at, None).await;
            if let Err(error) = deleted {
                tracing::warn!(server = self.spec.name, %error, "A client registration could not be deleted.");
            }
        }
        self.expire(oauth_client, error.to_string()).await
    }

    /// Ends the consent: this is stored, and shown by the connection, before any caller gets the error.
    async fn expire(&self, oauth_client: OAuthClient, reason: String) -> TokenResult {
        let grant = Grant { party: oauth_client, leave: Consent::Over(reason.clone()) };
        let error = AuthError::Expired(reason);
        let stored = match grant.to_credential() {
            Ok(secret) => self.connections.expire(&self.spec, secret, &error.to_string()).await,
            Err(error) => Err(McpError::Failed(error.to_string())),
        };
        match stored {
            Ok(()) => self.state.lock().unsaved = None,
            Err(error) => {
                tracing::warn!(server = self.spec.name, %error, "An expired authorization could not be stored yet.");
                self.state.lock().unsaved = Some(grant);
            }
        }
        Err(error)
    }

    /// Replaces the stored grant; returns its token once the grant is stored.
    async fn replace(&self, grant: Grant) -> TokenResult {
        {
            let mut state = self.state.lock();
            (state.last_failure, state.revoked) = (None, false);
        }
        let token = match &grant.leave {
            Consent::Given(tokens) => Ok(SecretString::from(tokens.access.as_str())),
            Consent::Over(reason) => Err(AuthError::Expired(reason.clone())),
        };
        self.store(grant).await?;
        token
    }

    /// From now on nobody gets a token. The grant stays stored until the connection is removed, so that a
    /// revocation cut off by a crash can be repeated.
    async fn perform_revoke(&self) -> TokenResult {
        self.state.lock().revoked = true;
        if let Some(grant) = self.current_grant()? {
            let from = (&self.url, self.spec.origin, self.connections.web_allowlist());
            revoke_tokens(&self.spec.name, &grant, from).await;
        }
        Err(disconnected_error())
    }

    /// Stores a grant. One that could not be stored is not lost: storing is retried before anything else is done.
    async fn store(&self, grant: Grant) -> Result<(), AuthError> {
        self.state.lock().unsaved = Some(grant);
        self.store_unsaved().await
    }

    async fn store_unsaved(&self) -> Result<(), AuthError> {
        let Some(grant) = self.state.lock().unsaved.clone() else { return Ok(()) };
        let unsaved = |error: &dyn std::fmt::Display| {
            AuthError::Unavailable(format!("its tokens could not be stored: {error}"))
        };
        let secret = grant.to_credential().map_err(|_| unsaved(&"they cannot be serialized"))?;
        if !self.connections.store_credentials(&self.spec, secret).await.map_err(|error| unsaved(&error))? {
            tracing::info!(
                server = self.spec.name,
                "Tokens arrived for a removed connection; they are discarded."
            );
        }
        self.state.lock().unsaved = None;
        Ok(())
    }

    /// Returns the current grant with the catalog's current client secret, which may be newer than the grant.
    fn current_grant(&self) -> Result<Option<Grant>, AuthError> {
        let unsaved = self.state.lock().unsaved.clone();
        let Some(Grant { party: oauth_client, leave: consent }) =
            unsaved.map_or_else(|| self.stored_grant(), |unsaved| Ok(Some(unsaved)))?
        else {
            return Ok(None);
        };
        let spec = self.directory.find(&self.spec.name);
        let current_spec = spec.as_ref().filter(|spec| oauth_server_url(spec) == Some(&self.url));
        let oauth_client =
            oauth_client.with_catalog_secret(current_spec.and_then(|spec| configured_client(spec)));
        Ok(Some(Grant { party: oauth_client, leave: consent }))
    }

    /// Returns the stored grant.
    fn stored_grant(&self) -> Result<Option<Grant>, AuthError> {
        let secret = self.connections.credentials(&self.spec);
        let secret = secret.map_err(|error| AuthError::Unavailable(McpError::from(error).to_string()))?;
        Ok(secret.as_ref().and_then(Grant::from_credential))
    }

    /// Returns the recent failure because of which the authorization server is not asked now, if any.
    fn recent_failure(&self) -> Option<String> {
        let now = self.connections.clock().monotonic();
        let failure = self.state.lock().last_failure.clone();
        failure.filter(|(at, _)| now.saturating_sub(*at) < RETRY_BACKOFF).map(|(_, reason)| reason)
    }
}

/// Revokes tokens, as far as possible.
pub(super) async fn revoke_tokens(
    server: &str,
    Grant { party: oauth_client, leave: consent }: &Grant,
    (url, origin, web_allowlist): (&Url, ServerOrigin, &WebAllowlist),
) {
    let Consent::Given(tokens) = consent else { return };
    let revoking = tokio::time::timeout(REVOKE_TIMEOUT, async {
        let http = AuthHttpClient::for_server(url, origin, web_allowlist).await?;
        let refresh = match &tokens.refresh {
            Some(token) => oauth_client.revoke(&http, token, "refresh_token").await,
            None => Ok(()),
        };
        refresh.and(oauth_client.revoke(&http, &tokens.access, "access_token").await)
    });
    let reason = match revoking.await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("it took over {} seconds", REVOKE_TIMEOUT.as_secs()),
    };
    tracing::warn!(server, reason, "The tokens of a connection could not be revoked.");
}

fn disconnected_error() -> AuthError {
    AuthError::Expired("it was disconnected".into())
}

/// The token source of a token manager.
pub(super) struct ManagedTokenSource(pub(super) Arc<TokenManager>);

impl TokenSource for ManagedTokenSource {
    fn token<'a>(&'a self, refused: Option<&'a SecretString>) -> BoxFuture<'a, TokenResult> {
        Box::pin(self.0.token(refused))
    }
}

fn is_same_secret(one: &SecretString, other: &SecretString) -> bool {
    one.expose_secret() == other.expose_secret()
}
