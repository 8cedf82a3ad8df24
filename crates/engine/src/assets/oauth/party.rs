//! An authorization server and who the engine is there: what is asked of it once it is found.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use contract::Timestamp;
use reqwest::header::HeaderValue;
use reqwest::{StatusCode, Url};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::form_urlencoded::byte_serialize;
use zeroize::Zeroizing;

use super::grant::Tokens;
use super::http::{Answer, Http, HttpError, said};
use crate::catalog::OAuthClient;

/// The longest token, in bytes: it goes into a header.
const MAX_TOKEN: usize = 16 * 1024;

/// See the module. It holds a secret, so it cannot be printed.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Party {
    /// What the authorization server calls itself, where it does.
    pub(super) issuer: Option<String>,
    /// What the engine's registration is kept under.
    pub(super) registered_at: String,
    pub(super) token_endpoint: Url,
    pub(super) revocation_endpoint: Option<Url>,
    pub(super) client: Client,
    /// What the tokens are for (RFC 8707).
    pub(super) resource: String,
}

/// Who the engine is at an authorization server.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Client {
    pub(super) id: String,
    pub(super) proof: Proof,
    /// Whether the engine has registered itself.
    pub(super) registered: bool,
}

/// How it shows that it is it (RFC 6749, section 2.3).
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Proof {
    /// Not at all: it is a public client.
    None,
    /// By a secret in `Authorization`.
    Basic(Zeroizing<String>),
    /// By a secret in the form.
    Post(Zeroizing<String>),
}

impl Client {
    /// Whether it shows that it is it by a secret that somebody has written into the catalog.
    pub(super) fn has_secret_of_catalog(&self) -> bool {
        !self.registered && !matches!(self.proof, Proof::None)
    }
}

/// Why there are no tokens.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenError {
    /// The authorization server has refused (RFC 6749, section 5.2).
    #[error("the authorization server refuses: `{code}`{}", described.as_deref().map(|text| format!(" ({text})")).unwrap_or_default())]
    Refused {
        /// Its code.
        code: String,
        /// What it says of that, for people.
        described: Option<String>,
    },
    /// It cannot be reached, is unwell, or does not speak the protocol.
    #[error("{0}")]
    Unavailable(String),
}

impl TokenError {
    /// Whether it does not know the engine, or lets it do nothing, any more.
    pub(super) fn is_of_client(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "invalid_client" || code == "unauthorized_client")
    }
}

impl From<HttpError> for TokenError {
    fn from(error: HttpError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

#[derive(Deserialize)]
struct Given {
    access_token: Zeroizing<String>,
    token_type: String,
    refresh_token: Option<Zeroizing<String>>,
    expires_in: Option<Value>,
}

impl Party {
    /// The same, with the secret that the catalog has for it now; none other where the catalog means another client, or
    /// another authorization server.
    pub(super) fn by_catalog(mut self, named: Option<&OAuthClient>) -> Self {
        let is_meant = |named: &&OAuthClient| {
            let issuer = named.issuer.as_deref();
            !self.client.registered
                && self.client.id == named.id
                && issuer.is_none_or(|issuer| self.issuer.as_deref() == Some(issuer))
        };
        if let Some(named) = named.filter(is_meant) {
            let secret = named.secret.as_ref().map(|secret| Zeroizing::new(secret.expose().to_owned()));
            self.client.proof = match (secret, self.client.proof) {
                (None, _) => Proof::None,
                (Some(secret), Proof::Post(_)) => Proof::Post(secret),
                // Whoever gives secrets must take them so (RFC 6749, section 2.3.1).
                (Some(secret), Proof::Basic(_) | Proof::None) => Proof::Basic(secret),
            };
        }
        self
    }

    /// Exchanges a code for tokens, at `now`.
    pub(super) async fn exchange(
        &self,
        http: &Http,
        now: Timestamp,
        code: &str,
        verifier: &str,
        redirect_uri: &str,
    ) -> Result<Tokens, TokenError> {
        let fields = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri),
            ("code_verifier", verifier),
            ("resource", &self.resource),
        ];
        let given = tokens(&self.post(http, &self.token_endpoint, &fields).await?, now);
        given.map_err(|error| self.without_echo(error, &[code, verifier]))
    }

    /// Exchanges a refresh token for others, at `now`.
    pub(super) async fn refresh(
        &self,
        http: &Http,
        now: Timestamp,
        refresh_token: &str,
    ) -> Result<Tokens, TokenError> {
        let fields =
            [("grant_type", "refresh_token"), ("refresh_token", refresh_token), ("resource", &self.resource)];
        let given = tokens(&self.post(http, &self.token_endpoint, &fields).await?, now);
        given.map_err(|error| self.without_echo(error, &[refresh_token]))
    }

