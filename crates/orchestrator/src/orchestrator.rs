//! The orchestrator as a whole: opened on its registry, served, closed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::AdminKey;
use http_service::clock::Clock;
use http_service::lock::LockHolder;
use http_service::serve::{ServeLimits, serve};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::backend::docker::{self, DockerBackend, NetworkFault};
use crate::backend::process::{self, ProcessBackend};
use crate::backend::{DataRoot, EngineBackend, HttpProbe, Probe};
use crate::config::{BackendKind, Config, DatabaseUrl};
use crate::fleet::{Fleet, FleetDeps, Settings};
use crate::host::Host;
use crate::http;
use crate::keys::{KeyError, Purpose, Vault};
use crate::registry::{DEPLOYMENT_ID, HOST, KEY_CHECK, OpenRegistryError, Registry, RegistryError};

/// The plaintext of the key check value. It is no secret: it shows only whether the master key is the one that
/// sealed it.
pub(crate) const KEY_CHECK_TEXT: &str = "roundhouse";

/// How often a standby checks whether the registry is free.
const STANDBY_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long requests, and the operations they started, may take to finish at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// How much longer than [`DRAIN_TIMEOUT`] the background tasks and the registry's connections may take to end.
/// Whatever hangs then, as a database server may, is abandoned: claims are settled at the next start, and the
/// locks end with the process.
const CLOSE_GRACE: Duration = Duration::from_millis(500);

const SERVE_LIMITS: ServeLimits = ServeLimits {
    max_connections: 16_384,
    header_read_timeout: Duration::from_secs(30),
    drain_timeout: DRAIN_TIMEOUT,
};

/// An orchestrator that holds its registry's lock.
pub struct Orchestrator {
    fleet: Arc<Fleet>,
    admin_key: AdminKey,
}

/// The tasks that an orchestrator runs in addition to serving requests.
struct BackgroundTasks {
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

impl BackgroundTasks {
    /// Stops the tasks. One that still waits for a backend or a database at `deadline` is abandoned.
    async fn stop(self, deadline: Instant) {
        self.shutdown.cancel();
        self.tasks.close();
        if tokio::time::timeout_at(deadline, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                tasks = self.tasks.len(),
                "Not all background tasks have ended; they are abandoned."
            );
        }
    }
}

/// Why an orchestrator cannot start. The text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another orchestrator holds the registry.
    #[error(
        "the registry {database} is in use: {holder} holds it. One orchestrator runs per database: stop that one, or \
         give this one a database of its own"
    )]
    InUse {
        /// The registry.
        database: DatabaseUrl,
        /// The holder of the lock.
        holder: LockHolder,
    },
    /// A later version of the program wrote the registry.
    #[error(
        "the registry {database} was written by a later version of roundhouse (its schema has version {found}, this \
         binary knows up to {known}): run that version, or restore a backup from before the upgrade"
    )]
    SchemaTooNew {
        /// The registry.
        database: DatabaseUrl,
        /// The version of its schema.
        found: i64,
        /// The latest schema version that this binary supports.
        known: i64,
    },
    /// The registry's file is not a SQLite database.
    #[error(
        "the registry {database} is not a SQLite database, or a damaged one: check the path, or restore a backup"
    )]
    Corrupt {
        /// The registry.
        database: DatabaseUrl,
        /// The error that SQLite returned.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The database contains something other than a registry.
    #[error(
        "{database} holds a table `{table}` that is not roundhouse's: give the registry a file or a database of \
         its own"
    )]
    ForeignTables {
        /// The database that was to hold the registry.
        database: DatabaseUrl,
        /// One of the foreign tables.
        table: String,
    },
    /// The registry's database server denies access.
    #[error(
        "the server of the registry {database} refuses: {reason}. Check ORCH_DATABASE_URL: the database must be \
         there, and its user must be let in and may create tables"
    )]
    Refused {
        /// The registry.
        database: DatabaseUrl,
        /// The server's message.
        reason: String,
    },
    /// The registry's database server is unreachable.
    #[error("the registry {database} cannot be reached: check ORCH_DATABASE_URL, the server and the network")]
    Unreachable {
        /// The registry.
        database: DatabaseUrl,
        /// The error of the connection attempt.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another orchestrator has taken over the registry.
    #[error("another orchestrator has taken over the registry {database}; this one ends")]
    LostLeadership {
        /// The registry.
        database: DatabaseUrl,
    },
    /// The engines run on another host.
    #[error(
        "{engines} engine(s) of the registry {database} run on the host {host}, and this is another one: what runs there \
         cannot be seen from here, and would be launched a second time. If that host is off for good, and \
         ORCH_DATA_ROOT_PATH holds the same data here, set ORCH_TAKE_OVER_FROM={host}"
    )]
    EnginesOnOtherHost {
        /// The registry.
        database: DatabaseUrl,
        /// The other host's name.
        host: String,
        /// The number of engines that run there or have an unfinished operation.
        engines: u64,
    },
    /// The registry cannot be used.
    #[error("the registry {database} cannot be opened: check its place, its permissions and the disk")]
    Registry {
        /// The registry.
        database: DatabaseUrl,
        /// The underlying error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The master key is not the one that sealed the registry's keys.
    #[error(
        "ORCH_MASTER_KEY is not the key under which {database} was sealed. Set the one it was sealed under, or seal it \
         under this one: run `roundhouse rekey` with this key in ORCH_MASTER_KEY and the other in \
         ORCH_MASTER_KEY_OLD"
    )]
    WrongMasterKey {
        /// The registry.
        database: DatabaseUrl,
    },
    /// The network for the engines is not set up as required.
    #[error(transparent)]
    Network(NetworkError),
    /// The operating system returned no random bytes.
    #[error("no key could be made")]
    KeyGeneration(#[source] KeyError),
}

