//! The registry of turns that are running or waiting, and how commands reach them.
//!
//! A turn is one async task that owns its journal. Every outside influence is a command that the turn handles
//! when it next waits for something, so all changes are ordered.
//!
//! The registry knows whether turns are active, under the same lock under which they begin, so that the engine
//! can be quiesced atomically.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::{HitlId, MessageId, TaskId, TurnId};
use parking_lot::{Mutex, MutexGuard};
use store::event_log::{Recorder, TaskEventLog};
use store::{IdempotencyKey, WriteError};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::hitl::HitlResponse;
use super::turn_queue::TurnQueue;
use super::{AgentError, MAX_DIRECT_CALLS};

/// The number of commands that may be queued for a turn. Each comes from one user.
const COMMAND_QUEUE_CAPACITY: usize = 32;
/// How long the engine stays quiesced unless that is lifted. The orchestrator has stopped the engine by then.
const QUIESCE_DURATION: Duration = Duration::from_mins(1);

/// A command to a running turn.
pub(super) enum Command {
    /// Ends the turn.
    Cancel(Reply<TurnId>),
    /// A message from the user for the model.
    Steer(String, Reply<MessageId>),
    /// The user's answer. While in transit it counts as activity, since it makes the turn continue.
    Respond(HitlResponse, Reply<HitlId>, BusyGuard),
}

impl Command {
    /// Refuses the command because the brain cannot be written.
    pub(super) fn refuse(self) {
        let reason: Arc<str> = "the last write failed and is being retried".into();
        self.refuse_with(|| AgentError::Write(WriteError { reason: Arc::clone(&reason) }));
    }

    /// Refuses the command with this error.
    pub(super) fn refuse_with(self, error: impl FnOnce() -> AgentError) {
        // The caller may be gone.
        match self {
            Self::Cancel(reply) => drop(reply.send(Err(error()))),
            Self::Steer(_, reply) => drop(reply.send(Err(error()))),
            Self::Respond(_, reply, _) => drop(reply.send(Err(error()))),
        }
    }
}

/// Where the outcome of a command is sent. Dropping it means that the turn is over.
pub(super) type Reply<T> = oneshot::Sender<Result<T, AgentError>>;

/// The commands of one turn.
pub(super) type Commands = mpsc::Receiver<Command>;

/// How to reach a turn.
pub(super) struct TurnHandle {
    /// The id of the turn.
    pub(super) turn_id: TurnId,
    /// The idempotency key of the request that began it, if the caller gave one.
    pub(super) idempotency_key: Option<IdempotencyKey>,
    /// The `ts` after which its events begin.
    pub(super) events_after: i64,
    /// Whether the turn is open. If the sender is dropped before that, it never will be.
    pub(super) opened: watch::Receiver<bool>,
    pub(super) event_log: Arc<TaskEventLog>,
    /// Whether it is being cancelled because a queued message takes its place.
    is_interrupted: bool,
    busy_count: BusyCount,
    commands: mpsc::Sender<Command>,
}

impl TurnHandle {
    /// Whether the turn has not ended.
    fn is_running(&self) -> bool {
        self.event_log.is_running(self.turn_id)
    }
}

/// The number of reasons why something counts as active.
type BusyCount = Arc<AtomicUsize>;

/// RAII guard: a turn, or the engine outside of turns, counts as active while it is held.
pub(crate) struct BusyGuard(BusyCount);

impl BusyGuard {
    fn new(count: &BusyCount) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The registry of all turns. Clones share it.
#[derive(Clone, Default)]
pub(super) struct TurnRegistry(Arc<Mutex<RegistryState>>);

/// The turns by task, and what keeps the engine from being quiesced.
#[derive(Default)]
pub(super) struct RegistryState {
    turns: HashMap<TaskId, TurnHandle>,
    /// The time on the monotonic clock until which no turn may begin or resume.
    quiesced_until: Option<Duration>,
    /// Whether a learning batch is active; not while it waits for its model.
    learning: bool,
    /// The number of tools and skills that are being called outside turns.
    direct_calls: BusyCount,
    /// The number of files that are being transferred or deleted.
    transfers: BusyCount,
    /// The messages that wait for their turn.
    pub(super) queue: TurnQueue,
    /// Notified whenever a turn may have become idle.
    idle_notify: Arc<Notify>,
    /// Notified whenever there may be something to do for a queued message. A turn on a task without one notifies
    /// nobody: waking the queue's runner would delay each turn's beginning.
    queue_notify: Arc<Notify>,
}

/// The locked registry: while it is held, no turn begins or ends.
pub(super) type RegistryGuard<'a> = MutexGuard<'a, RegistryState>;

impl RegistryState {
    /// The turn of a task.
    pub(super) fn get(&self, task_id: &TaskId) -> Option<&TurnHandle> {
        self.turns.get(task_id)
    }

    /// Returns whether any turn has not ended, active or not.
    pub(super) fn any_open(&self) -> bool {
        self.turns.values().any(|handle| handle.event_log.is_running(handle.turn_id))
    }

    /// The number of turns, active or not.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }

