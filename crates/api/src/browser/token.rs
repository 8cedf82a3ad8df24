//! Browser tokens: what they say, and how they are signed and verified.
//!
//! A token is `rbt1.<claims>.<signature>`: the claims as JSON in base64url, and an HMAC-SHA256 over everything before
//! the signature. There is one algorithm per version of the format, and a token does not name it.
//!
//! The signing key derives from a secret that only the engine and its orchestrator have, and from the hash of the
//! engine's current key. So a token is of one engine, and dies with the engine's key. The secret derives from the key
//! that seals the engine's own credentials, because the hash of the engine's key stands in the registry in the clear:
//! who reads the registry alone can sign nothing.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use subtle::ConstantTimeEq as _;
use utoipa::ToSchema;
use zeroize::Zeroizing;

use crate::keys::KeyHash;
use crate::proof::hmac_sha256;
use crate::{EngineId, TaskId, Timestamp, TokenId};

/// The version of the format, and what tells a token from a key.
const PREFIX: &str = "rbt1.";
/// The longest token that is looked at, in bytes: the longest task id, escaped twice, fits.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// The texts before the inputs of the HMACs, which separate their uses.
const SECRET_CONTEXT: &[u8] = b"roundhouse browser token secret 1\n";
const BACKUP_CONTEXT: &[u8] = b"roundhouse engine backup 1\n";
const KEY_CONTEXT: &[u8] = b"roundhouse browser token key 1\n";
const SIGNATURE_CONTEXT: &[u8] = b"roundhouse browser token 1\n";

/// The secret of one engine from which the signing keys of its tokens derive.
#[derive(Clone)]
pub struct TokenSecret(Zeroizing<[u8; 32]>);

impl TokenSecret {
    /// Derives the secret of an engine from the key that seals its credentials.
    pub fn derive(secrets_key: &str, engine_id: EngineId) -> Self {
        let key = Zeroizing::new(KeyHash::of(secrets_key).0);
        Self(Zeroizing::new(hmac_sha256(&key, &[SECRET_CONTEXT, engine_id.to_string().as_bytes()])))
    }

    /// Parses the result of [`TokenSecret::expose`].
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(text).ok()?);
        Some(Self(Zeroizing::new(bytes.as_slice().try_into().ok()?)))
    }

    /// Returns the secret's text. Only for the environment of its engine.
    pub fn expose(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0.as_slice())
    }

    /// Derives the key of the engine's backups.
    pub(crate) fn backup_key(&self) -> String {
        URL_SAFE_NO_PAD.encode(hmac_sha256(&self.0, &[BACKUP_CONTEXT]))
    }

    /// Derives the signing key that is valid as long as the engine's key has this hash.
    pub fn signing_key(&self, key_hash: KeyHash) -> SigningKey {
        SigningKey(Zeroizing::new(hmac_sha256(&self.0, &[KEY_CONTEXT, &key_hash.0])))
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("token secret…")
    }
}

/// The key that signs and verifies the tokens of one engine.
pub struct SigningKey(Zeroizing<[u8; 32]>);

impl SigningKey {
    /// Signs `claims`.
    pub fn sign(&self, claims: &Claims) -> BrowserToken {
        let claims = URL_SAFE_NO_PAD.encode(serde_json::to_vec(claims).unwrap_or_default());
        let signed = format!("{PREFIX}{claims}");
        let signature = URL_SAFE_NO_PAD.encode(self.signature(&signed));
        BrowserToken(Zeroizing::new(format!("{signed}.{signature}")))
    }

