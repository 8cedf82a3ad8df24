//! The brain's schema and how it is opened.
//!
//! `user_version` holds the format, which changes only with a major version of the engine: a later one is
//! refused. Within a format migrations only add; those that were applied are counted in the table `additions`, so
//! that an earlier minor version opens the brain too and simply does not use what it does not know. Before a
//! brain that holds something is changed, a copy of it is kept beside it.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension as _};

use super::BrainError;

/// The format, as `user_version` holds it.
const FORMAT: i64 = 1;

/// What makes an empty file a brain.
const BASE: &str = "
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
";

/// What was added to the format since, in this order.
const ADDITIONS: [&str; 2] = [
    "
    ALTER TABLE tasks ADD COLUMN message_count INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE tasks ADD COLUMN updated_at INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX tasks_by_change ON tasks (updated_at, task);
    UPDATE tasks SET
        message_count = (
            SELECT COUNT(*) FROM steps
            WHERE steps.task = tasks.task AND body ->> '$.step' IN ('opened', 'answered')
        ),
        updated_at = COALESCE((SELECT MAX(at) FROM steps WHERE steps.task = tasks.task), created_at);
    -- The request that began the turn, by the caller's own name for it, and a hash of what it asked for.
    ALTER TABLE turns ADD COLUMN client_request_id TEXT;
    ALTER TABLE turns ADD COLUMN request_hash TEXT;
    -- The `ts` of the turn's first event.
    ALTER TABLE turns ADD COLUMN opened_ts INTEGER;
    -- Whether the turn's deltas have been taken out of `events`.
    ALTER TABLE turns ADD COLUMN folded INTEGER NOT NULL DEFAULT 0;
    CREATE UNIQUE INDEX turns_of_request ON turns (task, client_request_id) WHERE client_request_id IS NOT NULL;
    CREATE INDEX turns_of_task ON turns (task, turn);
    CREATE INDEX turns_to_fold ON turns (ended_at) WHERE folded = 0 AND ended_at IS NOT NULL;
    -- What waits for a person: of each turn at most one.
    CREATE TABLE pending (
        request_id TEXT PRIMARY KEY,
        task       INTEGER NOT NULL REFERENCES tasks,
        turn       INTEGER NOT NULL UNIQUE REFERENCES turns,
        kind       TEXT NOT NULL,
        question   TEXT NOT NULL,
        created_at INTEGER NOT NULL
    );
    -- What a person has allowed for good; in all tasks where there is none.
    CREATE TABLE grants (
        grant_id   TEXT PRIMARY KEY,
        tool       TEXT NOT NULL,
        task       INTEGER REFERENCES tasks,
        prefix     TEXT,
        created_at INTEGER NOT NULL
    );
    -- What people attached, once each.
    CREATE TABLE media (
        hash TEXT PRIMARY KEY,
        data BLOB NOT NULL
    );
    CREATE TABLE media_uses (
        task INTEGER NOT NULL REFERENCES tasks,
        hash TEXT NOT NULL REFERENCES media,
        PRIMARY KEY (task, hash)
    ) WITHOUT ROWID;
    CREATE INDEX media_uses_of_hash ON media_uses (hash);
",
    "
    -- What was set while the engine ran and is to stay.
    CREATE TABLE settings (
        name  TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) WITHOUT ROWID;
    -- What each call of a model has spent, for a day. It outlives its task: deleting one earns no budget.
    CREATE TABLE spending (
        at          INTEGER NOT NULL,
        model       TEXT NOT NULL,
        input       INTEGER NOT NULL,
        output      INTEGER NOT NULL,
        cache_read  INTEGER NOT NULL,
        cache_write INTEGER NOT NULL
    );
    -- All that a budget needs: it is asked before every call of a model.
    CREATE INDEX spending_by_time ON spending (at, input, output);
    INSERT INTO spending
        SELECT at, COALESCE(body ->> '$.model', ''), COALESCE(body ->> (place || '.input'), 0),
               COALESCE(body ->> (place || '.output'), 0), COALESCE(body ->> (place || '.cache_read'), 0),
               COALESCE(body ->> (place || '.cache_write'), 0)
        FROM (
            SELECT at, body, iif(body ->> '$.step' = 'spent', '$.tokens', '$.answer.usage') AS place
            FROM steps WHERE at > (unixepoch('now') - 86400) * 1000 AND body ->> '$.step' IN ('answered', 'spent')
        );
",
];

