//! An authorization server and the resource behind it, for tests: it takes nothing that is not as the specifications
//! have it, and counts.

pub(super) mod endpoints;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::http::{HeaderMap, Uri, header};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use contract::assets::Callback;
use reqwest::Url;
use serde_json::{Value, json};
use service::clock::{Clock as _, ManualClock};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use url::form_urlencoded;

/// How the server behaves.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each may be had without the others")]
pub(crate) struct Rules {
    /// How long access tokens are good, in seconds; none: the answers do not say.
    pub(crate) life: Option<i64>,
    /// Whether a refresh token is good once.
    pub(crate) rotates: bool,
    /// Whether clients may register themselves.
    pub(crate) registers: bool,
    /// Whether clients may be known by the address of their metadata.
    pub(crate) takes_documents: bool,
    /// Whether it says that its answers name it.
    pub(crate) says_issuer: bool,
    pub(crate) pkce: Option<&'static str>,
    /// How clients show who they are.
    pub(crate) proof: &'static str,
    pub(crate) described: Described,
    /// Whether the resource fails at every request of the protocol.
    pub(crate) is_down: bool,
    /// Whether the resource refuses every token.
    pub(crate) refuses: bool,
    /// Whether it gives refresh tokens.
    pub(crate) refreshes: bool,
    /// Whether it has a place to revoke tokens.
    pub(crate) revokes: bool,
    /// Whether it keeps requests for tokens waiting.
    pub(crate) holds: bool,
    /// What the token endpoint answers instead of anything else.
    pub(crate) token_answer: Option<(u16, String)>,
    /// The scopes that the resource's challenge and its metadata name.
    pub(crate) challenge_scope: Option<&'static str>,
    pub(crate) resource_scopes: &'static [&'static str],
    /// The scopes that the authorization server knows.
    pub(crate) scopes: &'static [&'static str],
    /// Where it says that its endpoints are, if elsewhere.
    pub(crate) token_endpoint: Option<String>,
    pub(crate) authorization_endpoint: Option<String>,
    /// Who it says that it is, if somebody else.
    pub(crate) issuer: Option<String>,
    /// Whom the resource names as its authorization server, if somebody else.
    pub(crate) authorization_server: Option<String>,
}

/// Where the server says how it is asked.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Described {
    /// In the resource's metadata and its own.
    ByResource,
    /// The same, its own as OpenID providers do.
    ByOpenId,
    /// In its own metadata alone, at the resource's origin.
    ByItself,
    /// Nowhere: it is at the places of 2025-03-26.
    Nowhere,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            life: Some(3_600),
            rotates: true,
            registers: true,
            takes_documents: false,
            says_issuer: true,
            pkce: Some("S256"),
            proof: "none",
            described: Described::ByResource,
            is_down: false,
            refuses: false,
            refreshes: true,
            revokes: true,
            holds: false,
            token_answer: None,
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

/// See the module.
#[derive(Clone)]
pub(crate) struct Strict(Arc<Inner>);

struct Inner {
    base: String,
    clock: Arc<ManualClock>,
    rules: Mutex<Rules>,
    released: Notify,
    books: Mutex<Books>,
}

/// What the server knows.
#[derive(Default)]
pub(crate) struct Books {
    /// What was asked: method and path.
    pub(crate) asked: Vec<String>,
    /// What was asked in a way that it must not be.
    pub(crate) broken: Vec<String>,
    pub(crate) clients: HashMap<String, Known>,
    codes: HashMap<String, Code>,
    leaves: Vec<Leave>,
    /// How often tokens were refreshed.
    pub(crate) refreshed: usize,
    /// The tokens that were revoked, by their hints.
    pub(crate) revoked: Vec<String>,
    next: usize,
}

#[derive(Clone)]
pub(crate) struct Known {
    redirect_uri: String,
    secret: Option<String>,
    proof: String,
    pub(crate) metadata: Value,
}

struct Code {
    client: String,
    challenge: String,
    redirect_uri: String,
    is_used: bool,
}

/// What one user has given to one client.
struct Leave {
    client: String,
    access: String,
    ends_at: i64,
    refresh: Option<String>,
    used: Vec<String>,
    is_over: bool,
}

