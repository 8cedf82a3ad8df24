//! The only thread that writes, with group commits.
//!
//! Batches that are queued during a commit share the next one: under load the cost of a commit is spread over all
//! waiting batches, and a single batch waits for nobody.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use http_service::lock::FileLock;
use parking_lot::Mutex;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::oneshot;

use super::StoreError;
use super::read_pool::{ReadPool, shrink_cache};
use super::wal_checkpoint::{WalCheckpointer, checkpoint_wal};
use super::write_tx::WriteTx;

/// The failures that a commit must survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// A kill of the process. A power loss may cost the last moments, but never integrity.
    #[default]
    ProcessKill,
    /// A power loss too: the commit waits for the disk.
    PowerLoss,
}

/// A failed write: nothing of its batch is stored.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the brain could not be written: {reason}")]
pub struct WriteError {
    /// The error that SQLite reported.
    pub reason: Arc<str>,
}

/// A source of writes for the brain. Its writes are collected only when the writer gets to it, so that everything
/// that accumulates until then is part of the same commit.
///
/// Each time it is queued, the writer calls [`WriteBatch::collect`] once, [`WriteBatch::write`] at least once, and
/// [`WriteBatch::complete`] once.
pub trait WriteBatch: Send + Sync {
    /// Moves what has accumulated into the commit, and returns the durability that it needs. Both happen at once:
    /// what arrives later waits for the next commit, and so does its durability.
    fn collect(&self) -> Durability;

