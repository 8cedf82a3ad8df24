//! A mock authorization server and the resource server behind it: it rejects whatever violates the specifications,
//! and counts requests.

pub(super) mod endpoints;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::assets::Callback;
use axum::Router;
use axum::http::{HeaderMap, Uri, header};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http_service::clock::{Clock as _, ManualClock};
use reqwest::Url;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use url::form_urlencoded;

/// The server's behavior.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each may be had without the others")]
pub(crate) struct Behavior {
    /// The lifetime of access tokens in seconds; `None` leaves it out of the responses.
    pub(crate) access_token_lifetime_s: Option<i64>,
    /// Whether a refresh token can be used only once.
    pub(crate) rotates_refresh_tokens: bool,
    /// Whether clients may register dynamically.
    pub(crate) allows_registration: bool,
    /// Whether the URL of client metadata is accepted as a client id.
    pub(crate) accepts_client_metadata: bool,
    /// Whether it advertises `iss` in its authorization responses.
    pub(crate) advertises_issuer: bool,
    pub(crate) pkce: Option<&'static str>,
    /// The client authentication method.
    pub(crate) client_auth_method: &'static str,
    pub(crate) metadata_location: MetadataLocation,
    /// Whether the resource server fails at every MCP request.
    pub(crate) is_down: bool,
    /// Whether the resource server rejects every token.
    pub(crate) rejects_tokens: bool,
    /// Whether it issues refresh tokens.
    pub(crate) issues_refresh_tokens: bool,
    /// Whether it has a revocation endpoint.
    pub(crate) supports_revocation: bool,
    /// Whether it delays token requests until they are released.
    pub(crate) holds_token_requests: bool,
    /// A fixed response of the token endpoint.
    pub(crate) token_response: Option<(u16, String)>,
    /// The scopes named in the resource server's challenge and metadata.
    pub(crate) challenge_scope: Option<&'static str>,
    pub(crate) resource_scopes: &'static [&'static str],
    /// The scopes that the authorization server supports.
    pub(crate) scopes: &'static [&'static str],
    /// The token endpoint in its metadata, if another one.
    pub(crate) token_endpoint: Option<String>,
    pub(crate) authorization_endpoint: Option<String>,
    /// The issuer in its metadata, if another one.
    pub(crate) issuer: Option<String>,
    /// The authorization server named by the resource server, if another one.
    pub(crate) authorization_server: Option<String>,
}

/// Where the server publishes its metadata.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum MetadataLocation {
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
pub(crate) struct MockAuthServer(Arc<Inner>);

struct Inner {
    base: String,
    clock: Arc<ManualClock>,
    behavior: Mutex<Behavior>,
    released: Notify,
    state: Mutex<MockState>,
}

/// The server's state.
#[derive(Default)]
pub(crate) struct MockState {
    /// The requests received: method and path.
    pub(crate) requests: Vec<String>,
    /// Violations of the specifications.
    pub(crate) violations: Vec<String>,
    pub(crate) clients: HashMap<String, RegisteredClient>,
    codes: HashMap<String, AuthorizationCode>,
    grants: Vec<IssuedGrant>,
    /// How often tokens were refreshed.
    pub(crate) refresh_count: usize,
    /// The `token_type_hint`s of revoked tokens.
    pub(crate) revoked_token_hints: Vec<String>,
    next_id: usize,
}

