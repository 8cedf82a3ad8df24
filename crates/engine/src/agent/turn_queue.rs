//! The queues of messages that wait for their turn: their order, their limits and their states. Pure; the
//! messages themselves are in the brain.
//!
//! An entry is [`EntryState::Storing`] until it is stored and thus accepted, and leaves the queue when its turn
//! has begun or when it has ended without one. Each of these is first committed to the brain; the states in
//! between ([`EntryState::Starting`], [`EntryState::Ending`]) keep two of them from happening to one entry.
//!
//! A message that interrupts comes before those of its task that do not, and as long as it is the first one, the
//! turn of its task is to be cancelled.

use std::collections::{HashMap, VecDeque};

use api::turns::QueueLimits;
use api::{TaskId, TurnId};
use store::{IdempotencyKey, QueueEnd, QueuedTurnRow};
use tokio::sync::watch;

/// The limits of the queues. A message as large as a request can be fits into each.
pub(super) const QUEUE_LIMITS: QueueLimits = QueueLimits {
    task_entries: 32,
    task_bytes: 48 * 1024 * 1024,
    engine_entries: 256,
    engine_bytes: 128 * 1024 * 1024,
};

/// The error for a message that does not fit into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueFull {
    /// The task has too many entries.
    #[error("the queue of this task is full: it holds at most {} messages", QUEUE_LIMITS.task_entries)]
    TaskEntries,
    /// The task's entries are too large.
    #[error("the queue of this task is full: it holds at most {} MiB", QUEUE_LIMITS.task_bytes >> 20)]
    TaskBytes,
    /// The engine has too many entries.
    #[error("the queues of the engine are full: they hold at most {} messages", QUEUE_LIMITS.engine_entries)]
    EngineEntries,
    /// The engine's entries are too large.
    #[error("the queues of the engine are full: they hold at most {} MiB", QUEUE_LIMITS.engine_bytes >> 20)]
    EngineBytes,
}

/// What those who wait for an entry see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueProgress {
    /// It is not accepted yet.
    Storing,
    /// It waits; the next entry has position 1.
    Waiting {
        /// Its position.
        position: u64,
    },
    /// Its turn has begun, and its events come after this `ts`.
    Begun {
        /// The `ts` before the first event.
        events_after: i64,
    },
    /// It left the queue without a turn.
    Ended(QueueEnd),
}

/// What is being done with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    Storing,
    Waiting,
    Starting,
    /// Its turn could not begin, and is tried again later.
    Delayed,
    Ending,
}

struct Entry {
    /// Its place among the entries of all tasks.
    number: i64,
    turn_id: TurnId,
    bytes: u64,
    request: Option<IdempotencyKey>,
    /// Whether it takes the place of the running turn.
    interrupts: bool,
    state: EntryState,
    progress: watch::Sender<QueueProgress>,
}

#[derive(Default)]
struct TaskEntries {
    entries: VecDeque<Entry>,
}

/// An entry that a repeated request has found.
pub(super) struct FoundEntry {
    pub(super) turn_id: TurnId,
    pub(super) hash: String,
    pub(super) progress: watch::Receiver<QueueProgress>,
}

/// The queues of all tasks.
#[derive(Default)]
pub(super) struct TurnQueue {
    tasks: HashMap<TaskId, TaskEntries>,
    next_entry: i64,
}

impl TurnQueue {
    /// Fills the queues at the start of the engine, in the order of `rows`.
    pub(super) fn load(&mut self, rows: Vec<QueuedTurnRow>, next_entry: i64) {
        self.next_entry = next_entry;
        for QueuedTurnRow { entry: number, task_id, turn_id, bytes, request, interrupts } in rows {
            let progress = watch::Sender::new(QueueProgress::Storing);
            let state = EntryState::Waiting;
            let entry = Entry { number, turn_id, bytes, request, interrupts, state, progress };
            self.tasks.entry(task_id).or_default().entries.push_back(entry);
        }
        self.tasks.values_mut().for_each(TaskEntries::renumber);
    }

    /// Whether nothing waits in any task.
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Whether something is being done with an entry, or can be, given which tasks are free. What waits behind a turn
    /// that waits for the user does not count.
    pub(super) fn is_active(&self, is_free: impl Fn(&TaskId) -> bool) -> bool {
        self.tasks.iter().any(|(task_id, task)| {
            let is_at_rest = |entry: &Entry| entry.state == EntryState::Waiting && !entry.interrupts;
            !task.entries.iter().all(is_at_rest) || is_free(task_id)
        })
    }

    /// Whether the next turn of the task is decided.
    pub(super) fn holds(&self, task_id: &TaskId) -> bool {
        self.tasks.contains_key(task_id)
    }