    /// The number of active turns, without those that wait for the user and those whose end clients have seen.
    pub(super) fn active_count(&self) -> usize {
        let is_active = |handle: &&TurnHandle| {
            handle.busy_count.load(Ordering::Acquire) > 0 && handle.event_log.is_running(handle.turn_id)
        };
        self.turns.values().filter(is_active).count()
    }

    /// The turn of a task that has begun and not ended.
    pub(super) fn running(&self, task_id: &TaskId) -> Option<&TurnHandle> {
        self.get(task_id).filter(|handle| handle.is_running())
    }

    /// Whether a queued message can begin its turn.
    pub(super) fn can_start_queued(&self) -> bool {
        self.queue.can_start(|task_id| self.running(task_id).is_none())
    }

    /// Takes a queued message whose turn can begin: its task, its turn and its size.
    pub(super) fn take_queued(&mut self) -> Option<(TaskId, TurnId, u64)> {
        let Self { queue, turns, .. } = self;
        let is_free = |task_id: &TaskId| !turns.get(task_id).is_some_and(TurnHandle::is_running);
        queue.take_next(is_free)
    }

    /// A turn whose place a queued message takes and that is to be cancelled, which the caller does from now on.
    pub(super) fn take_interrupted(&mut self) -> Option<(TaskId, TurnId)> {
        let Self { queue, turns, .. } = self;
        for task_id in queue.interrupted_tasks() {
            if let Some(handle) = turns.get_mut(task_id)
                && handle.is_running()
                && !std::mem::replace(&mut handle.is_interrupted, true)
            {
                return Some((task_id.clone(), handle.turn_id));
            }
        }
        None
    }

    /// Has a turn cancelled again that could not be.
    pub(super) fn interrupt_again(&mut self, task_id: &TaskId, turn_id: TurnId) {
        if let Some(handle) = self.turns.get_mut(task_id).filter(|handle| handle.turn_id == turn_id) {
            handle.is_interrupted = false;
        }
    }

    /// Announces a change of the queue.
    pub(super) fn notify_queue(&self) {
        self.queue_notify.notify_waiters();
    }

    /// Refuses turns, learning batches and direct calls from `now` on, unless one is active or a message can
    /// begin its turn. Returns whether the engine is quiesced.
    pub(super) fn quiesce(&mut self, now: Duration) -> bool {
        let idle = !self.is_working() && !self.learning && self.direct_calls.load(Ordering::Acquire) == 0;
        if idle {
            self.force_quiesce(now);
        }
        idle
    }

    /// Whether the engine works on a turn, a message can begin its turn, or files or schedules are being changed.
    pub(super) fn is_working(&self) -> bool {
        self.active_count() > 0
            || self.queue.is_active(|task_id| self.running(task_id).is_none())
            || self.transfers.load(Ordering::Acquire) > 0
    }

    /// Begins a call of a tool or skill outside a turn. It keeps the engine from being quiesced but does not
    /// count as a turn.
    pub(super) fn begin_direct_call(&mut self, now: Duration) -> Result<BusyGuard, AgentError> {
        self.check_not_quiesced(now)?;
        // No other call can begin meanwhile, because the registry is locked.
        if self.direct_calls.load(Ordering::Acquire) >= MAX_DIRECT_CALLS {
            return Err(AgentError::TooManyCalls);
        }
        Ok(BusyGuard::new(&self.direct_calls))
    }

    /// Begins a transfer of a file. It keeps the engine from being quiesced but does not count as a turn.
    pub(super) fn begin_transfer(&self, now: Duration) -> Result<BusyGuard, AgentError> {
        self.check_not_quiesced(now)?;
        Ok(BusyGuard::new(&self.transfers))
    }

    /// Refuses turns, learning batches and direct calls from `now` on, whatever is active: the engine is about to be
    /// stopped.
    pub(super) fn force_quiesce(&mut self, now: Duration) {
        self.quiesced_until = Some(now.saturating_add(QUIESCE_DURATION));
    }

    /// Marks a learning batch as active from `now` on.
    pub(super) fn begin_learning(&mut self, now: Duration) -> Result<(), AgentError> {
        self.check_not_quiesced(now)?;
        self.learning = true;
        Ok(())
    }

    /// Marks the learning batch as no longer active.
    pub(super) fn end_learning(&mut self) {
        self.learning = false;
    }

    /// Allows turns to begin and resume again.
    pub(super) fn lift_quiesce(&mut self) {
        self.quiesced_until = None;
    }

    /// Returns an error if the engine is quiesced, so that no turn may begin or resume.
    pub(super) fn check_not_quiesced(&self, now: Duration) -> Result<(), AgentError> {
        match self.quiesced_until {
            Some(deadline) if now < deadline => Err(AgentError::Quiesced),
            _ => Ok(()),
        }
    }
}

/// A turn's entry in the registry, removed on drop.
pub(super) struct Registration {
    registry: TurnRegistry,
    task_id: TaskId,
    turn_id: TurnId,
    opened: watch::Sender<bool>,
    busy_count: BusyCount,
    /// Held while the turn does not wait for its user.
    busy_guard: Option<BusyGuard>,
}

impl Registration {
    /// Marks the turn as recorded: repeated requests may join it.
    pub(super) fn mark_opened(&self) {
        self.opened.send_replace(true);
    }

