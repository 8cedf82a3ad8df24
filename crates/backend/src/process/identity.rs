//! The identity of a process, read from `/proc`. A pid alone is not enough, because the kernel reuses pids.

use std::fs;
use std::io;

use crate::Instance;

/// Identifies a process uniquely for all time: by its pid, its start time, and the boot of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessIdentity {
    pub(super) pid: i32,
    /// Start time in clock ticks since boot.
    pub(super) start_ticks: u64,
    pub(super) boot_id: Box<str>,
}

impl ProcessIdentity {
    /// Returns the identity of the process that has `pid` now; `None` if there is none, or only a zombie.
    pub(super) fn of_running(pid: i32) -> io::Result<Option<Self>> {
        let stat = Stat::read(pid)?.filter(|stat| !stat.dead);
        stat.map(|stat| Self::from_stat(pid, &stat)).transpose()
    }

    /// Returns the identity of this process's child `pid`, even if it is a zombie.
    pub(super) fn of_child(pid: i32) -> io::Result<Self> {
        let stat = Stat::read(pid)?.ok_or_else(|| io::Error::other("a child process is missing in /proc"))?;
        Self::from_stat(pid, &stat)
    }

    fn from_stat(pid: i32, stat: &Stat) -> io::Result<Self> {
        Ok(Self { pid, start_ticks: stat.start_ticks, boot_id: boot_id()? })
    }

    /// Returns the identity as the text that the registry stores.
    pub(super) fn instance(&self) -> Instance {
        Instance::new(format!("{}.{}.{}", self.pid, self.start_ticks, self.boot_id))
    }
}

/// Returns the parent of `pid`; `None` if `pid` does not exist.
pub(super) fn parent_of(pid: i32) -> io::Result<Option<i32>> {
    Ok(Stat::read(pid)?.map(|stat| stat.parent))
}

/// Whether `pid` leads its session, as an engine does soon after its start.
pub(super) fn is_session_leader(pid: i32) -> io::Result<bool> {
    Ok(Stat::read(pid)?.is_some_and(|stat| stat.session == pid))
}

/// The fields of `/proc/<pid>/stat` that are used here, see
/// <https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html>.
struct Stat {
    start_ticks: u64,
    parent: i32,
    session: i32,
    /// Whether it is a zombie or about to become one.
    dead: bool,
}

impl Stat {
    fn read(pid: i32) -> io::Result<Option<Self>> {
        match fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(line) => Ok(Self::parse(&line)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Parses the fields after the name, which is in parentheses and may contain spaces and parentheses itself.
    fn parse(line: &str) -> Option<Self> {
        let (_, fields) = line.rsplit_once(") ")?;
        let mut fields = fields.split(' ');
        let dead = matches!(fields.next()?, "Z" | "X" | "x");
        // The state is field 3 of the line, the parent field 4, the session field 6, the start time field 22.
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        let start_ticks = fields.nth(15)?.parse().ok()?;
        Some(Self { start_ticks, parent, session, dead })
    }
}

/// Whether an error under `/proc/<pid>` means that the process is gone. It may disappear between open and read.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

fn boot_id() -> io::Result<Box<str>> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let line = "7 (a) b (c) S 1 8 7 0 -1 4194304 100 0 0 0 1 2 0 0 20 0 3 0 4711 1000 50 18446744";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.start_ticks, stat.parent, stat.session, stat.dead), (4_711, 1, 7, false));
        assert!(Stat::parse(&line.replace(") S", ") Z")).unwrap().dead);
        assert!(Stat::parse("").is_none());
    }

    #[test]
    fn a_process_keeps_its_identity() {
        let me = i32::try_from(std::process::id()).unwrap();
        let identity = ProcessIdentity::of_child(me).unwrap();
        assert_eq!(ProcessIdentity::of_child(me).unwrap(), identity);
        assert!(identity.instance().as_str().starts_with(&format!("{me}.")));
        assert!(ProcessIdentity::of_running(i32::MAX).unwrap().is_none());
    }
}
