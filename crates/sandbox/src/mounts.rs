//! File systems that are read-only but for the workspace. Landlock watches who opens, makes, moves and
//! removes files; it does not watch who changes modes, owners and times, which needs no more than a file's
//! name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sched::CloneFlags;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::{getegid, geteuid};

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Isolation {
    /// Whether all but the workspace is read-only.
    pub mounts: bool,
    /// Whether this process has a user namespace of its own.
    pub user_namespace: bool,
}

/// Gives this process mounts of its own, where it may: as root, or in a user namespace of its own.
pub(crate) fn isolate(workspace: &Path) -> Isolation {
    if geteuid().is_root() {
        let own = nix::sched::unshare(CloneFlags::CLONE_NEWNS).is_ok();
        return Isolation { mounts: own && remount_read_only(workspace).is_ok(), user_namespace: false };
    }
    let user_namespace = unshare_user_namespace().is_ok();
    Isolation { mounts: user_namespace && remount_read_only(workspace).is_ok(), user_namespace }
}

/// A user namespace, and mounts, in which this process is who it was.
fn unshare_user_namespace() -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    nix::sched::unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Makes all but the workspace read-only.
fn remount_read_only(workspace: &Path) -> io::Result<()> {
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    rustix::mount::mount_bind_recursive(workspace, workspace)?;
    for mount in writable_mounts(&fs::read_to_string("/proc/self/mountinfo")?) {
        if mount.point.starts_with(workspace) {
            continue;
        }
        match rustix::mount::mount_remount(
            &mount.point,
            mount.flags | MountFlags::BIND | MountFlags::RDONLY,
            c"",
        ) {
            // Another mount hides it, so that no name leads there, or it is not for us to see.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::ACCESS | rustix::io::Errno::INVAL) => {}
            outcome => outcome?,
        }
    }
    Ok(())
}

/// A mount that may be written to.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    /// What holds for it already, and must go on to.
    flags: MountFlags,
}

/// The mounts of `proc_pid_mountinfo(5)` that may be written to.
fn writable_mounts(mountinfo: &str) -> Vec<Mount> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(4);
            let point = PathBuf::from(unescape(fields.next()?));
            let mut flags = MountFlags::empty();
            for option in fields.next()?.split(',') {
                flags |= match option {
                    "ro" => return None,
                    "nosuid" => MountFlags::NOSUID,
                    "nodev" => MountFlags::NODEV,
                    "noexec" => MountFlags::NOEXEC,
                    "noatime" => MountFlags::NOATIME,
                    "nodiratime" => MountFlags::NODIRATIME,
                    "relatime" => MountFlags::RELATIME,
                    _ => MountFlags::empty(),
                };
            }
            Some(Mount { point, flags })
        })
        .collect()
}

/// A path in which blanks are written as octal numbers.
fn unescape(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(path.to_owned(), |path, (escaped, plain)| path.replace(escaped, plain))
}

#[cfg(test)]
#[path = "mounts_tests.rs"]
mod tests;
