//! A turn's lifecycle: it begins or is resumed, is active, waits for its user, waits while the brain is
//! unavailable, and ends.

use std::sync::Arc;
use std::time::Duration;

use api::event::{Event, Failure, FailureCode, HitlKind, HitlRequest, Lifecycle};
use api::{HitlId, MessageId, TurnId};
use store::event_log::{Commit, Recorder};
use store::{Brain, OpenTurn, WriteError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::active_turn::ActiveTurn;
use super::hitl::AwaitingHuman;
use super::stream::{Blocks, block_stop};
use super::stream_reconciler::StreamReconciler;
use super::thread::{NextAction, Thread};
use super::thread_loader::{self, LoadError};
use super::turn_registry::{Inbox, Registration};
use super::{AgentSnapshot, Services, turn_end};

/// The number of starts of the engine that may resume a turn without progress.
const RESUME_LIMIT: u32 = 8;
/// The delay before a turn tries an unavailable brain again: the first one and the longest.
const STORE_RETRY_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));

/// What a turn keeps from its beginning to its end, in every state.
pub(super) struct TurnContext {
    pub(super) recorder: Recorder,
    /// The id of the user's message.
    pub(super) message_id: MessageId,
    pub(super) brain: Brain,
    pub(super) services: Arc<Services>,
    /// The snapshot when the turn began, or was resumed after a restart.
    pub(super) snapshot: Arc<AgentSnapshot>,
    pub(super) inbox: Inbox,
    /// Cancelled when the engine stops.
    pub(super) stopping: CancellationToken,
    /// The permits that bound the number of active turns.
    pub(super) turn_permits: Arc<Semaphore>,
    /// This turn's permit; `None` while it waits for its user.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    /// The blocks of the turn's stream.
    pub(super) blocks: Blocks,
    /// The blocks of its sub-agents' streams, numbered across the whole turn.
    pub(super) sub_agent_blocks: Blocks,
    /// How often the turn was resumed after the brain was unavailable, since its last step.
    pub(super) store_retries: u32,
    /// The deadline on the monotonic clock for the user's answer.
    pub(super) hitl_deadline: Option<Duration>,
    /// The registration through which commands reach the turn.
    pub(super) registration: Registration,
}

/// The state of a turn.
pub(super) enum TurnState {
    /// It performs its next actions.
    Active(Box<ActiveTurn>),
    /// It waits for its user.
    AwaitingHuman(AwaitingHuman),
    /// It waits until the brain is available again.
    StoreUnavailable(TurnContext),
    /// The turn has ended, or the engine is stopping.
    Ended,
}

impl TurnContext {
    /// The id of the turn.
    pub(super) fn turn_id(&self) -> TurnId {
        self.recorder.turn_id()
    }

    /// Creates a HITL request that is shown now, and starts its time limit.
    pub(super) fn hitl_request(
        &mut self,
        request_id: HitlId,
        kind: HitlKind,
        question: String,
        options: Option<Vec<String>>,
    ) -> HitlRequest {
        let created_at = self.services.clock.now();
        self.set_hitl_deadline(self.services.hitl_ttl);
        let task_id = self.recorder.event_log().task_id().clone();
        HitlRequest { request_id, task_id, kind, question, created_at, options }
    }

    /// The time left for the user's answer. Changes of the wall clock do not affect it.
    pub(super) fn hitl_time_left(&self) -> Duration {
        let now = self.services.clock.monotonic();
        self.hitl_deadline.map_or(self.services.hitl_ttl, |deadline| deadline.saturating_sub(now))
    }

    fn set_hitl_deadline(&mut self, time_left: Duration) {
        self.hitl_deadline = Some(self.services.clock.monotonic().saturating_add(time_left));
    }

