//! Makes all file systems read-only except for the workspace. Landlock restricts opening, creating, moving and
//! removing files, but not changing their modes, owners and times, for which a file's name is enough.

use std::fs;
use std::io;
use std::path::PathBuf;

use nix::sched::CloneFlags;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::{getegid, geteuid};

/// The result of [`isolate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Isolation {
    /// Whether everything but the workspace is read-only.
    pub mounts: bool,
    /// Whether this process is in a new user namespace.
    pub user_namespace: bool,
}

/// Gives this process its own mounts if that is possible: as root, or in a new user namespace. Without a
/// workspace nothing stays writable.
pub(crate) fn isolate(workspace: Option<&PathBuf>) -> Isolation {
    if geteuid().is_root() {
        let unshared = nix::sched::unshare(CloneFlags::CLONE_NEWNS).is_ok();
        return Isolation { mounts: unshared && remount_read_only(workspace).is_ok(), user_namespace: false };
    }
    let user_namespace = unshare_user_namespace().is_ok();
    Isolation { mounts: user_namespace && remount_read_only(workspace).is_ok(), user_namespace }
}

/// Moves this process into a new user and mount namespace in which it keeps its user and group ids.
fn unshare_user_namespace() -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    nix::sched::unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Remounts all mounts read-only, except for the workspace and those in it.
fn remount_read_only(workspace: Option<&PathBuf>) -> io::Result<()> {
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    if let Some(workspace) = workspace {
        rustix::mount::mount_bind_recursive(workspace, workspace)?;
    }
    for mount in writable_mounts(&fs::read_to_string("/proc/self/mountinfo")?) {
        if workspace.is_some_and(|workspace| mount.point.starts_with(workspace)) {
            continue;
        }
        match rustix::mount::mount_remount(
            &mount.point,
            mount.flags | MountFlags::BIND | MountFlags::RDONLY,
            c"",
        ) {
            // The mount is covered by another one, so that no path leads to it, or it is not accessible.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::ACCESS | rustix::io::Errno::INVAL) => {}
            outcome => outcome?,
        }
    }
    Ok(())
}

/// A writable mount.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    /// Its current flags, which a remount must repeat.
    flags: MountFlags,
}

/// The writable mounts of a text in the format of `proc_pid_mountinfo(5)`.
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

/// Decodes the octal escapes of whitespace and backslashes in a path.
fn unescape(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(path.to_owned(), |path, (escaped, plain)| path.replace(escaped, plain))
}

#[cfg(test)]
#[path = "../tests/unit/mounts.rs"]
mod tests;
