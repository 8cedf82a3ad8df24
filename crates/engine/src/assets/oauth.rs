//! Leave that the user gives at an authorization server, as the Model Context Protocol has it (revision 2026-07-28).
//!
//! `rmcp` finds the authorization server and writes the request for leave. The requests for tokens are made here: the
//! SDK logs codes and what comes with tokens, reckons by the system's clock alone, does not tell an engine that the
//! authorization server has forgotten from other failures, and keeps what a callback needs only as long as its manager
//! lives.

mod discovery;
mod grant;
mod http;
mod keeper;
mod party;
mod registration;
#[cfg(test)]
pub(crate) mod rig;
#[cfg(test)]
pub(crate) mod strict;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use contract::assets::{Callback, ConnectOutcome};
use futures::future::BoxFuture;
use reqwest::Url;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::AssetsError;
use super::access::{AccessError, Bearer};
use super::connections::{Connections, Turn};
use super::directory::Directory;
use crate::catalog::{Auth, OAuthClient, ServerSpec, Transport};
use discovery::Found;
use grant::{Grant, Leave};
use http::{Http, said};
use keeper::{Keeper, Keeping};
use party::Party;
use registration::Wanted;

/// Nobody can be sent back.
pub(super) const NO_REDIRECT_BASE: AssetsError = AssetsError::NotConfigured(
    "nobody can be sent back from an authorization server: OAUTH_REDIRECT_BASE_URL is not set. Set it to the product's \
     own address, whose backend forwards /assets/oauth/callback to the engine",
);
/// There is no metadata to be served.
const NO_CLIENT_METADATA: AssetsError = AssetsError::NotConfigured(
    "the engine has no metadata to be known by: OAUTH_CLIENT_METADATA_URL is not set. Set it to the https address at \
     which the product serves them",
);
/// Where people are sent back to, behind the product's address.
const CALLBACK: &str = "assets/oauth/callback";
/// How long it may take to find an authorization server and to register there.
const FINDING: Duration = Duration::from_secs(30);
/// The most bytes of a `state` or a code.
const MAX_PARAMETER: usize = 8 * 1024;

/// See the module.
pub(super) struct OAuth {
    connections: Arc<Connections>,
    directory: Arc<Directory>,
    redirect_base: Option<Url>,
    client_metadata: Option<Url>,
    /// By the servers' names.
    keepers: Mutex<HashMap<String, Arc<Keeper>>>,
}

/// An authorization that led to tokens.
pub(super) struct Finished {
    /// The server.
    pub(super) spec: Arc<ServerSpec>,
    /// Where the user's browser is to be sent.
    pub(super) redirect_to: Option<Url>,
    /// The server's turn, which lasts until its tools are known.
    pub(super) turn: Turn,
}

/// What finishes an authorization, as it is kept until the user comes back.
#[derive(Serialize, Deserialize)]
struct Begun {
    /// The tool server's address: by its name, the catalog may mean another one by then.
    url: Url,
    party: Party,
    /// Whether the answer must say who gives it.
    says_issuer: bool,
    verifier: Zeroizing<String>,
    redirect_uri: Url,
    redirect_to: Option<Url>,
}

/// What the user comes back with.
enum Answer {
    Code(Zeroizing<String>),
    Denied(String),
}

impl OAuth {
    pub(super) fn new(
        (connections, directory): (Arc<Connections>, Arc<Directory>),
        redirect_base: Option<Url>,
        client_metadata: Option<Url>,
    ) -> Self {
        Self { connections, directory, redirect_base, client_metadata, keepers: Mutex::default() }
    }

    /// Begins an authorization: where the user is to give leave.
    pub(super) async fn authorize(
        &self,
        spec: &Arc<ServerSpec>,
        redirect_to: Option<Url>,
    ) -> Result<ConnectOutcome, AssetsError> {
        let state = random()?;
        // It is large, and waits long.
        let asking = tokio::time::timeout(FINDING, Box::pin(self.ask(spec, redirect_to, &state)));
        let Ok(asked) = asking.await else {
            let seconds = FINDING.as_secs();
            return Err(AssetsError::Failed(format!(
                "the authorization server of `{}` did not answer within {seconds} seconds",
                spec.name
            )));
        };
        let (url, begun) = asked.map_err(|error| of_server(spec, error))?;
        let begun = serde_json::to_string(&begun).map(Zeroizing::new);
        let begun = begun.map_err(|_| AssetsError::Failed("the authorization cannot be written".into()))?;
        self.connections.pending(spec).await?;
        self.connections.authorization_begun(&spec.name, &hash(&state), &begun).await?;
        Ok(ConnectOutcome::AuthorizationRequired { authorization_url: url.into(), state })
    }

