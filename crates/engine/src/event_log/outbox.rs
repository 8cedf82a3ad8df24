//! The writing end of a task's channel.

use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use contract::event::{Delta, Event, encode_sse};
use contract::{TaskId, Timestamp, TurnId};
use service::clock::Clock;
use tokio::sync::{oneshot, watch};

use super::clock::{ClockReading, EventClock};
use super::commit::{Commit, CommitPart, StateChange};
use super::reader::{EventReader, Follow};
use super::ring::{Frame, Ring};
use crate::fault_injection::{self, Mutation};
use crate::store::steps::Step;
use crate::store::{Brain, Durability, TaskEntry, TaskRow, WriteBatch, WriteError, WriteTx, to_json};

/// How many bytes of events may wait for the writer before the turn waits too.
const MAX_WAITING_BYTES: usize = 1024 * 1024;

/// Another turn is running on the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// One task's channel. See the module above.
pub struct TaskEventLog {
    pub(super) brain: Brain,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) task: TaskRow,
    pub(super) task_id: TaskId,
    state: Mutex<State>,
    /// What the writer has taken and not yet settled. Only the writer uses it, so a commit under way does not
    /// keep the turn from sending on.
    in_flight: Mutex<Vec<OutboxEntry>>,
    status: watch::Sender<LogStatus>,
    /// The text that waits in all channels together.
    waiting_bytes: Arc<AtomicUsize>,
    /// When an event of any channel was last published.
    last_published_at: Arc<AtomicI64>,
}

/// What readers wait on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogStatus {
    /// The newest published `ts`.
    pub(super) published_ts: i64,
    /// The turn that runs.
    pub(super) running_turn: Option<TurnId>,
}

struct State {
    clock: EventClock,
    /// Whether the task is stored.
    task_exists: bool,
    /// What waits for the writer, in order.
    outbox: Vec<OutboxEntry>,
    /// The text that waits or is in flight.
    waiting_bytes: usize,
    /// Whether the writer knows that something waits.
    queued: bool,
    /// How durable the commit of what waits must be.
    durability: Durability,
    /// Set when a write failed: the turn that was running cannot go on.
    write_error: Option<WriteError>,
    ring: Ring,
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
        write: StateChange,
    },
    /// An event, and its own data as JSON once it was written: what is stored and what is sent are the same.
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

    /// The task's row.
    pub fn task(&self) -> TaskRow {
        self.task
    }

    /// The task's id.
    pub fn task_id(&self) -> &TaskId {
        &self.task_id
    }

    /// Takes the channel for a turn. There is one at a time.
    pub fn begin_turn(self: &Arc<Self>, turn_id: TurnId) -> Result<Recorder, Busy> {
        let taken = self.status.send_if_modified(|progress| {
            let free = progress.running_turn.is_none();
            if free {
                progress.running_turn = Some(turn_id);
            }
            free
        });
        if !taken {
            return Err(Busy);
        }
        self.state().write_error = None;
        Ok(Recorder { event_log: Arc::clone(self), turn_id })
    }

    /// Whether `turn_id` holds the channel: it has begun, and its end is not published.
    pub fn is_running(&self, turn_id: TurnId) -> bool {
        self.status.borrow().running_turn == Some(turn_id)
    }

    /// Whether a turn holds the channel.
    pub fn has_running_turn(&self) -> bool {
        self.status.borrow().running_turn.is_some()
    }

    /// Reads the events after `after`.
    pub fn read(self: &Arc<Self>, after: i64, follow: Follow) -> EventReader {
        EventReader::new(Arc::clone(self), after, follow, self.status.subscribe())
    }

    /// The published frames after `ts`, or none if the store must be asked.
    pub(super) fn published_after(&self, ts: i64) -> Option<Vec<Frame>> {
        self.state().ring.frames_after(ts)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_flight(&self) -> MutexGuard<'_, Vec<OutboxEntry>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(self: &Arc<Self>) {
        self.brain.queue(Arc::clone(self) as Arc<dyn WriteBatch>);
    }
}

impl State {
    /// Takes `event` into a waiting delta of the same block and millisecond, if there is one.
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
        let (Event::TextDelta(into) | Event::ThinkingDelta(into)) = waiting else { return false };
        let (Event::TextDelta(Delta { text }) | Event::ThinkingDelta(Delta { text })) = event else {
            return false;
        };
        into.text.push_str(text);
        self.waiting_bytes += text.len();
        true
    }

    /// Whether the writer must be told.
    fn mark_queued(&mut self) -> bool {
        !std::mem::replace(&mut self.queued, true)
    }
}

