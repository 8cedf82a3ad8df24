//! The agent: turns, begun by requests and taken up again after a restart.

mod aside;
mod asking;
mod attachments;
mod branch;
mod budget;
mod calls;
mod compaction;
mod control;
mod delegate;
mod direct;
mod ending;
mod erasing;
mod error;
mod keeper;
mod kit;
mod learning;
mod life;
mod listing;
mod loaded;
mod loading;
mod memory;
mod model_step;
mod opening;
mod order;
mod people;
mod planning;
mod provenance;
mod recall;
mod reloading;
mod repeats;
mod rewrite;
mod run;
mod running;
mod shorten;
mod skill_runs;
mod skills;
mod skills_told;
mod stream;
mod tasks;
mod taught;
mod telling;
mod thread;
mod transfer;
mod turn;

use std::sync::Arc;
use std::time::Duration;

use contract::engine::{Execute, HitlRespond};
use contract::{HitlId, MessageId, TaskId, TurnId};
use leash::Leash;
use service::clock::Clock;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::assets::Assets;
use crate::brain::steps::Base;
use crate::brain::{Brain, RequestName};
use crate::channel::{Channels, Follow, Reader, Recorder};
use crate::memory_budget::MemoryBudget;
use crate::models::Gateway;
use crate::sabotage::{self, Saboteur};
use crate::skills::Shelf;
use crate::tools::Outputs;
use branch::Branch;
pub use direct::DirectError;
use erasing::Eraser;
pub use error::AgentError;
pub(crate) use kit::{Kit, Kits};
use learning::Learner;
use life::{Life, blocking};
use opening::{Before, Opening};
use order::Order;
use people::Response;
pub use reloading::ReloadError;
pub(crate) use reloading::Reloads;
use running::{Command, Inbox, Registration, Running, Turns};
use stream::Blocks;
pub use tasks::MessagePage;
pub use transfer::Export;
use transfer::Transfers;

/// How many turns may be at work at once. Those that wait for a person are not counted.
const MAX_TURNS_AT_ONCE: usize = 256;
/// How many tools may run at once for all turns together.
const MAX_CALLS_AT_ONCE: usize = 64;
/// How many bytes of text may wait to be stored, over all turns, before no more turns are begun.
const MAX_WAITING_BYTES: usize = 64 * 1024 * 1024;

/// How long what turns have to say at the end may take to be stored.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a turn works with.
pub(crate) struct Means {
    pub(crate) gateway: Arc<Gateway>,
    /// What the catalog gives it.
    pub(crate) kits: Kits,
    pub(crate) clock: Arc<dyn Clock>,
    /// The user's connections to tool servers.
    pub(crate) assets: Assets,
    /// What runs programs, where this machine can.
    pub(crate) leash: Option<Arc<Leash>>,
    /// Where the user's own skills are laid out for programs.
    pub(crate) shelf: Arc<Shelf>,
    /// Where long output of tools goes.
    pub(crate) outputs: Outputs,
    /// What large things may take of the memory.
    pub(crate) memory: MemoryBudget,
    /// Where tools run for turns, of which there is a bounded number at once.
    pub(crate) calls: Arc<Semaphore>,
    /// What calls of models under way may cost.
    pub(crate) set_aside: Arc<budget::SetAside>,
    /// Whether a conversation is shortened when the provider says that it is too long.
    pub(crate) reactive: bool,
    /// How long a person may take to answer.
    pub(crate) hitl_ttl: Duration,
    /// How long the deltas of a turn that has ended are kept.
    pub(crate) replay_ttl: Duration,
    /// How long after one learning batch the next one is due; none where they are only asked for.
    pub(crate) batch_interval: Option<Duration>,
}

impl Means {
    /// The places of tools that run for turns.
    pub(crate) fn calls() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(MAX_CALLS_AT_ONCE))
    }
}

/// See the module.
pub struct Agent {
    brain: Brain,
    channels: Channels,
    means: Arc<Means>,
    places: Arc<Semaphore>,
    /// Exports and imports of what is remembered.
    transfers: Transfers,
    running: Running,
    learner: Learner,
    eraser: Eraser,
    turns: TaskTracker,
    /// Cancelled when the engine stops: no turn is begun, and those at work stop after their step.
    stopping: CancellationToken,
    /// Cancelled when a stop waits for no turn any more.
    stopped: CancellationToken,
}

/// A turn that has its task's channel and is about to be opened.
struct Claimed {
    recorder: Recorder,
    registration: Registration,
    inbox: Inbox,
    reader: Reader,
}

