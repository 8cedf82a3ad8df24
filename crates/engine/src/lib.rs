//! The engine: an HTTP service that runs one user's agent and recovers from any crash.
//!
//! A turn is a state machine over a journal ([`agent`]); its events go through an event log ([`store::event_log`])
//! that stores before it publishes; both live in one SQLite file, the [`store`]. Models ([`llm`]) are behind a
//! gateway, [`tools`] behind one interface, and [`http`] only translates.

pub mod agent;
mod backups;
pub mod config;
pub mod http;
#[cfg(test)]
#[path = "../tests/unit/regressions/mod.rs"]
mod regressions;
#[cfg(test)]
#[path = "../tests/unit/testing.rs"]
mod testing;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::backup::BackupKey;
use fetch::WebClient;
use http_service::clock::{Clock, SystemClock};
use http_service::serve::{ServeLimits, serve};
use mcp::Mcp;
use resources::memory_budget::MemoryBudget;
use resources::threads::THREAD_KEEP_ALIVE;
use sandbox::{Confinement, HiddenFiles, Sandbox, Settings};
use store::{Brain, BrainError};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tools::documents::DocumentReader;
use tools::skills::SkillDirs;
use tools::user_files::UserFiles;
use tools::{SpillDir, ToolDeps, WorkspaceLock};

pub use crate::backups::serve_maintenance;

use crate::agent::{Agent, AgentSnapshot, Caps, CatalogReloader, Services, SnapshotSource};
use crate::backups::Backups;
use crate::config::{ActiveConfig, Config};
use crate::http::{BrowserTokens, Credentials};

/// The limits of the accept loop. Streams end by themselves at shutdown, so the drain is short.
const HTTP_BOUNDS: ServeLimits = ServeLimits {
    max_connections: 1_024,
    header_read_timeout: Duration::from_secs(30),
    drain_timeout: Duration::from_secs(2),
};

/// How long turns may take to finish their current step. Together with the drain and the closing of the brain this
/// stays within the 10 s that the engine has to shut down.
const TURN_STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// How often uploads that are too old are looked for.
const EXPIRY_INTERVAL: Duration = Duration::from_mins(30);

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The engine cannot listen on its address.
    #[error(
        "the engine cannot listen on {address} (ENGINE_HOST, ENGINE_PORT): another process may be using it"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The brain cannot be used.
    #[error(transparent)]
    Brain(#[from] BrainError),
}

/// An engine that is ready to serve.
pub struct Engine {
    listener: TcpListener,
    brain: Brain,
    agent: Arc<Agent>,
    state: http::AppState,
    expiry: Expiry,
}

/// Deletes uploads that nobody has completed in time.
struct Expiry {
    files: UserFiles,
    clock: Arc<dyn Clock>,
}

impl Expiry {
    async fn run(self) {
        loop {
            self.clock.sleep(EXPIRY_INTERVAL).await;
            if let Err(error) = self.files.remove_expired_uploads(self.clock.now()).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "Uploads that are too old cannot be deleted."
                );
            }
        }
    }
}

impl Engine {
    /// Opens the brain, binds the listener, and resumes unfinished turns.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let address = config.listen;
        backups::finish_restore(&config)?;
        let brain = Brain::open(&config.brain_path)?;
        let listener =
            TcpListener::bind(address).await.map_err(|source| StartError::Listen { address, source })?;
        let skill_dirs = Arc::new(SkillDirs::for_brain(&config.brain_path));
        let sandbox = build_sandbox(&config, &skill_dirs);
        let active_config =
            Arc::new(ActiveConfig::open(config.gateway_sources, &brain).map_err(BrainError::from)?);
        let gateway = Arc::clone(active_config.gateway());
        if gateway.model().is_err() {
            tracing::warn!(reason = gateway.status(), "No model is usable; turns will fail.");
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        for warning in &config.catalog.warnings {
            tracing::warn!(warning, "The catalog contains an error.");
        }
        let documents = DocumentReader::new(Some(&sandbox), &config.workspace);
        let mcp_sandbox = Some(Arc::clone(&sandbox));
        let mcp = Mcp::open(&brain, config.mcp, mcp_sandbox, Arc::clone(&clock), documents.clone())
            .map_err(BrainError::from)?;
        mcp.set_catalog(&config.catalog);
        let backup_key = config.token_secret.as_ref().map(BackupKey::derive);
        let backups = Backups::new(&config.brain_path, &config.workspace, backup_key);
        let workspace_lock = WorkspaceLock::default();
        let files = UserFiles::open(
            &config.workspace,
            &config.brain_path,
            workspace_lock.clone(),
            config.file_limits,
            clock.now(),
        );
        let tool_deps = ToolDeps {
            workspace: config.workspace,
            workspace_lock,
            brain: brain.clone(),
            catalog: config.catalog,
            sandbox: Some(sandbox),
            skill_dirs,
            process_permits: tools::ProcessPermits::default(),
            web_allowlist: config.web_allowlist,
            memory_budget: MemoryBudget::new(config.memory_budget_bytes),
            documents,
        };
        let engine_id = config.engine_id.as_deref().and_then(|text| text.parse().ok());
        let token_identity = engine_id.zip(config.token_secret);
        let services = Services {
            gateway,
            snapshots: SnapshotSource::new(AgentSnapshot::from_setup(&tool_deps), mcp.clone()),
            mcp,
            clock: Arc::clone(&clock),
            sandbox: tool_deps.sandbox.clone(),
            skill_dirs: Arc::clone(&tool_deps.skill_dirs),
            outputs: SpillDir::new(&tool_deps.workspace),
            memory_budget: tool_deps.memory_budget.clone(),
            documents: tool_deps.documents.clone(),
            web: WebClient::new(tool_deps.web_allowlist.clone(), tool_deps.memory_budget.clone()),
            tool_permits: Services::new_tool_permits(),
            reservations: Arc::default(),
            caps: Caps::new(config.usage_limits),
            reactive_compaction: config.reactive_compaction,
            hitl_ttl: config.hitl_ttl,
            replay_ttl: config.replay_ttl,
            engine_id: config.engine_id,
            usage_retention: config.usage_retention,
            batch_interval: config.batch_interval,
        };
        let agent = Arc::new(Agent::new(brain.clone(), services));
        // Before any turn goes on.
        agent.apply_webhook_setting().await;
        agent.own_usage_days().await;
        agent.resume().map_err(BrainError::from)?;
        let reloader = CatalogReloader::new(Arc::clone(&agent), config.catalog_folder, tool_deps);
        let browser_tokens = BrowserTokens::new(token_identity, config.browser_access);
        let credentials = Credentials { key_hash: config.key_hash, browser_tokens, backups };
        let expiry = Expiry { files: files.clone(), clock: Arc::clone(&clock) };
        let (shared_agent, shared_brain) = (Arc::clone(&agent), brain.clone());
        let state = http::AppState::new(
            shared_agent,
            shared_brain,
            files,
            active_config,
            reloader,
            credentials,
            clock,
        );
        Ok(Self { listener, brain, agent, state, expiry })
    }