    /// Runs a turn that was just opened. `thread` is its conversation if that has been loaded.
    pub(super) async fn begin(self, thread: Option<Thread>) {
        self.registration.mark_opened();
        let state = match thread {
            Some(thread) => {
                TurnState::Active(Box::new(ActiveTurn::new(self, thread, StreamReconciler::default(), 0)))
            }
            None => self
                .load()
                .await
                .map_or_else(TurnState::StoreUnavailable, |turn| TurnState::Active(Box::new(turn))),
        };
        run_to_end(state).await;
    }

    /// Resumes a turn after a restart of the engine.
    pub(super) async fn resume(self, turn: OpenTurn) {
        self.registration.mark_opened();
        run_to_end(self.resumed_state(turn).await).await;
    }

    async fn resumed_state(mut self, turn: OpenTurn) -> TurnState {
        if let Some(pending) = turn.pending {
            // Only the wall clock knows how much time passed while no engine ran.
            let waited = self.services.clock.now().unix_ms().saturating_sub(pending.created_at.unix_ms());
            let waited = Duration::from_millis(u64::try_from(waited).unwrap_or(0));
            self.set_hitl_deadline(self.services.hitl_ttl.saturating_sub(waited));
            let task = self.recorder.event_log().task();
            let open_calls = self.brain.run_blocking(move |brain| brain.open_calls(task, turn.turn_id)).await;
            if open_calls.is_some_and(|calls| calls.is_ok_and(|calls| calls.is_empty())) {
                return TurnState::AwaitingHuman(self.await_human());
            }
        }
        // Counted and checked before the journal is read: reading it may be what kills the engine.
        if let Err(error) = self.recorder.commit(Commit::new().increment_start_count()).await {
            return self.store_unavailable(&error);
        }
        if turn.starts >= RESUME_LIMIT {
            return self.fail_at_resume_limit().await;
        }
        match self.load_with_starts(turn.starts + 1).await {
            // The turn only waits for its user, and no number of starts ends that.
            Ok(active) if matches!(active.thread.next_action(), NextAction::AwaitHuman(_)) => {
                match active.context.recorder.commit(Commit::new().reset_start_count()).await {
                    Ok(()) => TurnState::AwaitingHuman(active.context.await_human()),
                    Err(error) => active.context.store_unavailable(&error),
                }
            }
            Ok(active) => active.emit_resumed().await,
            Err(context) => TurnState::StoreUnavailable(context),
        }
    }

    /// Ends a turn that keeps killing the engine or never makes progress. Its journal is not read.
    async fn fail_at_resume_limit(self) -> TurnState {
        let message =
            format!("{RESUME_LIMIT} starts of the engine resumed this turn, and none made progress");
        self.fail_without_journal(Failure { code: FailureCode::ResumeLimit, message, retryable: false }).await
    }

    /// Ends a turn without reading its journal.
    async fn fail_without_journal(self, failure: Failure) -> TurnState {
        let (task, turn_id) = (self.recorder.event_log().task(), self.turn_id());
        let closing_events = move |brain: &Brain| {
            let open = brain.block_counts(task, turn_id)?.open_block();
            let calls = brain.open_calls(task, turn_id)?;
            let results =
                calls.into_iter().map(|(call_id, tool)| turn_end::unknown_outcome_event(call_id, tool));
            Ok::<Vec<Event>, store::StoreError>(open.map(block_stop).into_iter().chain(results).collect())
        };
        let before = self.brain.run_blocking(closing_events).await.and_then(Result::ok).unwrap_or_default();
        match turn_end::commit_failure(&self.recorder, self.message_id, before, failure).await {
            Ok(()) => TurnState::Ended,
            Err(error) => self.store_unavailable(&error),
        }
    }

    /// Leaves the turn open because the brain could not be written.
    pub(super) fn store_unavailable(self, error: &WriteError) -> TurnState {
        tracing::error!(%error, turn_id = %self.turn_id(), "A turn is waiting until the brain can be written again.");
        TurnState::StoreUnavailable(self)
    }

