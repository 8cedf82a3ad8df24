//! The writing end of a task's event log: the outbox, its commit, and the publication of what was committed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use api::event::{Delta, Event, encode_sse};
use api::{TaskId, Timestamp, TurnId};
use bytes::Bytes;
use http_service::clock::Clock;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use super::clock::{ClockReading, EventClock};
use super::commit::{Commit, CommitPart, StateChange};
use super::ring::{Frame, Ring};
use crate::steps::Step;
use crate::{Brain, Durability, StoreError, TaskEntry, TaskRow, WriteBatch, WriteError, WriteTx, to_json};

/// How many bytes of text may wait for the writer before the turn has to wait too.
const MAX_WAITING_BYTES: usize = 1024 * 1024;

/// The error for a task on which another turn is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// The event log of one task. See the parent module.
pub struct TaskEventLog {
    pub(super) brain: Brain,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) task: TaskRow,
    pub(super) task_id: TaskId,
    state: Mutex<State>,
    /// The entries that the writer has collected and not completed yet. Only the thread that commits uses them, so a
    /// commit in progress does not keep the turn from emitting further events.
    in_flight: Mutex<Vec<OutboxEntry>>,
    pub(super) status: watch::Sender<LogStatus>,
    /// The bytes of text that wait, over all event logs.
    waiting_bytes: Arc<AtomicUsize>,
    /// The time of the last publication, over all event logs.
    last_published_at: Arc<AtomicI64>,
}

/// The state that readers watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogStatus {
    /// The newest published `ts`.
    pub(super) published_ts: i64,
    /// The turn that is running.
    pub(super) running_turn: Option<TurnId>,
}

struct State {
    clock: EventClock,
    /// Whether the task is stored.
    task_exists: bool,
    /// The entries that wait for the writer, in order.
    outbox: Vec<OutboxEntry>,
    /// The bytes of text that wait or are in flight.
    waiting_bytes: usize,
    /// Whether this event log is in the writer's queue.
    queued: bool,
    /// The durability that the commit of the waiting entries needs.
    durability: Durability,
    /// Set when a write failed: the turn that was running cannot continue.
    write_error: Option<WriteError>,
    ring: Ring,
}

/// The thread that stores what is sent.
#[derive(Clone, Copy)]
enum CommittedBy {
    /// The writer's.
    Writer,
    /// The one that sends it, if nothing else is being written.
    ThisThread,
}

enum OutboxEntry {
    InsertTask,
    Step {
        ts: i64,
        turn_id: TurnId,
        step: Box<Step>,
    },
    Change {
        ts: i64,
        turn_id: TurnId,
        change: StateChange,
    },
    /// An event and, once it was written, its data as JSON: what is sent is exactly what is stored.
    Event {
        ts: i64,
        turn_id: TurnId,
        event: Event,
        data: Option<String>,
    },
    NotifyCommitted(oneshot::Sender<Result<(), WriteError>>),
}

impl TaskEventLog {
    pub(super) fn new(
        brain: Brain,
        clock: Arc<dyn Clock>,
        task_id: TaskId,
        entry: Option<TaskEntry>,
        waiting_bytes: Arc<AtomicUsize>,
        last_published_at: Arc<AtomicI64>,
    ) -> Arc<Self> {
        let exists = entry.is_some();
        let entry = entry.unwrap_or_else(|| TaskEntry { row: brain.reserve_task(), last_ts: 0 });
        let state = State {
            clock: EventClock::resume_after(entry.last_ts, ClockReading::read(&*clock)),
            task_exists: exists,
            outbox: Vec::new(),
            waiting_bytes: 0,
            queued: false,
            durability: Durability::ProcessKill,
            write_error: None,
            ring: Ring::starting_after(entry.last_ts),
        };
        Arc::new(Self {
            brain,
            clock,
            task: entry.row,
            task_id,
            state: Mutex::new(state),
            in_flight: Mutex::default(),
            status: watch::Sender::new(LogStatus { published_ts: entry.last_ts, running_turn: None }),
            waiting_bytes,
            last_published_at,
        })
    }

    /// The row of the task.
    pub fn task(&self) -> TaskRow {
        self.task
    }

    /// The id of the task.
    pub fn task_id(&self) -> &TaskId {
        &self.task_id
    }

    /// Whether nothing of the task is stored yet.
    pub fn is_new(&self) -> bool {
        !self.state.lock().task_exists
    }

