//! A turn's lifecycle: it begins or is resumed, is active, waits for its user, waits while the brain is
//! unavailable, and ends.

use std::time::Duration;

use api::event::{Event, Failure, FailureCode, Lifecycle};
use store::event_log::Commit;
use store::{Brain, OpenTurn, WriteError};
use tracing::Instrument as _;

use super::active_turn::{ActiveTurn, RunOutcome};
use super::call_events::{never_run_event, unknown_outcome_event};
use super::inbox::Received;
use super::journal::JournalState;
use super::recall::{self, Recalled};
use super::stream::block_stop;
use super::thread::Thread;
use super::turn_context::TurnContext;
use super::{AgentError, turn_end};

/// The number of starts of the engine that may resume a turn without progress.
const RESUME_LIMIT: u32 = 8;
/// The delay before a turn tries an unavailable brain again: the first one and the longest.
const STORE_RETRY_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));

/// The state of a turn.
enum TurnState {
    /// It performs its next actions.
    Active(Box<ActiveTurn>),
    /// It waits for its user.
    AwaitingHuman(AwaitingHuman),
    /// It waits until the brain is available again.
    StoreUnavailable(TurnContext),
    /// The turn has ended, or the engine is stopping.
    Ended,
}

impl TurnState {
    fn active(context: TurnContext, state: JournalState) -> Self {
        Self::Active(Box::new(ActiveTurn::new(context, state)))
    }

    /// Leaves the turn open because the brain could not be written.
    fn store_unavailable(context: TurnContext, error: &WriteError) -> Self {
        tracing::error!(
            %error, turn_id = %context.turn_id(), "A turn is waiting until the brain can be written again."
        );
        Self::StoreUnavailable(context)
    }
}

impl From<RunOutcome> for TurnState {
    fn from(outcome: RunOutcome) -> Self {
        match outcome {
            RunOutcome::Ended => Self::Ended,
            RunOutcome::AwaitingHuman(context) => Self::AwaitingHuman(AwaitingHuman::new(context)),
            RunOutcome::StoreUnavailable(context, error) => Self::store_unavailable(context, &error),
        }
    }
}

/// Runs a turn that was just opened. `thread` is its conversation if that has been loaded.
pub(super) async fn begin(mut context: TurnContext, thread: Option<Thread>) {
    context.slot.registration().mark_opened();
    let span = log_span(&context);
    let state = match thread {
        Some(thread) => TurnState::active(context, JournalState::opened(thread)),
        None => match load(&context, 0).await {
            Some(state) => TurnState::active(context, state),
            None => TurnState::StoreUnavailable(context),
        },
    };
    run_to_end(state).instrument(span).await;
}

/// Resumes a turn after a restart of the engine.
pub(super) async fn resume(mut context: TurnContext, turn: OpenTurn) {
    context.slot.registration().mark_opened();
    let span = log_span(&context);
    async move { run_to_end(resumed_state(context, turn).await).await }.instrument(span).await;
}

/// The span by which each log line of a turn has its id.
fn log_span(context: &TurnContext) -> tracing::Span {
    tracing::error_span!("turn", turn_id = %context.turn_id())
}

/// Runs a turn to its end, or until the engine stops.
async fn run_to_end(mut state: TurnState) {
    loop {
        state = match state {
            TurnState::Active(turn) => turn.run().await.into(),
            TurnState::AwaitingHuman(awaiting) => awaiting.wait().await,
            TurnState::StoreUnavailable(context) => recover(context).await,
            TurnState::Ended => break,
        };
    }
}

async fn resumed_state(mut context: TurnContext, turn: OpenTurn) -> TurnState {
    if let Some(pending) = turn.pending {
        context.writer.restore_hitl_deadline(pending.created_at);
        let task = context.writer.task();
        let only_awaits_human = move |brain: &Brain| {
            let awaiting = brain.calls_awaiting_approval(turn.turn_id)?;
            let open = brain.open_calls(task, turn.turn_id)?;
            Ok::<_, store::StoreError>(open.iter().all(|(call_id, _)| awaiting.contains(call_id)))
        };
        let only_awaits_human = context.deps.brain.run_blocking(only_awaits_human).await;
        if only_awaits_human.is_some_and(|only| only.unwrap_or(false)) {
            return TurnState::AwaitingHuman(AwaitingHuman::new(context));
        }
    }
    // Counted and checked before the journal is read: reading it may be what kills the engine.
    if let Err(error) = context.writer.commit(Commit::new().increment_start_count()).await {
        return TurnState::store_unavailable(context, &error);
    }
    if turn.starts >= RESUME_LIMIT {
        return fail_at_resume_limit(context).await;
    }
    match load(&context, turn.starts + 1).await {
        // The turn only waits for its user, and no number of starts ends that.
        Some(state) if state.awaits_human() => {
            match context.writer.commit(Commit::new().reset_start_count()).await {
                Ok(()) => TurnState::AwaitingHuman(AwaitingHuman::new(context)),
                Err(error) => TurnState::store_unavailable(context, &error),
            }
        }
        Some(state) => continue_from(context, state).await,
        None => TurnState::StoreUnavailable(context),
    }
}

/// Ends a turn that keeps killing the engine or never makes progress. Its journal is not read.
async fn fail_at_resume_limit(context: TurnContext) -> TurnState {
    let message = format!("{RESUME_LIMIT} starts of the engine resumed this turn, and none made progress");
    let failure = Failure { code: FailureCode::ResumeLimit, message, retryable: false };
    fail_without_journal(context, failure).await
}

