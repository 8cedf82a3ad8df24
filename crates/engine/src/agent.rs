//! The agent: turns, begun by requests and taken up again after a restart.

mod run;
mod stream;
mod telling;
mod thread;

use std::sync::Arc;
use std::time::Duration;

use contract::engine::Execute;
use contract::event::{Event, Failure, FailureCode, Lifecycle};
use contract::{MessageId, TaskId, TurnId};
use service::clock::Clock;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::brain::steps::{Step, TurnOptions};
use crate::brain::{BlockCounts, Brain, OpenTurn, WriteError};
use crate::channel::{Channels, Follow, Reader, Record, Recorder};
use crate::models::Gateway;
use crate::tools::Toolbox;
use run::{Told, TurnRun};
use stream::{Blocks, block_stop};
use telling::Telling;
use thread::{LoadError, Thread};

/// The most model calls of a turn where the request does not say.
const DEFAULT_MAX_TURNS: u64 = 50;
/// How many turns may run at once.
const MAX_TURNS_AT_ONCE: usize = 256;
/// How many starts of the engine may take a turn up without it getting on.
const RESUME_LIMIT: u32 = 8;

/// What a turn works with.
pub(crate) struct Means {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) toolbox: Toolbox,
    pub(crate) clock: Arc<dyn Clock>,
    /// Who the agent is: the first thing that every model is told.
    pub(crate) soul: String,
}

/// See the module.
pub struct Agent {
    brain: Brain,
    channels: Channels,
    means: Arc<Means>,
    places: Arc<Semaphore>,
    turns: TaskTracker,
    stopping: CancellationToken,
}

/// Why a turn was not begun.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// The request asks for something that cannot be.
    #[error("{0}")]
    Invalid(String),
    /// Another turn runs on the task.
    #[error("another turn is running on this task")]
    Busy,
    /// Too many turns run at once.
    #[error("{MAX_TURNS_AT_ONCE} turns are running, and more cannot")]
    Overloaded,
    /// The engine is stopping.
    #[error("the engine is stopping")]
    Stopping,
    /// The brain could not be read.
    #[error("the brain could not be read")]
    Read(#[from] rusqlite::Error),
    /// The brain could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Why nothing can be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// There is no such task, or none at all yet.
    #[error("there is no such task")]
    UnknownTask,
    /// The brain could not be read.
    #[error("the brain could not be read")]
    Read(#[from] rusqlite::Error),
}

impl Agent {
    pub(crate) fn new(brain: Brain, means: Means) -> Self {
        Self {
            channels: Channels::new(brain.clone(), Arc::clone(&means.clock)),
            brain,
            means: Arc::new(means),
            places: Arc::new(Semaphore::new(MAX_TURNS_AT_ONCE)),
            turns: TaskTracker::new(),
            stopping: CancellationToken::new(),
        }
    }

    /// Begins a turn, and reads its events from the first one on.
    pub async fn execute(&self, request: Execute) -> Result<Reader, ExecuteError> {
        let options = checked(&request)?;
        if self.stopping.is_cancelled() {
            return Err(ExecuteError::Stopping);
        }
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| ExecuteError::Overloaded)?;
        let channel = self.channels.open(&request.task_id)?;
        let turn_id = TurnId::new();
        let recorder = channel.begin(turn_id).map_err(|_| ExecuteError::Busy)?;
        let reader = channel.read(recorder.last_ts(), Follow::Turn(turn_id));

        let message_id = MessageId::new();
        let opened = Step::Opened { message_id, message: request.message, options };
        let started = Event::ThreadLifecycle(Lifecycle::Started { message_id });
        // The turn goes on by itself from here, also if the caller is gone before it has been answered.
        let (told, begun) = tokio::sync::oneshot::channel();
        let (brain, means) = (self.brain.clone(), Arc::clone(&self.means));
        let stopping = self.stopping.clone();
        let turn = async move {
            // Not broken off by a stop: a caller who is told that the turn was not begun may send it again.
            let committed =
                recorder.commit(Record::new().begin(message_id).step(opened).event(started)).await;
            let begun = committed.is_ok();
            // The caller may have hung up.
            let _ = told.send(committed);
            if begun {
                until(stopping, go(brain, recorder, means, message_id)).await;
            }
            drop(place);
        };
        // What the turn logs names the request that began it.
        self.turns.spawn(turn.in_current_span());
        match begun.await {
            Ok(committed) => committed?,
            // The runtime is shutting down.
            Err(_) => return Err(ExecuteError::Stopping),
        }
        Ok(reader)
    }

    /// Reads the events of `task_id` (by default the task that ran last) after `after`.
    pub fn replay(&self, task_id: Option<TaskId>, after: i64) -> Result<Reader, ReplayError> {
        let task_id = match task_id {
            Some(task_id) => task_id,
            None => self.brain.last_task()?.ok_or(ReplayError::UnknownTask)?,
        };
        let channel = self.channels.existing(&task_id)?.ok_or(ReplayError::UnknownTask)?;
        Ok(channel.read(after, Follow::Task))
    }

    /// Takes up the turns that an earlier run of the engine left open.
    pub fn resume(&self) -> Result<(), rusqlite::Error> {
        for turn in self.brain.open_turns()? {
            let channel = self.channels.open(&turn.task_id)?;
            let Ok(recorder) = channel.begin(turn.turn_id) else {
                // Opening a turn gives up one that was left open, so a second one is nobody's doing.
                tracing::error!(turn.id = %turn.turn_id, "Two turns of one task are open.");
                continue;
            };
            let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
                tracing::error!(turn.id = %turn.turn_id, "Too many turns are open; this one waits for the next start.");
                continue;
            };
            let taken_up = take_up(self.brain.clone(), recorder, Arc::clone(&self.means), turn);
            let stopping = self.stopping.clone();
            self.turns.spawn(async move {
                until(stopping, taken_up).await;
                drop(place);
            });
        }
        Ok(())
    }

    /// Stops all turns where they are; they go on at the next start. New ones are refused.
    pub async fn stop(&self, deadline: Duration) {
        self.stopping.cancel();
        self.turns.close();
        if tokio::time::timeout(deadline, self.turns.wait()).await.is_err() {
            tracing::warn!(turns = self.turns.len(), "Turns did not stop in time.");
        }
    }

    /// Cancelled when the engine stops: streams end with it.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }
}

