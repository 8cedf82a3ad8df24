//! A turn at work: does what its journal says comes next, and commits each step before the next begins.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use contract::event::{Event, Failure, FailureCode, Lifecycle, StopReason};
use contract::{MessageId, TurnId};
use futures::FutureExt as _;

use super::model_step::StepOutcome;
use super::stream_reconciler::StreamReconciler;
use super::sub_agent::ActiveSubAgent;
use super::thread::{NextAction, Thread};
use super::turn_lifecycle::{TurnContext, TurnState};
use super::turn_registry::{Command, Reply};
use super::{AgentError, turn_end};
use crate::event_log::Commit;
use crate::fault_injection::{self, Mutation};
use crate::store::WriteError;
use crate::store::steps::{MemoryWrite, Step, TurnOutcome};
use crate::tools::ExposedTools;

/// How long a cancelled turn waits for its programs to be gone. They are killed, so that takes some milliseconds.
const CHILD_EXIT_TIMEOUT: Duration = Duration::from_millis(200);

/// See the module.
pub(super) struct ActiveTurn {
    pub(super) context: TurnContext,
    pub(super) thread: Thread,
    /// What clients have of the model step under way.
    pub(super) reconciler: StreamReconciler,
    /// How many starts of the engine have taken up the model step under way.
    pub(super) engine_starts: u32,
    /// The model that answered last, where that is not the one that should have: it is asked first for the rest of
    /// the turn.
    pub(super) fallback_model: Option<String>,
    /// The sub-agent that is at work, if one is.
    pub(super) active_sub_agent: Option<ActiveSubAgent>,
    /// The tools that the agent may call.
    pub(super) tool_set: Arc<ExposedTools>,
    /// Whether what clients have of the step under way is a sub-agent's.
    pub(super) sent_by_sub_agent: bool,
}

/// Why a turn goes no further.
pub(super) enum Interrupt {
    /// It failed, and says so.
    Failed(Failure),
    /// The user cancelled it.
    Cancelled(Reply<TurnId>),
    /// The engine stops. The turn goes on at the next start.
    EngineStopping,
    /// The brain cannot be written, so nothing can be said. The turn stays open until it can.
    StoreUnavailable(WriteError),
}

impl From<WriteError> for Interrupt {
    fn from(error: WriteError) -> Self {
        Self::StoreUnavailable(error)
    }
}

/// How far a turn came.
enum Progress {
    /// To its end.
    Ended,
    /// To where a person is needed.
    AwaitingHuman,
}

impl ActiveTurn {
    /// A turn whose journal is `thread`. Of its model step under way clients have what `telling` says, and
    /// `starts` starts of the engine have taken it up.
    pub(super) fn new(life: TurnContext, thread: Thread, telling: StreamReconciler, starts: u32) -> Self {
        let offer = life.snapshot.toolbox.exposed_tools(life.services.gateway.context_window());
        Self {
            context: life,
            thread,
            reconciler: telling,
            engine_starts: starts,
            fallback_model: None,
            active_sub_agent: None,
            tool_set: offer,
            sent_by_sub_agent: false,
        }
    }

