//! The brain's schema, and how a brain is opened and migrated.
//!
//! `user_version` holds the format, which changes only with a major version of the engine; a later format is
//! refused. Within a format, migrations only add. The applied ones are counted in the table `additions`, so an
//! earlier minor version can open the brain too and simply does not use what it does not know. Before a brain with
//! content is migrated, a backup of it is made beside it.

mod migrations;

use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension as _};

use self::migrations::{BASE_SCHEMA, MIGRATIONS};
use super::{BrainError, backups};

/// The format that `user_version` holds.
const FORMAT_VERSION: i64 = 1;

/// The size up to which the write-ahead log is kept for reuse after a checkpoint, in bytes.
const WAL_SIZE_LIMIT_BYTES: i64 = 64 * 1024 * 1024;

/// Opens the write connection and migrates the schema.
pub(super) fn open(file: &Path) -> Result<Connection, BrainError> {
    let failed = |error| BrainError::from_sqlite(file, error);
    let unusable = |source| BrainError::Folder { folder: file.parent().unwrap_or(file).to_owned(), source };
    backups::create_private_file(file).map_err(unusable)?;
    let mut connection = Connection::open(file).map_err(failed)?;
    // Checked before the file is changed: a file that is not a brain stays as it is.
    let found = check_format(&connection, file)?;
    if found == 0 && has_tables(&connection).map_err(failed)? {
        return Err(BrainError::Foreign { file: file.to_owned() });
    }
    backups::restrict_permissions(file).map_err(unusable)?;
    if found == 0 {
        // This must be set while the database is empty.
        connection.pragma_update(None, "auto_vacuum", "incremental").map_err(failed)?;
    }
    let applied = count_applied(&connection).map_err(failed)?;
    if found == FORMAT_VERSION && applied < MIGRATIONS.len() {
        connection = backups::create_backup(connection, file, applied)?;
    }
    connection.pragma_update(None, "journal_mode", "wal").map_err(failed)?;
    // Overwrites deleted content. What SQLite still leaves of it is removed by an erasure.
    connection.pragma_update(None, "secure_delete", true).map_err(failed)?;
    // A turn is inserted from its task's row, and its steps and events from the turn's row. Enforcing foreign keys
    // would make the deletion of each turn search all events of the brain.
    connection.pragma_update(None, "foreign_keys", false).map_err(failed)?;
    configure(&connection, 512).map_err(failed)?;
    // The space that one large commit added to the log is released after a checkpoint.
    connection.pragma_update(None, "journal_size_limit", WAL_SIZE_LIMIT_BYTES).map_err(failed)?;
    migrate(&mut connection, found, applied).map_err(failed)?;
    // Keeps the journals of statements and savepoints in memory. Indexing a turn into memory produces a larger one
    // than SQLite buffers by default, and would create a temporary file each time.
    connection.pragma_update(None, "temp_store", "memory").map_err(failed)?;
    Ok(connection)
}

/// Returns the format of the brain in `file`, which this version must know.
pub(super) fn check_format(connection: &Connection, file: &Path) -> Result<i64, BrainError> {
    let found = connection.pragma_query_value(None, "user_version", |row| row.get(0));
    let found: i64 = found.map_err(|error| BrainError::from_sqlite(file, error))?;
    if found > FORMAT_VERSION {
        return Err(BrainError::NewerSchema { file: file.to_owned(), found, known: FORMAT_VERSION });
    }
    Ok(found)
}

fn has_tables(connection: &Connection) -> Result<bool, rusqlite::Error> {
    connection.query_row("SELECT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| row.get(0))
}

/// The number of migrations that were applied to the brain.
fn count_applied(connection: &Connection) -> Result<usize, rusqlite::Error> {
    let table = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'additions'";
    match connection.query_row(table, [], |_| Ok(())).optional()? {
        Some(()) => {
            let count = "SELECT COUNT(*) FROM additions";
            let count: i64 = connection.query_row(count, [], |row| row.get(0))?;
            Ok(usize::try_from(count).unwrap_or(0))
        }
        None => Ok(0),
    }
}

fn migrate(connection: &mut Connection, found: i64, applied: usize) -> Result<(), rusqlite::Error> {
    if found == FORMAT_VERSION && applied >= MIGRATIONS.len() {
        return Ok(());
    }
    // All migrations are applied, or none.
    let transaction = connection.transaction()?;
    if found < FORMAT_VERSION {
        transaction.execute_batch(BASE_SCHEMA)?;
        transaction.pragma_update(None, "user_version", FORMAT_VERSION)?;
    }
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS additions (addition INTEGER PRIMARY KEY, at TEXT NOT NULL)",
    )?;
    for addition in MIGRATIONS.iter().skip(applied) {
        transaction.execute_batch(addition)?;
        transaction.execute("INSERT INTO additions (at) VALUES (datetime('now'))", [])?;
    }
    transaction.commit()
}

/// Opens a connection for checkpoints, which needs hardly any page cache.
pub(super) fn connect_for_checkpoint(file: &Path) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open(file)?;
    configure(&connection, 64)?;
    Ok(connection)
}

/// Configures a connection. Its page cache is limited to `kib` KiB, because there is one engine per user and most
/// are idle.
pub(super) fn configure(connection: &Connection, kib: i64) -> Result<(), rusqlite::Error> {
    connection.pragma_update(None, "cache_size", -kib)?;
    // Query plans do not depend on bound values. Otherwise each statement with `LIMIT ?` is planned again for each
    // value.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(48);
    // A dedicated thread runs the checkpoints.
    connection.pragma_update(None, "wal_autocheckpoint", 0)
}

/// Creates in `file` an empty brain as a version with the first `additions` migrations makes it.
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, reason = "only tests have it")]
fn create_empty_older_version(file: &Path, additions: usize) -> Connection {
    let connection = Connection::open(file).unwrap();
    connection.execute_batch(BASE_SCHEMA).unwrap();
    connection.pragma_update(None, "user_version", FORMAT_VERSION).unwrap();
    connection
        .execute_batch("CREATE TABLE additions (addition INTEGER PRIMARY KEY, at TEXT NOT NULL)")
        .unwrap();
    for addition in MIGRATIONS.iter().take(additions) {
        connection.execute_batch(addition).unwrap();
        connection.execute("INSERT INTO additions (at) VALUES ('then')", []).unwrap();
    }
    connection
}

/// Creates in `file` the brain that a version with the first `additions` migrations would have made with the
/// content of `newer`.
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::missing_panics_doc, clippy::unwrap_used, reason = "only tests have it")]
pub fn create_older_version(newer: &Path, file: &Path, additions: usize) {
    let connection = create_empty_older_version(file, additions);
    connection.execute("ATTACH ?1 AS newer", [newer.to_str().unwrap()]).unwrap();
    // Triggers fill the full-text indexes from what is copied.
    let tables = "SELECT name, (SELECT group_concat(name) FROM pragma_table_info(tables.name))
                  FROM sqlite_schema AS tables
                  WHERE type = 'table' AND name <> 'additions' AND instr(name, '_words') = 0";
    let mut tables = connection.prepare(tables).unwrap();
    let tables = tables.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    for (table, columns) in tables.collect::<Result<Vec<(String, String)>, _>>().unwrap() {
        let copy = format!("INSERT INTO main.{table} ({columns}) SELECT {columns} FROM newer.{table}");
        connection.execute_batch(&copy).unwrap();
    }
    connection.pragma_update(None, "journal_mode", "wal").unwrap();
}

#[cfg(test)]
#[path = "../tests/unit/schema.rs"]
mod tests;
