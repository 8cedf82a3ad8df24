//! One orchestrator per database: a lock on a file beside it.
//!
//! The system drops the lock with the process, however that ends. The file stays, and says who held it last.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use contract::Timestamp;

/// The lock, as long as it lives.
#[derive(Debug)]
pub(crate) struct RegistryLock {
    _file: File,
}

/// Who holds the lock, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder(String);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why there is no lock.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// Another process has it.
    #[error("{0} holds it")]
    Held(Holder),
    /// The file cannot be used.
    #[error("its lock file failed")]
    Io(#[source] io::Error),
}

impl RegistryLock {
    /// Takes the lock of the database at `database`, or says who has it.
    pub(crate) fn take(database: &Path, now: Timestamp) -> Result<Self, LockError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path(database))
            .map_err(LockError::Io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LockError::Held(holder(&file))),
            Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
        }
        let note = format!("process {} (since {now})\n", std::process::id());
        let written =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(note.as_bytes()));
        written.map_err(LockError::Io)?;
        Ok(Self { _file: file })
    }
}

fn path(database: &Path) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(".lock");
    path.into()
}

/// What the holder wrote. It may be just about to write it, or the disk was full: then it is nameless.
fn holder(file: &File) -> Holder {
    let mut note = String::new();
    let read = file.take(200).read_to_string(&mut note);
    let note = note.trim();
    if read.is_err() || note.is_empty() {
        return Holder("another process".to_owned());
    }
    Holder(note.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_taker_is_told_who_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("registry.db");
        let now = Timestamp::from_unix_ms(1_795_174_231_042);
        let held = RegistryLock::take(&database, now).unwrap();
        let LockError::Held(holder) = RegistryLock::take(&database, now).unwrap_err() else {
            panic!("the lock failed otherwise")
        };
        let expected = format!("process {} (since 2026-11-20T11:30:31.042Z)", std::process::id());
        assert_eq!(holder.to_string(), expected);
        drop(held);
        assert!(RegistryLock::take(&database, now).is_ok());
    }
}