    /// Writes what was collected; called again if an attempt was rolled back.
    fn write(&self, tx: &WriteTx<'_>) -> Result<(), StoreError>;

    /// Reports that what was collected is stored completely, or not at all.
    fn complete(&self, result: &Result<(), WriteError>);
}

/// A batch of a single write, whose caller waits for its return value.
pub(super) struct SingleWrite<T, F> {
    write: F,
    durability: Durability,
    output: Mutex<Option<T>>,
    completion: Mutex<Option<oneshot::Sender<Result<T, WriteError>>>>,
}

impl<T, F> SingleWrite<T, F>
where
    T: Send + 'static,
    F: Fn(&WriteTx<'_>) -> Result<T, StoreError> + Send + Sync + 'static,
{
    /// Creates the batch, and a receiver of its result.
    pub(super) fn create(
        write: F,
        durability: Durability,
    ) -> (Arc<dyn WriteBatch>, oneshot::Receiver<Result<T, WriteError>>) {
        let (sender, receiver) = oneshot::channel();
        let completion = Mutex::new(Some(sender));
        (Arc::new(Self { write, durability, output: Mutex::new(None), completion }), receiver)
    }
}

impl<T, F> WriteBatch for SingleWrite<T, F>
where
    T: Send,
    F: Fn(&WriteTx<'_>) -> Result<T, StoreError> + Send + Sync,
{
    fn collect(&self) -> Durability {
        self.durability
    }

    fn write(&self, tx: &WriteTx<'_>) -> Result<(), StoreError> {
        *self.output.lock() = Some((self.write)(tx)?);
        Ok(())
    }

    fn complete(&self, result: &Result<(), WriteError>) {
        // A batch that is stored was written and has returned a value.
        let output = self
            .output
            .lock()
            .take()
            .ok_or_else(|| WriteError { reason: "the write was not executed".into() });
        if let Some(sender) = self.completion.lock().take() {
            // The caller may be gone.
            let _ = sender.send(result.clone().and(output));
        }
    }
}

/// The most batches per commit, which limits how long the first one waits.
const MAX_BATCHES_PER_COMMIT: usize = 256;

pub(super) struct Writer {
    /// `None` once the brain is closed.
    queue: Mutex<Option<Sender<Arc<dyn WriteBatch>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    last_result: LastResult,
}

/// The result of the last commit.
type LastResult = Arc<Mutex<Result<(), WriteError>>>;

impl Writer {
    /// Starts the thread, which holds the brain's lock for as long as it may write. The queue is unbounded, but
    /// each event log is in it at most once.
    pub(super) fn start(
        file: &Path,
        connection: Connection,
        lock: FileLock,
        readers: Arc<ReadPool>,
    ) -> io::Result<Self> {
        let (sender, queue) = channel();
        let checkpointer = WalCheckpointer::start(file)?;
        let last_result = LastResult::new(Mutex::new(Ok(())));
        let writer_result = Arc::clone(&last_result);
        let thread = std::thread::Builder::new().name("brain-writer".into()).stack_size(512 * 1024).spawn(
            move || {
                run(connection, &queue, &writer_result, checkpointer, &readers);
                drop(lock);
            },
        )?;
        Ok(Self { queue: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)), last_result })
    }

    /// The result of the last commit.
    pub(super) fn last_result(&self) -> Result<(), WriteError> {
        self.last_result.lock().clone()
    }

    pub(super) fn queue(&self, batch: Arc<dyn WriteBatch>) {
        let rejected = match &*self.queue.lock() {
            Some(queue) => queue.send(batch).err().map(|rejected| rejected.0),
            None => Some(batch),
        };
        if let Some(batch) = rejected {
            batch.collect();
            batch.complete(&Err(WriteError { reason: "the brain is closed".into() }));
        }
    }

    /// Commits what is queued and ends the thread, or abandons it after `deadline`. What is not committed by then
    /// is lost without a trace.
    pub(super) async fn close(&self, deadline: Duration) {
        drop(self.queue.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let ended = tokio::task::spawn_blocking(move || thread.join());
            // An error means that the thread panicked, which the panic hook has logged.
            if tokio::time::timeout(deadline, ended).await.is_err() {
                tracing::warn!("The brain could not be closed in time; its writer thread is abandoned.");
            }
        }
    }
}

/// The idle time after which the log is checkpointed.
const CHECKPOINT_IDLE_DELAY: Duration = Duration::from_secs(1);
/// The number of commits after which the log is checkpointed under constant load.
const CHECKPOINT_COMMIT_INTERVAL: u32 = 64;

/// Runs until all senders are gone and the queue is empty.
fn run(
    connection: Connection,
    queue: &Receiver<Arc<dyn WriteBatch>>,
    last_result: &LastResult,
    checkpointer: WalCheckpointer,
    readers: &ReadPool,
) {
    let mut committer = Committer { connection, synchronous: None };
    let mut commits = 0;
    loop {
        let is_unhealthy = last_result.lock().is_err();
        let next = if commits > 0 || is_unhealthy {
            queue.recv_timeout(CHECKPOINT_IDLE_DELAY)
        } else {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match next {
            Ok(first) => {
                let group: Vec<_> =
                    std::iter::once(first).chain(queue.try_iter()).take(MAX_BATCHES_PER_COMMIT).collect();
                *last_result.lock() = committer.commit_catching_panics(&group);
                commits += 1;
                if commits % CHECKPOINT_COMMIT_INTERVAL == 0 {
                    checkpointer.wake();
                }
                if checkpointer.take_oversized() {
                    // No commit is running, so the next one finds the log checkpointed and resets it.
                    checkpoint_or_warn(&committer.connection, "PASSIVE");
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                checkpointer.wake();
                commits = 0;
                shrink_cache(&committer.connection);
                readers.shrink();
                // The disk may have space again, which nobody would notice before the next turn.
                if is_unhealthy && committer.probe_write().is_ok() {
                    *last_result.lock() = Ok(());
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                checkpointer.shutdown();
                return optimize_and_truncate_wal(&committer.connection);
            }
        }
    }
}

/// The write connection.
struct Committer {
    connection: Connection,
    /// The durability that its `synchronous` setting provides.
    synchronous: Option<Durability>,
}

impl Committer {
    /// Commits a group. Its batches are completed even if writing one of them panics.
    fn commit_catching_panics(&mut self, group: &[Arc<dyn WriteBatch>]) -> Result<(), WriteError> {
        catch_unwind(AssertUnwindSafe(|| self.commit(group))).unwrap_or_else(|_| {
            let reason = "the write panicked; see the engine's log".into();
            let result = Err(WriteError { reason });
            for batch in group {
                batch.complete(&result);
            }
            result
        })
    }

    /// Commits a group, if necessary batch by batch. Returns the result of the last commit, which is the brain's
    /// health.
    fn commit(&mut self, group: &[Arc<dyn WriteBatch>]) -> Result<(), WriteError> {
        let Some(durability) = group.iter().map(|batch| batch.collect()).max() else { return Ok(()) };
        match self.commit_group(group, durability) {
            Err(error) if group.len() > 1 => {
                // One batch that cannot be written must not make the others fail. The failed attempt was rolled
                // back, so each batch can be retried alone.
                let batches = group.len();
                tracing::warn!(%error, batches, "A group commit failed; its batches are retried one by one.");
                let mut last = Ok(());
                for batch in group.chunks(1) {
                    last = complete_group(batch, self.commit_group(batch, durability));
                }
                last
            }
            result => complete_group(group, result),
        }
    }

    fn commit_group(
        &mut self,
        group: &[Arc<dyn WriteBatch>],
        durability: Durability,
    ) -> Result<(), StoreError> {
        if self.synchronous != Some(durability) {
            // In WAL mode `full` syncs the log at each commit and `normal` only at checkpoints. The setting can
            // only be changed between transactions. See <https://www.sqlite.org/pragma.html#pragma_synchronous>.
            let synchronous = match durability {
                Durability::ProcessKill => "normal",
                Durability::PowerLoss => "full",
            };
            self.connection.pragma_update(None, "synchronous", synchronous)?;
            self.synchronous = Some(durability);
        }
        let transaction = self.begin()?;
        let tx = WriteTx { transaction: &transaction };
        group.iter().try_for_each(|batch| batch.write(&tx))?;
        Ok(transaction.commit()?)
    }

    /// Begins a transaction with the write lock, for which it waits: the write-ahead log may just be truncated for an
    /// erasure. A transaction that reads first fails at once instead of waiting when it comes to write, see
    /// <https://www.sqlite.org/lang_transaction.html>.
    fn begin(&mut self) -> Result<Transaction<'_>, rusqlite::Error> {
        self.connection.transaction_with_behavior(TransactionBehavior::Immediate)
    }

    /// Commits a write that changes nothing, to test whether the brain can be written.
    fn probe_write(&mut self) -> Result<(), StoreError> {
        let transaction = self.begin()?;
        transaction.execute("UPDATE additions SET at = at", [])?;
        Ok(transaction.commit()?)
    }
}

fn complete_group(group: &[Arc<dyn WriteBatch>], result: Result<(), StoreError>) -> Result<(), WriteError> {
    let result = result.map_err(|error| {
        tracing::error!(%error, "The brain could not be written.");
        WriteError { reason: error.to_string().into() }
    });
    for batch in group {
        batch.complete(&result);
    }
    result
}

fn optimize_and_truncate_wal(connection: &Connection) {
    // This comes before the checkpoint because it may write.
    if let Err(error) = connection.execute_batch("PRAGMA optimize") {
        tracing::warn!(%error, "The statistics of the brain's query planner could not be updated.");
    }
    checkpoint_or_warn(connection, "TRUNCATE");
}

fn checkpoint_or_warn(connection: &Connection, mode: &str) {
    if let Err(error) = checkpoint_wal(connection, mode) {
        tracing::warn!(%error, "The write-ahead log could not be checkpointed; it is kept for now.");
    }
}