    /// Acquires the event log for a turn. Only one turn can hold it at a time.
    pub fn begin_turn(self: &Arc<Self>, turn_id: TurnId) -> Result<Recorder, Busy> {
        let acquired = self.status.send_if_modified(|status| {
            let is_free = status.running_turn.is_none();
            if is_free {
                status.running_turn = Some(turn_id);
            }
            is_free
        });
        if !acquired {
            return Err(Busy);
        }
        self.state.lock().write_error = None;
        Ok(Recorder { event_log: Arc::clone(self), turn_id })
    }

    /// Whether `turn_id` holds the event log: it has begun, and its end is not published yet.
    pub fn is_running(&self, turn_id: TurnId) -> bool {
        self.status.borrow().running_turn == Some(turn_id)
    }

    /// Whether any turn holds the event log.
    pub fn has_running_turn(&self) -> bool {
        self.status.borrow().running_turn.is_some()
    }

    /// Waits until no turn holds the event log.
    pub async fn wait_free(&self) {
        // The sender lives as long as the event log, so this cannot fail.
        let _ = self.status.subscribe().wait_for(|status| status.running_turn.is_none()).await;
    }

    /// The `ts` of the newest published event.
    pub fn published_ts(&self) -> i64 {
        self.status.borrow().published_ts
    }

    /// The published frames with a `ts` above `ts`, or `None` if they must be read from the store.
    pub(super) fn published_after(&self, ts: i64) -> Option<Vec<Frame>> {
        self.state.lock().ring.frames_after(ts)
    }

    fn queue(self: &Arc<Self>, committer: CommittedBy) {
        let batch = Arc::clone(self) as Arc<dyn WriteBatch>;
        match committer {
            CommittedBy::Writer => self.brain.queue(batch),
            CommittedBy::ThisThread => self.brain.commit_here(batch),
        }
    }
}

impl State {
    /// Merges `event` into a waiting delta of the same kind, turn and millisecond. Returns whether it was merged.
    fn coalesce_delta(&mut self, now: ClockReading, turn: TurnId, event: &Event) -> bool {
        if self.waiting_bytes > MAX_WAITING_BYTES {
            return false;
        }
        let Some(OutboxEntry::Event { turn_id, event: waiting, .. }) = self.outbox.last_mut() else {
            return false;
        };
        let same_kind = matches!(
            (&*waiting, event),
            (Event::TextDelta(_), Event::TextDelta(_)) | (Event::ThinkingDelta(_), Event::ThinkingDelta(_))
        );
        if !same_kind || *turn_id != turn || !self.clock.is_within_last_ts(now) {
            return false;
        }
        let (Event::TextDelta(target) | Event::ThinkingDelta(target)) = waiting else { return false };
        let (Event::TextDelta(Delta { text }) | Event::ThinkingDelta(Delta { text })) = event else {
            return false;
        };
        target.text.push_str(text);
        self.waiting_bytes += text.len();
        true
    }

    /// Marks the event log as queued. Returns whether it must be added to the writer's queue.
    fn mark_queued(&mut self) -> bool {
        !std::mem::replace(&mut self.queued, true)
    }
}

impl OutboxEntry {
    /// The `ts` from which on a rewind removes the events.
    fn rewind_from(&self) -> Option<i64> {
        match self {
            Self::Change { change: StateChange::Rewind(rewind), .. } => rewind.events_from,
            _ => None,
        }
    }

    fn text_bytes(&self) -> usize {
        match self {
            Self::Event { event: Event::TextDelta(delta) | Event::ThinkingDelta(delta), .. } => {
                delta.text.len()
            }
            _ => 0,
        }
    }
}

/// The write access of the one running turn. Dropping it before the turn's last event is published releases the
/// event log as well, and readers end; such a turn is resumed at the engine's next start.
pub struct Recorder {
    event_log: Arc<TaskEventLog>,
    turn_id: TurnId,
}

/// A commit that was queued.
#[must_use]
pub struct PendingCommit(oneshot::Receiver<Result<(), WriteError>>);

impl PendingCommit {
    /// Waits until the commit is stored.
    pub async fn wait(self) -> Result<(), WriteError> {
        self.0.await.unwrap_or_else(|_| Err(WriteError { reason: "the brain is closed".into() }))
    }
}

impl Recorder {
    /// The event log that this recorder writes to.
    pub fn event_log(&self) -> &Arc<TaskEventLog> {
        &self.event_log
    }

    /// The turn that writes.
    pub fn turn_id(&self) -> TurnId {
        self.turn_id
    }

