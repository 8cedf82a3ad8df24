//! One orchestrator: opened on its registry, served, closed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use contract::AdminKey;
use service::clock::Clock;
use service::lock::Holder;
use service::serve::{Bounds, serve};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::backend::docker::{self, DockerBackend, NetworkFault};
use crate::backend::process::{self, ProcessBackend};
use crate::backend::{EngineBackend, HttpProbe, Probe};
use crate::config::{BackendKind, Config, DatabaseUrl};
use crate::fleet::{Fleet, Parts, Settings};
use crate::http;
use crate::keys::{KeyError, Purpose, Vault};
use crate::registry::{CANARY, DEPLOYMENT_ID, OpenRegistryError, Registry, RegistryError};

/// What the canary says. Known to all: it shows only whether the master key is the one that sealed it.
pub(crate) const CANARY_SONG: &str = "roundhouse";

/// How often a standby looks whether the registry is free.
const STANDBY_PAUSE: Duration = Duration::from_secs(1);

/// How long requests, and the changes that they began, may take to finish at shutdown.
const DRAIN: Duration = Duration::from_secs(30);

const BOUNDS: Bounds =
    Bounds { max_connections: 16_384, header_read_timeout: Duration::from_secs(30), drain: DRAIN };

/// An orchestrator that holds its registry.
pub struct Orchestrator {
    fleet: Arc<Fleet>,
    admin_key: AdminKey,
}

/// What an orchestrator does beside answering.
struct Work {
    keeping: CancellationToken,
    tasks: TaskTracker,
}

impl Work {
    async fn end(self) {
        self.keeping.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Why an orchestrator cannot begin. Its text is for the person who began it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another orchestrator has the registry.
    #[error(
        "the registry {} is in use: {holder} holds it. One orchestrator runs per database: stop that one, or \
         give this one a database of its own",
        database.display()
    )]
    InUse {
        /// The registry.
        database: PathBuf,
        /// Who has it.
        holder: Holder,
    },
    /// A later version wrote the registry.
    #[error(
        "the registry {} was written by a later version of roundhouse (its schema has version {found}, this \
         binary knows up to {known}): run that version, or restore a backup from before the upgrade",
        database.display()
    )]
    Newer {
        /// The registry.
        database: PathBuf,
        /// Its schema's version.
        found: i64,
        /// The last version that this binary knows.
        known: i64,
    },
    /// The registry is no database.
    #[error(
        "the registry {} is not a SQLite database, or a damaged one: check the path, or restore a backup",
        database.display()
    )]
    Corrupt {
        /// The registry.
        database: PathBuf,
        /// What SQLite said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The registry cannot be used.
    #[error("the registry {} cannot be opened: check its folder, its permissions and the disk", database.display())]
    Registry {
        /// The registry.
        database: PathBuf,
        /// What failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The master key is not the one that sealed the registry's keys.
    #[error(
        "ORCH_MASTER_KEY is not the key under which {} was sealed. Set the one it was sealed under, or seal it \
         under this one: run `roundhouse rekey` with this key in ORCH_MASTER_KEY and the other in \
         ORCH_MASTER_KEY_OLD",
        database.display()
    )]
    WrongMasterKey {
        /// The registry.
        database: PathBuf,
    },
    /// The network that the engines are to join is not as it must be.
    #[error(transparent)]
    Network(NetworkError),
    /// The operating system gave no randomness.
    #[error("no key could be made")]
    Keys(#[source] KeyError),
}

/// Why the engines' network cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct NetworkError(NetworkFault);

impl OpenError {
    fn registry(database: PathBuf, error: OpenRegistryError) -> Self {
        match error {
            OpenRegistryError::Held(holder) => Self::InUse { database, holder },
            OpenRegistryError::Newer { found, known } => Self::Newer { database, found, known },
            OpenRegistryError::Corrupt(error) => Self::Corrupt { database, source: Box::new(error) },
            OpenRegistryError::Database(error) => Self::Registry { database, source: Box::new(error) },
            OpenRegistryError::PointReads(error) => Self::Registry { database, source: Box::new(error) },
            OpenRegistryError::Folder(error) => Self::Registry { database, source: Box::new(error) },
        }
    }
}

