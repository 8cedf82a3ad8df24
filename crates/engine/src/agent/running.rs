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
use super::direct::MAX_AT_ONCE;
use super::people::Response;
use crate::brain::{RequestName, WriteError};
use crate::channel::{Recorder, TaskChannel};

/// How many commands may wait for a turn. Each is one person's doing.
const COMMANDS: usize = 32;
/// How long the engine stays quiesced, unless that is lifted. Whoever asked for it has stopped the engine by then.
const QUIESCED: Duration = Duration::from_mins(1);

/// What a running turn can be told.
pub(super) enum Command {
    /// To end.
    Cancel(Reply<TurnId>),
    /// Something from the user, for the model.
    Steer(String, Reply<MessageId>),
    /// A person's answer. On its way it counts as work, since the turn goes on by it.
    Respond(Response, Reply<HitlId>, AtWork),
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
pub(super) struct Handle {
    /// The turn.
    pub(super) turn_id: TurnId,
    /// The request that began it, where the caller named it.
    pub(super) request: Option<RequestName>,
    /// The `ts` after which its events come.
    pub(super) after: i64,
    /// Whether it is open. Closed before that, it never will be.
    pub(super) opened: watch::Receiver<bool>,
    channel: Arc<TaskChannel>,
    work: Work,
    commands: mpsc::Sender<Command>,
}

/// For how many reasons something counts as being at work.
type Work = Arc<AtomicUsize>;

/// A reason to count a turn, or the engine beside all turns, as being at work, for as long as it is held.
pub(super) struct AtWork(Work);

impl AtWork {
    fn of(work: &Work) -> Self {
        work.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(work))
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// See the module.
#[derive(Clone, Default)]
pub(super) struct Running(Arc<Mutex<Table>>);

/// The turns, by their tasks.
#[derive(Default)]
pub(super) struct Table {
    turns: HashMap<TaskId, Handle>,
    /// Until when, by the monotonic clock, no turn may begin or go on.
    quiesced_until: Option<Duration>,
    /// Whether a learning batch is at work: not while it waits for its model.
    learning: bool,
    /// How many tools and skills are run without a turn.
    direct: Work,
    /// Told whenever a turn may have ceased to be at work.
    calm: Arc<Notify>,
}

/// The turns, held still: while one looks nobody begins or ends a turn.
pub(super) type Turns<'a> = MutexGuard<'a, Table>;

impl Table {
    /// The turn of a task.
    pub(super) fn get(&self, task_id: &TaskId) -> Option<&Handle> {
        self.turns.get(task_id)
    }

    /// Whether a turn has not ended, at work or not.
    pub(super) fn any_open(&self) -> bool {
        self.turns.values().any(|handle| handle.channel.is_held_by(handle.turn_id))
    }

    /// How many turns there are, at work or not.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }

    /// How many turns are at work: not those that wait for a person, nor those whose end clients have seen.
    pub(super) fn at_work(&self) -> usize {
        let at_work = |handle: &&Handle| {
            handle.work.load(Ordering::Acquire) > 0 && handle.channel.is_held_by(handle.turn_id)
        };
        self.turns.values().filter(at_work).count()
    }

    /// From `now` on no turn, no learning batch and no call without a turn begins or goes on, unless one is at work;
    /// whether that is so.
    pub(super) fn quiesce(&mut self, now: Duration) -> bool {
        let idle = self.at_work() == 0 && !self.learning && self.direct.load(Ordering::Acquire) == 0;
        if idle {
            self.quiesced_until = Some(now.saturating_add(QUIESCED));
        }
        idle
    }

    /// A tool or a skill is run without a turn from `now` on. It keeps the engine from being quiesced, and counts as
    /// no turn.
    pub(super) fn call(&mut self, now: Duration) -> Result<AtWork, AgentError> {
        self.admit(now)?;
        // Nobody else begins one: the table is held.
        if self.direct.load(Ordering::Acquire) >= MAX_AT_ONCE {
            return Err(AgentError::TooManyCalls);
        }
        Ok(AtWork::of(&self.direct))
    }

    /// A learning batch is at work from `now` on.
    pub(super) fn learn(&mut self, now: Duration) -> Result<(), AgentError> {
        self.admit(now)?;
        self.learning = true;
        Ok(())
    }

