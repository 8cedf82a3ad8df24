//! What the catalog gives a turn to work with. A turn keeps what it began with; another kit takes its place for the
//! turns after it.

use std::sync::{Arc, Mutex, PoisonError};

use crate::catalog::AgentSpec;
use crate::tools::Toolbox;

/// See the module.
pub(crate) struct Kit {
    /// Who the agent is: the first thing that every model is told.
    pub(crate) soul: String,
    /// The agents that can be handed work.
    pub(crate) agents: Vec<Arc<AgentSpec>>,
    /// The tools.
    pub(crate) toolbox: Toolbox,
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
}
