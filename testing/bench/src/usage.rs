//! Resource usage of a process: processor time, finer than the kernel's clock ticks, and bytes written to disk.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::process::Process;

/// The processor time that each living thread of a process has used, in nanoseconds.
pub(crate) struct CpuUsage(BTreeMap<OsString, u64>);

impl CpuUsage {
    /// Reads the current usage of `process`.
    pub(crate) fn measure(process: &Process) -> anyhow::Result<Self> {
        let threads = format!("/proc/{}/task", process.pid());
        let mut used = BTreeMap::new();
        for thread in fs::read_dir(&threads).with_context(|| format!("{threads} cannot be read"))? {
            let thread = thread?;
            let path = thread.path().join("schedstat");
            // A thread may exit in the meantime.
            if let Ok(text) = fs::read_to_string(&path) {
                let time = first_number(&text);
                let time = time.with_context(|| format!("{} has an unknown format", path.display()))?;
                used.insert(thread.file_name(), time);
            }
        }
        Ok(Self(used))
    }

    /// Returns the processor time used since `earlier`, in microseconds, without that of threads that exited in
    /// between.
    pub(crate) fn micros_since(&self, earlier: &Self) -> f64 {
        let spent = |(thread, now): (&OsString, &u64)| {
            now.saturating_sub(earlier.0.get(thread).copied().unwrap_or_default())
        };
        Duration::from_nanos(self.0.iter().map(spent).sum()).as_secs_f64() * 1_000_000.0
    }
}

/// Returns the bytes that `process` has caused to be written to disk, in whole pages of the page cache.
///
/// Unlike the bytes that it has passed to `write`, they do not include sockets.
pub(crate) fn bytes_written(process: &Process) -> anyhow::Result<u64> {
    let path = format!("/proc/{}/io", process.pid());
    let text = fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
    let written = text.lines().find_map(|line| line.strip_prefix("write_bytes:"));
    written.and_then(first_number).with_context(|| format!("{path} has an unknown format"))
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// The position of a SQLite database's write-ahead log, read from its index file
/// (<https://www.sqlite.org/walformat.html>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WalState {
    /// The size of a page in bytes.
    page_size: u64,
    /// The number of frames since the log was last restarted.
    frames: u64,
    /// The size of the database in pages.
    page_count: u64,
}

/// The size of the header of each frame, in bytes.
const FRAME_HEADER: u64 = 24;

impl WalState {
    /// Reads the state of the database `file`, which must be open in some process.
    pub(crate) fn of_database(file: &Path) -> anyhow::Result<Self> {
        let mut index = file.as_os_str().to_owned();
        index.push("-shm");
        let bytes =
            fs::read(&index).with_context(|| format!("{} cannot be read", Path::new(&index).display()))?;
        let log = Self::parse(&bytes).context("the index of the write-ahead log has an unknown format")?;
        ensure!(
            log.page_size.is_power_of_two() && log.page_size >= 512,
            "a page size of {} bytes is invalid",
            log.page_size
        );
        Ok(log)
    }

    fn parse(index: &[u8]) -> Option<Self> {
        let short = |at: usize| Some(u16::from_ne_bytes(index.get(at..at + 2)?.try_into().ok()?));
        let long = |at: usize| Some(u32::from_ne_bytes(index.get(at..at + 4)?.try_into().ok()?));
        // 65,536 does not fit into 16 bits and is written as 1.
        let page = match short(14)? {
            1 => 65_536,
            page => page.into(),
        };
        Some(Self { page_size: page, frames: long(16)?.into(), page_count: long(20)?.into() })
    }

    /// Returns the bytes written to the log since `earlier`, if it was restarted at most once in between. Bytes
    /// written between `earlier` and the restart are not included.
    pub(crate) const fn written_since(self, earlier: Self) -> u64 {
        let frames = match self.frames.checked_sub(earlier.frames) {
            Some(frames) => frames,
            None => self.frames,
        };
        frames * (self.page_size + FRAME_HEADER)
    }

    /// Returns the bytes by which the database has grown since `earlier`.
    pub(crate) const fn grown_since(self, earlier: Self) -> u64 {
        self.page_count.saturating_sub(earlier.page_count) * self.page_size
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn the_log_is_read_as_its_format_says() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("some.sqlite");
        let connection = Connection::open(&file).unwrap();
        connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (x)").unwrap();
        let before = WalState::of_database(&file).unwrap();
        connection.execute_batch("INSERT INTO t VALUES (zeroblob(10000))").unwrap();
        let after = WalState::of_database(&file).unwrap();
        // The table's page, and two or three overflow pages.
        let frames = after.written_since(before) / (4_096 + 24);
        assert!((3..=5).contains(&frames), "{before:?} {after:?}");
        assert_eq!(after.written_since(before) % (4_096 + 24), 0);
        assert!((8_192..=12_288).contains(&after.grown_since(before)), "{before:?} {after:?}");
        connection.execute_batch("PRAGMA wal_checkpoint(RESTART); INSERT INTO t VALUES (1)").unwrap();
        let restarted = WalState::of_database(&file).unwrap();
        assert!(
            restarted.frames < after.frames && restarted.written_since(after) > 0,
            "{after:?} {restarted:?}"
        );
        assert!(WalState::of_database(&folder.path().join("missing")).is_err());
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "the sums are exact")]
    fn time_is_counted_for_each_thread() {
        let cpu = |times: &[(&str, u64)]| {
            CpuUsage(times.iter().map(|(thread, time)| (OsString::from(thread), *time)).collect())
        };
        // One thread continued, one is new, one has exited.
        let (earlier, later) = (cpu(&[("1", 5_000), ("2", 9_000)]), cpu(&[("1", 7_000), ("3", 1_000)]));
        assert_eq!(later.micros_since(&earlier), 3.0);
        assert_eq!(later.micros_since(&later), 0.0);
    }

    #[test]
    fn numbers_are_read_as_the_manual_pages_say() {
        assert_eq!(first_number("1234 56 7\n"), Some(1_234));
        assert_eq!(first_number("    "), None);
    }
}
