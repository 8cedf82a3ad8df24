//! Copies of a brain as it was before it was brought up to date: the engine's own, and the one that an orchestrator makes
//! before it moves the engine to another version. They are for going back after an upgrade that went wrong, and are
//! removed once they have lain for a week, or something is deleted that they still hold.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::Connection;

use super::BrainError;

/// How long a copy is kept.
pub(crate) const BACKUP_LIFETIME: Duration = Duration::from_hours(7 * 24);
/// The mode of all files of a brain: a conversation is nobody's business but its user's.
const FILE_MODE: u32 = 0o600;
/// What `PRAGMA auto_vacuum` says of a brain that gives free pages back step by step.
const AUTO_VACUUM_INCREMENTAL: i64 = 2;

/// What stands between the brain's name and the number of a copy.
const BACKUP_SUFFIX: &str = ".before-";
/// What an unfinished copy ends with.
const UNFINISHED_SUFFIX: &str = ".tmp";

/// The folder of an orchestrator's copy, beside the brain.
const ORCHESTRATOR_BACKUP_DIR: &str = "brain.before";

/// Where the copy lies that was made before the brain got its `applied + 1`st addition.
pub(super) fn backup_path(file: &Path, applied: usize) -> PathBuf {
    with_suffix(file, &format!("{BACKUP_SUFFIX}{}", applied + 1))
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Makes a file, where there is none, that only its owner can read.
pub(super) fn create_private_file(file: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(file).map(drop)
}

/// Makes sure that only its owner can read a brain and what lies beside it. Whatever SQLite adds gets the brain's mode.
pub(super) fn restrict_permissions(file: &Path) -> io::Result<()> {
    let beside = [file.to_owned(), with_suffix(file, "-wal"), with_suffix(file, "-shm")];
    for file in beside.into_iter().chain(backup_files(file)) {
        match fs::set_permissions(&file, Permissions::from_mode(FILE_MODE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Keeps a copy of the brain as it is, in the place of one that an earlier try left, and gives the connection back.
///
/// A brain whose file cannot shrink is replaced by a compacted one on the way, which can, and becomes the copy itself:
/// that takes no longer than to copy it.
pub(super) fn create_backup(
    connection: Connection,
    file: &Path,
    applied: usize,
) -> Result<Connection, BrainError> {
    let copy = backup_path(file, applied);
    let unfinished = with_suffix(&copy, UNFINISHED_SUFFIX);
    let refuse = |reason: String| BrainError::Backup { copy: copy.clone(), reason };
    remove_if_exists(&unfinished).map_err(|error| refuse(error.to_string()))?;
    let failed = |error| BrainError::from_sqlite(file, error);
    let mode: i64 = connection.pragma_query_value(None, "auto_vacuum", |row| row.get(0)).map_err(failed)?;
    // Of the copy that is made now, and of no other.
    connection.pragma_update(None, "auto_vacuum", AUTO_VACUUM_INCREMENTAL).map_err(failed)?;
    write_backup(&connection, &unfinished).map_err(&refuse)?;
    let connection = if mode == AUTO_VACUUM_INCREMENTAL {
        fs::rename(&unfinished, &copy).map_err(|error| refuse(error.to_string()))?;
        connection
    } else {
        replace_with_compacted(connection, file, &unfinished, &copy)?
    };
    tracing::info!(copy = %copy.display(), "The brain is brought up to date; a copy of it as it was is kept.");
    Ok(connection)
}

fn write_backup(connection: &Connection, to: &Path) -> Result<(), String> {
    let path = to.to_str().ok_or("its path is not valid UTF-8")?;
    create_private_file(to).map_err(|error| error.to_string())?;
    connection.execute("VACUUM INTO ?1", [path]).map_err(|error| error.to_string())?;
    File::open(to).and_then(|written| written.sync_all()).map_err(|error| error.to_string())
}

/// Puts `compacted` in the brain's place, and the brain itself in the place of the copy. Where the two cannot be
/// exchanged at once, the compacted one becomes the copy, and the brain stays as it is.
fn replace_with_compacted(
    connection: Connection,
    file: &Path,
    compacted: &Path,
    copy: &Path,
) -> Result<Connection, BrainError> {
    let refuse = |error: io::Error| BrainError::Backup { copy: copy.to_owned(), reason: error.to_string() };
    // The last one that closes carries the log over. One that is left would be taken for that of the compacted brain.
    connection.close().map_err(|(_, error)| BrainError::from_sqlite(file, error))?;
    let log = with_suffix(file, "-wal");
    let has_log = fs::metadata(&log).is_ok_and(|log| log.len() > 0);
    remove_if_exists(copy).map_err(refuse)?;
    let exchanged = if has_log { Err(io::ErrorKind::ResourceBusy.into()) } else { fs::hard_link(file, copy) };
    match exchanged {
        Ok(()) => {
            fs::rename(compacted, file).map_err(refuse)?;
            // Its age counts from now.
            File::options().write(true).open(copy).and_then(|copy| copy.set_modified(SystemTime::now())).ok();
        }
        Err(error) => {
            tracing::warn!(%error, "The brain's file cannot be replaced; it will not shrink when something is deleted.");
            fs::rename(compacted, copy).map_err(refuse)?;
        }
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(refuse)?;
    Connection::open(file).map_err(|error| BrainError::from_sqlite(file, error))
}

/// Removes the copies of the brain in `file` that are older than `age`; all of them where there is none.
pub(super) fn remove_backups_older_than(file: &Path, age: Option<Duration>) -> io::Result<()> {
    for copy in backup_files(file).into_iter().chain([file.with_file_name(ORCHESTRATOR_BACKUP_DIR)]) {
        let modified = fs::metadata(&copy).and_then(|copy| copy.modified());
        let is_old = |age| modified.is_ok_and(|at| at.elapsed().is_ok_and(|passed| passed > age));
        if !fs::exists(&copy)? {
            continue;
        }
        if age.is_none_or(is_old) {
            if copy.is_dir() {
                fs::remove_dir_all(&copy)?;
            } else {
                remove_if_exists(&copy)?;
            }
            tracing::info!(copy = %copy.display(), "A copy of the brain from before an upgrade was removed.");
        }
    }
    Ok(())
}

/// The copies of the brain in `file`, unfinished ones too.
fn backup_files(file: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { return Vec::new() };
    let mut start: OsString = name.to_owned();
    start.push(BACKUP_SUFFIX);
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let is_copy = |name: &OsString| {
        let rest = name.as_encoded_bytes().strip_prefix(start.as_encoded_bytes());
        let rest = rest.map(|rest| rest.strip_suffix(UNFINISHED_SUFFIX.as_bytes()).unwrap_or(rest));
        rest.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
    };
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    names.filter(is_copy).map(|name| folder.join(name)).collect()
}

fn remove_if_exists(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
