//! A turn's life: begun or taken up, at work, at rest while a person is needed, stranded while the brain cannot be
//! used, and over.

use std::sync::Arc;
use std::time::Duration;

use contract::event::{Event, Failure, FailureCode, HitlKind, HitlRequest, Lifecycle};
use contract::{HitlId, MessageId, TurnId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::loading::{self, LoadError};
use super::people::Resting;
use super::run::TurnRun;
use super::running::{Inbox, Registration};
use super::stream::{Blocks, block_stop};
use super::telling::Telling;
use super::thread::{Next, Thread};
use super::{Kit, Means, ending};
use crate::brain::{Brain, OpenTurn, WriteError};
use crate::channel::{Record, Recorder};
use crate::sabotage::{self, Saboteur};

/// How many starts of the engine may take a turn up without it getting on.
const RESUME_LIMIT: u32 = 8;
/// How long a stranded turn waits before it tries the brain, at first and at most.
const STRANDED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));

/// What a turn has from its beginning to its end, at work and at rest.
pub(super) struct Life {
    pub(super) recorder: Recorder,
    /// The user's message.
    pub(super) message_id: MessageId,
    pub(super) brain: Brain,
    pub(super) means: Arc<Means>,
    /// What the catalog gave when it began, or was taken up after a restart.
    pub(super) kit: Arc<Kit>,
    pub(super) inbox: Inbox,
    /// Cancelled when the engine stops.
    pub(super) stopping: CancellationToken,
    /// The places of turns at work, of which there is a bounded number.
    pub(super) places: Arc<Semaphore>,
    /// This turn's place; none while it rests.
    pub(super) place: Option<OwnedSemaphorePermit>,
    /// The blocks of its stream.
    pub(super) blocks: Blocks,
    /// The blocks of its sub-agents' streams, numbered through the turn too.
    pub(super) agent_blocks: Blocks,
    /// How often it was taken up again after the brain could not be used, since its last step.
    pub(super) stranded: u32,
    /// Until when, in monotonic time, it waits for the person who was asked.
    pub(super) patient_until: Option<Duration>,
    /// Makes it known to those who want to tell it something.
    pub(super) registration: Registration,
}