    async fn ask(
        &self,
        spec: &ServerSpec,
        redirect_to: Option<Url>,
        state: &str,
    ) -> Result<(Url, Begun), AssetsError> {
        let redirect_uri = self.redirect_uri()?;
        let (Transport::Http { url, .. }, Auth::OAuth { scopes, client }) = (&spec.transport, &spec.auth)
        else {
            return Err(AssetsError::Invalid("this server needs no authorization".into()));
        };
        let http = Http::of(url, self.connections.web())
            .await
            .map_err(|error| AssetsError::Failed(error.to_string()))?;
        let found = Found::of(url, &http).await?;
        let origin = || found.token_endpoint.origin().ascii_serialization();
        let registered_at = found.issuer().map_or_else(origin, str::to_owned);
        let scopes = if scopes.is_empty() { found.scopes().await } else { scopes.clone() };
        let client = match (client, &self.client_metadata) {
            (Some(client), _)
                if client.issuer.as_deref().is_some_and(|issuer| found.issuer() != Some(issuer)) =>
            {
                return Err(AssetsError::Failed(said(&format!(
                    "the server names another authorization server ({registered_at}) than mcp.json does"
                ))));
            }
            (Some(client), _) => registration::preregistered(client, &found),
            (None, Some(address)) if found.takes_client_metadata() && address.scheme() == "https" => {
                registration::by_metadata(address)
            }
            (None, _) => {
                // An authorization server that has forgotten the engine tells the user so, and sends nobody back.
                let anew = self.connections.is_being_authorized(&spec.name)?;
                let (at, redirect_uri) = (registered_at.as_str(), &redirect_uri);
                let wanted = Wanted { at, redirect_uri, scopes: &scopes, anew };
                registration::registered(&self.connections, &http, &found, wanted).await?
            }
        };
        let says_issuer = found.says_issuer();
        let issuer = found.issuer().map(str::to_owned);
        let (token_endpoint, revocation_endpoint) =
            (found.token_endpoint.clone(), found.revocation_endpoint.clone());
        let request = found.request(&client.id, &redirect_uri, &scopes, state).await?;
        let party = Party {
            issuer,
            registered_at,
            token_endpoint,
            revocation_endpoint,
            client,
            resource: request.resource,
        };
        let verifier = request.verifier;
        let begun = Begun { url: url.clone(), party, says_issuer, verifier, redirect_uri, redirect_to };
        Ok((request.url, begun))
    }

    /// Finishes an authorization: the tokens are on record when this is done.
    pub(super) async fn finish(&self, callback: Callback) -> Result<Finished, AssetsError> {
        let Callback { code, state, iss, error, error_description } = callback;
        let state = parameter("state", state)?;
        let answer = match error {
            Some(error) => Answer::Denied(match error_description {
                Some(described) => format!("{}: {}", said(&error), said(&described)),
                None => said(&error),
            }),
            None => Answer::Code(parameter("code", code)?),
        };
        if self.connections.is_ending() {
            return Err(AssetsError::Stopping);
        }
        // Taken before anything else is done: it is good once.
        let taken = self.connections.take_authorization(&hash(&state)).await?;
        let (server, begun) = taken.ok_or(AssetsError::InvalidState)?;
        let turn = self.connections.turn(&server).await;
        if self.connections.id(&server).is_none() {
            // It was disconnected while this waited: what would be given now nobody could give back.
            return Err(AssetsError::InvalidState);
        }
        match self.finish_begun(&server, &begun, answer, iss.as_deref()).await {
            Ok((spec, redirect_to)) => Ok(Finished { spec, redirect_to, turn }),
            Err(error) => {
                self.connections.not_authorized(&server).await?;
                Err(error)
            }
        }
    }

    async fn finish_begun(
        &self,
        server: &str,
        begun: &str,
        answer: Answer,
        iss: Option<&str>,
    ) -> Result<(Arc<ServerSpec>, Option<Url>), AssetsError> {
        let begun: Begun = serde_json::from_str(begun).map_err(|_| AssetsError::InvalidState)?;
        let spec = self.directory.find(server).filter(|spec| address(spec) == Some(&begun.url));
        let spec = spec.ok_or(AssetsError::InvalidState)?;
        // As RFC 9207 has it, section 2.4: an error too counts only from the server that was asked.
        match (iss, begun.party.issuer.as_deref()) {
            (None, _) if !begun.says_issuer => {}
            (Some(iss), Some(issuer)) if iss == issuer => {}
            _ => return Err(AssetsError::InvalidIssuer),
        }
        let code = match answer {
            Answer::Code(code) => code,
            Answer::Denied(reason) => return Err(AssetsError::Denied(reason)),
        };
        let party = begun.party.by_catalog(client(&spec));
        let grant = self.exchange(party, &begun.url, &code, &begun.verifier, &begun.redirect_uri).await;
        let grant = grant.map_err(|error| of_server(&spec, error))?;
        let installed = self.keeper(&spec, &begun.url).install(grant).await;
        installed.map_err(|error| AssetsError::Failed(error.to_string()))?;
        Ok((spec, begun.redirect_to))
    }

