//! OAuth authorization as the Model Context Protocol specifies it (revision 2026-07-28).
//!
//! `rmcp` discovers the authorization server and builds the authorization request. Token requests are made here:
//! the SDK logs codes and token responses, relies on the system clock alone, does not distinguish an unknown
//! client from other failures, and keeps the state that a callback needs only as long as its manager lives.

mod discovery;
#[cfg(any(test, feature = "testing"))]
#[path = "../tests/unit/oauth/fixture.rs"]
pub mod fixture;
mod grant;
mod http;
mod oauth_client;
mod registration;
mod token_manager;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::assets::{Callback, ConnectOutcome};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use catalog::{Auth, McpServerSpec, OAuthClientConfig, ServerOrigin, Transport};
use discovery::DiscoveredServer;
use futures::future::BoxFuture;
use grant::{Consent, Grant};
use http::{AuthHttpClient, sanitize_server_text};
use oauth_client::OAuthClient;
use parking_lot::Mutex;
use registration::RegistrationRequest;
use reqwest::Url;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use store::USER_SERVER_IDENTITY;
use token_manager::{ManagedTokenSource, TokenManager};
use zeroize::Zeroizing;

use super::McpError;
use super::connections::{Connections, ServerLock};
use super::request_auth::{AuthError, TokenSource};
use super::server_directory::ServerDirectory;

/// There is no address to redirect users to.
pub(super) const NO_REDIRECT_BASE: McpError = McpError::NotConfigured(
    "an authorization server cannot redirect users back: OAUTH_REDIRECT_BASE_URL is not set. Set it to the product's \
     own address, whose backend forwards /assets/oauth/callback to the engine",
);
/// There is no client metadata to serve.
const NO_CLIENT_METADATA: McpError = McpError::NotConfigured(
    "the engine has no client metadata: OAUTH_CLIENT_METADATA_URL is not set. Set it to the https address at which \
     the product serves the document",
);
/// The path of the callback, relative to the product's address.
const CALLBACK_PATH: &str = "assets/oauth/callback";
/// The time limit for discovery and registration.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum length of a `state` or a code, in bytes.
const MAX_PARAMETER_BYTES: usize = 8 * 1024;

/// The OAuth flows of all servers.
pub(super) struct OAuth {
    connections: Arc<Connections>,
    directory: Arc<ServerDirectory>,
    redirect_base: Option<Url>,
    client_metadata_url: Option<Url>,
    /// The token managers by server name.
    token_managers: Mutex<HashMap<String, Arc<TokenManager>>>,
}

/// An authorization that led to tokens.
pub(super) struct CompletedAuthorization {
    /// The server.
    pub(super) spec: Arc<McpServerSpec>,
    /// Where to redirect the user's browser.
    pub(super) redirect_to: Option<Url>,
    /// The server's lock, held until its tools are known.
    pub(super) server_lock: ServerLock,
}

/// The state of an authorization, kept until the user comes back.
#[derive(Serialize, Deserialize)]
struct PendingAuthorization {
    /// The MCP server's address: by then the catalog may use its name for another one.
    url: Url,
    party: OAuthClient,
    /// Whether the answer must name its issuer.
    says_issuer: bool,
    verifier: Zeroizing<String>,
    redirect_uri: Url,
    redirect_to: Option<Url>,
}

/// The parameters with which the user comes back.
enum CallbackResult {
    Code(Zeroizing<String>),
    Denied(String),
}

impl OAuth {
    pub(super) fn new(
        (connections, directory): (Arc<Connections>, Arc<ServerDirectory>),
        redirect_base: Option<Url>,
        client_metadata: Option<Url>,
    ) -> Self {
        Self {
            connections,
            directory,
            redirect_base,
            client_metadata_url: client_metadata,
            token_managers: Mutex::default(),
        }
    }

