//! The staging file beside the brain, in which a document is stored and validated before anything of it is
//! applied. The file is removed however the import ends, and at the next start if the engine was killed.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _};

use crate::backups;

/// The records in the order of the document, each with its position in its section, counted from 0. They refer to
/// each other as in the document, so the sections may come in any order.
const STAGING_SCHEMA: &str = "
    CREATE TABLE tasks (
        n INTEGER PRIMARY KEY, task_id TEXT NOT NULL UNIQUE, created_at INTEGER, updated_at INTEGER,
        message_count INTEGER, covered INTEGER, covered_at INTEGER,
        -- Where it goes in the brain; none where it is left out.
        task INTEGER
    );
    CREATE TABLE working_memory (n INTEGER, key TEXT, value TEXT, PRIMARY KEY (n, key)) WITHOUT ROWID;
    CREATE TABLE conversations (
        n INTEGER PRIMARY KEY, task_id TEXT NOT NULL UNIQUE, title TEXT, title_source TEXT, title_asked INTEGER,
        metadata TEXT, pinned INTEGER, archived INTEGER, origin_id TEXT, forked_after TEXT, family TEXT,
        tainted INTEGER
    );
    CREATE TABLE turns (
        n INTEGER PRIMARY KEY, turn_id TEXT NOT NULL UNIQUE, task_id TEXT NOT NULL, message_id TEXT,
        opened_at INTEGER, ended_at INTEGER, opened_ts INTEGER, client_request_id TEXT, request_hash TEXT,
        taken_in INTEGER, queued_at INTEGER, UNIQUE (task_id, client_request_id)
    );
    CREATE TABLE steps (
        n INTEGER PRIMARY KEY, turn_id TEXT NOT NULL, at INTEGER, ts INTEGER,
        opens INTEGER, message_id TEXT, length INTEGER, has_words INTEGER, body TEXT
    );
    CREATE INDEX steps_of_turn ON steps (turn_id, n);
    CREATE TABLE said (n INTEGER PRIMARY KEY, step INTEGER NOT NULL UNIQUE);
    CREATE TABLE recalled (n INTEGER PRIMARY KEY, step INTEGER NOT NULL, kind TEXT, id TEXT);
    CREATE TABLE events (
        n INTEGER PRIMARY KEY, task_id TEXT NOT NULL, turn_id TEXT NOT NULL, ts INTEGER, kind TEXT, data TEXT,
        UNIQUE (task_id, ts)
    );
    CREATE TABLE episodes (
        n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, turn_id TEXT NOT NULL, step INTEGER, content TEXT,
        source TEXT, created_at INTEGER
    );
    CREATE TABLE trajectories (
        n INTEGER PRIMARY KEY, turn_id TEXT NOT NULL UNIQUE, step INTEGER, outcome TEXT, did TEXT, at INTEGER
    );
    CREATE TABLE knowledge (
        n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, content TEXT, tags TEXT, source TEXT, created_at INTEGER,
        valid_until INTEGER, supersedes TEXT, step INTEGER
    );
    CREATE TABLE skills (
        n INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, skill TEXT, created_at INTEGER, updated_at INTEGER
    );
    CREATE TABLE schedules (
        n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, task_id TEXT, definition TEXT, state TEXT,
        created_at INTEGER, updated_at INTEGER, last_due_at INTEGER
    );
    CREATE TABLE user_servers (
        n INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, definition TEXT, pins TEXT, created_at INTEGER,
        updated_at INTEGER
    );
    CREATE TABLE batches (
        n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, state TEXT, started_at INTEGER, ended_at INTEGER
    );
    CREATE TABLE feedback (
        n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, task_id TEXT, turn_id TEXT, step INTEGER, said TEXT,
        created_at INTEGER, batch TEXT
    );
    CREATE TABLE lessons (n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, evidence TEXT, batch TEXT);
    CREATE TABLE media (n INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, data BLOB);
    CREATE TABLE usage (
        n INTEGER PRIMARY KEY, quarter INTEGER, task_id TEXT, model TEXT, agent TEXT, purpose TEXT, tool TEXT,
        calls INTEGER, failed INTEGER, input INTEGER, output INTEGER, cache_read INTEGER, cache_write INTEGER,
        reasoning INTEGER, cost INTEGER, unpriced INTEGER, time_ms INTEGER
    );
    CREATE TABLE media_uses (n INTEGER, task_id TEXT NOT NULL, PRIMARY KEY (n, task_id)) WITHOUT ROWID;
