//! Reading the catalog again while the engine runs. Turns that begin afterwards work with what was read; those under
//! way keep what they began with.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::timeout;

use super::{Agent, Kit};
use crate::catalog::{Catalog, Soul};
use crate::skills::Skills;
use crate::tools::Setup;

/// How long a caller waits. What is being read by then is read to its end all the same, and then used.
const DEADLINE: Duration = Duration::from_secs(30);

/// Why the catalog was not read again.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// What is there cannot be used.
    #[error("{0}; what was in use stays in use")]
    Faulty(String),
    /// The folder is slow.
    #[error("the catalog could not be read within {} seconds; ask again", DEADLINE.as_secs())]
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
    pub(crate) fn kit(&self) -> Arc<Kit> {
        self.means.kits.current()
    }
}

/// See the module.
pub(crate) struct Reloads {
    agent: Arc<Agent>,
    folder: PathBuf,
    /// With the catalog in use. Held while one is read, so that one is read at a time, and none is lost.
    setup: Arc<Mutex<Setup>>,
}

impl Reloads {
    /// Reads what `agent` works with from `folder`, where `setup` has what it works with now.
    pub(crate) fn new(agent: Arc<Agent>, folder: PathBuf, setup: Setup) -> Self {
        Self { agent, folder, setup: Arc::new(Mutex::new(setup)) }
    }

    /// Reads the soul again, and nothing else.
    ///
    /// # Errors
    /// The old one stays in use.
    pub(crate) async fn soul(&self) -> Result<Soul, ReloadError> {
        let read = |folder: &Path, before: &Catalog| {
            let soul = Soul::read(folder).map_err(|reason| format!("soul.md: {reason}"))?;
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
    pub(crate) async fn catalog(&self) -> Result<Catalog, ReloadError> {
        let brain = self.agent.brain.clone();
        let read = move |folder: &Path, before: &Catalog| {
            let mut catalog = before.read_again(folder);
            catalog.warnings.extend(Skills::new(catalog.skills.clone(), brain).shadowed());
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
                setup.catalog = read(&folder, &setup.catalog).map_err(ReloadError::Faulty)?;
                agent.means.assets.set_directory(&setup.catalog.servers);
                agent.means.kits.replace(Kit::of(&setup));
                Ok(setup.catalog.clone())
            });
            match reading.await {
                Ok(read) => read,
                Err(error) if error.is_cancelled() => Err(ReloadError::Stopping),
                Err(_) => Err(ReloadError::Unexpected),
            }
        };
        timeout(DEADLINE, in_turn).await.unwrap_or(Err(ReloadError::TooSlow))
    }
}