#[derive(Clone)]
pub(crate) struct RegisteredClient {
    redirect_uri: String,
    secret: Option<String>,
    auth_method: String,
    pub(crate) metadata: Value,
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
    pub(crate) async fn start(address: IpAddr, clock: Arc<ManualClock>) -> Self {
        let listener = tokio::net::TcpListener::bind((address, 0)).await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let inner = Inner {
            base,
            clock,
            behavior: Mutex::default(),
            released: Notify::new(),
            state: Mutex::default(),
        };
        let strict = Self(Arc::new(inner));
        let tokens = || post(endpoints::token).fallback(endpoints::unexpected);
        let router = Router::new()
            .route("/mcp", get(endpoints::resource).post(endpoints::resource))
            .route("/as/token", tokens())
            .route("/token", tokens())
            .route("/as/register", post(endpoints::register))
            .route("/register", post(endpoints::register))
            .route("/as/revoke", post(endpoints::revoke))
            .fallback(endpoints::metadata)
            .with_state(strict.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        strict
    }

    pub(crate) fn resource_url(&self) -> String {
        format!("{}/mcp", self.0.base)
    }

    pub(crate) fn base_url(&self) -> &str {
        &self.0.base
    }

    pub(crate) fn issuer(&self) -> String {
        match self.behavior().metadata_location {
            MetadataLocation::ProtectedResource | MetadataLocation::OpenId => format!("{}/as", self.0.base),
            MetadataLocation::AuthorizationServer | MetadataLocation::DefaultEndpoints => self.0.base.clone(),
        }
    }

    pub(crate) fn behavior(&self) -> MutexGuard<'_, Behavior> {
        self.0.behavior.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, MockState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases delayed token requests.
    pub(crate) fn release(&self) {
        self.behavior().holds_token_requests = false;
        self.0.released.notify_waiters();
    }

    /// Returns how often this request was received.
    pub(crate) fn request_count(&self, what: &str) -> usize {
        self.state().requests.iter().filter(|asked| *asked == what).count()
    }

    /// Revokes the grants behind its refresh tokens, as a user does there.
    pub(crate) fn revoke_consent(&self) {
        self.state().grants.iter_mut().for_each(|leave| leave.is_revoked = true);
    }

    /// Returns the number of valid grants.
    pub(crate) fn active_grant_count(&self) -> usize {
        self.state().grants.iter().filter(|leave| !leave.is_revoked).count()
    }

    /// Whether the resource server accepts this token now.
    pub(crate) fn accepts(&self, token: &str) -> bool {
        let now = self.0.clock.now().unix_ms();
        let books = self.state();
        books.grants.iter().any(|leave| !leave.is_revoked && leave.access == token && leave.expires_at > now)
    }

    /// Returns all secrets that it has issued.
    pub(crate) fn issued_secrets(&self) -> Vec<String> {
        let books = self.state();
        let of_leave = |leave: &IssuedGrant| {
            let refresh = leave.used_refresh_tokens.iter().chain(&leave.refresh).cloned();
            refresh.chain([leave.access.clone()]).collect::<Vec<_>>()
        };
        let mut secrets: Vec<String> = books.grants.iter().flat_map(of_leave).collect();
        secrets.extend(books.codes.keys().cloned());
        secrets.extend(books.clients.values().filter_map(|client| client.secret.clone()));
        secrets
    }

    /// Registers a client manually.
    pub(crate) fn register_client(&self, id: &str, secret: Option<&str>, proof: &str, redirect_uri: &str) {
        let known = RegisteredClient {
            redirect_uri: redirect_uri.into(),
            secret: secret.map(Into::into),
            auth_method: proof.into(),
            metadata: Value::Null,
        };
        self.state().clients.insert(id.into(), known);
    }

    /// Gives consent at this URL as a user; returns the callback.
    pub(crate) fn approve(&self, url: &str) -> Callback {
        let (fields, redirect_uri) = self.check_authorization_request(url);
        let mut books = self.state();
        let code = books.next_value("code");
        let field = |name: &str| fields.get(name).cloned().unwrap();
        books.codes.insert(
            code.clone(),
            AuthorizationCode {
                client: field("client_id"),
                challenge: field("code_challenge"),
                redirect_uri,
                is_used: false,
            },
        );
        drop(books);
        let says_issuer = self.behavior().advertises_issuer;
        let iss = says_issuer.then(|| self.issuer());
        Callback { code: Some(code), state: Some(field("state")), iss, error: None, error_description: None }
    }

    /// Validates an authorization request; returns its fields.
    pub(crate) fn check_authorization_request(&self, url: &str) -> (FormFields, String) {
        let url = Url::parse(url).unwrap();
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let fields: FormFields = pairs.iter().cloned().collect();
        assert_eq!(fields.len(), pairs.len(), "a field twice: {url}");
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
        let books = self.state();
        let known = books.clients.get(client).expect("a client that is known");
        assert_eq!(known.redirect_uri, redirect_uri);
        if known.metadata.is_object() {
            let registered: Vec<&str> =
                known.metadata["scope"].as_str().unwrap_or_default().split(' ').collect();
            let asked = field("scope").into_iter().flat_map(|scope| scope.split(' '));
            assert_eq!(asked.filter(|scope| !registered.contains(scope)).count(), 0, "a scope out of bounds");
        }
        drop(books);
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
            return Err(self.violation(format!("a token request is {kind:?}")));
        }
        let pairs: Vec<(String, String)> = form_urlencoded::parse(body).into_owned().collect();
        let fields: FormFields = pairs.iter().cloned().collect();
        if pairs.len() != fields.len() {
            return Err(self.violation("a field is there twice"));
        }
        let basic = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let basic = basic.and_then(|value| value.strip_prefix("Basic ")).map(|value| {
            let text = String::from_utf8(STANDARD.decode(value).unwrap()).unwrap();
            let (id, secret) =
                text.split_once(':').map(|(id, secret)| (id.to_owned(), secret.to_owned())).unwrap();
            let plain = |text: &str| {
                form_urlencoded::parse(format!("x={text}").as_bytes()).next().unwrap().1.into_owned()
            };
            (plain(&id), plain(&secret))
        });
        let in_form = (fields.get("client_id").cloned(), fields.get("client_secret").cloned());
        let (id, secret, proof) = match (basic, in_form) {
            // Like servers of the official SDKs, it looks the client up by the form.
            (Some((id, secret)), (Some(named), None)) if id == named => {
                (id, Some(secret), "client_secret_basic")
            }
            (None, (Some(id), Some(secret))) => (id, Some(secret), "client_secret_post"),
            (None, (Some(id), None)) => (id, None, "none"),
            _ => return Err(self.violation("a client shows who it is in two ways, or in none")),
        };
        let known = self.state().clients.get(&id).cloned();
        let Some(known) = known else { return Err((401, "invalid_client", "unknown".into())) };
        if known.auth_method != proof || known.secret != secret {
            return Err(self.violation(format!("a client shows who it is by {proof} with another secret")));
        }
        Ok((fields, id))
    }

