//! A turn at work: does what its journal says comes next, and commits each step before the next begins.

use std::panic::AssertUnwindSafe;
use std::pin::pin;

use contract::event::{Event, Failure, FailureCode, Lifecycle, StopReason};
use contract::{MessageId, TurnId};
use futures::{FutureExt as _, StreamExt as _};

use super::life::{Life, State};
use super::running::{Command, Reply};
use super::telling::{Tell, Telling};
use super::thread::{Next, Thread};
use super::{AgentError, ending};
use crate::brain::WriteError;
use crate::brain::steps::{MemoryWrite, Step, TurnOutcome};
use crate::channel::Record;
use crate::models::{self, Answer, ModelError, ModelErrorKind, Part, Repaired, Request, Retry, Tokens};
use crate::sabotage::{self, Saboteur};

/// See the module.
pub(super) struct TurnRun {
    pub(super) life: Life,
    pub(super) thread: Thread,
    /// What clients have of the model step under way.
    telling: Telling,
    /// How many starts of the engine have taken up the model step under way.
    starts: u32,
}

/// Why a turn goes no further.
pub(super) enum Stopped {
    /// It failed, and says so.
    Failed(Failure),
    /// The user cancelled it.
    Cancelled(Reply<TurnId>),
    /// The engine stops. The turn goes on at the next start.
    ForNow,
    /// The brain cannot be written, so nothing can be said. The turn stays open until it can.
    Unwritable(WriteError),
}

impl From<WriteError> for Stopped {
    fn from(error: WriteError) -> Self {
        Self::Unwritable(error)
    }
}

/// How far a turn came.
enum Pace {
    /// To its end.
    Ended,
    /// To where a person is needed.
    Rests,
}

impl TurnRun {
    /// A turn whose journal is `thread`. Of its model step under way clients have what `telling` says, and
    /// `starts` starts of the engine have taken it up.
    pub(super) fn new(life: Life, thread: Thread, telling: Telling, starts: u32) -> Self {
        Self { life, thread, telling, starts }
    }

    /// Runs the turn to its end, or to where a person is needed.
    pub(super) async fn go(mut self) -> State {
        let ended = AssertUnwindSafe(self.steps()).catch_unwind().await;
        match ended {
            Ok(Ok(Pace::Ended)) => State::Over,
            Ok(Ok(Pace::Rests)) => State::Resting(self.life.rest()),
            Ok(Err(stopped)) => self.stop(stopped).await,
            Err(_) => {
                tracing::error!(turn.id = %self.life.turn_id(), "A turn panicked.");
                self.fail(ending::unexpected()).await
            }
        }
    }

    async fn steps(&mut self) -> Result<Pace, Stopped> {
        self.take_place().await?;
        loop {
            match self.thread.next() {
                Next::AskModel => self.before_step()?.ask_model().await?,
                Next::RunTools(calls) => self.before_step()?.run_tools(calls).await?,
                Next::Wait(_) => return Ok(Pace::Rests),
                Next::Complete(reason) => {
                    if self.complete(reason).await? {
                        return Ok(Pace::Ended);
                    }
                }
            }
        }
    }

    /// Waits until the turn is one of those that may run at once.
    async fn take_place(&mut self) -> Result<(), Stopped> {
        if self.life.place.is_none() {
            let place = self.life.places.clone().acquire_owned();
            self.life.place = self.attend_until_stop(place).await?.ok();
        }
        Ok(())
    }

    /// Between two steps a turn stops if the engine does.
    fn before_step(&mut self) -> Result<&mut Self, Stopped> {
        if self.life.stopping.is_cancelled() { Err(Stopped::ForNow) } else { Ok(self) }
    }

