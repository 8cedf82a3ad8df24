//! Secure erasure: after a deletion no byte of the deleted content is left in any file of the brain.
//!
//! The rows are deleted at once and overwritten by `secure_delete`. The same commit notes in the table `erasures`
//! where traces may remain, and they are removed in small steps beside the turns, also after a restart: the search
//! index keeps deleted words until its segments are merged, SQLite leaves copies of moved rows in its pages,
//! and the write-ahead log holds earlier versions of pages.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use api::{CallId, TaskId};
use rusqlite::{Connection, Error, OptionalExtension as _, params};
use serde::{Deserialize, Serialize};

use super::queries::parse_step;
use super::steps::Step;
use super::wal_checkpoint::checkpoint_wal;
use super::{
    Brain, StoreError, TaskRow, WriteTx, backups, learning_batches, lessons, page_scrub, schema, to_json,
};

/// The amount of an index that is merged in one commit, in pages.
const MERGE_PAGES_PER_COMMIT: i64 = 64;
/// The number of pages that are scrubbed in one commit.
const SCRUB_PAGES_PER_COMMIT: u32 = 256;
/// Above this number of pages an overflow page cannot be distinguished from other pages.
const MAX_SCRUBBABLE_PAGES: u32 = 1 << 24;
/// How long the truncation of the write-ahead log waits for readers.
const WAL_TRUNCATE_TIMEOUT: Duration = Duration::from_millis(100);

/// Where traces of deleted content may remain, beside the brain itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErasureScope {
    /// The calls whose long output is in a spill file.
    #[serde(default)]
    pub outputs: Vec<CallId>,
}

/// The pending erasure, up to a row of `erasures`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erasure {
    last_row: i64,
    /// The places to erase.
    pub scope: ErasureScope,
}

/// The options of a task's deletion: what is deleted together with its conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskDeletion {
    /// Whether to delete what was learned from the task: knowledge records, the feedback on it, and lessons drawn
    /// from that.
    pub with_knowledge: bool,
    /// The calls of all tasks whose long output is in a spill file.
    pub outputs: Vec<CallId>,
}

impl WriteTx<'_> {
    /// Deletes a task with everything that belongs to it alone, and queues the erasure of its traces in files.
    pub fn delete_task(&self, task: TaskRow, deletion: &TaskDeletion) -> Result<(), StoreError> {
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
        let sql = "UPDATE schedule_runs SET task_id = NULL, turn_id = NULL
                   WHERE task_id = (SELECT task_id FROM tasks WHERE task = ?1)";
        self.execute(sql, [row])?;
        for table in ["pending", "grants", "working_memory", "events", "steps", "turns", "tasks"] {
            self.execute(&format!("DELETE FROM {table} WHERE task = ?1"), [row])?;
        }
        self.execute("DELETE FROM media WHERE hash NOT IN (SELECT hash FROM media_uses)", [])?;
        if let Some(task_id) = task_id.and_then(|task_id| TaskId::new(task_id).ok()) {
            lessons::remove_verdicts(self, &task_id)?;
        }
        learning_batches::reset_orphaned_batches(self)?;
        self.enqueue_erasure(&ErasureScope { outputs })
    }

    /// Queues the erasure of the traces of what this transaction deletes.
    pub fn enqueue_erasure(&self, scope: &ErasureScope) -> Result<(), StoreError> {
        self.delete_planner_samples()?;
        self.execute("INSERT INTO erasures (remains) VALUES (?1)", [to_json(scope)?])
    }

    /// Selects those of `calls` that belong to the task.
    fn task_outputs(&self, task: i64, calls: &[CallId]) -> Result<Vec<CallId>, StoreError> {
        let mut remaining: HashSet<String> = calls.iter().map(ToString::to_string).collect();
        let Some(length) = remaining.iter().next().map(String::len) else { return Ok(Vec::new()) };
        let mut query = self.transaction.prepare_cached("SELECT body FROM steps WHERE task = ?1")?;
        let mut rows = query.query([task])?;
        let mut found = HashSet::new();
        while let Some(row) = rows.next()? {
            let body = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
            take_calls(body, length, &mut remaining, |call| _ = found.insert(call));
            if remaining.is_empty() {
                break;
            }
        }
        self.retain_own_calls(task, length, &mut found)?;
        Ok(found.into_iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// Leaves out the calls that a fork of the task, or what it was forked from, has too.
    fn retain_own_calls(
        &self,
        task: i64,
        length: usize,
        calls: &mut HashSet<String>,
    ) -> Result<(), StoreError> {
        let mut query = self.transaction.prepare_cached(
            "SELECT body FROM conversations JOIN steps USING (task)
             WHERE task <> ?1 AND family = (SELECT family FROM conversations WHERE task = ?1)",
        )?;
        let mut rows = query.query([task])?;
        while let Some(row) = rows.next()? {
            if calls.is_empty() {
                break;
            }
            let body = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
            // An answer names its calls, whose results the conversation may not have.
            if !matches!(parse_step(body), Ok(Step::Answered { .. })) {
                take_calls(body, length, calls, drop);
            }
        }
        Ok(())
    }

    /// Removes quotations of a task from what outlives it: the question beside a correction, and feedback from
    /// which nothing was learned.
    fn redact_quotes(&self, task: i64) -> Result<(), StoreError> {
        let sql = "DELETE FROM feedback WHERE task = ?1 AND said ->> '$.type' <> 'correction'";
        self.execute(sql, [task])?;
        // The record is inserted again, because the index follows only insertions and deletions.
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
        )?;
        self.index_knowledge(usize::MAX)
    }

    /// Merges a part of the search index, which keeps deleted words until then, and returns whether more is left;
    /// the last call has merged all of it. `is_first` is set for the call that starts the merge.
    pub fn merge_search_index(&self, is_first: bool) -> Result<bool, StoreError> {
        let changes = || self.transaction.query_row("SELECT total_changes()", [], |row| row.get::<_, i64>(0));
        let before = changes()?;
        let pages = if is_first { -MERGE_PAGES_PER_COMMIT } else { MERGE_PAGES_PER_COMMIT };
        self.execute("INSERT INTO terms (terms, rank) VALUES ('merge', ?1)", [pages])?;
        // The command itself counts as one change.
        Ok(changes()? - before >= 2)
    }

    /// Deletes the samples of keys that the query planner has taken.
    fn delete_planner_samples(&self) -> Result<(), StoreError> {
        let exists = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_stat4')";
        if self.transaction.query_row(exists, [], |row| row.get(0))? {
            self.execute("DELETE FROM sqlite_stat4", [])?;
        }
        Ok(())
    }

    /// Releases at most `max_pages` free pages to the file system and returns whether there are more.
    pub fn release_pages(&self, max_pages: u32) -> Result<bool, StoreError> {
        let free_pages =
            || self.transaction.pragma_query_value(None, "freelist_count", |row| row.get::<_, i64>(0));
        let before = free_pages()?;
        let sql = format!("PRAGMA incremental_vacuum({max_pages})");
        let mut vacuum = self.transaction.prepare(&sql)?;
        let mut rows = vacuum.query([])?;
        while rows.next()?.is_some() {}
        let after = free_pages()?;
        // The number does not change for a brain that cannot shrink.
        Ok(after > 0 && after < before)
    }

    /// Overwrites the unused bytes of a range of pages from the page `from` on, and returns the page to continue
    /// with.
    pub fn scrub_pages(&self, from: u32) -> Result<Option<u32>, StoreError> {
        let count: u32 = self.transaction.pragma_query_value(None, "page_count", |row| row.get(0))?;
        if count > MAX_SCRUBBABLE_PAGES {
            tracing::warn!(pages = count, "The brain is too large to overwrite its deleted content.");
            return Ok(None);
        }
        let mut read = self.transaction.prepare_cached("SELECT data FROM sqlite_dbpage WHERE pgno = ?1")?;
        let mut write =
            self.transaction.prepare_cached("UPDATE sqlite_dbpage SET data = ?2 WHERE pgno = ?1")?;
        let end = from.saturating_add(SCRUB_PAGES_PER_COMMIT).min(count + 1);
        for number in from..end {
            let scrubbed = read
                .query_row([number], |row| {
                    Ok(row.get_ref(0)?.as_blob().ok().and_then(|page| page_scrub::scrub_page(number, page)))
                })
                .optional()?;
            if let Some(page) = scrubbed.flatten() {
                write.execute(params![number, page])?;
            }
        }
        Ok((end <= count).then_some(end))
    }

    /// Marks an erasure as done.
    pub fn complete_erasure(&self, erasure: &Erasure) -> Result<(), StoreError> {
        self.execute("DELETE FROM erasures WHERE erasure <= ?1", [erasure.last_row])
    }
}

