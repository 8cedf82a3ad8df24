//! What the catalog gives a turn to work with. A turn keeps what it began with; another kit takes its place for the
//! turns after it.

use std::sync::{Arc, Mutex, PoisonError};

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
    /// The tools.
    pub(crate) toolbox: Toolbox,
}

impl Kit {
    /// What the catalog of `setup` gives.
    pub(crate) fn of(setup: &Setup) -> Self {
        let catalog = &setup.catalog;
        Self {
            soul: catalog.soul.told(catalog, &setup.workspace),
            agents: catalog.agents.clone(),
            skills: catalog.skills.clone(),
            toolbox: Toolbox::built_in(setup).with_agents(&catalog.agents),
        }
    }
}

/// The kit of the turns that begin now.
pub(crate) struct Kits(Mutex<Arc<Kit>>);

impl Kits {
    pub(crate) fn new(kit: Kit) -> Self {
        Self(Mutex::new(Arc::new(kit)))
    }

    /// The kit in use.
    pub(crate) fn current(&self) -> Arc<Kit> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another kit in use. The old one goes with the last turn that has it.
    pub(super) fn replace(&self, kit: Kit) {
        let kit = Arc::new(kit);
        let old = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), kit);
        drop(old);
    }
}
