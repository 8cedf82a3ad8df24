//! Group commits, one at a time.
//!
//! Batches that are queued during a commit share the next one: under load the cost of a commit is spread over all
//! waiting batches, and a single batch waits for nobody.
//!
//! Most commits are those of a thread of their own, so that nothing async ever waits for the disk. A thread that may
//! block commits by itself what it queues if nothing else is being written ([`Writer::commit_here`]), because waking
//! the other thread takes as long as a small commit.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http_service::lock::FileLock;
use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::Notify;

use super::StoreError;
use super::read_pool::{ReadPool, shrink_cache};
use super::wal_checkpoint::{WalCheckpointer, checkpoint_wal};
use super::write_batch::{Durability, WriteBatch, WriteError};
use super::write_tx::WriteTx;

/// The most batches per commit, which limits how long the first one waits.
const MAX_BATCHES_PER_COMMIT: usize = 256;

/// The idle time after which the log is checkpointed.
const CHECKPOINT_IDLE_DELAY: Duration = Duration::from_secs(1);
/// The number of commits after which the log is checkpointed under constant load.
const CHECKPOINT_COMMIT_INTERVAL: u64 = 64;

/// Commits batches. Once it is dropped its thread commits what is queued, and ends.
pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the threads that commit share. Who needs both locks takes that of the committer first.
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when the writer's thread has something to do.
    work: Condvar,
    /// Locked during a commit. `None` once the brain is closed.
    committer: Mutex<Option<Committer>>,
    /// The result of the last commit.
    last_result: Mutex<Result<(), WriteError>>,
}

/// The batches that wait for a commit. They are unbounded, but each event log is among them at most once.
#[derive(Default)]
struct Queue {
    batches: VecDeque<Arc<dyn WriteBatch>>,
    /// The number of commits so far, with a running one, and after how many of them a checkpoint was requested last.
    commits: u64,
    checkpointed_after: u64,
    /// Whether the writer's thread waits without a timeout.
    is_thread_asleep: bool,
    is_closed: bool,
}

impl Queue {
    /// Takes the batches of the next commit.
    fn next_group(&mut self) -> Vec<Arc<dyn WriteBatch>> {
        let count = self.batches.len().min(MAX_BATCHES_PER_COMMIT);
        self.commits += u64::from(count > 0);
        self.batches.drain(..count).collect()
    }

    /// Whether a checkpoint is to be requested although there are more commits.
    fn is_checkpoint_due(&self) -> bool {
        self.commits - self.checkpointed_after >= CHECKPOINT_COMMIT_INTERVAL
    }

    /// Whether the writer's thread must wake up: to work, or to notice when there are no more commits.
    fn needs_thread(&self) -> bool {
        !self.batches.is_empty() || self.is_checkpoint_due() || self.is_thread_asleep
    }
}

/// What became of a batch that was to be queued.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pushed {
    /// It is the only one in the queue.
    Alone,
    /// It is in the queue behind others.
    BehindOthers,
    /// It is not, because the brain is closed.
    Rejected,
}

/// What the writer's thread is to do.
enum Work {
    /// Commit what is queued.
    Commit,
    /// Request a checkpoint.
    Checkpoint,
    /// Request one and clean up, because after this many commits there was none for [`CHECKPOINT_IDLE_DELAY`].
    Idle(u64),
    /// End, because the brain is closed and everything is committed.
    End,
}

