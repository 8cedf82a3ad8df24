//! The turns that run or wait, and how to reach them.
//!
//! A turn is one task that owns its journal. Whatever is to happen to it from outside is a command that it takes
//! when it next waits for something, so that all of it has one order.
//!
//! Whether turns are at work is known here, under the lock by which they begin, so that the engine can be quiesced
//! in one step.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::{HitlId, MessageId, TaskId, TurnId};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::AgentError;
use super::direct_calls::MAX_DIRECT_CALLS;
use super::hitl::HitlResponse;
use crate::event_log::{Recorder, TaskEventLog};
use crate::store::{IdempotencyKey, WriteError};

/// How many commands may wait for a turn. Each is one person's doing.
const COMMAND_QUEUE_CAPACITY: usize = 32;
/// How long the engine stays quiesced, unless that is lifted. Whoever asked for it has stopped the engine by then.
const QUIESCE_DURATION: Duration = Duration::from_mins(1);

/// What a running turn can be told.
pub(super) enum Command {
    /// To end.
    Cancel(Reply<TurnId>),
    /// Something from the user, for the model.
    Steer(String, Reply<MessageId>),
    /// A person's answer. On its way it counts as work, since the turn goes on by it.
    Respond(HitlResponse, Reply<HitlId>, BusyGuard),
}

impl Command {
    /// The turn cannot do it: the brain cannot be written.
    pub(super) fn refuse(self) {
        let reason: Arc<str> = "it could not be, and is being tried".into();
        self.refuse_with(|| AgentError::Write(WriteError { reason: Arc::clone(&reason) }));
    }

    /// The turn cannot do it, for this reason.
    pub(super) fn refuse_with(self, error: impl FnOnce() -> AgentError) {
        // Who asked may have gone.
        match self {
            Self::Cancel(reply) => drop(reply.send(Err(error()))),
            Self::Steer(_, reply) => drop(reply.send(Err(error()))),
            Self::Respond(_, reply, _) => drop(reply.send(Err(error()))),
        }
    }
}

/// Where the outcome of a command goes. Dropped, it says that the turn is over.
pub(super) type Reply<T> = oneshot::Sender<Result<T, AgentError>>;

/// The commands of one turn.
pub(super) type Inbox = mpsc::Receiver<Command>;

/// How to reach a turn.
pub(super) struct TurnHandle {
    /// The turn.
    pub(super) turn_id: TurnId,
    /// The request that began it, where the caller named it.
    pub(super) idempotency_key: Option<IdempotencyKey>,
    /// The `ts` after which its events come.
    pub(super) events_after: i64,
    /// Whether it is open. Closed before that, it never will be.
    pub(super) opened: watch::Receiver<bool>,
    event_log: Arc<TaskEventLog>,
    busy_count: BusyCount,
    commands: mpsc::Sender<Command>,
}

/// For how many reasons something counts as being at work.
type BusyCount = Arc<AtomicUsize>;

/// A reason to count a turn, or the engine beside all turns, as being at work, for as long as it is held.
pub(super) struct BusyGuard(BusyCount);

impl BusyGuard {
    fn new(work: &BusyCount) -> Self {
        work.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(work))
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// See the module.
#[derive(Clone, Default)]
pub(super) struct TurnRegistry(Arc<Mutex<RegistryState>>);

/// The turns, by their tasks.
#[derive(Default)]
pub(super) struct RegistryState {
    turns: HashMap<TaskId, TurnHandle>,
    /// Until when, by the monotonic clock, no turn may begin or go on.
    quiesced_until: Option<Duration>,
    /// Whether a learning batch is at work: not while it waits for its model.
    learning: bool,
    /// How many tools and skills are run without a turn.
    direct_calls: BusyCount,
    /// Told whenever a turn may have ceased to be at work.
    idle_notify: Arc<Notify>,
}

/// The turns, held still: while one looks nobody begins or ends a turn.
pub(super) type RegistryGuard<'a> = MutexGuard<'a, RegistryState>;

impl RegistryState {
    /// The turn of a task.
    pub(super) fn get(&self, task_id: &TaskId) -> Option<&TurnHandle> {
        self.turns.get(task_id)
    }

    /// Whether a turn has not ended, at work or not.
    pub(super) fn any_open(&self) -> bool {
        self.turns.values().any(|handle| handle.event_log.is_running(handle.turn_id))
    }

    /// How many turns there are, at work or not.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }

    /// How many turns are at work: not those that wait for a person, nor those whose end clients have seen.
    pub(super) fn active_count(&self) -> usize {
        let at_work = |handle: &&TurnHandle| {
            handle.busy_count.load(Ordering::Acquire) > 0 && handle.event_log.is_running(handle.turn_id)
        };
        self.turns.values().filter(at_work).count()
    }

    /// From `now` on no turn, no learning batch and no call without a turn begins or goes on, unless one is at work;
    /// whether that is so.
    pub(super) fn quiesce(&mut self, now: Duration) -> bool {
        let idle =
            self.active_count() == 0 && !self.learning && self.direct_calls.load(Ordering::Acquire) == 0;
        if idle {
            self.quiesced_until = Some(now.saturating_add(QUIESCE_DURATION));
        }
        idle
    }

    /// A tool or a skill is run without a turn from `now` on. It keeps the engine from being quiesced, and counts as
    /// no turn.
    pub(super) fn begin_direct_call(&mut self, now: Duration) -> Result<BusyGuard, AgentError> {
        self.admit(now)?;
        // Nobody else begins one: the table is held.
        if self.direct_calls.load(Ordering::Acquire) >= MAX_DIRECT_CALLS {
            return Err(AgentError::TooManyCalls);
        }
        Ok(BusyGuard::new(&self.direct_calls))
    }

