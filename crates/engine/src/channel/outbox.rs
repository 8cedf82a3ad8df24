//! The writing end of a task's channel.

use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use contract::event::{Delta, Event, encode};
use contract::{TaskId, Timestamp, TurnId};
use service::clock::Clock;
use tokio::sync::{oneshot, watch};

use super::clock::{EventClock, Moment};
use super::reader::{Follow, Reader};
use super::record::{Part, Record, Write};
use super::ring::{Frame, Ring};
use crate::brain::steps::Step;
use crate::brain::{Batch, Brain, Durability, Rows, TaskEntry, TaskRow, WriteError, json};
use crate::sabotage::{self, Saboteur};

/// How many bytes of events may wait for the writer before the turn waits too.
const MAX_WAITING_BYTES: usize = 1024 * 1024;

/// Another turn is running on the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// One task's channel. See the module above.
pub struct TaskChannel {
    pub(super) brain: Brain,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) task: TaskRow,
    pub(super) task_id: TaskId,
    state: Mutex<State>,
    /// What the writer has taken and not yet settled. Only the writer uses it, so a commit under way does not
    /// keep the turn from sending on.
    in_flight: Mutex<Vec<Entry>>,
    progress: watch::Sender<Progress>,
    /// The text that waits in all channels together.
    waiting_bytes: Arc<AtomicUsize>,
    /// When an event of any channel was last published.
    active_at: Arc<AtomicI64>,
}

/// What readers wait on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// The newest published `ts`.
    pub(super) ts: i64,
    /// The turn that runs.
    pub(super) running: Option<TurnId>,
}

struct State {
    clock: EventClock,
    /// Whether the task is stored.
    exists: bool,
    /// What waits for the writer, in order.
    outbox: Vec<Entry>,
    /// The text that waits or is in flight.
    waiting_bytes: usize,
    /// Whether the writer knows that something waits.
    queued: bool,
    /// How durable the commit of what waits must be.
    durability: Durability,
    /// Set when a write failed: the turn that was running cannot go on.
    broken: Option<WriteError>,
    ring: Ring,
}

enum Entry {
    Task,
    Step {
        ts: i64,
        turn_id: TurnId,
        step: Box<Step>,
    },
    Write {
        ts: i64,
        turn_id: TurnId,
        write: Write,
    },
    /// An event, and its own data as JSON once it was written: what is stored and what is sent are the same.
    Event {
        ts: i64,
        turn_id: TurnId,
        event: Event,
        data: Option<String>,
    },
    Committed(oneshot::Sender<Result<(), WriteError>>),
}

