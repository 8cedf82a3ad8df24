//! Snapshots of the catalog and the tools. A turn keeps the snapshot it began with; a new one is used by the
//! turns after it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use catalog::{AgentSpec, Identity, PlanningMode, SkillSpec, WebhookSetting};
use mcp::Mcp;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use store::steps::PromptHashes;
use tools::hooks::ToolHooks;
use tools::{ToolDeps, Toolbox};

/// The catalog and tools that a turn works with.
pub(crate) struct AgentSnapshot {
    /// The soul: the first thing that every model is sent.
    pub(crate) soul: String,
    /// What other agents are told about this one.
    pub(crate) identity: Identity,
    /// The agents that can be delegated to.
    pub(crate) agents: Vec<Arc<AgentSpec>>,
    /// The skills of the platform.
    pub(crate) skills: Vec<Arc<SkillSpec>>,
    /// What runs before and after tools.
    pub(crate) hooks: Arc<ToolHooks>,
    /// Which messages are planned.
    pub(crate) planning: PlanningMode,
    /// Where it is reported what happens.
    pub(crate) webhook: WebhookSetting,
    /// The tools; those of connected servers come last.
    pub(crate) toolbox: Toolbox,
    /// The SHA-256 of the soul, in hexadecimal digits, once it was needed.
    pub(crate) soul_hash: OnceLock<String>,
}

/// Returns the real paths of the folders that programs may be run from, except those that would give access to what
/// programs must not reach: the brain beside the workspace. The sandbox follows links, so links are resolved before
/// the paths are compared. Blocks.
fn allowed_executable_dirs(folders: &[PathBuf], workspace: &Path) -> Vec<PathBuf> {
    let data = workspace.parent().unwrap_or(workspace);
    let data = data.canonicalize().unwrap_or_else(|_| data.to_owned());
    let is_allowed = |folder: &PathBuf| match folder.canonicalize() {
        Ok(path) if data.starts_with(&path) || path.starts_with(&data) => {
            tracing::warn!(
                folder = %folder.display(),
                "A folder of permissions.json is ignored, because it contains the engine's data or lies in it."
            );
            None
        }
        Ok(path) => Some(path),
        Err(error) => {
            tracing::warn!(
                folder = %folder.display(), %error,
                "A folder of permissions.json is ignored, because it cannot be found."
            );
            None
        }
    };
    folders.iter().filter_map(is_allowed).collect()
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
            identity: catalog.soul.identity().clone(),
            agents: catalog.agents.clone(),
            skills: catalog.skills.clone(),
            hooks: Arc::new(ToolHooks::new(setup)),
            planning: catalog.planning,
            webhook: catalog.webhook.clone(),
            toolbox: Toolbox::built_in(setup).with_agents(&catalog.agents),
            soul_hash: OnceLock::new(),
        }
    }

    /// The hashes of what the user's own agent is sent before a conversation, by a model whose context window has
    /// `window` tokens.
    pub(super) fn prompt_hashes(&self, window: u64) -> PromptHashes {
        let system = self.soul_hash.get_or_init(|| hex::encode(Sha256::digest(&self.soul)));
        PromptHashes { system: system.clone(), tools: self.toolbox.exposed_tools(window).hash().to_owned() }
    }

    /// The same snapshot with the tools of connected servers.
    fn with_mcp_servers(self: &Arc<Self>, mcp: &Mcp) -> Arc<Self> {
        let tools = mcp.tools();
        if tools.is_empty() {
            return Arc::clone(self);
        }
        let Self { soul, identity, agents, skills, hooks, planning, webhook, toolbox, soul_hash } = &**self;
        let (soul, identity) = (soul.clone(), identity.clone());
        let (agents, skills) = (agents.clone(), skills.clone());
        let (hooks, toolbox) = (Arc::clone(hooks), toolbox.with_mcp_tools(tools));
        let (planning, webhook, soul_hash) = (*planning, webhook.clone(), soul_hash.clone());
        Arc::new(Self { soul, identity, agents, skills, hooks, planning, webhook, toolbox, soul_hash })
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
    fn new(snapshot: AgentSnapshot, mcp: &Mcp) -> Self {
        let base = Arc::new(snapshot);
        // Read first, so that a change in between is noticed the next time.
        let generation = mcp.generation();
        Self { with_mcp: base.with_mcp_servers(mcp), base, generation }
    }
}

impl SnapshotSource {
    /// Creates a source from the catalog's snapshot and the user's connections.
    pub(crate) fn new(snapshot: AgentSnapshot, mcp: Mcp) -> Self {
        Self { current: Mutex::new(CurrentSnapshot::new(snapshot, &mcp)), mcp }
    }

    /// The current snapshot.
    pub(crate) fn current(&self) -> Arc<AgentSnapshot> {
        let mut current = self.current.lock();
        let generation = self.mcp.generation();
        if current.generation != generation {
            current.generation = generation;
            current.with_mcp = current.base.with_mcp_servers(&self.mcp);
        }
        Arc::clone(&current.with_mcp)
    }

    /// Replaces the snapshot. The old one is dropped with the last turn that uses it.
    pub(super) fn replace(&self, snapshot: AgentSnapshot) {
        let new = CurrentSnapshot::new(snapshot, &self.mcp);
        let old = std::mem::replace(&mut *self.current.lock(), new);
        drop(old);
    }
}
