//! A turn at work: does what its journal says comes next, and commits each step before the next begins.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use contract::event::{
    Event, Failure, FailureCode, Lifecycle, StopReason, ToolCall, ToolResult, WorkingMemoryUpdate,
};
use contract::{MessageId, TurnId};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};

use super::Means;
use super::stream::Blocks;
use super::telling::{Tell, Telling};
use super::thread::{Next, OUTCOME_UNKNOWN, OpenCall, Thread};
use crate::brain::WriteError;
use crate::brain::steps::{Step, TurnOutcome};
use crate::channel::{Record, Recorder};
use crate::models::{Answer, ModelError, ModelErrorKind, Part, Request, Retry, ToolOutcome, ToolUse};
use crate::tools::{Invocation, Tool, ToolOutput, ToolStep};

/// See the module.
pub(super) struct TurnRun {
    recorder: Recorder,
    means: Arc<Means>,
    thread: Thread,
    blocks: Blocks,
    telling: Telling,
    /// How many starts of the engine have taken up the model step under way.
    starts: u32,
}

/// What clients were told of a turn before it is run.
#[derive(Default)]
pub(super) struct Told {
    /// The blocks of its stream.
    pub(super) blocks: Blocks,
    /// What they have of the model step under way.
    pub(super) telling: Telling,
    /// How many starts of the engine have taken the step up.
    pub(super) starts: u32,
}

/// Why a turn cannot go on.
enum Stopped {
    /// It failed, and says so.
    Failed(Failure),
    /// The brain cannot be written, so nothing can be said. The turn stays open and goes on at the next start.
    Unwritable(WriteError),
}

impl From<WriteError> for Stopped {
    fn from(error: WriteError) -> Self {
        Self::Unwritable(error)
    }
}

impl TurnRun {
    /// A turn whose journal is `thread`, and of which clients were told `told`.
    pub(super) fn new(recorder: Recorder, means: Arc<Means>, thread: Thread, told: Told) -> Self {
        let Told { blocks, telling, starts } = told;
        Self { recorder, means, thread, blocks, telling, starts }
    }

    fn turn_id(&self) -> TurnId {
        self.recorder.turn_id()
    }

    /// Tells that the turn goes on after a restart, and runs it to its end.
    pub(super) async fn resume(self) {
        let message_id = self.thread.turn().message_id();
        let resumed = Event::ThreadLifecycle(Lifecycle::Resumed { message_id });
        match self.recorder.commit(Record::new().event(resumed)).await {
            Ok(()) => self.run().await,
            Err(error) => tracing::error!(%error, turn.id = %self.turn_id(), "A turn could not be taken up."),
        }
    }

    /// Runs the turn to its end.
    pub(super) async fn run(mut self) {
        let ended = AssertUnwindSafe(self.steps()).catch_unwind().await;
        let failure = match ended {
            Ok(Ok(())) => return,
            Ok(Err(Stopped::Failed(failure))) => failure,
            Ok(Err(Stopped::Unwritable(error))) => {
                tracing::error!(%error, turn.id = %self.turn_id(), "A turn stopped; it goes on at the next start.");
                return;
            }
            Err(_) => {
                tracing::error!(turn.id = %self.turn_id(), "A turn panicked.");
                unexpected()
            }
        };
        self.fail(failure).await;
    }

    async fn steps(&mut self) -> Result<(), Stopped> {
        loop {
            match self.thread.next() {
                Next::AskModel => self.ask_model().await?,
                Next::RunTools(calls) => self.run_tools(calls).await?,
                Next::Complete(reason) => return self.complete(reason).await,
            }
        }
    }

    /// Commits a step with the events that tell of it, and takes it into the thread.
    async fn commit(&mut self, step: Step, events: Vec<Event>) -> Result<(), WriteError> {
        let record = events.into_iter().fold(Record::new().step(step.clone()), Record::event);
        self.recorder.commit(record).await?;
        self.thread.apply(step, self.recorder.last_ts());
        Ok(())
    }

    /// One model step: attempts until one succeeds or there is no hope.
    async fn ask_model(&mut self) -> Result<(), Stopped> {
        let mut retry = Retry::first();
        loop {
            let error = match self.attempt(retry.attempt()).await? {
                Ok((model, answer)) => {
                    self.means.gateway.note(Ok(()));
                    self.starts = 0;
                    return Ok(self.answered(model, answer).await?);
                }
                Err(error) => error,
            };
            self.means.gateway.note(Err(&error));
            let attempt = retry.attempt();
            let Some(delay) = retry.after(&error, self.means.clock.monotonic(), jitter()) else {
                return Err(Stopped::Failed(failure(&error)));
            };
            tracing::warn!(turn.id = %self.turn_id(), attempt, %error, "A model call failed and is repeated.");
            self.means.clock.sleep(delay).await;
        }
    }

