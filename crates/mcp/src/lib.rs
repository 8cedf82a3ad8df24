//! MCP: the tool servers that the catalog names, the user's connections to them, and their credentials. The API
//! calls them *assets*.
//!
//! An idle engine has no client of any server: it knows their tools from the brain, and a client is created at the
//! first call of a tool. Everything that identifies the user to a server is sealed in the brain.

mod clients;
mod connections;
mod credentials;
mod definition;
mod oauth;
mod pins;
mod request_auth;
mod server_directory;
#[cfg(test)]
#[path = "../tests/unit/testing.rs"]
mod testing;
mod tool;
mod user_servers;

use std::sync::Arc;
use std::time::Duration;

use api::assets::{Callback, Connect, ConnectOutcome, Connection, ConnectionStatus, Server};
use api::{CallId, ConnectionId};
use catalog::{Auth, Catalog, McpServerSpec};
use clients::{ClientError, Clients};
use connections::Connections;
use credentials::{CredentialSecret, Credentials};
pub(crate) use definition::ToolDefinition;
use fetch::WebAllowlist;
use http_service::clock::Clock;
use http_service::vault::Vault;
#[cfg(any(test, feature = "testing"))]
pub use oauth::fixture;
use oauth::{CompletedAuthorization, OAuth};
pub use request_auth::AuthError;
use request_auth::RequestAuth;
use reqwest::Url;
use sandbox::Sandbox;
use serde_json::Value;
use server_directory::ServerDirectory;
use store::{Brain, WriteError};
use tools::Tool;
use tools::documents::DocumentReader;

/// The time limit for connecting to a server.
const SERVER_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a shutdown waits for pending writes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// The configuration of connections.
#[derive(Clone, Debug, Default)]
pub struct McpSettings {
    /// The key that seals credentials; without it none can be stored.
    pub encryption_key: Option<http_service::vault::MasterKey>,
    /// The product's public address, to which authorization servers redirect users.
    pub redirect_base: Option<Url>,
    /// The address at which the product serves the OAuth client metadata.
    pub client_metadata_url: Option<Url>,
    /// Addresses that may be reached although they are not public.
    pub web_allowlist: WebAllowlist,
}

/// Why an operation on a server or a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum McpError {
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The catalog names no such server.
    #[error("the catalog names no server `{0}`; `GET /assets/servers` lists those there are")]
    UnknownServer(String),
    /// The user has added no such server.
    #[error("there is no server `{0}`; `GET /mcp/servers` lists those there are")]
    UnknownUserServer(String),
    /// The catalog does not permit this server of the user, or none.
    #[error("{0}")]
    NotPermitted(String),
    /// There is another server of this name.
    #[error("{0}")]
    ServerExists(String),
    /// The user has as many servers as the catalog permits.
    #[error("there are {0} servers already, as many as the catalog permits; delete one first")]
    ServerLimit(u64),
    /// The server's tools are not those that the user was shown.
    #[error(
        "`digest`: the tools of `{0}` are no longer those; `GET /mcp/servers/{0}` shows what they are now, and what has \
         changed"
    )]
    ToolsChanged(String),
    /// There is no such connection.
    #[error("there is no such connection; `GET /assets/connections` lists those there are")]
    UnknownConnection,
    /// A required setting is missing.
    #[error("{0}")]
    NotConfigured(&'static str),
    /// No pending authorization has this `state`.
    #[error("`state`: it is unknown, was used already, or is older than ten minutes; connect again")]
    InvalidState,
    /// The answer came from another authorization server.
    #[error(
        "`iss`: the callback is from a different authorization server than the request went to; connect again"
    )]
    InvalidIssuer,
    /// The user or the authorization server denied access.
    #[error("the authorization server denied access: {0}")]
    Denied(String),
    /// The server rejects the credentials.
    #[error("{0}")]
    Unauthorized(String),
    /// The server or its authorization server is unreachable or refuses the request.
    #[error("{0}")]
    Failed(String),
    /// The engine is stopping.
    #[error("the engine is stopping")]
    Stopping,
    /// The brain could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The brain could not be read.
    #[error("the brain could not be read")]
    Read(#[from] store::StoreError),
}

