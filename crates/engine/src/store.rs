//! The brain: one user's store, a SQLite file. The only room that writes SQL.
//!
//! All writes go through one thread that commits them in groups ([`writer`]); what must be read goes through a
//! read-only connection. An exclusive lock beside the file, held as long as that thread lives, makes sure that no
//! two engines ever write one brain.

mod backups;
mod dates;
mod doc_freq;
mod erasure;
mod feedback;
mod journal;
mod knowledge;
mod learning_batches;
mod learning_queries;
mod lessons;
mod mcp_connections;
mod memory_ingest;
mod message_text;
mod page_scrub;
mod queries;
mod query_plan;
mod ranking;
mod read_pool;
mod schema;
mod search;
mod settings;
mod skills;
pub mod steps;
mod tokenize;
mod transfer;
mod usage;
mod wal_checkpoint;
mod write_tx;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use contract::engine::{Grant, PendingRequest, TaskSummary};
use contract::event::Event;
use contract::memory::{Episode, Knowledge};
use contract::skills::SkillSummary;
use contract::{CallId, HitlId, MemoryId, TaskId, Timestamp, TurnId};
use rusqlite::{Connection, ErrorCode, OptionalExtension as _};
use service::clock::{Clock as _, SystemClock};
use service::lock::{FileLock, LockError, LockHolder};

pub(crate) use backups::BACKUP_LIFETIME;
pub use erasure::{Erasure, ErasureScope, SearchIndex, TaskDeletion};
pub use feedback::{Correction, Corrections, FeedbackContent, FeedbackRow};
pub use journal::{Journal, JournalError};
pub use knowledge::{KnowledgeDraft, KnowledgeRejected, NewKnowledge, SupersedeError};
pub use learning_batches::{BatchEffect, BatchProgress, BatchStage, LessonDraft, UnrelatedTurn};
pub use lessons::{KnownLesson, NewLesson};
pub use mcp_connections::{AuthorizationRow, ConnectionRow};
pub use queries::{
    BlockCounts, Checkpoint, OpenTurn, PendingHitl, RequestedTurn, StoredEvent, StoredStep, ToolGrant,
};
pub use search::{MemoryQuery, SearchHit};
pub use settings::Setting;
pub use skills::{CreateSkillError, CustomSkill, SkillOutline};
pub use transfer::{ExportError, ImportError, StagedImport};
pub use usage::{CallUsage, ModelUsage, USAGE_RETENTION};
pub(crate) use write_tx::to_json;
pub use write_tx::{IdempotencyKey, NewGrant, NewTurn, Rewind, WriteTx};
pub use writer::{Durability, WriteBatch, WriteError};

use crate::store::doc_freq::CommonWordCache;
use crate::store::read_pool::ReadPool;
use crate::store::steps::TurnBase;
use crate::store::writer::{SingleWrite, Writer};

/// The row number of a task: what the brain calls it internally.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskRow(i64);

/// A task as the brain knows it.
#[derive(Clone, Debug)]
pub struct TaskEntry {
    /// Its row.
    pub row: TaskRow,
    /// The `ts` of its newest stored event; 0 where there is none.
    pub last_ts: i64,
}