    fn issue_for_grant(&self, fields: &FormFields, client: String) -> EndpointResult {
        let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
        if field("resource") != self.resource_url() {
            return Err(self.violation(format!("the resource is {:?}", field("resource"))));
        }
        let mut books = self.state();
        match field("grant_type") {
            "authorization_code" => {
                let Some(code) = books.codes.get_mut(field("code")) else {
                    return Err((400, "invalid_grant", "no such code".into()));
                };
                let is_good = !code.is_used
                    && code.client == client
                    && code.redirect_uri == field("redirect_uri")
                    && (43..=128).contains(&field("code_verifier").len())
                    && URL_SAFE_NO_PAD.encode(Sha256::digest(field("code_verifier"))) == code.challenge;
                if !is_good {
                    drop(books);
                    self.violation("a code is exchanged by another, or twice, or without its verifier");
                    return Err((400, "invalid_grant", "no good".into()));
                }
                code.is_used = true;
                let leave = IssuedGrant {
                    client,
                    access: String::new(),
                    expires_at: 0,
                    refresh: None,
                    used_refresh_tokens: Vec::new(),
                    is_revoked: false,
                };
                books.grants.push(leave);
                let last = books.grants.len() - 1;
                Ok(self.issue_tokens(&mut books, last, true))
            }
            "refresh_token" => {
                let token = field("refresh_token").to_owned();
                if books.grants.iter().any(|leave| leave.used_refresh_tokens.contains(&token)) {
                    books.violations.push("a refresh token is used twice".into());
                }
                let found = books.grants.iter().position(|leave| {
                    !leave.is_revoked && leave.client == client && leave.refresh.as_ref() == Some(&token)
                });
                let Some(found) = found else {
                    return Err((400, "invalid_grant", "no such refresh token".into()));
                };
                books.refresh_count += 1;
                let rotates_refresh_tokens = self.behavior().rotates_refresh_tokens;
                Ok(self.issue_tokens(&mut books, found, rotates_refresh_tokens))
            }
            other => {
                let message = format!("grant_type is {other:?}");
                drop(books);
                Err(self.violation(message))
            }
        }
    }

    fn issue_tokens(&self, books: &mut MockState, leave: usize, rotates_refresh_tokens: bool) -> Value {
        let rules = self.behavior().clone();
        let access = books.next_value("access");
        let refresh =
            (rules.issues_refresh_tokens && rotates_refresh_tokens).then(|| books.next_value("refresh"));
        let leave = &mut books.grants[leave];
        leave.access.clone_from(&access);
        leave.expires_at = rules
            .access_token_lifetime_s
            .map_or(i64::MAX, |life| self.0.clock.now().unix_ms() + life * 1_000);
        let mut given = json!({"access_token": access, "token_type": "bearer"});
        if let Some(life) = rules.access_token_lifetime_s {
            given["expires_in"] = life.into();
        }
        if let Some(refresh) = refresh {
            given["refresh_token"] = refresh.clone().into();
            leave.used_refresh_tokens.extend(leave.refresh.replace(refresh));
        }
        given
    }
}

impl MockState {
    fn next_value(&mut self, kind: &str) -> String {
        self.next_id += 1;
        format!("{kind}-{:0>8}-secret", self.next_id)
    }
}
