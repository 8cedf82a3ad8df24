//! The one thread that writes, and its group commits.
//!
//! Batches that are queued while a commit is under way share the next one: under load the cost of a commit is
//! spread over all that waited, and alone a batch waits for nobody.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use contract::{MessageId, TaskId, Timestamp, TurnId};
use rusqlite::{Connection, Transaction, params};
use service::lock::FileLock;

use super::TaskRow;
use super::steps::Step;

/// Against what a commit must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Against a kill of the process. A power loss may cost the last moment, never integrity.
    Kill,
    /// Against power loss too: the commit waits for the disk.
    PowerLoss,
}

/// A write failed: nothing of its batch is stored.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the brain could not be written: {reason}")]
pub struct WriteError {
    /// What SQLite said.
    pub reason: Arc<str>,
}

/// Something that has writes for the brain. It is asked for them only when the writer gets to it, so that what
/// gathers meanwhile goes into the same commit.
///
/// Each time it is queued the writer calls [`Batch::gather`] once, [`Batch::write`] once or more, and
/// [`Batch::settled`] once.
pub trait Batch: Send + Sync {
    /// Takes what has gathered so far into the commit, and tells how durable that must be. Both at once: what
    /// comes later waits for the next commit, and so does its durability.
    fn gather(&self) -> Durability;

    /// Writes what was taken; again if the attempt before was rolled back.
    fn write(&self, rows: &Rows<'_>) -> Result<(), rusqlite::Error>;

    /// What was taken is stored, or nothing of it is.
    fn settled(&self, result: &Result<(), WriteError>);
}

/// The open transaction, as the writes of a turn need it.
pub struct Rows<'a> {
    transaction: &'a Transaction<'a>,
}

impl Rows<'_> {
    /// A task begins.
    pub fn insert_task(
        &self,
        TaskRow(task): TaskRow,
        task_id: &TaskId,
        at: Timestamp,
    ) -> Result<(), rusqlite::Error> {
        let sql = "INSERT INTO tasks (task, task_id, created_at) VALUES (?1, ?2, ?3)";
        self.execute(sql, params![task, task_id.as_str(), at.unix_ms()])
    }

    /// A turn begins. A turn before it that could not be written to its end is given up: it cannot go on behind
    /// this one.
    pub fn insert_turn(
        &self,
        TaskRow(task): TaskRow,
        turn_id: TurnId,
        message_id: MessageId,
        at: Timestamp,
    ) -> Result<(), rusqlite::Error> {
        let sql = "UPDATE turns SET ended_at = ?2 WHERE task = ?1 AND ended_at IS NULL";
        self.execute(sql, params![task, at.unix_ms()])?;
        let sql = "INSERT INTO turns (turn_id, task, message_id, opened_at) VALUES (?1, ?2, ?3, ?4)";
        self.execute(sql, params![turn_id.to_string(), task, message_id.to_string(), at.unix_ms()])
    }

    /// A start of the engine takes the turn up.
    pub fn count_start(&self, turn_id: TurnId) -> Result<(), rusqlite::Error> {
        self.execute("UPDATE turns SET starts = starts + 1 WHERE turn_id = ?1", [turn_id.to_string()])
    }

    /// A turn gets on by a step, or ends with it.
    pub fn insert_step(
        &self,
        turn_id: TurnId,
        at: Timestamp,
        ts: i64,
        step: &Step,
    ) -> Result<(), rusqlite::Error> {
        let body = json(step)?;
        self.insert(
            "INSERT INTO steps (task, turn, at, ts, body)
             SELECT task, turn, ?2, ?3, ?4 FROM turns WHERE turn_id = ?1",
            params![turn_id.to_string(), at.unix_ms(), ts, body],
        )?;
        match step {
            Step::Ended { .. } => {
                let sql = "UPDATE turns SET ended_at = ?2 WHERE turn_id = ?1";
                self.execute(sql, params![turn_id.to_string(), at.unix_ms()])
            }
            _ => self.execute(
                "UPDATE turns SET starts = 0 WHERE turn_id = ?1 AND starts > 0",
                [turn_id.to_string()],
            ),
        }
    }

    /// An event is on record. `data` is its own data, a JSON object.
    pub fn insert_event(
        &self,
        TaskRow(task): TaskRow,
        turn_id: TurnId,
        ts: i64,
        kind: &str,
        data: &str,
    ) -> Result<(), rusqlite::Error> {
        self.insert(
            "INSERT INTO events (task, ts, turn, kind, data)
             SELECT ?1, ?2, turn, ?4, ?5 FROM turns WHERE turn_id = ?3",
            params![task, ts, turn_id.to_string(), kind, data],
        )
    }

    /// A value of a task's working memory.
    pub fn set_working_memory(
        &self,
        TaskRow(task): TaskRow,
        key: &str,
        value: &serde_json::Value,
    ) -> Result<(), rusqlite::Error> {
        self.execute(
            "INSERT INTO working_memory (task, key, value) VALUES (?1, ?2, ?3)
             ON CONFLICT (task, key) DO UPDATE SET value = excluded.value",
            params![task, key, json(value)?],
        )
    }

    /// Adds a row of a turn. A turn that is not there would make it vanish without an error.
    fn insert(&self, sql: &str, params: impl rusqlite::Params) -> Result<(), rusqlite::Error> {
        self.transaction.prepare_cached(sql)?.insert(params).map(drop)
    }

    fn execute(&self, sql: &str, params: impl rusqlite::Params) -> Result<(), rusqlite::Error> {
        self.transaction.prepare_cached(sql)?.execute(params).map(drop)
    }
}