    /// Returns the address that the engine listens on.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown`. Then running turns stop at the end of their step, new ones are refused, streams
    /// end, and the brain is closed.
    ///
    /// Whenever the engine comes to rest, it calls `release_memory`, which is to return to the system what the allocator
    /// keeps for the next allocations. It may take some milliseconds, for which no connection is accepted.
    pub async fn serve(self, shutdown: CancellationToken, release_memory: impl Fn()) {
        let Self { listener, brain, agent, state, expiry } = self;
        let serving = serve(listener, http::service(state), HTTP_BOUNDS, agent.stopped().clone());
        let stopping = async {
            shutdown.cancelled().await;
            agent.stop(TURN_STOP_TIMEOUT).await;
            agent.mcp().close().await;
        };
        let expiring = async {
            tokio::select! {
                () = expiry.run() => {}
                () = shutdown.cancelled() => {}
            }
        };
        let releasing = async {
            tokio::select! {
                () = release_at_rest(&brain, release_memory) => {}
                () = shutdown.cancelled() => {}
            }
        };
        tokio::join!(serving, stopping, expiring, releasing);
        brain.close().await;
    }
}

/// Calls `release_memory` once the engine has started, and whenever it comes to rest.
async fn release_at_rest(brain: &Brain, release_memory: impl Fn()) {
    loop {
        // What a thread keeps is released when it ends.
        tokio::time::sleep(2 * THREAD_KEEP_ALIVE).await;
        release_memory();
        brain.caches_released().await;
    }
}

/// Returns the files of a catalog that may hold the product's keys. Other files in `tools` are the tools'
/// programs.
fn hidden_files(catalog: &Path) -> Vec<HiddenFiles> {
    let files = |folder: PathBuf, ending: &str| HiddenFiles { folder, ending: ending.into() };
    vec![
        files(catalog.to_owned(), "mcp.json"),
        files(catalog.to_owned(), "hooks.json"),
        files(catalog.to_owned(), "web-search.json"),
        files(catalog.to_owned(), "webhook.json"),
        files(catalog.join("tools"), ".json"),
    ]
}

/// Creates the sandbox for the agent's programs. Its degree of confinement is logged.
fn build_sandbox(config: &Config, skill_dirs: &SkillDirs) -> Arc<Sandbox> {
    // Programs start in the workspace, where a relative path would lead elsewhere.
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let sandbox = Sandbox::new(Settings {
        helper: config.sandbox_helper.clone(),
        workspace: absolute(&config.workspace),
        readable: vec![absolute(&config.catalog_folder), skill_dirs.root().to_owned()],
        hidden: hidden_files(&absolute(&config.catalog_folder)),
        allow_unconfined: config.allow_unconfined,
    });
    let Confinement { level, enforced } = sandbox.confinement();
    match (enforced, sandbox.is_usable()) {
        (true, _) => tracing::info!(level, "Programs are confined."),
        (false, true) => tracing::warn!(
            level,
            "Programs run unconfined because ENGINE_ALLOW_UNCONFINED is set: they can access everything that the \
             engine can."
        ),
        (false, false) => tracing::warn!(
            level,
            "This machine cannot confine programs, so the agent gets no tools that run programs. They need Linux \
             6.12 or later with Landlock (`landlock` in `lsm=`); ENGINE_ALLOW_UNCONFINED=true runs them \
             unconfined."
        ),
    }
    Arc::new(sandbox)
}

#[cfg(test)]
#[path = "../tests/unit/lib.rs"]
mod tests;