/// Status, code and description of a refusal.
type Refusal = (u16, &'static str, String);
type Fields = HashMap<String, String>;
type Answered = Result<Value, Refusal>;

impl Strict {
    pub(crate) async fn start(address: IpAddr, clock: Arc<ManualClock>) -> Self {
        let listener = tokio::net::TcpListener::bind((address, 0)).await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let inner =
            Inner { base, clock, rules: Mutex::default(), released: Notify::new(), books: Mutex::default() };
        let strict = Self(Arc::new(inner));
        let tokens = || post(endpoints::token).fallback(endpoints::stray);
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

    pub(crate) fn resource(&self) -> String {
        format!("{}/mcp", self.0.base)
    }

    pub(crate) fn base(&self) -> &str {
        &self.0.base
    }

    pub(crate) fn issuer(&self) -> String {
        match self.rules().described {
            Described::ByResource | Described::ByOpenId => format!("{}/as", self.0.base),
            Described::ByItself | Described::Nowhere => self.0.base.clone(),
        }
    }

    pub(crate) fn rules(&self) -> MutexGuard<'_, Rules> {
        self.0.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.0.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of what it holds.
    pub(crate) fn release(&self) {
        self.rules().holds = false;
        self.0.released.notify_waiters();
    }

    /// How often this was asked.
    pub(crate) fn asked(&self, what: &str) -> usize {
        self.books().asked.iter().filter(|asked| *asked == what).count()
    }

    /// Ends the leave behind its refresh tokens, as a user does who takes it back there.
    pub(crate) fn take_back(&self) {
        self.books().leaves.iter_mut().for_each(|leave| leave.is_over = true);
    }

    /// How much leave holds.
    pub(crate) fn leaves(&self) -> usize {
        self.books().leaves.iter().filter(|leave| !leave.is_over).count()
    }

    /// Whether the resource takes this token now.
    pub(crate) fn takes(&self, token: &str) -> bool {
        let now = self.0.clock.now().unix_ms();
        let books = self.books();
        books.leaves.iter().any(|leave| !leave.is_over && leave.access == token && leave.ends_at > now)
    }

    /// All secrets that it has given.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let books = self.books();
        let of_leave = |leave: &Leave| {
            let refresh = leave.used.iter().chain(&leave.refresh).cloned();
            refresh.chain([leave.access.clone()]).collect::<Vec<_>>()
        };
        let mut secrets: Vec<String> = books.leaves.iter().flat_map(of_leave).collect();
        secrets.extend(books.codes.keys().cloned());
        secrets.extend(books.clients.values().filter_map(|client| client.secret.clone()));
        secrets
    }

    /// Has a client that people have registered.
    pub(crate) fn know(&self, id: &str, secret: Option<&str>, proof: &str, redirect_uri: &str) {
        let known = Known {
            redirect_uri: redirect_uri.into(),
            secret: secret.map(Into::into),
            proof: proof.into(),
            metadata: Value::Null,
        };
        self.books().clients.insert(id.into(), known);
    }

    /// Does what a user does at this address who gives leave: what the browser is sent back with.
    pub(crate) fn give_leave(&self, url: &str) -> Callback {
        let (fields, redirect_uri) = self.check_request(url);
        let mut books = self.books();
        let code = books.name("code");
        let field = |name: &str| fields.get(name).cloned().unwrap();
        books.codes.insert(
            code.clone(),
            Code {
                client: field("client_id"),
                challenge: field("code_challenge"),
                redirect_uri,
                is_used: false,
            },
        );
        drop(books);
        let says_issuer = self.rules().says_issuer;
        let iss = says_issuer.then(|| self.issuer());
        Callback { code: Some(code), state: Some(field("state")), iss, error: None, error_description: None }
    }

    /// The fields of a request for leave, which must be as it must be.
    pub(crate) fn check_request(&self, url: &str) -> (Fields, String) {
        let url = Url::parse(url).unwrap();
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let fields: Fields = pairs.iter().cloned().collect();
        assert_eq!(fields.len(), pairs.len(), "a field twice: {url}");
        let field = |name: &str| fields.get(name).map(String::as_str);
        let prefix = if self.rules().described == Described::Nowhere { "" } else { "/as" };
        assert_eq!(
            url.as_str().split('?').next(),
            Some(format!("{}{prefix}/authorize", self.0.base).as_str())
        );
        assert_eq!(field("response_type"), Some("code"));
        assert_eq!(field("code_challenge_method"), Some("S256"));
        assert_eq!(URL_SAFE_NO_PAD.decode(field("code_challenge").unwrap()).unwrap().len(), 32);
        assert_eq!(URL_SAFE_NO_PAD.decode(field("state").unwrap()).unwrap().len(), 32);
        assert_eq!(field("resource"), Some(self.resource().as_str()));
        let offline = field("scope").is_some_and(|scope| scope.split(' ').any(|it| it == "offline_access"));
        assert_eq!(field("prompt"), offline.then_some("consent"));
        let client = field("client_id").unwrap();
        let redirect_uri = field("redirect_uri").unwrap().to_owned();
        let books = self.books();
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

    fn note(&self, method: &str, path: &str) {
        self.books().asked.push(format!("{method} {path}"));
    }

    fn broken(&self, what: impl Into<String>) -> Refusal {
        let what = what.into();
        self.books().broken.push(what.clone());
        (400, "invalid_request", what)
    }

    /// The fields of a form, and the client that sent it.
    fn form(&self, uri: &Uri, headers: &HeaderMap, body: &[u8]) -> Result<(Fields, String), Refusal> {
        if uri.query().is_some() {
            return Err(self.broken("a token request has a query"));
        }
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        if kind != Some("application/x-www-form-urlencoded") {
            return Err(self.broken(format!("a token request is {kind:?}")));
        }
        let pairs: Vec<(String, String)> = form_urlencoded::parse(body).into_owned().collect();
        let fields: Fields = pairs.iter().cloned().collect();
        if pairs.len() != fields.len() {
            return Err(self.broken("a field is there twice"));
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
            // As servers of the official SDKs do, it looks the client up by the form.
            (Some((id, secret)), (Some(named), None)) if id == named => {
                (id, Some(secret), "client_secret_basic")
            }
            (None, (Some(id), Some(secret))) => (id, Some(secret), "client_secret_post"),
            (None, (Some(id), None)) => (id, None, "none"),
            _ => return Err(self.broken("a client shows who it is in two ways, or in none")),
        };
        let known = self.books().clients.get(&id).cloned();
        let Some(known) = known else { return Err((401, "invalid_client", "unknown".into())) };
        if known.proof != proof || known.secret != secret {
            return Err(self.broken(format!("a client shows who it is by {proof} with another secret")));
        }
        Ok((fields, id))
    }

    fn tokens(&self, fields: &Fields, client: String) -> Answered {
        let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
        if field("resource") != self.resource() {
            return Err(self.broken(format!("the resource is {:?}", field("resource"))));
        }
        let mut books = self.books();
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
                    self.broken("a code is exchanged by another, or twice, or without its verifier");
                    return Err((400, "invalid_grant", "no good".into()));
                }
                code.is_used = true;
                let leave = Leave {
                    client,
                    access: String::new(),
                    ends_at: 0,
                    refresh: None,
                    used: Vec::new(),
                    is_over: false,
                };
                books.leaves.push(leave);
                let last = books.leaves.len() - 1;
                Ok(self.give(&mut books, last, true))
            }
            "refresh_token" => {
                let token = field("refresh_token").to_owned();
                if books.leaves.iter().any(|leave| leave.used.contains(&token)) {
                    books.broken.push("a refresh token is used twice".into());
                }
                let found = books.leaves.iter().position(|leave| {
                    !leave.is_over && leave.client == client && leave.refresh.as_ref() == Some(&token)
                });
                let Some(found) = found else {
                    return Err((400, "invalid_grant", "no such refresh token".into()));
                };
                books.refreshed += 1;
                let rotates = self.rules().rotates;
                Ok(self.give(&mut books, found, rotates))
            }
            other => {
                let message = format!("grant_type is {other:?}");
                drop(books);
                Err(self.broken(message))
            }
        }
    }

    fn give(&self, books: &mut Books, leave: usize, rotates: bool) -> Value {
        let rules = self.rules().clone();
        let access = books.name("access");
        let refresh = (rules.refreshes && rotates).then(|| books.name("refresh"));
        let leave = &mut books.leaves[leave];
        leave.access.clone_from(&access);
        leave.ends_at = rules.life.map_or(i64::MAX, |life| self.0.clock.now().unix_ms() + life * 1_000);
        let mut given = json!({"access_token": access, "token_type": "bearer"});
        if let Some(life) = rules.life {
            given["expires_in"] = life.into();
        }
        if let Some(refresh) = refresh {
            given["refresh_token"] = refresh.clone().into();
            leave.used.extend(leave.refresh.replace(refresh));
        }
        given
    }
}

impl Books {
    fn name(&mut self, kind: &str) -> String {
        self.next += 1;
        format!("{kind}-{:0>8}-secret", self.next)
    }
}
