//! What requests to a server carry so that it knows on whose behalf they are made.

use std::sync::Arc;

use contract::assets::ConnectionStatus;
use futures::future::BoxFuture;
use secrecy::{ExposeSecret as _, SecretString};

/// See the module.
#[derive(Clone)]
pub(crate) enum RequestAuth {
    /// Nothing.
    None,
    /// The user's key.
    ApiKey(SecretString),
    /// A token, which changes.
    OAuth(Arc<dyn TokenSource>),
}

impl RequestAuth {
    /// Whether requests with either are made on the same user's behalf, in the same way.
    pub(super) fn is_same_auth(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) | (Self::OAuth(_), Self::OAuth(_)) => true,
            (Self::ApiKey(one), Self::ApiKey(other)) => one.expose_secret() == other.expose_secret(),
            _ => false,
        }
    }

    /// How a connection is whose server does not take it: leave can be given anew.
    pub(super) fn status_if_refused(&self) -> ConnectionStatus {
        match self {
            Self::OAuth(_) => ConnectionStatus::Expired,
            Self::None | Self::ApiKey(_) => ConnectionStatus::Error,
        }
    }
}

/// Gives tokens.
pub(crate) trait TokenSource: Send + Sync {
    /// A token that is good now; another one than `refused`, which the server has just refused.
    fn token<'a>(
        &'a self,
        refused: Option<&'a SecretString>,
    ) -> BoxFuture<'a, Result<SecretString, AuthError>>;
}

/// Why there is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AuthError {
    /// The user must connect again.
    #[error("the leave for it is over ({0}): the user must connect it again")]
    Expired(String),
    /// The authorization server cannot be reached now, or something else is in the way.
    #[error("{0}")]
    Unavailable(String),
}
