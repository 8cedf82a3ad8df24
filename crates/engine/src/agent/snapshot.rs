//! Snapshots of the catalog and the tools. A turn keeps the snapshot it began with; a new one is used by the
//! turns after it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::catalog::{AgentSpec, SkillSpec};
use crate::mcp::Mcp;
use crate::tools::{ToolDeps, Toolbox};

/// The catalog and tools that a turn works with.
pub(crate) struct AgentSnapshot {
    /// The soul: the first thing that every model is sent.
    pub(crate) soul: String,
    /// The agents that can be delegated to.
    pub(crate) agents: Vec<Arc<AgentSpec>>,
    /// The skills of the platform.
    pub(crate) skills: Vec<Arc<SkillSpec>>,
    /// The tools; those of connected servers come last.
    pub(crate) toolbox: Toolbox,
}

/// The folders that programs may be run from, except those that would give access to what programs must not
/// reach: the brain beside the workspace.
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
    /// Creates the snapshot of the catalog in `setup`.
    pub(crate) fn from_setup(setup: &ToolDeps) -> Self {
        let catalog = &setup.catalog;
        if let Some(sandbox) = &setup.sandbox {
            sandbox.set_executable(allowed_executable_dirs(
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

    /// The same snapshot with the tools of connected servers.
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

/// The source of the snapshots for turns that begin now.
pub(crate) struct SnapshotSource {
    mcp: Mcp,
    current: Mutex<CurrentSnapshot>,
}

struct CurrentSnapshot {
    /// The catalog's snapshot.
    base: Arc<AgentSnapshot>,
    /// The same with the tools of servers as of this generation.
    with_mcp: Arc<AgentSnapshot>,
    generation: u64,
}

impl CurrentSnapshot {
    fn new(kit: AgentSnapshot, assets: &Mcp) -> Self {
        let catalogs = Arc::new(kit);
        // Read first, so that a change in between is noticed the next time.
        let generation = assets.generation();
        Self { with_mcp: catalogs.with_mcp_servers(assets), base: catalogs, generation }
    }
}

impl SnapshotSource {
    /// Creates a source from the catalog's snapshot and the user's connections.
    pub(crate) fn new(kit: AgentSnapshot, assets: Mcp) -> Self {
        Self { current: Mutex::new(CurrentSnapshot::new(kit, &assets)), mcp: assets }
    }

    /// The current snapshot.
    pub(crate) fn current(&self) -> Arc<AgentSnapshot> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = self.mcp.generation();
        if current.generation != generation {
            current.generation = generation;
            current.with_mcp = current.base.with_mcp_servers(&self.mcp);
        }
        Arc::clone(&current.with_mcp)
    }

    /// Replaces the snapshot. The old one is dropped with the last turn that uses it.
    pub(super) fn replace(&self, kit: AgentSnapshot) {
        let new = CurrentSnapshot::new(kit, &self.mcp);
        let old = std::mem::replace(&mut *self.current.lock().unwrap_or_else(PoisonError::into_inner), new);
        drop(old);
    }
}