impl TaskChannel {
    pub(super) fn new(
        brain: Brain,
        clock: Arc<dyn Clock>,
        task_id: TaskId,
        entry: Option<TaskEntry>,
        waiting_bytes: Arc<AtomicUsize>,
        active_at: Arc<AtomicI64>,
    ) -> Arc<Self> {
        let exists = entry.is_some();
        let entry = entry.unwrap_or_else(|| TaskEntry { row: brain.reserve_task(), last_ts: 0 });
        let state = State {
            clock: EventClock::after(entry.last_ts, Moment::read(&*clock)),
            exists,
            outbox: Vec::new(),
            waiting_bytes: 0,
            queued: false,
            durability: Durability::Kill,
            broken: None,
            ring: Ring::above(entry.last_ts),
        };
        Arc::new(Self {
            brain,
            clock,
            task: entry.row,
            task_id,
            state: Mutex::new(state),
            in_flight: Mutex::default(),
            progress: watch::Sender::new(Progress { ts: entry.last_ts, running: None }),
            waiting_bytes,
            active_at,
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
    pub fn begin(self: &Arc<Self>, turn_id: TurnId) -> Result<Recorder, Busy> {
        let taken = self.progress.send_if_modified(|progress| {
            let free = progress.running.is_none();
            if free {
                progress.running = Some(turn_id);
            }
            free
        });
        if !taken {
            return Err(Busy);
        }
        self.state().broken = None;
        Ok(Recorder { channel: Arc::clone(self), turn_id })
    }

    /// Whether `turn_id` holds the channel: it has begun, and its end is not published.
    pub fn is_held_by(&self, turn_id: TurnId) -> bool {
        self.progress.borrow().running == Some(turn_id)
    }

    /// Whether a turn holds the channel.
    pub fn is_held(&self) -> bool {
        self.progress.borrow().running.is_some()
    }

    /// Reads the events after `after`.
    pub fn read(self: &Arc<Self>, after: i64, follow: Follow) -> Reader {
        Reader::new(Arc::clone(self), after, follow, self.progress.subscribe())
    }

    /// The published frames after `ts`, or none if the store must be asked.
    pub(super) fn published_after(&self, ts: i64) -> Option<Vec<Frame>> {
        self.state().ring.after(ts)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_flight(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(self: &Arc<Self>) {
        self.brain.queue(Arc::clone(self) as Arc<dyn Batch>);
    }
}

impl State {
    /// Takes `event` into a waiting delta of the same block and millisecond, if there is one.
    fn merge(&mut self, now: Moment, turn: TurnId, event: &Event) -> bool {
        if self.waiting_bytes > MAX_WAITING_BYTES {
            return false;
        }
        let Some(Entry::Event { turn_id, event: waiting, .. }) = self.outbox.last_mut() else { return false };
        let same_kind = matches!(
            (&*waiting, event),
            (Event::TextDelta(_), Event::TextDelta(_)) | (Event::ThinkingDelta(_), Event::ThinkingDelta(_))
        );
        if !same_kind || *turn_id != turn || !self.clock.is_still_at_last(now) {
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
    fn must_queue(&mut self) -> bool {
        !std::mem::replace(&mut self.queued, true)
    }
}

impl Entry {
    /// From where on events are taken out.
    fn cut_from(&self) -> Option<i64> {
        match self {
            Self::Write { write: Write::Cut(cut), .. } => cut.events_from,
            _ => None,
        }
    }

    fn bytes(&self) -> usize {
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
    channel: Arc<TaskChannel>,
    turn_id: TurnId,
}

/// A record on its way.
#[must_use]
pub struct Committing(oneshot::Receiver<Result<(), WriteError>>);

impl Committing {
    /// Waits until it is stored.
    pub async fn stored(self) -> Result<(), WriteError> {
        self.0.await.unwrap_or_else(|_| Err(WriteError { reason: "the brain is closed".into() }))
    }
}

impl Recorder {
    /// The channel.
    pub fn channel(&self) -> &Arc<TaskChannel> {
        &self.channel
    }

    /// The turn.
    pub fn turn_id(&self) -> TurnId {
        self.turn_id
    }

    /// The `ts` of the newest event, whether it is stored yet or not.
    pub fn last_ts(&self) -> i64 {
        self.channel.state().clock.last_ts()
    }

    /// Gives up what is kept in memory for live readers: nothing will happen for a while. What they have not seen
    /// they read from the store.
    pub fn forget_published(&self) {
        self.channel.state().ring.forget();
    }

    /// A write failed, and the turn is to go on all the same from what is stored.
    pub fn mend(&self) {
        self.channel.state().broken = None;
    }

    /// Sends an event on its way. It is stored and published soon, in order; a later [`Recorder::commit`]
    /// tells whether that went well.
    pub async fn event(&self, event: Event) -> Result<(), WriteError> {
        {
            let mut state = self.channel.state();
            let before = state.waiting_bytes;
            if state.merge(Moment::read(&*self.channel.clock), self.turn_id, &event) {
                self.channel.waiting_bytes.fetch_add(state.waiting_bytes - before, Ordering::Relaxed);
                return Ok(());
            }
        }
        self.push(vec![Part::Event(event)], Durability::Kill, None).await
    }

    /// Commits `record` as a whole, after all that was sent before, and waits until it is stored.
    pub async fn commit(&self, record: Record) -> Result<(), WriteError> {
        self.send(record).await?.stored().await
    }

    /// Sends `record` on its way to be committed so.
    pub async fn send(&self, record: Record) -> Result<Committing, WriteError> {
        let (sender, committed) = oneshot::channel();
        self.push(record.parts, record.durability, Some(sender)).await?;
        Ok(Committing(committed))
    }

    async fn push(
        &self,
        parts: Vec<Part>,
        durability: Durability,
        committed: Option<oneshot::Sender<Result<(), WriteError>>>,
    ) -> Result<(), WriteError> {
        let channel = &self.channel;
        let events = parts.iter().filter(|part| matches!(part, Part::Event(_))).count();
        let events = i64::try_from(events).unwrap_or(i64::MAX);
        let mut progress = channel.progress.subscribe();
        loop {
            let wait = {
                let mut state = channel.state();
                if let Some(error) = &state.broken {
                    return Err(error.clone());
                }
                if state.waiting_bytes > MAX_WAITING_BYTES {
                    None
                } else {
                    match state.clock.stamp(Moment::read(&*channel.clock), events) {
                        Ok(first) => {
                            let stamps = first..first + events;
                            self.enter(&mut state, parts, stamps, durability, committed);
                            let queue = state.must_queue();
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

    fn enter(
        &self,
        state: &mut State,
        parts: Vec<Part>,
        mut stamps: Range<i64>,
        durability: Durability,
        committed: Option<oneshot::Sender<Result<(), WriteError>>>,
    ) {
        let turn_id = self.turn_id;
        let (first_ts, last_ts) = (stamps.start, stamps.end - 1);
        for part in parts {
            let entry = match part {
                Part::Write(write) => {
                    if matches!(write, Write::Begin(_)) && !state.exists {
                        state.outbox.push(Entry::Task);
                    }
                    Entry::Write { ts: first_ts, turn_id, write }
                }
                Part::Step(step) => Entry::Step { ts: last_ts, turn_id, step },
                Part::Event(event) => {
                    Entry::Event { ts: stamps.next().unwrap_or(last_ts), turn_id, event, data: None }
                }
            };
            state.waiting_bytes += entry.bytes();
            self.channel.waiting_bytes.fetch_add(entry.bytes(), Ordering::Relaxed);
            if sabotage::by(Saboteur::PublishBeforeCommit) {
                self.channel.publish_unstored(state, &entry);
            }
            state.outbox.push(entry);
        }
        state.outbox.extend(committed.map(Entry::Committed));
        state.durability = state.durability.max(durability);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.channel.progress.send_if_modified(|progress| {
            let ours = progress.running == Some(self.turn_id);
            if ours {
                progress.running = None;
            }
            ours
        });
    }
}

impl Batch for TaskChannel {
    fn gather(&self) -> Durability {
        let mut state = self.state();
        state.queued = false;
        self.in_flight().append(&mut state.outbox);
        std::mem::replace(&mut state.durability, Durability::Kill)
    }

    fn write(&self, rows: &Rows<'_>) -> Result<(), rusqlite::Error> {
        let at = self.clock.now();
        sabotage::linger(Saboteur::PublishBeforeCommit);
        self.in_flight().iter_mut().try_for_each(|entry| self.write_entry(rows, entry, at))
    }

    fn settled(&self, result: &Result<(), WriteError>) {
        let mut entries = std::mem::take(&mut *self.in_flight());
        let frames: Vec<Frame> = match result {
            Ok(()) => entries.iter().filter_map(|entry| self.frame(entry)).collect(),
            Err(_) => Vec::new(),
        };
        let last = frames.last().map(|frame| (frame.ts, frame.ends_turn));
        if last.is_some() {
            self.active_at.fetch_max(self.clock.now().unix_ms(), Ordering::Relaxed);
        }
        {
            let mut state = self.state();
            match result {
                Ok(()) => state.exists |= entries.iter().any(|entry| matches!(entry, Entry::Task)),
                Err(error) => {
                    // What waits behind the failure builds on it.
                    entries.append(&mut state.outbox);
                    state.broken = Some(error.clone());
                }
            }
            let settled: usize = entries.iter().map(Entry::bytes).sum();
            state.waiting_bytes = state.waiting_bytes.saturating_sub(settled);
            self.waiting_bytes.fetch_sub(settled, Ordering::Relaxed);
            if result.is_ok()
                && let Some(from) = entries.iter().find_map(Entry::cut_from)
            {
                state.ring.cut(from);
            }
            if !sabotage::by(Saboteur::PublishBeforeCommit) {
                for frame in frames {
                    state.ring.push(frame);
                }
            }
        }
        // Only now, with the lock released, whoever waits is woken.
        self.progress.send_modify(|progress| {
            if let Some((ts, ends_turn)) = last {
                progress.ts = ts;
                if ends_turn {
                    progress.running = None;
                }
            }
        });
        for entry in entries {
            if let Entry::Committed(sender) = entry {
                // The turn may have been cancelled meanwhile.
                let _ = sender.send(result.clone());
            }
        }
    }
}

impl TaskChannel {
    fn write_entry(&self, rows: &Rows<'_>, entry: &mut Entry, at: Timestamp) -> Result<(), rusqlite::Error> {
        match entry {
            Entry::Task => rows.insert_task(self.task, &self.task_id, at),
            Entry::Step { ts, turn_id, step } => rows.insert_step(self.task, *turn_id, at, *ts, step),
            Entry::Write { ts, turn_id, write } => write.to(rows, self.task, *turn_id, *ts, at),
            Entry::Event { ts, turn_id, event, data } => {
                let data = data.insert(json(event)?);
                rows.insert_event(self.task, *turn_id, *ts, event.kind(), data)
            }
            Entry::Committed(_) => Ok(()),
        }
    }

    /// A stored event in its form on the wire.
    fn frame(&self, entry: &Entry) -> Option<Frame> {
        let Entry::Event { ts, turn_id, event, data: Some(data) } = entry else { return None };
        let sse = encode(&self.task_id, *turn_id, shown(*ts), event.kind(), data);
        Some(Frame { ts: *ts, turn_id: *turn_id, ends_turn: event.ends_turn(), sse: Bytes::from(sse) })
    }

    /// What a saboteur does.
    fn publish_unstored(&self, state: &mut State, entry: &Entry) {
        if let Entry::Event { ts, turn_id, event, .. } = entry
            && let Ok(data) = json(event)
        {
            let (ts, turn_id) = (*ts, *turn_id);
            let sse = Bytes::from(encode(&self.task_id, turn_id, ts, event.kind(), &data));
            state.ring.push(Frame { ts, turn_id, ends_turn: event.ends_turn(), sse });
            self.progress.send_modify(|progress| progress.ts = ts);
        }
    }
}

/// The `ts` as clients are told it: the one that is stored, unless a saboteur has it otherwise.
pub(super) fn shown(ts: i64) -> i64 {
    if sabotage::by(Saboteur::RepeatTs) { ts & !1 } else { ts }
}
