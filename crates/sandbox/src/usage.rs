//! Measures the resources that a program and its descendants use, and compares them with the limits. The helper
//! does so every few milliseconds.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::descendants::{self, Process};
use crate::{ExceededLimit, Limits};

/// The interval between checks of a program that computes or starts processes.
const BUSY_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The interval between checks of an idle program.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The resources that a program and its descendants use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceUsage {
    /// The time since the program started.
    pub time: Duration,
    /// Resident memory, in bytes.
    pub memory: u64,
    /// The number of processes and threads.
    pub processes: u64,
    /// The free space on the workspace's file system, in bytes. `None` if the system does not report it.
    pub disk_left: Option<u64>,
}

/// Returns the first limit that is exceeded.
pub(crate) fn exceeded_limit(limits: &Limits, usage: &ResourceUsage) -> Option<ExceededLimit> {
    if limits.time.is_some_and(|time| usage.time >= time) {
        return Some(ExceededLimit::Time);
    }
    if usage.processes > u64::from(limits.processes) {
        return Some(ExceededLimit::Processes);
    }
    if usage.memory > limits.memory {
        return Some(ExceededLimit::Memory);
    }
    if usage.disk_left.is_some_and(|left| left < limits.disk_left) {
        return Some(ExceededLimit::Disk);
    }
    None
}

/// Checks the descendants of this process against the limits of a program.
pub(crate) struct UsageMonitor<'a> {
    limits: Limits,
    workspace: &'a Path,
    started_at: Instant,
    page_size: u64,
    /// The number of processes and their total processor time at the last check.
    last_activity: (usize, u64),
}

impl<'a> UsageMonitor<'a> {
    /// Starts to monitor a program that starts now.
    pub(crate) fn new(limits: &Limits, workspace: &'a Path) -> Self {
        let page_size = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
        // On a nearly full disk, a program may still write a little or delete files.
        let free = disk_left(workspace).filter(|free| *free < limits.disk_left);
        let disk_left = free.map_or(limits.disk_left, |free| free / 2);
        let limits = Limits { disk_left, ..limits.clone() };
        Self { limits, workspace, started_at: Instant::now(), page_size, last_activity: (0, 0) }
    }

    /// Checks all limits. Returns the time until the next check, or the limit that is exceeded.
    pub(crate) fn check(&mut self) -> Result<Duration, ExceededLimit> {
        let max_processes = usize::try_from(self.limits.processes).unwrap_or(usize::MAX);
        let processes = descendants::list_up_to(max_processes.saturating_add(1));
        let usage = ResourceUsage {
            time: self.started_at.elapsed(),
            memory: self.memory(&processes),
            processes: processes.iter().map(|process| u64::from(process.threads)).sum(),
            disk_left: disk_left(self.workspace),
        };
        if let Some(exceeded) = exceeded_limit(&self.limits, &usage) {
            return Err(exceeded);
        }
        let activity = (processes.len(), processes.iter().map(|process| process.cpu_ticks).sum());
        let pause = if activity == self.last_activity { IDLE_POLL_INTERVAL } else { BUSY_POLL_INTERVAL };
        self.last_activity = activity;
        Ok(self.limits.time.map_or(pause, |time| pause.min(time.saturating_sub(usage.time))))
    }

    /// The resident memory of the processes, in bytes. Their resident sets are cheap to add up, but count shared
    /// pages several times. Only if the sum exceeds the limit are shared pages divided among their processes.
    fn memory(&self, processes: &[Process]) -> u64 {
        let resident = |process: &Process| process.resident_pages.saturating_mul(self.page_size);
        let total = processes.iter().map(resident).sum();
        if total <= self.limits.memory {
            return total;
        }
        processes
            .iter()
            .map(|process| descendants::proportional_memory(process.pid).unwrap_or_else(|| resident(process)))
            .sum()
    }
}

/// The free space on the file system of `folder`, in bytes. It counts as zero when the inodes run out.
fn disk_left(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    // Some file systems do not limit inodes and report 0 of 0.
    if disk.f_files > 0 && disk.f_favail < 64 {
        return Some(0);
    }
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
#[path = "../tests/unit/usage.rs"]
mod tests;
