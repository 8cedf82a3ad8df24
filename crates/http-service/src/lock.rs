//! A lock that one process holds: an advisory lock on a file, which the system drops with its holder, however
//! that ends. The file stays, and says who held it last.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::Timestamp;

/// How long a lock that is taken is waited for. A process that was killed while it started another one leaves
/// its lock to that one until it has begun its program and, with that, closed the file: a matter of moments.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(1);

/// Between two tries.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// How much of the holder's note is read.
const MAX_NOTE_BYTES: u64 = 200;

/// The lock, held until it is dropped.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

/// Who holds a lock, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder(String);

impl LockHolder {
    /// A holder that is known by this description.
    pub const fn new(description: String) -> Self {
        Self(description)
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why there is no lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("{0} holds the lock")]
    Held(LockHolder),
    /// The lock's file cannot be used.
    #[error("the lock {file} cannot be taken: its folder must be writable")]
    Io {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl FileLock {
    /// Takes the lock in `file`, or says who has it. Blocks for a second at most: it is for starting up.
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

/// Waits for the lock on `file`; none if it is still taken when patience ends. It asks again and again: a thread
/// that slept in the system's own wait could not be called back.
fn wait_for_lock(file: File) -> io::Result<Option<File>> {
    let begun = Instant::now();
    while begun.elapsed() < ACQUIRE_TIMEOUT {
        std::thread::park_timeout(RETRY_INTERVAL);
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(None)
}

/// What the holder wrote. It may be just about to write it, or the disk was full: then it is nameless.
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
            panic!("the lock failed otherwise")
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
        let (taken, waiting) = mpsc::channel();
        let path = file.clone();
        std::thread::spawn(move || taken.send(FileLock::acquire(&path, NOW).is_ok()).unwrap());
        assert!(waiting.recv_timeout(Duration::from_millis(50)).is_err(), "it was not waited for");
        drop(held);
        assert!(waiting.recv().unwrap());
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let (folder, _) = file();
        let error = FileLock::acquire(folder.path(), NOW).unwrap_err().to_string();
        assert!(error.contains(folder.path().to_str().unwrap()), "{error}");
    }
}
