//! The descendants of the helper process: listing them, measuring their memory, and killing all of them.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal};

/// A process as `/proc/PID/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// The process id.
    pub pid: i32,
    /// The process id of its parent.
    pub parent: i32,
    /// The number of its threads.
    pub threads: u32,
    /// The processor time it has used in user and kernel mode, in clock ticks.
    pub cpu_ticks: u64,
    /// Its start time, in clock ticks since boot. Together with `pid` it identifies the process even if the id
    /// is reused.
    pub start_ticks: u64,
    /// The number of its pages in memory.
    pub resident_pages: u64,
}

impl Process {
    /// Reads the entry of a process. `None` if the process is gone.
    fn read(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses a line in the format of `proc_pid_stat(5)`. The name, in parentheses, may contain any characters.
    fn parse(stat: &str) -> Option<Self> {
        let pid = stat.split_once(' ')?.0.parse().ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // `fields` begins after the name, with the state, which is field 3 of the manual page.
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

/// Lists all descendants of this process, including zombies.
pub(crate) fn list_all() -> Vec<Process> {
    list_up_to(usize::MAX)
}

/// Lists the descendants of this process, and may stop once it has found `max`. Without that bound, listing a
/// fork bomb that grows faster than it is read would not end.
pub(crate) fn list_up_to(max: usize) -> Vec<Process> {
    let own = std::process::id();
    if Path::new("/proc/thread-self/children").exists() {
        list_by_children(own, max)
    } else {
        list_by_parents(own)
    }
}

/// Finds descendants by the kernel's lists of children. The cost grows with the number of descendants.
fn list_by_children(own: u32, max: usize) -> Vec<Process> {
    let Ok(own) = i32::try_from(own) else { return Vec::new() };
    let mut seen = HashSet::from([own]);
    let mut pending = vec![own];
    let mut found = Vec::new();
    while let Some(pid) = pending.pop() {
        for child in child_pids(pid) {
            if found.len() >= max {
                return found;
            }
            if seen.insert(child) {
                found.extend(Process::read(child));
                pending.push(child);
            }
        }
    }
    found
}

/// The ids of this process's children, including the orphans that it has adopted as their subreaper.
pub(crate) fn own_child_pids() -> Vec<i32> {
    i32::try_from(std::process::id()).map(child_pids).unwrap_or_default()
}

/// The ids of the children of all threads of a process.
fn child_pids(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Finds descendants by the parent of every process. The cost grows with the number of processes on the machine.
fn list_by_parents(own: u32) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let all: Vec<Process> = entries
        .flatten()
        .filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?))
        .collect();
    descendants_of(own, &all)
}

/// The processes of `all` that descend from `own`.
fn descendants_of(own: u32, all: &[Process]) -> Vec<Process> {
    let Ok(own) = i32::try_from(own) else { return Vec::new() };
    let mut known = HashSet::from([own]);
    loop {
        let more: Vec<i32> = all
            .iter()
            .filter(|process| known.contains(&process.parent) && !known.contains(&process.pid))
            .map(|process| process.pid)
            .collect();
        if more.is_empty() {
            return all
                .iter()
                .filter(|process| process.pid != own && known.contains(&process.pid))
                .copied()
                .collect();
        }
        known.extend(more);
    }
}

/// The proportional set size of a process in bytes: its private memory and its share of shared memory. `None` if
/// the kernel does not report it.
pub(crate) fn proportional_memory(pid: i32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let kib: u64 =
        rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Kills all descendants and returns when none is left. It first stops them, and repeats the sweep until it finds
/// no new ones, so that none can fork any more; then it kills them. This process must be their subreaper.
pub(crate) fn kill_all() {
    let mut stopped = HashSet::new();
    // A fork bomb cannot keep this up for long, because its stopped processes no longer fork.
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

/// Gives killed processes a moment to exit.
#[expect(clippy::disallowed_methods, reason = "the helper has one thread, no runtime and nothing else to do")]
fn pause() {
    std::thread::sleep(Duration::from_micros(300));
}

/// Whether this process still has children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReapOutcome {
    /// Some children have not exited.
    ChildrenRemain,
    /// There are no children, and so no descendants either.
    NoChildren,
}

/// Reaps the children that have exited, without waiting for others.
pub(crate) fn reap_children() -> ReapOutcome {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return ReapOutcome::ChildrenRemain,
            Err(_) => return ReapOutcome::NoChildren,
        }
    }
}

/// Sends a signal to a process, unless its id now belongs to another one.
fn send_signal(process: Process, signal: Signal) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if Process::read(process.pid).is_some_and(|now| now.start_ticks == process.start_ticks) {
        // This fails if the process has just exited, which is as good.
        let _ = pidfd_send_signal(handle, signal);
    }
}

#[cfg(test)]
#[path = "../tests/unit/descendants.rs"]
mod tests;
