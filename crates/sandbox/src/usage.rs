//! What a program takes beside what it may: seen every few milliseconds, judged here.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::descendants::{self, Process};
use crate::{ExceededLimit, Limits};

/// How often a program is looked at that computes or starts others.
const BUSY_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How often one that does nothing.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What a program and its descendants take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceUsage {
    /// How long it has run.
    pub time: Duration,
    /// Memory, in bytes.
    pub memory: u64,
    /// Processes and threads.
    pub processes: u64,
    /// What it has left on the disk, in bytes; none where that is not told.
    pub disk_left: Option<u64>,
}

/// What it took too much of, if anything.
pub(crate) fn exceeded_limit(limits: &Limits, taken: &ResourceUsage) -> Option<ExceededLimit> {
    if limits.time.is_some_and(|time| taken.time >= time) {
        return Some(ExceededLimit::Time);
    }
    if taken.processes > u64::from(limits.processes) {
        return Some(ExceededLimit::Processes);
    }
    if taken.memory > limits.memory {
        return Some(ExceededLimit::Memory);
    }
    if taken.disk_left.is_some_and(|left| left < limits.disk_left) {
        return Some(ExceededLimit::Disk);
    }
    None
}

/// Looks at a program from time to time.
pub(crate) struct UsageMonitor<'a> {
    limits: Limits,
    workspace: &'a Path,
    started_at: Instant,
    page_size: u64,
    /// How many there were and how long they had computed when last looked at.
    last_activity: (usize, u64),
}

impl<'a> UsageMonitor<'a> {
    /// A watch over a program that begins now.
    pub(crate) fn new(limits: &Limits, workspace: &'a Path) -> Self {
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
        // On a disk that is nearly full a program may still do what takes little, or makes room.
        let room = disk_left(workspace).filter(|room| *room < limits.disk_left);
        let disk_left = room.map_or(limits.disk_left, |room| room / 2);
        let limits = Limits { disk_left, ..limits.clone() };
        Self { limits, workspace, started_at: Instant::now(), page_size: page, last_activity: (0, 0) }
    }

    /// Looks, and says what is too much or when to look again.
    pub(crate) fn check(&mut self) -> Result<Duration, ExceededLimit> {
        let most = usize::try_from(self.limits.processes).unwrap_or(usize::MAX);
        let processes = descendants::list_up_to(most.saturating_add(1));
        let taken = ResourceUsage {
            time: self.started_at.elapsed(),
            memory: self.memory(&processes),
            processes: processes.iter().map(|process| u64::from(process.threads)).sum(),
            disk_left: disk_left(self.workspace),
        };
        if let Some(excess) = exceeded_limit(&self.limits, &taken) {
            return Err(excess);
        }
        let now = (processes.len(), processes.iter().map(|process| process.cpu_ticks).sum());
        let pause = if now == self.last_activity { IDLE_POLL_INTERVAL } else { BUSY_POLL_INTERVAL };
        self.last_activity = now;
        Ok(self.limits.time.map_or(pause, |time| pause.min(time.saturating_sub(taken.time))))
    }

    /// What is in memory: counted once for each that has it, which is cheap; where that would be too much,
    /// shared parts are divided among those who share them.
    fn memory(&self, processes: &[Process]) -> u64 {
        let resident = |process: &Process| process.resident_pages.saturating_mul(self.page_size);
        let simple = processes.iter().map(resident).sum();
        if simple <= self.limits.memory {
            return simple;
        }
        processes
            .iter()
            .map(|process| descendants::proportional_memory(process.pid).unwrap_or_else(|| resident(process)))
            .sum()
    }
}

/// The room on the file system of `folder`, in bytes: none at all where it can hold no further file.
fn disk_left(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    // Some file systems count no inodes and say 0 of 0.
    if disk.f_files > 0 && disk.f_favail < 64 {
        return Some(0);
    }
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
