//! Erasing: after something was deleted no byte of it is left in any file of the brain.
//!
//! The rows go with the deletion itself, and `secure_delete` overwrites them. What may be left then is noted in the
//! table `erasures` by the same commit and worked off in small steps beside the turns, also after a restart: indexes for
//! searches keep the words of what was deleted until their segments are merged, SQLite leaves copies of moved rows in
//! its pages, and the write-ahead log holds pages as they were.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use contract::{CallId, TaskId};
use rusqlite::{Connection, Error, OptionalExtension as _, params};
use serde::{Deserialize, Serialize};

use super::wal_checkpoint::checkpoint_wal;
use super::{Brain, TaskRow, WriteTx, backups, learning_batches, lessons, page_scrub, schema, to_json};

/// How much of an index is merged in one commit, in pages of it.
const MERGE_PAGES_PER_COMMIT: i64 = 64;
/// How many pages are looked through in one commit.
const SCRUB_PAGES_PER_COMMIT: u32 = 256;
/// Above so many pages one that continues a long value cannot be told from others.
const MAX_SCRUBBABLE_PAGES: u32 = 1 << 24;
/// How long the end of the log waits for who reads it.
const WAL_TRUNCATE_TIMEOUT: Duration = Duration::from_millis(100);

/// An index for searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchIndex {
    /// Of knowledge.
    Knowledge,
    /// Of episodes.
    Episodes,
    /// Of what was said.
    Messages,
}

impl SearchIndex {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Knowledge, Self::Episodes, Self::Messages];

    const fn table(self) -> &'static str {
        match self {
            Self::Knowledge => "knowledge_words",
            Self::Episodes => "episode_words",
            Self::Messages => "window_words",
        }
    }
}

/// Where something may be left of what was deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErasureScope {
    /// The calls whose long output is in a file.
    #[serde(default)]
    pub outputs: Vec<CallId>,
    /// The indexes for searches.
    #[serde(default)]
    pub indexes: Vec<SearchIndex>,
}

/// All that is to be erased, up to a row of `erasures`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erasure {
    last_row: i64,
    /// Where it is.
    pub scope: ErasureScope,
}

/// What goes with a task beside its conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskDeletion {
    /// Whether what was learned from it goes too: records of knowledge, what people said of it, lessons drawn from that.
    pub with_knowledge: bool,
    /// The calls of all tasks whose long output is in a file.
    pub outputs: Vec<CallId>,
}