/// There is no key to seal credentials with.
pub(crate) const NO_ENCRYPTION_KEY: McpError = McpError::NotConfigured(
    "credentials cannot be stored: AD_ENCRYPTION_KEY is not set. Set it to 32 random bytes in URL-safe base64 (43 \
     characters) and start the engine again",
);

/// The MCP servers and connections of an engine. Clones share them.
#[derive(Clone)]
pub struct Mcp(Arc<Inner>);

struct Inner {
    directory: Arc<ServerDirectory>,
    connections: Arc<Connections>,
    clients: Clients,
    documents: DocumentReader,
    oauth: OAuth,
    redirect_base: Option<Url>,
}

impl Mcp {
    /// Loads the connections from `brain`. Servers that are programs will run in the sandbox; `documents` reads what
    /// servers send.
    pub fn open(
        brain: &Brain,
        settings: McpSettings,
        sandbox: Option<Arc<Sandbox>>,
        clock: Arc<dyn Clock>,
        documents: DocumentReader,
    ) -> Result<Self, store::StoreError> {
        let vault = settings.encryption_key.as_ref().and_then(|key| Vault::new(key).ok()).map(Arc::new);
        let connections = Arc::new(Connections::open(brain.clone(), vault, clock, settings.web_allowlist)?);
        let directory = Arc::<ServerDirectory>::default();
        let parts = (Arc::clone(&connections), Arc::clone(&directory));
        let oauth = OAuth::new(parts, settings.redirect_base.clone(), settings.client_metadata_url);
        Ok(Self(Arc::new(Inner {
            directory,
            clients: Clients::new(Arc::clone(&connections), sandbox),
            connections,
            documents,
            oauth,
            redirect_base: settings.redirect_base,
        })))
    }

    /// Sets the servers that the catalog names, and which others it permits.
    pub fn set_catalog(&self, catalog: &Catalog) {
        self.0.connections.user_servers().set_catalog(catalog);
        self.set_server_specs(&catalog.mcp_servers);
    }

    /// Replaces the list of known servers.
    pub fn set_server_specs(&self, servers: &[Arc<McpServerSpec>]) {
        self.refresh_servers(Some(servers));
    }

    /// Determines anew which servers there are, if they are given also those of the catalog.
    fn refresh_servers(&self, catalog: Option<&[Arc<McpServerSpec>]>) {
        let gone = self.0.directory.change(|servers| {
            if let Some(catalog) = catalog {
                servers.catalog = catalog.to_vec();
            }
            servers.of_user = self.0.connections.user_servers().usable(&servers.catalog);
        });
        for server in gone {
            self.0.clients.drop_client(&server.name);
        }
        self.0.connections.bump_generation();
    }

    /// Returns a number that grows whenever the set of tools may have changed.
    pub fn generation(&self) -> u64 {
        self.0.connections.generation()
    }

    /// Returns the tools of all connected servers, in order of the servers' names.
    pub fn tools(&self) -> Vec<Arc<dyn Tool>> {
        let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
        for spec in self.0.directory.all() {
            for definition in self.0.connections.tools(&spec) {
                let caller = ServerHandle { mcp: self.clone(), spec: Arc::clone(&spec) };
                tools.push(Arc::new(tool::ServerTool::new(caller, definition)));
            }
        }
        tools
    }

    /// Returns the servers of the catalog.
    pub fn servers(&self) -> Vec<Server> {
        let server = |spec: Arc<McpServerSpec>| Server {
            description: spec.description.clone(),
            transport: spec.transport_kind(),
            auth: spec.auth_kind(),
            connected: self.0.connections.status(&spec.name) == Some(ConnectionStatus::Connected)
                && self.0.connections.identity_matches_or_absent(&spec),
            name: spec.name.clone(),
        };
        self.0.directory.catalog().into_iter().map(server).collect()
    }

