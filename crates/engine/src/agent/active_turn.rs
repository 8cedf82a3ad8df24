//! The driver of an active turn: it performs the next action that the journal calls for and commits each step
//! before it begins the next one.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use api::citations::Citations;
use api::event::{Event, Failure, FailureCode, Lifecycle, StopReason};
use api::{MessageId, TurnId};
use futures::FutureExt as _;
use llm::ToolUse;
use store::WriteError;
use store::event_log::Commit;
use store::steps::{Step, TurnOutcome};
use tools::Delegation;
use traces::{Span, gen_ai};

use super::conversation::{ActiveAgent, Conversation};
use super::inbox::Inbox;
use super::interrupt::{Interrupt, StepOutcome, StepsOutcome, reply_committed};
use super::journal::{Journal, JournalState};
use super::model_step::ModelCaller;
use super::structured_output::{self, Verdict};
use super::sub_agent::SubAgentRun;
use super::thread::{NextAction, OpenCall};
use super::tool_calls::ToolRunner;
use super::turn_context::{TurnContext, TurnDeps, TurnSlot};
use super::turn_registry::{Command, Reply};
use super::{citations, planning, titles, turn_end, turn_span};

/// How long a cancelled turn waits for its programs to exit. They are killed, so that takes some milliseconds.
const CHILD_EXIT_TIMEOUT: Duration = Duration::from_millis(200);

/// A turn that is being run: its parts, and what performs the steps with them.
pub(super) struct ActiveTurn {
    journal: Journal,
    inbox: Inbox,
    models: ModelCaller,
    tools: ToolRunner,
    slot: TurnSlot,
    deps: TurnDeps,
}

/// How a turn stopped being active.
pub(super) enum RunOutcome {
    /// The turn has ended, or the engine is stopping.
    Ended,
    /// The turn waits for its user.
    AwaitingHuman(TurnContext),
    /// The brain could not be written. The turn stays open until it can.
    StoreUnavailable(TurnContext, WriteError),
}

impl ActiveTurn {
    /// Activates the turn of `context`, whose journal has led to `state`.
    pub(super) fn new(context: TurnContext, state: JournalState) -> Self {
        let TurnContext { deps, writer, inbox, slot } = context;
        Self {
            journal: Journal::new(writer, state),
            inbox,
            models: ModelCaller::new(deps.clone()),
            tools: ToolRunner::new(deps.clone()),
            slot,
            deps,
        }
    }

    /// Drops what only an active turn has.
    fn into_context(self) -> TurnContext {
        let Self { journal, inbox, slot, deps, .. } = self;
        TurnContext { deps, writer: journal.into_writer(), inbox, slot }
    }

    /// Runs the turn until it ends or waits for its user.
    pub(super) async fn run(self) -> RunOutcome {
        let span = turn_span::start(&self.journal);
        traces::in_span(&span, self.run_in(&span)).await
    }

    async fn run_in(mut self, span: &Span) -> RunOutcome {
        let ended = AssertUnwindSafe(self.run_to_completion()).catch_unwind().await;
        turn_span::set_outcome(span, ended.as_ref().ok());
        match ended {
            Ok(Ok(StepsOutcome::Complete(_))) => RunOutcome::Ended,
            Ok(Ok(StepsOutcome::AwaitingHuman)) => RunOutcome::AwaitingHuman(self.into_context()),
            Ok(Err(interrupt)) => self.handle_interrupt(interrupt).await,
            Err(_) => {
                tracing::error!(turn_id = %self.journal.turn_id(), "A turn panicked.");
                self.fail(turn_end::internal_failure()).await
            }
        }
    }

    /// Handles a command that arrived while the turn waited for its user. Returns the turn if it continues.
    pub(super) async fn handle_command(mut self, command: Command) -> Result<Self, RunOutcome> {
        match self.inbox.handle_command(&mut self.journal, command).await {
            // The command may not have been an answer.
            Ok(()) if matches!(self.journal.thread().next_action(), NextAction::AwaitHuman(_)) => {
                Err(RunOutcome::AwaitingHuman(self.into_context()))
            }
            Ok(()) => Ok(self),
            Err(interrupt) => Err(self.handle_interrupt(interrupt).await),
        }
    }