/// Ends a turn without reading its journal.
async fn fail_without_journal(context: TurnContext, failure: Failure) -> TurnState {
    let (task, turn_id) = (context.writer.task(), context.turn_id());
    let closing_events = move |brain: &Brain| {
        let open = brain.block_counts(task, turn_id)?.open_block();
        let calls = brain.open_calls(task, turn_id)?;
        let awaiting = brain.calls_awaiting_approval(turn_id)?;
        let results = calls.into_iter().map(|(call_id, tool)| {
            let event = if awaiting.contains(&call_id) { never_run_event } else { unknown_outcome_event };
            event(call_id, tool)
        });
        Ok::<Vec<Event>, store::StoreError>(open.map(block_stop).into_iter().chain(results).collect())
    };
    let before =
        context.deps.brain.run_blocking(closing_events).await.and_then(Result::ok).unwrap_or_default();
    match context.writer.commit_failure(Commit::new(), before, failure).await {
        Ok(()) => TurnState::Ended,
        Err(error) => TurnState::store_unavailable(context, &error),
    }
}

/// Waits until the brain is available again and continues from what is stored. Meanwhile the turn refuses
/// commands, since none could be recorded.
async fn recover(mut context: TurnContext) -> TurnState {
    let (first, max_pause) = STORE_RETRY_DELAY;
    let retries = context.writer.store_retries();
    let pause = first.saturating_mul(1 << retries.min(5)).min(max_pause);
    let clock = context.deps.services.clock.clone();
    if !context.inbox.refuse_until(clock.sleep(pause)).await {
        return TurnState::Ended;
    }
    context.writer.recorder().reset_error();
    // A turn that can be written but never makes progress would be billed for each try.
    if retries > RESUME_LIMIT {
        return fail_without_journal(context, turn_end::internal_failure()).await;
    }
    if let Some(state) = load(&context, 0).await {
        return continue_from(context, state).await;
    }
    context.writer.count_store_retry();
    TurnState::StoreUnavailable(context)
}

/// Continues a turn whose state was loaded, and announces that if there is something to do.
async fn continue_from(mut context: TurnContext, mut state: JournalState) -> TurnState {
    if state.awaits_human() {
        context.writer.count_store_retry();
        return TurnState::AwaitingHuman(AwaitingHuman::new(context));
    }
    let resumed = Event::ThreadLifecycle(Lifecycle::Resumed { message_id: context.writer.message_id() });
    let committed = match context.writer.commit(Commit::new().event(resumed)).await {
        Ok(()) => recall_after_opening(&context, &mut state).await,
        Err(error) => Err(error),
    };
    match committed {
        Ok(()) => {
            context.writer.count_store_retry();
            TurnState::active(context, state)
        }
        // No model was called, so this try does not count.
        Err(error) => TurnState::store_unavailable(context, &error),
    }
}

/// Recalls memories for a turn that was interrupted right after its opening.
async fn recall_after_opening(context: &TurnContext, state: &mut JournalState) -> Result<(), WriteError> {
    let Some((message, model)) = state.message_to_recall_for() else { return Ok(()) };
    let (deps, task) = (context.deps.clone(), context.writer.task());
    let search = move |_: &Brain| recall::search(&deps, task, message, model.as_deref());
    let memories = context.deps.brain.run_blocking(search).await.unwrap_or_default();
    let recalled = Recalled { corrections: Vec::new(), memories };
    let Some((commit, step)) = recalled.into_commit() else { return Ok(()) };
    context.writer.commit(commit).await?;
    state.apply(step, context.writer.recorder().last_ts());
    Ok(())
}

/// Loads the state of the turn; `None` if its journal could not be read. `starts` counts the starts of the
/// engine that have resumed the current model step.
async fn load(context: &TurnContext, starts: u32) -> Option<JournalState> {
    let (task, turn_id) = (context.writer.task(), context.turn_id());
    let read = move |brain: &Brain| JournalState::load(brain, task, turn_id, starts);
    // `None` if the runtime is shutting down.
    let loaded = context.deps.brain.run_blocking(read).await?;
    let log = |error: &_| tracing::error!(%error, %turn_id, "A turn's journal could not be read.");
    loaded.inspect_err(log).ok()
}

/// A turn that waits for its user. Its state is loaded again when the user has answered: a turn may wait for
/// days, and most of an engine's memory would hold such turns.
struct AwaitingHuman {
    context: TurnContext,
}

impl AwaitingHuman {
    /// Makes the turn wait for its user and releases what it does not need meanwhile.
    fn new(mut context: TurnContext) -> Self {
        context.release();
        Self { context }
    }

    /// Waits until a command arrives or the time to answer runs out.
    async fn wait(self) -> TurnState {
        let Self { mut context } = self;
        let clock = context.deps.services.clock.clone();
        let time_left = context.writer.hitl_time_left();
        let command = match context.inbox.receive_until(clock.sleep(time_left)).await {
            Received::Command(command) => Some(command),
            Received::Nothing => None,
            Received::Stop => return TurnState::Ended,
        };
        // Before the command is dropped: an answer in transit counts as activity, and so does its result.
        context.slot.registration().mark_busy();
        let Some(state) = load(&context, 0).await else {
            // The turn still waits, and can be answered once it can be read.
            if let Some(command) = command {
                command.refuse_with(|| AgentError::TemporarilyUnreadable);
            }
            return TurnState::StoreUnavailable(context);
        };
        let turn = ActiveTurn::new(context, state);
        match command {
            None => turn.expire().await.into(),
            Some(command) => match turn.handle_command(command).await {
                Ok(turn) => TurnState::Active(Box::new(turn)),
                Err(outcome) => outcome.into(),
            },
        }
    }
}