    /// A learning batch is at work from `now` on.
    pub(super) fn begin_learning(&mut self, now: Duration) -> Result<(), AgentError> {
        self.admit(now)?;
        self.learning = true;
        Ok(())
    }

    /// No learning batch is at work any more.
    pub(super) fn end_learning(&mut self) {
        self.learning = false;
    }

    /// Turns may begin and go on.
    pub(super) fn lift_quiesce(&mut self) {
        self.quiesced_until = None;
    }

    /// Whether a turn may begin or go on.
    pub(super) fn admit(&self, now: Duration) -> Result<(), AgentError> {
        match self.quiesced_until {
            Some(until) if now < until => Err(AgentError::Quiesced),
            _ => Ok(()),
        }
    }
}

/// A turn's place among those that run. Dropped, it is free.
pub(super) struct Registration {
    registry: TurnRegistry,
    task_id: TaskId,
    turn_id: TurnId,
    opened: watch::Sender<bool>,
    busy_count: BusyCount,
    /// Held while the turn does not wait for a person.
    busy_guard: Option<BusyGuard>,
}

impl Registration {
    /// The turn is on record: who asked for the same one may join it.
    pub(super) fn mark_opened(&self) {
        self.opened.send_replace(true);
    }

    /// The turn waits for a person.
    pub(super) fn mark_idle(&mut self) {
        self.busy_guard = None;
        self.registry.lock().idle_notify.notify_waiters();
    }

    /// The turn does something, if only to end.
    pub(super) fn mark_busy(&mut self) {
        let work = &self.busy_count;
        self.busy_guard.get_or_insert_with(|| BusyGuard::new(work));
    }
}

impl TurnRegistry {
    /// Looks at the turns.
    pub(super) fn lock(&self) -> RegistryGuard<'_> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no turn is at work.
    pub(super) async fn wait_idle(&self) {
        loop {
            let calm = Arc::clone(&self.lock().idle_notify);
            let told = calm.notified();
            tokio::pin!(told);
            // Registered before the look at the turns: an end in between is not missed.
            told.as_mut().enable();
            if self.lock().active_count() == 0 {
                return;
            }
            told.await;
        }
    }

    /// The turn of `recorder` begins, or goes on after a restart: it is at work.
    pub(super) fn register(
        &self,
        turns: &mut RegistryGuard<'_>,
        recorder: &Recorder,
        request: Option<IdempotencyKey>,
        after: i64,
    ) -> (Registration, Inbox) {
        let (channel, turn_id) = (Arc::clone(recorder.event_log()), recorder.turn_id());
        let task_id = channel.task_id().clone();
        let (commands, inbox) = mpsc::channel(COMMAND_QUEUE_CAPACITY);
        let (opened, receiver) = watch::channel(false);
        let work = BusyCount::default();
        let at_work = Some(BusyGuard::new(&work));
        let handle = TurnHandle {
            turn_id,
            idempotency_key: request,
            events_after: after,
            opened: receiver,
            event_log: channel,
            busy_count: Arc::clone(&work),
            commands,
        };
        turns.turns.insert(task_id.clone(), handle);
        (
            Registration {
                registry: self.clone(),
                task_id,
                turn_id,
                opened,
                busy_count: work,
                busy_guard: at_work,
            },
            inbox,
        )
    }

    /// Tells the turn of `task_id` something, and waits for the outcome.
    pub(super) async fn send<T>(
        &self,
        task_id: &TaskId,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, AgentError> {
        let commands = self.lock().get(task_id).ok_or(AgentError::NotRunning)?.commands.clone();
        send_command(commands, command).await
    }

    /// Hands the turn of `task_id` a person's answer, and waits for the outcome. From `now` on the turn is at work.
    pub(super) async fn respond(
        &self,
        task_id: &TaskId,
        response: HitlResponse,
        now: Duration,
    ) -> Result<HitlId, AgentError> {
        let (commands, at_work) = self.begin_respond(task_id, now)?;
        send_command(commands, |reply| Command::Respond(response, reply, at_work)).await
    }

    /// The way to a turn that goes on, and the reason to count it as one at work.
    fn begin_respond(
        &self,
        task_id: &TaskId,
        now: Duration,
    ) -> Result<(mpsc::Sender<Command>, BusyGuard), AgentError> {
        let turns = self.lock();
        let handle = turns.get(task_id).ok_or(AgentError::NotRunning)?;
        turns.admit(now)?;
        Ok((handle.commands.clone(), BusyGuard::new(&handle.busy_count)))
    }
}

async fn send_command<T>(
    commands: mpsc::Sender<Command>,
    command: impl FnOnce(Reply<T>) -> Command,
) -> Result<T, AgentError> {
    let (reply, outcome) = oneshot::channel();
    commands.send(command(reply)).await.map_err(|_| AgentError::NotRunning)?;
    outcome.await.unwrap_or(Err(AgentError::NotRunning))
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut turns = self.registry.lock();
        // The next turn of the task may have begun as soon as this one's end was published.
        if turns.get(&self.task_id).is_some_and(|handle| handle.turn_id == self.turn_id) {
            turns.turns.remove(&self.task_id);
        }
        // Its own reason to count as one at work is dropped with it.
        self.busy_guard = None;
        turns.idle_notify.notify_waiters();
    }
}

#[cfg(test)]
#[path = "turn_registry_tests.rs"]
mod tests;