    async fn run_to_completion(&mut self) -> Result<StepsOutcome, Interrupt> {
        self.acquire_permit().await?;
        let agent = ActiveAgent::main(&self.deps);
        loop {
            let ended = self.run_steps(&agent).await?;
            if let StepsOutcome::Complete(reason) = ended
                && !self.try_complete(reason).await?
            {
                continue;
            }
            return Ok(ended);
        }
    }

    /// Waits for a permit to run; the number of turns that run at once is bounded.
    async fn acquire_permit(&mut self) -> Result<(), Interrupt> {
        if let Some(permit) = self.slot.acquire_permit() {
            let permit = self.inbox.run_until_stop(&mut self.journal, permit).await?;
            self.slot.keep_permit(permit);
        }
        Ok(())
    }

    /// Performs the next actions of the active conversation, which is that of `agent`, until none is left or
    /// it waits for the user.
    async fn run_steps(&mut self, agent: &ActiveAgent) -> Result<StepsOutcome, Interrupt> {
        loop {
            let thread = self.journal.active_thread();
            match thread.next_action() {
                NextAction::CallModel if planning::needs_plan(thread.turn(), &self.deps.snapshot) => {
                    self.inbox.check_stopping()?;
                    let Self { journal, inbox, deps, .. } = self;
                    planning::plan_turn(deps, &mut Conversation { agent, journal, inbox }).await?;
                }
                NextAction::CallModel => {
                    self.inbox.check_stopping()?;
                    if self.call_model(agent).await? == StepOutcome::BudgetExhausted {
                        return Ok(StepsOutcome::Complete(StopReason::Budget));
                    }
                }
                NextAction::RunTools(calls) => {
                    self.inbox.check_stopping()?;
                    self.run_tools(agent, calls).await?;
                }
                NextAction::AwaitHuman(_) => return Ok(StepsOutcome::AwaitingHuman),
                NextAction::Complete(reason) => return Ok(StepsOutcome::Complete(reason)),
            }
        }
    }

    async fn call_model(&mut self, agent: &ActiveAgent) -> Result<StepOutcome, Interrupt> {
        let Self { journal, inbox, models, .. } = self;
        models.call(&mut Conversation { agent, journal, inbox }).await
    }

    /// Handles the calls of an answer.
    async fn run_tools(&mut self, agent: &ActiveAgent, calls: Vec<OpenCall>) -> Result<(), Interrupt> {
        let Self { journal, inbox, tools, .. } = self;
        let delegated = tools.run(&mut Conversation { agent, journal, inbox }, calls).await?;
        for call in delegated {
            // One after another, and none while a request is pending: see `Thread::next_action`.
            if !self.journal.thread().pending_hitl().is_empty() {
                break;
            }
            self.inbox.check_stopping()?;
            let (call, delegation) = call.commit_intent(&mut self.journal).await?;
            self.run_sub_agent(call, delegation).await?;
        }
        Ok(())
    }

    /// Runs the sub-agent of a call, from its beginning or from where it was interrupted.
    async fn run_sub_agent(&mut self, call: ToolUse, delegation: Delegation) -> Result<(), Interrupt> {
        let span = gen_ai::invoke_sub_agent(&delegation.agent.name);
        let run = SubAgentRun::begin(&self.deps, &mut self.journal, call, delegation).await?;
        let ended = Box::pin(traces::in_span(&span, self.run_steps(run.agent()))).await;
        run.end(&self.deps, &mut self.journal, ended).await
    }

