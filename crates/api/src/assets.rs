//! Assets: tool servers that the catalog names, and the user's connections to them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ConnectionId, Timestamp};

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TransportKind {
    /// Over the standard input and output of a program that the engine runs.
    Stdio,
    /// Over HTTP.
    Http,
}

/// What a server wants to know of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuthKind {
    /// Nothing.
    None,
    /// A key that the user has of it.
    ApiKey,
    /// That the user gives the engine leave, at an authorization server.
    #[serde(rename = "oauth")]
    OAuth,
}

/// Answer of `GET /assets/servers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerList {
    /// The servers that the catalog names, by their names in order.
    pub servers: Vec<Server>,
}

/// A tool server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Server {
    /// Its name, with which the names of its tools begin.
    pub name: String,
    /// What it is for; empty where the catalog does not say.
    pub description: String,
    /// How it is spoken to.
    pub transport: TransportKind,
    /// What it wants to know of the user.
    pub auth: AuthKind,
    /// Whether there is a connection to it that works.
    pub connected: bool,
}

/// Body of `POST /assets/connect`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct Connect {
    /// The server's name.
    pub server: String,
    /// What the server wants to know, where that is a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
    /// Where the callback sends the user's browser at last; of the origin of `OAUTH_REDIRECT_BASE_URL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect_to: Option<String>,
}

// It holds a secret, so it cannot be printed.
/// What the user has of a server.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct Credentials {
    /// The key.
    pub api_key: String,
}

/// Answer of `POST /assets/connect`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum ConnectOutcome {
    /// The server answers, and its tools are the agent's.
    Connected {
        /// The connection.
        connection: ConnectionId,
    },
    /// The user must give leave.
    AuthorizationRequired {
        /// Where.
        authorization_url: String,
        /// What the callback must bring back.
        state: String,
    },
}

/// Body of `POST /assets/callback`: what the authorization server sent the user's browser back with.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct Callback {
    /// What the tokens are given for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What `POST /assets/connect` gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Who the authorization server says that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iss: Option<String>,
    /// Why no leave was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What the authorization server says of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_description: Option<String>,
}

/// Answer of a callback that led to a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallbackOutcome {
    /// Always `connected`.
    pub status: ConnectedStatus,
    /// The connection.
    pub connection: ConnectionId,
}

/// That there is a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConnectedStatus {
    /// There is.
    Connected,
}

/// Answer of `GET /assets/connections`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionList {
    /// The connections, the oldest first.
    pub connections: Vec<Connection>,
}

/// A connection to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Connection {
    /// Its id.
    pub connection: ConnectionId,
    /// The server's name.
    pub server: String,
    /// How it is.
    pub status: ConnectionStatus,
    /// The names of its tools, as it calls them: the agent knows each as `server__tool`.
    pub tools: Vec<String>,
    /// When it was first made.
    pub created_at: Timestamp,
    /// What is wrong with it, where something is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionStatus {
    /// Its tools can be called.
    Connected,
    /// The user has not given leave yet.
    Pending,
    /// The leave is over: the user must connect again.
    Expired,
    /// Its server cannot be reached, or refuses.
    Error,
}

impl ConnectionStatus {
    /// Its name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Pending => "pending",
            Self::Expired => "expired",
            Self::Error => "error",
        }
    }

    /// The status of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Connected, Self::Pending, Self::Expired, Self::Error].into_iter().find(|it| it.name() == name)
    }
}

/// Answer of `DELETE /assets/connections/{connection}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Disconnected {
    /// Always `disconnected`.
    pub status: DisconnectedStatus,
}

/// That a connection is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DisconnectedStatus {
    /// It is no more.
    Disconnected,
}
