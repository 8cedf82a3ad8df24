//! The brain: one user's store, a SQLite file. SQL occurs in no other crate of the engine. On top of it, the
//! [`event_log`] stores the events of each task before it publishes them.
//!
//! Writes are committed in groups, one commit at a time ([`writer`]); reads use read-only connections
//! ([`read_pool`]). An exclusive lock on a file beside the brain is held for as long as the writing connection is
//! open, so no two engines ever write the same brain.

mod approvals;
mod backups;
mod conversations;
mod corrections;
mod erasure;
mod error;
pub mod event_log;
mod facts;
mod feedback;
mod fork;
mod journal;
mod knowledge;
mod learning_batches;
mod learning_queries;
mod lessons;
mod mcp_connections;
mod media;
pub mod memory_format;
mod memory_ingest;
mod message_text;
mod opening_notes;
mod page_scrub;
mod provenance;
mod queries;
mod read_pool;
mod schedules;
mod schema;
mod search;
mod search_index;
mod settings;
mod skills;
pub mod snapshot;
pub mod steps;
#[cfg(any(test, feature = "testing"))]
#[path = "../tests/unit/testing.rs"]
pub mod testing;
mod titles;
mod transfer;
mod turn_queue;
mod turn_records;
mod usage;
mod usage_caps;
mod usage_days;
mod usage_report;
mod usage_rows;
mod user_servers;
mod waiting;
mod wal_checkpoint;
mod webhooks;
mod write_batch;
mod write_tx;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use api::engine::{Grant, PendingRequest, TaskSummary};
use api::event::Event;
use api::facts::{Fact, Facts, Statement};
use api::memory::{Episode, Knowledge};
use api::skills::SkillSummary;
use api::{CallId, HitlId, MemoryId, TaskId, Timestamp, TurnId};
pub use approvals::ApprovalState;
pub use backups::BACKUP_LIFETIME;
pub use conversations::{ConversationChange, ConversationChanged, ConversationCursor, ConversationFilter};
pub use corrections::Corrections;
pub use erasure::{Erasure, ErasureScope, TaskDeletion};
pub use error::{BrainError, StoreError};
pub use facts::{CorrectError, FactCorrection, FactFilter};
pub use feedback::{Correction, FeedbackContent, FeedbackRow};
pub use fork::{Forked, NewFork};
pub use journal::{Journal, JournalError};
pub use knowledge::{KnowledgeDraft, KnowledgeRejected, NewKnowledge, SupersedeError};
pub use learning_batches::{BatchEffect, BatchProgress, BatchStage, LessonDraft, UnrelatedTurn};
pub use lessons::{KnownLesson, NewLesson};
pub use mcp_connections::{AuthorizationRow, ConnectionRow};
pub use opening_notes::{KnownSkills, OpeningNotes};
pub use queries::{
    BlockCounts, Checkpoint, OpenTurn, PendingHitl, RequestedTurn, StoredEvent, StoredStep, ToolGrant,
};
use rusqlite::{Connection, OptionalExtension as _};
pub use schedules::{NewRun, ScheduleChange, ScheduleFire, ScheduleInsertion, ScheduleRow};
pub use search::{MemoryQuery, SearchHit, SearchScope, has_content_words, has_searchable_words};
pub use settings::Setting;
pub use skills::{CreateSkillError, CustomSkill, SkillOutline};
pub use titles::TitleRequest;
use tokio::sync::Notify;
pub use transfer::{ExportError, ImportError, StagedImport};
pub use turn_queue::{EndedQueuedTurn, NewQueuedTurn, QueueEnd, QueuedRequest, QueuedTurnRow};
pub use turn_records::{TurnPage, TurnStart};
pub use usage::{CallUsage, ModelUsage, USAGE_RETENTION};
pub use usage_caps::{CapMark, CapPeriod, CapUse};
pub use usage_report::{UsageCursor, UsageQuery};
pub use usage_rows::{ToolUsage, nano_usd, usd};
pub use user_servers::{USER_SERVER_IDENTITY, UserServerRow};
pub use webhooks::{AttemptOutcome, DELIVERY_LIFETIME_MS, DueDelivery};
pub use write_batch::{Durability, WriteBatch, WriteError};
pub use write_tx::{IdempotencyKey, NewGrant, NewTurn, Rewind, WriteTx};

