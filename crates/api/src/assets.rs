//! Assets: the tool servers (MCP servers) that the catalog names, and the user's connections to them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ConnectionId, Timestamp};

/// The transport to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TransportKind {
    /// The standard input and output of a program that the engine runs.
    Stdio,
    /// HTTP.
    Http,
}

/// The authentication that a server requires from the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuthKind {
    /// Nothing.
    None,
    /// A key that the server issued to the user.
    ApiKey,
    /// The user's authorization of the engine at an authorization server.
    #[serde(rename = "oauth")]
    OAuth,
}

/// Response of `GET /assets/servers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerList {
    /// The servers that the catalog names, sorted by name.
    pub servers: Vec<Server>,
}

/// A tool server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Server {
    /// The server's name, with which the names of its tools begin.
    pub name: String,
    /// What the server is for; empty if the catalog does not say.
    pub description: String,
    /// The transport to it.
    pub transport: TransportKind,
    /// The authentication that it requires from the user.
    pub auth: AuthKind,
    /// Whether there is a working connection to it.
    pub connected: bool,
}

/// Body of `POST /assets/connect`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct Connect {
    /// The server's name.
    pub server: String,
    /// The user's credentials, if the server requires a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
    /// Where the callback finally redirects the user's browser; must have the origin of `OAUTH_REDIRECT_BASE_URL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect_to: Option<String>,
}

// It contains a secret, so it does not implement `Debug`.
/// A user's credentials for a server.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct Credentials {
    /// The key that the server issued to the user.
    pub api_key: String,
}

/// Response of `POST /assets/connect`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum ConnectOutcome {
    /// The server answers, and its tools are available to the agent.
    Connected {
        /// The connection.
        connection: ConnectionId,
    },
    /// The user must authorize the engine.
    AuthorizationRequired {
        /// The URL at which the user does so.
        authorization_url: String,
        /// The `state` that the callback must return.
        state: String,
    },
}

/// Body of `POST /assets/callback`: the parameters with which the authorization server redirected the user's
/// browser back.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct Callback {
    /// The authorization code, which is exchanged for tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The `state` from `POST /assets/connect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The issuer identifier of the authorization server (RFC 9207).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iss: Option<String>,
    /// The error code, if access was denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The authorization server's description of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_description: Option<String>,
}

/// Response of a callback that established a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallbackOutcome {
    /// Always `connected`.
    pub status: ConnectedStatus,
    /// The connection.
    pub connection: ConnectionId,
}

/// The only status of [`CallbackOutcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConnectedStatus {
    /// The connection exists.
    Connected,
}

/// Response of `GET /assets/connections`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionList {
    /// The connections, oldest first.
    pub connections: Vec<Connection>,
}

/// A connection to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Connection {
    /// The connection's id.
    pub connection: ConnectionId,
    /// The server's name.
    pub server: String,
    /// The connection's state.
    pub status: ConnectionStatus,
    /// The names of its tools, as the server calls them: the agent knows each as `server__tool`.
    pub tools: Vec<String>,
    /// When it was first established.
    pub created_at: Timestamp,
    /// A description of the problem, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionStatus {
    /// The server's tools can be called.
    Connected,
    /// The user has not given access yet.
    Pending,
    /// The authorization has expired: the user must connect again.
    Expired,
    /// The server cannot be reached, or refuses.
    Error,
}

impl ConnectionStatus {
    /// Returns the status's name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Pending => "pending",
            Self::Expired => "expired",
            Self::Error => "error",
        }
    }

    /// Returns the status of this name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Connected, Self::Pending, Self::Expired, Self::Error]
            .into_iter()
            .find(|status| status.name() == name)
    }
}

/// Response of `DELETE /assets/connections/{connection}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Disconnected {
    /// Always `disconnected`.
    pub status: DisconnectedStatus,
}

/// The only status of [`Disconnected`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DisconnectedStatus {
    /// The connection was deleted.
    Disconnected,
}
