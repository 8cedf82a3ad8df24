//! A pids cgroup for one program, where this process may make one.

use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup that bounds how many processes there are. Dropped, it is removed, which works once it is empty.
#[derive(Debug)]
pub(crate) struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// Makes one below this process's own, none where that may not be.
    pub(crate) fn new(processes: u32) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let parent = pids_hierarchy(&own, Path::new("/sys/fs/cgroup"))?;
        remove_abandoned(&parent);
        let cgroup = Self { folder: parent.join(format!("sandbox-{}", std::process::id())) };
        fs::create_dir(&cgroup.folder).ok()?;
        fs::write(cgroup.folder.join("pids.max"), processes.to_string()).ok()?;
        Some(cgroup)
    }

    /// Moves a process into it. Its descendants will be in it too.
    pub(crate) fn add_process(&self, pid: u32) -> std::io::Result<()> {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string())
    }

    /// Lets none of it fork any more.
    pub(crate) fn forbid_forks(&self) {
        // Without this, ending them all takes a few more sweeps.
        let _ = fs::write(self.folder.join("pids.max"), "0");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // One that cannot be removed is empty and hurts nobody.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Removes those whose helper was killed before it could. One with processes in it stays.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        // Up to 0.1.0 the prefix was `leash-`.
        let helper = name
            .to_str()
            .and_then(|name| name.strip_prefix("sandbox-").or_else(|| name.strip_prefix("leash-")));
        if helper.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Another helper may have been faster.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The folder of the cgroup that `own` (`/proc/self/cgroup`) names, in the hierarchy below `root` that counts
/// processes. In the second version only one that hands that controller down already: to change it is for the
/// one who administers the hierarchy.
fn pids_hierarchy(own: &str, root: &Path) -> Option<PathBuf> {
    own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let path = path.trim_start_matches('/');
        if controllers.split(',').any(|controller| controller == "pids") {
            return Some(root.join(controllers).join(path)).filter(|folder| folder.is_dir());
        }
        let folder = root.join(path);
        let handed_down = fs::read_to_string(folder.join("cgroup.subtree_control")).ok()?;
        (controllers.is_empty() && handed_down.split_whitespace().any(|controller| controller == "pids"))
            .then_some(folder)
    })
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
