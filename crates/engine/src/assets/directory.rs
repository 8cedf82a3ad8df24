//! The tool servers that the catalog in use names.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::catalog::ServerSpec;

/// See the module.
#[derive(Default)]
pub(super) struct Directory(Mutex<Vec<Arc<ServerSpec>>>);

impl Directory {
    /// Takes these servers for those that there are; those that there were before.
    pub(super) fn replace(&self, servers: &[Arc<ServerSpec>]) -> Vec<Arc<ServerSpec>> {
        std::mem::replace(&mut *self.servers(), servers.to_vec())
    }

    pub(super) fn all(&self) -> Vec<Arc<ServerSpec>> {
        self.servers().clone()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<ServerSpec>> {
        self.servers().iter().find(|spec| spec.name == name).cloned()
    }

    fn servers(&self) -> MutexGuard<'_, Vec<Arc<ServerSpec>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
