//! The lifecycle of an orchestrator: opening its registry, serving, closing.
//!
//! [`Orchestrator::run`] also implements the standby, which waits until no other orchestrator holds the registry.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::AdminKey;
use backend::docker::{self, DockerBackend, NetworkFault};
use backend::kubernetes::{self, KubernetesBackend};
use backend::process::{self, ProcessBackend};
use backend::{DataRoot, EngineBackend, HttpProbe, Probe};
use http_service::clock::Clock;
use http_service::lock::LockHolder;
use http_service::serve::{ServeLimits, serve};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::config::{BackendKind, Config, DatabaseUrl};
use crate::fleet::{BackupSetup, Fleet, FleetDeps, Settings, WarmPoolSettings};
use crate::host::Host;
use crate::http;
use crate::keys::{KeyError, Purpose, Vault};
use crate::metrics::Metrics;
use crate::registry::{DEPLOYMENT_ID, HOST, KEY_CHECK, OpenRegistryError, Registry, RegistryError};

/// The plaintext of the key check value. It is no secret: it shows only whether the master key is the one that
/// sealed it.
pub(crate) const KEY_CHECK_TEXT: &str = "roundhouse";

/// How long a standby pauses between two attempts to open the registry, each of which waits for a while.
const STANDBY_PAUSE: Duration = Duration::from_millis(100);

/// How long requests, and the operations they started, may take to finish at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// How much longer than [`DRAIN_TIMEOUT`] the background tasks and the registry's connections may take to end.
/// Anything that still hangs, for example on a database server, is abandoned: claims are settled at the next
/// start, and the locks end with the process.
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
                "Background tasks did not end in time; they are abandoned."
            );
        }
    }
}