    /// Verifies that this key signed `token` for `engine_id`, and that it has not expired.
    pub fn verify(
        &self,
        token: &BrowserToken,
        engine_id: EngineId,
        now: Timestamp,
    ) -> Result<Claims, TokenRefusal> {
        let (signed, signature) = token.0.rsplit_once('.').ok_or(TokenRefusal::Invalid)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| TokenRefusal::Invalid)?;
        if !bool::from(self.signature(signed).as_slice().ct_eq(&signature)) {
            return Err(TokenRefusal::Invalid);
        }
        let claims = token.unverified_claims().ok_or(TokenRefusal::Invalid)?;
        if claims.engine_id != engine_id {
            return Err(TokenRefusal::Invalid);
        }
        if claims.expires_at_ms <= now.unix_ms() {
            return Err(TokenRefusal::Expired);
        }
        Ok(claims)
    }

    fn signature(&self, signed: &str) -> [u8; 32] {
        hmac_sha256(&self.0, &[SIGNATURE_CONTEXT, signed.as_bytes()])
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("token signing key…")
    }
}

/// Why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// It is malformed, of another engine, or not signed with this key.
    #[error(
        "the token is not valid for this engine: it is malformed, of another engine, or the engine's key has changed"
    )]
    Invalid,
    /// It has expired.
    #[error("the token has expired; the product's backend mints another one")]
    Expired,
    /// It was revoked.
    #[error("the token was revoked")]
    Revoked,
}

/// What a token says. A claim that this version does not know may restrict the token, so such a token is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// The token's id.
    #[serde(rename = "jti")]
    pub token_id: TokenId,
    /// The engine that accepts it.
    #[serde(rename = "aud")]
    pub engine_id: EngineId,
    /// When it was minted, in Unix milliseconds.
    #[serde(rename = "iat")]
    pub issued_at_ms: i64,
    /// When it expires, in Unix milliseconds.
    #[serde(rename = "exp")]
    pub expires_at_ms: i64,
    /// What it permits.
    #[serde(rename = "scp")]
    pub scopes: Scopes,
    /// The only task that it permits.
    #[serde(rename = "tsk", default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
}

/// What a token permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Run, steer and cancel turns, and read their streams.
    Chat,
    /// Read conversations, turns and their events.
    Read,
    /// See and answer the agent's questions.
    Answer,
}

/// One to three scopes, each once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(value_type = Vec<Scope>, min_items = 1)]
pub struct Scopes(Vec<Scope>);

impl Scopes {
    /// Whether `scope` is among them.
    pub fn contain(&self, scope: Scope) -> bool {
        self.0.contains(&scope)
    }
}

impl<'de> Deserialize<'de> for Scopes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut scopes = Vec::<Scope>::deserialize(deserializer)?;
        scopes.sort_unstable();
        scopes.dedup();
        if scopes.is_empty() {
            return Err(de::Error::custom("must name at least one of `chat`, `read` and `answer`"));
        }
        Ok(Self(scopes))
    }
}

/// The text of a token, which is a secret.
#[derive(Clone)]
pub struct BrowserToken(Zeroizing<String>);

impl BrowserToken {
    /// Takes a bearer's text for a token if it begins like one of any version.
    pub fn from_bearer(text: &str) -> Option<Self> {
        text.starts_with("rbt").then(|| Self(Zeroizing::new(text.to_owned())))
    }

    /// Returns the token's text. Only for the response or header that it is meant for.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns the engine that the token claims to be of. Nothing has been verified.
    pub fn claimed_engine(&self) -> Option<EngineId> {
        self.unverified_claims().map(|claims| claims.engine_id)
    }

    fn unverified_claims(&self) -> Option<Claims> {
        if self.0.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let (claims, _) = self.0.strip_prefix(PREFIX)?.split_once('.')?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }
}

impl fmt::Debug for BrowserToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rbt…")
    }
}

/// Serializes the token in the clear: only the response that hands it over has a field of this type.
impl Serialize for BrowserToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for BrowserToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

impl utoipa::PartialSchema for BrowserToken {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::Type::String)
            .pattern(Some("^rbt1\\.[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]{43}$"))
            .into()
    }
}

impl ToSchema for BrowserToken {
    fn name() -> std::borrow::Cow<'static, str> {
        "BrowserToken".into()
    }
}

#[cfg(test)]
#[path = "../../tests/unit/browser/token.rs"]
mod tests;