    /// Whether the turn of this entry is the next one of the task.
    pub(super) fn is_first(&self, task_id: &TaskId, turn_id: TurnId) -> bool {
        self.tasks
            .get(task_id)
            .and_then(|task| task.entries.front())
            .is_some_and(|first| first.turn_id == turn_id)
    }

    /// The tasks whose turn is to be cancelled, because a message that takes its place is accepted.
    pub(super) fn interrupted_tasks(&self) -> impl Iterator<Item = &TaskId> {
        let is_interrupting = |entry: &Entry| entry.interrupts && entry.state == EntryState::Waiting;
        let is_interrupted = move |task: &TaskEntries| task.entries.front().is_some_and(is_interrupting);
        self.tasks.iter().filter(move |(_, task)| is_interrupted(task)).map(|(task_id, _)| task_id)
    }

    /// Whether an entry is in the queue.
    pub(super) fn contains(&self, turn_id: TurnId) -> bool {
        self.tasks.values().flat_map(|task| &task.entries).any(|entry| entry.turn_id == turn_id)
    }

    /// The size of a task's entries in bytes.
    pub(super) fn task_bytes(&self, task_id: &TaskId) -> u64 {
        self.tasks.get(task_id).map_or(0, |task| task.entries.iter().map(|entry| entry.bytes).sum())
    }

    /// Adds an entry, which is to be stored under the returned number: after all others, or, if it interrupts,
    /// before those that do not.
    pub(super) fn push(
        &mut self,
        task_id: &TaskId,
        turn_id: TurnId,
        bytes: u64,
        request: Option<IdempotencyKey>,
        interrupts: bool,
    ) -> Result<(i64, watch::Receiver<QueueProgress>), QueueFull> {
        self.check_room(task_id, bytes)?;
        let (progress, receiver) = watch::channel(QueueProgress::Storing);
        let number = self.next_entry;
        self.next_entry += 1;
        let state = EntryState::Storing;
        let entry = Entry { number, turn_id, bytes, request, interrupts, state, progress };
        let entries = &mut self.tasks.entry(task_id.clone()).or_default().entries;
        let index =
            if interrupts { entries.partition_point(|other| other.interrupts) } else { entries.len() };
        entries.insert(index, entry);
        self.renumber(task_id);
        Ok((number, receiver))
    }

    fn check_room(&self, task_id: &TaskId, bytes: u64) -> Result<(), QueueFull> {
        let sum =
            |(entries, total): (u64, u64), entry: &Entry| (entries + 1, total.saturating_add(entry.bytes));
        let of_task = self.tasks.get(task_id).map_or((0, 0), |task| task.entries.iter().fold((0, 0), sum));
        let of_engine = self.tasks.values().flat_map(|task| &task.entries).fold((0, 0), sum);
        if of_task.0 >= QUEUE_LIMITS.task_entries {
            Err(QueueFull::TaskEntries)
        } else if of_task.1.saturating_add(bytes) > QUEUE_LIMITS.task_bytes {
            Err(QueueFull::TaskBytes)
        } else if of_engine.0 >= QUEUE_LIMITS.engine_entries {
            Err(QueueFull::EngineEntries)
        } else if of_engine.1.saturating_add(bytes) > QUEUE_LIMITS.engine_bytes {
            Err(QueueFull::EngineBytes)
        } else {
            Ok(())
        }
    }

    /// Accepts an entry that is stored.
    pub(super) fn accept(&mut self, task_id: &TaskId, turn_id: TurnId) {
        self.set_state(task_id, turn_id, EntryState::Storing, EntryState::Waiting);
        self.renumber(task_id);
    }

    /// Removes an entry that could not be stored.
    pub(super) fn discard(&mut self, task_id: &TaskId, turn_id: TurnId) {
        drop(self.remove(task_id, turn_id));
    }

    /// Whether an entry can begin, given which tasks are free.
    pub(super) fn can_start(&self, is_free: impl Fn(&TaskId) -> bool) -> bool {
        self.tasks.iter().any(|(task_id, task)| task.next_to_start().is_some() && is_free(task_id))
    }

    /// Takes the oldest entry that can begin its turn, given which tasks are free. It stays in the queue until that
    /// has begun.
    pub(super) fn take_next(&mut self, is_free: impl Fn(&TaskId) -> bool) -> Option<(TaskId, TurnId, u64)> {
        let next = self.tasks.iter().filter_map(|(task_id, task)| Some((task_id, task.next_to_start()?)));
        let (task_id, next) =
            next.filter(|(task_id, _)| is_free(task_id)).min_by_key(|(_, entry)| entry.number)?;
        let (task_id, turn_id, bytes) = (task_id.clone(), next.turn_id, next.bytes);
        self.set_state(&task_id, turn_id, EntryState::Waiting, EntryState::Starting);
        Some((task_id, turn_id, bytes))
    }

