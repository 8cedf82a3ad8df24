//! Figures of this process: memory, files, threads and processor time.

use std::fs;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// What the system says about this process. Figures that it does not give are 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProcessFigures {
    pub(super) resident_bytes: i64,
    pub(super) threads: i64,
    pub(super) open_files: i64,
    pub(super) max_open_files: i64,
    pub(super) processor_time: Duration,
}

impl ProcessFigures {
    /// Reads the figures. Reads files of `/proc`, which takes microseconds, or more with many open files.
    pub(super) fn read() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().next()?.parse::<i64>().ok()
        };
        let open_files = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        // Its own handle on the folder is not counted.
        let open_files = i64::try_from(open_files.saturating_sub(1)).unwrap_or(i64::MAX);
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let (seconds, nanoseconds) = (u64::try_from(used.tv_sec), u32::try_from(used.tv_nsec));
        Self {
            resident_bytes: field("VmRSS:").unwrap_or_default().saturating_mul(1024),
            threads: field("Threads:").unwrap_or_default(),
            open_files,
            max_open_files: i64::try_from(limit).unwrap_or(i64::MAX),
            processor_time: Duration::new(seconds.unwrap_or_default(), nanoseconds.unwrap_or_default()),
        }
    }
}