impl WriteTx<'_> {
    /// Deletes a task with all that only it had, and notes what may be left of it in files.
    pub fn delete_task(&self, task: TaskRow, deletion: &TaskDeletion) -> Result<(), Error> {
        let TaskRow(row) = task;
        let outputs = self.task_outputs(row, &deletion.outputs)?;
        if deletion.with_knowledge {
            self.withdraw_feedback(row, 0..i64::MAX)?;
            self.withdraw_knowledge(row, 0..i64::MAX, true)?;
            self.execute("DELETE FROM feedback WHERE task = ?1", [row])?;
        } else {
            self.redact_quotes(row)?;
        }
        let task_id = "SELECT task_id FROM tasks WHERE task = ?1";
        let task_id: Option<String> =
            self.transaction.query_row(task_id, [row], |found| found.get(0)).optional()?;
        self.execute("DELETE FROM media_uses WHERE task = ?1", [row])?;
        for table in ["pending", "grants", "working_memory", "events", "steps", "turns", "tasks"] {
            self.execute(&format!("DELETE FROM {table} WHERE task = ?1"), [row])?;
        }
        self.execute("DELETE FROM media WHERE hash NOT IN (SELECT hash FROM media_uses)", [])?;
        if let Some(task_id) = task_id.and_then(|task_id| TaskId::new(task_id).ok()) {
            lessons::remove_verdicts(self, &task_id)?;
        }
        learning_batches::reset_orphaned_batches(self)?;
        self.enqueue_erasure(&ErasureScope { outputs, indexes: SearchIndex::ALL.into() })
    }

    /// Notes where something may be left of what this transaction deletes.
    pub fn enqueue_erasure(&self, remains: &ErasureScope) -> Result<(), Error> {
        self.delete_planner_samples()?;
        self.execute("INSERT INTO erasures (remains) VALUES (?1)", [to_json(remains)?])
    }

    /// Which of these calls are of the task.
    fn task_outputs(&self, task: i64, calls: &[CallId]) -> Result<Vec<CallId>, Error> {
        let mut left: HashSet<String> = calls.iter().map(ToString::to_string).collect();
        let Some(length) = left.iter().next().map(String::len) else { return Ok(Vec::new()) };
        let mut query = self.transaction.prepare_cached("SELECT body FROM steps WHERE task = ?1")?;
        let mut rows = query.query([task])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let body = row.get_ref(0)?.as_str()?;
            for (at, _) in body.match_indices("call_") {
                let call = body.get(at..at + length).and_then(|id| left.take(id));
                found.extend(call.and_then(|id| id.parse::<CallId>().ok()));
            }
            if left.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    /// Takes what is quoted of a task out of what stays of it: the question beside a correction, and what people said of
    /// it that nothing was learned from.
    fn redact_quotes(&self, task: i64) -> Result<(), Error> {
        let sql = "DELETE FROM feedback WHERE task = ?1 AND said ->> '$.type' <> 'correction'";
        self.execute(sql, [task])?;
        // A record is written anew: its index follows insertions and deletions alone.
        self.transaction.execute_batch(
            "CREATE TEMP TABLE IF NOT EXISTS quoting AS SELECT *, content AS correction FROM knowledge LIMIT 0;
             DELETE FROM quoting",
        )?;
        self.transaction.execute(
            "INSERT INTO quoting SELECT knowledge.*, said ->> '$.text' FROM knowledge
             JOIN feedback ON feedback.task = ?1 AND said ->> '$.record' = knowledge.id
             WHERE content <> said ->> '$.text'",
            [task],
        )?;
        self.transaction.execute_batch(
            "DELETE FROM knowledge WHERE record IN (SELECT record FROM quoting);
             INSERT INTO knowledge
                 (record, id, content, tags, source, created_at, valid_until, supersedes, task, step)
             SELECT record, id, correction, tags, source, created_at, valid_until, supersedes, task, step FROM quoting;
             DELETE FROM quoting",
        )
    }

    /// Merges some of an index, all of which is merged in the end; whether there is more to do. `begins` the first time.
    pub fn merge_index(&self, index: SearchIndex, begins: bool) -> Result<bool, Error> {
        let table = index.table();
        let changes = || self.transaction.query_row("SELECT total_changes()", [], |row| row.get::<_, i64>(0));
        let before = changes()?;
        let pages = if begins { -MERGE_PAGES_PER_COMMIT } else { MERGE_PAGES_PER_COMMIT };
        self.execute(&format!("INSERT INTO {table} ({table}, rank) VALUES ('merge', ?1)"), [pages])?;
        // The command itself counts as one.
        Ok(changes()? - before >= 2)
    }

    /// Forgets what the planner has sampled of keys.
    fn delete_planner_samples(&self) -> Result<(), Error> {
        let table = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_stat4')";
        if self.transaction.query_row(table, [], |row| row.get(0))? {
            self.execute("DELETE FROM sqlite_stat4", [])?;
        }
        Ok(())
    }

    /// Gives at most so many free pages back to the disk; whether there are more.
    pub fn release_pages(&self, most: u32) -> Result<bool, Error> {
        let free = || self.transaction.pragma_query_value(None, "freelist_count", |row| row.get::<_, i64>(0));
        let before = free()?;
        let sql = format!("PRAGMA incremental_vacuum({most})");
        let mut released = self.transaction.prepare(&sql)?;
        let mut rows = released.query([])?;
        while rows.next()?.is_some() {}
        let after = free()?;
        // A brain that cannot shrink has as many as before.
        Ok(after > 0 && after < before)
    }

    /// Overwrites what belongs to nothing in some pages, from the one called `from` on; the one to go on with.
    pub fn scrub_pages(&self, from: u32) -> Result<Option<u32>, Error> {
        let count: u32 = self.transaction.pragma_query_value(None, "page_count", |row| row.get(0))?;
        if count > MAX_SCRUBBABLE_PAGES {
            tracing::warn!(pages = count, "The brain is too large to overwrite what was deleted in it.");
            return Ok(None);
        }
        let mut read = self.transaction.prepare_cached("SELECT data FROM sqlite_dbpage WHERE pgno = ?1")?;
        let mut write =
            self.transaction.prepare_cached("UPDATE sqlite_dbpage SET data = ?2 WHERE pgno = ?1")?;
        let end = from.saturating_add(SCRUB_PAGES_PER_COMMIT).min(count + 1);
        for number in from..end {
            let scrub_page = read
                .query_row([number], |row| {
                    Ok(row.get_ref(0)?.as_blob().ok().and_then(|page| page_scrub::scrub_page(number, page)))
                })
                .optional()?;
            if let Some(page) = scrub_page.flatten() {
                write.execute(params![number, page])?;
            }
        }
        Ok((end <= count).then_some(end))
    }

    /// An erasure is done.
    pub fn complete_erasure(&self, erasure: &Erasure) -> Result<(), Error> {
        self.execute("DELETE FROM erasures WHERE erasure <= ?1", [erasure.last_row])
    }
}

impl Brain {
    /// What is to be erased, if something is. Blocks.
    pub fn pending_erasure(&self) -> Result<Option<Erasure>, Error> {
        self.read_long(load_pending_erasure)
    }

    /// Carries the log over into the brain and leaves it empty; whether nobody was reading it. Blocks.
    pub fn truncate_wal(&self) -> Result<bool, Error> {
        let connection = schema::connect_for_checkpoint(self.file())?;
        connection.busy_timeout(WAL_TRUNCATE_TIMEOUT)?;
        // Most of it while others write.
        checkpoint_wal(&connection, "PASSIVE")?;
        Ok(checkpoint_wal(&connection, "TRUNCATE")?.is_complete)
    }

    /// Removes the copies from before upgrades that are older than `age`; all of them where there is none. Blocks.
    pub fn remove_backups(&self, age: Option<Duration>) -> io::Result<()> {
        backups::remove_backups_older_than(self.file(), age)
    }
}

fn load_pending_erasure(reader: &Connection) -> Result<Option<Erasure>, Error> {
    let mut query = reader.prepare_cached("SELECT erasure, remains FROM erasures ORDER BY erasure")?;
    let mut rows = query.query([])?;
    let mut all: Option<Erasure> = None;
    while let Some(row) = rows.next()? {
        // What a later version noted and this one cannot read is in no place that it knows.
        let ErasureScope { outputs, indexes } =
            serde_json::from_str(row.get_ref(1)?.as_str()?).unwrap_or_default();
        let all = all.get_or_insert_with(|| Erasure { last_row: 0, scope: ErasureScope::default() });
        all.last_row = row.get(0)?;
        all.scope.outputs.extend(outputs);
        all.scope.indexes.extend(indexes);
    }
    if let Some(all) = &mut all {
        all.scope.indexes.sort_unstable();
        all.scope.indexes.dedup();
    }
    Ok(all)
}