    /// Completes the turn unless a command arrived at the last moment, or its answer must be corrected. Returns
    /// whether it did.
    async fn try_complete(&mut self, stop_reason: StopReason) -> Result<bool, Interrupt> {
        self.inbox.handle_arrived(&mut self.journal).await?;
        let may_end = match self.journal.thread().next_action() {
            NextAction::Complete(reason) => reason == stop_reason,
            // No budget is left for the next model call.
            NextAction::CallModel => stop_reason == StopReason::Budget,
            NextAction::RunTools(_) | NextAction::AwaitHuman(_) => false,
        };
        if !may_end {
            return Ok(false);
        }
        match structured_output::judge(self.journal.thread().turn(), stop_reason) {
            Verdict::Accepted => {}
            Verdict::Rejected(errors) => {
                let step = Step::OutputRejected { message_id: MessageId::new(), errors };
                self.journal.commit_to_turn(Commit::new(), vec![step], Vec::new()).await?;
                return Ok(false);
            }
            Verdict::Failed(failure) => return Err(Interrupt::Failed(failure)),
        }
        // Commands sent from here on find no turn.
        self.inbox.close();
        let turn = self.journal.thread().turn();
        let message_id = turn.message_id();
        let (answer_message_id, text) = match turn.last_answer() {
            Some((id, answer)) => (*id, answer.text()),
            // A budget ended the turn before its first answer.
            None => (MessageId::new(), String::new()),
        };
        let unsent = turn.unsent_usage().cloned().map(Event::Usage);
        let completed = Lifecycle::Completed { message_id, answer_message_id, text, stop_reason };
        let cited = self.citations();
        let steps = cited.iter().map(|Citations { message_id, citations }| Step::Cited {
            message_id: *message_id,
            citations: citations.clone(),
        });
        let steps = steps.chain([Step::Ended { outcome: TurnOutcome::Completed { stop_reason } }]).collect();
        let cited = cited.map(Event::Citations);
        let events = unsent.into_iter().chain(cited).chain([Event::ThreadLifecycle(completed)]).collect();
        let is_titled = titles::route(&self.deps.services).is_some();
        let commit = if is_titled { Commit::new().request_title() } else { Commit::new() };
        self.journal.commit_to_turn(commit, steps, events).await?;
        if is_titled {
            self.deps.brain.notify_title_request();
        }
        Ok(true)
    }

    /// The pages that the turn's answer names; `None` if it names none. An answer of a given form is data, in which
    /// brackets mean something else.
    fn citations(&self) -> Option<Citations> {
        let thread = self.journal.thread();
        let has_form = structured_output::format_of(thread.turn()).is_some();
        let (message_id, answer) = thread.turn().last_answer().filter(|_| !has_form)?;
        let citations = citations::of_answer(&answer.text(), thread.branch().citable_pages());
        (!citations.is_empty()).then_some(Citations { message_id: *message_id, citations })
    }

    /// Handles the reason why the turn stopped: ends it, or leaves it open to be resumed.
    async fn handle_interrupt(self, interrupt: Interrupt) -> RunOutcome {
        match interrupt {
            Interrupt::Failed(failure) => self.fail(failure).await,
            Interrupt::Cancelled(reply) => self.cancel(reply).await,
            Interrupt::EngineStopping => RunOutcome::Ended,
            Interrupt::StoreUnavailable(error) => RunOutcome::StoreUnavailable(self.into_context(), error),
        }
    }

    /// Ends the turn because the user did not answer in time.
    pub(super) async fn expire(self) -> RunOutcome {
        let message =
            "nobody answered in time, so the turn was ended; send the message again to continue".into();
        self.fail(Failure { code: FailureCode::HitlExpired, message, retryable: true }).await
    }

    /// Ends the turn with `failure`.
    async fn fail(mut self, failure: Failure) -> RunOutcome {
        self.abandon_suspended_calls();
        let committed = self.journal.commit_failure(failure).await;
        self.ended(committed)
    }

    /// Ends the turn because the user cancelled it. What the model has said so far stays in the conversation.
    async fn cancel(mut self, reply: Reply<TurnId>) -> RunOutcome {
        if let Some(sandbox) = &self.deps.services.sandbox {
            // The programs that its tools started were released together with the tools.
            sandbox.wait_for_teardown(CHILD_EXIT_TIMEOUT).await;
        }
        let partial_answer = self.journal.partial_text().map(turn_end::partial_answer);
        self.abandon_suspended_calls();
        let mut events = self.journal.closing_events();
        let message_id = self.journal.thread().turn().message_id();
        events.push(Event::ThreadLifecycle(Lifecycle::Cancelled { message_id }));
        let step = Step::Ended { outcome: TurnOutcome::Cancelled { said: partial_answer } };
        let committed = self.journal.commit_to_turn(Commit::new(), vec![step], events).await;
        let committed = reply_committed(reply, self.journal.turn_id(), committed);
        self.ended(committed)
    }

    /// Cancels the calls of tool servers that wait for the user's answer.
    fn abandon_suspended_calls(&self) {
        let pending = self.journal.thread().pending_hitl().iter().map(|pending| pending.call_id);
        self.deps.services.mcp.cancel_suspended_calls(pending);
    }

    /// The outcome after the end of the turn was committed, or could not be.
    fn ended(self, committed: Result<(), WriteError>) -> RunOutcome {
        match committed {
            Ok(()) => RunOutcome::Ended,
            Err(error) => RunOutcome::StoreUnavailable(self.into_context(), error),
        }
    }
}
