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
    pub cpu_ticks: u64,
    /// When it began, in clock ticks since the machine did: with its id, this tells it from a later one.
    pub start_ticks: u64,
    /// The pages it has in memory.
    pub resident_pages: u64,
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
            cpu_ticks: number(14)? + number(15)?,
            start_ticks: number(22)?,
            resident_pages: number(24)?,
        })
    }
}

/// All descendants of this process, those that ended and were not waited for among them.
pub(crate) fn list_all() -> Vec<Process> {
    list_up_to(usize::MAX)
}

/// So many of them, or all if there are no more: who multiply faster than they are counted need not be.
pub(crate) fn list_up_to(most: usize) -> Vec<Process> {
    let own = std::process::id();
    if Path::new("/proc/thread-self/children").exists() {
        list_by_children(own, most)
    } else {
        list_by_parents(own)
    }
}

/// By the kernel's lists of children, which cost the more the more descendants there are.
fn list_by_children(own: u32, most: usize) -> Vec<Process> {
    let Ok(own) = i32::try_from(own) else { return Vec::new() };
    let mut seen = HashSet::from([own]);
    let mut open = vec![own];
    let mut found = Vec::new();
    while let Some(pid) = open.pop() {
        for child in child_pids(pid) {
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
pub(crate) fn own_child_pids() -> Vec<i32> {
    i32::try_from(std::process::id()).map(child_pids).unwrap_or_default()
}

/// The children of each thread of a process.
fn child_pids(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// By every process's parent, which costs the more the more processes the machine has.
fn list_by_parents(own: u32) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let every: Vec<Process> = entries
        .flatten()
        .filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?))
        .collect();
    descendants_of(own, &every)
}

/// Those of `every` that descend from `own`.
fn descendants_of(own: u32, every: &[Process]) -> Vec<Process> {
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
        let new: Vec<Process> = list_all()
            .into_iter()
            .filter(|process| !stopped.contains(&(process.pid, process.start_ticks)))
            .collect();
        if new.is_empty() {
            break;
        }
        for process in new {
            send_signal(process, Signal::STOP);
            stopped.insert((process.pid, process.start_ticks));
        }
    }
    loop {
        for process in list_all() {
            send_signal(process, Signal::KILL);
        }
        if reap_children() == ReapOutcome::NoChildren {
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
pub(crate) enum ReapOutcome {
    /// It has.
    ChildrenRemain,
    /// It has not, and so has no descendants either.
    NoChildren,
}

/// Waits for the children that have ended.
pub(crate) fn reap_children() -> ReapOutcome {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return ReapOutcome::ChildrenRemain,
            Err(_) => return ReapOutcome::NoChildren,
        }
    }
}

/// Sends a signal to this very process, and not to a later one with its id.
fn send_signal(process: Process, signal: Signal) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if Process::read(process.pid).is_some_and(|now| now.start_ticks == process.start_ticks) {
        // One that has just ended needs no signal.
        let _ = pidfd_send_signal(handle, signal);
    }
}

#[cfg(test)]
#[path = "descendants_tests.rs"]
mod tests;
