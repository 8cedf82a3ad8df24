//! The user's connections: stored in the brain and cached in memory for turns.

mod authorizations;
mod cached;
mod user_servers;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::assets::{Connection, ConnectionStatus};
use api::{ConnectionId, Timestamp};
use cached::CachedConnection;
use catalog::McpServerSpec;
use fetch::WebAllowlist;
use http_service::clock::Clock;
use http_service::vault::{KeyError, Vault};
use parking_lot::Mutex;
use store::{Brain, Durability, WriteError, WriteTx};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use super::clients::ClientError;
use super::credentials::{CredentialSecret, Credentials, identity};
use super::definition::tool_name_prefix;
use super::user_servers::UserServers;
use super::{McpError, NO_ENCRYPTION_KEY, ToolDefinition, pins};

/// The connections of an engine.
pub(super) struct Connections {
    brain: Brain,
    vault: Option<Arc<Vault>>,
    clock: Arc<dyn Clock>,
    web_allowlist: WebAllowlist,
    user_servers: UserServers,
    cached: Mutex<Vec<CachedConnection>>,
    generation: AtomicU64,
    /// Held from reading the cached state until its change is stored and cached, which serializes changes.
    write_lock: tokio::sync::Mutex<()>,
    /// Locks by server name, held while a server is connected, authorized or disconnected.
    server_locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Work that continues whether or not a caller waits for it.
    tasks: TaskTracker,
}

/// The lock of a server: see [`Connections::lock_server`].
pub(super) type ServerLock = tokio::sync::OwnedMutexGuard<()>;