/// Opens the write connection and brings the schema up to date.
pub(super) fn open(file: &Path) -> Result<Connection, BrainError> {
    let failed = |error| BrainError::of(file, error);
    let mut connection = Connection::open(file).map_err(failed)?;
    // Before any change to the file: one that is not ours stays as it is.
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    if found > FORMAT {
        return Err(BrainError::NewerSchema { file: file.to_owned(), found, known: FORMAT });
    }
    if found == 0 && has_tables(&connection).map_err(failed)? {
        return Err(BrainError::Foreign { file: file.to_owned() });
    }
    connection.pragma_update(None, "journal_mode", "wal").map_err(failed)?;
    // A turn is inserted from its task's row, and its steps and events from its own. To have references enforced
    // would make the deletion of each turn search all events of the brain.
    connection.pragma_update(None, "foreign_keys", false).map_err(failed)?;
    bound_memory(&connection, 512).map_err(failed)?;
    let applied = applied(&connection).map_err(failed)?;
    if found == FORMAT && applied < ADDITIONS.len() {
        snapshot(&connection, file, applied)?;
    }
    migrate(&mut connection, found, applied).map_err(failed)?;
    Ok(connection)
}

fn has_tables(connection: &Connection) -> Result<bool, rusqlite::Error> {
    connection.query_row("SELECT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| row.get(0))
}

/// How many additions the brain has.
fn applied(connection: &Connection) -> Result<usize, rusqlite::Error> {
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

/// Where the copy lies that was made before the brain got its `applied + 1`st addition.
fn snapshot_file(file: &Path, applied: usize) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".before-{}", applied + 1));
    PathBuf::from(name)
}

/// Keeps a copy of the brain as it is, in the place of one that an earlier try left.
fn snapshot(connection: &Connection, file: &Path, applied: usize) -> Result<(), BrainError> {
    let copy = snapshot_file(file, applied);
    let mut unfinished = copy.clone().into_os_string();
    unfinished.push(".tmp");
    let unfinished = PathBuf::from(unfinished);
    let refuse = |reason: String| BrainError::Snapshot { copy: copy.clone(), reason };
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(refuse(error.to_string())),
        _ => {}
    }
    let path = unfinished.to_str().ok_or_else(|| refuse("its path is not valid UTF-8".into()))?;
    connection.execute("VACUUM INTO ?1", [path]).map_err(|error| refuse(error.to_string()))?;
    std::fs::rename(&unfinished, &copy).map_err(|error| refuse(error.to_string()))?;
    tracing::info!(copy = %copy.display(), "The brain is brought up to date; a copy of it as it was is kept.");
    Ok(())
}

fn migrate(connection: &mut Connection, found: i64, applied: usize) -> Result<(), rusqlite::Error> {
    if found == FORMAT && applied >= ADDITIONS.len() {
        return Ok(());
    }
    // All of it or nothing.
    let transaction = connection.transaction()?;
    if found < FORMAT {
        transaction.execute_batch(BASE)?;
        transaction.pragma_update(None, "user_version", FORMAT)?;
    }
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS additions (addition INTEGER PRIMARY KEY, at TEXT NOT NULL)",
    )?;
    for addition in ADDITIONS.iter().skip(applied) {
        transaction.execute_batch(addition)?;
        transaction.execute("INSERT INTO additions (at) VALUES (datetime('now'))", [])?;
    }
    transaction.commit()
}

/// A connection that carries the log over, which takes no page cache.
pub(super) fn connect(file: &Path) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open(file)?;
    bound_memory(&connection, 64)?;
    Ok(connection)
}

/// Keeps a connection's page cache within `kib`: there is one engine per user, and most are idle.
pub(super) fn bound_memory(connection: &Connection, kib: i64) -> Result<(), rusqlite::Error> {
    connection.pragma_update(None, "cache_size", -kib)?;
    connection.set_prepared_statement_cache_capacity(48);
    // The log is carried over by a thread of its own.
    connection.pragma_update(None, "wal_autocheckpoint", 0)
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