impl Writer {
    /// Starts the thread. The brain's lock is held for as long as the connection is open. `webhook_changed` is notified
    /// of each commit that has something new for the webhook.
    pub(super) fn start(
        file: &Path,
        connection: Connection,
        lock: FileLock,
        readers: Arc<ReadPool>,
        webhook_changed: Arc<Notify>,
    ) -> io::Result<Self> {
        let checkpointer = WalCheckpointer::start(file)?;
        let committer =
            Committer { connection, _lock: lock, synchronous: None, webhook_changed, wakes_webhook: false };
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            work: Condvar::new(),
            committer: Mutex::new(Some(committer)),
            last_result: Mutex::new(Ok(())),
        });
        let thread = {
            let shared = Arc::clone(&shared);
            let run = move || shared.run(checkpointer, &readers);
            std::thread::Builder::new().name("brain-writer".into()).stack_size(512 * 1024).spawn(run)?
        };
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// The result of the last commit.
    pub(super) fn last_result(&self) -> Result<(), WriteError> {
        self.shared.last_result.lock().clone()
    }

    /// Queues a batch for the writer's thread.
    pub(super) fn queue(&self, batch: Arc<dyn WriteBatch>) {
        if self.shared.push(batch) != Pushed::Rejected {
            self.shared.work.notify_one();
        }
    }

    /// Queues a batch and commits it on this thread, unless something else is being written or waits to be: then the
    /// writer's thread commits both. Blocks.
    pub(super) fn commit_here(&self, batch: Arc<dyn WriteBatch>) {
        if self.shared.push(batch) == Pushed::Alone
            && let Some(mut committer) = self.shared.committer.try_lock()
            && let Some(committer) = &mut *committer
        {
            self.shared.commit_next(committer);
        }
        if self.shared.queue.lock().needs_thread() {
            self.shared.work.notify_one();
        }
    }

    /// Commits what is queued and ends the thread, or abandons it after `deadline`. What is not committed by then
    /// is lost without a trace.
    pub(super) async fn close(&self, deadline: Duration) {
        self.shared.close();
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

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Shared {
    /// Queues a batch, or rejects it if the brain is closed.
    fn push(&self, batch: Arc<dyn WriteBatch>) -> Pushed {
        let mut queue = self.queue.lock();
        if queue.is_closed {
            drop(queue);
            reject(&*batch);
            return Pushed::Rejected;
        }
        let pushed = if queue.batches.is_empty() { Pushed::Alone } else { Pushed::BehindOthers };
        queue.batches.push_back(batch);
        pushed
    }

    /// Rejects batches from now on.
    fn close(&self) {
        self.queue.lock().is_closed = true;
        self.work.notify_one();
    }

    /// Closes the connection, and rejects what is queued: nobody is left to commit it.
    fn end(&self) {
        let committer = self.committer.lock().take();
        let left = {
            let mut queue = self.queue.lock();
            queue.is_closed = true;
            std::mem::take(&mut queue.batches)
        };
        drop(committer);
        for batch in left {
            reject(&*batch);
        }
    }

    /// Commits the next batches, if any are left.
    fn commit_next(&self, committer: &mut Committer) {
        let group = self.queue.lock().next_group();
        if !group.is_empty() {
            *self.last_result.lock() = committer.commit_catching_panics(&group);
        }
    }

    /// Waits until there is something to do for the writer's thread, which was idle last after `idle_after` commits.
    fn next_work(&self, idle_after: u64) -> Work {
        let mut queue = self.queue.lock();
        loop {
            if queue.is_checkpoint_due() {
                queue.checkpointed_after = queue.commits;
                return Work::Checkpoint;
            }
            if !queue.batches.is_empty() {
                return Work::Commit;
            }
            if queue.is_closed {
                return Work::End;
            }
            let commits = queue.commits;
            if commits == idle_after && self.last_result.lock().is_ok() {
                queue.is_thread_asleep = true;
                self.work.wait(&mut queue);
                queue.is_thread_asleep = false;
            } else {
                let timeout = self.work.wait_for(&mut queue, CHECKPOINT_IDLE_DELAY);
                if timeout.timed_out() && queue.commits == commits && queue.batches.is_empty() {
                    queue.checkpointed_after = commits;
                    return Work::Idle(commits);
                }
            }
        }
    }

    /// Runs the writer's thread, until the brain is closed and the queue is empty.
    fn run(&self, checkpointer: WalCheckpointer, readers: &ReadPool) {
        // If the thread panics, nobody may wait for it, nor the brain stay locked.
        let _end = EndGuard(self);
        let mut idle_after = 0;
        loop {
            match self.next_work(idle_after) {
                Work::Commit => self.with_committer(|committer| {
                    self.commit_next(committer);
                    checkpoint_if_oversized(committer, &checkpointer);
                }),
                Work::Checkpoint => {
                    checkpointer.wake();
                    self.with_committer(|committer| checkpoint_if_oversized(committer, &checkpointer));
                }
                Work::Idle(commits) => {
                    idle_after = commits;
                    self.with_committer(|committer| {
                        // A commit that was still running is over now, and part of the checkpoint.
                        checkpointer.wake();
                        self.clean_up(committer);
                    });
                    readers.shrink();
                }
                Work::End => {
                    checkpointer.shutdown();
                    self.with_committer(|committer| optimize_and_truncate_wal(&committer.connection));
                    return;
                }
            }
        }
    }

    /// Waits until no other thread commits.
    fn with_committer(&self, work: impl FnOnce(&mut Committer)) {
        if let Some(committer) = &mut *self.committer.lock() {
            work(committer);
        }
    }

    /// Releases what the connection does not need while nothing is written.
    fn clean_up(&self, committer: &mut Committer) {
        shrink_cache(&committer.connection);
        // The disk may have space again, which nobody would notice before the next turn.
        let is_unhealthy = self.last_result.lock().is_err();
        if is_unhealthy && committer.probe_write().is_ok() {
            *self.last_result.lock() = Ok(());
        }
    }
}

/// Ends the writing of a brain when it is dropped.
struct EndGuard<'a>(&'a Shared);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn reject(batch: &dyn WriteBatch) {
    batch.collect();
    batch.complete(&Err(WriteError { reason: "the brain is closed".into() }));
}

/// The write connection.
struct Committer {
    connection: Connection,
    /// Released after the connection was closed.
    _lock: FileLock,
    /// The durability that its `synchronous` setting provides.
    synchronous: Option<Durability>,
    webhook_changed: Arc<Notify>,
    /// Whether something new for the webhook was committed, of which nobody was notified yet.
    wakes_webhook: bool,
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
        let result = self.commit_and_complete(group);
        // A turn that is reported as ended has ended for everybody.
        if std::mem::take(&mut self.wakes_webhook) {
            self.webhook_changed.notify_one();
        }
        result
    }

    fn commit_and_complete(&mut self, group: &[Arc<dyn WriteBatch>]) -> Result<(), WriteError> {
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
        let tx = WriteTx { transaction: &transaction, wakes_webhook: Cell::new(false) };
        group.iter().try_for_each(|batch| batch.write(&tx))?;
        let wakes_webhook = tx.wakes_webhook.get();
        transaction.commit()?;
        self.wakes_webhook |= wakes_webhook;
        Ok(())
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

/// Runs a checkpoint while no commit is running, if the log has grown too large: so the next commit finds all of it
/// checkpointed, and resets it.
fn checkpoint_if_oversized(committer: &Committer, checkpointer: &WalCheckpointer) {
    if checkpointer.take_oversized() {
        checkpoint_or_warn(&committer.connection, "PASSIVE");
    }
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

#[cfg(test)]
#[path = "../tests/unit/writer.rs"]
mod tests;
