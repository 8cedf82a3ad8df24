//! Snapshots of a brain for backups: a consistent copy, made while turns go on, and the check of a brain that comes from
//! one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use http_service::clock::{Clock as _, SystemClock};
use http_service::lock::{FileLock, LockError};
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};

use super::{BrainError, backups, schema};

/// The suffix of the copy while it is being made.
const SNAPSHOT_SUFFIX: &str = ".snapshot";
/// How many pages are copied at a time.
const PAGES_PER_STEP: i32 = 1_024;

/// Takes the lock of the brain in `file`: whoever holds it is the only one that writes it.
pub fn lock(file: &Path) -> Result<FileLock, BrainError> {
    let mut lock = file.as_os_str().to_owned();
    lock.push(".lock");
    FileLock::acquire(Path::new(&lock), SystemClock::new().now()).map_err(|error| match error {
        LockError::Held(holder) => BrainError::InUse { file: file.to_owned(), holder },
        LockError::Io { file, source } => BrainError::Lock { file, source },
    })
}

/// Copies the brain in `file` as it is now, and returns the copy, which has no name any more: it is gone when it is
/// closed, even if the process is killed. The pages keep their places, so that two copies differ only where the brain
/// has changed. Turns go on meanwhile; the write-ahead log is not reset until the copy is made. Blocks.
pub fn snapshot(file: &Path) -> Result<File, BrainError> {
    let copy = snapshot_path(file);
    let failed = |error| BrainError::from_sqlite(file, error);
    let unusable = |source| BrainError::Folder { folder: file.parent().unwrap_or(file).to_owned(), source };
    remove_snapshot(file).map_err(unusable)?;
    backups::create_private_file(&copy).map_err(unusable)?;
    let written = write_copy(file, &copy);
    let opened = File::open(&copy);
    remove_snapshot(file).map_err(unusable)?;
    written.map_err(failed)?;
    opened.map_err(unusable)
}

fn write_copy(file: &Path, copy: &Path) -> Result<(), rusqlite::Error> {
    // An engine that was killed has left a log, which only a connection that may write can read.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let source = Connection::open_with_flags(file, flags)?;
    schema::configure(&source, 64)?;
    source.pragma_update(None, "query_only", true)?;
    // The transaction keeps what is copied the same, however often the brain changes meanwhile.
    source.execute_batch("BEGIN; SELECT COUNT(*) FROM sqlite_schema")?;
    let mut target = Connection::open(copy)?;
    target.pragma_update(None, "synchronous", "off")?;
    {
        let backup = Backup::new(&source, &mut target)?;
        while !matches!(backup.step(PAGES_PER_STEP)?, StepResult::Done) {}
    }
    target.close().map_err(|(_, error)| error)?;
    source.execute_batch("COMMIT")
}

/// Removes what an interrupted snapshot left.
pub(super) fn remove_snapshot(file: &Path) -> io::Result<()> {
    let copy = snapshot_path(file);
    for suffix in ["", "-journal", "-wal", "-shm"] {
        let mut path = copy.clone().into_os_string();
        path.push(suffix);
        if let Err(error) = fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
    }
    Ok(())
}

fn snapshot_path(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(SNAPSHOT_SUFFIX);
    PathBuf::from(path)
}

/// Checks that `file` is a sound brain of a format that this version can open. Blocks.
pub fn check(file: &Path) -> Result<(), BrainError> {
    let failed = |error| BrainError::from_sqlite(file, error);
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failed)?;
    schema::check_format(&connection, file)?;
    let found: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
    let closed = connection.close().map_err(|(_, error)| failed(error));
    if found != "ok" {
        return Err(BrainError::Foreign { file: file.to_owned() });
    }
    closed
}

#[cfg(test)]
#[path = "../tests/unit/snapshot.rs"]
mod tests;