/// Takes those calls out of `calls` that are named in the body of a step; their ids are `length` bytes long.
fn take_calls(body: &str, length: usize, calls: &mut HashSet<String>, mut taken: impl FnMut(String)) {
    for (start, _) in body.match_indices("call_") {
        if let Some(call) = body.get(start..start + length).and_then(|id| calls.take(id)) {
            taken(call);
        }
    }
}

impl Brain {
    /// The pending erasure, if there is one. Blocks.
    pub fn pending_erasure(&self) -> Result<Option<Erasure>, StoreError> {
        self.read_long(load_pending_erasure)
    }

    /// Reports that a turn has queued an erasure, whose result was committed.
    pub fn request_erasure(&self) {
        self.shared.erasure_requested.notify_one();
    }

    /// Waits until a turn has queued an erasure since the last call.
    pub async fn erasure_requested(&self) {
        self.shared.erasure_requested.notified().await;
    }

    /// Checkpoints and truncates the write-ahead log. Returns whether it is complete: no reader was in the way.
    /// Blocks.
    pub fn truncate_wal(&self) -> Result<bool, StoreError> {
        let connection = schema::connect_for_checkpoint(self.file())?;
        connection.busy_timeout(WAL_TRUNCATE_TIMEOUT)?;
        // The passive checkpoint does most of the work without blocking writers.
        checkpoint_wal(&connection, "PASSIVE")?;
        Ok(checkpoint_wal(&connection, "TRUNCATE")?.is_complete)
    }

    /// Removes the backups from before upgrades that are older than `age`, or all of them if `age` is `None`.
    /// Blocks.
    pub fn remove_backups(&self, age: Option<Duration>) -> io::Result<()> {
        backups::remove_backups_older_than(self.file(), age)
    }
}

fn load_pending_erasure(reader: &Connection) -> Result<Option<Erasure>, Error> {
    let mut query = reader.prepare_cached("SELECT erasure, remains FROM erasures ORDER BY erasure")?;
    let mut rows = query.query([])?;
    let mut all: Option<Erasure> = None;
    while let Some(row) = rows.next()? {
        // A scope that a later version wrote and that cannot be parsed refers to places that this version does not
        // have.
        let ErasureScope { outputs } = serde_json::from_str(row.get_ref(1)?.as_str()?).unwrap_or_default();
        let all = all.get_or_insert_with(|| Erasure { last_row: 0, scope: ErasureScope::default() });
        all.last_row = row.get(0)?;
        all.scope.outputs.extend(outputs);
    }
    Ok(all)
}