    async fn exchange(
        &self,
        party: Party,
        server: &Url,
        code: &str,
        verifier: &str,
        redirect_uri: &Url,
    ) -> Result<Grant, AssetsError> {
        let http = Http::of(server, self.connections.web())
            .await
            .map_err(|error| AssetsError::Failed(error.to_string()))?;
        let exchanged =
            party.exchange(&http, self.connections.now(), code, verifier, redirect_uri.as_str()).await;
        match exchanged {
            Ok(tokens) => Ok(Grant { party, leave: Leave::Given(tokens) }),
            Err(error) => {
                if error.is_of_client() && party.client.registered {
                    self.connections.keep_registration(&party.registered_at, None).await?;
                }
                Err(AssetsError::Failed(format!("no tokens were given for the code: {error}")))
            }
        }
    }

    /// Gives the tokens of a server's connection, and refreshes them.
    pub(super) fn bearer(&self, spec: &Arc<ServerSpec>) -> Arc<dyn Bearer> {
        match address(spec) {
            Some(url) => Arc::new(Keeping(self.keeper(spec, url))),
            None => Arc::new(Nobody),
        }
    }

    /// Revokes the tokens of a server's connection, where its authorization server lets that be done.
    pub(super) async fn revoke(&self, spec: &Arc<ServerSpec>) {
        if let Some(url) = address(spec) {
            self.keeper(spec, url).end().await;
        }
    }

    /// Revokes what is kept for a server that the catalog does not mean any more.
    pub(super) async fn give_back(&self, server: &str) {
        let Some(grant) = self.connections.left_over(server).as_ref().and_then(Grant::read) else { return };
        // Where its server was is not known any more; the tokens came from here.
        let from = (&grant.party.token_endpoint, self.connections.web());
        keeper::give_back(server, &grant, from).await;
    }

    /// What the product is to serve at `OAUTH_CLIENT_METADATA_URL`.
    pub(super) fn client_metadata(&self) -> Result<Value, AssetsError> {
        let redirect_uri = self.redirect_uri()?;
        let address = self.client_metadata.as_ref().ok_or(NO_CLIENT_METADATA)?;
        Ok(registration::metadata_document(address, &redirect_uri))
    }

    fn redirect_uri(&self) -> Result<Url, AssetsError> {
        let mut uri = self.redirect_base.clone().ok_or(NO_REDIRECT_BASE)?;
        let path = format!("{}/{CALLBACK}", uri.path().trim_end_matches('/'));
        uri.set_path(&path);
        uri.set_query(None);
        uri.set_fragment(None);
        Ok(uri)
    }

    /// The one who keeps the tokens of a server: there is one, so that they are refreshed once.
    fn keeper(&self, spec: &Arc<ServerSpec>, url: &Url) -> Arc<Keeper> {
        let mut keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keeper) = keepers.get(&spec.name).filter(|keeper| keeper.is_of(url)) {
            return Arc::clone(keeper);
        }
        let parts = (Arc::clone(&self.connections), Arc::clone(&self.directory));
        let keeper = Arc::new(Keeper::new(Arc::clone(spec), url.clone(), parts));
        keepers.insert(spec.name.clone(), Arc::clone(&keeper));
        keeper
    }
}

/// Has no tokens: the server needs none.
struct Nobody;

impl Bearer for Nobody {
    fn token<'a>(
        &'a self,
        _refused: Option<&'a SecretString>,
    ) -> BoxFuture<'a, Result<SecretString, AccessError>> {
        Box::pin(async { Err(AccessError::Unavailable("this server needs no authorization".into())) })
    }
}

fn address(spec: &ServerSpec) -> Option<&Url> {
    match (&spec.transport, &spec.auth) {
        (Transport::Http { url, .. }, Auth::OAuth { .. }) => Some(url),
        _ => None,
    }
}

/// Who the engine is at the authorization server of a server, where the catalog says so.
fn client(spec: &ServerSpec) -> Option<&OAuthClient> {
    match &spec.auth {
        Auth::OAuth { client, .. } => client.as_ref(),
        Auth::None | Auth::ApiKey(_) => None,
    }
}

/// 256 random bits.
fn random() -> Result<String, AssetsError> {
    let mut bytes = Zeroizing::new([0_u8; 32]);
    getrandom::fill(bytes.as_mut_slice())
        .map_err(|_| AssetsError::Failed("the operating system's random source failed".into()))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes.as_slice()))
}

fn hash(state: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(state))
}

fn parameter(name: &str, value: Option<String>) -> Result<Zeroizing<String>, AssetsError> {
    let value = value.map(Zeroizing::new).filter(|value| (1..=MAX_PARAMETER).contains(&value.len()));
    value.ok_or_else(|| {
        AssetsError::Invalid(format!("`{name}`: must be given, with at most {MAX_PARAMETER} bytes"))
    })
}

/// What failed, with whose authorization it was.
fn of_server(spec: &ServerSpec, error: AssetsError) -> AssetsError {
    match error {
        AssetsError::Failed(reason) => {
            AssetsError::Failed(format!("the server `{}` cannot be connected: {reason}", spec.name))
        }
        other => other,
    }
}

#[cfg(test)]
mod flow_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod token_tests;