impl Connections {
    pub(super) fn open(
        brain: Brain,
        vault: Option<Arc<Vault>>,
        clock: Arc<dyn Clock>,
        web_allowlist: WebAllowlist,
    ) -> Result<Self, store::StoreError> {
        let known = brain.connections()?.into_iter().map(CachedConnection::from_row).collect();
        let user_servers = UserServers::open(&brain, &web_allowlist)?;
        Ok(Self {
            brain,
            vault,
            clock,
            web_allowlist,
            user_servers,
            cached: Mutex::new(known),
            generation: AtomicU64::new(1),
            write_lock: tokio::sync::Mutex::default(),
            server_locks: Mutex::default(),
            tasks: TaskTracker::new(),
        })
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Signals that the set of tools may have changed.
    pub(super) fn bump_generation(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether credentials can be stored.
    pub(super) fn can_seal(&self) -> bool {
        self.vault.is_some()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns the addresses that may be reached although they are not public.
    pub(super) fn web_allowlist(&self) -> &WebAllowlist {
        &self.web_allowlist
    }

    /// Runs a future to completion, even if nobody waits for it any more.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.tasks.spawn(task)
    }

    /// Whether the engine is stopping: nothing should begin whose result could not be stored.
    pub(super) fn is_closing(&self) -> bool {
        self.tasks.is_closed()
    }

    /// Waits until all spawned work has ended, for at most `timeout`.
    pub(super) async fn close(&self, timeout: Duration) {
        self.tasks.close();
        if tokio::time::timeout(timeout, self.tasks.wait()).await.is_err() {
            tracing::warn!("A connection operation was still in progress when the engine stopped.");
        }
    }

    /// Waits until nobody else changes this server's connection, and locks it.
    pub(super) async fn lock_server(&self, server: &str) -> ServerLock {
        self.server_lock(server).lock_owned().await
    }

    fn server_lock(&self, server: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.server_locks.lock();
        // Under this lock nobody gets hold of one that only the map has.
        locks.retain(|name, lock| name == server || Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(server.to_owned()).or_default())
    }

    /// Returns the connections to servers of the catalog, oldest first.
    pub(super) fn list(&self) -> Result<Vec<Connection>, store::StoreError> {
        let known = self.cached.lock().clone();
        known.into_iter().filter(|known| !known.is_of_user()).map(|known| self.to_api(known)).collect()
    }

    /// Returns the connection to this server, if there is one.
    pub(super) fn connection(&self, spec: &McpServerSpec) -> Result<Option<Connection>, store::StoreError> {
        let known = self.find(&spec.name).filter(|known| known.identity == identity(spec));
        known.map(|known| self.to_api(known)).transpose()
    }

    /// Whether there is a connection of this name to a server that the user has added.
    pub(super) fn is_of_user(&self, server: &str) -> bool {
        self.find(server).is_some_and(|known| known.is_of_user())
    }

    fn to_api(&self, known: CachedConnection) -> Result<Connection, store::StoreError> {
        let CachedConnection { id, server, mut status, mut error, tools, created_at, .. } = known;
        if status == ConnectionStatus::Pending {
            // An authorization that is just being completed has already been taken.
            let is_being_finished = self.server_lock(&server).try_lock().is_err();
            if !is_being_finished && !self.has_pending_authorization(&server)? {
                status = ConnectionStatus::Expired;
                error = Some("the authorization was not finished within ten minutes: connect again".into());
            }
        }
        let tools = tools.iter().map(|tool| tool.name.clone()).collect();
        Ok(Connection { connection: id, server, status, tools, created_at, error })
    }

    pub(super) fn id(&self, server: &str) -> Option<ConnectionId> {
        self.find(server).map(|known| known.id)
    }

    pub(super) fn status(&self, server: &str) -> Option<ConnectionStatus> {
        self.find(server).map(|known| known.status)
    }

    /// Returns the server of the catalog to which this connection leads.
    pub(super) fn server_by_id(&self, connection: ConnectionId) -> Option<String> {
        let is_it = |known: &&CachedConnection| known.id == connection && !known.is_of_user();
        self.cached.lock().iter().find(is_it).map(|known| known.server.clone())
    }

    /// Whether the connection to a server, if there is one, is to the server that the catalog currently means.
    pub(super) fn identity_matches_or_absent(&self, spec: &McpServerSpec) -> bool {
        self.find(&spec.name).is_none_or(|known| known.identity == identity(spec))
    }

    /// Whether there is a connection to the server that the catalog currently means.
    pub(super) fn identity_matches(&self, spec: &McpServerSpec) -> bool {
        self.find(&spec.name).is_some_and(|known| known.identity == identity(spec))
    }

    /// Returns the tools of a server, as it last listed them.
    pub(super) fn listed_tools(&self, spec: &McpServerSpec) -> Arc<[Arc<ToolDefinition>]> {
        let known = self.find(&spec.name).filter(|known| known.identity == identity(spec));
        known.map(|known| known.tools).unwrap_or_default()
    }

    /// Returns the tools of a server that the agent may be offered: of a server that the user has added,
    /// those that are as the user approved them.
    pub(super) fn tools(&self, spec: &McpServerSpec) -> Vec<Arc<ToolDefinition>> {
        let listed = self.listed_tools(spec);
        if spec.is_of_user() {
            pins::approved(&self.user_servers.pins(&spec.name), &listed)
        } else {
            listed.to_vec()
        }
    }

    /// Checks that a tool may be called: that of a server that the user has added, if it is as the user
    /// approved it.
    pub(super) fn check_approved(&self, spec: &McpServerSpec, tool: &str) -> Result<(), ClientError> {
        if self.tools(spec).iter().any(|approved| approved.name == tool) {
            return Ok(());
        }
        Err(ClientError::Failed(format!(
            "the tool `{tool}` of the server `{0}` is not as the user approved it: the server has changed or removed \
             it. It can be called once the user has approved it again (`/mcp/servers/{0}`)",
            spec.name
        )))
    }

    /// Returns the servers that the user has added.
    pub(super) fn user_servers(&self) -> &UserServers {
        &self.user_servers
    }

    /// Returns the stored credentials for a server; `None` if they belong to another server than the catalog's
    /// current one.
    pub(super) fn credentials(
        &self,
        spec: &McpServerSpec,
    ) -> Result<Option<CredentialSecret>, store::StoreError> {
        let (Some(vault), Some(sealed)) = (&self.vault, self.brain.credentials(&spec.name)?) else {
            return Ok(None);
        };
        Ok(Credentials::open(vault, spec, &sealed))
    }

    /// Returns the credentials stored under this server name, whichever server the catalog means by it, so that
    /// they can be revoked at their issuer.
    pub(super) fn orphaned_credentials(&self, server: &str) -> Option<CredentialSecret> {
        let sealed = self.brain.credentials(server).ok().flatten()?;
        Credentials::open_any(self.vault.as_ref()?, server, &sealed).map(Credentials::into_secret)
    }

    /// Stores a connection to a server that has answered, with these tools.
    pub(super) async fn establish(
        self: &Arc<Self>,
        spec: &McpServerSpec,
        tools: Vec<ToolDefinition>,
        credentials: Option<Credentials>,
    ) -> Result<(), McpError> {
        let sealed = credentials.map(|credentials| self.seal(&spec.name, &credentials)).transpose()?;
        let (identity, tools) = (identity(spec), tools.into_iter().map(Arc::new).collect());
        let is_of_user = spec.is_of_user();
        let connected = move |before: Option<CachedConnection>, new: CachedConnection| {
            let known = before.filter(|known| known.is_of_user() == is_of_user).unwrap_or(new);
            Some(CachedConnection {
                status: ConnectionStatus::Connected,
                error: None,
                identity,
                tools,
                ..known
            })
        };
        self.update(&spec.name, sealed, connected).await?;
        Ok(())
    }

    /// Records that the user was asked for consent: if there is no connection, a pending one is created.
    pub(super) async fn mark_pending(self: &Arc<Self>, spec: &McpServerSpec) -> Result<(), WriteError> {
        let (identity, is_of_user) = (identity(spec), spec.is_of_user());
        let pending = move |before: Option<CachedConnection>, new: CachedConnection| match before {
            None => Some(CachedConnection { identity, ..new }),
            // Of a server of the user that had this name before the catalog, or the other way round.
            Some(known) if known.is_of_user() != is_of_user => Some(CachedConnection { identity, ..new }),
            // A pending connection waits for the server that the catalog currently means.
            Some(known) if known.status == ConnectionStatus::Pending => {
                Some(CachedConnection { identity, ..known })
            }
            Some(_) => None,
        };
        self.update(&spec.name, None, pending).await
    }

    /// Removes a connection that was only waiting for a consent that was denied. The caller holds the server's
    /// lock.
    pub(super) async fn remove_if_unauthorized(&self, server: &str) -> Result<(), McpError> {
        let is_unauthorized = self.status(server) == Some(ConnectionStatus::Pending)
            && self.brain.credentials(server)?.is_none()
            && !self.has_pending_authorization(server)?;
        if is_unauthorized {
            self.remove(server).await?;
        }
        Ok(())
    }

    /// Stores new credentials for the connection to a server; returns whether it still exists. They are durable on
    /// return, even against power loss, because the credentials that they replace may be invalid already.
    pub(super) async fn store_credentials(
        &self,
        spec: &McpServerSpec,
        secret: CredentialSecret,
    ) -> Result<bool, McpError> {
        let sealed = self.seal(&spec.name, &Credentials::new(spec, secret))?;
        let server = spec.name.clone();
        let write = move |rows: &WriteTx<'_>| rows.set_credentials(&server, &sealed);
        Ok(self.brain.write_with_durability(Durability::PowerLoss, write).await?)
    }

    /// Records in one transaction that the consent for a server has ended, in the credentials and in the
    /// connection.
    pub(super) async fn expire(
        self: &Arc<Self>,
        spec: &McpServerSpec,
        secret: CredentialSecret,
        error: &str,
    ) -> Result<(), McpError> {
        let sealed = self.seal(&spec.name, &Credentials::new(spec, secret))?;
        self.set_status(&spec.name, Some(sealed), ConnectionStatus::Expired, error).await?;
        Ok(())
    }

    /// Records a failure of the connection to a server, if there is one. It does not hide the status "expired",
    /// which may be the failure's cause. If it cannot be stored, it is known in memory until the engine stops.
    pub(super) async fn record_failure(
        self: &Arc<Self>,
        server: &str,
        status: ConnectionStatus,
        error: &str,
    ) {
        if let Err(error) = self.set_status(server, None, status, error).await {
            tracing::warn!(%error, "The status of a connection could not be stored.");
        }
    }

    async fn set_status(
        self: &Arc<Self>,
        server: &str,
        sealed: Option<String>,
        status: ConnectionStatus,
        error: &str,
    ) -> Result<(), WriteError> {
        let error = error.to_owned();
        let with_status = move |before: Option<CachedConnection>, _| {
            let is_already_expired = |known: &CachedConnection| {
                known.status == ConnectionStatus::Expired && status == ConnectionStatus::Error
            };
            let known = before.filter(|known| !is_already_expired(known))?;
            let server = known.server.as_str();
            tracing::warn!(
                server,
                status = status.name(),
                error,
                "A connection to a tool server has failed."
            );
            Some(CachedConnection { status, error: Some(error), ..known })
        };
        self.update(server, sealed, with_status).await
    }

    /// Records that the connection to a server works again, with these tools.
    pub(super) async fn record_recovery(
        self: &Arc<Self>,
        spec: &McpServerSpec,
        tools: Vec<ToolDefinition>,
    ) -> Result<(), WriteError> {
        self.record_tools(spec, tools, true).await
    }

    /// Records that the server has other tools now.
    pub(super) async fn update_tools(
        self: &Arc<Self>,
        spec: &McpServerSpec,
        tools: Vec<ToolDefinition>,
    ) -> Result<(), WriteError> {
        self.record_tools(spec, tools, false).await
    }

    async fn record_tools(
        self: &Arc<Self>,
        spec: &McpServerSpec,
        tools: Vec<ToolDefinition>,
        succeeded: bool,
    ) -> Result<(), WriteError> {
        let (identity, tools): (_, Arc<[_]>) = (identity(spec), tools.into_iter().map(Arc::new).collect());
        let with_tools = move |before: Option<CachedConnection>, _| {
            let known = before.filter(|known| known.identity == identity)?;
            let recovers = succeeded && known.status == ConnectionStatus::Error;
            if !recovers && tools == known.tools {
                return None;
            }
            let (status, error) =
                if recovers { (ConnectionStatus::Connected, None) } else { (known.status, known.error) };
            Some(CachedConnection { status, error, tools, ..known })
        };
        let stored = self.update(&spec.name, None, with_tools).await;
        stored.inspect_err(|error| tracing::warn!(%error, "The tools of a server could not be stored."))
    }

    /// Removes a connection and everything that belongs to it, including the lasting grants of its tools.
    pub(super) async fn remove(&self, server: &str) -> Result<(), WriteError> {
        let _write_lock = self.write_lock.lock().await;
        let (name, tools) = (server.to_owned(), tool_name_prefix(server));
        self.brain
            .write(move |rows| {
                rows.delete_connection(&name)?;
                rows.delete_grants_by_tool_prefix(&tools)
            })
            .await?;
        self.cached.lock().retain(|known| known.server != server);
        self.bump_generation();
        Ok(())
    }

    /// Replaces the connection to a server by the result of `to`, which gets the existing connection and a new
    /// pending one, and stores credentials with it if there are some; changes nothing if `to` returns `None`. It
    /// runs to completion even if the caller goes away, so that memory and brain agree.
    async fn update(
        self: &Arc<Self>,
        server: &str,
        sealed: Option<String>,
        transition: impl FnOnce(Option<CachedConnection>, CachedConnection) -> Option<CachedConnection>
        + Send
        + 'static,
    ) -> Result<(), WriteError> {
        let (connections, server) = (Arc::clone(self), server.to_owned());
        let change = self.spawn(async move {
            let _write_lock = connections.write_lock.lock().await;
            let before = connections.find(&server);
            let Some(known) = transition(before, connections.new_pending(&server)) else { return Ok(()) };
            let row = known.to_row();
            let stored = connections.brain.write(move |rows| {
                rows.upsert_connection(&row)?;
                sealed.as_deref().map_or(Ok(true), |sealed| rows.set_credentials(&row.server, sealed))
            });
            stored.await?;
            connections.publish(known);
            Ok(())
        });
        let stopped = |_| Err(WriteError { reason: "the engine is stopping".into() });
        change.await.unwrap_or_else(stopped)
    }

    /// Makes turns see a connection's new state.
    fn publish(&self, known: CachedConnection) {
        let mut all = self.cached.lock();
        match all.iter_mut().find(|other| other.server == known.server) {
            Some(existing) => *existing = known,
            None => all.push(known),
        }
        drop(all);
        self.bump_generation();
    }

    /// Returns a new connection that waits for consent.
    fn new_pending(&self, server: &str) -> CachedConnection {
        CachedConnection {
            id: ConnectionId::new(),
            server: server.to_owned(),
            status: ConnectionStatus::Pending,
            error: None,
            identity: String::new(),
            tools: Arc::default(),
            created_at: self.now(),
        }
    }

    fn vault(&self) -> Result<&Arc<Vault>, McpError> {
        self.vault.as_ref().ok_or(NO_ENCRYPTION_KEY)
    }

    fn seal(&self, server: &str, credentials: &Credentials) -> Result<String, McpError> {
        credentials.seal(self.vault()?, server).map_err(seal_error)
    }

    fn find(&self, server: &str) -> Option<CachedConnection> {
        self.cached.lock().iter().find(|known| known.server == server).cloned()
    }
}

fn seal_error(error: KeyError) -> McpError {
    McpError::Failed(error.to_string())
}

#[cfg(test)]
#[path = "../tests/unit/connections.rs"]
mod tests;