/// What a request to run a turn leads to.
enum Claim {
    /// A turn of its own.
    Begins(Claimed),
    /// The turn that an earlier request of the same name began, once it is open.
    Joins(Reader, watch::Receiver<bool>),
}

impl Agent {
    pub(crate) fn new(brain: Brain, means: Means) -> Self {
        let (means, running, stopping) = (Arc::new(means), Running::default(), CancellationToken::new());
        let learner = Learner::new(brain.clone(), Arc::clone(&means), running.clone(), stopping.clone());
        let eraser = Eraser::new(brain.clone(), Arc::clone(&means), stopping.clone());
        Self {
            channels: Channels::new(brain.clone(), Arc::clone(&means.clock)),
            brain,
            means,
            places: Arc::new(Semaphore::new(MAX_TURNS_AT_ONCE)),
            transfers: Transfers::default(),
            running,
            eraser,
            learner,
            turns: TaskTracker::new(),
            stopping,
            stopped: CancellationToken::new(),
        }
    }

    /// What large things may take of the memory.
    pub(crate) fn memory(&self) -> &MemoryBudget {
        &self.means.memory
    }

    /// The user's connections to tool servers.
    pub(crate) fn assets(&self) -> &Assets {
        &self.means.assets
    }

    /// Begins a turn, or joins the one that an earlier request of the same name began, and reads its events from
    /// the first one on.
    pub async fn execute(&self, request: Execute) -> Result<Reader, AgentError> {
        let order = self.order(request).await?;
        let tasks_kept = self.transfers.keep_tasks().await?;
        let Claimed { recorder, registration, inbox, reader } = loop {
            match self.claim(&order)? {
                Claim::Begins(claimed) => break claimed,
                // One that is never opened is nothing to join: the request is its own then.
                Claim::Joins(reader, mut opened) => {
                    if opened.wait_for(|opened| *opened).await.is_ok() {
                        return Ok(reader);
                    }
                }
            }
        };
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| AgentError::TooManyTurns)?;
        let request = order.request.clone();
        // Who goes back must be told at once where there is nothing to go back to.
        let before = if order.goes_back() { Some(self.branch(&recorder, order.base()).await?) } else { None };
        let (opened, cut) = order.opening(before.as_ref(), self.means.clock.now())?;
        let before = before.map_or(Before::Unread, |branch| Before::Read(Box::new(branch)));
        let life = Life { place: Some(place), ..self.life(recorder, opened.message_id, registration, inbox) };
        let opening = Opening { request, opened, cut, before };

