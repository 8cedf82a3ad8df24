//! The leave that the user has given for a server, as it is kept.

use contract::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::oauth_client::OAuthClient;
use crate::mcp::credentials::CredentialSecret;

/// How long before its end a token is refreshed, at most; a token of a short life, a tenth of that before.
const REFRESH_AHEAD_MS: i64 = 60_000;

/// See the module. It holds secrets, so it cannot be printed.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Grant {
    pub(super) party: OAuthClient,
    pub(super) leave: Consent,
}

/// Whether there is still leave.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Consent {
    /// There is.
    Given(Tokens),
    /// There is none any more, for this reason: nobody is asked again until the user connects again.
    Over(String),
}

/// What the authorization server gave.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Tokens {
    pub(super) access: Zeroizing<String>,
    pub(super) refresh: Option<Zeroizing<String>>,
    /// How long `access` is good, in milliseconds, where that is known.
    pub(super) life_ms: Option<i64>,
    /// Until when, in Unix milliseconds.
    pub(super) expires_at: Option<i64>,
}

/// What is to be done for a token.
pub(super) enum TokenAction {
    /// Nothing: this one is good.
    Use(SecretString),
    /// It must be refreshed with this; until that is done, this one is still good.
    Refresh { refresh_token: Zeroizing<String>, still_valid: Option<SecretString> },
    /// The user must connect again.
    Expired(String),
    /// The same, but that is not on record yet.
    Expire(String),
}

impl Grant {
    /// What was kept; none if it is nothing that this engine reads.
    pub(super) fn from_credential(held: &CredentialSecret) -> Option<Self> {
        match held {
            CredentialSecret::OAuthTokens(text) => serde_json::from_str(text.expose_secret()).ok(),
            CredentialSecret::ApiKey(_) => None,
        }
    }

    pub(super) fn to_credential(&self) -> Result<CredentialSecret, serde_json::Error> {
        Ok(CredentialSecret::OAuthTokens(serde_json::to_string(self)?.into()))
    }

    /// What to do at `now` for a token that is not `refused`.
    pub(super) fn token_action(&self, now: Timestamp, refused: Option<&SecretString>) -> TokenAction {
        let tokens = match &self.leave {
            Consent::Given(tokens) => tokens,
            Consent::Over(reason) => return TokenAction::Expired(reason.clone()),
        };
        let refused = refused.is_some_and(|refused| refused.expose_secret() == tokens.access.as_str());
        let access = || SecretString::from(tokens.access.as_str());
        let left = tokens.expires_at.map(|end| end.saturating_sub(now.unix_ms()));
        let early = tokens.life_ms.map_or(REFRESH_AHEAD_MS, |life| REFRESH_AHEAD_MS.min(life / 10));
        let is_good = !refused && left.is_none_or(|left| left > 0);
        match &tokens.refresh {
            _ if is_good && left.is_none_or(|left| left > early) => TokenAction::Use(access()),
            Some(refresh) => {
                TokenAction::Refresh { refresh_token: refresh.clone(), still_valid: is_good.then(access) }
            }
            None if is_good => TokenAction::Use(access()),
            None if refused => TokenAction::Expire(
                "the server takes the token no more, and there is none to refresh it with".into(),
            ),
            None => TokenAction::Expire("the token has expired, and there is none to refresh it with".into()),
        }
    }
}
