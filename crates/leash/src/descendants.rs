//! The descendants of this process: who they are, what they take, and their end.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal};

/// A process as `/proc/PID/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its id.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
    /// How many threads it has.
    pub threads: u32,
    /// The time it has computed, in clock ticks.
    pub busy: u64,
    /// When it began, in clock ticks since the machine did: with its id, this tells it from a later one.
    pub began: u64,
    /// The pages it has in memory.
    pub pages: u64,
}

impl Process {
    /// Reads one, none where it is gone.
    fn read(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The fields are those of `proc_pid_stat(5)`. The name, in parentheses, may contain anything.
    fn parse(stat: &str) -> Option<Self> {
        let pid = stat.split_once(' ')?.0.parse().ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // The state, the third field, is the first behind the name.
        let number = |field: usize| fields.get(field.checked_sub(3)?)?.parse::<u64>().ok();
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            threads: u32::try_from(number(20)?).ok()?,
            busy: number(14)? + number(15)?,
            began: number(22)?,
            pages: number(24)?,
        })
    }
}

/// All descendants of this process, those that ended and were not waited for among them.
pub(crate) fn all() -> Vec<Process> {
    up_to(usize::MAX)
}

/// So many of them, or all if there are no more: who multiply faster than they are counted need not be.
pub(crate) fn up_to(most: usize) -> Vec<Process> {
    let own = std::process::id();
    if Path::new("/proc/thread-self/children").exists() { by_children(own, most) } else { by_parents(own) }
}

/// By the kernel's lists of children, which cost the more the more descendants there are.
fn by_children(own: u32, most: usize) -> Vec<Process> {
    let Ok(own) = i32::try_from(own) else { return Vec::new() };
    let mut seen = HashSet::from([own]);
    let mut open = vec![own];
    let mut found = Vec::new();
    while let Some(pid) = open.pop() {
        for child in children(pid) {
            if found.len() >= most {
                return found;
            }
            if seen.insert(child) {
                found.extend(Process::read(child));
                open.push(child);
            }
        }
    }
    found
}

/// The ids of this process's own children. Those that lost their parent are among them.
pub(crate) fn orphans() -> Vec<i32> {
    i32::try_from(std::process::id()).map(children).unwrap_or_default()
}

/// The children of each thread of a process.
fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// By every process's parent, which costs the more the more processes the machine has.
fn by_parents(own: u32) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let every: Vec<Process> = entries
        .flatten()
        .filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?))
        .collect();
    below(own, &every)
}

/// Those of `every` that descend from `own`.
fn below(own: u32, every: &[Process]) -> Vec<Process> {
    let Ok(own) = i32::try_from(own) else { return Vec::new() };
    let mut known = HashSet::from([own]);
    loop {
        let more: Vec<i32> = every
            .iter()
            .filter(|process| known.contains(&process.parent) && !known.contains(&process.pid))
            .map(|process| process.pid)
            .collect();
        if more.is_empty() {
            return every
                .iter()
                .filter(|process| process.pid != own && known.contains(&process.pid))
                .copied()
                .collect();
        }
        known.extend(more);
    }
}

/// What a process has in memory of its own and its share of what it shares, in bytes; none where that is not
/// told.
pub(crate) fn proportional_memory(pid: i32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let kib: u64 =
        rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Ends all descendants. They are stopped first, each sweep finding those that the ones before had yet to
/// start, so that nothing is left that could start another; then they are killed. This process must be their
/// subreaper.
pub(crate) fn kill_all() {
    let mut stopped = HashSet::new();
    // A sweep that finds nobody new ends it; a bomb cannot win, as its stopped parts no longer fork.
    for _ in 0..1000 {
        let new: Vec<Process> =
            all().into_iter().filter(|process| !stopped.contains(&(process.pid, process.began))).collect();
        if new.is_empty() {
            break;
        }
        for process in new {
            signal(process, Signal::STOP);
            stopped.insert((process.pid, process.began));
        }
    }
    loop {
        for process in all() {
            signal(process, Signal::KILL);
        }
        if reap() == Left::Nobody {
            return;
        }
        pause();
    }
}

/// Gives the killed a moment to go.
#[expect(clippy::disallowed_methods, reason = "the helper has one thread, no runtime and nothing else to do")]
fn pause() {
    std::thread::sleep(Duration::from_micros(300));
}

/// Whether this process has children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// It has.
    Somebody,
    /// It has not, and so has no descendants either.
    Nobody,
}

/// Waits for the children that have ended.
pub(crate) fn reap() -> Left {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return Left::Somebody,
            Err(_) => return Left::Nobody,
        }
    }
}

/// Sends a signal to this very process, and not to a later one with its id.
fn signal(process: Process, signal: Signal) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if Process::read(process.pid).is_some_and(|now| now.began == process.began) {
        // One that has just ended needs no signal.
        let _ = pidfd_send_signal(handle, signal);
    }
}

#[cfg(test)]
#[path = "descendants_tests.rs"]
mod tests;