    /// Marks the turn as waiting for its user.
    pub(super) fn mark_idle(&mut self) {
        self.busy_guard = None;
        self.registry.lock().idle_notify.notify_waiters();
    }

    /// Marks the turn as active, even if it only ends.
    pub(super) fn mark_busy(&mut self) {
        let count = &self.busy_count;
        self.busy_guard.get_or_insert_with(|| BusyGuard::new(count));
    }
}

impl TurnRegistry {
    /// Locks the registry.
    pub(super) fn lock(&self) -> RegistryGuard<'_> {
        self.0.lock()
    }

    /// Waits until no turn is active.
    pub(super) async fn wait_idle(&self) {
        let notify = Arc::clone(&self.lock().idle_notify);
        self.wait_until(&notify, |turns| (turns.active_count() == 0).then_some(())).await;
    }

    /// Waits until `check`, which is about queued messages, returns a value: it is called now, whenever the queue has
    /// changed, and when a turn begins or ends while its task has queued messages.
    pub(super) async fn wait_for_queue<T>(&self, check: impl FnMut(&mut RegistryState) -> Option<T>) -> T {
        let notify = Arc::clone(&self.lock().queue_notify);
        self.wait_until(&notify, check).await
    }

    async fn wait_until<T>(
        &self,
        notify: &Notify,
        mut check: impl FnMut(&mut RegistryState) -> Option<T>,
    ) -> T {
        loop {
            let notified = notify.notified();
            tokio::pin!(notified);
            // Registered before the check, so that a change in between is not missed.
            notified.as_mut().enable();
            if let Some(value) = check(&mut self.lock()) {
                return value;
            }
            notified.await;
        }
    }

    /// Registers the turn of `recorder` as active when it begins or is resumed after a restart.
    pub(super) fn register(
        &self,
        turns: &mut RegistryGuard<'_>,
        recorder: &Recorder,
        idempotency_key: Option<IdempotencyKey>,
        events_after: i64,
    ) -> (Registration, Commands) {
        let (event_log, turn_id) = (Arc::clone(recorder.event_log()), recorder.turn_id());
        let task_id = event_log.task_id().clone();
        let (sender, commands) = mpsc::channel(COMMAND_QUEUE_CAPACITY);
        let (opened, receiver) = watch::channel(false);
        let busy_count = BusyCount::default();
        let busy_guard = Some(BusyGuard::new(&busy_count));
        let handle = TurnHandle {
            turn_id,
            idempotency_key,
            events_after,
            opened: receiver,
            event_log,
            is_interrupted: false,
            busy_count: Arc::clone(&busy_count),
            commands: sender,
        };
        turns.turns.insert(task_id.clone(), handle);
        if turns.queue.holds(&task_id) {
            // Some wait for this task's next turn.
            turns.notify_queue();
        }
        (Registration { registry: self.clone(), task_id, turn_id, opened, busy_count, busy_guard }, commands)
    }

    /// Sends a command to the turn of `task_id` and waits for the outcome: to `turn_id` and never to another one, if it
    /// is given.
    pub(super) async fn send<T>(
        &self,
        task_id: &TaskId,
        turn_id: Option<TurnId>,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, AgentError> {
        let commands = {
            let turns = self.lock();
            let is_meant = |handle: &&TurnHandle| turn_id.is_none_or(|turn_id| handle.turn_id == turn_id);
            let handle = turns.get(task_id).filter(is_meant);
            handle.ok_or(AgentError::NotRunning)?.commands.clone()
        };
        send_command(commands, command).await
    }

    /// Sends the user's answer to the turn of `task_id` and waits for the outcome. From `now` on the turn is
    /// active.
    pub(super) async fn respond(
        &self,
        task_id: &TaskId,
        response: HitlResponse,
        now: Duration,
    ) -> Result<HitlId, AgentError> {
        let (commands, busy_guard) = self.begin_respond(task_id, now)?;
        send_command(commands, |reply| Command::Respond(response, reply, busy_guard)).await
    }

    /// The command channel of a turn that will continue, and a guard that counts it as active.
    fn begin_respond(
        &self,
        task_id: &TaskId,
        now: Duration,
    ) -> Result<(mpsc::Sender<Command>, BusyGuard), AgentError> {
        let turns = self.lock();
        let handle = turns.get(task_id).ok_or(AgentError::NotRunning)?;
        turns.check_not_quiesced(now)?;
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
        // The task's next turn may have begun as soon as this one's end was published.
        if turns.get(&self.task_id).is_some_and(|handle| handle.turn_id == self.turn_id) {
            turns.turns.remove(&self.task_id);
        }
        // The guard is dropped before waiters are notified.
        self.busy_guard = None;
        turns.idle_notify.notify_waiters();
        if turns.queue.holds(&self.task_id) {
            turns.notify_queue();
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/agent/turn_registry.rs"]
mod tests;
