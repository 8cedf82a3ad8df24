//! Assets: the tool servers that the catalog names, the user's connections to them, and what they take.
//!
//! An idle engine has no client of any server: it knows their tools from the brain, and a client is made when a tool is
//! first called. Whatever shows servers who the user is lies sealed in the brain.

mod access;
mod clients;
mod connections;
mod credentials;
mod definition;
mod directory;
mod oauth;
mod tool;

use std::sync::Arc;
use std::time::Duration;

use contract::assets::{Callback, Connect, ConnectOutcome, Connection, ConnectionStatus, Server};
use contract::{CallId, ConnectionId};
use leash::Leash;
use reqwest::Url;
use serde_json::Value;
use service::clock::Clock;
use service::vault::Vault;

use crate::brain::{Brain, WriteError};
use crate::catalog::{Auth, ServerSpec};
use crate::tools::{Allowed, Tool};

use access::{Access, AccessError};
use clients::{ClientError, Clients};
use connections::Connections;
use credentials::{Credentials, Held};
pub(crate) use definition::ToolDefinition;
use directory::Directory;
#[cfg(test)]
pub(crate) use oauth::rig;
use oauth::{Finished, OAuth};

/// How long a server may take to be connected.
const CONNECTING: Duration = Duration::from_secs(30);
/// How long what is just being stored may take at the engine's end.
const SETTLING: Duration = Duration::from_secs(3);

/// What connections need of the configuration.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Seals credentials; without it none can be kept.
    pub key: Option<service::vault::MasterKey>,
    /// The product's address, to which authorization servers send people back.
    pub redirect_base: Option<Url>,
    /// Where the product serves the client's metadata.
    pub client_metadata: Option<Url>,
    /// What may be reached although it is not public.
    pub web: Allowed,
}

