//! What the catalog gives a turn to work with. A turn keeps what it began with; another kit takes its place for the
//! turns after it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::assets::Assets;
use crate::catalog::{AgentSpec, SkillSpec};
use crate::tools::{Setup, Toolbox};

/// See the module.
pub(crate) struct Kit {
    /// Who the agent is: the first thing that every model is told.
    pub(crate) soul: String,
    /// The agents that can be handed work.
    pub(crate) agents: Vec<Arc<AgentSpec>>,
    /// The skills of the platform.
    pub(crate) skills: Vec<Arc<SkillSpec>>,
    /// The tools, those of connected servers at last.
    pub(crate) toolbox: Toolbox,
}

/// The folders that programs may be run from, but for those that would open what programs must not reach: the brain
/// beside the workspace.
fn executable(folders: &[PathBuf], workspace: &Path) -> Vec<PathBuf> {
    let data = workspace.parent().unwrap_or(workspace);
    let (open, closed): (Vec<&PathBuf>, Vec<&PathBuf>) =
        folders.iter().partition(|folder| !data.starts_with(folder) && !folder.starts_with(data));
    for folder in closed {
        tracing::warn!(
            folder = %folder.display(),
            "Programs are not run from a folder of permissions.json: the engine's data lies in it, or it in them."
        );
    }
    open.into_iter().cloned().collect()
}

impl Kit {
    /// What the catalog of `setup` gives.
    pub(crate) fn of(setup: &Setup) -> Self {
        let catalog = &setup.catalog;
        if let Some(leash) = &setup.leash {
            leash.set_executable(executable(&catalog.permissions.executable, &setup.workspace));
        }
        Self {
            soul: catalog.soul.told(catalog, &setup.workspace),
            agents: catalog.agents.clone(),
            skills: catalog.skills.clone(),
            toolbox: Toolbox::built_in(setup).with_agents(&catalog.agents),
        }
    }

    /// The same with the tools of connected servers.
    fn with_servers(self: &Arc<Self>, assets: &Assets) -> Arc<Self> {
        let tools = assets.tools();
        if tools.is_empty() {
            return Arc::clone(self);
        }
        let Self { soul, agents, skills, toolbox } = &**self;
        let toolbox = toolbox.with_servers(tools);
        Arc::new(Self { soul: soul.clone(), agents: agents.clone(), skills: skills.clone(), toolbox })
    }
}

/// The kit of the turns that begin now.
pub(crate) struct Kits {
    assets: Assets,
    current: Mutex<Current>,
}

struct Current {
    /// What the catalog gives.
    catalogs: Arc<Kit>,
    /// The same with the tools of servers, as they were at this generation of theirs.
    whole: Arc<Kit>,
    generation: u64,
}

impl Current {
    fn of(kit: Kit, assets: &Assets) -> Self {
        let catalogs = Arc::new(kit);
        // Read first: what changes meanwhile is seen the next time.
        let generation = assets.generation();
        Self { whole: catalogs.with_servers(assets), catalogs, generation }
    }
}

impl Kits {
    /// What the catalog gives, and what the user has connected.
    pub(crate) fn new(kit: Kit, assets: Assets) -> Self {
        Self { current: Mutex::new(Current::of(kit, &assets)), assets }
    }

    /// The kit in use.
    pub(crate) fn current(&self) -> Arc<Kit> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = self.assets.generation();
        if current.generation != generation {
            current.generation = generation;
            current.whole = current.catalogs.with_servers(&self.assets);
        }
        Arc::clone(&current.whole)
    }

    /// Puts another kit in use. The old one goes with the last turn that has it.
    pub(super) fn replace(&self, kit: Kit) {
        let new = Current::of(kit, &self.assets);
        let old = std::mem::replace(&mut *self.current.lock().unwrap_or_else(PoisonError::into_inner), new);
        drop(old);
    }
}
