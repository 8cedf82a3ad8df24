//! The writing end of a task's channel.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use contract::event::{Delta, Event, encode};
use contract::{MessageId, TaskId, Timestamp, TurnId};
use service::clock::Clock;
use tokio::sync::{oneshot, watch};

use super::clock::{EventClock, Moment};
use super::reader::{Follow, Reader};
use super::ring::{Frame, Ring};
use crate::brain::steps::Step;
use crate::brain::{Batch, Brain, Durability, Rows, TaskEntry, TaskRow, WriteError, json};

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
    Turn(TurnId, MessageId),
    Start(TurnId),
    Step {
        ts: i64,
        turn_id: TurnId,
        step: Box<Step>,
    },
    WorkingMemory {
        key: String,
        value: serde_json::Value,
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

/// What is committed together: steps, the events that tell of them, and what they change in memory.
#[derive(Default)]
pub struct Record {
    parts: Vec<Part>,
    against_power_loss: bool,
}

enum Part {
    Begin(MessageId),
    Start,
    Step(Box<Step>),
    WorkingMemory { key: String, value: serde_json::Value },
    Event(Event),
}

impl Record {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The turn begins, with this message of the user.
    #[must_use]
    pub fn begin(self, message_id: MessageId) -> Self {
        self.with(Part::Begin(message_id))
    }

    /// A start of the engine takes the turn up.
    #[must_use]
    pub fn start(self) -> Self {
        self.with(Part::Start)
    }

    /// A step of the turn.
    #[must_use]
    pub fn step(self, step: Step) -> Self {
        self.with(Part::Step(Box::new(step)))
    }

    /// An event.
    #[must_use]
    pub fn event(self, event: Event) -> Self {
        self.with(Part::Event(event))
    }

    /// A value of the task's working memory.
    #[must_use]
    pub fn working_memory(self, key: String, value: serde_json::Value) -> Self {
        self.with(Part::WorkingMemory { key, value })
    }

    /// The commit must hold against power loss.
    #[must_use]
    pub fn against_power_loss(mut self) -> Self {
        self.against_power_loss = true;
        self
    }

    fn with(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }
}

impl TaskChannel {
    pub(super) fn new(
        brain: Brain,
        clock: Arc<dyn Clock>,
        task_id: TaskId,
        entry: Option<TaskEntry>,
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

    /// Sends an event on its way. It is stored and published soon, in order; a later [`Recorder::commit`]
    /// tells whether that went well.
    pub async fn event(&self, event: Event) -> Result<(), WriteError> {
        {
            let mut state = self.channel.state();
            if state.merge(Moment::read(&*self.channel.clock), self.turn_id, &event) {
                return Ok(());
            }
        }
        self.push(vec![Part::Event(event)], Durability::Kill, None).await
    }

    /// Commits `record` as a whole, after all that was sent before, and waits until it is stored.
    pub async fn commit(&self, record: Record) -> Result<(), WriteError> {
        let durability = if record.against_power_loss { Durability::PowerLoss } else { Durability::Kill };
        let (sender, committed) = oneshot::channel();
        self.push(record.parts, durability, Some(sender)).await?;
        committed.await.unwrap_or_else(|_| Err(WriteError { reason: "the brain is closed".into() }))
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
        let last_ts = stamps.end - 1;
        for part in parts {
            let entry = match part {
                Part::Begin(message_id) => {
                    if !state.exists {
                        state.outbox.push(Entry::Task);
                    }
                    Entry::Turn(turn_id, message_id)
                }
                Part::Start => Entry::Start(turn_id),
                Part::Step(step) => Entry::Step { ts: last_ts, turn_id, step },
                Part::WorkingMemory { key, value } => Entry::WorkingMemory { key, value },
                Part::Event(event) => {
                    Entry::Event { ts: stamps.next().unwrap_or(last_ts), turn_id, event, data: None }
                }
            };
            state.waiting_bytes += entry.bytes();
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
        self.in_flight().iter_mut().try_for_each(|entry| self.write_entry(rows, entry, at))
    }

    fn settled(&self, result: &Result<(), WriteError>) {
        let mut entries = std::mem::take(&mut *self.in_flight());
        let frames: Vec<Frame> = match result {
            Ok(()) => entries.iter().filter_map(|entry| self.frame(entry)).collect(),
            Err(_) => Vec::new(),
        };
        let last = frames.last().map(|frame| (frame.ts, frame.ends_turn));
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
            for frame in frames {
                state.ring.push(frame);
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
            Entry::Turn(turn_id, message_id) => rows.insert_turn(self.task, *turn_id, *message_id, at),
            Entry::Start(turn_id) => rows.count_start(*turn_id),
            Entry::Step { ts, turn_id, step } => rows.insert_step(*turn_id, at, *ts, step),
            Entry::WorkingMemory { key, value } => rows.set_working_memory(self.task, key, value),
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
        let sse = encode(&self.task_id, *turn_id, *ts, event.kind(), data);
        Some(Frame { ts: *ts, turn_id: *turn_id, ends_turn: event.ends_turn(), sse: Bytes::from(sse) })
    }
}
