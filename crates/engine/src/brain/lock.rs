//! The lock beside a brain: an advisory file lock, released by the kernel when its holder ends, however it
//! ends. The file is close-on-exec (the standard library opens all files so), so no child inherits the lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

/// Why the lock could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another engine runs on this brain.
    #[error("the brain {brain} is in use by another engine (process {holder}): stop that one first")]
    Held {
        /// The brain.
        brain: PathBuf,
        /// The holder's process id, as it wrote it down.
        holder: String,
    },
    /// The lock file could not be opened or locked.
    #[error("the lock {file} cannot be taken: its folder must be writable")]
    Io {
        /// The lock file.
        file: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// An exclusive lock on a brain, held until dropped.
#[derive(Debug)]
pub(super) struct BrainLock {
    _file: File,
}

impl BrainLock {
    pub(super) fn take(brain: &Path) -> Result<Self, LockError> {
        let mut path = brain.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let failed = |source| LockError::Io { file: path.clone(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Whoever holds it may not have written its number yet.
                let _ = file.read_to_string(&mut holder);
                let holder = if holder.is_empty() { "unknown".into() } else { holder };
                return Err(LockError::Held { brain: brain.to_owned(), holder });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let written = file.set_len(0).and_then(|()| file.rewind());
        written.and_then(|()| write!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(Self { _file: file })
    }
}
