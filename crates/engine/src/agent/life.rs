//! A turn's life: begun or taken up, at work, at rest while a person is needed, and at work again.

use std::sync::Arc;
use std::time::Duration;

use contract::event::{Event, Failure, FailureCode, HitlKind, HitlRequest, Lifecycle};
use contract::{HitlId, Timestamp, TurnId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::people::Resting;
use super::run::TurnRun;
use super::running::{Inbox, Registration};
use super::stream::{Blocks, block_stop};
use super::telling::Telling;
use super::thread::{LoadError, Thread};
use super::{Means, ending};
use crate::brain::{Brain, OpenTurn};
use crate::channel::{Record, Recorder};
use crate::sabotage::{self, Saboteur};

/// How many starts of the engine may take a turn up without it getting on.
const RESUME_LIMIT: u32 = 8;

/// What a turn has from its beginning to its end, at work and at rest.
pub(super) struct Life {
    pub(super) recorder: Recorder,
    pub(super) brain: Brain,
    pub(super) means: Arc<Means>,
    pub(super) inbox: Inbox,
    /// Cancelled when the engine stops.
    pub(super) stopping: CancellationToken,
    /// The places of turns at work, of which there is a bounded number.
    pub(super) places: Arc<Semaphore>,
    /// This turn's place; none while it rests.
    pub(super) place: Option<OwnedSemaphorePermit>,
    /// The blocks of its stream.
    pub(super) blocks: Blocks,
    /// When the person was asked for whom it waits.
    pub(super) asked_at: Option<Timestamp>,
    /// Makes it known to those who want to tell it something.
    pub(super) _registration: Registration,
}

impl Life {
    /// The turn.
    pub(super) fn turn_id(&self) -> TurnId {
        self.recorder.turn_id()
    }

    /// A request for a person, which is shown now.
    pub(super) fn request(
        &mut self,
        request_id: HitlId,
        kind: HitlKind,
        question: String,
        options: Option<Vec<String>>,
    ) -> HitlRequest {
        let created_at = self.means.clock.now();
        self.asked_at = Some(created_at);
        let task_id = self.recorder.channel().task_id().clone();
        HitlRequest { request_id, task_id, kind, question, created_at, options }
    }

    /// How long the person may still take.
    pub(super) fn patience(&self) -> Duration {
        let now = self.means.clock.now().unix_ms();
        let waited = self.asked_at.map_or(0, |asked_at| now.saturating_sub(asked_at.unix_ms()));
        self.means.hitl_ttl.saturating_sub(Duration::from_millis(u64::try_from(waited).unwrap_or(0)))
    }

    /// Runs a turn that was just opened; `thread` where it has been read.
    pub(super) async fn begin(self, thread: Option<Thread>) {
        match thread {
            Some(thread) => live(Some(TurnRun::new(self, thread, Telling::default(), 0))).await,
            None => live(self.load().await).await,
        }
    }

    /// Goes on with a turn after a restart of the engine.
    pub(super) async fn take_up(mut self, turn: OpenTurn) {
        if let Some(pending) = turn.pending {
            self.asked_at = Some(pending.created_at);
            return live(self.rest().wait().await).await;
        }
        // On record, and judged, before the journal is read: reading it may be what kills the engine.
        if !sabotage::by(Saboteur::ForgetStarts)
            && let Err(error) = self.recorder.commit(Record::new().start()).await
        {
            tracing::error!(%error, turn.id = %turn.turn_id, "A turn could not be taken up.");
            return;
        }
        if turn.starts >= RESUME_LIMIT {
            return self.give_up(turn).await;
        }
        let Some(run) = self.load_after(turn.starts + 1).await else { return };
        let resumed = Event::ThreadLifecycle(Lifecycle::Resumed { message_id: turn.message_id });
        match run.life.recorder.commit(Record::new().event(resumed)).await {
            Ok(()) => live(Some(run)).await,
            Err(error) => {
                tracing::error!(%error, turn.id = %turn.turn_id, "A turn could not be taken up.");
            }
        }
    }

    /// Ends a turn that kills the engine, or never gets on. Its journal is not read.
    async fn give_up(self, turn: OpenTurn) {
        let message =
            format!("{RESUME_LIMIT} starts of the engine took this turn up and none got on with it");
        let failure = Failure { code: FailureCode::ResumeLimit, message, retryable: false };
        let (brain, task) = (self.brain.clone(), self.recorder.channel().task());
        let told = move || {
            let open = brain.block_counts(task, turn.turn_id)?.open();
            let calls = brain.open_calls(task, turn.turn_id)?;
            let results = calls.into_iter().map(|(call_id, tool)| ending::without_result(call_id, tool));
            Ok::<Vec<Event>, rusqlite::Error>(open.map(block_stop).into_iter().chain(results).collect())
        };
        let before = blocking(told).await.and_then(Result::ok).unwrap_or_default();
        ending::errored(&self.recorder, turn.message_id, before, failure).await;
    }

    /// Reads where the turn stands. Where that cannot be read, the turn stays open; none then.
    pub(super) async fn load(self) -> Option<TurnRun> {
        self.load_after(0).await
    }

    async fn load_after(mut self, starts: u32) -> Option<TurnRun> {
        let (brain, channel) = (self.brain.clone(), Arc::clone(self.recorder.channel()));
        let turn_id = self.turn_id();
        let read = move || {
            let task = channel.task();
            let thread = Thread::load(&brain, task, turn_id)?;
            // What was told after the last step on record belongs to a model call that is made anew.
            let telling = Telling::of_events(brain.all_events_after(task, thread.turn().step_ts())?);
            let started = brain.block_counts(task, turn_id)?.started;
            Ok::<_, LoadError>((thread, telling, started))
        };
        match blocking(read).await? {
            Ok((thread, telling, started)) => {
                self.blocks = Blocks::after(started, telling.open_block());
                Some(TurnRun::new(self, thread, telling, starts))
            }
            Err(error) => {
                tracing::error!(%error, turn.id = %turn_id, "A turn's journal could not be read.");
                None
            }
        }
    }
}

/// Lives a turn to its end, or until the engine stops.
async fn live(run: Option<TurnRun>) {
    let mut next = run;
    while let Some(run) = next {
        next = match run.go().await {
            Some(resting) => Resting::wait(resting).await,
            None => None,
        };
    }
    if sabotage::by(Saboteur::LeakTurns) {
        Box::leak(vec![1_u8; 16 * 1024].into_boxed_slice());
    }
}

/// Runs what reads much where it may block; none if the runtime is shutting down.
pub(super) async fn blocking<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(read).await.ok()
}
