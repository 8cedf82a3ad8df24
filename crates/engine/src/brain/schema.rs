//! The brain's schema and how it is opened.
//!
//! `user_version` holds the schema's version. Within a major version of the engine migrations only add, so an
//! earlier minor version opens the brain too; a version beyond [`MIGRATIONS`] is refused.

use std::path::Path;

use rusqlite::Connection;

use super::BrainError;

/// What leads from one version to the next: the first entry makes version 1 of an empty file.
const MIGRATIONS: [&str; 1] = ["
    CREATE TABLE tasks (
        task       INTEGER PRIMARY KEY,
        task_id    TEXT NOT NULL UNIQUE,
        created_at INTEGER NOT NULL
    );
    CREATE TABLE turns (
        turn      INTEGER PRIMARY KEY,
        turn_id   TEXT NOT NULL UNIQUE,
        task      INTEGER NOT NULL REFERENCES tasks,
        -- The user's message, which every phase of the turn names.
        message_id TEXT NOT NULL,
        opened_at INTEGER NOT NULL,
        ended_at  INTEGER,
        -- How many starts of the engine have taken the turn up since its last step.
        starts    INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX turns_open ON turns (turn) WHERE ended_at IS NULL;
    -- The journal, which is also the thread: what a turn did, in order. Nothing here is ever changed.
    CREATE TABLE steps (
        step INTEGER PRIMARY KEY,
        task INTEGER NOT NULL REFERENCES tasks,
        turn INTEGER NOT NULL REFERENCES turns,
        at   INTEGER NOT NULL,
        -- The task's newest event when the step was on record: what comes after it belongs to the next step.
        ts   INTEGER NOT NULL,
        body TEXT NOT NULL
    );
    CREATE INDEX steps_of_task ON steps (task, step);
    -- What clients see, in the order of their task's clock.
    CREATE TABLE events (
        task INTEGER NOT NULL REFERENCES tasks,
        ts   INTEGER NOT NULL,
        turn INTEGER NOT NULL REFERENCES turns,
        kind TEXT NOT NULL,
        data TEXT NOT NULL,
        PRIMARY KEY (task, ts)
    ) WITHOUT ROWID;
    CREATE TABLE working_memory (
        task  INTEGER NOT NULL REFERENCES tasks,
        key   TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (task, key)
    ) WITHOUT ROWID;
"];

/// Opens the write connection and brings the schema up to date.
pub(super) fn open(file: &Path) -> Result<Connection, BrainError> {
    let failed = |error| BrainError::of(file, error);
    let mut connection = Connection::open(file).map_err(failed)?;
    // Before any change to the file: one that is not ours stays as it is.
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if found > known {
        return Err(BrainError::NewerSchema { file: file.to_owned(), found, known });
    }
    if found == 0 && has_tables(&connection).map_err(failed)? {
        return Err(BrainError::Foreign { file: file.to_owned() });
    }
    migrate(&mut connection, found).map_err(failed)?;
    Ok(connection)
}

fn has_tables(connection: &Connection) -> Result<bool, rusqlite::Error> {
    connection.query_row("SELECT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| row.get(0))
}

fn migrate(connection: &mut Connection, found: i64) -> Result<(), rusqlite::Error> {
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    bound_memory(connection)?;
    for (version, migration) in (1_i64..).zip(MIGRATIONS) {
        if version > found {
            // The version goes up with the change or not at all.
            let transaction = connection.transaction()?;
            transaction.execute_batch(migration)?;
            transaction.pragma_update(None, "user_version", version)?;
            transaction.commit()?;
        }
    }
    Ok(())
}

/// Keeps a connection's page cache small (KiB): there is one engine per user, and most are idle.
pub(super) fn bound_memory(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection.pragma_update(None, "cache_size", -512)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(())
}