/// Why a brain cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BrainError {
    /// Its folder or file cannot be used.
    #[error("the brain's folder {folder} cannot be used: it must be a writable folder")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Another engine has it.
    #[error("the brain {file} is in use by another engine ({holder}): stop that one first")]
    InUse {
        /// The brain.
        file: PathBuf,
        /// Who has it.
        holder: LockHolder,
    },
    /// Its lock cannot be taken.
    #[error("the brain's lock {file} cannot be taken: its folder must be writable")]
    Lock {
        /// The lock.
        file: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A newer engine wrote it.
    #[error(
        "the brain {file} has schema version {found}, and this engine knows versions up to {known}: \
         start it with the engine version that wrote it, or a newer one"
    )]
    NewerSchema {
        /// The brain.
        file: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version that this engine knows.
        known: i64,
    },
    /// It must be brought up to date, and no copy of it can be kept.
    #[error(
        "the brain must be brought up to date, and no copy of it as it is can be written to {copy} ({reason}): \
         make room, or make its folder writable"
    )]
    Backup {
        /// The copy.
        copy: PathBuf,
        /// Why it cannot be written.
        reason: String,
    },
    /// It is not a brain, or it is damaged.
    #[error(
        "the brain {file} cannot be read: it is damaged or not a brain; restore it from a copy, or move it \
         away to begin with an empty one"
    )]
    Damaged {
        /// The brain.
        file: PathBuf,
        /// What SQLite said.
        #[source]
        source: rusqlite::Error,
    },
    /// It is another program's database.
    #[error("{file} (SQLITE_DB_PATH) is not a brain but another program's database: it is left as it is")]
    Foreign {
        /// The file.
        file: PathBuf,
    },
    /// SQLite failed.
    #[error("the brain failed")]
    Sqlite(#[from] rusqlite::Error),
    /// The thread that writes could not be started.
    #[error("the brain's writer could not be started: the system refuses another thread")]
    Writer(#[source] std::io::Error),
}

impl BrainError {
    /// What SQLite said of `file`.
    fn from_sqlite(file: &Path, source: rusqlite::Error) -> Self {
        match source.sqlite_error_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                Self::Damaged { file: file.to_owned(), source }
            }
            _ => Self::Sqlite(source),
        }
    }
}

/// A handle on an open brain. Clones share it; the last one dropped ends the writer.
#[derive(Clone)]
pub struct Brain {
    shared: Arc<Shared>,
}

struct Shared {
    writer: Writer,
    read_pool: Arc<ReadPool>,
    common_words: CommonWordCache,
    next_task: AtomicI64,
    file: PathBuf,
}

