//! The engine as an OAuth client of an authorization server: the token requests after discovery.

use api::Timestamp;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use catalog::OAuthClientConfig;
use reqwest::header::HeaderValue;
use reqwest::{StatusCode, Url};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::form_urlencoded::byte_serialize;
use zeroize::Zeroizing;

use super::http::{AuthHttpClient, AuthHttpResponse, HttpError, sanitize_server_text};

/// The maximum length of a token, in bytes: it goes into a header.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// An authorization server and the engine's credentials there. It holds a secret, so it does not implement
/// `Debug`.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct OAuthClient {
    /// The issuer identifier, if known.
    pub(super) issuer: Option<String>,
    /// The key under which the engine's registration is stored.
    pub(super) registered_at: String,
    pub(super) token_endpoint: Url,
    pub(super) revocation_endpoint: Option<Url>,
    pub(super) client: ClientCredentials,
    /// The resource that the tokens are for (RFC 8707).
    pub(super) resource: String,
}

/// The engine's client id and authentication at an authorization server.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct ClientCredentials {
    pub(super) id: String,
    pub(super) proof: ClientAuthMethod,
    /// Whether the engine registered itself dynamically.
    pub(super) registered: bool,
}

/// The client authentication method (RFC 6749, section 2.3).
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ClientAuthMethod {
    /// None: it is a public client.
    None,
    /// A secret in the `Authorization` header.
    Basic(Zeroizing<String>),
    /// A secret in the form.
    Post(Zeroizing<String>),
}

/// The authorization server's tokens.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Tokens {
    pub(super) access: Zeroizing<String>,
    pub(super) refresh: Option<Zeroizing<String>>,
    /// The lifetime of `access` in milliseconds, if known.
    pub(super) life_ms: Option<i64>,
    /// Its expiry, in Unix milliseconds.
    pub(super) expires_at: Option<i64>,
}

impl ClientCredentials {
    /// Whether the client authenticates with a secret from the catalog.
    pub(super) fn has_catalog_secret(&self) -> bool {
        !self.registered && !matches!(self.proof, ClientAuthMethod::None)
    }
}

/// Why there are no tokens.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenError {
    /// The authorization server has refused (RFC 6749, section 5.2).
    #[error("the authorization server refused: `{code}`{}", described.as_deref().map(|text| format!(" ({text})")).unwrap_or_default())]
    Refused {
        /// The error code.
        code: String,
        /// The server's description, for people.
        described: Option<String>,
    },
    /// It is unreachable, out of order, or does not speak the protocol.
    #[error("{0}")]
    Unavailable(String),
}

impl TokenError {
    /// Whether the authorization server no longer knows the engine, or no longer authorizes it.
    pub(super) fn is_client_error(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "invalid_client" || code == "unauthorized_client")
    }
}