/// Where in its life a turn is.
pub(super) enum State {
    /// It does what comes next.
    AtWork(Box<TurnRun>),
    /// It waits for a person.
    Resting(Resting),
    /// It waits until the brain can be used again.
    Stranded(Life),
    /// It has ended, or the engine has.
    Over,
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
        self.be_patient_for(self.means.hitl_ttl);
        let task_id = self.recorder.channel().task_id().clone();
        HitlRequest { request_id, task_id, kind, question, created_at, options }
    }

    /// How long the person may still take. A wall clock that is set meanwhile changes nothing about it.
    pub(super) fn patience(&self) -> Duration {
        let now = self.means.clock.monotonic();
        self.patient_until.map_or(self.means.hitl_ttl, |until| until.saturating_sub(now))
    }

    fn be_patient_for(&mut self, patience: Duration) {
        self.patient_until = Some(self.means.clock.monotonic().saturating_add(patience));
    }

    /// Lives a turn that was just opened; `thread` where it has been read.
    pub(super) async fn begin(self, thread: Option<Thread>) {
        self.registration.opened();
        let state = match thread {
            Some(thread) => State::AtWork(Box::new(TurnRun::new(self, thread, Telling::default(), 0))),
            None => self.load().await.map_or_else(State::Stranded, |run| State::AtWork(Box::new(run))),
        };
        live(state).await;
    }

    /// Goes on with a turn after a restart of the engine.
    pub(super) async fn take_up(self, turn: OpenTurn) {
        self.registration.opened();
        live(self.taken_up(turn).await).await;
    }

    async fn taken_up(mut self, turn: OpenTurn) -> State {
        if let Some(pending) = turn.pending {
            // Nothing but the wall clock tells how long it was while no engine ran.
            let waited = self.means.clock.now().unix_ms().saturating_sub(pending.created_at.unix_ms());
            let waited = Duration::from_millis(u64::try_from(waited).unwrap_or(0));
            self.be_patient_for(self.means.hitl_ttl.saturating_sub(waited));
            let task = self.recorder.channel().task();
            let open_calls = self.brain.blocking(move |brain| brain.open_calls(task, turn.turn_id)).await;
            if open_calls.is_some_and(|calls| calls.is_ok_and(|calls| calls.is_empty())) {
                return State::Resting(self.rest());
            }
        }
        // On record, and judged, before the journal is read: reading it may be what kills the engine.
        if !sabotage::by(Saboteur::ForgetStarts)
            && let Err(error) = self.recorder.commit(Record::new().start()).await
        {
            return self.strand(&error);
        }
        if turn.starts >= RESUME_LIMIT {
            return self.give_up().await;
        }
        match self.load_after(turn.starts + 1).await {
            // Nothing is left to do but to wait, which no number of starts ends.
            Ok(run) if matches!(run.thread.next(), Next::Wait(_)) => {
                match run.life.recorder.commit(Record::new().forget_starts()).await {
                    Ok(()) => State::Resting(run.life.rest()),
                    Err(error) => run.life.strand(&error),
                }
            }
            Ok(run) => run.resumed().await,
            Err(stranded) => State::Stranded(stranded),
        }
    }

    /// Ends a turn that kills the engine, or never gets on. Its journal is not read.
    async fn give_up(self) -> State {
        let message =
            format!("{RESUME_LIMIT} starts of the engine took this turn up and none got on with it");
        self.abandon(Failure { code: FailureCode::ResumeLimit, message, retryable: false }).await
    }

    /// Ends a turn whose journal is not read.
    async fn abandon(self, failure: Failure) -> State {
        let (task, turn_id) = (self.recorder.channel().task(), self.turn_id());
        let told = move |brain: &Brain| {
            let open = brain.block_counts(task, turn_id)?.open();
            let calls = brain.open_calls(task, turn_id)?;
            let results = calls.into_iter().map(|(call_id, tool)| ending::without_result(call_id, tool));
            Ok::<Vec<Event>, rusqlite::Error>(open.map(block_stop).into_iter().chain(results).collect())
        };
        let before = self.brain.blocking(told).await.and_then(Result::ok).unwrap_or_default();
        match ending::errored(&self.recorder, self.message_id, before, failure).await {
            Ok(()) => State::Over,
            Err(error) => self.strand(&error),
        }
    }

    /// The brain could not be written.
    pub(super) fn strand(self, error: &WriteError) -> State {
        tracing::error!(%error, turn.id = %self.turn_id(), "A turn waits until the brain can be written again.");
        State::Stranded(self)
    }

    /// Waits until the brain can be used again, and goes on from what is stored. Meanwhile the turn can be told
    /// nothing, since nothing of it could be kept.
    async fn recover(mut self) -> State {
        let (first, longest) = STRANDED;
        let pause = first.saturating_mul(1 << self.stranded.min(5)).min(longest);
        if !self.sit_out(pause).await {
            return State::Over;
        }
        self.recorder.mend();
        // What can be written again and again and never gets on would be billed each time.
        if self.stranded > RESUME_LIMIT {
            return self.abandon(ending::unexpected()).await;
        }
        match self.load().await {
            Ok(run) => run.resumed().await,
            Err(mut life) => {
                life.stranded += 1;
                State::Stranded(life)
            }
        }
    }

    /// Waits, and refuses what the turn is told; whether the engine goes on.
    async fn sit_out(&mut self, pause: Duration) -> bool {
        let clock = self.means.clock.clone();
        let mut over = clock.sleep(pause);
        loop {
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return false,
                Some(command) = self.inbox.recv() => command.refuse(),
                () = &mut over => return true,
            }
        }
    }

    /// Reads where the turn stands.
    ///
    /// # Errors
    /// The turn, whose journal could not be read.
    pub(super) async fn load(self) -> Result<TurnRun, Self> {
        self.load_after(0).await
    }

    async fn load_after(mut self, starts: u32) -> Result<TurnRun, Self> {
        let (task, turn_id) = (self.recorder.channel().task(), self.turn_id());
        let read = move |brain: &Brain| {
            let thread = loading::load(brain, task, turn_id)?;
            // What was told after the last step on record belongs to a model call that is made anew.
            let events = brain.all_events_after(task, thread.turn().step_ts())?;
            // One model step is under way at a time: the turn's own, or a sub-agent's.
            let of_agent = events.iter().any(|event| matches!(event, Event::AgentEvent(_)));
            let telling = Telling::of_events(events);
            let counts = brain.block_counts(task, turn_id)?;
            Ok::<_, LoadError>((thread, telling, counts, of_agent))
        };
        match self.brain.blocking(read).await {
            Some(Ok((thread, telling, counts, of_agent))) => {
                let open = telling.open_block();
                self.blocks = Blocks::after(counts.started, open.filter(|_| !of_agent));
                self.agent_blocks = Blocks::after(counts.agents_started, open.filter(|_| of_agent));
                Ok(TurnRun { agent_told: of_agent, ..TurnRun::new(self, thread, telling, starts) })
            }
            Some(Err(error)) => {
                tracing::error!(%error, turn.id = %turn_id, "A turn's journal could not be read.");
                Err(self)
            }
            // The runtime is shutting down.
            None => Err(self),
        }
    }
}

impl TurnRun {
    /// Tells that the turn goes on, if there is something to do.
    async fn resumed(mut self) -> State {
        self.life.stranded += 1;
        if matches!(self.thread.next(), Next::Wait(_)) {
            return State::Resting(self.life.rest());
        }
        let resumed = Event::ThreadLifecycle(Lifecycle::Resumed { message_id: self.life.message_id });
        match self.life.recorder.commit(Record::new().event(resumed)).await {
            Ok(()) => State::AtWork(Box::new(self)),
            Err(error) => {
                // Nothing was asked of anybody, so this try does not count.
                self.life.stranded -= 1;
                self.life.strand(&error)
            }
        }
    }
}

/// Lives a turn to its end, or until the engine stops.
async fn live(mut state: State) {
    loop {
        state = match state {
            State::AtWork(run) => run.go().await,
            State::Resting(resting) => resting.wait().await,
            State::Stranded(life) => life.recover().await,
            State::Over => break,
        };
    }
    if sabotage::by(Saboteur::LeakTurns) {
        Box::leak(vec![1_u8; 16 * 1024].into_boxed_slice());
    }
}

/// Runs what reads files, or works long, where it may block; none if the runtime is shutting down. What reads the brain
/// has threads of its own: see [`Brain::blocking`].
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