    /// Revokes a token (RFC 7009), where that can be done.
    pub(super) async fn revoke(&self, http: &Http, token: &str, hint: &str) -> Result<(), TokenError> {
        let Some(endpoint) = &self.revocation_endpoint else { return Ok(()) };
        let answer = self.post(http, endpoint, &[("token", token), ("token_type_hint", hint)]).await?;
        if answer.status.is_success() { Ok(()) } else { Err(self.without_echo(refusal(&answer), &[token])) }
    }

    /// Without the description of a refusal, if that quotes some of a secret which it was sent.
    fn without_echo(&self, error: TokenError, sent: &[&str]) -> TokenError {
        let own = match &self.client.proof {
            Proof::None => None,
            Proof::Basic(secret) | Proof::Post(secret) => Some(secret.as_str()),
        };
        match error {
            TokenError::Refused { code, described } => {
                let secrets: Vec<&str> = sent.iter().copied().chain(own).collect();
                let described = described.filter(|text| !secrets.iter().any(|secret| quotes(text, secret)));
                TokenError::Refused { code, described }
            }
            error @ TokenError::Unavailable(_) => error,
        }
    }

    async fn post(&self, http: &Http, url: &Url, fields: &[(&str, &str)]) -> Result<Answer, HttpError> {
        let Client { id, proof, .. } = &self.client;
        let mut fields = fields.to_vec();
        // Always, as it may be (RFC 6749, section 3.2.1): many servers look the client up by it, whatever the secret is
        // shown with, those made with the official SDKs among them.
        fields.push(("client_id", id));
        let authorization = match proof {
            Proof::Basic(secret) => basic(id, secret),
            Proof::None => None,
            Proof::Post(secret) => {
                fields.push(("client_secret", secret.as_str()));
                None
            }
        };
        http.post_form(url, authorization, &fields).await
    }
}

/// Id and secret are form-encoded before they are joined (RFC 6749, section 2.3.1).
fn basic(id: &str, secret: &str) -> Option<HeaderValue> {
    let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    let joined = Zeroizing::new(format!("{}:{}", encoded(id), encoded(secret)));
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(joined.as_bytes()))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn tokens(answer: &Answer, asked_at: Timestamp) -> Result<Tokens, TokenError> {
    if answer.status != StatusCode::OK {
        return Err(refusal(answer));
    }
    let unfit = |what: &str| TokenError::Unavailable(format!("the authorization server's answer {what}"));
    // What the parser says of it could quote a token.
    let Ok(given) = serde_json::from_slice::<Given>(&answer.body) else {
        // Some servers refuse with status 200.
        let unfit = || unfit("has no token that can be read");
        return Err(refused_by(answer).unwrap_or_else(unfit));
    };
    if !given.token_type.eq_ignore_ascii_case("bearer") {
        return Err(unfit("has a token of another kind than `Bearer`"));
    }
    if !can_be_sent(&given.access_token) {
        return Err(unfit("has a token that cannot be sent"));
    }
    let life = given.expires_in.as_ref().and_then(seconds).map(|seconds| seconds.saturating_mul(1_000));
    Ok(Tokens {
        access: given.access_token,
        refresh: given.refresh_token.filter(|token| !token.is_empty()),
        life_ms: life,
        expires_at: life.map(|life| asked_at.unix_ms().saturating_add(life)),
    })
}

/// Whether `text` has enough of `secret` in it to tell something of it.
fn quotes(text: &str, secret: &str) -> bool {
    const TELLING: usize = 8;
    let secret = secret.as_bytes();
    let telling = secret.len().clamp(1, TELLING);
    secret.windows(telling).any(|part| text.as_bytes().windows(telling).any(|found| found == part))
}

/// Seconds, also where a server writes them as text.
fn seconds(value: &Value) -> Option<i64> {
    let seconds = match value {
        Value::String(text) => text.parse().ok()?,
        value => value.as_f64()?,
    };
    #[expect(clippy::cast_possible_truncation, reason = "a cast from a float saturates, which is far enough")]
    let seconds = seconds.max(0.0) as i64;
    Some(seconds)
}

fn can_be_sent(token: &str) -> bool {
    (1..=MAX_TOKEN).contains(&token.len()) && token.bytes().all(|byte| (0x21..0x7f).contains(&byte))
}

/// A refusal in the words of the protocol (RFC 6749, section 5.2); none if it is not.
fn refused_by(answer: &Answer) -> Option<TokenError> {
    let body = answer.json()?;
    let text = |name: &str| Some(said(body.get(name)?.as_str()?)).filter(|text| !text.is_empty());
    Some(TokenError::Refused { code: text("error")?, described: text("error_description") })
}

/// What an answer means that is not the one hoped for.
fn refusal(answer: &Answer) -> TokenError {
    let status = answer.status;
    match refused_by(answer) {
        Some(refused) if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => refused,
        _ => TokenError::Unavailable(format!("the authorization server answered {status}")),
    }
}