    /// The `ts` of the newest event, whether or not it is stored yet.
    pub fn last_ts(&self) -> i64 {
        self.event_log.state.lock().clock.last_ts()
    }

    /// Releases the frames that are cached for live readers because nothing will happen for a while. Readers that
    /// have not received them read them from the store.
    pub fn clear_published(&self) {
        self.event_log.state.lock().ring.clear();
    }

    /// Clears a write error, so that the turn can continue from what is stored.
    pub fn reset_error(&self) {
        self.event_log.state.lock().write_error = None;
    }

    /// Queues an event, which is stored and published soon, in order. Whether that succeeded is reported by a
    /// later [`Recorder::commit`].
    pub async fn emit(&self, event: Event) -> Result<(), WriteError> {
        {
            let mut state = self.event_log.state.lock();
            let before = state.waiting_bytes;
            if state.coalesce_delta(ClockReading::read(&*self.event_log.clock), self.turn_id, &event) {
                self.event_log.waiting_bytes.fetch_add(state.waiting_bytes - before, Ordering::Relaxed);
                return Ok(());
            }
        }
        let parts = vec![CommitPart::Event(event)];
        self.enqueue(parts, Durability::ProcessKill, None, CommittedBy::Writer).await
    }

    /// Stores `commit` as a whole, after everything that was queued before, and waits until it is stored.
    pub async fn commit(&self, commit: Commit) -> Result<(), WriteError> {
        self.send(commit).await?.wait().await
    }

    /// Queues `commit` to be stored as a whole, without waiting until it is stored.
    pub async fn send(&self, commit: Commit) -> Result<PendingCommit, WriteError> {
        self.send_to(commit, CommittedBy::Writer).await
    }

    /// Like [`Recorder::send`], but stores the commit on this thread, unless something else is being written or waits
    /// to be. Blocks; `runtime` is the one that the turn runs on.
    pub fn send_here(&self, commit: Commit, runtime: &Handle) -> Result<PendingCommit, WriteError> {
        runtime.block_on(self.send_to(commit, CommittedBy::ThisThread))
    }

    async fn send_to(&self, commit: Commit, committer: CommittedBy) -> Result<PendingCommit, WriteError> {
        let (sender, receiver) = oneshot::channel();
        self.enqueue(commit.parts, commit.durability, Some(sender), committer).await?;
        Ok(PendingCommit(receiver))
    }

    async fn enqueue(
        &self,
        parts: Vec<CommitPart>,
        durability: Durability,
        on_commit: Option<oneshot::Sender<Result<(), WriteError>>>,
        committer: CommittedBy,
    ) -> Result<(), WriteError> {
        let log = &self.event_log;
        let event_count = parts.iter().filter(|part| matches!(part, CommitPart::Event(_))).count();
        let event_count = i64::try_from(event_count).unwrap_or(i64::MAX);
        let mut status = log.status.subscribe();
        loop {
            let wait = {
                let mut state = log.state.lock();
                if let Some(error) = &state.write_error {
                    return Err(error.clone());
                }
                if state.waiting_bytes > MAX_WAITING_BYTES {
                    None
                } else {
                    match state.clock.stamp(ClockReading::read(&*log.clock), event_count) {
                        Ok(first) => {
                            let stamps = first..first + event_count;
                            self.append_to_outbox(&mut state, parts, stamps, durability, on_commit);
                            let must_queue = state.mark_queued();
                            drop(state);
                            if must_queue {
                                log.queue(committer);
                            }
                            return Ok(());
                        }
                        Err(wait) => Some(wait),
                    }
                }
            };
            match wait {
                Some(wait) => log.clock.sleep(wait).await,
                // The sender lives as long as the event log, which this recorder holds.
                None => drop(status.changed().await),
            }
        }
    }