";

/// A reference that must exist in the document: the section, the field, the column that holds it, and what must
/// exist for the record `this`.
type ReferenceRule = (&'static str, &'static str, &'static str, &'static str);

/// The rules for references; those of turns and steps come first.
const REFERENCE_RULES: [ReferenceRule; 20] = [
    ("turns", "task_id", "turns.task_id", "tasks WHERE task_id = this.task_id"),
    ("steps", "turn_id", "steps.turn_id", "turns WHERE turn_id = this.turn_id"),
    ("conversations", "task_id", "conversations.task_id", "tasks WHERE task_id = this.task_id"),
    ("conversations", "forked_from", "conversations.origin_id", "tasks WHERE task_id = this.origin_id"),
    ("said", "", "said.step", "steps WHERE n = this.step AND message_id IS NOT NULL"),
    ("recalled", "step", "recalled.step", "steps WHERE n = this.step"),
    ("events", "turn_id", "events.turn_id", "turns WHERE turn_id = this.turn_id AND task_id = this.task_id"),
    ("episodes", "turn_id", "episodes.turn_id", "turns WHERE turn_id = this.turn_id"),
    ("episodes", "step", "episodes.step", "steps WHERE n = this.step AND turn_id = this.turn_id"),
    ("trajectories", "turn_id", "trajectories.turn_id", "turns WHERE turn_id = this.turn_id"),
    ("trajectories", "step", "trajectories.step", "steps WHERE n = this.step AND turn_id = this.turn_id"),
    ("knowledge", "step", "knowledge.step", "steps WHERE n = this.step"),
    ("feedback", "task_id", "feedback.task_id", "tasks WHERE task_id = this.task_id"),
    (
        "feedback",
        "turn_id",
        "feedback.turn_id",
        "turns WHERE turn_id = this.turn_id AND task_id = this.task_id",
    ),
    (
        "feedback",
        "step",
        "feedback.step",
        "steps JOIN turns USING (turn_id) WHERE steps.n = this.step AND turns.task_id = this.task_id",
    ),
    ("feedback", "batch", "feedback.batch", "batches WHERE id = this.batch"),
    ("lessons", "id", "lessons.id", "knowledge WHERE id = this.id"),
    ("lessons", "batch", "lessons.batch", "batches WHERE id = this.batch"),
    ("usage", "task_id", "usage.task_id", "tasks WHERE task_id = this.task_id"),
    ("media", "task_ids", "media_uses.task_id", "tasks WHERE task_id = this.task_id"),
];

/// The reasons why a record, or the whole document, was rejected.
#[derive(Debug, thiserror::Error)]
pub(super) enum StagingError {
    /// The content is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The staging file could not be used.
    #[error("the document could not be kept beside the brain")]
    Sqlite(#[from] rusqlite::Error),
}

/// The path of the staging file for the brain in `file`.
fn staging_path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".import");
    PathBuf::from(name)
}

/// Removes the staging file that an interrupted import has left.
pub(crate) fn remove_staging_file(file: &Path) {
    let staged = staging_path(file);
    match std::fs::remove_file(&staged) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, file = %staged.display(), "An import's staging file could not be removed.");
        }
        _ => {}
    }
}

/// A document that was read completely and validated. Dropping it removes its file.
pub struct StagedImport {
    file: StagingFileGuard,
    task_count: u32,
}

impl StagedImport {
    /// The number of tasks in the document.
    pub(super) fn task_count(&self) -> u32 {
        self.task_count
    }

    /// The location of the staging file, which exists only as long as this value.
    pub(super) fn path(&self) -> StagingPath {
        StagingPath(self.file.0.clone())
    }
}

/// The location of a staged document.
pub(crate) struct StagingPath(PathBuf);

impl StagingPath {
    /// Opens the staging file.
    pub(super) fn open(&self) -> Result<Connection, rusqlite::Error> {
        // The changes that a failed commit made to it are rolled back.
        connect(&self.0, OpenFlags::SQLITE_OPEN_READ_WRITE, "memory")
    }
}

/// Removes the staging file of this brain when it is dropped.
struct StagingFileGuard(PathBuf);

impl Drop for StagingFileGuard {
    fn drop(&mut self) {
        remove_staging_file(&self.0);
    }
}