fn checked(request: &Execute) -> Result<TurnOptions, ExecuteError> {
    let invalid = |message: &str| Err(ExecuteError::Invalid(message.to_owned()));
    // Providers refuse a blank text, and would refuse every later turn that has it in its history.
    if request.message.trim().is_empty() {
        return invalid("`message`: must not be empty or blank");
    }
    // Named, so that no client believes that its edit, retry or picture was heeded.
    if request.edit_message_id.is_some() {
        return invalid("`edit_message_id`: this engine version cannot edit messages");
    }
    if request.retry_message_id.is_some() {
        return invalid("`retry_message_id`: this engine version cannot retry messages");
    }
    if !request.media.is_empty() {
        return invalid("`media`: this engine version takes no media");
    }
    let max_turns =
        request.max_turns.and_then(|max| u64::try_from(max.get()).ok()).unwrap_or(DEFAULT_MAX_TURNS);
    Ok(TurnOptions { max_turns, super_thinking: request.super_thinking })
}

/// Runs a turn until it ends or the engine stops. Dropped at any await, a turn is as its journal says, and goes
/// on from there at the next start.
async fn until(stopping: CancellationToken, turn: impl Future<Output = ()>) {
    tokio::select! {
        () = stopping.cancelled() => {}
        () = turn => {}
    }
}

/// Runs a turn that was just opened.
async fn go(brain: Brain, recorder: Recorder, means: Arc<Means>, message_id: MessageId) {
    let (task, turn_id) = (recorder.channel().task(), recorder.turn_id());
    match blocking(move || Thread::load(&brain, task, turn_id)).await {
        None => {}
        Some(Ok(thread)) => TurnRun::new(recorder, means, thread, Told::default()).run().await,
        Some(Err(error)) => {
            tracing::error!(%error, turn.id = %recorder.turn_id(), "A turn's journal could not be read.");
            run::end_errored(&recorder, message_id, None, run::unexpected()).await;
        }
    }
}

/// Goes on with a turn after a restart.
async fn take_up(brain: Brain, recorder: Recorder, means: Arc<Means>, turn: OpenTurn) {
    // On record, and judged, before the journal is read: reading it may be what kills the engine.
    if let Err(error) = recorder.commit(Record::new().start()).await {
        tracing::error!(%error, turn.id = %turn.turn_id, "A turn could not be taken up.");
        return;
    }
    let turn_id = turn.turn_id;
    if turn.starts >= RESUME_LIMIT {
        let message =
            format!("{RESUME_LIMIT} starts of the engine took this turn up and none got on with it");
        let failure = Failure { code: FailureCode::ResumeLimit, message, retryable: false };
        let task = recorder.channel().task();
        let counts = blocking(move || brain.block_counts(task, turn_id)).await;
        let open_block = counts.and_then(Result::ok).and_then(BlockCounts::open);
        return run::end_errored(&recorder, turn.message_id, open_block.map(block_stop), failure).await;
    }
    match blocking(move || interrupted(&brain, recorder, means, &turn)).await {
        Some(Ok(run)) => run.resume().await,
        Some(Err(error)) => {
            tracing::error!(%error, turn.id = %turn_id, "A turn's journal could not be read.");
        }
        None => {}
    }
}

/// Runs what reads much where it may block; none if the runtime is shutting down.
async fn blocking<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(read).await.ok()
}

/// A turn as it was when the engine stopped.
fn interrupted(
    brain: &Brain,
    recorder: Recorder,
    means: Arc<Means>,
    turn: &OpenTurn,
) -> Result<TurnRun, LoadError> {
    let task = recorder.channel().task();
    let thread = Thread::load(brain, task, turn.turn_id)?;
    // What was told after the last step on record belongs to a model call that is made anew.
    let telling = Telling::of_events(brain.all_events_after(task, thread.turn().step_ts())?);
    let blocks = Blocks::after(brain.block_counts(task, turn.turn_id)?.started, telling.open_block());
    Ok(TurnRun::new(recorder, means, thread, Told { blocks, telling, starts: turn.starts + 1 }))
}

#[cfg(test)]
#[path = "agent/provider_tests.rs"]
mod provider_tests;
#[cfg(test)]
#[path = "agent/resume_tests.rs"]
mod resume_tests;
#[cfg(test)]
#[path = "agent/rig.rs"]
mod rig;
#[cfg(test)]
#[path = "agent/tests.rs"]
mod tests;
