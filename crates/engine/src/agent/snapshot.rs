//! What the catalog gives a turn to work with. A turn keeps what it began with; another kit takes its place for the
//! turns after it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::catalog::{AgentSpec, SkillSpec};
use crate::mcp::Mcp;
use crate::tools::{ToolDeps, Toolbox};

/// See the module.
pub(crate) struct AgentSnapshot {
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
fn allowed_executable_dirs(folders: &[PathBuf], workspace: &Path) -> Vec<PathBuf> {
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

impl AgentSnapshot {
    /// What the catalog of `setup` gives.
    pub(crate) fn from_setup(setup: &ToolDeps) -> Self {
        let catalog = &setup.catalog;
        if let Some(leash) = &setup.sandbox {
            leash.set_executable(allowed_executable_dirs(
                &catalog.permissions.executable_folders,
                &setup.workspace,
            ));
        }
        Self {
            soul: catalog.soul.render(catalog, &setup.workspace),
            agents: catalog.agents.clone(),
            skills: catalog.skills.clone(),
            toolbox: Toolbox::built_in(setup).with_agents(&catalog.agents),
        }
    }

    /// The same with the tools of connected servers.
    fn with_mcp_servers(self: &Arc<Self>, assets: &Mcp) -> Arc<Self> {
        let tools = assets.tools();
        if tools.is_empty() {
            return Arc::clone(self);
        }
        let Self { soul, agents, skills, toolbox } = &**self;
        let toolbox = toolbox.with_mcp_tools(tools);
        Arc::new(Self { soul: soul.clone(), agents: agents.clone(), skills: skills.clone(), toolbox })
    }
}

/// The kit of the turns that begin now.
pub(crate) struct SnapshotSource {
    mcp: Mcp,
    current: Mutex<CurrentSnapshot>,
}

struct CurrentSnapshot {
    /// What the catalog gives.
    base: Arc<AgentSnapshot>,
    /// The same with the tools of servers, as they were at this generation of theirs.
    with_mcp: Arc<AgentSnapshot>,
    generation: u64,
}

impl CurrentSnapshot {
    fn new(kit: AgentSnapshot, assets: &Mcp) -> Self {
        let catalogs = Arc::new(kit);
        // Read first: what changes meanwhile is seen the next time.
        let generation = assets.generation();
        Self { with_mcp: catalogs.with_mcp_servers(assets), base: catalogs, generation }
    }
}

impl SnapshotSource {
    /// What the catalog gives, and what the user has connected.
    pub(crate) fn new(kit: AgentSnapshot, assets: Mcp) -> Self {
        Self { current: Mutex::new(CurrentSnapshot::new(kit, &assets)), mcp: assets }
    }

    /// The kit in use.
    pub(crate) fn current(&self) -> Arc<AgentSnapshot> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = self.mcp.generation();
        if current.generation != generation {
            current.generation = generation;
            current.with_mcp = current.base.with_mcp_servers(&self.mcp);
        }
        Arc::clone(&current.with_mcp)
    }

    /// Puts another kit in use. The old one goes with the last turn that has it.
    pub(super) fn replace(&self, kit: AgentSnapshot) {
        let new = CurrentSnapshot::new(kit, &self.mcp);
        let old = std::mem::replace(&mut *self.current.lock().unwrap_or_else(PoisonError::into_inner), new);
        drop(old);
    }
}