impl From<HttpError> for TokenError {
    fn from(error: HttpError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

#[derive(Deserialize)]
struct TokenResponse {
    access_token: Zeroizing<String>,
    token_type: String,
    refresh_token: Option<Zeroizing<String>>,
    expires_in: Option<Value>,
}

impl OAuthClient {
    /// Replaces the secret by the catalog's current one, unless the catalog means another client or another
    /// authorization server.
    pub(super) fn with_catalog_secret(mut self, configured: Option<&OAuthClientConfig>) -> Self {
        let is_same_client = |configured: &&OAuthClientConfig| {
            let issuer = configured.issuer.as_deref();
            !self.client.registered
                && self.client.id == configured.id
                && issuer.is_none_or(|issuer| self.issuer.as_deref() == Some(issuer))
        };
        if let Some(configured) = configured.filter(is_same_client) {
            let secret = configured.secret.as_ref().map(|secret| Zeroizing::new(secret.expose().to_owned()));
            self.client.proof = match (secret, self.client.proof) {
                (None, _) => ClientAuthMethod::None,
                (Some(secret), ClientAuthMethod::Post(_)) => ClientAuthMethod::Post(secret),
                // Whoever issues secrets must accept them this way (RFC 6749, section 2.3.1).
                (Some(secret), ClientAuthMethod::Basic(_) | ClientAuthMethod::None) => {
                    ClientAuthMethod::Basic(secret)
                }
            };
        }
        self
    }

    /// Exchanges a code for tokens, at `now`.
    pub(super) async fn exchange(
        &self,
        http: &AuthHttpClient,
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
        let tokens = parse_tokens(&self.post(http, &self.token_endpoint, &fields).await?, now);
        tokens.map_err(|error| self.redact_secrets(error, &[code, verifier]))
    }

    /// Exchanges a refresh token for new tokens, at `now`.
    pub(super) async fn refresh(
        &self,
        http: &AuthHttpClient,
        now: Timestamp,
        refresh_token: &str,
    ) -> Result<Tokens, TokenError> {
        let fields =
            [("grant_type", "refresh_token"), ("refresh_token", refresh_token), ("resource", &self.resource)];
        let tokens = parse_tokens(&self.post(http, &self.token_endpoint, &fields).await?, now);
        tokens.map_err(|error| self.redact_secrets(error, &[refresh_token]))
    }

    /// Revokes a token (RFC 7009), if the server supports it.
    pub(super) async fn revoke(
        &self,
        http: &AuthHttpClient,
        token: &str,
        hint: &str,
    ) -> Result<(), TokenError> {
        let Some(endpoint) = &self.revocation_endpoint else { return Ok(()) };
        let response = self.post(http, endpoint, &[("token", token), ("token_type_hint", hint)]).await?;
        if response.status.is_success() {
            Ok(())
        } else {
            Err(self.redact_secrets(response_error(&response), &[token]))
        }
    }

    /// Removes the description of a refusal if it quotes part of a secret that was sent.
    fn redact_secrets(&self, error: TokenError, sent: &[&str]) -> TokenError {
        let own_secret = match &self.client.proof {
            ClientAuthMethod::None => None,
            ClientAuthMethod::Basic(secret) | ClientAuthMethod::Post(secret) => Some(secret.as_str()),
        };
        match error {
            TokenError::Refused { code, described } => {
                let secrets: Vec<&str> = sent.iter().copied().chain(own_secret).collect();
                let described =
                    described.filter(|text| !secrets.iter().any(|secret| quotes_secret(text, secret)));
                TokenError::Refused { code, described }
            }
            error @ TokenError::Unavailable(_) => error,
        }
    }

    async fn post(
        &self,
        http: &AuthHttpClient,
        url: &Url,
        fields: &[(&str, &str)],
    ) -> Result<AuthHttpResponse, HttpError> {
        let ClientCredentials { id, proof, .. } = &self.client;
        let mut fields = fields.to_vec();
        // Always sent, as is permitted (RFC 6749, section 3.2.1): many servers, including those made with the
        // official SDKs, look the client up by it, whatever the authentication method is.
        fields.push(("client_id", id));
        let authorization = match proof {
            ClientAuthMethod::Basic(secret) => basic_auth_header(id, secret),
            ClientAuthMethod::None => None,
            ClientAuthMethod::Post(secret) => {
                fields.push(("client_secret", secret.as_str()));
                None
            }
        };
        http.post_form(url, authorization, &fields).await
    }
}

/// Id and secret are form-encoded before they are joined (RFC 6749, section 2.3.1).
fn basic_auth_header(id: &str, secret: &str) -> Option<HeaderValue> {
    let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    let joined = Zeroizing::new(format!("{}:{}", encoded(id), encoded(secret)));
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(joined.as_bytes()))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn parse_tokens(response: &AuthHttpResponse, requested_at: Timestamp) -> Result<Tokens, TokenError> {
    if response.status != StatusCode::OK {
        return Err(response_error(response));
    }
    let invalid = |what: &str| TokenError::Unavailable(format!("the authorization server's response {what}"));
    // The parser's error could quote a token.
    let Ok(tokens) = serde_json::from_slice::<TokenResponse>(&response.body) else {
        // Some servers refuse with status 200.
        let invalid = || invalid("has no readable token");
        return Err(parse_refusal(response).unwrap_or_else(invalid));
    };
    if !tokens.token_type.eq_ignore_ascii_case("bearer") {
        return Err(invalid("has a token type other than `Bearer`"));
    }
    if !is_valid_token(&tokens.access_token) {
        return Err(invalid("has an invalid token"));
    }
    let lifetime_ms =
        tokens.expires_in.as_ref().and_then(parse_seconds).map(|seconds| seconds.saturating_mul(1_000));
    Ok(Tokens {
        access: tokens.access_token,
        refresh: tokens.refresh_token.filter(|token| !token.is_empty()),
        life_ms: lifetime_ms,
        expires_at: lifetime_ms.map(|lifetime_ms| requested_at.unix_ms().saturating_add(lifetime_ms)),
    })
}

/// Whether `text` contains enough of `secret` to reveal part of it.
fn quotes_secret(text: &str, secret: &str) -> bool {
    const MIN_QUOTED_BYTES: usize = 8;
    let secret = secret.as_bytes();
    let window = secret.len().clamp(1, MIN_QUOTED_BYTES);
    secret.windows(window).any(|part| text.as_bytes().windows(window).any(|found| found == part))
}

/// Parses a number of seconds, even if a server sends it as text.
fn parse_seconds(value: &Value) -> Option<i64> {
    let seconds = match value {
        Value::String(text) => text.parse().ok()?,
        value => value.as_f64()?,
    };
    #[expect(clippy::cast_possible_truncation, reason = "a cast from a float saturates, which is far enough")]
    let seconds = seconds.max(0.0) as i64;
    Some(seconds)
}

fn is_valid_token(token: &str) -> bool {
    (1..=MAX_TOKEN_BYTES).contains(&token.len()) && token.bytes().all(|byte| (0x21..0x7f).contains(&byte))
}

/// Parses a refusal (RFC 6749, section 5.2); `None` if the response is not one.
fn parse_refusal(response: &AuthHttpResponse) -> Option<TokenError> {
    let body = response.json()?;
    let text =
        |name: &str| Some(sanitize_server_text(body.get(name)?.as_str()?)).filter(|text| !text.is_empty());
    Some(TokenError::Refused { code: text("error")?, described: text("error_description") })
}

/// Converts an unexpected response to an error.
fn response_error(response: &AuthHttpResponse) -> TokenError {
    let status = response.status;
    match parse_refusal(response) {
        Some(refused) if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => refused,
        _ => TokenError::Unavailable(format!("the authorization server answered {status}")),
    }
}