    /// Removes an entry whose turn has begun after `events_after`.
    pub(super) fn begun(&mut self, task_id: &TaskId, turn_id: TurnId, events_after: i64) {
        if let Some(entry) = self.remove(task_id, turn_id) {
            entry.progress.send_replace(QueueProgress::Begun { events_after });
        }
    }

    /// Returns an entry whose turn could not begin to its place.
    pub(super) fn start_failed(&mut self, task_id: &TaskId, turn_id: TurnId) {
        self.set_state(task_id, turn_id, EntryState::Starting, EntryState::Waiting);
    }

    /// Keeps an entry whose turn could not begin from another try until [`end_delay`](Self::end_delay).
    pub(super) fn delay(&mut self, task_id: &TaskId, turn_id: TurnId) {
        self.set_state(task_id, turn_id, EntryState::Starting, EntryState::Delayed);
    }

    /// Allows another try, unless the entry has been taken out meanwhile.
    pub(super) fn end_delay(&mut self, task_id: &TaskId, turn_id: TurnId) {
        self.set_state(task_id, turn_id, EntryState::Delayed, EntryState::Waiting);
    }

    /// Takes an entry to end it without a turn. Returns `false` if it is not in the queue or its turn is beginning.
    pub(super) fn begin_end(&mut self, task_id: &TaskId, turn_id: TurnId) -> bool {
        [EntryState::Waiting, EntryState::Delayed]
            .into_iter()
            .any(|state| self.set_state(task_id, turn_id, state, EntryState::Ending))
    }

    /// Removes an entry that has ended without a turn: its user took it out, or its turn could not begin.
    pub(super) fn ended(&mut self, task_id: &TaskId, turn_id: TurnId, end: QueueEnd) {
        if let Some(entry) = self.remove(task_id, turn_id) {
            entry.progress.send_replace(QueueProgress::Ended(end));
        }
    }

    /// Returns an entry whose end could not be stored to its place.
    pub(super) fn end_failed(&mut self, task_id: &TaskId, turn_id: TurnId) {
        self.set_state(task_id, turn_id, EntryState::Ending, EntryState::Waiting);
    }

    /// The entry of the task whose request had this idempotency key.
    pub(super) fn find(&self, task_id: &TaskId, request_id: &str) -> Option<FoundEntry> {
        self.tasks.get(task_id)?.entries.iter().find_map(|entry| {
            let request = entry.request.as_ref().filter(|request| request.id == request_id)?;
            Some(FoundEntry {
                turn_id: entry.turn_id,
                hash: request.hash.clone(),
                progress: entry.progress.subscribe(),
            })
        })
    }

    /// Follows an entry.
    pub(super) fn subscribe(
        &self,
        task_id: &TaskId,
        turn_id: TurnId,
    ) -> Option<watch::Receiver<QueueProgress>> {
        let task = self.tasks.get(task_id)?;
        let entry = task.entries.iter().find(|entry| entry.turn_id == turn_id)?;
        Some(entry.progress.subscribe())
    }

    /// Changes the state of an entry. Returns `false` if it is not in the state `from`.
    fn set_state(&mut self, task_id: &TaskId, turn_id: TurnId, from: EntryState, to: EntryState) -> bool {
        let entry = self.tasks.get_mut(task_id).and_then(|task| {
            task.entries.iter_mut().find(|entry| entry.turn_id == turn_id && entry.state == from)
        });
        entry.map(|entry| entry.state = to).is_some()
    }

    fn remove(&mut self, task_id: &TaskId, turn_id: TurnId) -> Option<Entry> {
        let task = self.tasks.get_mut(task_id)?;
        let index = task.entries.iter().position(|entry| entry.turn_id == turn_id)?;
        let removed = task.entries.remove(index);
        task.renumber();
        self.forget_if_empty(task_id);
        removed
    }

    fn renumber(&mut self, task_id: &TaskId) {
        if let Some(task) = self.tasks.get_mut(task_id) {
            task.renumber();
        }
    }

    fn forget_if_empty(&mut self, task_id: &TaskId) {
        if self.tasks.get(task_id).is_some_and(|task| task.entries.is_empty()) {
            self.tasks.remove(task_id);
        }
    }
}

impl TaskEntries {
    /// The first entry, if it waits for nothing but the task. The others wait for it.
    fn next_to_start(&self) -> Option<&Entry> {
        self.entries.front().filter(|entry| entry.state == EntryState::Waiting)
    }

    /// Tells those who wait for accepted entries their positions.
    fn renumber(&mut self) {
        for (position, entry) in (1..).zip(&self.entries) {
            if entry.state != EntryState::Storing {
                let progress = QueueProgress::Waiting { position };
                entry.progress.send_if_modified(|seen| std::mem::replace(seen, progress) != progress);
            }
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/agent/turn_queue.rs"]
mod tests;
