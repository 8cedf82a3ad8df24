//! Reading the catalog again while the engine runs. Turns that begin afterwards work with what was read; those under
//! way keep what they began with.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::timeout;

use super::{Agent, AgentSnapshot};
use crate::catalog::{Catalog, Soul};
use crate::skills::Skills;
use crate::tools::ToolDeps;

/// How long a caller waits. What is being read by then is read to its end all the same, and then used.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the catalog was not read again.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// What is there cannot be used.
    #[error("{0}; what was in use stays in use")]
    Invalid(String),
    /// The folder is slow.
    #[error("the catalog could not be read within {} seconds; ask again", RELOAD_TIMEOUT.as_secs())]
    TooSlow,
    /// The reading itself failed.
    #[error("the catalog could not be read for an unexpected reason; what was in use stays in use")]
    Unexpected,
    /// The engine is stopping.
    #[error("the engine is stopping")]
    Stopping,
}

#[cfg(test)]
impl Agent {
    /// What turns that begin now work with.
    pub(crate) fn snapshot(&self) -> Arc<AgentSnapshot> {
        self.services.snapshots.current()
    }
}

/// See the module.
pub(crate) struct CatalogReloader {
    agent: Arc<Agent>,
    folder: PathBuf,
    /// With the catalog in use. Held while one is read, so that one is read at a time, and none is lost.
    setup: Arc<Mutex<ToolDeps>>,
}

impl CatalogReloader {
    /// Reads what `agent` works with from `folder`, where `setup` has what it works with now.
    pub(crate) fn new(agent: Arc<Agent>, folder: PathBuf, setup: ToolDeps) -> Self {
        Self { agent, folder, setup: Arc::new(Mutex::new(setup)) }
    }

    /// Reads the soul again, and nothing else.
    ///
    /// # Errors
    /// The old one stays in use.
    pub(crate) async fn reload_soul(&self) -> Result<Soul, ReloadError> {
        let read = |folder: &Path, before: &Catalog| {
            let soul = Soul::load(folder).map_err(|reason| format!("soul.md: {reason}"))?;
            Ok(Catalog { soul, ..before.clone() })
        };
        let soul = self.reload(read).await?.soul;
        tracing::info!(version = soul.version(), "The soul was read again.");
        Ok(soul)
    }

    /// Reads all but the soul again. What is faulty keeps its last good version, and is named in the catalog's
    /// warnings.
    ///
    /// # Errors
    /// All stays as it was.
    pub(crate) async fn reload_catalog(&self) -> Result<Catalog, ReloadError> {
        let brain = self.agent.brain.clone();
        let read = move |folder: &Path, before: &Catalog| {
            let mut catalog = before.reload(folder);
            catalog.warnings.extend(Skills::new(catalog.skills.clone(), brain).shadowed_warnings());
            Ok(catalog)
        };
        let catalog = self.reload(read).await?;
        for warning in &catalog.warnings {
            tracing::warn!(warning, "The catalog has a fault.");
        }
        let (agents, skills, tools) = (catalog.agents.len(), catalog.skills.len(), catalog.tools.len());
        tracing::info!(agents, skills, tools, "The catalog was read again.");
        Ok(catalog)
    }

    async fn reload(
        &self,
        read: impl FnOnce(&Path, &Catalog) -> Result<Catalog, String> + Send + 'static,
    ) -> Result<Catalog, ReloadError> {
        let (agent, folder, setup) = (Arc::clone(&self.agent), self.folder.clone(), Arc::clone(&self.setup));
        let in_turn = async move {
            let mut setup = setup.lock_owned().await;
            // Done to its end whether or not somebody still waits for it, and the lock held as long.
            let reading = tokio::task::spawn_blocking(move || {
                setup.catalog = read(&folder, &setup.catalog).map_err(ReloadError::Invalid)?;
                agent.services.mcp.set_server_specs(&setup.catalog.mcp_servers);
                agent.services.snapshots.replace(AgentSnapshot::from_setup(&setup));
                Ok(setup.catalog.clone())
            });
            match reading.await {
                Ok(read) => read,
                Err(error) if error.is_cancelled() => Err(ReloadError::Stopping),
                Err(_) => Err(ReloadError::Unexpected),
            }
        };
        timeout(RELOAD_TIMEOUT, in_turn).await.unwrap_or(Err(ReloadError::TooSlow))
    }
}