/// The JSON form in which values are stored.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<String, rusqlite::Error> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// How many batches share a commit at most: bounds how long the first one waits.
const GROUP: usize = 256;

pub(super) struct Writer {
    /// None once the brain is closed.
    queue: Mutex<Option<Sender<Arc<dyn Batch>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts the thread, which holds the brain's lock as long as it may write. The queue is unbounded, but each
    /// channel queues itself at most once.
    pub(super) fn start(connection: Connection, lock: FileLock) -> io::Result<Self> {
        let (sender, queue) = channel();
        let thread = std::thread::Builder::new().name("brain-writer".into()).stack_size(512 * 1024).spawn(
            move || {
                run(connection, &queue);
                drop(lock);
            },
        )?;
        Ok(Self { queue: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn queue(&self, batch: Arc<dyn Batch>) {
        let refused = match &*locked(&self.queue) {
            Some(queue) => queue.send(batch).err().map(|refused| refused.0),
            None => Some(batch),
        };
        if let Some(batch) = refused {
            batch.gather();
            batch.settled(&Err(WriteError { reason: "the brain is closed".into() }));
        }
    }

    /// Commits what is queued and ends the thread.
    pub(super) async fn close(&self) {
        drop(locked(&self.queue).take());
        let thread = locked(&self.thread).take();
        if let Some(thread) = thread {
            // An error is a panic of the thread, which the panic hook has told of.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes until all senders are gone and the queue is empty.
fn run(mut connection: Connection, queue: &Receiver<Arc<dyn Batch>>) {
    while let Ok(first) = queue.recv() {
        let group: Vec<_> = std::iter::once(first).chain(queue.try_iter()).take(GROUP).collect();
        commit(&mut connection, &group);
    }
    finish(&connection);
}

fn commit(connection: &mut Connection, group: &[Arc<dyn Batch>]) {
    let Some(durability) = group.iter().map(|batch| batch.gather()).max() else { return };
    match commit_together(connection, group, durability) {
        Err(error) if group.len() > 1 => {
            // One batch that cannot be written must not take the others with it. The failed attempt was rolled
            // back, so each can be tried alone.
            tracing::warn!(%error, batches = group.len(), "A group commit failed; its batches are tried alone.");
            for batch in group.chunks(1) {
                settle(batch, commit_together(connection, batch, durability));
            }
        }
        result => settle(group, result),
    }
}

fn settle(group: &[Arc<dyn Batch>], result: Result<(), rusqlite::Error>) {
    let result = result.map_err(|error| {
        tracing::error!(%error, "The brain could not be written.");
        WriteError { reason: error.to_string().into() }
    });
    for batch in group {
        batch.settled(&result);
    }
}

fn commit_together(
    connection: &mut Connection,
    group: &[Arc<dyn Batch>],
    durability: Durability,
) -> Result<(), rusqlite::Error> {
    // In WAL mode `full` syncs the log at each commit and `normal` only at checkpoints. It can only be set
    // between transactions.
    let synchronous = match durability {
        Durability::Kill => "normal",
        Durability::PowerLoss => "full",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    let transaction = connection.transaction()?;
    let rows = Rows { transaction: &transaction };
    group.iter().try_for_each(|batch| batch.write(&rows))?;
    transaction.commit()
}

fn finish(connection: &Connection) {
    let checkpoint = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    if let Err(error) = checkpoint.and_then(|()| connection.execute_batch("PRAGMA optimize")) {
        tracing::warn!(%error, "The brain could not be checkpointed; its log is read at the next start.");
    }
}