    /// Begins an authorization; returns the URL at which the user gives consent.
    pub(super) async fn authorize(
        &self,
        spec: &Arc<McpServerSpec>,
        redirect_to: Option<Url>,
    ) -> Result<ConnectOutcome, McpError> {
        let state = random_state()?;
        // The future is large, and waits long.
        let preparing = tokio::time::timeout(
            DISCOVERY_TIMEOUT,
            Box::pin(self.prepare_authorization(spec, redirect_to, &state)),
        );
        let Ok(prepared) = preparing.await else {
            let seconds = DISCOVERY_TIMEOUT.as_secs();
            return Err(McpError::Failed(format!(
                "the authorization server of `{}` did not answer within {seconds} seconds",
                spec.name
            )));
        };
        let (url, pending) = prepared.map_err(|error| with_server_name(spec, error))?;
        let pending = serde_json::to_string(&pending).map(Zeroizing::new);
        let pending =
            pending.map_err(|_| McpError::Failed("the authorization cannot be serialized".into()))?;
        self.connections.mark_pending(spec).await?;
        self.connections.store_authorization(&spec.name, &hash_state(&state), &pending).await?;
        Ok(ConnectOutcome::AuthorizationRequired { authorization_url: url.into(), state })
    }

    async fn prepare_authorization(
        &self,
        spec: &McpServerSpec,
        redirect_to: Option<Url>,
        state: &str,
    ) -> Result<(Url, PendingAuthorization), McpError> {
        let redirect_uri = self.redirect_uri()?;
        let (Transport::Http { url, .. }, Auth::OAuth { scopes, client }) = (&spec.transport, &spec.auth)
        else {
            return Err(McpError::Invalid("this server needs no authorization".into()));
        };
        let http = AuthHttpClient::for_server(url, spec.origin, self.connections.web_allowlist())
            .await
            .map_err(|error| McpError::Failed(error.to_string()))?;
        let found = DiscoveredServer::discover(url, &http).await?;
        let origin = || found.token_endpoint.origin().ascii_serialization();
        let issuer_key = found.issuer().map_or_else(origin, str::to_owned);
        // A server that the user has added says itself where to register. What it gets is for itself alone.
        let registered_at =
            if spec.is_of_user() { user_issuer_key(&spec.name, &issuer_key) } else { issuer_key };
        let scopes = if scopes.is_empty() { found.default_scopes().await } else { scopes.clone() };
        let client = match (client, &self.client_metadata_url) {
            (Some(client), _)
                if client.issuer.as_deref().is_some_and(|issuer| found.issuer() != Some(issuer)) =>
            {
                return Err(McpError::Failed(sanitize_server_text(&format!(
                    "the server names a different authorization server ({registered_at}) than mcp.json"
                ))));
            }
            (Some(client), _) => registration::preregistered_client(client, &found),
            (None, Some(address)) if found.supports_client_metadata() && address.scheme() == "https" => {
                registration::metadata_client(address)
            }
            (None, _) => {
                // An authorization server that has forgotten the engine shows the user an error and redirects
                // nobody, so a pending authorization may mean that the stored registration is useless.
                let force_new = self.connections.has_pending_authorization(&spec.name)?;
                let (issuer_key, redirect_uri) = (registered_at.as_str(), &redirect_uri);
                let request = RegistrationRequest { issuer_key, redirect_uri, scopes: &scopes, force_new };
                registration::get_or_register(&self.connections, &http, &found, request).await?
            }
        };
        let says_issuer = found.advertises_issuer();
        let issuer = found.issuer().map(str::to_owned);
        let (token_endpoint, revocation_endpoint) =
            (found.token_endpoint.clone(), found.revocation_endpoint.clone());
        let request = found.authorization_request(&client.id, &redirect_uri, &scopes, state).await?;
        let oauth_client = OAuthClient {
            issuer,
            registered_at,
            token_endpoint,
            revocation_endpoint,
            client,
            resource: request.resource,
        };
        let verifier = request.verifier;
        let pending = PendingAuthorization {
            url: url.clone(),
            party: oauth_client,
            says_issuer,
            verifier,
            redirect_uri,
            redirect_to,
        };
        Ok((request.url, pending))
    }

