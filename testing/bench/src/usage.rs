//! What a process has used, finer than the kernel's clock ticks: processor time, and what it has written.

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
    /// Of `process`, now.
    pub(crate) fn measure(process: &Process) -> anyhow::Result<Self> {
        let threads = format!("/proc/{}/task", process.pid());
        let mut used = BTreeMap::new();
        for thread in fs::read_dir(&threads).with_context(|| format!("{threads} cannot be read"))? {
            let thread = thread?;
            let path = thread.path().join("schedstat");
            // A thread may end meanwhile.
            if let Ok(text) = fs::read_to_string(&path) {
                let time = first_number(&text);
                let time = time.with_context(|| format!("{} has no known form", path.display()))?;
                used.insert(thread.file_name(), time);
            }
        }
        Ok(Self(used))
    }

    /// What was used since `earlier`, in microseconds. What a thread used that has ended in between is not seen.
    pub(crate) fn micros_since(&self, earlier: &Self) -> f64 {
        let spent = |(thread, now): (&OsString, &u64)| {
            now.saturating_sub(earlier.0.get(thread).copied().unwrap_or_default())
        };
        Duration::from_nanos(self.0.iter().map(spent).sum()).as_secs_f64() * 1_000_000.0
    }
}

/// The bytes that `process` has made the kernel write to a disk, whole pages of the cache each.
///
/// Unlike the bytes that it has passed to `write`, these hold no sockets.
pub(crate) fn bytes_written(process: &Process) -> anyhow::Result<u64> {
    let path = format!("/proc/{}/io", process.pid());
    let text = fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
    let written = text.lines().find_map(|line| line.strip_prefix("write_bytes:"));
    written.and_then(first_number).with_context(|| format!("{path} has no known form"))
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Where a SQLite file's write-ahead log stands, by the index beside it
/// (<https://www.sqlite.org/walformat.html>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WalState {
    /// The bytes of a page.
    page_size: u64,
    /// How many frames the log has since it was last begun anew.
    frames: u64,
    /// The pages that the database has.
    page_count: u64,
}

/// What each frame has beside its page.
const FRAME_HEADER: u64 = 24;

impl WalState {
    /// Of the database `file`, which must be in use.
    pub(crate) fn of_database(file: &Path) -> anyhow::Result<Self> {
        let mut index = file.as_os_str().to_owned();
        index.push("-shm");
        let bytes =
            fs::read(&index).with_context(|| format!("{} cannot be read", Path::new(&index).display()))?;
        let log = Self::parse(&bytes).context("the index of the log has no known form")?;
        ensure!(
            log.page_size.is_power_of_two() && log.page_size >= 512,
            "a page of {} bytes cannot be",
            log.page_size
        );
        Ok(log)
    }

    fn parse(index: &[u8]) -> Option<Self> {
        let short = |at: usize| Some(u16::from_ne_bytes(index.get(at..at + 2)?.try_into().ok()?));
        let long = |at: usize| Some(u32::from_ne_bytes(index.get(at..at + 4)?.try_into().ok()?));
        // 65,536 does not fit and is written as 1.
        let page = match short(14)? {
            1 => 65_536,
            page => page.into(),
        };
        Some(Self { page_size: page, frames: long(16)?.into(), page_count: long(20)?.into() })
    }

    /// The bytes that were written to the log since `earlier`, where it was begun anew at most once. What was
    /// written between `earlier` and that new beginning is not seen.
    pub(crate) const fn written_since(self, earlier: Self) -> u64 {
        let frames = match self.frames.checked_sub(earlier.frames) {
            Some(frames) => frames,
            None => self.frames,
        };
        frames * (self.page_size + FRAME_HEADER)
    }

    /// The bytes by which the database has grown since `earlier`.
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
        // The table's page and two or three pages for what does not fit.
        let frames = after.written_since(before) / (4_096 + 24);
        assert!((3..=5).contains(&frames), "{before:?} {after:?}");
        assert_eq!(after.written_since(before) % (4_096 + 24), 0);
        assert!((8_192..=12_288).contains(&after.grown_since(before)), "{before:?} {after:?}");
        connection.execute_batch("PRAGMA wal_checkpoint(RESTART); INSERT INTO t VALUES (1)").unwrap();
        let force_new = WalState::of_database(&file).unwrap();
        assert!(
            force_new.frames < after.frames && force_new.written_since(after) > 0,
            "{after:?} {force_new:?}"
        );
        assert!(WalState::of_database(&folder.path().join("missing")).is_err());
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "the sums are exact")]
    fn time_is_counted_for_each_thread() {
        let cpu = |times: &[(&str, u64)]| {
            CpuUsage(times.iter().map(|(thread, time)| (OsString::from(thread), *time)).collect())
        };
        // One went on, one is new, one has ended.
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
