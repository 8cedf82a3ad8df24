//! The catalog: what the product gives each of its users' agents. Read from a folder that the engine never writes.
//!
//! A faulty entry is left out and named; it never stops the rest.

mod agents;
mod front_matter;

use std::path::Path;
use std::sync::Arc;

pub use agents::AgentSpec;

/// What was read of a catalog.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// The agents that can be handed work, by their names in order.
    pub agents: Vec<Arc<AgentSpec>>,
    /// What was left out, and why: a line each, for a person.
    pub warnings: Vec<String>,
}

impl Catalog {
    /// Reads the catalog in `folder`. What is not there is none.
    pub fn read(folder: &Path) -> Self {
        let mut warnings = Vec::new();
        let agents = agents::read(&folder.join("agents"), &mut warnings);
        Self { agents, warnings }
    }
}
