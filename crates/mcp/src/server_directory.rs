//! The MCP servers that can be connected: those that the current catalog names, and those of the user that
//! can be used.

use std::sync::Arc;

use catalog::McpServerSpec;
use parking_lot::Mutex;

/// The servers.
#[derive(Default)]
pub(super) struct ServerDirectory(Mutex<Servers>);

/// The servers by origin. No name is in both.
#[derive(Default)]
pub(super) struct Servers {
    pub(super) catalog: Vec<Arc<McpServerSpec>>,
    pub(super) of_user: Vec<Arc<McpServerSpec>>,
}

impl Servers {
    fn all(&self) -> impl Iterator<Item = &Arc<McpServerSpec>> {
        self.catalog.iter().chain(&self.of_user)
    }
}

impl ServerDirectory {
    /// Changes the servers; returns those that are no longer there.
    pub(super) fn change(&self, change: impl FnOnce(&mut Servers)) -> Vec<Arc<McpServerSpec>> {
        let mut servers = self.0.lock();
        let before: Vec<_> = servers.all().cloned().collect();
        change(&mut servers);
        before.into_iter().filter(|server| !servers.all().any(|now| now == server)).collect()
    }

    /// Returns all servers, those of the catalog first.
    pub(super) fn all(&self) -> Vec<Arc<McpServerSpec>> {
        self.0.lock().all().cloned().collect()
    }

    /// Returns the servers of the catalog.
    pub(super) fn catalog(&self) -> Vec<Arc<McpServerSpec>> {
        self.0.lock().catalog.clone()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<McpServerSpec>> {
        self.0.lock().all().find(|spec| spec.name == name).cloned()
    }
}
