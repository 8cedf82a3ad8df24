//! The event channel: what a turn tells, on its way into the brain and out to whoever listens.
//!
//! Each task with a running turn or a listener has one [`TaskEventLog`]. An event is stamped by the task's
//! clock, waits in the outbox, is committed together with the steps and events around it, and only then is
//! published: nothing is ever seen that is not stored, and stamping, storing and publishing keep one order.
//! Live and replay are one path: a [`EventReader`] reads from a position, and live is reading at the end.

mod clock;
mod commit;
mod outbox;
mod reader;
mod ring;

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use contract::{TaskId, Timestamp};
use service::clock::Clock;

pub use commit::Commit;
pub use outbox::{Busy, Recorder, TaskEventLog};
pub use reader::{EventReader, Follow};

use crate::store::{Brain, TaskEntry};

/// The channels in use, one per task.
#[derive(Clone)]
pub struct EventLogs {
    brain: Brain,
    clock: Arc<dyn Clock>,
    /// Held by running turns and readers alone: a task that nobody is concerned with costs nothing.
    open: Arc<Mutex<OpenLogs>>,
    /// The text that waits for the writer in all channels together.
    waiting_bytes: Arc<AtomicUsize>,
    /// When an event was last published, in Unix milliseconds; 0 where none was.
    last_published_at: Arc<AtomicI64>,
}

type OpenLogs = HashMap<TaskId, Weak<TaskEventLog>>;

/// How many entries of [`EventLogs::open`] are kept before dead ones are swept out.
const SWEEP_THRESHOLD: usize = 64;

impl EventLogs {
    /// No channel yet.
    pub fn new(brain: Brain, clock: Arc<dyn Clock>) -> Self {
        let (waiting_bytes, last_published_at) = (Arc::default(), Arc::default());
        Self { brain, clock, open: Arc::default(), waiting_bytes, last_published_at }
    }

    /// The channel of a task, which need not exist yet.
    pub fn open(&self, task_id: &TaskId) -> Result<Arc<TaskEventLog>, rusqlite::Error> {
        let mut open = self.lock();
        match open.get(task_id).and_then(Weak::upgrade) {
            Some(channel) => Ok(channel),
            None => Ok(self.insert(&mut open, task_id, self.brain.task(task_id)?)),
        }
    }

    /// The channel of a task that exists.
    pub fn open_existing(&self, task_id: &TaskId) -> Result<Option<Arc<TaskEventLog>>, rusqlite::Error> {
        let mut open = self.lock();
        if let Some(channel) = open.get(task_id).and_then(Weak::upgrade) {
            return Ok(Some(channel));
        }
        let entry = self.brain.task(task_id)?;
        Ok(entry.map(|entry| self.insert(&mut open, task_id, Some(entry))))
    }

    /// How many bytes of text wait for the writer.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// When an event was last published since the engine started.
    pub fn last_published_at(&self) -> Option<Timestamp> {
        let at = self.last_published_at.load(Ordering::Relaxed);
        (at != 0).then(|| Timestamp::from_unix_ms(at))
    }

    /// How many channels are in use.
    #[cfg(test)]
    pub(crate) fn open_count(&self) -> usize {
        self.lock().values().filter(|channel| channel.strong_count() > 0).count()
    }

    /// The task is gone: its name is free for a new one.
    pub fn remove(&self, task_id: &TaskId) {
        self.lock().remove(task_id);
    }

    /// What is known of tasks that no turn runs on is out of date: they are looked up anew.
    pub fn remove_idle(&self) {
        self.lock().retain(|_, channel| channel.upgrade().is_some_and(|channel| channel.has_running_turn()));
    }

    /// Callers look the task up in the store while they hold the lock, so that it never gets two channels.
    fn lock(&self) -> MutexGuard<'_, OpenLogs> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, open: &mut OpenLogs, task_id: &TaskId, entry: Option<TaskEntry>) -> Arc<TaskEventLog> {
        if open.len() > SWEEP_THRESHOLD {
            open.retain(|_, channel| channel.strong_count() > 0);
        }
        let (brain, clock) = (self.brain.clone(), Arc::clone(&self.clock));
        let (waiting, last_published_at) =
            (Arc::clone(&self.waiting_bytes), Arc::clone(&self.last_published_at));
        let channel = TaskEventLog::new(brain, clock, task_id.clone(), entry, waiting, last_published_at);
        open.insert(task_id.clone(), Arc::downgrade(&channel));
        channel
    }
}

#[cfg(test)]
#[path = "event_log/failure_tests.rs"]
mod failure_tests;
#[cfg(test)]
#[path = "event_log/tests.rs"]
mod tests;