    /// Returns the connections, oldest first.
    pub fn connections(&self) -> Result<Vec<Connection>, McpError> {
        let mut connections = self.0.connections.list()?;
        let directory = self.0.directory.catalog();
        for connection in &mut connections {
            let spec = directory.iter().find(|spec| spec.name == connection.server);
            let error = match spec {
                None => "the catalog no longer names this server",
                Some(spec) if !self.0.connections.identity_matches_or_absent(spec) => {
                    "the catalog uses this name for a different server now: connect it again"
                }
                Some(_) => continue,
            };
            connection.status = ConnectionStatus::Error;
            connection.error = Some(error.into());
            connection.tools.clear();
        }
        Ok(connections)
    }

    /// Connects a server, or returns what the user must do first. It runs to completion even if the caller goes
    /// away.
    pub async fn connect(&self, connect: Connect) -> Result<ConnectOutcome, McpError> {
        let mcp = self.clone();
        let connecting = self.0.connections.spawn(async move {
            let Connect { server, credentials, redirect_to } = connect;
            mcp.connect_locked(mcp.server(&server)?, credentials, redirect_to).await
        });
        connecting.await.unwrap_or(Err(McpError::Stopping))
    }

    async fn connect_locked(
        &self,
        spec: Arc<McpServerSpec>,
        credentials: Option<api::assets::Credentials>,
        redirect_to: Option<String>,
    ) -> Result<ConnectOutcome, McpError> {
        let redirect_to = redirect_to.map(|address| self.redirect_target(&spec, &address)).transpose()?;
        let _lock = self.0.connections.lock_server(&spec.name).await;
        if !self.is_current(&spec) {
            // A server of the user that was deleted or disabled meanwhile.
            return Err(McpError::UnknownUserServer(spec.name.clone()));
        }
        let key = match (&spec.auth, credentials) {
            (Auth::ApiKey(_), Some(credentials)) => Some(credentials::validate_api_key(credentials.api_key)?),
            (Auth::ApiKey(_) | Auth::None | Auth::OAuth { .. }, None) => None,
            (Auth::None | Auth::OAuth { .. }, Some(_)) => {
                let message = "`credentials`: this server accepts none; see `auth` in `GET /assets/servers`";
                return Err(McpError::Invalid(message.into()));
            }
        };
        match &spec.auth {
            Auth::None => {}
            Auth::ApiKey(_) | Auth::OAuth { .. } if !self.0.connections.can_seal() => {
                return Err(NO_ENCRYPTION_KEY);
            }
            Auth::ApiKey(_) => {
                if key.is_none() && self.0.connections.credentials(&spec)?.is_none() {
                    let message = "`credentials`: this server needs {\"api_key\": …}";
                    return Err(McpError::Invalid(message.into()));
                }
            }
            Auth::OAuth { .. } => {
                // The existing authorization may still be valid. If the server rejects it, the user is asked.
                let is_revoked = self.0.connections.status(&spec.name) == Some(ConnectionStatus::Expired);
                if !is_revoked && let Ok(access) = self.request_auth(&spec) {
                    match self.establish(&spec, access, None).await {
                        Ok(()) => return self.connected_outcome(&spec),
                        Err(McpError::Unauthorized(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
                return self.0.oauth.authorize(&spec, redirect_to).await;
            }
        }
        let access = match &key {
            Some(key) => RequestAuth::ApiKey(key.clone()),
            None => self.request_auth(&spec)?,
        };
        self.establish(&spec, access, key.map(|key| Credentials::new(&spec, CredentialSecret::ApiKey(key))))
            .await?;
        self.connected_outcome(&spec)
    }

    /// Completes an authorization; returns where to redirect the user's browser, if that was requested.
    pub async fn callback(&self, callback: Callback) -> Result<(ConnectionId, Option<Url>), McpError> {
        let mcp = self.clone();
        // A code can be used once: the tokens are stored whether or not the caller still waits.
        let finishing = self.0.connections.spawn(async move {
            // The server stays locked until the end.
            let CompletedAuthorization { spec, redirect_to, server_lock: _lock } =
                mcp.0.oauth.finish(callback).await?;
            mcp.0.clients.drop_client(&spec.name);
            mcp.establish(&spec, mcp.request_auth(&spec)?, None).await?;
            let connection = mcp.0.connections.id(&spec.name).ok_or(McpError::InvalidState)?;
            Ok((connection, redirect_to))
        });
        finishing.await.unwrap_or(Err(McpError::Stopping))
    }

    /// Ends a connection: revokes its credentials if possible, and removes it.
    pub async fn disconnect(&self, connection: &str) -> Result<(), McpError> {
        let connection: ConnectionId = connection.parse().map_err(|_| McpError::UnknownConnection)?;
        let mcp = self.clone();
        let ending = self.0.connections.spawn(async move {
            let unknown = McpError::UnknownConnection;
            let Some(server) = mcp.0.connections.server_by_id(connection) else { return Err(unknown) };
            let _lock = mcp.0.connections.lock_server(&server).await;
            if mcp.0.connections.server_by_id(connection).is_none() {
                return Err(unknown);
            }
            mcp.0.clients.drop_client(&server);
            match mcp.server(&server).ok().filter(|spec| mcp.0.connections.identity_matches_or_absent(spec)) {
                Some(spec) => mcp.0.oauth.revoke(&spec).await,
                None => mcp.0.oauth.revoke_orphaned_tokens(&server).await,
            }
            mcp.0.connections.remove(&server).await?;
            // A call that came in meanwhile may have created a client; it has no right to it any more.
            mcp.0.clients.drop_client(&server);
            tracing::info!(server, "A tool server was disconnected.");
            Ok(())
        });
        ending.await.unwrap_or(Err(McpError::Stopping))
    }

    /// Returns the OAuth client metadata that the product has to serve.
    pub fn client_metadata(&self) -> Result<Value, McpError> {
        self.0.oauth.client_metadata()
    }

    /// Cancels those of these calls that wait for a person, because their turn is over.
    pub fn cancel_suspended_calls(&self, calls: impl Iterator<Item = CallId>) {
        calls.for_each(|call| self.0.clients.cancel_suspended(call));
    }

    /// Closes all clients, including programs, and waits for pending writes.
    pub async fn close(&self) {
        self.0.clients.close();
        self.0.connections.close(CLOSE_TIMEOUT).await;
    }

    /// Lists the server's tools and stores the result, together with `credentials` if they are new.
    async fn establish(
        &self,
        spec: &Arc<McpServerSpec>,
        access: RequestAuth,
        credentials: Option<Credentials>,
    ) -> Result<(), McpError> {
        if credentials.is_some() {
            self.0.clients.drop_client(&spec.name);
        }
        let listing =
            tokio::time::timeout(SERVER_CONNECT_TIMEOUT, self.0.clients.list_tools(spec, access.clone()));
        let timed_out = |_| {
            Err(ClientError::Failed(format!(
                "it did not answer within {} seconds",
                SERVER_CONNECT_TIMEOUT.as_secs()
            )))
        };
        let tools = match listing.await.unwrap_or_else(timed_out) {
            Ok(tools) => tools,
            Err(error) => return Err(self.record_connect_failure(spec, &access, &error).await),
        };
        tracing::info!(server = spec.name, tools = tools.len(), "A tool server is connected.");
        let stored = self.0.connections.establish(spec, tools, credentials).await;
        if stored.is_err() && spec.is_of_user() {
            // Calls would wait for the client's tools to be stored.
            self.0.clients.drop_client(&spec.name);
        }
        stored?;
        self.0.clients.mark_tools_recorded(&spec.name);
        Ok(())
    }

    /// Records a failed attempt in an existing connection.
    async fn record_connect_failure(
        &self,
        spec: &McpServerSpec,
        access: &RequestAuth,
        error: &ClientError,
    ) -> McpError {
        let authorized =
            !matches!(error, ClientError::Unauthorized(_) | ClientError::Auth(AuthError::Expired(_)));
        let status = if authorized { ConnectionStatus::Error } else { access.status_if_refused() };
        self.0.clients.drop_client(&spec.name);
        self.0.connections.record_failure(&spec.name, status, &error.to_string()).await;
        let message = format!("the server `{}` cannot be connected: {error}", spec.name);
        if authorized { McpError::Failed(message) } else { McpError::Unauthorized(message) }
    }

    fn connected_outcome(&self, spec: &McpServerSpec) -> Result<ConnectOutcome, McpError> {
        let connection = self.0.connections.id(&spec.name).ok_or(McpError::UnknownConnection)?;
        Ok(ConnectOutcome::Connected { connection })
    }

    /// Returns the stored credentials for requests to a server.
    fn request_auth(&self, spec: &Arc<McpServerSpec>) -> Result<RequestAuth, McpError> {
        match (&spec.auth, self.0.connections.credentials(spec)?) {
            (Auth::ApiKey(_), Some(CredentialSecret::ApiKey(key))) => Ok(RequestAuth::ApiKey(key)),
            (Auth::OAuth { .. }, Some(CredentialSecret::OAuthTokens(_))) => {
                Ok(RequestAuth::OAuth(self.0.oauth.token_source(spec)))
            }
            (Auth::None, _) => Ok(RequestAuth::None),
            (Auth::ApiKey(_) | Auth::OAuth { .. }, _) => Err(McpError::Failed(format!(
                "no credentials are stored for the server `{}`: the user must connect it again",
                spec.name
            ))),
        }
    }

    /// Parses the address, if a browser may be redirected to it.
    fn redirect_target(&self, spec: &McpServerSpec, address: &str) -> Result<Url, McpError> {
        if !matches!(spec.auth, Auth::OAuth { .. }) {
            let message = "`redirect_to`: this server needs no authorization, so there is no redirect";
            return Err(McpError::Invalid(message.into()));
        }
        let Some(base) = &self.0.redirect_base else { return Err(oauth::NO_REDIRECT_BASE) };
        let has_no_user = |url: &Url| url.username().is_empty() && url.password().is_none();
        Url::parse(address).ok().filter(|url| url.origin() == base.origin() && has_no_user(url)).ok_or_else(
            || {
                let origin = base.origin().ascii_serialization();
                McpError::Invalid(format!("`redirect_to`: must be an address that begins with {origin}"))
            },
        )
    }

    /// Whether a server that the user has added can still be used as it was. One of the catalog always can.
    fn is_current(&self, spec: &McpServerSpec) -> bool {
        !spec.is_of_user() || self.0.directory.find(&spec.name).is_some_and(|current| *current == *spec)
    }

    /// Returns a server of the catalog.
    fn server(&self, name: &str) -> Result<Arc<McpServerSpec>, McpError> {
        let found = self.0.directory.find(name).filter(|spec| !spec.is_of_user());
        found.ok_or_else(|| McpError::UnknownServer(name.to_owned()))
    }
}

/// The handle through which a server's tools call it.
#[derive(Clone)]
struct ServerHandle {
    mcp: Mcp,
    spec: Arc<McpServerSpec>,
}

impl ServerHandle {
    fn clients(&self) -> &Clients {
        &self.mcp.0.clients
    }

    fn documents(&self) -> &DocumentReader {
        &self.mcp.0.documents
    }

    /// Returns the credentials for a call. A turn may still have the tools of a server that was disconnected
    /// meanwhile.
    fn request_auth(&self) -> Result<RequestAuth, McpError> {
        if !self.mcp.0.connections.identity_matches(&self.spec) || !self.mcp.is_current(&self.spec) {
            let reason = format!("the server `{}` is no longer connected", self.spec.name);
            return Err(McpError::Failed(reason));
        }
        self.mcp.request_auth(&self.spec)
    }
}

#[cfg(test)]
#[path = "../tests/unit/callback.rs"]
mod callback_tests;