    /// No learning batch is at work any more.
    pub(super) fn learn_no_more(&mut self) {
        self.learning = false;
    }

    /// Turns may begin and go on.
    pub(super) fn lift(&mut self) {
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
    running: Running,
    task_id: TaskId,
    turn_id: TurnId,
    opened: watch::Sender<bool>,
    work: Work,
    /// Held while the turn does not wait for a person.
    at_work: Option<AtWork>,
}

impl Registration {
    /// The turn is on record: who asked for the same one may join it.
    pub(super) fn opened(&self) {
        self.opened.send_replace(true);
    }

    /// The turn waits for a person.
    pub(super) fn rest(&mut self) {
        self.at_work = None;
        self.running.turns().calm.notify_waiters();
    }

    /// The turn does something, if only to end.
    pub(super) fn work(&mut self) {
        let work = &self.work;
        self.at_work.get_or_insert_with(|| AtWork::of(work));
    }
}

impl Running {
    /// Looks at the turns.
    pub(super) fn turns(&self) -> Turns<'_> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no turn is at work.
    pub(super) async fn calm(&self) {
        loop {
            let calm = Arc::clone(&self.turns().calm);
            let told = calm.notified();
            tokio::pin!(told);
            // Registered before the look at the turns: an end in between is not missed.
            told.as_mut().enable();
            if self.turns().at_work() == 0 {
                return;
            }
            told.await;
        }
    }

    /// The turn of `recorder` begins, or goes on after a restart: it is at work.
    pub(super) fn register(
        &self,
        turns: &mut Turns<'_>,
        recorder: &Recorder,
        request: Option<RequestName>,
        after: i64,
    ) -> (Registration, Inbox) {
        let (channel, turn_id) = (Arc::clone(recorder.channel()), recorder.turn_id());
        let task_id = channel.task_id().clone();
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let (opened, receiver) = watch::channel(false);
        let work = Work::default();
        let at_work = Some(AtWork::of(&work));
        let handle =
            Handle { turn_id, request, after, opened: receiver, channel, work: Arc::clone(&work), commands };
        turns.turns.insert(task_id.clone(), handle);
        (Registration { running: self.clone(), task_id, turn_id, opened, work, at_work }, inbox)
    }

    /// Tells the turn of `task_id` something, and waits for the outcome.
    pub(super) async fn tell<T>(
        &self,
        task_id: &TaskId,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, AgentError> {
        let commands = self.turns().get(task_id).ok_or(AgentError::NotRunning)?.commands.clone();
        hand_over(commands, command).await
    }

    /// Hands the turn of `task_id` a person's answer, and waits for the outcome. From `now` on the turn is at work.
    pub(super) async fn answer(
        &self,
        task_id: &TaskId,
        response: Response,
        now: Duration,
    ) -> Result<HitlId, AgentError> {
        let (commands, at_work) = self.going_on(task_id, now)?;
        hand_over(commands, |reply| Command::Respond(response, reply, at_work)).await
    }

    /// The way to a turn that goes on, and the reason to count it as one at work.
    fn going_on(
        &self,
        task_id: &TaskId,
        now: Duration,
    ) -> Result<(mpsc::Sender<Command>, AtWork), AgentError> {
        let turns = self.turns();
        let handle = turns.get(task_id).ok_or(AgentError::NotRunning)?;
        turns.admit(now)?;
        Ok((handle.commands.clone(), AtWork::of(&handle.work)))
    }
}

async fn hand_over<T>(
    commands: mpsc::Sender<Command>,
    command: impl FnOnce(Reply<T>) -> Command,
) -> Result<T, AgentError> {
    let (reply, outcome) = oneshot::channel();
    commands.send(command(reply)).await.map_err(|_| AgentError::NotRunning)?;
    outcome.await.unwrap_or(Err(AgentError::NotRunning))
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut turns = self.running.turns();
        // The next turn of the task may have begun as soon as this one's end was published.
        if turns.get(&self.task_id).is_some_and(|handle| handle.turn_id == self.turn_id) {
            turns.turns.remove(&self.task_id);
        }
        // Its own reason to count as one at work is dropped with it.
        self.at_work = None;
        turns.calm.notify_waiters();
    }
}

#[cfg(test)]
#[path = "running_tests.rs"]
mod tests;
