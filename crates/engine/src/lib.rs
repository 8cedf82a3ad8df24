//! The engine: an HTTP service that runs one user's agent and comes right through any crash.
//!
//! A turn is a state machine over a journal ([`agent`]); its events go through a [`channel`] that stores before
//! it shows; both live in one SQLite file, the [`brain`]. [`models`] are behind a gateway, [`tools`] behind one
//! interface, and [`http`] only translates.

pub mod agent;
pub mod assets;
pub mod brain;
pub mod catalog;
pub mod channel;
pub mod config;
mod fingerprint;
pub mod http;
#[cfg(test)]
mod lessons;
pub mod memory_budget;
pub mod models;
mod names;
mod remembered;
mod sabotage;
mod skills;
#[cfg(test)]
mod testing;
pub mod threads;
pub mod tools;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leash::{Confinement, Hidden, Leash, Settings};
use service::clock::{Clock, SystemClock};
use service::serve::{Bounds, serve};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::agent::{Agent, Kit, Kits, Means, Reloads};
use crate::assets::Assets;
use crate::brain::{Brain, BrainError};
use crate::config::{Config, InForce};
use crate::memory_budget::MemoryBudget;
use crate::skills::Shelf;
use crate::tools::{Outputs, Setup};

/// The accept loop's bounds. Streams end by themselves at shutdown, so the drain is short.
const BOUNDS: Bounds = Bounds {
    max_connections: 1_024,
    header_read_timeout: Duration::from_secs(30),
    drain: Duration::from_secs(2),
};

/// How long turns may take to come to the end of their step. With the drain and the closing of the brain it stays
/// within the 10 s that the engine has to shut down.
const TURNS_STOP: Duration = Duration::from_secs(3);

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its address cannot be listened on.
    #[error("{address} (ENGINE_HOST, ENGINE_PORT) cannot be listened on: another process may have it")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Its brain cannot be used.
    #[error(transparent)]
    Brain(#[from] BrainError),
}

/// An engine that is ready to serve.
pub struct Engine {
    listener: TcpListener,
    brain: Brain,
    agent: Arc<Agent>,
    state: http::State,
}

impl Engine {
    /// Opens the brain, listens, and takes up the turns that were left open.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let address = config.listen;
        let brain = Brain::open(&config.brain)?;
        let listener =
            TcpListener::bind(address).await.map_err(|source| StartError::Listen { address, source })?;
        let shelf = Arc::new(Shelf::beside(&config.brain));
        let leash = leash(&config, &shelf);
        let in_force = Arc::new(InForce::open(config.sources, &brain).map_err(BrainError::from)?);
        let gateway = Arc::clone(in_force.gateway());
        if gateway.model().is_err() {
            tracing::warn!(reason = gateway.status(), "No model can be used; turns will end in an error.");
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        for warning in &config.catalog.warnings {
            tracing::warn!(warning, "The catalog has a fault.");
        }
        let assets = Assets::open(&brain, config.assets, Some(Arc::clone(&leash)), Arc::clone(&clock))
            .map_err(BrainError::from)?;
        assets.set_directory(&config.catalog.servers);
        let setup = Setup {
            workspace: config.workspace,
            brain: brain.clone(),
            catalog: config.catalog,
            leash: Some(leash),
            shelf,
            places: crate::tools::Places::default(),
            web: config.web,
            memory: MemoryBudget::of(config.memory),
        };
        let means = Means {
            gateway,
            kits: Kits::new(Kit::of(&setup), assets.clone()),
            assets,
            clock: Arc::clone(&clock),
            leash: setup.leash.clone(),
            shelf: Arc::clone(&setup.shelf),
            outputs: Outputs::new(&setup.workspace),
            memory: setup.memory.clone(),
            calls: Means::calls(),
            set_aside: Arc::default(),
            reactive: config.reactive_compaction,
            hitl_ttl: config.hitl_ttl,
            replay_ttl: config.replay_ttl,
            batch_interval: config.batch_interval,
        };
        let agent = Arc::new(Agent::new(brain.clone(), means));
        agent.resume().map_err(BrainError::from)?;
        let reloads = Reloads::new(Arc::clone(&agent), config.catalog_folder, setup);
        let key_hash = config.key_hash;
        let state = http::State::new(Arc::clone(&agent), brain.clone(), in_force, reloads, key_hash, clock);
        Ok(Self { listener, brain, agent, state })
    }

    /// The address that it listens on.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown`. Then turns stop at the end of their step, while new ones are refused, streams end,
    /// and the brain is closed.
    pub async fn serve(self, shutdown: CancellationToken) {
        let Self { listener, brain, agent, state } = self;
        let serving = serve(listener, http::router(state), BOUNDS, agent.stopped().clone());
        let stopping = async {
            shutdown.cancelled().await;
            agent.stop(TURNS_STOP).await;
            agent.assets().close().await;
        };
        tokio::join!(serving, stopping);
        brain.close().await;
    }
}

/// The files of a catalog that may hold the product's keys. What else lies in `tools` are the programs of tools.
fn hidden(catalog: &Path) -> Vec<Hidden> {
    let of = |folder: PathBuf, ending: &str| Hidden { folder, ending: ending.into() };
    vec![of(catalog.to_owned(), "mcp.json"), of(catalog.join("tools"), ".json")]
}

/// What runs programs for the agent. How far it confines them is logged.
fn leash(config: &Config, shelf: &Shelf) -> Arc<Leash> {
    // Programs begin in the workspace, where a relative path leads to something else.
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let leash = Leash::new(Settings {
        helper: config.helper.clone(),
        workspace: absolute(&config.workspace),
        readable: vec![absolute(&config.catalog_folder), shelf.folder().to_owned()],
        hidden: hidden(&absolute(&config.catalog_folder)),
        allow_unconfined: config.allow_unconfined,
    });
    let Confinement { level, enforced } = leash.confinement();
    match (enforced, leash.is_usable()) {
        (true, _) => tracing::info!(level, "Programs are confined."),
        (false, true) => tracing::warn!(
            level,
            "Programs run without being confined, as ENGINE_ALLOW_UNCONFINED says: they can reach all that the \
             engine can."
        ),
        (false, false) => tracing::warn!(
            level,
            "This machine cannot confine programs, so the agent is given no tools that run some. Linux 6.12 \
             or later with Landlock (`landlock` among `lsm=`) gives them; ENGINE_ALLOW_UNCONFINED=true lets them \
             run unconfined."
        ),
    }
    Arc::new(leash)
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
