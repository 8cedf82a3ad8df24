//! The stored OAuth grant for a server: client, tokens, and whether the user's consent still holds.

use api::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::oauth_client::{OAuthClient, Tokens};
use crate::credentials::CredentialSecret;

/// The maximum time before its expiry at which a token is refreshed; a short-lived token is refreshed a tenth of
/// its lifetime before.
const REFRESH_AHEAD_MS: i64 = 60_000;

/// A stored grant. It holds secrets, so it does not implement `Debug`.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Grant {
    pub(super) party: OAuthClient,
    pub(super) leave: Consent,
}

/// Whether the user's consent still holds.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Consent {
    /// It holds.
    Given(Tokens),
    /// It has ended, for this reason: no token is requested until the user connects again.
    Over(String),
}

/// The next step to get a token.
pub(super) enum TokenAction {
    /// Use this valid token.
    Use(SecretString),
    /// Refresh with this refresh token; meanwhile the access token is still valid, if there is one.
    Refresh { refresh_token: Zeroizing<String>, still_valid: Option<SecretString> },
    /// The user must connect again.
    Expired(String),
    /// The user must connect again, and that is not stored yet.
    Expire(String),
}

impl Grant {
    /// Parses a stored grant; `None` if this engine cannot read it.
    pub(super) fn from_credential(secret: &CredentialSecret) -> Option<Self> {
        match secret {
            CredentialSecret::OAuthTokens(text) => serde_json::from_str(text.expose_secret()).ok(),
            CredentialSecret::ApiKey(_) => None,
        }
    }

    pub(super) fn to_credential(&self) -> Result<CredentialSecret, serde_json::Error> {
        Ok(CredentialSecret::OAuthTokens(serde_json::to_string(self)?.into()))
    }

    /// Returns the step that is due at `now` for a token other than `refused`.
    pub(super) fn token_action(&self, now: Timestamp, refused: Option<&SecretString>) -> TokenAction {
        let tokens = match &self.leave {
            Consent::Given(tokens) => tokens,
            Consent::Over(reason) => return TokenAction::Expired(reason.clone()),
        };
        let refused = refused.is_some_and(|refused| refused.expose_secret() == tokens.access.as_str());
        let access = || SecretString::from(tokens.access.as_str());
        let left_ms = tokens.expires_at.map(|end| end.saturating_sub(now.unix_ms()));
        let refresh_margin_ms =
            tokens.life_ms.map_or(REFRESH_AHEAD_MS, |life_ms| REFRESH_AHEAD_MS.min(life_ms / 10));
        let is_valid = !refused && left_ms.is_none_or(|left_ms| left_ms > 0);
        match &tokens.refresh {
            _ if is_valid && left_ms.is_none_or(|left_ms| left_ms > refresh_margin_ms) => {
                TokenAction::Use(access())
            }
            Some(refresh) => {
                TokenAction::Refresh { refresh_token: refresh.clone(), still_valid: is_valid.then(access) }
            }
            None if is_valid => TokenAction::Use(access()),
            None if refused => TokenAction::Expire(
                "the server no longer accepts the token, and there is no refresh token".into(),
            ),
            None => TokenAction::Expire("the token has expired, and there is no refresh token".into()),
        }
    }
}