    /// Runs the turn to its end, or to where a person is needed.
    pub(super) async fn run(mut self) -> TurnState {
        let ended = AssertUnwindSafe(self.run_steps()).catch_unwind().await;
        match ended {
            Ok(Ok(Progress::Ended)) => TurnState::Ended,
            Ok(Ok(Progress::AwaitingHuman)) => TurnState::AwaitingHuman(self.context.await_human()),
            Ok(Err(stopped)) => self.handle_interrupt(stopped).await,
            Err(_) => {
                tracing::error!(turn.id = %self.context.turn_id(), "A turn panicked.");
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

    /// Waits until the turn is one of those that may run at once.
    async fn acquire_permit(&mut self) -> Result<(), Interrupt> {
        if self.context.permit.is_none() {
            let place = self.context.turn_permits.clone().acquire_owned();
            self.context.permit = self.run_until_stop(place).await?.ok();
        }
        Ok(())
    }

    /// Between two steps a turn stops if the engine does.
    pub(super) fn check_stopping(&mut self) -> Result<&mut Self, Interrupt> {
        if self.context.stopping.is_cancelled() { Err(Interrupt::EngineStopping) } else { Ok(self) }
    }

    /// Waits for `work`, and meanwhile does what it is told.
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

    /// As [`ActiveTurn::run_while_handling_commands`], for work that a stop of the engine need not wait for.
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

    /// Does what the turn is told.
    pub(super) async fn handle_command(&mut self, command: Command) -> Result<(), Interrupt> {
        match command {
            Command::Cancel(reply) if fault_injection::active(Mutation::IgnoreCancel) => {
                let _ = reply.send(Ok(self.context.turn_id()));
                Ok(())
            }
            Command::Cancel(reply) => Err(Interrupt::Cancelled(reply)),
            Command::Steer(message, reply) => {
                let message_id = MessageId::new();
                // It is for the agent that the user talks to, also while a sub-agent is at work.
                let step = Step::Steered { message_id, message };
                let committed = self.commit_to_turn(Commit::new(), vec![step], Vec::new()).await;
                reply_committed(reply, message_id, committed)
            }
            Command::Respond(response, reply, _at_work) => self.respond(response, reply).await,
        }
    }

    /// Commits a step of the conversation that is worked on with the events that tell of it, and takes it into the
    /// thread.
    pub(super) async fn commit(&mut self, step: Step, events: Vec<Event>) -> Result<(), WriteError> {
        self.commit_all(Commit::new(), vec![step], events).await
    }

    /// Commits `record` with steps of the conversation that is worked on and the events that tell of them, and takes
    /// the steps into the thread.
    pub(super) async fn commit_all(
        &mut self,
        record: Commit,
        steps: Vec<Step>,
        events: Vec<Event>,
    ) -> Result<(), WriteError> {
        let steps = steps.into_iter().map(|step| self.wrap_active_step(step)).collect();
        let events = events.into_iter().map(|event| self.wrap_active_event(event)).collect();
        self.commit_to_turn(record, steps, events).await
    }

    /// Sends an event of the conversation that is worked on.
    pub(super) async fn send(&self, event: Event) -> Result<(), WriteError> {
        self.context.recorder.emit(self.wrap_active_event(event)).await
    }

    /// Commits `record` with steps of the turn itself and the events that tell of them, and takes the steps into the
    /// thread.
    pub(super) async fn commit_to_turn(
        &mut self,
        record: Commit,
        steps: Vec<Step>,
        events: Vec<Event>,
    ) -> Result<(), WriteError> {
        let record = steps.iter().cloned().fold(record, Commit::step).events(events);
        self.context.recorder.commit(record).await?;
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

    /// Ends the turn well, unless it was told something in the last moment; whether it did.
    async fn try_complete(&mut self, stop_reason: StopReason) -> Result<bool, Interrupt> {
        while let Ok(command) = self.context.inbox.try_recv() {
            self.handle_command(command).await?;
        }
        let may_end = match self.thread.next_action() {
            NextAction::Complete(reason) => reason == stop_reason,
            // Nothing is left to spend on what comes next.
            NextAction::CallModel => stop_reason == StopReason::Budget,
            NextAction::RunTools(_) | NextAction::AwaitHuman(_) => false,
        };
        if !may_end {
            return Ok(false);
        }
        // What comes from here on finds no turn.
        self.context.inbox.close();
        let message_id = self.thread.turn().message_id();
        let (answer_message_id, text) = match self.thread.turn().last_answer() {
            Some((id, answer)) => (*id, answer.text()),
            // It was ended by a budget before its first answer.
            None => (MessageId::new(), String::new()),
        };
        let unsent = self.thread.turn().unsent_usage().cloned().map(Event::Usage);
        let completed = Lifecycle::Completed { message_id, answer_message_id, text, stop_reason };
        let step = Step::Ended { outcome: TurnOutcome::Completed { stop_reason } };
        let mut record = Commit::new();
        if fault_injection::active(Mutation::StoreThread) {
            let value = format!("{:?}", self.thread.messages()).into();
            record = record.working_memory(MemoryWrite { key: self.context.turn_id().to_string(), value });
        }
        let events = unsent.into_iter().chain([Event::ThreadLifecycle(completed)]).collect();
        self.commit_to_turn(record, vec![step], events).await?;
        Ok(true)
    }

    /// Ends the turn, or does not, as `stopped` says.
    pub(super) async fn handle_interrupt(self, stopped: Interrupt) -> TurnState {
        match stopped {
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

    /// The person did not answer in time.
    pub(super) async fn expire(self) -> TurnState {
        let message =
            "nobody answered in time, so the turn was ended; send the message again to go on".into();
        self.fail(Failure { code: FailureCode::HitlExpired, message, retryable: true }).await
    }

    /// Ends the turn by the user's wish. What the model has said so far stays in the conversation.
    async fn cancel(mut self, reply: Reply<TurnId>) -> TurnState {
        if let Some(leash) = &self.context.services.sandbox {
            // What its tools had begun was let go of when they were.
            leash.wait_for_teardown(CHILD_EXIT_TIMEOUT).await;
        }
        // What a sub-agent was saying is nothing that the agent said.
        let agents = self.active_sub_agent.is_some() || self.sent_by_sub_agent;
        let said = self.reconciler.sent_text().filter(|_| !agents).map(turn_end::partial_answer);
        let mut events = self.closing_events();
        let message_id = self.thread.turn().message_id();
        events.push(Event::ThreadLifecycle(Lifecycle::Cancelled { message_id }));
        let turn_id = self.context.turn_id();
        let step = Step::Ended { outcome: TurnOutcome::Cancelled { said } };
        let committed = self.commit_to_turn(Commit::new(), vec![step], events).await;
        match reply_committed(reply, turn_id, committed) {
            Ok(()) => TurnState::Ended,
            Err(stopped) => Box::pin(self.handle_interrupt(stopped)).await,
        }
    }

    /// What clients must be told so that nothing of the turn is left open: its block, and calls without a result.
    fn closing_events(&mut self) -> Vec<Event> {
        self.context
            .services
            .mcp
            .cancel_suspended_calls(self.thread.pending_hitl().iter().map(|asked| asked.call_id));
        let open = self.thread.sent_open_calls();
        let results = open.map(|call| turn_end::unknown_outcome_event(call.call_id, call.name.clone()));
        let usage = self.thread.turn().unsent_usage().cloned().map(Event::Usage);
        let closing_events: Vec<Event> = results.chain(usage).collect();
        let agents = self.sub_agent_closing_events();
        self.context.blocks.stop().into_iter().chain(agents).chain(closing_events).collect()
    }
}

/// Answers a command with `value`, if it is on record.
pub(super) fn reply_committed<T>(
    reply: Reply<T>,
    value: T,
    committed: Result<(), WriteError>,
) -> Result<(), Interrupt> {
    // Who asked may have gone.
    let _ = reply.send(committed.clone().map(|()| value).map_err(AgentError::from));
    Ok(committed?)
}
