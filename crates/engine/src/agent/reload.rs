//! Reloads the catalog while the engine runs. Turns that begin afterwards use the new one; running turns keep
//! the one they began with.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use catalog::{Catalog, Soul};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tools::ToolDeps;
use tools::skills::Skills;

use super::{Agent, AgentSnapshot};

/// How long a caller waits. A reload that takes longer is completed all the same, and then used.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the catalog was not reloaded.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The catalog on disk is invalid.
    #[error("{0}; the previous version stays in use")]
    Invalid(String),
    /// The reload timed out.
    #[error("the catalog could not be read within {} seconds; try again", RELOAD_TIMEOUT.as_secs())]
    TooSlow,
    /// Reading failed unexpectedly.
    #[error("the catalog could not be read for an unexpected reason; the previous version stays in use")]
    Unexpected,
    /// The engine is stopping.
    #[error("the engine is stopping")]
    Stopping,
}

#[cfg(test)]
impl Agent {
    /// The snapshot for turns that begin now.
    pub(crate) fn snapshot(&self) -> Arc<AgentSnapshot> {
        self.services.snapshots.current()
    }
}

/// Reloads the catalog of an agent from a folder.
pub(crate) struct CatalogReloader {
    agent: Arc<Agent>,
    folder: PathBuf,
    /// The current setup with its catalog. Locked during a reload, so that reloads run one at a time and none
    /// is lost.
    setup: Arc<Mutex<ToolDeps>>,
}

impl CatalogReloader {
    /// Creates a reloader that reads the catalog of `agent` from `folder`. `setup` contains the current one.
    pub(crate) fn new(agent: Arc<Agent>, folder: PathBuf, setup: ToolDeps) -> Self {
        Self { agent, folder, setup: Arc::new(Mutex::new(setup)) }
    }

    /// Reloads the soul and nothing else.
    ///
    /// # Errors
    /// If the soul cannot be read; the old one stays in use.
    pub(crate) async fn reload_soul(&self) -> Result<Soul, ReloadError> {
        let read = |folder: &Path, before: &Catalog| {
            let soul = Soul::load(folder).map_err(|reason| format!("soul.md: {reason}"))?;
            Ok(Catalog { soul, ..before.clone() })
        };
        let soul = self.reload(read).await?.soul;
        tracing::info!(version = soul.version(), "The soul was reloaded.");
        Ok(soul)
    }

    /// Reloads everything except the soul. Faulty parts keep their last valid version and are named in the
    /// catalog's warnings.
    ///
    /// # Errors
    /// If the catalog cannot be read; everything stays as it was.
    pub(crate) async fn reload_catalog(&self) -> Result<Catalog, ReloadError> {
        let brain = self.agent.brain.clone();
        let read = move |folder: &Path, before: &Catalog| {
            let mut catalog = before.reload(folder);
            catalog.warnings.extend(Skills::new(catalog.skills.clone(), brain).shadowed_warnings());
            Ok(catalog)
        };
        let catalog = self.reload(read).await?;
        for warning in &catalog.warnings {
            tracing::warn!(warning, "The catalog contains an error.");
        }
        let (agents, skills, tools) = (catalog.agents.len(), catalog.skills.len(), catalog.tools.len());
        tracing::info!(agents, skills, tools, "The catalog was reloaded.");
        Ok(catalog)
    }

    async fn reload(
        &self,
        read: impl FnOnce(&Path, &Catalog) -> Result<Catalog, String> + Send + 'static,
    ) -> Result<Catalog, ReloadError> {
        let (agent, folder, setup) = (Arc::clone(&self.agent), self.folder.clone(), Arc::clone(&self.setup));
        let reported = Arc::clone(&agent);
        // Completed even if nobody waits any more, with the lock held as long.
        let reloading = self.agent.tracker.spawn(async move {
            let mut setup = setup.lock_owned().await;
            let reading = tokio::task::spawn_blocking(move || {
                setup.catalog = read(&folder, &setup.catalog).map_err(ReloadError::Invalid)?;
                agent.services.mcp.set_catalog(&setup.catalog);
                agent.services.snapshots.replace(AgentSnapshot::from_setup(&setup));
                Ok((setup.catalog.clone(), setup))
            });
            let (catalog, _locked) = reading.await.map_err(|error| join_error(&error))??;
            reported.apply_webhook_setting().await;
            Ok(catalog)
        });
        match timeout(RELOAD_TIMEOUT, reloading).await {
            Ok(reloaded) => reloaded.unwrap_or_else(|error| Err(join_error(&error))),
            Err(_) => Err(ReloadError::TooSlow),
        }
    }
}

fn join_error(error: &tokio::task::JoinError) -> ReloadError {
    if error.is_cancelled() { ReloadError::Stopping } else { ReloadError::Unexpected }
}
