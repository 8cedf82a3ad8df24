//! The MCP servers that the current catalog names.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use catalog::McpServerSpec;

/// The servers of the current catalog.
#[derive(Default)]
pub(super) struct ServerDirectory(Mutex<Vec<Arc<McpServerSpec>>>);

impl ServerDirectory {
    /// Replaces the servers; returns the previous ones.
    pub(super) fn replace(&self, servers: &[Arc<McpServerSpec>]) -> Vec<Arc<McpServerSpec>> {
        std::mem::replace(&mut *self.servers(), servers.to_vec())
    }

    pub(super) fn all(&self) -> Vec<Arc<McpServerSpec>> {
        self.servers().clone()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<McpServerSpec>> {
        self.servers().iter().find(|spec| spec.name == name).cloned()
    }

    fn servers(&self) -> MutexGuard<'_, Vec<Arc<McpServerSpec>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