impl OutboxEntry {
    /// From where on events are taken out.
    fn rewind_from(&self) -> Option<i64> {
        match self {
            Self::Change { write: StateChange::Rewind(cut), .. } => cut.events_from,
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

/// The one turn that writes to a channel. Dropped before its last event is published, it frees the channel all
/// the same, and readers end: that turn goes on at the engine's next start.
pub struct Recorder {
    event_log: Arc<TaskEventLog>,
    turn_id: TurnId,
}

/// A record on its way.
#[must_use]
pub struct PendingCommit(oneshot::Receiver<Result<(), WriteError>>);

impl PendingCommit {
    /// Waits until it is stored.
    pub async fn wait(self) -> Result<(), WriteError> {
        self.0.await.unwrap_or_else(|_| Err(WriteError { reason: "the brain is closed".into() }))
    }
}

impl Recorder {
    /// The channel.
    pub fn event_log(&self) -> &Arc<TaskEventLog> {
        &self.event_log
    }

    /// The turn.
    pub fn turn_id(&self) -> TurnId {
        self.turn_id
    }

    /// The `ts` of the newest event, whether it is stored yet or not.
    pub fn last_ts(&self) -> i64 {
        self.event_log.state().clock.last_ts()
    }

    /// Gives up what is kept in memory for live readers: nothing will happen for a while. What they have not seen
    /// they read from the store.
    pub fn clear_published(&self) {
        self.event_log.state().ring.clear();
    }

    /// A write failed, and the turn is to go on all the same from what is stored.
    pub fn reset_error(&self) {
        self.event_log.state().write_error = None;
    }

    /// Sends an event on its way. It is stored and published soon, in order; a later [`Recorder::commit`]
    /// tells whether that went well.
    pub async fn emit(&self, event: Event) -> Result<(), WriteError> {
        {
            let mut state = self.event_log.state();
            let before = state.waiting_bytes;
            if state.coalesce_delta(ClockReading::read(&*self.event_log.clock), self.turn_id, &event) {
                self.event_log.waiting_bytes.fetch_add(state.waiting_bytes - before, Ordering::Relaxed);
                return Ok(());
            }
        }
        self.enqueue(vec![CommitPart::Event(event)], Durability::ProcessKill, None).await
    }

    /// Commits `record` as a whole, after all that was sent before, and waits until it is stored.
    pub async fn commit(&self, record: Commit) -> Result<(), WriteError> {
        self.send(record).await?.wait().await
    }

    /// Sends `record` on its way to be committed so.
    pub async fn send(&self, record: Commit) -> Result<PendingCommit, WriteError> {
        let (sender, committed) = oneshot::channel();
        self.enqueue(record.parts, record.durability, Some(sender)).await?;
        Ok(PendingCommit(committed))
    }

    async fn enqueue(
        &self,
        parts: Vec<CommitPart>,
        durability: Durability,
        committed: Option<oneshot::Sender<Result<(), WriteError>>>,
    ) -> Result<(), WriteError> {
        let channel = &self.event_log;
        let events = parts.iter().filter(|part| matches!(part, CommitPart::Event(_))).count();
        let events = i64::try_from(events).unwrap_or(i64::MAX);
        let mut progress = channel.status.subscribe();
        loop {
            let wait = {
                let mut state = channel.state();
                if let Some(error) = &state.write_error {
                    return Err(error.clone());
                }
                if state.waiting_bytes > MAX_WAITING_BYTES {
                    None
                } else {
                    match state.clock.stamp(ClockReading::read(&*channel.clock), events) {
                        Ok(first) => {
                            let stamps = first..first + events;
                            self.append_to_outbox(&mut state, parts, stamps, durability, committed);
                            let queue = state.mark_queued();
                            drop(state);
                            if queue {
                                channel.queue();
                            }
                            return Ok(());
                        }
                        Err(wait) => Some(wait),
                    }
                }
            };
            match wait {
                Some(wait) => channel.clock.sleep(wait).await,
                // The sender lives as long as the channel, which we hold.
                None => drop(progress.changed().await),
            }
        }
    }

    fn append_to_outbox(
        &self,
        state: &mut State,
        parts: Vec<CommitPart>,
        mut stamps: Range<i64>,
        durability: Durability,
        committed: Option<oneshot::Sender<Result<(), WriteError>>>,
    ) {
        let turn_id = self.turn_id;
        let (first_ts, last_ts) = (stamps.start, stamps.end - 1);
        for part in parts {
            let entry = match part {
                CommitPart::Change(write) => {
                    if matches!(write, StateChange::BeginTurn(_)) && !state.task_exists {
                        state.outbox.push(OutboxEntry::InsertTask);
                    }
                    OutboxEntry::Change { ts: first_ts, turn_id, write }
                }
                CommitPart::Step(step) => OutboxEntry::Step { ts: last_ts, turn_id, step },
                CommitPart::Event(event) => {
                    OutboxEntry::Event { ts: stamps.next().unwrap_or(last_ts), turn_id, event, data: None }
                }
            };
            state.waiting_bytes += entry.text_bytes();
            self.event_log.waiting_bytes.fetch_add(entry.text_bytes(), Ordering::Relaxed);
            if fault_injection::active(Mutation::PublishBeforeCommit) {
                self.event_log.publish_unstored(state, &entry);
            }
            state.outbox.push(entry);
        }
        state.outbox.extend(committed.map(OutboxEntry::NotifyCommitted));
        state.durability = state.durability.max(durability);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.event_log.status.send_if_modified(|progress| {
            let ours = progress.running_turn == Some(self.turn_id);
            if ours {
                progress.running_turn = None;
            }
            ours
        });
    }
}

impl WriteBatch for TaskEventLog {
    fn collect(&self) -> Durability {
        let mut state = self.state();
        state.queued = false;
        self.in_flight().append(&mut state.outbox);
        std::mem::replace(&mut state.durability, Durability::ProcessKill)
    }

    fn write(&self, rows: &WriteTx<'_>) -> Result<(), rusqlite::Error> {
        let at = self.clock.now();
        fault_injection::pause_for_kill(Mutation::PublishBeforeCommit);
        self.in_flight().iter_mut().try_for_each(|entry| self.write_entry(rows, entry, at))
    }

    fn complete(&self, result: &Result<(), WriteError>) {
        let mut entries = std::mem::take(&mut *self.in_flight());
        let frames: Vec<Frame> = match result {
            Ok(()) => entries.iter().filter_map(|entry| self.encode_frame(entry)).collect(),
            Err(_) => Vec::new(),
        };
        let last = frames.last().map(|frame| (frame.ts, frame.ends_turn));
        if last.is_some() {
            self.last_published_at.fetch_max(self.clock.now().unix_ms(), Ordering::Relaxed);
        }
        {
            let mut state = self.state();
            match result {
                Ok(()) => {
                    state.task_exists |= entries.iter().any(|entry| matches!(entry, OutboxEntry::InsertTask));
                }
                Err(error) => {
                    // What waits behind the failure builds on it.
                    entries.append(&mut state.outbox);
                    state.write_error = Some(error.clone());
                }
            }
            let settled: usize = entries.iter().map(OutboxEntry::text_bytes).sum();
            state.waiting_bytes = state.waiting_bytes.saturating_sub(settled);
            self.waiting_bytes.fetch_sub(settled, Ordering::Relaxed);
            if result.is_ok()
                && let Some(from) = entries.iter().find_map(OutboxEntry::rewind_from)
            {
                state.ring.truncate_from(from);
            }
            if !fault_injection::active(Mutation::PublishBeforeCommit) {
                for frame in frames {
                    state.ring.push(frame);
                }
            }
        }
        // Only now, with the lock released, whoever waits is woken.
        self.status.send_modify(|progress| {
            if let Some((ts, ends_turn)) = last {
                progress.published_ts = ts;
                if ends_turn {
                    progress.running_turn = None;
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
        rows: &WriteTx<'_>,
        entry: &mut OutboxEntry,
        at: Timestamp,
    ) -> Result<(), rusqlite::Error> {
        match entry {
            OutboxEntry::InsertTask => rows.insert_task(self.task, &self.task_id, at),
            OutboxEntry::Step { ts, turn_id, step } => rows.insert_step(self.task, *turn_id, at, *ts, step),
            OutboxEntry::Change { ts, turn_id, write } => write.apply(rows, self.task, *turn_id, *ts, at),
            OutboxEntry::Event { ts, turn_id, event, data } => {
                let data = data.insert(to_json(event)?);
                rows.insert_event(self.task, *turn_id, *ts, event.kind(), data)
            }
            OutboxEntry::NotifyCommitted(_) => Ok(()),
        }
    }

    /// A stored event in its form on the wire.
    fn encode_frame(&self, entry: &OutboxEntry) -> Option<Frame> {
        let OutboxEntry::Event { ts, turn_id, event, data: Some(data) } = entry else { return None };
        let sse = encode_sse(&self.task_id, *turn_id, wire_ts(*ts), event.kind(), data);
        Some(Frame { ts: *ts, turn_id: *turn_id, ends_turn: event.ends_turn(), sse: Bytes::from(sse) })
    }

    /// What a saboteur does.
    fn publish_unstored(&self, state: &mut State, entry: &OutboxEntry) {
        if let OutboxEntry::Event { ts, turn_id, event, .. } = entry
            && let Ok(data) = to_json(event)
        {
            let (ts, turn_id) = (*ts, *turn_id);
            let sse = Bytes::from(encode_sse(&self.task_id, turn_id, ts, event.kind(), &data));
            state.ring.push(Frame { ts, turn_id, ends_turn: event.ends_turn(), sse });
            self.status.send_modify(|progress| progress.published_ts = ts);
        }
    }
}

/// The `ts` as clients are told it: the one that is stored, unless a saboteur has it otherwise.
pub(super) fn wire_ts(ts: i64) -> i64 {
    if fault_injection::active(Mutation::RepeatTs) { ts & !1 } else { ts }
}