/// Why the engines' network cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct NetworkError(NetworkFault);

impl OpenError {
    pub(crate) fn from_registry_error(database: DatabaseUrl, error: OpenRegistryError) -> Self {
        match error {
            OpenRegistryError::Held(holder) => Self::InUse { database, holder },
            OpenRegistryError::SchemaTooNew { found, known } => Self::SchemaTooNew { database, found, known },
            OpenRegistryError::Corrupt(error) => Self::Corrupt { database, source: Box::new(error) },
            OpenRegistryError::ForeignTables { table } => Self::ForeignTables { database, table },
            OpenRegistryError::Refused { reason } => Self::Refused { database, reason },
            OpenRegistryError::Unreachable(error) => Self::Unreachable { database, source: Box::new(error) },
            OpenRegistryError::Database(error) => Self::Registry { database, source: Box::new(error) },
            OpenRegistryError::HotReadPool(error) => Self::Registry { database, source: Box::new(error) },
            OpenRegistryError::Folder(error) => Self::Registry { database, source: Box::new(error) },
        }
    }
}

impl Orchestrator {
    /// Opens and locks the registry, and checks the master key. Nothing runs yet.
    pub async fn open(config: Config, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let vault = Vault::new(&config.master_key).map_err(OpenError::KeyGeneration)?;
        let (registry, deployment_id) = open_registry(&config, &vault, clock.as_ref()).await?;
        let known = registry.known_data().await.map_err(|error| registry_error(&config.database, error))?;
        let name = registry.identity(&config.database).await;
        let name = name.map_err(|error| registry_error(&config.database, error))?;
        let data = DataRoot::new(config.data_root.clone(), deployment_id.clone(), known).with_lock(name);
        let probe: Arc<dyn Probe> = Arc::new(HttpProbe { host: "127.0.0.1" });
        let backend: Arc<dyn EngineBackend> = match &config.backend {
            BackendKind::Process => {
                let options = process::Options {
                    // Stays valid whatever happens to the file: an upgrade in place does not change the engines
                    // of a running orchestrator.
                    program: PathBuf::from("/proc/self/exe"),
                    deployment_id,
                    data_root: config.data_root.clone(),
                    catalog: config.catalog.clone(),
                };
                Arc::new(ProcessBackend::new(options, Arc::clone(&clock)))
            }
            BackendKind::Docker { socket } => {
                let options = docker::Options {
                    socket: socket.clone(),
                    network: config.engine_network.clone(),
                    deployment_id,
                    data_root: config.data_root.clone(),
                    catalog: config.catalog.clone(),
                    user: docker::User::for_engines(),
                };
                let backend = DockerBackend::new(options, Arc::clone(&clock));
                backend.check_network().await.map_err(|fault| OpenError::Network(NetworkError(fault)))?;
                Arc::new(backend)
            }
        };
        Ok(Self::from_parts(config, FleetDeps { registry, vault, backend, data, probe, clock }))
    }