impl Brain {
    /// Opens the brain in `file`, made if it is missing, and takes its lock.
    ///
    /// # Errors
    /// See [`BrainError`].
    pub fn open(file: &Path) -> Result<Self, BrainError> {
        let folder = file.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)
            .map_err(|source| BrainError::Folder { folder: folder.to_owned(), source })?;
        let mut lock = file.as_os_str().to_owned();
        lock.push(".lock");
        let lock =
            FileLock::acquire(Path::new(&lock), SystemClock::new().now()).map_err(|error| match error {
                LockError::Held(holder) => BrainError::InUse { file: file.to_owned(), holder },
                LockError::Io { file, source } => BrainError::Lock { file, source },
            })?;
        // An import that was cut off.
        transfer::remove_staging_file(file);
        let write = schema::open(file)?;
        let reading = |error| BrainError::from_sqlite(file, error);
        let readers = Arc::new(ReadPool::open(file).map_err(reading)?);
        // Also above what a task that is gone may have left behind.
        let next = "SELECT 1 + MAX(
                COALESCE((SELECT MAX(task) FROM tasks), 0), COALESCE((SELECT MAX(task) FROM turns), 0),
                COALESCE((SELECT MAX(task) FROM steps), 0), COALESCE((SELECT MAX(task) FROM events), 0)
            )";
        let next_task =
            readers.short(|reader| reader.query_row(next, [], |row| row.get(0))).map_err(reading)?;
        Ok(Self {
            shared: Arc::new(Shared {
                writer: Writer::start(file, write, lock, Arc::clone(&readers)).map_err(BrainError::Writer)?,
                read_pool: readers,
                common_words: CommonWordCache::default(),
                next_task: AtomicI64::new(next_task),
                file: file.to_owned(),
            }),
        })
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.shared.file
    }

    /// Queues a batch for the writer. See [`WriteBatch`].
    pub fn queue(&self, batch: Arc<dyn WriteBatch>) {
        self.shared.writer.queue(batch);
    }

    /// Writes something by itself, and waits until it is stored.
    pub async fn write<T, F>(&self, write: F) -> Result<T, WriteError>
    where
        T: Send + 'static,
        F: Fn(&WriteTx<'_>) -> Result<T, rusqlite::Error> + Send + Sync + 'static,
    {
        self.write_with_durability(Durability::ProcessKill, write).await
    }

    /// The same, against so much.
    pub async fn write_with_durability<T, F>(&self, durability: Durability, write: F) -> Result<T, WriteError>
    where
        T: Send + 'static,
        F: Fn(&WriteTx<'_>) -> Result<T, rusqlite::Error> + Send + Sync + 'static,
    {
        let (batch, settled) = SingleWrite::create(write, durability);
        self.queue(batch);
        settled.await.unwrap_or_else(|_| Err(WriteError { reason: "the brain is closed".into() }))
    }

    /// A row for a task that is about to begin; the task exists once its first batch is committed.
    pub fn reserve_task(&self) -> TaskRow {
        TaskRow(self.shared.next_task.fetch_add(1, Ordering::Relaxed))
    }

    /// Rows for so many tasks, one after the other; the first one.
    fn reserve_tasks(&self, tasks: u32) -> TaskRow {
        TaskRow(self.shared.next_task.fetch_add(i64::from(tasks), Ordering::Relaxed))
    }

    /// The task called `task_id`.
    pub fn task(&self, task_id: &TaskId) -> Result<Option<TaskEntry>, rusqlite::Error> {
        self.read(|reader| queries::task(reader, task_id))
    }

    /// The task whose turn began last.
    pub fn last_task(&self) -> Result<Option<TaskId>, rusqlite::Error> {
        self.read(queries::last_task)
    }

    /// The events of `task` after `after`, oldest first: at most so many, and no more once they have so many bytes.
    /// Blocks.
    pub fn events_after(
        &self,
        task: TaskRow,
        after: i64,
        bounds: (usize, usize),
    ) -> Result<Vec<StoredEvent>, rusqlite::Error> {
        self.read_long(|reader| queries::events_after(reader, task, after, bounds))
    }

    /// All events of `task` after `after` that this version knows, as clients were told them. Blocks.
    pub fn all_events_after(&self, task: TaskRow, after: i64) -> Result<Vec<Event>, rusqlite::Error> {
        let stored = self.events_after(task, after, (usize::MAX, usize::MAX))?;
        Ok(stored.into_iter().filter_map(|event| event.into_event().ok()).collect())
    }

    /// Shows the steps of `task` behind the one in the row `after`, oldest first, each with its row and its size, for as
    /// long as `visit` goes on. Blocks.
    pub fn for_each_step(
        &self,
        task: TaskRow,
        after: i64,
        visit: impl FnMut(i64, usize, StoredStep) -> bool,
    ) -> Result<(), rusqlite::Error> {
        self.read_long(|reader| queries::for_each_step(reader, task, after, visit))
    }

    /// The conversation of `task` as it was kept last in this form. Blocks.
    pub fn checkpoint(&self, task: TaskRow, form: i64) -> Result<Option<Checkpoint>, rusqlite::Error> {
        self.read_long(|reader| queries::checkpoint(reader, task, form))
    }

    /// Keeps the conversation of `task` as it was when its journal ended with `step`. Nobody waits for it, and without it
    /// more is read.
    pub fn save_checkpoint(&self, task: TaskRow, step: i64, form: i64, body: String) {
        let keep = move |rows: &WriteTx<'_>| rows.set_checkpoint(task, step, form, &body);
        self.queue(SingleWrite::create(keep, Durability::ProcessKill).0);
    }

    /// The steps of all turns of `task`, oldest first. Blocks.
    pub fn steps(&self, task: TaskRow) -> Result<Vec<StoredStep>, rusqlite::Error> {
        self.read_long(|reader| queries::steps(reader, task))
    }

    /// Turns that were begun and have not ended, oldest first.
    pub fn open_turns(&self) -> Result<Vec<OpenTurn>, rusqlite::Error> {
        self.read(queries::open_turns)
    }

    /// The content blocks of a turn's stream. Blocks.
    pub fn block_counts(&self, task: TaskRow, turn_id: TurnId) -> Result<BlockCounts, rusqlite::Error> {
        self.read_long(|reader| queries::block_counts(reader, task, turn_id))
    }

    /// The calls of a turn that clients have seen and whose result they have not. Blocks.
    pub fn open_calls(
        &self,
        task: TaskRow,
        turn_id: TurnId,
    ) -> Result<Vec<(CallId, String)>, rusqlite::Error> {
        self.read_long(|reader| queries::open_calls(reader, task, turn_id))
    }

    /// The turn that the request called `request` began on the task.
    pub fn turn_by_request(
        &self,
        task_id: &TaskId,
        request: &str,
    ) -> Result<Option<RequestedTurn>, rusqlite::Error> {
        self.read(|reader| queries::turn_by_request(reader, task_id, request))
    }

    /// A page of the tasks, the one changed last first. Blocks.
    pub fn tasks(&self, limit: i64, offset: i64) -> Result<Vec<TaskSummary>, rusqlite::Error> {
        self.read_long(|reader| queries::tasks(reader, limit, offset))
    }

    /// How many tasks there are. Blocks.
    pub fn task_count(&self) -> Result<u64, rusqlite::Error> {
        self.read_long(queries::task_count)
    }

    /// How many requests wait for a person.
    pub fn pending_count(&self) -> Result<u64, rusqlite::Error> {
        self.read(queries::pending_count)
    }

    /// When a task last got a message, or a turn of it began or ended.
    pub fn last_change_at(&self) -> Result<Option<Timestamp>, rusqlite::Error> {
        self.read(queries::last_change_at)
    }

    /// What waits for a person, oldest first. Blocks.
    pub fn pending(&self) -> Result<Vec<PendingRequest>, rusqlite::Error> {
        self.read_long(queries::pending)
    }

    /// What is shown to a person on the task, and not answered.
    pub fn pending_of_task(&self, task_id: &TaskId) -> Result<Option<HitlId>, rusqlite::Error> {
        self.read(|reader| queries::pending_of_task(reader, task_id))
    }

    /// What a person has allowed for good, oldest first. Blocks.
    pub fn grants(&self) -> Result<Vec<Grant>, rusqlite::Error> {
        self.read_long(queries::grants)
    }

    /// What a person has allowed `tool` for good, in `task` or everywhere.
    pub fn grants_for_tool(&self, task: TaskRow, tool: &str) -> Result<Vec<ToolGrant>, rusqlite::Error> {
        self.read(|reader| queries::grants_for_tool(reader, task, tool))
    }

    /// The bytes of what was attached once. Blocks.
    pub fn media(&self, hash: &str) -> Result<Option<Vec<u8>>, rusqlite::Error> {
        self.read_long(|reader| queries::media(reader, hash))
    }

    /// When the first turn ended whose deltas have not been taken out yet.
    pub fn first_unfolded(&self) -> Result<Option<Timestamp>, rusqlite::Error> {
        self.read(queries::first_unfolded)
    }

    /// The user's skill called `name`. Blocks.
    pub fn custom_skill(&self, name: &str) -> Result<Option<CustomSkill>, rusqlite::Error> {
        self.read_long(|reader| skills::find(reader, name))
    }

    /// The user's own skills as a list shows them, by their names in order.
    pub fn custom_skills(&self) -> Result<Vec<SkillSummary>, rusqlite::Error> {
        self.read(skills::summaries)
    }

    /// How the user's own skills are run, by their names in order. Blocks.
    pub fn custom_skill_outlines(&self) -> Result<Vec<SkillOutline>, rusqlite::Error> {
        self.read_long(skills::outlines)
    }

    /// The hash of what a task's conversation, from `base` on, shows of the user's skills; none where it shows nothing.
    pub fn skills_note_hash(&self, task: TaskRow, base: TurnBase) -> Result<Option<String>, rusqlite::Error> {
        self.read(|reader| skills::note_hash(reader, task, base))
    }

    /// What was set while an engine ran and is to stay.
    pub fn setting(&self, setting: Setting) -> Result<Option<String>, rusqlite::Error> {
        self.read(|reader| settings::setting(reader, setting))
    }

    /// How many tokens, input and output, the calls of all tasks after `at` have spent; for a day back at most.
    pub fn tokens_since(&self, at: Timestamp) -> Result<u64, rusqlite::Error> {
        self.read(|reader| usage::tokens_since(reader, at))
    }

    /// When the first call after `at` was on record; for a day back at most.
    pub fn first_usage_at(&self, at: Timestamp) -> Result<Option<Timestamp>, rusqlite::Error> {
        self.read(|reader| usage::first_usage_at(reader, at))
    }

    /// What the calls after `at` have spent, by model; for a day back at most. Blocks.
    pub fn usage_since(&self, at: Timestamp) -> Result<Vec<ModelUsage>, rusqlite::Error> {
        self.read_long(|reader| usage::usage_since(reader, at))
    }

    /// Searches all that is remembered, the best first. One search waits for another, but not beyond its own end.
    /// Blocks.
    pub fn search(&self, query: &MemoryQuery) -> Result<Vec<SearchHit>, rusqlite::Error> {
        let known = &self.shared.common_words;
        self.shared.read_pool.search(query.deadline, |reader| search::search(reader, known, query))
    }

    /// A page of the records of knowledge, the newest first, those too that are no longer in force. Blocks.
    pub fn knowledge(&self, limit: i64, offset: i64) -> Result<Vec<Knowledge>, rusqlite::Error> {
        self.read_long(|reader| knowledge::list(reader, limit, offset))
    }

    /// How many records of knowledge there are. Blocks.
    pub fn knowledge_count(&self) -> Result<u64, rusqlite::Error> {
        self.read_long(knowledge::count)
    }

    /// Whether a record of knowledge is in force, and why not.
    pub fn check_knowledge_active(
        &self,
        id: MemoryId,
    ) -> Result<Result<(), SupersedeError>, rusqlite::Error> {
        self.read(|reader| knowledge::check_active(reader, id))
    }

    /// A page of what is remembered of turns, the newest first. Blocks.
    pub fn episodes(&self, limit: i64, offset: i64) -> Result<Vec<Episode>, rusqlite::Error> {
        self.read_long(|reader| memory_ingest::episodes(reader, limit, offset))
    }

    /// How many episodes there are. Blocks.
    pub fn episode_count(&self) -> Result<u64, rusqlite::Error> {
        self.read_long(memory_ingest::episode_count)
    }

    /// The connections to tool servers, the oldest first.
    pub fn connections(&self) -> Result<Vec<ConnectionRow>, rusqlite::Error> {
        self.read(mcp_connections::list)
    }

    /// The sealed credentials of the connection to a server.
    pub fn credentials(&self, server: &str) -> Result<Option<String>, rusqlite::Error> {
        self.read(|reader| mcp_connections::credentials(reader, server))
    }

    /// When an authorization for a server was last begun.
    pub fn authorization_started_at(&self, server: &str) -> Result<Option<Timestamp>, rusqlite::Error> {
        self.read(|reader| mcp_connections::authorization_started_at(reader, server))
    }

    /// Who the engine is at an authorization server, sealed.
    pub fn client_registration(&self, issuer: &str) -> Result<Option<String>, rusqlite::Error> {
        self.read(|reader| mcp_connections::client_registration(reader, issuer))
    }

    /// Whether turns have ended that memory has not taken in.
    pub fn has_ingest_backlog(&self) -> Result<bool, rusqlite::Error> {
        self.read(memory_ingest::has_backlog)
    }

    /// Whether the brain can be read, and whether it could be written when that was last tried.
    ///
    /// # Errors
    /// What is wrong, for a person.
    pub fn check_health(&self) -> Result<(), String> {
        let read =
            self.read(|reader| reader.query_row("SELECT 1 FROM tasks LIMIT 1", [], |_| Ok(())).optional());
        read.map_err(|error| format!("the brain cannot be read: {error}"))?;
        self.shared.writer.last_result().map_err(|error| error.to_string())
    }

    fn read<T>(&self, query: impl FnOnce(&Connection) -> T) -> T {
        self.shared.read_pool.short(query)
    }

    fn read_long<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, rusqlite::Error> {
        self.shared.read_pool.long(query)
    }

    /// Commits what is queued, checkpoints, ends the writer and frees the lock. Later batches are refused.
    pub async fn close(&self) {
        self.shared.writer.close(CLOSE_TIMEOUT).await;
    }
}

/// How long closing may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
#[path = "store/memory_tests.rs"]
mod memory_tests;
#[cfg(test)]
#[path = "store/tests.rs"]
mod tests;
