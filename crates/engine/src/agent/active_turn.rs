//! The driver of an active turn: it performs the next action that the journal calls for and commits each step
//! before it begins the next one.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::event::{Event, Failure, FailureCode, Lifecycle, StopReason};
use api::{MessageId, TurnId};
use futures::FutureExt as _;
use store::WriteError;
use store::event_log::Commit;
use store::steps::{Step, TurnOutcome};
use tools::ExposedTools;

use super::model_step::StepOutcome;
use super::stream_reconciler::StreamReconciler;
use super::sub_agent::ActiveSubAgent;
use super::thread::{NextAction, Thread};
use super::turn_lifecycle::{TurnContext, TurnState};
use super::turn_registry::{Command, Reply};
use super::{AgentError, turn_end};

/// How long a cancelled turn waits for its programs to exit. They are killed, so that takes some milliseconds.
const CHILD_EXIT_TIMEOUT: Duration = Duration::from_millis(200);

/// A turn that is being run, with the state of its current model step.
pub(super) struct ActiveTurn {
    pub(super) context: TurnContext,
    pub(super) thread: Thread,
    /// What clients have received of the current model step.
    pub(super) reconciler: StreamReconciler,
    /// How many starts of the engine have resumed the current model step.
    pub(super) engine_starts: u32,
    /// The model that answered last, if it is not the preferred one. It is called first for the rest of the
    /// turn.
    pub(super) fallback_model: Option<String>,
    /// The sub-agent that is running, if any.
    pub(super) active_sub_agent: Option<ActiveSubAgent>,
    /// The tools that the agent may call.
    pub(super) tool_set: Arc<ExposedTools>,
    /// Whether the part of the current step that clients have received came from a sub-agent.
    pub(super) sent_by_sub_agent: bool,
}

/// Why a turn stops running.
pub(super) enum Interrupt {
    /// The turn failed and reports the failure to clients.
    Failed(Failure),
    /// The user cancelled the turn.
    Cancelled(Reply<TurnId>),
    /// The engine stops. The turn is resumed at the next start.
    EngineStopping,
    /// The brain cannot be written, so no event can be sent. The turn stays open until it can.
    StoreUnavailable(WriteError),
}

impl From<WriteError> for Interrupt {
    fn from(error: WriteError) -> Self {
        Self::StoreUnavailable(error)
    }
}

/// How a run of the turn's steps ended.
enum Progress {
    /// The turn has ended.
    Ended,
    /// The turn waits for its user.
    AwaitingHuman,
}

impl ActiveTurn {
    /// Creates an active turn whose journal is `thread`. `reconciler` holds what clients have received of the
    /// current model step, and `engine_starts` counts the starts of the engine that have resumed it.
    pub(super) fn new(
        context: TurnContext,
        thread: Thread,
        reconciler: StreamReconciler,
        engine_starts: u32,
    ) -> Self {
        let tool_set = context.snapshot.toolbox.exposed_tools(context.services.gateway.context_window());
        Self {
            context,
            thread,
            reconciler,
            engine_starts,
            fallback_model: None,
            active_sub_agent: None,
            tool_set,
            sent_by_sub_agent: false,
        }
    }

    /// Runs the turn until it ends or waits for its user.
    pub(super) async fn run(mut self) -> TurnState {
        let ended = AssertUnwindSafe(self.run_steps()).catch_unwind().await;
        match ended {
            Ok(Ok(Progress::Ended)) => TurnState::Ended,
            Ok(Ok(Progress::AwaitingHuman)) => TurnState::AwaitingHuman(self.context.await_human()),
            Ok(Err(interrupt)) => self.handle_interrupt(interrupt).await,
            Err(_) => {
                tracing::error!(turn_id = %self.context.turn_id(), "A turn panicked.");
                self.fail(turn_end::internal_failure()).await
            }
        }
    }

    async fn run_steps(&mut self) -> Result<Progress, Interrupt> {
        self.acquire_permit().await?;
        loop {
            match self.thread.next_action() {
                NextAction::CallModel if self.needs_plan() => self.check_stopping()?.plan().await?,
                NextAction::CallModel => {
                    if self.check_stopping()?.call_model().await? == StepOutcome::BudgetExhausted
                        && self.try_complete(StopReason::Budget).await?
                    {
                        return Ok(Progress::Ended);
                    }
                }
                NextAction::RunTools(calls) => self.check_stopping()?.run_tools(calls).await?,
                NextAction::AwaitHuman(_) => return Ok(Progress::AwaitingHuman),
                NextAction::Complete(reason) => {
                    if self.try_complete(reason).await? {
                        return Ok(Progress::Ended);
                    }
                }
            }
        }
    }

