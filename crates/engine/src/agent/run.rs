//! A turn at work: does what its journal says comes next, and commits each step before the next begins.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use contract::event::{Event, Failure, FailureCode, Lifecycle, StopReason};
use contract::{MessageId, TurnId};
use futures::FutureExt as _;

use super::delegate::Focus;
use super::life::{Life, State};
use super::model_step::Asked;
use super::running::{Command, Reply};
use super::telling::Telling;
use super::thread::{Next, Thread};
use super::{AgentError, ending};
use crate::brain::WriteError;
use crate::brain::steps::{MemoryWrite, Step, TurnOutcome};
use crate::channel::Record;
use crate::sabotage::{self, Saboteur};
use crate::tools::Offer;

/// How long a cancelled turn waits for its programs to be gone. They are killed, so that takes some milliseconds.
const CHILDREN_END: Duration = Duration::from_millis(200);

/// See the module.
pub(super) struct TurnRun {
    pub(super) life: Life,
    pub(super) thread: Thread,
    /// What clients have of the model step under way.
    pub(super) telling: Telling,
    /// How many starts of the engine have taken up the model step under way.
    pub(super) starts: u32,
    /// The model that answered last, where that is not the one that should have: it is asked first for the rest of
    /// the turn.
    pub(super) stand_in: Option<String>,
    /// The sub-agent that is at work, if one is.
    pub(super) focus: Option<Focus>,
    /// The tools that the agent may call.
    pub(super) offer: Arc<Offer>,
    /// Whether what clients have of the step under way is a sub-agent's.
    pub(super) agent_told: bool,
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
        let offer = life.kit.toolbox.offer(life.means.gateway.window());
        Self { life, thread, telling, starts, stand_in: None, focus: None, offer, agent_told: false }
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
                Next::AskModel if self.must_plan() => self.before_step()?.plan().await?,
                Next::AskModel => {
                    if self.before_step()?.ask_model().await? == Asked::NoBudget
                        && self.complete(StopReason::Budget).await?
                    {
                        return Ok(Pace::Ended);
                    }
                }
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
    pub(super) fn before_step(&mut self) -> Result<&mut Self, Stopped> {
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
    pub(super) async fn attend_until_stop<F: Future>(&mut self, work: F) -> Result<F::Output, Stopped> {
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
                // It is for the agent that the user talks to, also while a sub-agent is at work.
                let step = Step::Steered { message_id, message };
                let committed = self.record(Record::new(), vec![step], Vec::new()).await;
                answer(reply, message_id, committed)
            }
            Command::Respond(response, reply, _at_work) => self.respond(response, reply).await,
        }
    }

    /// Commits a step of the conversation that is worked on with the events that tell of it, and takes it into the
    /// thread.
    pub(super) async fn commit(&mut self, step: Step, events: Vec<Event>) -> Result<(), WriteError> {
        self.commit_all(Record::new(), vec![step], events).await
    }

    /// Commits `record` with steps of the conversation that is worked on and the events that tell of them, and takes
    /// the steps into the thread.
    pub(super) async fn commit_all(
        &mut self,
        record: Record,
        steps: Vec<Step>,
        events: Vec<Event>,
    ) -> Result<(), WriteError> {
        let steps = steps.into_iter().map(|step| self.as_step_of_focus(step)).collect();
        let events = events.into_iter().map(|event| self.as_event_of_focus(event)).collect();
        self.record(record, steps, events).await
    }

    /// Sends an event of the conversation that is worked on.
    pub(super) async fn send(&self, event: Event) -> Result<(), WriteError> {
        self.life.recorder.event(self.as_event_of_focus(event)).await
    }

    /// Commits `record` with steps of the turn itself and the events that tell of them, and takes the steps into the
    /// thread.
    pub(super) async fn record(
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

    /// Ends the turn well, unless it was told something in the last moment; whether it did.
    async fn complete(&mut self, stop_reason: StopReason) -> Result<bool, Stopped> {
        while let Ok(command) = self.life.inbox.try_recv() {
            self.obey(command).await?;
        }
        let may_end = match self.thread.next() {
            Next::Complete(reason) => reason == stop_reason,
            // Nothing is left to spend on what comes next.
            Next::AskModel => stop_reason == StopReason::Budget,
            Next::RunTools(_) | Next::Wait(_) => false,
        };
        if !may_end {
            return Ok(false);
        }
        // What comes from here on finds no turn.
        self.life.inbox.close();
        let message_id = self.thread.turn().message_id();
        let (answer_message_id, text) = match self.thread.turn().last_answer() {
            Some((id, answer)) => (*id, answer.text()),
            // It was ended by a budget before its first answer.
            None => (MessageId::new(), String::new()),
        };
        let untold = self.thread.turn().usage_untold().cloned().map(Event::Usage);
        let completed = Lifecycle::Completed { message_id, answer_message_id, text, stop_reason };
        let step = Step::Ended { outcome: TurnOutcome::Completed { stop_reason } };
        let mut record = Record::new();
        if sabotage::by(Saboteur::StoreThread) {
            let value = format!("{:?}", self.thread.messages()).into();
            record = record.memory(MemoryWrite { key: self.life.turn_id().to_string(), value });
        }
        let events = untold.into_iter().chain([Event::ThreadLifecycle(completed)]).collect();
        self.record(record, vec![step], events).await?;
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
        if let Some(leash) = &self.life.means.leash {
            // What its tools had begun was let go of when they were.
            leash.settled(CHILDREN_END).await;
        }
        // What a sub-agent was saying is nothing that the agent said.
        let agents = self.focus.is_some() || self.agent_told;
        let said = self.telling.text().filter(|_| !agents).map(ending::said);
        let mut events = self.closing();
        let message_id = self.thread.turn().message_id();
        events.push(Event::ThreadLifecycle(Lifecycle::Cancelled { message_id }));
        let turn_id = self.life.turn_id();
        let step = Step::Ended { outcome: TurnOutcome::Cancelled { said } };
        let committed = self.record(Record::new(), vec![step], events).await;
        match answer(reply, turn_id, committed) {
            Ok(()) => State::Over,
            Err(stopped) => Box::pin(self.stop(stopped)).await,
        }
    }

    /// What clients must be told so that nothing of the turn is left open: its block, and calls without a result.
    fn closing(&mut self) -> Vec<Event> {
        self.life.means.assets.give_up(self.thread.asked().iter().map(|asked| asked.call_id));
        let open = self.thread.calls_told_open();
        let results = open.map(|call| ending::without_result(call.call_id, call.name.clone()));
        let usage = self.thread.turn().usage_untold().cloned().map(Event::Usage);
        let closing: Vec<Event> = results.chain(usage).collect();
        let agents = self.closing_of_agents();
        self.life.blocks.stop().into_iter().chain(agents).chain(closing).collect()
    }
}

/// Answers a command with `value`, if it is on record.
pub(super) fn answer<T>(reply: Reply<T>, value: T, committed: Result<(), WriteError>) -> Result<(), Stopped> {
    // Who asked may have gone.
    let _ = reply.send(committed.clone().map(|()| value).map_err(AgentError::from));
    Ok(committed?)
}