    /// Completes an authorization: the tokens are stored on return.
    pub(super) async fn finish(&self, callback: Callback) -> Result<CompletedAuthorization, McpError> {
        let Callback { code, state, iss, error, error_description } = callback;
        let state = required_parameter("state", state)?;
        let result = match error {
            Some(error) => CallbackResult::Denied(match error_description {
                Some(description) => {
                    format!("{}: {}", sanitize_server_text(&error), sanitize_server_text(&description))
                }
                None => sanitize_server_text(&error),
            }),
            None => CallbackResult::Code(required_parameter("code", code)?),
        };
        if self.connections.is_closing() {
            return Err(McpError::Stopping);
        }
        // Taken before anything else is done: it can be used once.
        let pending = self.connections.take_authorization(&hash_state(&state)).await?;
        let (server, pending) = pending.ok_or(McpError::InvalidState)?;
        let server_lock = self.connections.lock_server(&server).await;
        if self.connections.id(&server).is_none() {
            // The server was disconnected meanwhile: new tokens could not be revoked by anybody.
            return Err(McpError::InvalidState);
        }
        match self.complete_authorization(&server, &pending, result, iss.as_deref()).await {
            Ok((spec, redirect_to)) => Ok(CompletedAuthorization { spec, redirect_to, server_lock }),
            Err(error) => {
                self.connections.remove_if_unauthorized(&server).await?;
                Err(error)
            }
        }
    }

    async fn complete_authorization(
        &self,
        server: &str,
        pending: &str,
        result: CallbackResult,
        iss: Option<&str>,
    ) -> Result<(Arc<McpServerSpec>, Option<Url>), McpError> {
        let pending: PendingAuthorization =
            serde_json::from_str(pending).map_err(|_| McpError::InvalidState)?;
        let spec = self.directory.find(server).filter(|spec| oauth_server_url(spec) == Some(&pending.url));
        let spec = spec.ok_or(McpError::InvalidState)?;
        // RFC 9207, section 2.4: even an error counts only if it comes from the server that was asked.
        match (iss, pending.party.issuer.as_deref()) {
            (None, _) if !pending.says_issuer => {}
            (Some(iss), Some(issuer)) if iss == issuer => {}
            _ => return Err(McpError::InvalidIssuer),
        }
        let code = match result {
            CallbackResult::Code(code) => code,
            CallbackResult::Denied(reason) => return Err(McpError::Denied(reason)),
        };
        let oauth_client = pending.party.with_catalog_secret(configured_client(&spec));
        let grant = self
            .exchange(
                oauth_client,
                (&pending.url, spec.origin),
                &code,
                &pending.verifier,
                &pending.redirect_uri,
            )
            .await;
        let grant = grant.map_err(|error| with_server_name(&spec, error))?;
        let installed = self.token_manager(&spec, &pending.url).install(grant).await;
        installed.map_err(|error| McpError::Failed(error.to_string()))?;
        Ok((spec, pending.redirect_to))
    }

    async fn exchange(
        &self,
        oauth_client: OAuthClient,
        (server, origin): (&Url, ServerOrigin),
        code: &str,
        verifier: &str,
        redirect_uri: &Url,
    ) -> Result<Grant, McpError> {
        let http = AuthHttpClient::for_server(server, origin, self.connections.web_allowlist())
            .await
            .map_err(|error| McpError::Failed(error.to_string()))?;
        let exchanged =
            oauth_client.exchange(&http, self.connections.now(), code, verifier, redirect_uri.as_str()).await;
        match exchanged {
            Ok(tokens) => Ok(Grant { party: oauth_client, leave: Consent::Given(tokens) }),
            Err(error) => {
                if error.is_client_error() && oauth_client.client.registered {
                    self.connections.store_registration(&oauth_client.registered_at, None).await?;
                }
                Err(McpError::Failed(format!("the authorization code was not exchanged: {error}")))
            }
        }
    }

    /// Returns a source of the tokens of a server's connection, which refreshes them.
    pub(super) fn token_source(&self, spec: &Arc<McpServerSpec>) -> Arc<dyn TokenSource> {
        match oauth_server_url(spec) {
            Some(url) => Arc::new(ManagedTokenSource(self.token_manager(spec, url))),
            None => Arc::new(NoTokenSource),
        }
    }

    /// Revokes the tokens of a server's connection, if its authorization server supports that.
    pub(super) async fn revoke(&self, spec: &Arc<McpServerSpec>) {
        if let Some(url) = oauth_server_url(spec) {
            self.token_manager(spec, url).revoke().await;
        }
    }

    /// Revokes tokens stored for a server that the catalog does not name any more.
    pub(super) async fn revoke_orphaned_tokens(&self, server: &str) {
        let Some(grant) =
            self.connections.orphaned_credentials(server).as_ref().and_then(Grant::from_credential)
        else {
            return;
        };
        // The server's address is not known any more; the tokens came from this endpoint.
        let url = &grant.party.token_endpoint;
        let from = (url, ServerOrigin::Catalog, self.connections.web_allowlist());
        token_manager::revoke_tokens(server, &grant, from).await;
    }

