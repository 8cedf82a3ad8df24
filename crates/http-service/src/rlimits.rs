//! Resource limits of the process.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit on open files to the maximum that the system allows, and returns it (`None`: no limit). The
/// soft limit of a shell (often 1,024) is far below the need of a service with open streams.
pub fn raise_file_limit() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "The limit on open files could not be raised.");
    }
    getrlimit(Resource::Nofile).current
}
