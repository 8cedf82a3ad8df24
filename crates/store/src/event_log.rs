//! The durable event log of each task: the path of a turn's events into the brain and out to clients.
//!
//! Each task with a running turn or a reader has one [`TaskEventLog`]. An event is stamped by the task's clock,
//! waits in the outbox, is committed together with the steps and events around it, and only then is published.
//! Nothing is ever visible that is not stored, and stamping, storing and publishing keep one order. Live streaming
//! and replay are one path: an [`EventReader`] reads from a position, and live reading is reading at the end.

mod clock;
mod commit;
mod outbox;
mod reader;
mod ring;

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use api::{TaskId, Timestamp};
pub use commit::Commit;
use http_service::clock::Clock;
pub use outbox::{Busy, PendingCommit, Recorder, TaskEventLog};
use parking_lot::{Mutex, MutexGuard};
pub use reader::{EventReader, Follow};

use crate::{Brain, StoreError, TaskEntry};

/// The event logs in use, one per task.
#[derive(Clone)]
pub struct EventLogs {
    brain: Brain,
    clock: Arc<dyn Clock>,
    /// Only running turns and readers hold an event log, so a task without either costs nothing.
    open: Arc<Mutex<OpenLogs>>,
    /// The bytes of text that wait for the writer, over all event logs.
    waiting_bytes: Arc<AtomicUsize>,
    /// The time of the last publication in Unix milliseconds; 0 if there was none.
    last_published_at: Arc<AtomicI64>,
}

type OpenLogs = HashMap<TaskId, Weak<TaskEventLog>>;

/// The number of entries in [`EventLogs::open`] above which dead ones are swept out.
const SWEEP_THRESHOLD: usize = 64;

impl EventLogs {
    /// Creates the registry without any open event log.
    pub fn new(brain: Brain, clock: Arc<dyn Clock>) -> Self {
        let (waiting_bytes, last_published_at) = (Arc::default(), Arc::default());
        Self { brain, clock, open: Arc::default(), waiting_bytes, last_published_at }
    }

    /// Opens the event log of a task, which need not exist yet.
    pub fn open(&self, task_id: &TaskId) -> Result<Arc<TaskEventLog>, StoreError> {
        let mut open = self.lock();
        match open.get(task_id).and_then(Weak::upgrade) {
            Some(log) => Ok(log),
            None => Ok(self.insert(&mut open, task_id, self.brain.task(task_id)?)),
        }
    }

    /// Opens the event log of a task if the task exists.
    pub fn open_existing(&self, task_id: &TaskId) -> Result<Option<Arc<TaskEventLog>>, StoreError> {
        let mut open = self.lock();
        if let Some(log) = open.get(task_id).and_then(Weak::upgrade) {
            return Ok(Some(log));
        }
        let entry = self.brain.task(task_id)?;
        Ok(entry.map(|entry| self.insert(&mut open, task_id, Some(entry))))
    }

    /// The number of bytes of text that wait for the writer.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// The time of the last publication since the engine started.
    pub fn last_published_at(&self) -> Option<Timestamp> {
        let at = self.last_published_at.load(Ordering::Relaxed);
        (at != 0).then(|| Timestamp::from_unix_ms(at))
    }

    /// The number of event logs in use.
    #[cfg(any(test, feature = "testing"))]
    pub fn open_count(&self) -> usize {
        self.lock().values().filter(|log| log.strong_count() > 0).count()
    }

    /// Forgets a deleted task: its id is free for a new one.
    pub fn remove(&self, task_id: &TaskId) {
        self.lock().remove(task_id);
    }

    /// Forgets all tasks without a running turn, because their cached state is out of date. They are looked up
    /// again when they are next used.
    pub fn remove_idle(&self) {
        self.lock().retain(|_, log| log.upgrade().is_some_and(|log| log.has_running_turn()));
    }

    /// Callers look up the task in the store while they hold the lock, so a task never gets two event logs.
    fn lock(&self) -> MutexGuard<'_, OpenLogs> {
        self.open.lock()
    }

    fn insert(&self, open: &mut OpenLogs, task_id: &TaskId, entry: Option<TaskEntry>) -> Arc<TaskEventLog> {
        if open.len() > SWEEP_THRESHOLD {
            open.retain(|_, log| log.strong_count() > 0);
        }
        let (brain, clock) = (self.brain.clone(), Arc::clone(&self.clock));
        let (waiting_bytes, last_published_at) =
            (Arc::clone(&self.waiting_bytes), Arc::clone(&self.last_published_at));
        let log = TaskEventLog::new(brain, clock, task_id.clone(), entry, waiting_bytes, last_published_at);
        open.insert(task_id.clone(), Arc::downgrade(&log));
        log
    }
}

#[cfg(test)]
#[path = "../tests/unit/event_log/failure.rs"]
mod failure_tests;
#[cfg(test)]
#[path = "../tests/unit/event_log.rs"]
mod tests;