    /// Waits until the brain is available again and continues from what is stored. Meanwhile the turn refuses
    /// commands, since none could be recorded.
    async fn recover(mut self) -> TurnState {
        let (first, max_pause) = STORE_RETRY_DELAY;
        let pause = first.saturating_mul(1 << self.store_retries.min(5)).min(max_pause);
        if !self.wait_for_store(pause).await {
            return TurnState::Ended;
        }
        self.recorder.reset_error();
        // A turn that can be written but never makes progress would be billed for each try.
        if self.store_retries > RESUME_LIMIT {
            return self.fail_without_journal(turn_end::internal_failure()).await;
        }
        match self.load().await {
            Ok(turn) => turn.emit_resumed().await,
            Err(mut context) => {
                context.store_retries += 1;
                TurnState::StoreUnavailable(context)
            }
        }
    }

    /// Waits and refuses commands. Returns `false` if the engine is stopping.
    async fn wait_for_store(&mut self, pause: Duration) -> bool {
        let clock = self.services.clock.clone();
        let mut sleep = clock.sleep(pause);
        loop {
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return false,
                Some(command) = self.inbox.recv() => command.refuse(),
                () = &mut sleep => return true,
            }
        }
    }

    /// Loads the state of the turn.
    ///
    /// # Errors
    /// Returns the context if the journal could not be read.
    pub(super) async fn load(self) -> Result<ActiveTurn, Self> {
        self.load_with_starts(0).await
    }

    async fn load_with_starts(mut self, starts: u32) -> Result<ActiveTurn, Self> {
        let (task, turn_id) = (self.recorder.event_log().task(), self.turn_id());
        let read = move |brain: &Brain| {
            let thread = thread_loader::load(brain, task, turn_id)?;
            // Events after the last recorded step belong to a model call that is repeated.
            let events = brain.all_events_after(task, thread.turn().last_step_ts())?;
            // Only one model step runs at a time: the turn's own or a sub-agent's.
            let sent_by_sub_agent = events.iter().any(|event| matches!(event, Event::AgentEvent(_)));
            let reconciler = StreamReconciler::from_events(events);
            let counts = brain.block_counts(task, turn_id)?;
            Ok::<_, LoadError>((thread, reconciler, counts, sent_by_sub_agent))
        };
        match self.brain.run_blocking(read).await {
            Some(Ok((thread, reconciler, counts, sent_by_sub_agent))) => {
                let open = reconciler.open_block();
                self.blocks = Blocks::after(counts.started, open.filter(|_| !sent_by_sub_agent));
                self.sub_agent_blocks =
                    Blocks::after(counts.agents_started, open.filter(|_| sent_by_sub_agent));
                Ok(ActiveTurn { sent_by_sub_agent, ..ActiveTurn::new(self, thread, reconciler, starts) })
            }
            Some(Err(error)) => {
                tracing::error!(%error, %turn_id, "A turn's journal could not be read.");
                Err(self)
            }
            // The runtime is shutting down.
            None => Err(self),
        }
    }
}

impl ActiveTurn {
    /// Emits that the turn is resumed, if there is something to do.
    async fn emit_resumed(mut self) -> TurnState {
        self.context.store_retries += 1;
        if matches!(self.thread.next_action(), NextAction::AwaitHuman(_)) {
            return TurnState::AwaitingHuman(self.context.await_human());
        }
        let resumed = Event::ThreadLifecycle(Lifecycle::Resumed { message_id: self.context.message_id });
        match self.context.recorder.commit(Commit::new().event(resumed)).await {
            Ok(()) => TurnState::Active(Box::new(self)),
            Err(error) => {
                // No model was called, so this try does not count.
                self.context.store_retries -= 1;
                self.context.store_unavailable(&error)
            }
        }
    }
}

/// Runs a turn to its end, or until the engine stops.
async fn run_to_end(mut state: TurnState) {
    loop {
        state = match state {
            TurnState::Active(turn) => turn.run().await,
            TurnState::AwaitingHuman(awaiting) => awaiting.wait().await,
            TurnState::StoreUnavailable(context) => context.recover().await,
            TurnState::Ended => break,
        };
    }
}