/// Why an orchestrator cannot start. The text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another orchestrator holds the registry.
    #[error(
        "the registry {database} is in use: {holder} holds it. Only one orchestrator can run per database: stop \
         that one, or give this one its own database"
    )]
    InUse {
        /// The registry.
        database: DatabaseUrl,
        /// The holder of the lock.
        holder: LockHolder,
    },
    /// A later version of the program wrote the registry.
    #[error(
        "the registry {database} was written by a later version of roundhouse (its schema version is {found}, \
         this binary supports up to {known}): run that version, or restore a backup from before the upgrade"
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
        "the registry {database} is not a SQLite database, or it is damaged: check the path, or restore a backup"
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
        "{database} contains a table `{table}` that does not belong to roundhouse: give the registry its own file \
         or database"
    )]
    ForeignTables {
        /// The database that was to hold the registry.
        database: DatabaseUrl,
        /// One of the foreign tables.
        table: String,
    },
    /// The registry's database server denies access.
    #[error(
        "the server of the registry {database} denies access: {reason}. Check ORCH_DATABASE_URL: the database \
         must exist, and the user must be allowed to connect and to create tables"
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
    #[error("another orchestrator has taken over the registry {database}; this one exits")]
    LostLeadership {
        /// The registry.
        database: DatabaseUrl,
    },
    /// The engines run on another host.
    #[error(
        "{engines} engine(s) of the registry {database} run on the host {host}, which is not this host: this \
         orchestrator cannot see them and would launch them a second time. If that host is permanently off, and \
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
    #[error("the registry {database} cannot be opened: check its path, its permissions and the disk")]
    Registry {
        /// The registry.
        database: DatabaseUrl,
        /// The underlying error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The master key is not the one that sealed the registry's keys.
    #[error(
        "ORCH_MASTER_KEY is not the key that encrypted the secrets of {database}. Set the right key, or encrypt \
         the secrets under this one: run `roundhouse rekey` with this key in ORCH_MASTER_KEY and the other in \
         ORCH_MASTER_KEY_OLD"
    )]
    WrongMasterKey {
        /// The registry.
        database: DatabaseUrl,
    },
    /// The address for metrics cannot be used.
    #[error(transparent)]
    MetricsAddress(http::MetricsAddressError),
    /// The network for the engines is not set up as required.
    #[error(transparent)]
    Network(NetworkError),
    /// The operating system returned no random bytes.
    #[error("no key could be generated")]
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
        Self::open_with_metrics(config, clock, Metrics::default()).await
    }

    async fn open_with_metrics(
        config: Config,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
    ) -> Result<Self, OpenError> {
        let vault = Vault::new(&config.master_key).map_err(OpenError::KeyGeneration)?;
        let (registry, deployment_id) = open_registry(&config, &vault, clock.as_ref()).await?;
        let known = registry.known_data().await.map_err(|error| registry_error(&config.database, error))?;
        let identity = registry.identity(&config.database).await;
        let identity = identity.map_err(|error| registry_error(&config.database, error))?;
        let data = match &config.backend {
            BackendKind::Kubernetes(_) => DataRoot::elsewhere(),
            BackendKind::Process | BackendKind::Docker { .. } => {
                DataRoot::new(config.data_root.clone(), deployment_id.clone(), known).with_lock(identity)
            }
        };
        let probe: Arc<dyn Probe> = Arc::new(HttpProbe);
        let backend: Arc<dyn EngineBackend> = match &config.backend {
            BackendKind::Process => {
                let options = process::Options {
                    // Stays valid whatever happens to the file: an upgrade in place does not change the engines
                    // of a running orchestrator.
                    program: PathBuf::from("/proc/self/exe"),
                    deployment_id,
                    data_root: config.data_root.clone(),
                    catalog: config.catalog.clone(),
                    url_host: config.url_host.clone(),
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
                    url_host: config.url_host.clone(),
                    user: docker::User::for_engines(),
                };
                let backend = DockerBackend::new(options, Arc::clone(&clock));
                backend.check_network().await.map_err(|fault| OpenError::Network(NetworkError(fault)))?;
                Arc::new(backend)
            }
            BackendKind::Kubernetes(settings) => {
                let options = kubernetes::Options {
                    deployment_id,
                    copy_image: config.engine_image.clone(),
                    settings: (**settings).clone(),
                };
                Arc::new(KubernetesBackend::new(options, Arc::clone(&clock)))
            }
        };
        let deps = FleetDeps { registry, vault: Arc::new(vault), backend, data, probe, clock, metrics };
        Ok(Self::from_parts(config, deps))
    }

    /// Builds an orchestrator from parts that are already open.
    pub(crate) fn from_parts(config: Config, parts: FleetDeps) -> Self {
        let warm_pool = WarmPoolSettings {
            size: config.warm_pool,
            catalog: config.catalog.clone(),
            environment: config.environment_digest(),
        };
        let settings = Settings {
            claim_owner: Uuid::now_v7().simple().to_string(),
            engine_image: config.engine_image,
            engine_env: config.engine_env,
            boot_timeout: config.boot_timeout,
            ports: config.ports,
            rules: config.rules,
            webhooks: config.webhooks,
            warm_pool,
            backups: config.backups.map(|settings| BackupSetup {
                settings,
                master_key: config.master_key,
                database: config.database,
            }),
        };
        let fleet = Fleet::new(settings, parts);
        Self { fleet, admin_key: config.admin_key }
    }

    /// The fleet, for a caller in the same process.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Opens an orchestrator and serves it on `listener` until `shutdown`. Requests are answered immediately: with
    /// 503 until the registry is open. While another orchestrator holds the registry, this one is its standby; it
    /// takes over as soon as the other one ends.
    pub async fn run(
        config: Config,
        clock: Arc<dyn Clock>,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> Result<(), OpenError> {
        let opened = http::Scrapes::open(config.metrics_address, clock.now()).await;
        let (scrapes, metrics) = opened.map_err(OpenError::MetricsAddress)?;
        let gate = http::StartupGate::new();
        let serve_shutdown = shutdown.child_token();
        let database = config.database.clone();
        let server = serve(listener, gate.clone(), SERVE_LIMITS, serve_shutdown.clone());
        let lifecycle = async {
            // Without an orchestrator there is nothing to serve.
            let stop_serving = serve_shutdown.clone().drop_guard();
            let on_standby = || {
                gate.stand_by();
                scrapes.stand_by();
            };
            let opening = Box::pin(Self::open_or_stand_by(config, clock, metrics, on_standby));
            let opened = shutdown.run_until_cancelled(opening).await;
            let Some(orchestrator) = opened.transpose()? else { return Ok(None) };
            stop_serving.disarm();
            gate.open(orchestrator.routes());
            scrapes.activate(&orchestrator.fleet);
            let background = orchestrator.spawn_background_tasks();
            let lost_leadership = tokio::select! {
                () = shutdown.cancelled() => false,
                () = orchestrator.fleet.lost_leadership() => true,
            };
            let deadline = Instant::now() + DRAIN_TIMEOUT + CLOSE_GRACE;
            orchestrator.fleet.end_streams();
            if lost_leadership {
                // Further work is useless: the registry refuses its writes.
                background.shutdown.cancel();
                serve_shutdown.cancel();
                orchestrator.fleet.abort_operations();
            }
            orchestrator.fleet.drained(DRAIN_TIMEOUT).await;
            Ok(Some((orchestrator, background, lost_leadership, deadline)))
        };
        let ((), opened) = tokio::join!(server, lifecycle);
        let Some((orchestrator, background, lost_leadership, deadline)) = opened? else { return Ok(()) };
        background.stop(deadline).await;
        orchestrator.close_by(deadline).await;
        if lost_leadership { Err(OpenError::LostLeadership { database }) } else { Ok(()) }
    }

    /// Opens the registry as soon as no other orchestrator holds it. Calls `on_standby` whenever one does.
    async fn open_or_stand_by(
        config: Config,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        on_standby: impl Fn(),
    ) -> Result<Self, OpenError> {
        let mut last_holder = None;
        loop {
            let opened = Self::open_with_metrics(config.clone(), Arc::clone(&clock), metrics.clone()).await;
            match opened {
                Err(OpenError::InUse { database, holder }) => {
                    if last_holder.as_ref() != Some(&holder) {
                        let holder = holder.to_string();
                        tracing::warn!(
                            %database,
                            holder,
                            "The registry is in use; this orchestrator waits as a standby."
                        );
                    }
                    last_holder = Some(holder);
                    on_standby();
                    clock.sleep(STANDBY_PAUSE).await;
                }
                // A standby survives every outage that the active orchestrator survives.
                Err(error @ OpenError::Unreachable { .. }) if last_holder.is_some() => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(
                        error,
                        "The registry is unreachable; this orchestrator remains a standby."
                    );
                    clock.sleep(STANDBY_PAUSE).await;
                }
                opened => return opened,
            }
        }
    }

    /// Serves on `listener` until `shutdown`. Answers 503 until the registry has been reconciled with the running
    /// engines. After `shutdown`, requests in flight may finish for 30 seconds. Engines keep running.
    pub async fn serve(&self, listener: TcpListener, shutdown: CancellationToken) {
        let address = listener.local_addr().ok();
        tracing::info!(address = address.as_ref().map(SocketAddr::to_string), "The orchestrator listens.");
        let background = self.spawn_background_tasks();
        let drained = async {
            shutdown.cancelled().await;
            let deadline = Instant::now() + DRAIN_TIMEOUT + CLOSE_GRACE;
            self.fleet.end_streams();
            self.fleet.drained(DRAIN_TIMEOUT).await;
            deadline
        };
        let ((), deadline) =
            tokio::join!(serve(listener, self.routes(), SERVE_LIMITS, shutdown.clone()), drained);
        background.stop(deadline).await;
    }

    /// Starts all tasks that an orchestrator runs in addition to serving requests.
    fn spawn_background_tasks(&self) -> BackgroundTasks {
        let shutdown = CancellationToken::new();
        let tasks = TaskTracker::new();
        self.fleet.spawn_tasks(&tasks, &shutdown);
        BackgroundTasks { shutdown, tasks }
    }

    /// Closes the registry. Unfinished operations are settled at the next start.
    pub async fn close(self) {
        self.close_by(Instant::now() + DRAIN_TIMEOUT).await;
    }

    async fn close_by(self, deadline: Instant) {
        if tokio::time::timeout_at(deadline, self.fleet.close()).await.is_err() {
            tracing::warn!("The registry could not be closed in time; its connections are abandoned.");
        }
    }

    /// The complete HTTP interface.
    pub(crate) fn routes(&self) -> http::Routes {
        http::routes(Arc::clone(&self.fleet), self.admin_key.clone())
    }
}