    /// Builds an orchestrator from parts that are already open.
    pub(crate) fn from_parts(config: Config, parts: FleetDeps) -> Self {
        let settings = Settings {
            claim_owner: Uuid::now_v7().simple().to_string(),
            engine_image: config.engine_image,
            engine_env: config.engine_env,
            boot_timeout: config.boot_timeout,
            ports: config.ports,
            url_host: config.url_host,
            rules: config.rules,
        };
        let fleet = Fleet::new(settings, parts);
        Self { fleet, admin_key: config.admin_key }
    }

    /// The fleet, for a caller in the same process.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Opens an orchestrator and serves it on `listener` until `shutdown`. It answers from the first moment on:
    /// with 503 until the registry is open, which includes the time in which another orchestrator holds it. Until
    /// that one ends, this one is its standby; then it takes over.
    pub async fn run(
        config: Config,
        clock: Arc<dyn Clock>,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> Result<(), OpenError> {
        let front = http::StartupGate::new();
        let served = shutdown.child_token();
        let database = config.database.clone();
        let serving = serve(listener, front.clone(), SERVE_LIMITS, served.clone());
        let working = async {
            // Without an orchestrator there is nothing to serve.
            let unserved = served.clone().drop_guard();
            let opened = shutdown.run_until_cancelled(Box::pin(Self::open_or_stand_by(config, clock))).await;
            let Some(orchestrator) = opened.transpose()? else { return Ok(None) };
            unserved.disarm();
            front.open(orchestrator.routes());
            let work = orchestrator.spawn_background_tasks();
            let deposed = tokio::select! {
                () = shutdown.cancelled() => false,
                () = orchestrator.fleet.lost_leadership() => true,
            };
            let deadline = Instant::now() + DRAIN_TIMEOUT + CLOSE_GRACE;
            orchestrator.fleet.end_streams();
            if deposed {
                // Its work is useless now: the registry refuses its writes.
                work.shutdown.cancel();
                served.cancel();
                orchestrator.fleet.abort_operations();
            }
            orchestrator.fleet.drained(DRAIN_TIMEOUT).await;
            Ok(Some((orchestrator, work, deposed, deadline)))
        };
        let ((), advance) = tokio::join!(serving, working);
        let Some((orchestrator, work, deposed, deadline)) = advance? else { return Ok(()) };
        work.stop(deadline).await;
        orchestrator.close_by(deadline).await;
        if deposed { Err(OpenError::LostLeadership { database }) } else { Ok(()) }
    }

    /// Opens the registry as soon as no other orchestrator holds it.
    async fn open_or_stand_by(config: Config, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let mut held_by = None;
        loop {
            match Self::open(config.clone(), Arc::clone(&clock)).await {
                Err(OpenError::InUse { database, holder }) => {
                    if held_by.as_ref() != Some(&holder) {
                        let holder = holder.to_string();
                        tracing::warn!(%database, holder, "The registry is in use; this orchestrator stands by.");
                    }
                    held_by = Some(holder);
                    clock.sleep(STANDBY_POLL_INTERVAL).await;
                }
                // A standby survives every outage that the active orchestrator survives.
                Err(error @ OpenError::Unreachable { .. }) if held_by.is_some() => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(
                        error,
                        "The registry cannot be looked at; this orchestrator still stands by."
                    );
                    clock.sleep(STANDBY_POLL_INTERVAL).await;
                }
                opened => return opened,
            }
        }
    }

    /// Serves on `listener` until `shutdown`: at first with 503, fully once the registry has been reconciled with
    /// the running engines. Then finishes the requests in flight within 30 seconds. Engines keep running.
    pub async fn serve(&self, listener: TcpListener, shutdown: CancellationToken) {
        let address = listener.local_addr().ok();
        tracing::info!(address = address.as_ref().map(SocketAddr::to_string), "The orchestrator listens.");
        let work = self.spawn_background_tasks();
        let drained = async {
            shutdown.cancelled().await;
            let deadline = Instant::now() + DRAIN_TIMEOUT + CLOSE_GRACE;
            self.fleet.end_streams();
            self.fleet.drained(DRAIN_TIMEOUT).await;
            deadline
        };
        let ((), deadline) =
            tokio::join!(serve(listener, self.routes(), SERVE_LIMITS, shutdown.clone()), drained);
        work.stop(deadline).await;
    }