    /// Asks the model once, and tells of its answer while it comes.
    async fn attempt(&mut self, attempt: u32) -> Result<Result<(String, Answer), ModelError>, WriteError> {
        let model = match self.means.gateway.model() {
            Ok(model) => model,
            Err(error) => return Ok(Err(error)),
        };
        self.telling.begin_attempt();
        let mut parts = model.ask(&Request {
            system: &self.means.soul,
            messages: self.thread.messages(),
            tools: self.means.toolbox.specs(),
            thinking: self.thread.turn().options().super_thinking,
        });
        while let Some(part) = parts.next().await {
            match part {
                Ok(Part::Done(answer)) => {
                    let last = self.telling.finish();
                    self.tell(last, attempt).await?;
                    return Ok(Ok((model.name().to_owned(), answer)));
                }
                Ok(part) => {
                    let next = self.telling.tell(part);
                    self.tell(next, attempt).await?;
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Err(ModelError::new(ModelErrorKind::Broken, "the provider's answer ended before it was whole")))
    }

    async fn tell(&mut self, tell: Vec<Tell>, attempt: u32) -> Result<(), WriteError> {
        for tell in tell {
            let event = match tell {
                Tell::Show(Part::Start(kind)) => Some(self.blocks.start(kind)),
                Tell::Show(Part::Delta(text)) => self.blocks.delta(text),
                Tell::Show(Part::Stop) => self.blocks.stop(),
                Tell::Show(Part::Done(_)) => None,
                Tell::Void => {
                    if let Some(stop) = self.blocks.stop() {
                        self.recorder.event(stop).await?;
                    }
                    let turn = self.thread.turn();
                    let (message_id, void_after) = (turn.message_id(), turn.step_ts());
                    let attempt = self.starts + attempt;
                    Some(Event::ThreadLifecycle(Lifecycle::Retrying { message_id, void_after, attempt }))
                }
            };
            if let Some(event) = event {
                self.recorder.event(event).await?;
            }
        }
        Ok(())
    }

    async fn answered(&mut self, model: String, answer: Answer) -> Result<(), WriteError> {
        let mut usage = self.thread.turn().usage().clone();
        answer.usage.add_to(&mut usage);
        usage.model.clone_from(&model);
        let step = Step::Answered { message_id: MessageId::new(), model, answer };
        self.commit(step, vec![Event::Usage(usage)]).await
    }

    /// Sees to all calls of an answer: those that were under way when the engine stopped, and new ones.
    async fn run_tools(&mut self, calls: Vec<OpenCall>) -> Result<(), Stopped> {
        let mut ready = Vec::new();
        let mut fresh = Vec::new();
        for OpenCall { call, intended } in calls {
            let tool = self.means.toolbox.find(&call.name);
            match (tool, &call.broken) {
                (_, Some(reason)) => self.refuse(&call, reason.clone(), true).await?,
                (Some(tool), None) if !intended => {
                    fresh.push((call.clone(), tool.idempotent()));
                    ready.push((call, tool));
                }
                (Some(tool), None) if tool.idempotent() => ready.push((call, tool)),
                // It may have run, also if the tool is no longer there.
                (_, None) if intended => self.refuse(&call, OUTCOME_UNKNOWN.into(), false).await?,
                (_, None) => {
                    let reason = format!("there is no tool called `{}`", call.name);
                    self.refuse(&call, reason, true).await?;
                }
            }
        }
        self.intend(fresh).await?;
        let mut running: FuturesUnordered<_> =
            ready.into_iter().map(|(call, tool)| run(call, tool)).collect();
        while let Some((call, outcome, memory)) = running.next().await {
            self.resulted(&call, outcome, memory).await?;
        }
        Ok(())
    }

    /// Puts on record that these calls are about to run, before the first of them does.
    async fn intend(&mut self, calls: Vec<(ToolUse, bool)>) -> Result<(), WriteError> {
        if calls.is_empty() {
            return Ok(());
        }
        let mut record = Record::new();
        let mut steps = Vec::new();
        for (call, idempotent) in calls {
            let step = Step::Intended { call_id: call.call_id };
            record = record.step(step.clone()).event(tool_call(&call));
            if !idempotent {
                record = record.against_power_loss();
            }
            steps.push(step);
        }
        self.recorder.commit(record).await?;
        let ts = self.recorder.last_ts();
        for step in steps {
            self.thread.apply(step, ts);
        }
        Ok(())
    }

    /// A call that is not run, or not again. `tell` where no client has seen it yet.
    async fn refuse(&mut self, call: &ToolUse, reason: String, tell: bool) -> Result<(), WriteError> {
        let outcome = ToolOutcome { output: String::new(), error: Some(reason), duration_ms: 0 };
        let mut events: Vec<Event> = tell.then(|| tool_call(call)).into_iter().collect();
        events.push(tool_result(call, &outcome));
        self.commit(Step::Resulted { call_id: call.call_id, outcome }, events).await
    }

    async fn resulted(
        &mut self,
        call: &ToolUse,
        outcome: ToolOutcome,
        memory: Vec<(String, serde_json::Value)>,
    ) -> Result<(), WriteError> {
        let event = tool_result(call, &outcome);
        let step = Step::Resulted { call_id: call.call_id, outcome };
        let mut record = Record::new().step(step.clone());
        for (key, value) in memory {
            let update = WorkingMemoryUpdate { key: key.clone(), value: value.clone() };
            record = record.working_memory(key, value).event(Event::WorkingMemoryUpdate(update));
        }
        self.recorder.commit(record.event(event)).await?;
        self.thread.apply(step, self.recorder.last_ts());
        Ok(())
    }

    async fn complete(&mut self, stop_reason: StopReason) -> Result<(), Stopped> {
        let message_id = self.thread.turn().message_id();
        let (answer_message_id, text) = match self.thread.turn().last_answer() {
            Some((id, answer)) => (*id, answer.text()),
            // A turn completes only after an answer.
            None => (MessageId::new(), String::new()),
        };
        let completed = Lifecycle::Completed { message_id, answer_message_id, text, stop_reason };
        let step = Step::Ended { outcome: TurnOutcome::Completed { stop_reason } };
        Ok(self.commit(step, vec![Event::ThreadLifecycle(completed)]).await?)
    }

    /// Ends the turn with `failure`.
    pub(super) async fn fail(mut self, failure: Failure) {
        let open_block = self.blocks.stop();
        end_errored(&self.recorder, self.thread.turn().message_id(), open_block, failure).await;
    }
}

/// Ends a turn with `failure`: the last two events are that it errored and why.
pub(super) async fn end_errored(
    recorder: &Recorder,
    message_id: MessageId,
    open_block: Option<Event>,
    failure: Failure,
) {
    let turn_id = recorder.turn_id();
    tracing::warn!(turn.id = %turn_id, code = ?failure.code, message = failure.message, "A turn failed.");
    let mut record =
        Record::new().step(Step::Ended { outcome: TurnOutcome::Errored { failure: failure.clone() } });
    if let Some(stop) = open_block {
        record = record.event(stop);
    }
    let errored = Event::ThreadLifecycle(Lifecycle::Errored { message_id });
    if let Err(error) = recorder.commit(record.event(errored).event(Event::Error(failure))).await {
        tracing::error!(%error, turn.id = %turn_id, "A failed turn could not be ended.");
    }
}

/// Runs one tool. What goes wrong in it becomes the call's outcome.
async fn run(call: ToolUse, tool: Arc<dyn Tool>) -> (ToolUse, ToolOutcome, Vec<(String, serde_json::Value)>) {
    let began = std::time::Instant::now();
    let result = AssertUnwindSafe(tool.run(Invocation { input: call.input.clone(), answers: Vec::new() }))
        .catch_unwind()
        .await;
    let duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let failed = |error: String| ToolOutcome { output: String::new(), error: Some(error), duration_ms };
    let (outcome, memory) = match result {
        Ok(Ok(ToolStep::Done(ToolOutput { text, working_memory }))) => {
            (ToolOutcome { output: text, error: None, duration_ms }, working_memory)
        }
        Ok(Ok(ToolStep::Ask(_))) => (failed("nobody can be asked".into()), Vec::new()),
        Ok(Err(error)) => (failed(error.0), Vec::new()),
        Err(_) => (failed("the tool crashed".into()), Vec::new()),
    };
    (call, outcome, memory)
}

fn tool_call(call: &ToolUse) -> Event {
    Event::ToolCall(ToolCall {
        tool_call_id: call.call_id,
        tool: call.name.clone(),
        input: call.input.clone(),
    })
}

fn tool_result(call: &ToolUse, outcome: &ToolOutcome) -> Event {
    Event::ToolResult(ToolResult {
        tool_call_id: call.call_id,
        tool: call.name.clone(),
        output: outcome.output.clone(),
        error: outcome.error.clone(),
        duration_ms: outcome.duration_ms,
    })
}

fn failure(error: &ModelError) -> Failure {
    let (code, retryable) = match error.kind {
        ModelErrorKind::NotConfigured => (FailureCode::ProviderNotConfigured, false),
        ModelErrorKind::Auth => (FailureCode::ProviderAuth, false),
        ModelErrorKind::Refused => (FailureCode::ProviderRefused, false),
        ModelErrorKind::Quota => (FailureCode::ProviderUnavailable, false),
        ModelErrorKind::Busy | ModelErrorKind::Broken => (FailureCode::ProviderUnavailable, true),
    };
    Failure { code, message: error.message.clone(), retryable }
}

/// What a client is told of a failure that is ours.
pub(super) fn unexpected() -> Failure {
    let message = "unexpected failure; the engine's log has the details".into();
    Failure { code: FailureCode::InternalError, message, retryable: false }
}

/// A random number from 0 to 1. Without randomness all engines back off alike, which is no reason to fail.
fn jitter() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}