use crate::read_pool::ReadPool;
use crate::write_batch::SingleWrite;
use crate::write_tx::to_json;
use crate::writer::Writer;

/// The row number of a task, which identifies it inside the brain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskRow(i64);

/// A task's row and the position of its newest event.
#[derive(Clone, Debug)]
pub struct TaskEntry {
    /// The row of the task.
    pub row: TaskRow,
    /// The `ts` of the task's newest stored event; 0 if it has none.
    pub last_ts: i64,
}

/// A handle to an open brain. Clones share it; dropping the last one ends the writer.
#[derive(Clone)]
pub struct Brain {
    shared: Arc<Shared>,
}

struct Shared {
    writer: Writer,
    read_pool: Arc<ReadPool>,
    next_task: AtomicI64,
    file: PathBuf,
    /// Signalled when a turn has queued an erasure.
    erasure_requested: Notify,
    schedules: schedules::Coordination,
    /// Signalled when a turn has requested a title.
    title_requested: Notify,
    /// Signalled when a delivery to the webhook was queued, or its receiver changed.
    webhook_changed: Arc<Notify>,
}

impl Brain {
    /// Opens the brain in `file`, creating it if it is missing, and takes its lock.
    ///
    /// # Errors
    /// See [`BrainError`].
    pub fn open(file: &Path) -> Result<Self, BrainError> {
        let folder = file.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)
            .map_err(|source| BrainError::Folder { folder: folder.to_owned(), source })?;
        let lock = snapshot::lock(file)?;
        // Left behind by an import that was interrupted.
        transfer::remove_staging_file(file);
        let unusable = |source| BrainError::Folder { folder: folder.to_owned(), source };
        snapshot::remove_snapshot(file).map_err(unusable)?;
        let write = schema::open(file)?;
        let failed = |error| BrainError::from_sqlite(file, error);
        let read_pool = Arc::new(ReadPool::open(file).map_err(failed)?);
        // Above every row that exists, including rows that a deleted task may have left behind.
        let next = "SELECT 1 + MAX(
                COALESCE((SELECT MAX(task) FROM tasks), 0), COALESCE((SELECT MAX(task) FROM turns), 0),
                COALESCE((SELECT MAX(task) FROM steps), 0), COALESCE((SELECT MAX(task) FROM events), 0)
            )";
        let next_task =
            read_pool.short(|reader| reader.query_row(next, [], |row| row.get(0))).map_err(failed)?;
        let webhook_changed = Arc::<Notify>::default();
        let writer = Writer::start(file, write, lock, Arc::clone(&read_pool), Arc::clone(&webhook_changed));
        Ok(Self {
            shared: Arc::new(Shared {
                writer: writer.map_err(BrainError::Writer)?,
                read_pool,
                next_task: AtomicI64::new(next_task),
                file: file.to_owned(),
                erasure_requested: Notify::new(),
                schedules: schedules::Coordination::default(),
                title_requested: Notify::new(),
                webhook_changed,
            }),
        })
    }

    /// The path of the brain's file.
    pub fn file(&self) -> &Path {
        &self.shared.file
    }

    /// Queues a batch for the writer. See [`WriteBatch`].
    pub fn queue(&self, batch: Arc<dyn WriteBatch>) {
        self.shared.writer.queue(batch);
    }

    /// Queues a batch and commits it on this thread, unless something else is being written or waits to be. Blocks.
    fn commit_here(&self, batch: Arc<dyn WriteBatch>) {
        self.shared.writer.commit_here(batch);
    }

    /// Runs `write` in a batch of its own and waits until it is committed, with [`Durability::ProcessKill`].
    pub async fn write<T, F>(&self, write: F) -> Result<T, WriteError>
    where
        T: Send + 'static,
        F: Fn(&WriteTx<'_>) -> Result<T, StoreError> + Send + Sync + 'static,
    {
        self.write_with_durability(Durability::ProcessKill, write).await
    }

    /// Runs `write` in a batch of its own and waits until it is committed with the given durability.
    pub async fn write_with_durability<T, F>(&self, durability: Durability, write: F) -> Result<T, WriteError>
    where
        T: Send + 'static,
        F: Fn(&WriteTx<'_>) -> Result<T, StoreError> + Send + Sync + 'static,
    {
        let (batch, result) = SingleWrite::create(write, durability);
        self.queue(batch);
        result.await.unwrap_or_else(|_| Err(WriteError { reason: "the brain is closed".into() }))
    }

    /// Reserves a row for a task that is about to begin. The task exists once its first batch is committed.
    pub fn reserve_task(&self) -> TaskRow {
        TaskRow(self.shared.next_task.fetch_add(1, Ordering::Relaxed))
    }

    /// Reserves consecutive rows for `tasks` tasks and returns the first one.
    fn reserve_tasks(&self, tasks: u32) -> TaskRow {
        TaskRow(self.shared.next_task.fetch_add(i64::from(tasks), Ordering::Relaxed))
    }

    /// Looks up the task with the id `task_id`.
    pub fn task(&self, task_id: &TaskId) -> Result<Option<TaskEntry>, StoreError> {
        self.read(|reader| queries::task(reader, task_id))
    }

    /// The task with the most recently opened turn.
    pub fn last_task(&self) -> Result<Option<TaskId>, StoreError> {
        self.read(queries::last_task)
    }

    /// The events of `task` with a `ts` above `after`, oldest first. `bounds` limits their number and their total
    /// size in bytes; the event that reaches the size limit is still included. Blocks.
    pub fn events_after(
        &self,
        task: TaskRow,
        after: i64,
        bounds: (usize, usize),
    ) -> Result<Vec<StoredEvent>, StoreError> {
        self.read_long(|reader| queries::events_after(reader, task, after, bounds))
    }

    /// All events of `task` with a `ts` above `after`, as clients received them. Events of types that this version
    /// does not know are left out. Blocks.
    pub fn all_events_after(&self, task: TaskRow, after: i64) -> Result<Vec<Event>, StoreError> {
        let stored = self.events_after(task, after, (usize::MAX, usize::MAX))?;
        Ok(stored.into_iter().filter_map(|event| event.into_event().ok()).collect())
    }

    /// Calls `visit` with each step of `task` after the row `after`, oldest first, together with its row and its
    /// size in bytes, until `visit` returns `false`. Blocks.
    pub fn for_each_step(
        &self,
        task: TaskRow,
        after: i64,
        visit: impl FnMut(i64, usize, StoredStep) -> bool,
    ) -> Result<(), StoreError> {
        self.read_long(|reader| queries::for_each_step(reader, task, after, visit))
    }

    /// The stored checkpoint of the conversation of `task`, if its format is `form`. Blocks.
    pub fn checkpoint(&self, task: TaskRow, form: i64) -> Result<Option<Checkpoint>, StoreError> {
        self.read_long(|reader| queries::checkpoint(reader, task, form))
    }

    /// Stores a checkpoint of the conversation of `task`, taken when its journal ended with `step`. Nobody waits
    /// for the write: without a checkpoint the conversation is rebuilt from more of the journal.
    pub fn save_checkpoint(&self, task: TaskRow, step: i64, form: i64, body: String) {
        let write = move |tx: &WriteTx<'_>| tx.set_checkpoint(task, step, form, &body);
        self.queue(SingleWrite::create(write, Durability::ProcessKill).0);
    }

    /// The steps of all turns of `task`, oldest first. Blocks.
    pub fn steps(&self, task: TaskRow) -> Result<Vec<StoredStep>, StoreError> {
        self.read_long(|reader| queries::steps(reader, task))
    }

    /// The turns that have begun and not ended, oldest first.
    pub fn open_turns(&self) -> Result<Vec<OpenTurn>, StoreError> {
        self.read(queries::open_turns)
    }

    /// The number of content blocks in a turn's event stream. Blocks.
    pub fn block_counts(&self, task: TaskRow, turn_id: TurnId) -> Result<BlockCounts, StoreError> {
        self.read_long(|reader| queries::block_counts(reader, task, turn_id))
    }

    /// The tool calls of a turn that clients have seen without a result yet. Blocks.
    pub fn open_calls(&self, task: TaskRow, turn_id: TurnId) -> Result<Vec<(CallId, String)>, StoreError> {
        self.read_long(|reader| queries::open_calls(reader, task, turn_id))
    }

    /// The turn of the task that was begun by the request with the idempotency key `request`.
    pub fn turn_by_request(
        &self,
        task_id: &TaskId,
        request: &str,
    ) -> Result<Option<RequestedTurn>, StoreError> {
        self.read(|reader| queries::turn_by_request(reader, task_id, request))
    }

    /// A page of the tasks, most recently changed first. Blocks.
    pub fn tasks(&self, limit: i64, offset: i64) -> Result<Vec<TaskSummary>, StoreError> {
        self.read_long(|reader| queries::tasks(reader, limit, offset))
    }

    /// The number of tasks. Blocks.
    pub fn task_count(&self) -> Result<u64, StoreError> {
        self.read_long(queries::task_count)
    }

    /// The number of requests that wait for an answer of the user.
    pub fn pending_count(&self) -> Result<u64, StoreError> {
        self.read(queries::pending_count)
    }

    /// The last time at which a task received a message, or one of its turns began or ended.
    pub fn last_change_at(&self) -> Result<Option<Timestamp>, StoreError> {
        self.read(queries::last_change_at)
    }

    /// The requests that wait for an answer of the user, oldest first. Blocks.
    pub fn pending(&self) -> Result<Vec<PendingRequest>, StoreError> {
        self.read_long(queries::pending)
    }

    /// The request of the task that is shown to the user and not answered yet.
    pub fn pending_of_task(&self, task_id: &TaskId) -> Result<Option<HitlId>, StoreError> {
        self.read(|reader| queries::pending_of_task(reader, task_id))
    }

    /// The lasting approvals (grants) of the user, oldest first. Blocks.
    pub fn grants(&self) -> Result<Vec<Grant>, StoreError> {
        self.read_long(queries::grants)
    }

    /// The grants for `tool` that hold in `task`, either for that task or for the whole engine.
    pub fn grants_for_tool(&self, task: TaskRow, tool: &str) -> Result<Vec<ToolGrant>, StoreError> {
        self.read(|reader| queries::grants_for_tool(reader, task, tool))
    }

    /// The bytes of an attachment, by its hash. Blocks.
    pub fn media(&self, hash: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.read_long(|reader| media::bytes(reader, hash))
    }

    /// A part of an attachment, by its hash. Blocks.
    pub fn media_part(
        &self,
        hash: &str,
        offset: usize,
        length: usize,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.read_long(|reader| media::part(reader, hash, offset, length))
    }

    /// The end of the earliest ended turn whose deltas have not been folded away yet.
    pub fn first_unfolded(&self) -> Result<Option<Timestamp>, StoreError> {
        self.read(queries::first_unfolded)
    }

    /// The user's custom skill with the given name. Blocks.
    pub fn custom_skill(&self, name: &str) -> Result<Option<CustomSkill>, StoreError> {
        self.read_long(|reader| skills::find(reader, name))
    }

    /// Summaries of the user's custom skills, sorted by name.
    pub fn custom_skills(&self) -> Result<Vec<SkillSummary>, StoreError> {
        self.read(skills::summaries)
    }

    /// Outlines of the user's custom skills, sorted by name: what is needed to run them. Blocks.
    pub fn custom_skill_outlines(&self) -> Result<Vec<SkillOutline>, StoreError> {
        self.read_long(skills::outlines)
    }

    /// A setting that was changed at runtime and persists across restarts.
    pub fn setting(&self, setting: Setting) -> Result<Option<String>, StoreError> {
        self.read(|reader| settings::setting(reader, setting))
    }

    /// Searches memory, best results first. A search waits for a running one, but not beyond its own deadline.
    /// Blocks.
    pub fn search(&self, query: &MemoryQuery) -> Result<Vec<SearchHit>, StoreError> {
        Ok(self.shared.read_pool.search(query.deadline, |reader| search::search(reader, query))?)
    }

    /// A page of the knowledge records, newest first, including superseded ones. Blocks.
    pub fn knowledge(&self, limit: i64, offset: i64) -> Result<Vec<Knowledge>, StoreError> {
        self.read_long(|reader| knowledge::list(reader, limit, offset))
    }

    /// The number of knowledge records. Blocks.
    pub fn knowledge_count(&self) -> Result<u64, StoreError> {
        self.read_long(knowledge::count)
    }

    /// Whether a knowledge record is active, and if not, why.
    pub fn check_knowledge_active(&self, id: MemoryId) -> Result<Result<(), SupersedeError>, StoreError> {
        self.read(|reader| knowledge::check_active(reader, id))
    }

    /// A page of the facts in force, the last said first. Blocks.
    pub fn facts(&self, filter: &FactFilter, limit: i64, offset: i64) -> Result<Facts, StoreError> {
        self.read_long(|reader| facts::list(reader, filter, limit, offset))
    }

    /// A fact with its history, in force or not. Blocks.
    pub fn fact(&self, id: MemoryId) -> Result<Option<Fact>, StoreError> {
        self.read_long(|reader| facts::fact(reader, id))
    }

    /// What is erased together with a fact: at most `max` statements, the newest first, and how many they are in all.
    /// Blocks.
    pub fn erased_with(&self, id: MemoryId, max: usize) -> Result<(Vec<Statement>, usize), StoreError> {
        self.read_long(|reader| facts::erased_with(reader, id, max))
    }

    /// A page of the episodes, newest first. Blocks.
    pub fn episodes(&self, limit: i64, offset: i64) -> Result<Vec<Episode>, StoreError> {
        self.read_long(|reader| memory_ingest::episodes(reader, limit, offset))
    }

    /// The number of episodes. Blocks.
    pub fn episode_count(&self) -> Result<u64, StoreError> {
        self.read_long(memory_ingest::episode_count)
    }

    /// The connections to tool servers, oldest first.
    pub fn connections(&self) -> Result<Vec<ConnectionRow>, StoreError> {
        self.read(mcp_connections::list)
    }

    /// The sealed credentials of the connection to a server.
    pub fn credentials(&self, server: &str) -> Result<Option<String>, StoreError> {
        self.read(|reader| mcp_connections::credentials(reader, server))
    }

    /// The time at which the newest authorization for a server was started.
    pub fn authorization_started_at(&self, server: &str) -> Result<Option<Timestamp>, StoreError> {
        self.read(|reader| mcp_connections::authorization_started_at(reader, server))
    }

    /// The engine's client registration at an authorization server, sealed.
    pub fn client_registration(&self, issuer: &str) -> Result<Option<String>, StoreError> {
        self.read(|reader| mcp_connections::client_registration(reader, issuer))
    }

    /// Whether there are ended turns that are not indexed into memory yet.
    pub fn has_ingest_backlog(&self) -> Result<bool, StoreError> {
        self.read(memory_ingest::has_backlog)
    }

    /// Whether there is something remembered that searches do not find yet: see [`WriteTx::index_backlog`].
    pub fn has_index_backlog(&self) -> Result<bool, StoreError> {
        self.read(search_index::has_backlog)
    }

    /// Checks that the brain can be read and that the last commit succeeded.
    ///
    /// # Errors
    /// Describes the problem in words for an operator.
    pub fn check_health(&self) -> Result<(), String> {
        let result =
            self.read(|reader| reader.query_row("SELECT 1 FROM tasks LIMIT 1", [], |_| Ok(())).optional());
        result.map_err(|error| format!("the brain cannot be read: {error}"))?;
        self.shared.writer.last_result().map_err(|error| error.to_string())
    }

    fn read<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, StoreError> {
        Ok(self.shared.read_pool.short(query)?)
    }

    fn read_long<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, StoreError> {
        Ok(self.shared.read_pool.long(query)?)
    }

    /// Commits what is queued, truncates the write-ahead log, ends the writer and releases the lock. Later batches
    /// are rejected.
    pub async fn close(&self) {
        self.shared.writer.close(CLOSE_TIMEOUT).await;
    }
}

/// The time limit for closing the brain.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
#[path = "../tests/unit/lib.rs"]
mod tests;
