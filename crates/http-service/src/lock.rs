//! A lock between processes: an advisory lock on a file, which the system releases when its holder ends, however
//! that happens. The file remains, and names the last holder.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::Timestamp;

/// How long to wait for a held lock. If a process is killed while it is spawning another one, the child holds the
/// lock until its `exec` closes the file, which takes only moments.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(1);

/// The time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The number of bytes read of the holder's note.
const MAX_NOTE_BYTES: u64 = 200;

/// The lock, held until it is dropped.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

/// A description of the process that holds a lock, written by that process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder(String);

impl LockHolder {
    /// Creates a holder with this description.
    pub const fn new(description: String) -> Self {
        Self(description)
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a lock could not be acquired.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock.
    #[error("{0} holds the lock")]
    Held(LockHolder),
    /// The lock's file cannot be used.
    #[error("the lock {file} cannot be acquired: its folder must be writable")]
    Io {
        /// The lock's file.
        file: PathBuf,
        /// The error that the system returned.
        #[source]
        source: io::Error,
    },
}

impl FileLock {
    /// Acquires the lock on `file`; if another process holds it, the error names that process. Blocks for at most
    /// one second, and is meant for startup.
    pub fn acquire(file: &Path, now: Timestamp) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { file: file.to_owned(), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let opened = options.open(file).map_err(failed)?;
        let mut locked = match opened.try_lock() {
            Ok(()) => opened,
            Err(TryLockError::WouldBlock) => {
                let holder = read_holder(&opened);
                wait_for_lock(opened).map_err(failed)?.ok_or(LockError::Held(holder))?
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        };
        let note = format!("process {} (since {now})\n", std::process::id());
        let written = locked.set_len(0).and_then(|()| locked.rewind());
        written.and_then(|()| locked.write_all(note.as_bytes())).map_err(failed)?;
        Ok(Self { _file: locked })
    }
}

/// Waits for the lock on `file`; returns `None` if it is still held after [`ACQUIRE_TIMEOUT`]. This polls, because
/// a thread blocked in the system's own wait could not be interrupted.
fn wait_for_lock(file: File) -> io::Result<Option<File>> {
    let started = Instant::now();
    while started.elapsed() < ACQUIRE_TIMEOUT {
        std::thread::park_timeout(RETRY_INTERVAL);
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(None)
}

/// Reads the holder's note. It is missing if the holder has not written it yet or the disk was full.
fn read_holder(file: &File) -> LockHolder {
    let mut note = String::new();
    let read = file.take(MAX_NOTE_BYTES).read_to_string(&mut note);
    let note = note.trim();
    if read.is_err() || note.is_empty() {
        LockHolder("another process".into())
    } else {
        LockHolder(note.into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_ms(1_795_174_231_042);

    fn file() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lock");
        (folder, file)
    }

    #[test]
    fn a_second_taker_is_told_who_holds_the_lock() {
        let (_folder, file) = file();
        let held = FileLock::acquire(&file, NOW).unwrap();
        let LockError::Held(holder) = FileLock::acquire(&file, NOW).unwrap_err() else {
            panic!("the lock failed for another reason")
        };
        let expected = format!("process {} (since 2026-11-20T11:30:31.042Z)", std::process::id());
        assert_eq!(holder.to_string(), expected);
        drop(held);
        assert!(FileLock::acquire(&file, NOW).is_ok());
    }

    #[test]
    fn a_lock_about_to_be_freed_is_waited_for() {
        let (_folder, file) = file();
        let held = FileLock::acquire(&file, NOW).unwrap();
        let (done, result) = mpsc::channel();
        let path = file.clone();
        std::thread::spawn(move || done.send(FileLock::acquire(&path, NOW).is_ok()).unwrap());
        assert!(result.recv_timeout(Duration::from_millis(50)).is_err(), "it was not waited for");
        drop(held);
        assert!(result.recv().unwrap());
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let (folder, _) = file();
        let error = FileLock::acquire(folder.path(), NOW).unwrap_err().to_string();
        assert!(error.contains(folder.path().to_str().unwrap()), "{error}");
    }
}
