//! The credentials that requests to a server carry.

use std::sync::Arc;

use api::assets::ConnectionStatus;
use futures::future::BoxFuture;
use secrecy::{ExposeSecret as _, SecretString};

/// The credentials for requests to one server on the user's behalf.
#[derive(Clone)]
pub(crate) enum RequestAuth {
    /// No credentials.
    None,
    /// The user's API key.
    ApiKey(SecretString),
    /// An OAuth token, which changes.
    OAuth(Arc<dyn TokenSource>),
}

impl RequestAuth {
    /// Whether both are the same credentials of the same user.
    pub(super) fn is_same_auth(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) | (Self::OAuth(_), Self::OAuth(_)) => true,
            (Self::ApiKey(one), Self::ApiKey(other)) => one.expose_secret() == other.expose_secret(),
            _ => false,
        }
    }

    /// Returns the status of a connection whose server rejects these credentials: OAuth consent can be given
    /// again.
    pub(super) fn status_if_refused(&self) -> ConnectionStatus {
        match self {
            Self::OAuth(_) => ConnectionStatus::Expired,
            Self::None | Self::ApiKey(_) => ConnectionStatus::Error,
        }
    }
}

/// A source of access tokens.
pub(crate) trait TokenSource: Send + Sync {
    /// Returns a currently valid token, other than `refused`, which the server has just rejected.
    fn token<'a>(
        &'a self,
        refused: Option<&'a SecretString>,
    ) -> BoxFuture<'a, Result<SecretString, AuthError>>;
}

/// Why there is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The user must connect again.
    #[error("its authorization has expired ({0}): the user must connect it again")]
    Expired(String),
    /// The authorization server is unreachable now, or something else is in the way.
    #[error("{0}")]
    Unavailable(String),
}