    /// Returns the metadata that the product has to serve at `OAUTH_CLIENT_METADATA_URL`.
    pub(super) fn client_metadata(&self) -> Result<Value, McpError> {
        let redirect_uri = self.redirect_uri()?;
        let address = self.client_metadata_url.as_ref().ok_or(NO_CLIENT_METADATA)?;
        Ok(registration::metadata_document(address, &redirect_uri))
    }

    fn redirect_uri(&self) -> Result<Url, McpError> {
        let mut uri = self.redirect_base.clone().ok_or(NO_REDIRECT_BASE)?;
        let path = format!("{}/{CALLBACK_PATH}", uri.path().trim_end_matches('/'));
        uri.set_path(&path);
        uri.set_query(None);
        uri.set_fragment(None);
        Ok(uri)
    }

    /// Returns the token manager of a server: there is only one, so that tokens are refreshed once.
    fn token_manager(&self, spec: &Arc<McpServerSpec>, url: &Url) -> Arc<TokenManager> {
        let mut token_managers = self.token_managers.lock();
        if let Some(manager) = token_managers.get(&spec.name).filter(|manager| manager.is_for(spec, url)) {
            return Arc::clone(manager);
        }
        let parts = (Arc::clone(&self.connections), Arc::clone(&self.directory));
        let manager = Arc::new(TokenManager::new(Arc::clone(spec), url.clone(), parts));
        token_managers.insert(spec.name.clone(), Arc::clone(&manager));
        manager
    }
}

/// A source without tokens, for a server that needs none.
struct NoTokenSource;

impl TokenSource for NoTokenSource {
    fn token<'a>(
        &'a self,
        _refused: Option<&'a SecretString>,
    ) -> BoxFuture<'a, Result<SecretString, AuthError>> {
        Box::pin(async { Err(AuthError::Unavailable("this server needs no authorization".into())) })
    }
}

/// Returns the key of the registration for a server that the user has added.
pub(crate) fn user_issuer_key(server: &str, issuer: &str) -> String {
    format!("{USER_SERVER_IDENTITY}{server} {issuer}")
}

fn oauth_server_url(spec: &McpServerSpec) -> Option<&Url> {
    match (&spec.transport, &spec.auth) {
        (Transport::Http { url, .. }, Auth::OAuth { .. }) => Some(url),
        _ => None,
    }
}

/// Returns the client credentials that the catalog configures for a server, if any.
fn configured_client(spec: &McpServerSpec) -> Option<&OAuthClientConfig> {
    match &spec.auth {
        Auth::OAuth { client, .. } => client.as_ref(),
        Auth::None | Auth::ApiKey(_) => None,
    }
}

/// Returns 256 random bits.
fn random_state() -> Result<String, McpError> {
    let mut bytes = Zeroizing::new([0_u8; 32]);
    getrandom::fill(bytes.as_mut_slice())
        .map_err(|_| McpError::Failed("the operating system's random source failed".into()))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes.as_slice()))
}

fn hash_state(state: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(state))
}

fn required_parameter(name: &str, value: Option<String>) -> Result<Zeroizing<String>, McpError> {
    let value = value.map(Zeroizing::new).filter(|value| (1..=MAX_PARAMETER_BYTES).contains(&value.len()));
    value.ok_or_else(|| {
        McpError::Invalid(format!("`{name}`: must be given, with at most {MAX_PARAMETER_BYTES} bytes"))
    })
}

/// Prefixes an error with the server's name.
fn with_server_name(spec: &McpServerSpec, error: McpError) -> McpError {
    match error {
        McpError::Failed(reason) => {
            McpError::Failed(format!("the server `{}` cannot be connected: {reason}", spec.name))
        }
        other => other,
    }
}

#[cfg(test)]
#[path = "../tests/unit/oauth/flow.rs"]
mod flow_tests;
#[cfg(test)]
#[path = "../tests/unit/oauth/model.rs"]
mod model_tests;
#[cfg(test)]
#[path = "../tests/unit/oauth/token.rs"]
mod token_tests;
