//! Backups of a brain from before an upgrade: the engine's own, made before a migration, and the one that an
//! orchestrator makes before it moves the engine to another version. They allow a rollback after a failed upgrade.
//! They are removed after a week, or as soon as something is deleted that they still contain.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::Connection;

use super::BrainError;

/// How long a backup is kept.
pub const BACKUP_LIFETIME: Duration = Duration::from_hours(7 * 24);
/// The file mode of all files of a brain: only the owner may read a user's conversations.
const FILE_MODE: u32 = 0o600;
/// The value of `PRAGMA auto_vacuum` for incremental mode, in which free pages are released step by step.
const AUTO_VACUUM_INCREMENTAL: i64 = 2;

/// The part of a backup's file name between the brain's name and the backup's number.
const BACKUP_SUFFIX: &str = ".before-";
/// The suffix of an unfinished backup.
const UNFINISHED_SUFFIX: &str = ".tmp";

/// The folder beside the brain that holds the orchestrator's backup.
const ORCHESTRATOR_BACKUP_DIR: &str = "brain.before";

/// The path of the backup that is made when the brain has `applied` migrations, before the next one is applied.
pub(super) fn backup_path(file: &Path, applied: usize) -> PathBuf {
    with_suffix(file, &format!("{BACKUP_SUFFIX}{}", applied + 1))
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Creates an empty file that only its owner can access, unless it exists.
pub(super) fn create_private_file(file: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(file).map(drop)
}

/// Restricts access to a brain and the files beside it to the owner. Files that SQLite adds later inherit the
/// brain's mode.
pub(super) fn restrict_permissions(file: &Path) -> io::Result<()> {
    let files = [file.to_owned(), with_suffix(file, "-wal"), with_suffix(file, "-shm")];
    for file in files.into_iter().chain(backup_files(file)) {
        match fs::set_permissions(&file, Permissions::from_mode(FILE_MODE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Makes a backup of the brain, replacing one that an earlier attempt left, and returns the connection.
///
/// A brain whose file cannot shrink (no incremental auto-vacuum) is replaced by a compacted one that can, and the
/// original file becomes the backup. This takes no longer than copying the file.
pub(super) fn create_backup(
    connection: Connection,
    file: &Path,
    applied: usize,
) -> Result<Connection, BrainError> {
    let copy = backup_path(file, applied);
    let unfinished = with_suffix(&copy, UNFINISHED_SUFFIX);
    let backup_error = |reason: String| BrainError::Backup { copy: copy.clone(), reason };
    remove_if_exists(&unfinished).map_err(|error| backup_error(error.to_string()))?;
    let failed = |error| BrainError::from_sqlite(file, error);
    let mode: i64 = connection.pragma_query_value(None, "auto_vacuum", |row| row.get(0)).map_err(failed)?;
    // This affects only the copy that is written now.
    connection.pragma_update(None, "auto_vacuum", AUTO_VACUUM_INCREMENTAL).map_err(failed)?;
    write_backup(&connection, &unfinished).map_err(&backup_error)?;
    let connection = if mode == AUTO_VACUUM_INCREMENTAL {
        fs::rename(&unfinished, &copy).map_err(|error| backup_error(error.to_string()))?;
        connection
    } else {
        replace_with_compacted(connection, file, &unfinished, &copy)?
    };
    tracing::info!(backup = %copy.display(), "A backup of the brain was made before its schema is migrated.");
    Ok(connection)
}

fn write_backup(connection: &Connection, to: &Path) -> Result<(), String> {
    let path = to.to_str().ok_or("its path is not valid UTF-8")?;
    create_private_file(to).map_err(|error| error.to_string())?;
    connection.execute("VACUUM INTO ?1", [path]).map_err(|error| error.to_string())?;
    File::open(to).and_then(|written| written.sync_all()).map_err(|error| error.to_string())
}

/// Moves `compacted` to the brain's path and the brain to the backup's path. If the two cannot be exchanged
/// safely, the compacted file becomes the backup and the brain stays as it is.
fn replace_with_compacted(
    connection: Connection,
    file: &Path,
    compacted: &Path,
    copy: &Path,
) -> Result<Connection, BrainError> {
    let backup_error =
        |error: io::Error| BrainError::Backup { copy: copy.to_owned(), reason: error.to_string() };
    // Closing the last connection checkpoints the log. A log that remained would be applied to the compacted
    // brain.
    connection.close().map_err(|(_, error)| BrainError::from_sqlite(file, error))?;
    let log = with_suffix(file, "-wal");
    let has_log = fs::metadata(&log).is_ok_and(|log| log.len() > 0);
    remove_if_exists(copy).map_err(backup_error)?;
    let exchanged = if has_log { Err(io::ErrorKind::ResourceBusy.into()) } else { fs::hard_link(file, copy) };
    match exchanged {
        Ok(()) => {
            fs::rename(compacted, file).map_err(backup_error)?;
            // The backup's age counts from now, not from the brain's last write.
            File::options().write(true).open(copy).and_then(|copy| copy.set_modified(SystemTime::now())).ok();
        }
        Err(error) => {
            tracing::warn!(
                %error,
                "The brain's file cannot be replaced by a compacted one; it will not shrink after deletions."
            );
            fs::rename(compacted, copy).map_err(backup_error)?;
        }
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(backup_error)?;
    Connection::open(file).map_err(|error| BrainError::from_sqlite(file, error))
}

/// Removes the backups of the brain in `file` that are older than `age`, or all of them if `age` is `None`.
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
            tracing::info!(backup = %copy.display(), "A backup of the brain from before an upgrade was removed.");
        }
    }
    Ok(())
}

/// The backups of the brain in `file`, including unfinished ones.
fn backup_files(file: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { return Vec::new() };
    let mut prefix: OsString = name.to_owned();
    prefix.push(BACKUP_SUFFIX);
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let is_backup = |name: &OsString| {
        let rest = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes());
        let rest = rest.map(|rest| rest.strip_suffix(UNFINISHED_SUFFIX.as_bytes()).unwrap_or(rest));
        rest.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
    };
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    names.filter(is_backup).map(|name| folder.join(name)).collect()
}

fn remove_if_exists(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