    fn append_to_outbox(
        &self,
        state: &mut State,
        parts: Vec<CommitPart>,
        mut stamps: Range<i64>,
        durability: Durability,
        on_commit: Option<oneshot::Sender<Result<(), WriteError>>>,
    ) {
        let turn_id = self.turn_id;
        let (first_ts, last_ts) = (stamps.start, stamps.end - 1);
        for part in parts {
            let entry = match part {
                CommitPart::Change(change) => {
                    if matches!(change, StateChange::BeginTurn(_)) && !state.task_exists {
                        state.outbox.push(OutboxEntry::InsertTask);
                    }
                    OutboxEntry::Change { ts: first_ts, turn_id, change }
                }
                CommitPart::Step(step) => OutboxEntry::Step { ts: last_ts, turn_id, step },
                CommitPart::Event(event) => {
                    OutboxEntry::Event { ts: stamps.next().unwrap_or(last_ts), turn_id, event, data: None }
                }
            };
            state.waiting_bytes += entry.text_bytes();
            self.event_log.waiting_bytes.fetch_add(entry.text_bytes(), Ordering::Relaxed);
            state.outbox.push(entry);
        }
        state.outbox.extend(on_commit.map(OutboxEntry::NotifyCommitted));
        state.durability = state.durability.max(durability);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.event_log.status.send_if_modified(|status| {
            let is_ours = status.running_turn == Some(self.turn_id);
            if is_ours {
                status.running_turn = None;
            }
            is_ours
        });
    }
}

impl WriteBatch for TaskEventLog {
    fn collect(&self) -> Durability {
        let mut state = self.state.lock();
        state.queued = false;
        self.in_flight.lock().append(&mut state.outbox);
        std::mem::replace(&mut state.durability, Durability::ProcessKill)
    }

    fn write(&self, tx: &WriteTx<'_>) -> Result<(), StoreError> {
        let at = self.clock.now();
        self.in_flight.lock().iter_mut().try_for_each(|entry| self.write_entry(tx, entry, at))
    }

    fn complete(&self, result: &Result<(), WriteError>) {
        let mut entries = std::mem::take(&mut *self.in_flight.lock());
        let frames: Vec<Frame> = match result {
            Ok(()) => entries.iter().filter_map(|entry| self.encode_frame(entry)).collect(),
            Err(_) => Vec::new(),
        };
        let last_frame = frames.last().map(|frame| (frame.ts, frame.ends_turn));
        if last_frame.is_some() {
            self.last_published_at.fetch_max(self.clock.now().unix_ms(), Ordering::Relaxed);
        }
        {
            let mut state = self.state.lock();
            match result {
                Ok(()) => {
                    state.task_exists |= entries.iter().any(|entry| matches!(entry, OutboxEntry::InsertTask));
                }
                Err(error) => {
                    // Entries that wait behind the failed ones depend on them.
                    entries.append(&mut state.outbox);
                    state.write_error = Some(error.clone());
                }
            }
            let settled_bytes: usize = entries.iter().map(OutboxEntry::text_bytes).sum();
            state.waiting_bytes = state.waiting_bytes.saturating_sub(settled_bytes);
            self.waiting_bytes.fetch_sub(settled_bytes, Ordering::Relaxed);
            if result.is_ok()
                && let Some(from) = entries.iter().find_map(OutboxEntry::rewind_from)
            {
                state.ring.truncate_from(from);
            }
            for frame in frames {
                state.ring.push(frame);
            }
        }
        // Waiters are woken only now that the lock is released.
        self.status.send_modify(|status| {
            if let Some((ts, ends_turn)) = last_frame {
                status.published_ts = ts;
                if ends_turn {
                    status.running_turn = None;
                }
            }
        });
        for entry in entries {
            if let OutboxEntry::NotifyCommitted(sender) = entry {
                // The turn may have been cancelled meanwhile.
                let _ = sender.send(result.clone());
            }
        }
    }
}

impl TaskEventLog {
    fn write_entry(
        &self,
        tx: &WriteTx<'_>,
        entry: &mut OutboxEntry,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        match entry {
            OutboxEntry::InsertTask => tx.insert_task(self.task, &self.task_id, at),
            OutboxEntry::Step { ts, turn_id, step } => tx.insert_step(self.task, *turn_id, at, *ts, step),
            OutboxEntry::Change { ts, turn_id, change } => change.apply(tx, self.task, *turn_id, *ts, at),
            OutboxEntry::Event { ts, turn_id, event, data } => {
                let data = data.insert(to_json(event)?);
                tx.insert_event(self.task, *turn_id, *ts, event.kind(), data)
            }
            OutboxEntry::NotifyCommitted(_) => Ok(()),
        }
    }

    /// Encodes a stored event in its form on the wire.
    fn encode_frame(&self, entry: &OutboxEntry) -> Option<Frame> {
        let OutboxEntry::Event { ts, turn_id, event, data: Some(data) } = entry else { return None };
        let sse = encode_sse(&self.task_id, *turn_id, *ts, event.kind(), data);
        Some(Frame { ts: *ts, turn_id: *turn_id, ends_turn: event.ends_turn(), sse: Bytes::from(sse) })
    }
}
