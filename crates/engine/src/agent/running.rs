//! The turns that run or wait, and how to reach them.
//!
//! A turn is one task that owns its journal. Whatever is to happen to it from outside is a command that it takes
//! when it next waits for something, so that all of it has one order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use contract::{HitlId, MessageId, TaskId, TurnId};
use tokio::sync::{mpsc, oneshot, watch};

use super::AgentError;
use super::people::Response;
use crate::brain::{RequestName, WriteError};

/// How many commands may wait for a turn. Each is one person's doing.
const COMMANDS: usize = 32;

/// What a running turn can be told.
pub(super) enum Command {
    /// To end.
    Cancel(Reply<TurnId>),
    /// Something from the user, for the model.
    Steer(String, Reply<MessageId>),
    /// A person's answer.
    Respond(Response, Reply<HitlId>),
}

impl Command {
    /// The turn cannot do it: the brain cannot be written.
    pub(super) fn refuse(self) {
        let unwritable =
            || AgentError::Write(WriteError { reason: "it could not be, and is being tried".into() });
        // Who asked may have gone.
        match self {
            Self::Cancel(reply) => drop(reply.send(Err(unwritable()))),
            Self::Steer(_, reply) => drop(reply.send(Err(unwritable()))),
            Self::Respond(_, reply) => drop(reply.send(Err(unwritable()))),
        }
    }
}

/// Where the outcome of a command goes. Dropped, it says that the turn is over.
pub(super) type Reply<T> = oneshot::Sender<Result<T, AgentError>>;

/// The commands of one turn.
pub(super) type Inbox = mpsc::Receiver<Command>;

/// How to reach a turn.
#[derive(Clone)]
pub(super) struct Handle {
    /// The turn.
    pub(super) turn_id: TurnId,
    /// The request that began it, where the caller named it.
    pub(super) request: Option<RequestName>,
    /// The `ts` after which its events come.
    pub(super) after: i64,
    /// Whether it is open. Closed before that, it never will be.
    pub(super) opened: watch::Receiver<bool>,
    commands: mpsc::Sender<Command>,
}

/// See the module.
#[derive(Clone, Default)]
pub(super) struct Running(Arc<Mutex<HashMap<TaskId, Handle>>>);

/// The turns, held still: while one looks nobody begins or ends a turn.
pub(super) type Turns<'a> = MutexGuard<'a, HashMap<TaskId, Handle>>;

/// A turn's place among those that run. Dropped, it is free.
pub(super) struct Registration {
    running: Running,
    task_id: TaskId,
    turn_id: TurnId,
    opened: watch::Sender<bool>,
}

impl Registration {
    /// The turn is on record: who asked for the same one may join it.
    pub(super) fn opened(&self) {
        self.opened.send_replace(true);
    }
}

impl Running {
    /// Looks at the turns.
    pub(super) fn turns(&self) -> Turns<'_> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn begins. The caller holds its task's channel, so there is no other one.
    pub(super) fn register(
        &self,
        turns: &mut Turns<'_>,
        task_id: &TaskId,
        turn_id: TurnId,
        request: Option<RequestName>,
        after: i64,
    ) -> (Registration, Inbox) {
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let (opened, receiver) = watch::channel(false);
        turns.insert(task_id.clone(), Handle { turn_id, request, after, opened: receiver, commands });
        (Registration { running: self.clone(), task_id: task_id.clone(), turn_id, opened }, inbox)
    }

    /// Tells the turn of `task_id` something, and waits for the outcome.
    pub(super) async fn tell<T>(
        &self,
        task_id: &TaskId,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, AgentError> {
        let handle = self.turns().get(task_id).cloned().ok_or(AgentError::NotRunning)?;
        let (reply, outcome) = oneshot::channel();
        handle.commands.send(command(reply)).await.map_err(|_| AgentError::NotRunning)?;
        outcome.await.unwrap_or(Err(AgentError::NotRunning))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut turns = self.running.turns();
        // The next turn of the task may have begun as soon as this one's end was published.
        if turns.get(&self.task_id).is_some_and(|handle| handle.turn_id == self.turn_id) {
            turns.remove(&self.task_id);
        }
    }
}