fn connect(file: &Path, flags: OpenFlags, journal: &str) -> Result<Connection, rusqlite::Error> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let staging = Connection::open_with_flags(staging_path(file), flags)?;
    // The file need not survive a crash.
    staging.pragma_update(None, "journal_mode", journal)?;
    staging.pragma_update(None, "synchronous", "off")?;
    staging.pragma_update(None, "cache_size", -2048)?;
    staging.set_prepared_statement_cache_capacity(48);
    Ok(staging)
}

/// A document that is being read.
pub(super) struct Staging {
    connection: Connection,
    file: StagingFileGuard,
}

impl Staging {
    /// Creates an empty staging file beside the brain in `file`.
    pub(super) fn open(file: &Path) -> Result<Self, rusqlite::Error> {
        remove_staging_file(file);
        let guard = StagingFileGuard(file.to_owned());
        let open_error = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
        backups::create_private_file(&staging_path(file))
            .map_err(|error| rusqlite::Error::SqliteFailure(open_error, Some(error.to_string())))?;
        let connection = connect(file, OpenFlags::SQLITE_OPEN_READ_WRITE, "off")?;
        connection.execute_batch("BEGIN")?;
        connection.execute_batch(STAGING_SCHEMA)?;
        Ok(Self { connection, file: guard })
    }

    /// Downgrades knowledge that claims to be taught by the user to data if the document does not contain the
    /// feedback or lesson behind it, because turns present taught knowledge as the user's own words.
    fn downgrade_unfounded_sources(&self) -> Result<(), rusqlite::Error> {
        self.connection.execute_batch(
            "UPDATE knowledge SET source = 'tool' WHERE
                 source = 'feedback'
                 AND NOT EXISTS (SELECT 1 FROM feedback WHERE said ->> '$.record' = knowledge.id)
                 OR source = 'learned' AND NOT EXISTS (SELECT 1 FROM lessons WHERE lessons.id = knowledge.id)",
        )
    }

    /// Checks the references between the records once all are staged.
    pub(super) fn validate(self) -> Result<StagedImport, StagingError> {
        self.downgrade_unfounded_sources()?;
        // The turns of the steps come first, because other errors follow from wrong ones.
        let (turn_rules, other_rules) = REFERENCE_RULES.split_at(2);
        turn_rules.iter().try_for_each(|rule| self.check_reference(rule))?;
        // A conversation is read from the step that opens its turn.
        let sql = "SELECT n FROM steps AS this
                   WHERE opens <> (n = (SELECT MIN(n) FROM steps WHERE turn_id = this.turn_id)) LIMIT 1";
        self.reject_if_any(sql, |n| {
            format!("`steps[{n}].step`: a turn begins with a step `opened` and has only one")
        })?;
        other_rules.iter().try_for_each(|rule| self.check_reference(rule))?;
        let task_count = self.connection.query_row("SELECT COUNT(*) FROM tasks", [], |row| row.get(0))?;
        self.connection.execute_batch("COMMIT")?;
        let Self { connection, file } = self;
        drop(connection);
        Ok(StagedImport { file, task_count })
    }

    fn check_reference(&self, (section, field, column, target): &ReferenceRule) -> Result<(), StagingError> {
        let (table, column) = column.split_once('.').unwrap_or((section, column));
        let sql = format!(
            "SELECT n FROM {table} AS this
             WHERE {column} IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {target}) LIMIT 1"
        );
        let field = if field.is_empty() { String::new() } else { format!(".{field}") };
        let reason = "refers to a record that is not in the document or does not match";
        self.reject_if_any(&sql, |n| format!("`{section}[{n}]{field}`: {reason}"))
    }

    /// Rejects the document if `sql` finds a record.
    fn reject_if_any(&self, sql: &str, reason: impl FnOnce(i64) -> String) -> Result<(), StagingError> {
        let found = self.connection.query_row(sql, [], |row| row.get(0)).optional()?;
        found.map_or(Ok(()), |n| Err(StagingError::Invalid(reason(n))))
    }

    /// Stores a record.
    pub(super) fn insert(&self, sql: &str, values: impl rusqlite::Params) -> Result<(), StagingError> {
        match self.connection.prepare_cached(sql)?.execute(values) {
            Ok(_) => Ok(()),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
                Err(StagingError::Invalid(
                    "contains a value that must be unique and is in the document already".into(),
                ))
            }
            Err(error) => Err(error.into()),
        }
    }
}
