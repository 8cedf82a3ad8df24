//! The MCP servers that the current catalog names.

use std::sync::Arc;

use catalog::McpServerSpec;
use parking_lot::Mutex;

/// The servers of the current catalog.
#[derive(Default)]
pub(super) struct ServerDirectory(Mutex<Vec<Arc<McpServerSpec>>>);

impl ServerDirectory {
    /// Replaces the servers; returns the previous ones.
    pub(super) fn replace(&self, servers: &[Arc<McpServerSpec>]) -> Vec<Arc<McpServerSpec>> {
        std::mem::replace(&mut *self.0.lock(), servers.to_vec())
    }

    pub(super) fn all(&self) -> Vec<Arc<McpServerSpec>> {
        self.0.lock().clone()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<McpServerSpec>> {
        self.0.lock().iter().find(|spec| spec.name == name).cloned()
    }
}