    /// Starts all tasks that an orchestrator runs in addition to serving requests.
    fn spawn_background_tasks(&self) -> BackgroundTasks {
        let keeping = CancellationToken::new();
        let tasks = TaskTracker::new();
        tasks.spawn(Arc::clone(&self.fleet).watch_exits(keeping.clone()));
        tasks.spawn(Arc::clone(&self.fleet).reconcile_periodically(keeping.clone()));
        tasks.spawn(Arc::clone(&self.fleet).supervise(keeping.clone()));
        tasks.spawn(Arc::clone(&self.fleet).save_activity_periodically(keeping.clone()));
        BackgroundTasks { shutdown: keeping, tasks }
    }

    /// Closes the registry. An unfinished operation is left as it is and settled at the next start.
    pub async fn close(self) {
        self.close_by(Instant::now() + DRAIN_TIMEOUT).await;
    }

    async fn close_by(self, deadline: Instant) {
        if tokio::time::timeout_at(deadline, self.fleet.close()).await.is_err() {
            tracing::warn!("The registry could not be closed in time; its connections are abandoned.");
        }
    }

    /// The whole HTTP interface.
    pub(crate) fn routes(&self) -> http::Routes {
        http::routes(Arc::clone(&self.fleet), self.admin_key.clone())
    }
}

/// Opens the registry, and checks that the master key is the one under which its keys are sealed.
async fn open_registry(
    config: &Config,
    vault: &Vault,
    clock: &dyn Clock,
) -> Result<(Registry, String), OpenError> {
    let database = &config.database;
    let registry = Registry::open(database, clock.now())
        .await
        .map_err(|error| OpenError::from_registry_error(database.clone(), error))?;
    let failed = |error| registry_error(database, error);
    let key_check =
        vault.seal(DEPLOYMENT_ID, Purpose::KeyCheck, KEY_CHECK_TEXT).map_err(OpenError::KeyGeneration)?;
    let key_check = registry.get_or_insert_meta(KEY_CHECK, &key_check).await.map_err(failed)?;
    let verifies = vault.open(DEPLOYMENT_ID, Purpose::KeyCheck, &key_check);
    if verifies.ok().as_deref().map(String::as_str) != Some(KEY_CHECK_TEXT) {
        return Err(OpenError::WrongMasterKey { database: database.clone() });
    }
    let new_id = Uuid::now_v7().simple().to_string();
    let deployment_id = registry.get_or_insert_meta(DEPLOYMENT_ID, &new_id).await.map_err(failed)?;
    check_host(config, &registry, Host::current()).await?;
    Ok((registry, deployment_id))
}

/// Checks that no engine runs on a host other than `here`, if it is known, and records `here` for the next
/// orchestrator.
async fn check_host(config: &Config, registry: &Registry, here: Option<Host>) -> Result<(), OpenError> {
    let database = &config.database;
    // A SQLite file and its lock are on the host that uses it: whoever moves the file has stopped its user.
    let Some(here) = here.filter(|_| matches!(database, DatabaseUrl::Postgres(_))) else { return Ok(()) };
    let failed = |error| registry_error(database, error);
    let last = registry.get_or_insert_meta(HOST, &here.to_string()).await.map_err(failed)?;
    let Some(last) = Host::parse(&last).filter(|last| !last.is_same(&here)) else { return Ok(()) };
    let engines = registry.count_running().await.map_err(failed)?;
    if engines > 0 && config.take_over_from.as_ref() != Some(&last.name) {
        return Err(OpenError::EnginesOnOtherHost { database: database.clone(), host: last.name, engines });
    }
    tracing::warn!(from = last.name, to = here.name, engines, "The deployment moves to this host.");
    registry.set_meta(HOST, &here.to_string()).await.map_err(failed)
}

fn registry_error(database: &DatabaseUrl, error: RegistryError) -> OpenError {
    let database = database.clone();
    match error {
        RegistryError::LostLeadership => OpenError::LostLeadership { database },
        error @ RegistryError::Unreachable(_) => OpenError::Unreachable { database, source: Box::new(error) },
        error => OpenError::Registry { database, source: Box::new(error) },
    }
}

#[cfg(test)]
mod tests;