/// Why something was not done with a server or a connection.
#[derive(Debug, thiserror::Error)]
pub enum AssetsError {
    /// The request asks for something that cannot be.
    #[error("{0}")]
    Invalid(String),
    /// The catalog names no such server.
    #[error("the catalog names no server `{0}`; `GET /assets/servers` lists those there are")]
    UnknownServer(String),
    /// There is no such connection.
    #[error("there is no such connection; `GET /assets/connections` lists those there are")]
    UnknownConnection,
    /// Something must be set before.
    #[error("{0}")]
    NotConfigured(&'static str),
    /// The `state` of an authorization is not one that waits.
    #[error("`state`: it is unknown, was used already, or is older than ten minutes; connect again")]
    InvalidState,
    /// Another authorization server answered.
    #[error("`iss`: another authorization server answered than the one that was asked; connect again")]
    InvalidIssuer,
    /// No leave was given.
    #[error("the authorization server gave no leave: {0}")]
    Denied(String),
    /// The server does not take what shows it who the user is.
    #[error("{0}")]
    NotLetIn(String),
    /// The server, or its authorization server, cannot be reached or refuses.
    #[error("{0}")]
    Failed(String),
    /// The engine is stopping.
    #[error("the engine is stopping")]
    Stopping,
    /// It could not be stored.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// It could not be read.
    #[error("the brain could not be read")]
    Read(#[from] rusqlite::Error),
}

/// No key to seal with.
pub(crate) const NO_KEY: AssetsError = AssetsError::NotConfigured(
    "credentials cannot be kept: AD_ENCRYPTION_KEY is not set. Set it to 32 random bytes in URL-safe base64 (43 \
     characters) and start the engine again",
);

/// See the module.
#[derive(Clone)]
pub struct Assets(Arc<Inner>);

struct Inner {
    directory: Arc<Directory>,
    connections: Arc<Connections>,
    clients: Clients,
    oauth: OAuth,
    redirect_base: Option<Url>,
}

impl Assets {
    /// What `brain` knows of connections, to servers that `leash` runs where they are programs.
    pub(crate) fn open(
        brain: &Brain,
        settings: Settings,
        leash: Option<Arc<Leash>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, rusqlite::Error> {
        let vault = settings.key.as_ref().and_then(|key| Vault::new(key).ok()).map(Arc::new);
        let connections = Arc::new(Connections::open(brain.clone(), vault, clock, settings.web)?);
        let directory = Arc::<Directory>::default();
        let parts = (Arc::clone(&connections), Arc::clone(&directory));
        let oauth = OAuth::new(parts, settings.redirect_base.clone(), settings.client_metadata);
        Ok(Self(Arc::new(Inner {
            directory,
            clients: Clients::new(Arc::clone(&connections), leash),
            connections,
            oauth,
            redirect_base: settings.redirect_base,
        })))
    }

    /// Takes these servers for those that there are.
    pub(crate) fn set_directory(&self, servers: &[Arc<ServerSpec>]) {
        let old = self.0.directory.replace(servers);
        for server in old.iter().filter(|server| !servers.contains(server)) {
            self.0.clients.forget(&server.name);
        }
        self.0.connections.changed();
    }

    /// Grows whenever there may be other tools than before.
    pub(crate) fn generation(&self) -> u64 {
        self.0.connections.generation()
    }

    /// The tools of all servers that are connected, by their servers' names in order.
    pub(crate) fn tools(&self) -> Vec<Arc<dyn Tool>> {
        let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
        for spec in self.directory() {
            for definition in self.0.connections.tools(&spec) {
                let caller = Caller { assets: self.clone(), spec: Arc::clone(&spec) };
                tools.push(Arc::new(tool::ServerTool::new(caller, definition)));
            }
        }
        tools
    }

    /// The servers that the catalog names.
    pub(crate) fn servers(&self) -> Vec<Server> {
        let server = |spec: Arc<ServerSpec>| Server {
            description: spec.description.clone(),
            transport: spec.transport_kind(),
            auth: spec.auth_kind(),
            connected: self.0.connections.status(&spec.name) == Some(ConnectionStatus::Connected)
                && self.0.connections.is_to(&spec),
            name: spec.name.clone(),
        };
        self.directory().into_iter().map(server).collect()
    }

    /// The connections, the oldest first.
    pub(crate) fn connections(&self) -> Result<Vec<Connection>, AssetsError> {
        let mut listed = self.0.connections.list()?;
        let directory = self.directory();
        for connection in &mut listed {
            let spec = directory.iter().find(|spec| spec.name == connection.server);
            let error = match spec {
                None => "the catalog names no such server any more",
                Some(spec) if !self.0.connections.is_to(spec) => {
                    "the catalog means another server by this name now: connect it again"
                }
                Some(_) => continue,
            };
            connection.status = ConnectionStatus::Error;
            connection.error = Some(error.into());
            connection.tools.clear();
        }
        Ok(listed)
    }

    /// Connects a server, or says what the user must do for that. It is done to its end also where the caller goes away.
    pub(crate) async fn connect(&self, connect: Connect) -> Result<ConnectOutcome, AssetsError> {
        let assets = self.clone();
        let connecting = self.0.connections.spawn(async move { assets.connect_in_turn(connect).await });
        connecting.await.unwrap_or(Err(AssetsError::Stopping))
    }

    async fn connect_in_turn(&self, connect: Connect) -> Result<ConnectOutcome, AssetsError> {
        let Connect { server, credentials, redirect_to } = connect;
        let spec = self.server(&server)?;
        let redirect_to = redirect_to.map(|address| self.redirect_target(&spec, &address)).transpose()?;
        let _turn = self.0.connections.turn(&spec.name).await;
        let key = match (&spec.auth, credentials) {
            (Auth::ApiKey(_), Some(credentials)) => Some(credentials::checked(credentials.api_key)?),
            (Auth::ApiKey(_) | Auth::None | Auth::OAuth { .. }, None) => None,
            (Auth::None | Auth::OAuth { .. }, Some(_)) => {
                let message = "`credentials`: this server takes none; see `auth` in `GET /assets/servers`";
                return Err(AssetsError::Invalid(message.into()));
            }
        };
        match &spec.auth {
            Auth::None => {}
            Auth::ApiKey(_) | Auth::OAuth { .. } if !self.0.connections.can_seal() => return Err(NO_KEY),
            Auth::ApiKey(_) => {
                if key.is_none() && self.0.connections.credentials(&spec)?.is_none() {
                    let message = "`credentials`: this server needs {\"api_key\": …}";
                    return Err(AssetsError::Invalid(message.into()));
                }
            }
            Auth::OAuth { .. } => {
                // What is there may still do. If the server does not take it, the user is asked.
                let is_over = self.0.connections.status(&spec.name) == Some(ConnectionStatus::Expired);
                if !is_over && let Ok(access) = self.access(&spec) {
                    match self.establish(&spec, access, None).await {
                        Ok(()) => return self.connected(&spec),
                        Err(AssetsError::NotLetIn(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
                return self.0.oauth.authorize(&spec, redirect_to).await;
            }
        }
        let access = match &key {
            Some(key) => Access::Key(key.clone()),
            None => self.access(&spec)?,
        };
        self.establish(&spec, access, key.map(|key| Credentials::of(&spec, Held::Key(key)))).await?;
        self.connected(&spec)
    }

    /// Finishes an authorization; where the user's browser is to be sent, if somebody said.
    pub(crate) async fn callback(
        &self,
        callback: Callback,
    ) -> Result<(ConnectionId, Option<Url>), AssetsError> {
        let assets = self.clone();
        // A code is good once: what it is exchanged for is kept whether or not the caller still waits.
        let finishing = self.0.connections.spawn(async move {
            // The server's turn lasts until the end.
            let Finished { spec, redirect_to, turn: _turn } = assets.0.oauth.finish(callback).await?;
            assets.0.clients.forget(&spec.name);
            assets.establish(&spec, assets.access(&spec)?, None).await?;
            let connection = assets.0.connections.id(&spec.name).ok_or(AssetsError::InvalidState)?;
            Ok((connection, redirect_to))
        });
        finishing.await.unwrap_or(Err(AssetsError::Stopping))
    }

    /// Ends a connection: revokes what it has, where that can be done, and forgets it.
    pub(crate) async fn disconnect(&self, connection: &str) -> Result<(), AssetsError> {
        let connection: ConnectionId = connection.parse().map_err(|_| AssetsError::UnknownConnection)?;
        let assets = self.clone();
        let ending = self.0.connections.spawn(async move {
            let unknown = AssetsError::UnknownConnection;
            let Some(server) = assets.0.connections.server_of(connection) else { return Err(unknown) };
            let _turn = assets.0.connections.turn(&server).await;
            if assets.0.connections.server_of(connection).is_none() {
                return Err(unknown);
            }
            assets.0.clients.forget(&server);
            match assets.server(&server).ok().filter(|spec| assets.0.connections.is_to(spec)) {
                Some(spec) => assets.0.oauth.revoke(&spec).await,
                None => assets.0.oauth.give_back(&server).await,
            }
            assets.0.connections.remove(&server).await?;
            // A call that came in between has no right to its client any more.
            assets.0.clients.forget(&server);
            tracing::info!(server, "A tool server was disconnected.");
            Ok(())
        });
        ending.await.unwrap_or(Err(AssetsError::Stopping))
    }

    /// What the product is to serve as the client's metadata.
    pub(crate) fn client_metadata(&self) -> Result<Value, AssetsError> {
        self.0.oauth.client_metadata()
    }

    /// Gives up these calls, where they wait for a person: their turn is over.
    pub(crate) fn give_up(&self, calls: impl Iterator<Item = CallId>) {
        calls.for_each(|call| self.0.clients.give_up(call));
    }

    /// Ends all clients, programs too, and waits for what is just being stored.
    pub(crate) async fn close(&self) {
        self.0.clients.close();
        self.0.connections.settled(SETTLING).await;
    }

    /// Asks the server for its tools, and takes down what it said, with `credentials` where they are new.
    async fn establish(
        &self,
        spec: &Arc<ServerSpec>,
        access: Access,
        credentials: Option<Credentials>,
    ) -> Result<(), AssetsError> {
        if credentials.is_some() {
            self.0.clients.forget(&spec.name);
        }
        let listing = tokio::time::timeout(CONNECTING, self.0.clients.list_tools(spec, access.clone()));
        let late = |_| {
            Err(ClientError::Failed(format!("it did not answer within {} seconds", CONNECTING.as_secs())))
        };
        let tools = match listing.await.unwrap_or_else(late) {
            Ok(tools) => tools,
            Err(error) => return Err(self.not_established(spec, &access, &error).await),
        };
        tracing::info!(server = spec.name, tools = tools.len(), "A tool server is connected.");
        self.0.connections.establish(spec, tools, credentials).await?;
        self.0.clients.on_record(&spec.name);
        Ok(())
    }

    /// What a connection that there is already says of that.
    async fn not_established(&self, spec: &ServerSpec, access: &Access, error: &ClientError) -> AssetsError {
        let is_let_in =
            !matches!(error, ClientError::NotLetIn(_) | ClientError::Access(AccessError::Expired(_)));
        let status = if is_let_in { ConnectionStatus::Error } else { access.status_if_refused() };
        self.0.clients.forget(&spec.name);
        self.0.connections.failed(&spec.name, status, &error.to_string()).await;
        let told = format!("the server `{}` cannot be connected: {error}", spec.name);
        if is_let_in { AssetsError::Failed(told) } else { AssetsError::NotLetIn(told) }
    }

    fn connected(&self, spec: &ServerSpec) -> Result<ConnectOutcome, AssetsError> {
        let connection = self.0.connections.id(&spec.name).ok_or(AssetsError::UnknownConnection)?;
        Ok(ConnectOutcome::Connected { connection })
    }

    /// What requests to a server carry, as far as the brain knows.
    fn access(&self, spec: &Arc<ServerSpec>) -> Result<Access, AssetsError> {
        match (&spec.auth, self.0.connections.credentials(spec)?) {
            (Auth::ApiKey(_), Some(Held::Key(key))) => Ok(Access::Key(key)),
            (Auth::OAuth { .. }, Some(Held::Tokens(_))) => Ok(Access::Tokens(self.0.oauth.bearer(spec))),
            (Auth::None, _) => Ok(Access::Nothing),
            (Auth::ApiKey(_) | Auth::OAuth { .. }, _) => Err(AssetsError::Failed(format!(
                "nothing is kept that shows the server `{}` who the user is: the user must connect it again",
                spec.name
            ))),
        }
    }

    /// The address, if a browser may be sent to it.
    fn redirect_target(&self, spec: &ServerSpec, address: &str) -> Result<Url, AssetsError> {
        if !matches!(spec.auth, Auth::OAuth { .. }) {
            let message = "`redirect_to`: this server needs no authorization, so nobody is sent anywhere";
            return Err(AssetsError::Invalid(message.into()));
        }
        let Some(base) = &self.0.redirect_base else { return Err(oauth::NO_REDIRECT_BASE) };
        let plain = |url: &Url| url.username().is_empty() && url.password().is_none();
        Url::parse(address).ok().filter(|url| url.origin() == base.origin() && plain(url)).ok_or_else(|| {
            let origin = base.origin().ascii_serialization();
            AssetsError::Invalid(format!("`redirect_to`: must be an address that begins with {origin}"))
        })
    }

    fn directory(&self) -> Vec<Arc<ServerSpec>> {
        self.0.directory.all()
    }

    fn server(&self, name: &str) -> Result<Arc<ServerSpec>, AssetsError> {
        self.0.directory.find(name).ok_or_else(|| AssetsError::UnknownServer(name.to_owned()))
    }
}

/// What a tool of a server calls it through.
#[derive(Clone)]
struct Caller {
    assets: Assets,
    spec: Arc<ServerSpec>,
}

impl Caller {
    fn clients(&self) -> &Clients {
        &self.assets.0.clients
    }

    /// What the call is to carry. A turn may still have the tools of a server that was disconnected meanwhile.
    fn access(&self) -> Result<Access, AssetsError> {
        if !self.assets.0.connections.is_connected_to(&self.spec) {
            let reason = format!("the server `{}` is not connected any more", self.spec.name);
            return Err(AssetsError::Failed(reason));
        }
        self.assets.access(&self.spec)
    }
}

#[cfg(test)]
mod callback_tests;
