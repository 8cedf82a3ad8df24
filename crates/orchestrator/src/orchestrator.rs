//! One orchestrator: opened on its registry, served, closed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use contract::AdminKey;
use service::clock::Clock;
use service::lock::LockHolder;
use service::serve::{ServeLimits, serve};
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

/// What the canary says. Known to all: it shows only whether the master key is the one that sealed it.
pub(crate) const KEY_CHECK_TEXT: &str = "roundhouse";

/// How often a standby looks whether the registry is free.
const STANDBY_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long requests, and the changes that they began, may take to finish at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// How much longer than [`DRAIN_TIMEOUT`] the background tasks and the registry's connections may take to end. What hangs
/// then, as the server of a database may, is abandoned: claims are settled at the next start, and the locks go with
/// the process.
const CLOSE_GRACE: Duration = Duration::from_millis(500);

const SERVE_LIMITS: ServeLimits = ServeLimits {
    max_connections: 16_384,
    header_read_timeout: Duration::from_secs(30),
    drain_timeout: DRAIN_TIMEOUT,
};

/// An orchestrator that holds its registry.
pub struct Orchestrator {
    fleet: Arc<Fleet>,
    admin_key: AdminKey,
}

/// What an orchestrator does beside answering.
struct BackgroundTasks {
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

impl BackgroundTasks {
    /// Ends the tasks. One that still waits for a backend or a database at `deadline` is left behind.
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

/// Why an orchestrator cannot begin. Its text is for the person who began it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another orchestrator has the registry.
    #[error(
        "the registry {database} is in use: {holder} holds it. One orchestrator runs per database: stop that one, or \
         give this one a database of its own"
    )]
    InUse {
        /// The registry.
        database: DatabaseUrl,
        /// Who has it.
        holder: LockHolder,
    },
    /// A later version wrote the registry.
    #[error(
        "the registry {database} was written by a later version of roundhouse (its schema has version {found}, this \
         binary knows up to {known}): run that version, or restore a backup from before the upgrade"
    )]
    SchemaTooNew {
        /// The registry.
        database: DatabaseUrl,
        /// Its schema's version.
        found: i64,
        /// The last version that this binary knows.
        known: i64,
    },
    /// The registry is no database.
    #[error(
        "the registry {database} is not a SQLite database, or a damaged one: check the path, or restore a backup"
    )]
    Corrupt {
        /// The registry.
        database: DatabaseUrl,
        /// What SQLite said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What is there is no registry.
    #[error(
        "{database} holds a table `{table}` that is not roundhouse's: give the registry a file or a database of \
         its own"
    )]
    ForeignTables {
        /// Where the registry should be.
        database: DatabaseUrl,
        /// One of the tables.
        table: String,
    },
    /// The server of the registry's database does not let it be used.
    #[error(
        "the server of the registry {database} refuses: {reason}. Check ORCH_DATABASE_URL: the database must be \
         there, and its user must be let in and may create tables"
    )]
    Refused {
        /// The registry.
        database: DatabaseUrl,
        /// What the server said.
        reason: String,
    },
    /// The server of the registry's database is out of reach.
    #[error("the registry {database} cannot be reached: check ORCH_DATABASE_URL, the server and the network")]
    Unreachable {
        /// The registry.
        database: DatabaseUrl,
        /// What was tried.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another orchestrator has the registry now.
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
        /// How many run there, or were being changed.
        engines: u64,
    },
    /// The registry cannot be used.
    #[error("the registry {database} cannot be opened: check its place, its permissions and the disk")]
    Registry {
        /// The registry.
        database: DatabaseUrl,
        /// What failed.
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
    /// The network that the engines are to join is not as it must be.
    #[error(transparent)]
    Network(NetworkError),
    /// The operating system gave no randomness.
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
    /// Takes hold of the registry and the master key. Nothing runs yet.
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
                    // Whatever becomes of the file: an upgrade in place changes no running orchestrator's
                    // engines.
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

    /// An orchestrator over parts that are open already.
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

    /// The rules, for a caller in the same process.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Opens an orchestrator and serves it on `listener` until `shutdown`. Answers from the first moment on: 503
    /// until the registry is open, also for as long as another orchestrator holds it: then this one is its
    /// standby, and takes over when that one ends.
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
                // What it does now comes to nothing: the registry takes no word of it.
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

    /// Opens, as soon as no other orchestrator holds the registry.
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
                // A standby outlives what the one that it waits for outlives.
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

    /// Serves on `listener` until `shutdown`: at once with 503, fully as soon as the registry has been compared
    /// with what runs. Then finishes what is in flight, in 30 seconds at most. Engines keep running.
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

    /// Begins all that an orchestrator does beside answering.
    fn spawn_background_tasks(&self) -> BackgroundTasks {
        let keeping = CancellationToken::new();
        let tasks = TaskTracker::new();
        tasks.spawn(Arc::clone(&self.fleet).watch_exits(keeping.clone()));
        tasks.spawn(Arc::clone(&self.fleet).reconcile_periodically(keeping.clone()));
        tasks.spawn(Arc::clone(&self.fleet).supervise(keeping.clone()));
        tasks.spawn(Arc::clone(&self.fleet).save_activity_periodically(keeping.clone()));
        BackgroundTasks { shutdown: keeping, tasks }
    }

    /// Closes the registry. A change still under way is left, and settled at the next start.
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

/// Opens the registry, and makes sure that the master key is the one that its keys are sealed under.
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

/// Makes sure that no engine runs on another host than `here`, where this is known, and that the next orchestrator
/// knows this one's.
async fn check_host(config: &Config, registry: &Registry, here: Option<Host>) -> Result<(), OpenError> {
    let database = &config.database;
    // A SQLite file is on the host that uses it, and its lock with it: who moves it has ended what used it.
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
