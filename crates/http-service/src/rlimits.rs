//! Limits of the process.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit on open files to what the system allows, and returns it (none = no limit). The soft limit
/// that shells hand out (often 1,024) is far below what a service with streams open needs.
pub fn raise_file_limit() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "The limit on open files could not be raised.");
    }
    getrlimit(Resource::Nofile).current
}
