//! The pids cgroup of one program, with which the kernel itself limits the number of processes. It is used only if
//! the helper may create a cgroup below its own.

use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup that limits the number of processes. Dropping it removes the cgroup, which must be empty by then.
#[derive(Debug)]
pub(crate) struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// Creates a cgroup below this process's own. `None` if that is not possible.
    pub(crate) fn new(processes: u32) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let parent = pids_hierarchy(&own, Path::new("/sys/fs/cgroup"))?;
        remove_abandoned(&parent);
        let cgroup = Self { folder: parent.join(format!("sandbox-{}", std::process::id())) };
        fs::create_dir(&cgroup.folder).ok()?;
        fs::write(cgroup.folder.join("pids.max"), processes.to_string()).ok()?;
        Some(cgroup)
    }

    /// Moves a process into the cgroup. Processes that it forks from now on are in the cgroup too.
    pub(crate) fn add_process(&self, pid: u32) -> std::io::Result<()> {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string())
    }

    /// Forbids all processes in the cgroup to fork.
    pub(crate) fn forbid_forks(&self) {
        // If this fails, ending all processes takes a few more sweeps.
        let _ = fs::write(self.folder.join("pids.max"), "0");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A cgroup that could not be removed is removed by a later helper; see `remove_abandoned`.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Removes the cgroups of helpers that were killed. A cgroup that still has processes stays.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        // Up to 0.1.0 the prefix was `leash-`.
        let helper_pid = name
            .to_str()
            .and_then(|name| name.strip_prefix("sandbox-").or_else(|| name.strip_prefix("leash-")));
        if helper_pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Another helper may have removed it already.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The folder of this process's cgroup in the hierarchy below `root` that has the `pids` controller. `own` is the
/// content of `/proc/self/cgroup`. A cgroup of version 2 must delegate the controller to its children already:
/// changing that is up to the administrator of the hierarchy.
fn pids_hierarchy(own: &str, root: &Path) -> Option<PathBuf> {
    own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let path = path.trim_start_matches('/');
        if controllers.split(',').any(|controller| controller == "pids") {
            return Some(root.join(controllers).join(path)).filter(|folder| folder.is_dir());
        }
        let folder = root.join(path);
        let delegated = fs::read_to_string(folder.join("cgroup.subtree_control")).ok()?;
        (controllers.is_empty() && delegated.split_whitespace().any(|controller| controller == "pids"))
            .then_some(folder)
    })
}

#[cfg(test)]
#[path = "../tests/unit/cgroup.rs"]
mod tests;