impl Orchestrator {
    /// Takes hold of the registry and the master key. Nothing runs yet.
    pub async fn open(config: Config, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let vault = Vault::new(&config.master_key).map_err(OpenError::Keys)?;
        let (registry, deployment_id) = open_registry(&config, &vault, clock.as_ref()).await?;
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
                    user: docker::User::of_engines(),
                };
                let backend = DockerBackend::new(options, Arc::clone(&clock));
                backend.check_network().await.map_err(|fault| OpenError::Network(NetworkError(fault)))?;
                Arc::new(backend)
            }
        };
        Ok(Self::with(config, Parts { registry, vault, backend, probe, clock }))
    }

    /// An orchestrator over parts that are open already.
    pub(crate) fn with(config: Config, parts: Parts) -> Self {
        let settings = Settings {
            owner: Uuid::now_v7().simple().to_string(),
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
        let front = http::Front::new();
        let served = shutdown.child_token();
        let serving = serve(listener, front.clone(), BOUNDS, served.clone());
        let working = async {
            // Without an orchestrator there is nothing to serve.
            let unserved = served.clone().drop_guard();
            let opened = shutdown.run_until_cancelled(Self::open_or_stand_by(config, clock)).await;
            let Some(orchestrator) = opened.transpose()? else { return Ok(None) };
            unserved.disarm();
            front.open(orchestrator.routes());
            let work = orchestrator.begin();
            shutdown.cancelled().await;
            orchestrator.fleet.end_streams();
            orchestrator.fleet.landed(DRAIN).await;
            Ok(Some((orchestrator, work)))
        };
        let ((), worked) = tokio::join!(serving, working);
        if let Some((orchestrator, work)) = worked? {
            work.end().await;
            orchestrator.close().await;
        }
        Ok(())
    }

    /// Opens, as soon as no other orchestrator holds the registry.
    async fn open_or_stand_by(config: Config, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let mut held_by = None;
        loop {
            match Self::open(config.clone(), Arc::clone(&clock)).await {
                Err(OpenError::InUse { database, holder }) => {
                    if held_by.as_ref() != Some(&holder) {
                        let (database, holder) = (database.display(), holder.to_string());
                        tracing::warn!(%database, holder, "The registry is in use; this orchestrator stands by.");
                    }
                    held_by = Some(holder);
                    clock.sleep(STANDBY_PAUSE).await;
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
        let work = self.begin();
        let drained = async {
            shutdown.cancelled().await;
            self.fleet.end_streams();
            self.fleet.landed(DRAIN).await;
        };
        tokio::join!(serve(listener, self.routes(), BOUNDS, shutdown.clone()), drained);
        work.end().await;
    }

    /// Begins all that an orchestrator does beside answering.
    fn begin(&self) -> Work {
        let keeping = CancellationToken::new();
        let tasks = TaskTracker::new();
        tasks.spawn(Arc::clone(&self.fleet).watch_exits(keeping.clone()));
        tasks.spawn(Arc::clone(&self.fleet).keep_in_order(keeping.clone()));
        tasks.spawn(Arc::clone(&self.fleet).supervise(keeping.clone()));
        tasks.spawn(Arc::clone(&self.fleet).keep_stamps(keeping.clone()));
        Work { keeping, tasks }
    }

    /// Closes the registry. A change still under way is left, and settled at the next start.
    pub async fn close(self) {
        self.fleet.close().await;
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
    let DatabaseUrl::Sqlite(database) = &config.database;
    let registry = Registry::open(database, clock.now())
        .await
        .map_err(|error| OpenError::registry(database.clone(), error))?;
    let failed =
        |error: RegistryError| OpenError::Registry { database: database.clone(), source: Box::new(error) };
    let canary = vault.seal(DEPLOYMENT_ID, Purpose::Canary, CANARY_SONG).map_err(OpenError::Keys)?;
    let canary = registry.fact(CANARY, &canary).await.map_err(failed)?;
    let sings = vault.open(DEPLOYMENT_ID, Purpose::Canary, &canary);
    if sings.ok().as_deref().map(String::as_str) != Some(CANARY_SONG) {
        return Err(OpenError::WrongMasterKey { database: database.clone() });
    }
    let new_id = Uuid::now_v7().simple().to_string();
    let deployment_id = registry.fact(DEPLOYMENT_ID, &new_id).await.map_err(failed)?;
    Ok((registry, deployment_id))
}

#[cfg(test)]
mod tests;
