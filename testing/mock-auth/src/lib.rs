//! A mock authorization server and the resource server behind it: it rejects whatever violates the specifications,
//! and counts requests.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::new_without_default,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic fails the test that uses it"
)]

pub mod endpoints;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::assets::Callback;
use axum::Router;
use axum::http::{HeaderMap, Uri, header};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http_service::clock::{Clock as _, ManualClock};
use parking_lot::{Mutex, MutexGuard};
use reqwest::Url;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use url::form_urlencoded;

/// The server's behavior.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each may be had without the others")]
pub struct Behavior {
    /// The lifetime of access tokens in seconds; `None` leaves it out of the responses.
    pub access_token_lifetime_s: Option<i64>,
    /// Whether a refresh token can be used only once.
    pub rotates_refresh_tokens: bool,
    /// Whether clients may register dynamically.
    pub allows_registration: bool,
    /// Whether the URL of client metadata is accepted as a client id.
    pub accepts_client_metadata: bool,
    /// Whether it advertises `iss` in its authorization responses.
    pub advertises_issuer: bool,
    /// The PKCE method that its metadata advertises (RFC 8414), if any.
    pub pkce: Option<&'static str>,
    /// The client authentication method.
    pub client_auth_method: &'static str,
    /// Where it serves its metadata.
    pub metadata_location: MetadataLocation,
    /// Whether the resource server fails at every MCP request.
    pub is_down: bool,
    /// Whether the resource server rejects every token.
    pub rejects_tokens: bool,
    /// Whether it issues refresh tokens.
    pub issues_refresh_tokens: bool,
    /// Whether it has a revocation endpoint.
    pub supports_revocation: bool,
    /// Whether it delays token requests until they are released.
    pub holds_token_requests: bool,
    /// A fixed response of the token endpoint.
    pub token_response: Option<(u16, String)>,
    /// The scopes named in the resource server's challenge and metadata.
    pub challenge_scope: Option<&'static str>,
    /// The scopes that the resource server's metadata names.
    pub resource_scopes: &'static [&'static str],
    /// The scopes that the authorization server supports.
    pub scopes: &'static [&'static str],
    /// The token endpoint in its metadata, if another one.
    pub token_endpoint: Option<String>,
    /// The authorization endpoint in its metadata, if another one.
    pub authorization_endpoint: Option<String>,
    /// The issuer in its metadata, if another one.
    pub issuer: Option<String>,
    /// The authorization server named by the resource server, if another one.
    pub authorization_server: Option<String>,
}

/// Where the server publishes its metadata.
#[derive(Clone, Copy, PartialEq)]
pub enum MetadataLocation {
    /// In the resource's metadata and its own.
    ProtectedResource,
    /// The same, but its own as OpenID providers do.
    OpenId,
    /// In its own metadata alone, at the resource's origin.
    AuthorizationServer,
    /// Nowhere: it uses the default endpoints of 2025-03-26.
    DefaultEndpoints,
}

impl Default for Behavior {
    fn default() -> Self {
        Self {
            access_token_lifetime_s: Some(3_600),
            rotates_refresh_tokens: true,
            allows_registration: true,
            accepts_client_metadata: false,
            advertises_issuer: true,
            pkce: Some("S256"),
            client_auth_method: "none",
            metadata_location: MetadataLocation::ProtectedResource,
            is_down: false,
            rejects_tokens: false,
            issues_refresh_tokens: true,
            supports_revocation: true,
            holds_token_requests: false,
            token_response: None,
            challenge_scope: None,
            resource_scopes: &[],
            scopes: &[],
            token_endpoint: None,
            authorization_endpoint: None,
            issuer: None,
            authorization_server: None,
        }
    }
}

/// A running mock authorization server. Clones share it.
#[derive(Clone)]
pub struct MockAuthServer(Arc<Inner>);

struct Inner {
    base: String,
    clock: Arc<ManualClock>,
    behavior: Mutex<Behavior>,
    released: Notify,
    state: Mutex<MockState>,
}

/// The server's state.
#[derive(Default)]
pub struct MockState {
    /// The requests received: method and path.
    pub requests: Vec<String>,
    /// Violations of the specifications.
    pub violations: Vec<String>,
    /// The registered clients, by client id.
    pub clients: HashMap<String, RegisteredClient>,
    codes: HashMap<String, AuthorizationCode>,
    grants: Vec<IssuedGrant>,
    /// How often tokens were refreshed.
    pub refresh_count: usize,
    /// The `token_type_hint`s of revoked tokens.
    pub revoked_token_hints: Vec<String>,
    next_id: usize,
}