    /// Waits for `work`, and meanwhile does what it is told.
    pub(super) async fn attend<F: Future>(&mut self, work: F) -> Result<F::Output, Stopped> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                Some(command) = self.life.inbox.recv() => self.obey(command).await?,
                output = &mut work => return Ok(output),
            }
        }
    }

    /// As [`TurnRun::attend`], for work that a stop of the engine need not wait for.
    async fn attend_until_stop<F: Future>(&mut self, work: F) -> Result<F::Output, Stopped> {
        let stopping = self.life.stopping.clone();
        let either = async move {
            tokio::select! {
                biased;
                () = stopping.cancelled() => None,
                output = work => Some(output),
            }
        };
        self.attend(either).await?.ok_or(Stopped::ForNow)
    }

    /// Does what the turn is told.
    pub(super) async fn obey(&mut self, command: Command) -> Result<(), Stopped> {
        match command {
            Command::Cancel(reply) if sabotage::by(Saboteur::IgnoreCancel) => {
                let _ = reply.send(Ok(self.life.turn_id()));
                Ok(())
            }
            Command::Cancel(reply) => Err(Stopped::Cancelled(reply)),
            Command::Steer(message, reply) => {
                let message_id = MessageId::new();
                let committed = self.commit(Step::Steered { message_id, message }, Vec::new()).await;
                answer(reply, message_id, committed)
            }
            Command::Respond(response, reply, _at_work) => self.respond(response, reply).await,
        }
    }

    /// Commits a step with the events that tell of it, and takes it into the thread.
    pub(super) async fn commit(&mut self, step: Step, events: Vec<Event>) -> Result<(), WriteError> {
        self.commit_all(Record::new(), vec![step], events).await
    }

    /// Commits `record` with steps and the events that tell of them, and takes the steps into the thread.
    pub(super) async fn commit_all(
        &mut self,
        record: Record,
        steps: Vec<Step>,
        events: Vec<Event>,
    ) -> Result<(), WriteError> {
        let record = steps.iter().cloned().fold(record, Record::step).events(events);
        self.life.recorder.commit(record).await?;
        let ts = self.life.recorder.last_ts();
        for step in steps {
            if step.moves_on() {
                self.starts = 0;
                self.life.stranded = 0;
            }
            self.thread.apply(step, ts);
        }
        Ok(())
    }

    /// One model step: attempts until one succeeds or there is no hope.
    async fn ask_model(&mut self) -> Result<(), Stopped> {
        let mut retry = Retry::first();
        loop {
            let error = match self.attempt(retry.attempt()).await? {
                Ok((model, answer)) => {
                    self.life.means.gateway.note(Ok(()));
                    return Ok(self.answered(model, answer).await?);
                }
                Err(error) => error,
            };
            self.life.means.gateway.note(Err(&error));
            self.spent(error.spent).await?;
            let attempt = retry.attempt();
            let now = self.life.means.clock.monotonic();
            let Some(delay) = retry.after(&error, now, jitter()) else {
                return Err(Stopped::Failed(ending::provider_failure(&error)));
            };
            let turn_id = self.life.turn_id();
            tracing::warn!(turn.id = %turn_id, attempt, kind = ?error.kind, "A model call failed and is repeated.");
            let clock = self.life.means.clock.clone();
            self.attend_until_stop(async move { clock.sleep(delay).await }).await?;
        }
    }

    /// Asks the model once, and tells of its answer while it comes.
    async fn attempt(&mut self, attempt: u32) -> Result<Result<(String, Answer), ModelError>, Stopped> {
        let means = self.life.means.clone();
        let model = match means.gateway.model() {
            Ok(model) => model,
            Err(error) => return Ok(Err(error)),
        };
        self.telling.begin_attempt();
        let repaired = self.repaired();
        let messages = repaired.as_ref().map_or(self.thread.messages(), |repaired| &repaired.messages);
        let mut parts = model.ask(&Request {
            system: &means.soul,
            messages,
            tools: means.toolbox.specs(),
            thinking: self.thread.turn().options().super_thinking,
        });
        while let Some(part) = self.attend(parts.next()).await? {
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

    /// The conversation as every vendor takes it, where what there is would be refused.
    fn repaired(&self) -> Option<Repaired> {
        if sabotage::by(Saboteur::LeaveCallsOpen) {
            return None;
        }
        let repaired = models::repair(self.thread.messages())?;
        for note in &repaired.notes {
            tracing::warn!(turn.id = %self.life.turn_id(), note, "The conversation had to be repaired.");
        }
        Some(repaired)
    }

    async fn tell(&mut self, tell: Vec<Tell>, attempt: u32) -> Result<(), WriteError> {
        for tell in tell {
            let event = match tell {
                Tell::Show(Part::Start(kind)) => Some(self.life.blocks.start(kind)),
                Tell::Show(Part::Delta(text)) => self.life.blocks.delta(text),
                Tell::Show(Part::Stop) => self.life.blocks.stop(),
                Tell::Show(Part::Done(_)) => None,
                Tell::Void => {
                    if let Some(stop) = self.life.blocks.stop() {
                        self.life.recorder.event(stop).await?;
                    }
                    let turn = self.thread.turn();
                    let (message_id, void_after) = (turn.message_id(), turn.step_ts());
                    let attempt = self.starts + attempt;
                    Some(Event::ThreadLifecycle(Lifecycle::Retrying { message_id, void_after, attempt }))
                }
            };
            if let Some(event) = event {
                self.life.recorder.event(event).await?;
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

    /// A failed attempt is billed too.
    async fn spent(&mut self, tokens: Tokens) -> Result<(), WriteError> {
        if tokens == Tokens::default() {
            return Ok(());
        }
        let model = self.life.means.gateway.model().map(|model| model.name().to_owned()).unwrap_or_default();
        // Clients are told with the answer, or at the end.
        self.commit(Step::Spent { model, tokens }, Vec::new()).await
    }

    /// Ends the turn well, unless it was told something in the last moment; whether it did.
    async fn complete(&mut self, stop_reason: StopReason) -> Result<bool, Stopped> {
        while let Ok(command) = self.life.inbox.try_recv() {
            self.obey(command).await?;
        }
        if self.thread.next() != Next::Complete(stop_reason) {
            return Ok(false);
        }
        // What comes from here on finds no turn.
        self.life.inbox.close();
        let message_id = self.thread.turn().message_id();
        let (answer_message_id, text) = match self.thread.turn().last_answer() {
            Some((id, answer)) => (*id, answer.text()),
            // A turn completes only after an answer.
            None => (MessageId::new(), String::new()),
        };
        let completed = Lifecycle::Completed { message_id, answer_message_id, text, stop_reason };
        let step = Step::Ended { outcome: TurnOutcome::Completed { stop_reason } };
        let mut record = Record::new();
        if sabotage::by(Saboteur::StoreThread) {
            let value = format!("{:?}", self.thread.messages()).into();
            record = record.memory(MemoryWrite { key: self.life.turn_id().to_string(), value });
        }
        self.commit_all(record, vec![step], vec![Event::ThreadLifecycle(completed)]).await?;
        Ok(true)
    }

    /// Ends the turn, or does not, as `stopped` says.
    pub(super) async fn stop(self, stopped: Stopped) -> State {
        match stopped {
            Stopped::Failed(failure) => self.fail(failure).await,
            Stopped::Cancelled(reply) => self.cancel(reply).await,
            Stopped::ForNow => State::Over,
            Stopped::Unwritable(error) => self.life.strand(&error),
        }
    }

    /// Ends the turn with `failure`.
    async fn fail(mut self, failure: Failure) -> State {
        let before = self.closing();
        match ending::errored(&self.life.recorder, self.life.message_id, before, failure).await {
            Ok(()) => State::Over,
            Err(error) => self.life.strand(&error),
        }
    }

    /// The person did not answer in time.
    pub(super) async fn expire(self) -> State {
        let message =
            "nobody answered in time, so the turn was ended; send the message again to go on".into();
        self.fail(Failure { code: FailureCode::HitlExpired, message, retryable: true }).await
    }

    /// Ends the turn by the user's wish. What the model has said so far stays in the conversation.
    async fn cancel(mut self, reply: Reply<TurnId>) -> State {
        let said = self.telling.text().map(ending::said);
        let mut events = self.closing();
        let message_id = self.thread.turn().message_id();
        events.push(Event::ThreadLifecycle(Lifecycle::Cancelled { message_id }));
        let turn_id = self.life.turn_id();
        let committed = self.commit(Step::Ended { outcome: TurnOutcome::Cancelled { said } }, events).await;
        match answer(reply, turn_id, committed) {
            Ok(()) => State::Over,
            Err(stopped) => Box::pin(self.stop(stopped)).await,
        }
    }

    /// What clients must be told so that nothing of the turn is left open: its block, and calls without a result.
    fn closing(&mut self) -> Vec<Event> {
        let open = self.thread.calls_told_open();
        let results = open.map(|call| ending::without_result(call.call_id, call.name.clone()));
        let usage = self.thread.turn().usage_untold().cloned().map(Event::Usage);
        self.life.blocks.stop().into_iter().chain(results).chain(usage).collect()
    }
}

/// Answers a command with `value`, if it is on record.
pub(super) fn answer<T>(reply: Reply<T>, value: T, committed: Result<(), WriteError>) -> Result<(), Stopped> {
    // Who asked may have gone.
    let _ = reply.send(committed.clone().map(|()| value).map_err(AgentError::from));
    Ok(committed?)
}

/// A random number from 0 to 1. Without randomness all engines back off alike, which is no reason to fail.
fn jitter() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}