    /// Waits for a permit to run; the number of turns that run at once is bounded.
    async fn acquire_permit(&mut self) -> Result<(), Interrupt> {
        if self.context.permit.is_none() {
            let permit = self.context.turn_permits.clone().acquire_owned();
            self.context.permit = self.run_until_stop(permit).await?.ok();
        }
        Ok(())
    }

    /// Returns [`Interrupt::EngineStopping`] if the engine is stopping. Called between two steps.
    pub(super) fn check_stopping(&mut self) -> Result<&mut Self, Interrupt> {
        if self.context.stopping.is_cancelled() { Err(Interrupt::EngineStopping) } else { Ok(self) }
    }

    /// Waits for `work` and handles the commands that arrive meanwhile.
    pub(super) async fn run_while_handling_commands<F: Future>(
        &mut self,
        work: F,
    ) -> Result<F::Output, Interrupt> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                Some(command) = self.context.inbox.recv() => self.handle_command(command).await?,
                output = &mut work => return Ok(output),
            }
        }
    }

    /// Like [`ActiveTurn::run_while_handling_commands`], for work that a stop of the engine may abandon.
    pub(super) async fn run_until_stop<F: Future>(&mut self, work: F) -> Result<F::Output, Interrupt> {
        let stopping = self.context.stopping.clone();
        let either = async move {
            tokio::select! {
                biased;
                () = stopping.cancelled() => None,
                output = work => Some(output),
            }
        };
        self.run_while_handling_commands(either).await?.ok_or(Interrupt::EngineStopping)
    }

    /// Handles a command sent to the turn.
    pub(super) async fn handle_command(&mut self, command: Command) -> Result<(), Interrupt> {
        match command {
            Command::Cancel(reply) => Err(Interrupt::Cancelled(reply)),
            Command::Steer(message, reply) => {
                let message_id = MessageId::new();
                // A steering message is for the agent that the user talks to, even while a sub-agent is
                // running.
                let step = Step::Steered { message_id, message };
                let committed = self.commit_to_turn(Commit::new(), vec![step], Vec::new()).await;
                reply_committed(reply, message_id, committed)
            }
            Command::Respond(response, reply, _busy_guard) => self.respond(response, reply).await,
        }
    }

    /// Commits a step of the active conversation together with its events, and applies it to the thread.
    pub(super) async fn commit(&mut self, step: Step, events: Vec<Event>) -> Result<(), WriteError> {
        self.commit_all(Commit::new(), vec![step], events).await
    }

    /// Commits `commit` with steps of the active conversation and their events, and applies the steps to the
    /// thread.
    pub(super) async fn commit_all(
        &mut self,
        commit: Commit,
        steps: Vec<Step>,
        events: Vec<Event>,
    ) -> Result<(), WriteError> {
        let steps = steps.into_iter().map(|step| self.wrap_active_step(step)).collect();
        let events = events.into_iter().map(|event| self.wrap_active_event(event)).collect();
        self.commit_to_turn(commit, steps, events).await
    }

    /// Sends an event of the active conversation.
    pub(super) async fn send(&self, event: Event) -> Result<(), WriteError> {
        self.context.recorder.emit(self.wrap_active_event(event)).await
    }

    /// Commits `commit` with steps of the turn itself and their events, and applies the steps to the thread.
    pub(super) async fn commit_to_turn(
        &mut self,
        commit: Commit,
        steps: Vec<Step>,
        events: Vec<Event>,
    ) -> Result<(), WriteError> {
        let commit = steps.iter().cloned().fold(commit, Commit::step).events(events);
        self.context.recorder.commit(commit).await?;
        let ts = self.context.recorder.last_ts();
        for step in steps {
            if step.is_progress() {
                self.engine_starts = 0;
                self.context.store_retries = 0;
            }
            self.thread.apply(step, ts);
        }
        Ok(())
    }

    /// Completes the turn unless a command arrived at the last moment. Returns whether it did.
    async fn try_complete(&mut self, stop_reason: StopReason) -> Result<bool, Interrupt> {
        while let Ok(command) = self.context.inbox.try_recv() {
            self.handle_command(command).await?;
        }
        let may_end = match self.thread.next_action() {
            NextAction::Complete(reason) => reason == stop_reason,
            // No budget is left for the next model call.
            NextAction::CallModel => stop_reason == StopReason::Budget,
            NextAction::RunTools(_) | NextAction::AwaitHuman(_) => false,
        };
        if !may_end {
            return Ok(false);
        }
        // Commands sent from here on find no turn.
        self.context.inbox.close();
        let message_id = self.thread.turn().message_id();
        let (answer_message_id, text) = match self.thread.turn().last_answer() {
            Some((id, answer)) => (*id, answer.text()),
            // A budget ended the turn before its first answer.
            None => (MessageId::new(), String::new()),
        };
        let unsent = self.thread.turn().unsent_usage().cloned().map(Event::Usage);
        let completed = Lifecycle::Completed { message_id, answer_message_id, text, stop_reason };
        let step = Step::Ended { outcome: TurnOutcome::Completed { stop_reason } };
        let events = unsent.into_iter().chain([Event::ThreadLifecycle(completed)]).collect();
        self.commit_to_turn(Commit::new(), vec![step], events).await?;
        Ok(true)
    }

    /// Handles the reason why the turn stopped: ends it, or leaves it open to be resumed.
    pub(super) async fn handle_interrupt(self, interrupt: Interrupt) -> TurnState {
        match interrupt {
            Interrupt::Failed(failure) => self.fail(failure).await,
            Interrupt::Cancelled(reply) => self.cancel(reply).await,
            Interrupt::EngineStopping => TurnState::Ended,
            Interrupt::StoreUnavailable(error) => self.context.store_unavailable(&error),
        }
    }

    /// Ends the turn with `failure`.
    async fn fail(mut self, failure: Failure) -> TurnState {
        let before = self.closing_events();
        match turn_end::commit_failure(&self.context.recorder, self.context.message_id, before, failure).await
        {
            Ok(()) => TurnState::Ended,
            Err(error) => self.context.store_unavailable(&error),
        }
    }

    /// Ends the turn because the user did not answer in time.
    pub(super) async fn expire(self) -> TurnState {
        let message =
            "nobody answered in time, so the turn was ended; send the message again to continue".into();
        self.fail(Failure { code: FailureCode::HitlExpired, message, retryable: true }).await
    }

    /// Ends the turn because the user cancelled it. What the model has said so far stays in the conversation.
    async fn cancel(mut self, reply: Reply<TurnId>) -> TurnState {
        if let Some(sandbox) = &self.context.services.sandbox {
            // The programs that its tools started were released together with the tools.
            sandbox.wait_for_teardown(CHILD_EXIT_TIMEOUT).await;
        }
        // The text of a sub-agent is not part of the agent's own answer.
        let from_sub_agent = self.active_sub_agent.is_some() || self.sent_by_sub_agent;
        let partial_answer =
            self.reconciler.sent_text().filter(|_| !from_sub_agent).map(turn_end::partial_answer);
        let mut events = self.closing_events();
        let message_id = self.thread.turn().message_id();
        events.push(Event::ThreadLifecycle(Lifecycle::Cancelled { message_id }));
        let turn_id = self.context.turn_id();
        let step = Step::Ended { outcome: TurnOutcome::Cancelled { said: partial_answer } };
        let committed = self.commit_to_turn(Commit::new(), vec![step], events).await;
        match reply_committed(reply, turn_id, committed) {
            Ok(()) => TurnState::Ended,
            Err(interrupt) => Box::pin(self.handle_interrupt(interrupt)).await,
        }
    }

    /// The events that leave nothing of the turn open for clients: the end of its block, and results for calls
    /// without one.
    fn closing_events(&mut self) -> Vec<Event> {
        self.context
            .services
            .mcp
            .cancel_suspended_calls(self.thread.pending_hitl().iter().map(|pending| pending.call_id));
        let open = self.thread.sent_open_calls();
        let results = open.map(|call| turn_end::unknown_outcome_event(call.call_id, call.name.clone()));
        let usage = self.thread.turn().unsent_usage().cloned().map(Event::Usage);
        let results_and_usage: Vec<Event> = results.chain(usage).collect();
        let sub_agent_events = self.sub_agent_closing_events();
        self.context.blocks.stop().into_iter().chain(sub_agent_events).chain(results_and_usage).collect()
    }
}

/// Answers a command with `value` if the commit succeeded, else with its error.
pub(super) fn reply_committed<T>(
    reply: Reply<T>,
    value: T,
    committed: Result<(), WriteError>,
) -> Result<(), Interrupt> {
    // The caller may be gone.
    let _ = reply.send(committed.clone().map(|()| value).map_err(AgentError::from));
    Ok(committed?)
}