/// A client that registered itself (RFC 7591).
#[derive(Clone)]
pub struct RegisteredClient {
    redirect_uri: String,
    secret: Option<String>,
    auth_method: String,
    /// The metadata that it sent.
    pub metadata: Value,
}

struct AuthorizationCode {
    client: String,
    challenge: String,
    redirect_uri: String,
    is_used: bool,
}

/// A user's grant to a client.
struct IssuedGrant {
    client: String,
    access: String,
    expires_at: i64,
    refresh: Option<String>,
    used_refresh_tokens: Vec<String>,
    is_revoked: bool,
}

/// Status, code and description of a refusal.
type OAuthRefusal = (u16, &'static str, String);
type FormFields = HashMap<String, String>;
type EndpointResult = Result<Value, OAuthRefusal>;

impl MockAuthServer {
    /// Starts the server on a free port of `address`.
    pub async fn start(address: IpAddr, clock: Arc<ManualClock>) -> Self {
        let listener = tokio::net::TcpListener::bind((address, 0)).await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let inner = Inner {
            base,
            clock,
            behavior: Mutex::default(),
            released: Notify::new(),
            state: Mutex::default(),
        };
        let server = Self(Arc::new(inner));
        let tokens = || post(endpoints::token).fallback(endpoints::unexpected);
        let router = Router::new()
            .route("/mcp", get(endpoints::resource).post(endpoints::resource))
            .route("/as/token", tokens())
            .route("/token", tokens())
            .route("/as/register", post(endpoints::register))
            .route("/register", post(endpoints::register))
            .route("/as/revoke", post(endpoints::revoke))
            .fallback(endpoints::metadata)
            .with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        server
    }

    /// Returns the URL of the MCP server that it protects.
    pub fn resource_url(&self) -> String {
        format!("{}/mcp", self.0.base)
    }

    /// Returns the scheme, host and port of the server.
    pub fn base_url(&self) -> &str {
        &self.0.base
    }

    /// Returns its issuer identifier.
    pub fn issuer(&self) -> String {
        match self.behavior().metadata_location {
            MetadataLocation::ProtectedResource | MetadataLocation::OpenId => format!("{}/as", self.0.base),
            MetadataLocation::AuthorizationServer | MetadataLocation::DefaultEndpoints => self.0.base.clone(),
        }
    }

    /// Returns its behavior, to change it.
    pub fn behavior(&self) -> MutexGuard<'_, Behavior> {
        self.0.behavior.lock()
    }

    /// Returns what it has issued and counted.
    pub fn state(&self) -> MutexGuard<'_, MockState> {
        self.0.state.lock()
    }

    /// Releases delayed token requests.
    pub fn release(&self) {
        self.behavior().holds_token_requests = false;
        self.0.released.notify_waiters();
    }

    /// Returns how often this request was received.
    pub fn request_count(&self, what: &str) -> usize {
        self.state().requests.iter().filter(|request| *request == what).count()
    }

    /// Revokes the grants behind its refresh tokens, as a user does there.
    pub fn revoke_consent(&self) {
        self.state().grants.iter_mut().for_each(|grant| grant.is_revoked = true);
    }

    /// Returns the number of valid grants.
    pub fn active_grant_count(&self) -> usize {
        self.state().grants.iter().filter(|grant| !grant.is_revoked).count()
    }

    /// Whether the resource server accepts this token now.
    pub fn accepts(&self, token: &str) -> bool {
        let now = self.0.clock.now().unix_ms();
        let state = self.state();
        state.grants.iter().any(|grant| !grant.is_revoked && grant.access == token && grant.expires_at > now)
    }

    /// Returns all secrets that it has issued.
    pub fn issued_secrets(&self) -> Vec<String> {
        let state = self.state();
        let grant_tokens = |grant: &IssuedGrant| {
            let refresh = grant.used_refresh_tokens.iter().chain(&grant.refresh).cloned();
            refresh.chain([grant.access.clone()]).collect::<Vec<_>>()
        };
        let mut secrets: Vec<String> = state.grants.iter().flat_map(grant_tokens).collect();
        secrets.extend(state.codes.keys().cloned());
        secrets.extend(state.clients.values().filter_map(|client| client.secret.clone()));
        secrets
    }

    /// Registers a client manually.
    pub fn register_client(&self, id: &str, secret: Option<&str>, auth_method: &str, redirect_uri: &str) {
        let known = RegisteredClient {
            redirect_uri: redirect_uri.into(),
            secret: secret.map(Into::into),
            auth_method: auth_method.into(),
            metadata: Value::Null,
        };
        self.state().clients.insert(id.into(), known);
    }

    /// Gives consent at this URL as a user; returns the callback.
    pub fn approve(&self, url: &str) -> Callback {
        let (fields, redirect_uri) = self.check_authorization_request(url);
        let mut state = self.state();
        let code = state.next_value("code");
        let field = |name: &str| fields.get(name).cloned().unwrap();
        state.codes.insert(
            code.clone(),
            AuthorizationCode {
                client: field("client_id"),
                challenge: field("code_challenge"),
                redirect_uri,
                is_used: false,
            },
        );
        drop(state);
        let advertises_issuer = self.behavior().advertises_issuer;
        let iss = advertises_issuer.then(|| self.issuer());
        Callback { code: Some(code), state: Some(field("state")), iss, error: None, error_description: None }
    }

    /// Validates an authorization request; returns its fields.
    pub fn check_authorization_request(&self, url: &str) -> (FormFields, String) {
        let url = Url::parse(url).unwrap();
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let fields: FormFields = pairs.iter().cloned().collect();
        assert_eq!(fields.len(), pairs.len(), "a duplicate field: {url}");
        let field = |name: &str| fields.get(name).map(String::as_str);
        let prefix =
            if self.behavior().metadata_location == MetadataLocation::DefaultEndpoints { "" } else { "/as" };
        assert_eq!(
            url.as_str().split('?').next(),
            Some(format!("{}{prefix}/authorize", self.0.base).as_str())
        );
        assert_eq!(field("response_type"), Some("code"));
        assert_eq!(field("code_challenge_method"), Some("S256"));
        assert_eq!(URL_SAFE_NO_PAD.decode(field("code_challenge").unwrap()).unwrap().len(), 32);
        assert_eq!(URL_SAFE_NO_PAD.decode(field("state").unwrap()).unwrap().len(), 32);
        assert_eq!(field("resource"), Some(self.resource_url().as_str()));
        let offline = field("scope").is_some_and(|scope| scope.split(' ').any(|it| it == "offline_access"));
        assert_eq!(field("prompt"), offline.then_some("consent"));
        let client = field("client_id").unwrap();
        let redirect_uri = field("redirect_uri").unwrap().to_owned();
        let state = self.state();
        let known = state.clients.get(client).expect("a registered client");
        assert_eq!(known.redirect_uri, redirect_uri);
        if known.metadata.is_object() {
            let registered: Vec<&str> =
                known.metadata["scope"].as_str().unwrap_or_default().split(' ').collect();
            let requested = field("scope").into_iter().flat_map(|scope| scope.split(' '));
            assert_eq!(
                requested.filter(|scope| !registered.contains(scope)).count(),
                0,
                "a scope that is not registered"
            );
        }
        drop(state);
        (fields, redirect_uri)
    }

    fn record_request(&self, method: &str, path: &str) {
        self.state().requests.push(format!("{method} {path}"));
    }

    fn violation(&self, what: impl Into<String>) -> OAuthRefusal {
        let what = what.into();
        self.state().violations.push(what.clone());
        (400, "invalid_request", what)
    }

    /// Returns the fields of a form, and the client that sent it.
    fn parse_form(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(FormFields, String), OAuthRefusal> {
        if uri.query().is_some() {
            return Err(self.violation("a token request has a query"));
        }
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        if kind != Some("application/x-www-form-urlencoded") {
            return Err(self.violation(format!("a token request has the content type {kind:?}")));
        }
        let pairs: Vec<(String, String)> = form_urlencoded::parse(body).into_owned().collect();
        let fields: FormFields = pairs.iter().cloned().collect();
        if pairs.len() != fields.len() {
            return Err(self.violation("a field is given twice"));
        }
        let basic = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let basic = basic.and_then(|value| value.strip_prefix("Basic ")).map(|value| {
            let text = String::from_utf8(STANDARD.decode(value).unwrap()).unwrap();
            let (id, secret) =
                text.split_once(':').map(|(id, secret)| (id.to_owned(), secret.to_owned())).unwrap();
            let decode = |text: &str| {
                form_urlencoded::parse(format!("x={text}").as_bytes()).next().unwrap().1.into_owned()
            };
            (decode(&id), decode(&secret))
        });
        let in_form = (fields.get("client_id").cloned(), fields.get("client_secret").cloned());
        let (id, secret, auth_method) = match (basic, in_form) {
            // Like servers of the official SDKs, it looks the client up by the form.
            (Some((id, secret)), (Some(form_id), None)) if id == form_id => {
                (id, Some(secret), "client_secret_basic")
            }
            (None, (Some(id), Some(secret))) => (id, Some(secret), "client_secret_post"),
            (None, (Some(id), None)) => (id, None, "none"),
            _ => return Err(self.violation("client credentials are missing or sent in two ways")),
        };
        let known = self.state().clients.get(&id).cloned();
        let Some(known) = known else { return Err((401, "invalid_client", "unknown".into())) };
        if known.auth_method != auth_method || known.secret != secret {
            return Err(
                self.violation(format!("a client does not authenticate as registered, but by {auth_method}"))
            );
        }
        Ok((fields, id))
    }

    fn issue_for_grant(&self, fields: &FormFields, client: String) -> EndpointResult {
        let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
        if field("resource") != self.resource_url() {
            return Err(self.violation(format!("the resource is {:?}", field("resource"))));
        }
        let mut state = self.state();
        match field("grant_type") {
            "authorization_code" => {
                let Some(code) = state.codes.get_mut(field("code")) else {
                    return Err((400, "invalid_grant", "no such code".into()));
                };
                let is_valid = !code.is_used
                    && code.client == client
                    && code.redirect_uri == field("redirect_uri")
                    && (43..=128).contains(&field("code_verifier").len())
                    && URL_SAFE_NO_PAD.encode(Sha256::digest(field("code_verifier"))) == code.challenge;
                if !is_valid {
                    drop(state);
                    self.violation("a code is exchanged by another client, twice or without its verifier");
                    return Err((400, "invalid_grant", "invalid code".into()));
                }
                code.is_used = true;
                let grant = IssuedGrant {
                    client,
                    access: String::new(),
                    expires_at: 0,
                    refresh: None,
                    used_refresh_tokens: Vec::new(),
                    is_revoked: false,
                };
                state.grants.push(grant);
                let last = state.grants.len() - 1;
                Ok(self.issue_tokens(&mut state, last, true))
            }
            "refresh_token" => {
                let token = field("refresh_token").to_owned();
                if state.grants.iter().any(|grant| grant.used_refresh_tokens.contains(&token)) {
                    state.violations.push("a refresh token is used twice".into());
                }
                let found = state.grants.iter().position(|grant| {
                    !grant.is_revoked && grant.client == client && grant.refresh.as_ref() == Some(&token)
                });
                let Some(found) = found else {
                    return Err((400, "invalid_grant", "no such refresh token".into()));
                };
                state.refresh_count += 1;
                let rotates_refresh_tokens = self.behavior().rotates_refresh_tokens;
                Ok(self.issue_tokens(&mut state, found, rotates_refresh_tokens))
            }
            other => {
                let message = format!("grant_type is {other:?}");
                drop(state);
                Err(self.violation(message))
            }
        }
    }

    fn issue_tokens(&self, state: &mut MockState, grant: usize, rotates_refresh_tokens: bool) -> Value {
        let behavior = self.behavior().clone();
        let access = state.next_value("access");
        let refresh =
            (behavior.issues_refresh_tokens && rotates_refresh_tokens).then(|| state.next_value("refresh"));
        let grant = &mut state.grants[grant];
        grant.access.clone_from(&access);
        grant.expires_at = behavior
            .access_token_lifetime_s
            .map_or(i64::MAX, |lifetime_s| self.0.clock.now().unix_ms() + lifetime_s * 1_000);
        let mut response = json!({"access_token": access, "token_type": "bearer"});
        if let Some(lifetime_s) = behavior.access_token_lifetime_s {
            response["expires_in"] = lifetime_s.into();
        }
        if let Some(refresh) = refresh {
            response["refresh_token"] = refresh.clone().into();
            grant.used_refresh_tokens.extend(grant.refresh.replace(refresh));
        }
        response
    }
}

impl MockState {
    fn next_value(&mut self, kind: &str) -> String {
        self.next_id += 1;
        format!("{kind}-{:0>8}-secret", self.next_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_a_token_the_resource_says_where_to_get_one() {
        let clock = Arc::new(ManualClock::at(api::Timestamp::from_unix_ms(1_800_000_000_000)));
        let server = MockAuthServer::start(std::net::Ipv4Addr::LOCALHOST.into(), clock).await;
        let answer = reqwest::Client::new().post(server.resource_url()).body("{}").send().await.unwrap();
        assert_eq!(answer.status(), 401);
        assert!(answer.headers().contains_key(header::WWW_AUTHENTICATE));
    }
}