/// Opens the registry, and checks that the master key is the one that encrypted its secrets.
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
    let opened = vault.open(DEPLOYMENT_ID, Purpose::KeyCheck, &key_check);
    if opened.ok().as_deref().map(String::as_str) != Some(KEY_CHECK_TEXT) {
        return Err(OpenError::WrongMasterKey { database: database.clone() });
    }
    let new_id = Uuid::now_v7().simple().to_string();
    let deployment_id = registry.get_or_insert_meta(DEPLOYMENT_ID, &new_id).await.map_err(failed)?;
    check_host(config, &registry, Host::current()).await?;
    Ok((registry, deployment_id))
}

/// Checks that no engine runs on a host other than `here`, and records `here` for the next orchestrator. `None`
/// skips the check.
async fn check_host(config: &Config, registry: &Registry, here: Option<Host>) -> Result<(), OpenError> {
    let database = &config.database;
    // A SQLite file and its lock are local to the host: moving the file requires stopping its orchestrator.
    let Some(here) = here.filter(|_| matches!(database, DatabaseUrl::Postgres(_))) else { return Ok(()) };
    let failed = |error| registry_error(database, error);
    let previous = registry.get_or_insert_meta(HOST, &here.to_string()).await.map_err(failed)?;
    let Some(previous) = Host::parse(&previous).filter(|previous| !previous.is_same(&here)) else {
        return Ok(());
    };
    let (engines, _) = registry.count_awake_and_asleep().await.map_err(failed)?;
    if engines > 0 && config.take_over_from.as_ref() != Some(&previous.name) {
        return Err(OpenError::EnginesOnOtherHost {
            database: database.clone(),
            host: previous.name,
            engines,
        });
    }
    tracing::warn!(from = previous.name, to = here.name, engines, "The deployment moves to this host.");
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
#[path = "../tests/unit/orchestrator.rs"]
mod tests;