        // The turn goes on by itself from here, also if the caller is gone before it has been answered.
        let (told, begun) = tokio::sync::oneshot::channel();
        let stopped = self.stopped.clone();
        let turn = async move {
            // Not broken off by a stop: a caller who is told that the turn was not begun may send it again.
            let begun = opening.of(life).await;
            drop(tasks_kept);
            let (outcome, life) = match begun {
                Ok(life) => (Ok(()), Some(life)),
                Err(error) => (Err(error), None),
            };
            // The caller may have hung up.
            let _ = told.send(outcome);
            if let Some((life, thread)) = life {
                until(stopped, Box::pin(life.begin(thread))).await;
            }
        };
        // What the turn logs names the request that began it.
        self.turns.spawn(turn.in_current_span());
        match begun.await {
            Ok(outcome) => outcome?,
            // The runtime is shutting down.
            Err(_) => return Err(AgentError::Stopping),
        }
        Ok(reader)
    }

    /// Takes the task's channel for a turn, or finds the turn that the request has begun already.
    fn claim(&self, order: &Order) -> Result<Claim, AgentError> {
        let mut turns = self.running.turns();
        if let Some(request) = &order.request
            && let Some(joins) = self.join(&turns, &order.task_id, request)?
        {
            return Ok(joins);
        }
        if self.stopping.is_cancelled() {
            return Err(AgentError::Stopping);
        }
        turns.admit(self.means.clock.monotonic())?;
        if self.channels.waiting_bytes() > MAX_WAITING_BYTES {
            return Err(AgentError::TooMuchWaiting);
        }
        let channel = if order.goes_back() {
            self.channels.existing(&order.task_id)?.ok_or(AgentError::UnknownTask)?
        } else {
            self.channels.open(&order.task_id)?
        };
        let turn_id = TurnId::new();
        let recorder = channel.begin(turn_id).map_err(|_| AgentError::Busy)?;
        let after = recorder.last_ts();
        let reader = channel.read(after, Follow::Turn(turn_id));
        let (registration, inbox) =
            self.running.register(&mut turns, &recorder, order.request.clone(), after);
        Ok(Claim::Begins(Claimed { recorder, registration, inbox, reader }))
    }

    /// Reads the turn that the request called `request` has begun on the task, if it has.
    fn join(
        &self,
        turns: &Turns<'_>,
        task_id: &TaskId,
        request: &RequestName,
    ) -> Result<Option<Claim>, AgentError> {
        let at_work = turns.get(task_id).and_then(|handle| {
            let named = handle.request.as_ref().filter(|named| named.id == request.id)?;
            Some((named.hash.clone(), handle.turn_id, handle.after, handle.opened.clone()))
        });
        let (hash, turn_id, after, opened) = match at_work {
            Some(found) => found,
            None => match self.brain.requested_turn(task_id, &request.id)? {
                Some(turn) if turn.in_force => {
                    (turn.hash, turn.turn_id, turn.opened_ts - 1, watch::channel(true).1)
                }
                Some(_) => {
                    let message = "`client_request_id`: the turn that it began was taken out by an edit";
                    return Err(AgentError::UnknownMessage(message.into()));
                }
                None => return Ok(None),
            },
        };
        if hash != request.hash {
            let message = "`client_request_id`: was used for another request; take a new one for this";
            return Err(AgentError::Invalid(message.into()));
        }
        let channel = self.channels.open(task_id)?;
        Ok(Some(Claim::Joins(channel.read(after, Follow::Turn(turn_id)), opened)))
    }

    /// Checks a request. What is attached may be large, and is looked at where that holds nobody up.
    async fn order(&self, request: Execute) -> Result<Order, AgentError> {
        let model = self.means.gateway.model().ok();
        if request.media.is_empty() {
            return Order::parse(request, model.as_deref());
        }
        let parse = move || Order::parse(request, model.as_deref());
        blocking(parse).await.unwrap_or(Err(AgentError::Stopping))
    }

    /// Reads the conversation of a task between two turns, the next of which goes on from `base`.
    async fn branch(&self, recorder: &Recorder, base: Base) -> Result<Branch, AgentError> {
        let task = recorder.channel().task();
        match self.brain.opening(move |brain| loading::load_ended(brain, task, base)).await {
            Some(branch) => Ok(branch?),
            None => Err(AgentError::Stopping),
        }
    }

    fn life(
        &self,
        recorder: Recorder,
        message_id: MessageId,
        registration: Registration,
        inbox: Inbox,
    ) -> Life {
        Life {
            recorder,
            message_id,
            brain: self.brain.clone(),
            kit: self.means.kits.current(),
            means: Arc::clone(&self.means),
            inbox,
            stopping: self.stopping.clone(),
            places: Arc::clone(&self.places),
            place: None,
            blocks: Blocks::default(),
            agent_blocks: Blocks::default(),
            stranded: 0,
            patient_until: None,
            registration,
        }
    }

    /// Cancels the turn that runs on a task, or waits there for a person.
    pub async fn cancel(&self, task_id: &TaskId) -> Result<TurnId, AgentError> {
        self.tell(task_id, Command::Cancel).await
    }

    /// Hands the turn that runs on a task a message from the user.
    pub async fn steer(&self, task_id: &TaskId, message: String) -> Result<MessageId, AgentError> {
        if message.trim().is_empty() {
            return Err(AgentError::Invalid("`message`: must not be empty or blank".into()));
        }
        self.tell(task_id, |reply| Command::Steer(message, reply)).await
    }

    /// Answers what waits for a person on a task.
    pub async fn respond(&self, respond: HitlRespond) -> Result<HitlId, AgentError> {
        let task_id = respond.task_id.clone();
        let response = Response::to(self.brain.pending_of(&task_id)?, respond);
        let outcome = match response {
            Ok(response) => {
                let now = self.means.clock.monotonic();
                self.reached(&task_id, self.running.answer(&task_id, response, now).await)
            }
            Err(error) => Err(error),
        };
        match outcome {
            Err(AgentError::NotPending) if sabotage::by(Saboteur::AnswerTwice) => Ok(HitlId::new()),
            Err(AgentError::NotRunning | AgentError::UnknownTask) => Err(AgentError::NotPending),
            outcome => outcome,
        }
    }

    async fn tell<T>(
        &self,
        task_id: &TaskId,
        command: impl FnOnce(running::Reply<T>) -> Command,
    ) -> Result<T, AgentError> {
        self.reached(task_id, self.running.tell(task_id, command).await)
    }

    /// The outcome of what the turn of a task was told, and why there was none to tell.
    fn reached<T>(&self, task_id: &TaskId, outcome: Result<T, AgentError>) -> Result<T, AgentError> {
        match outcome {
            Err(AgentError::NotRunning) if self.brain.task(task_id)?.is_none() => {
                Err(AgentError::UnknownTask)
            }
            Err(AgentError::NotRunning) if self.stopping.is_cancelled() => Err(AgentError::Stopping),
            outcome => outcome,
        }
    }

    /// Reads the events of `task_id` (by default the task that ran last) after `after`.
    pub fn replay(&self, task_id: Option<TaskId>, after: i64) -> Result<Reader, AgentError> {
        let task_id = match task_id {
            Some(task_id) => task_id,
            None => self.brain.last_task()?.ok_or(AgentError::UnknownTask)?,
        };
        let channel = self.channels.existing(&task_id)?.ok_or(AgentError::UnknownTask)?;
        Ok(channel.read(after, Follow::Task))
    }

    /// Takes up the turns and the learning batch that an earlier run of the engine left open, and begins to keep house.
    pub fn resume(&self) -> Result<(), rusqlite::Error> {
        for turn in self.brain.open_turns()? {
            let channel = self.channels.open(&turn.task_id)?;
            let Ok(recorder) = channel.begin(turn.turn_id) else {
                // Opening a turn gives up one that was left open, so a second one is nobody's doing.
                tracing::error!(turn.id = %turn.turn_id, "Two turns of one task are open.");
                continue;
            };
            let (registration, inbox) = self.running.register(
                &mut self.running.turns(),
                &recorder,
                turn.request.clone(),
                turn.opened_ts - 1,
            );
            let life = self.life(recorder, turn.message_id, registration, inbox);
            self.turns.spawn(until(self.stopped.clone(), life.take_up(turn)));
        }
        for warning in self.skills_at_hand().shadowed() {
            tracing::warn!(warning, "A skill of the catalog is not used.");
        }
        let keeper = keeper::keep(self.brain.clone(), self.means.clock.clone(), self.means.replay_ttl);
        self.turns.spawn(until(self.stopping.clone(), keeper));
        self.turns.spawn(self.eraser.clone().run());
        self.learner.expect_batch()?;
        self.turns.spawn(until(self.stopped.clone(), self.learner.clone().live()));
        Ok(())
    }

    /// Stops: new turns are refused, and those at work have until `deadline` to come to the end of their step.
    /// They go on at the next start. Streams end then.
    pub async fn stop(&self, deadline: Duration) {
        self.stopping.cancel();
        self.turns.close();
        if tokio::time::timeout(deadline, self.turns.wait()).await.is_err() {
            tracing::info!(turns = self.turns.len(), "Turns are broken off in the middle of a step.");
            self.stopped.cancel();
            // What is still being stored is not broken off.
            if tokio::time::timeout(LAST_WORDS, self.turns.wait()).await.is_err() {
                tracing::warn!(turns = self.turns.len(), "The brain did not keep up with the end of turns.");
            }
        }
        self.stopped.cancel();
    }

    /// Cancelled when all turns have stopped: streams end with it.
    pub fn stopped(&self) -> &CancellationToken {
        &self.stopped
    }
}

/// Runs `work` until it ends or `over` is cancelled. Dropped at any await, a turn is as its journal says, and goes
/// on from there at the next start.
async fn until(over: CancellationToken, work: impl Future<Output = ()>) {
    tokio::select! {
        () = over.cancelled() => {}
        () = work => {}
    }
}

#[cfg(test)]
#[path = "agent/batches_tests.rs"]
mod batches_tests;
#[cfg(test)]
#[path = "agent/control_tests.rs"]
mod control_tests;
#[cfg(test)]
#[path = "agent/gateway_tests.rs"]
mod gateway_tests;
#[cfg(test)]
#[path = "agent/learning_tests.rs"]
pub(crate) mod learning_tests;
#[cfg(test)]
#[path = "agent/programs_tests.rs"]
mod programs_tests;
#[cfg(test)]
#[path = "agent/provider_tests.rs"]
mod provider_tests;
#[cfg(test)]
#[path = "agent/recall_tests.rs"]
pub(crate) mod recall_tests;
#[cfg(test)]
#[path = "agent/resume_tests.rs"]
mod resume_tests;
#[cfg(test)]
#[path = "agent/rig.rs"]
pub(crate) mod rig;
#[cfg(test)]
#[path = "agent/tests.rs"]
mod tests;
