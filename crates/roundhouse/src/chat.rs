//! `roundhouse chat`: a conversation with a user's engine in the terminal.

mod answer_parser;
mod input;
mod screen;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::engine::PendingRequest;
use api::event::{Event, HitlRequest, HitlResolved, SentEvent};
use api::{ClientRequestId, ErrorCode, HitlId, TaskId, UserId};
use futures::StreamExt as _;
use http_service::clock::{Clock as _, SystemClock};
use http_service::signals::{ShutdownSignal, ShutdownSignals};
use uuid::Uuid;

use self::input::{InputLine, LineInput};
use self::screen::Screen;
use crate::client::{ClientError, Engine, Events, Orchestrator};
use crate::engine_access::EngineOptions;
use crate::error::Failure;
use crate::terminal::single_line;

/// How often a broken stream is resumed before giving up.
const MAX_RECONNECTS: u32 = 20;
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);
/// How often a message or answer that may not have arrived is sent again.
const MAX_RESENDS: u32 = 3;

/// Arguments of `roundhouse chat`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    engine: EngineOptions,
    /// The conversation to start or continue.
    #[arg(long, default_value = "chat")]
    task: String,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let task = TaskId::new(args.task).map_err(|error| Failure::usage(format!("--task: {error}")))?;
    let (orchestrator, user) = args.engine.resolve()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(Chat::start(orchestrator, user, task));
    // The thread that reads the terminal cannot be woken, and must not delay the exit.
    runtime.shutdown_background();
    result
}

struct Chat {
    orchestrator: Orchestrator,
    engine: Engine,
    user: UserId,
    task: TaskId,
    screen: Screen,
    input: LineInput,
    /// The timestamp of the newest event seen.
    last_ts: i64,
    /// Whether a turn may still be running whose end was not seen.
    has_unseen_turn: bool,
    /// The request that awaits an answer.
    question: Option<OpenQuestion>,
    /// The last request that was answered here.
    last_answered: Option<HitlId>,
    /// Whether a turn failed, or a line of input could not be sent.
    failed: bool,
}

/// A request that awaits an answer from this terminal.
struct OpenQuestion {
    request: HitlRequest,
    shown_at: Instant,
}

/// How far a stream is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadUntil {
    /// To the last event of a turn.
    EndOfTurn,
    /// To the end of the stream, which comes once no turn is running.
    EndOfStream,
}

/// Why showing a turn ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ShowEnd {
    /// The turn ended.
    TurnEnded,
    /// The agent awaits an answer, and there is no more input.
    InputEnded,
}

/// What happens next while a turn is shown.
enum NextInput {
    Event(Option<anyhow::Result<SentEvent>>),
    Answer(Option<InputLine>),
}

impl Chat {
    async fn start(orchestrator: Orchestrator, user: UserId, task: TaskId) -> Result<(), Failure> {
        let mut signals = ShutdownSignals::listen().context("cannot listen for signals")?;
        let opened = async {
            let engine = orchestrator.admit(&user).await?;
            let pending = engine.pending().await?;
            Ok::<_, ClientError>((engine, pending))
        };
        let (engine, pending) = tokio::select! {
            opened = opened => opened?,
            _ = signals.recv() => return Ok(()),
        };
        let waiting = pending.iter().find(|waiting| waiting.task_id == task);
        let screen = Screen::new();
        screen.print_note(&format!(
            "{user}'s engine, conversation `{}`. Ctrl-D ends, Ctrl-C leaves a turn to itself.",
            single_line(task.as_str(), usize::MAX)
        ));
        let mut chat = Self {
            orchestrator,
            engine,
            user,
            task,
            screen,
            input: LineInput::spawn_reader(),
            last_ts: start_position(waiting),
            has_unseen_turn: waiting.is_some(),
            question: None,
            last_answered: None,
            failed: false,
        };
        chat.run_conversation(&mut signals).await;
        chat.into_result()
    }

    /// The result of the conversation. A person has seen the errors; a program looks at the exit code.
    fn into_result(self) -> Result<(), Failure> {
        match self.screen.take_write_error() {
            Some(error) => Err(anyhow::Error::new(error).context("the output cannot be written").into()),
            None if self.failed && !self.input.is_interactive() => {
                Err(anyhow::anyhow!("not everything succeeded; the errors are printed above").into())
            }
            None => Ok(()),
        }
    }

    async fn run_conversation(&mut self, signals: &mut ShutdownSignals) {
        // An unanswered request comes before anything new.
        if self.has_unseen_turn && self.run_message(None, signals).await.is_break() {
            return;
        }
        loop {
            self.screen.prompt();
            let message = tokio::select! {
                message = self.input.next_message() => message,
                signal = signals.recv() => match signal {
                    ShutdownSignal::Interrupt => {
                        self.screen.print_note("\nCtrl-D ends.");
                        continue;
                    }
                    ShutdownSignal::Terminate | ShutdownSignal::Hangup => None,
                },
            };
            let message = match message {
                Some(Ok(message)) => message,
                Some(Err(unreadable)) => {
                    self.report_failure(&unreadable.to_string());
                    continue;
                }
                None => return,
            };
            if message.trim().is_empty() {
                continue;
            }
            if self.run_message(Some(&message), signals).await.is_break() {
                return;
            }
        }
    }

    /// Sends a message, if there is one, and shows the turn. Breaks if the conversation is over.
    async fn run_message(&mut self, message: Option<&str>, signals: &mut ShutdownSignals) -> ControlFlow<()> {
        let outcome = tokio::select! {
            outcome = self.send_and_show(message) => Ok(outcome),
            signal = signals.recv() => Err(signal),
        };
        match outcome {
            Ok(Ok(ShowEnd::TurnEnded)) => {}
            Ok(Ok(ShowEnd::InputEnded)) => {
                self.screen.print_note(
                    "The agent is waiting for an answer: `roundhouse chat` in this conversation asks again, and \
                     POST /hitl/respond accepts it.",
                );
                return ControlFlow::Break(());
            }
            Ok(Err(error)) => self.report_failure(&format!("{error:#}")),
            Err(ShutdownSignal::Interrupt) => {
                self.has_unseen_turn = true;
                let turn =
                    if self.question.is_some() { "waits for your answer" } else { "goes on without you" };
                self.screen
                    .print_note(&format!("\nThe turn {turn}; your next message shows the rest first."));
            }
            Err(ShutdownSignal::Terminate | ShutdownSignal::Hangup) => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Shows an error to the person.
    fn report_failure(&mut self, problem: &str) {
        self.failed = true;
        self.screen.print_problem(problem);
    }

    /// Shows the rest of an unfinished turn; then sends the message, if there is one, and shows its turn.
    async fn send_and_show(&mut self, message: Option<&str>) -> anyhow::Result<ShowEnd> {
        if self.has_unseen_turn && self.catch_up(message).await? == ShowEnd::InputEnded {
            return Ok(ShowEnd::InputEnded);
        }
        let Some(message) = message else { return Ok(ShowEnd::TurnEnded) };
        // With this id, a repeated message is added only once.
        let request = ClientRequestId::new(Uuid::now_v7().to_string())?;
        let events = match self.send(message, &request).await {
            // Another client is using the same task.
            Err(ClientError::Refused { code: ErrorCode::TaskBusy, .. }) => {
                if self.catch_up(Some(message)).await? == ShowEnd::InputEnded {
                    return Ok(ShowEnd::InputEnded);
                }
                self.send(message, &request).await?
            }
            events => events?,
        };
        // Requests of earlier turns are void; this turn's requests arrive as events.
        self.question = None;
        self.show_stream(events, ReadUntil::EndOfTurn).await
    }

    async fn send(&mut self, message: &str, request: &ClientRequestId) -> Result<Events, ClientError> {
        let mut resends = 0;
        loop {
            match self.engine.execute(&self.task, message, request).await {
                Err(error) => self.recover(error, &mut resends).await?,
                events => return events,
            }
        }
    }

    /// Prepares to repeat a failed request, unless that is pointless.
    async fn recover(&mut self, error: ClientError, resends: &mut u32) -> Result<(), ClientError> {
        if *resends == MAX_RESENDS || !is_retryable(&error) {
            return Err(error);
        }
        if *resends > 0 {
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
        *resends += 1;
        // The engine may be asleep, on another port, or have another key: the orchestrator knows.
        self.engine = self.orchestrator.admit(&self.user).await?;
        Ok(())
    }

    /// Shows the task's events since the newest one seen, until no turn is running. `message` waits for that.
    async fn catch_up(&mut self, message: Option<&str>) -> anyhow::Result<ShowEnd> {
        self.screen.print_note("The rest of the previous turn:");
        let mut resends = 0;
        let rest = loop {
            match self.unseen_events().await {
                Ok(rest) => break rest,
                Err(error) => self.recover(error, &mut resends).await?,
            }
        };
        let end = match rest {
            Some(rest) => self.show_stream(rest, ReadUntil::EndOfStream).await?,
            None => ShowEnd::TurnEnded,
        };
        self.has_unseen_turn = false;
        if end == ShowEnd::InputEnded && message.is_some() {
            self.screen.print_note("Your message was not sent.");
        }
        Ok(end)
    }

    /// Returns the events since the newest one seen; `None` if the engine has no such task.
    async fn unseen_events(&mut self) -> Result<Option<Events>, ClientError> {
        let rest = match self.engine.replay(&self.task, self.last_ts).await {
            Err(ClientError::Refused { code: ErrorCode::TaskNotFound, .. }) => return Ok(None),
            rest => rest?,
        };
        // A request that was already shown is not repeated in the remaining events.
        if let Some(request) = self.question.as_ref().map(|question| question.request.clone()) {
            self.handle_request(&request).await?;
        }
        Ok(Some(rest))
    }

    /// Shows a stream to its end, across broken connections and engine restarts, and submits answers to the
    /// agent's requests.
    async fn show_stream(&mut self, mut events: Events, until: ReadUntil) -> anyhow::Result<ShowEnd> {
        let mut reconnects = 0;
        loop {
            let asked_at = self.question.as_ref().map(|question| question.shown_at);
            let next = tokio::select! {
                // Events first: one may say that another client has answered.
                biased;
                event = events.next() => NextInput::Event(event),
                line = self.input.next_answer(asked_at) => NextInput::Answer(line),
            };
            match next {
                NextInput::Answer(Some(Ok(line))) => self.submit_answer(&line).await?,
                NextInput::Answer(Some(Err(unreadable))) => {
                    self.report_failure(&unreadable.to_string());
                    self.screen.prompt_answer();
                }
                NextInput::Answer(None) => return Ok(ShowEnd::InputEnded),
                NextInput::Event(Some(Ok(event))) => match self.handle_event(&event).await {
                    Ok(()) if event.event.ends_turn() && until == ReadUntil::EndOfTurn => {
                        return Ok(ShowEnd::TurnEnded);
                    }
                    Ok(()) => reconnects = 0,
                    Err(_) => events = self.reconnect(&mut reconnects).await?,
                },
                // A turn that awaits an answer has not ended: the engine has stopped.
                NextInput::Event(None) if until == ReadUntil::EndOfStream && self.question.is_none() => {
                    return Ok(ShowEnd::TurnEnded);
                }
                NextInput::Event(Some(Err(_)) | None) => events = self.reconnect(&mut reconnects).await?,
            }
        }
    }

    /// Resumes a stream that ended before its turn, from the last event seen.
    async fn reconnect(&mut self, reconnects: &mut u32) -> anyhow::Result<Events> {
        loop {
            anyhow::ensure!(
                *reconnects < MAX_RECONNECTS,
                "the turn's events cannot be read; its outcome is unknown"
            );
            *reconnects += 1;
            tokio::time::sleep(RECONNECT_PAUSE).await;
            if let Ok(engine) = self.orchestrator.admit(&self.user).await {
                self.engine = engine;
                if let Ok(events) = self.engine.replay(&self.task, self.last_ts).await {
                    return Ok(events);
                }
            }
        }
    }

    /// Shows an event. An event whose handling fails does not count as seen.
    async fn handle_event(&mut self, event: &SentEvent) -> Result<(), ClientError> {
        match &event.event {
            Event::HitlRequest(request) => self.handle_request(request).await?,
            Event::HitlResolved(resolved) => self.handle_resolved(resolved),
            Event::Error(_) => {
                self.failed = true;
                self.question = None;
            }
            // An unanswered request is void once the turn has ended.
            ended if ended.ends_turn() => self.question = None,
            _ => {}
        }
        self.screen.show_event(event);
        self.last_ts = self.last_ts.max(event.ts);
        Ok(())
    }

    /// Shows a request of the agent, unless the replay contains its answer.
    async fn handle_request(&mut self, request: &HitlRequest) -> Result<(), ClientError> {
        let pending = self.engine.pending().await?;
        self.screen.show_question(request);
        self.question = None;
        if pending.iter().any(|waiting| waiting.request_id == request.request_id) {
            self.screen.show_answer_hint(request);
            self.question = Some(OpenQuestion { request: request.clone(), shown_at: Instant::now() });
        }
        Ok(())
    }

    fn handle_resolved(&mut self, resolved: &HitlResolved) {
        let answer = single_line(&resolved.answer, usize::MAX);
        if self.question.take_if(|question| question.request.request_id == resolved.request_id).is_some() {
            self.screen.print_note(&format!("Someone else has answered: {answer}"));
        } else if self.last_answered != Some(resolved.request_id) {
            self.screen.print_note(&format!("Answered: {answer}"));
        }
    }

    /// Submits a line of input as the answer to the open question, if it parses as one.
    async fn submit_answer(&mut self, line: &str) -> anyhow::Result<()> {
        let Some(OpenQuestion { request, .. }) = &self.question else { return Ok(()) };
        let request_id = request.request_id;
        let answer = match answer_parser::parse_answer(request, line) {
            Ok(answer) => answer,
            Err(instead) => {
                self.screen.print_note(&instead);
                self.screen.prompt_answer();
                return Ok(());
            }
        };
        let mut resends = 0;
        loop {
            match self.engine.respond(&answer).await {
                Ok(()) => {
                    self.last_answered = Some(request_id);
                    self.question = None;
                }
                Err(ClientError::Refused { code: ErrorCode::HitlNotPending, .. }) => {
                    self.screen.print_note("This no longer needs an answer.");
                    self.question = None;
                }
                Err(ClientError::Refused { code, message }) if !is_transient(code) => {
                    self.screen.print_problem(&message);
                    self.screen.prompt_answer();
                }
                Err(error) => {
                    self.recover(error, &mut resends).await?;
                    continue;
                }
            }
            return Ok(());
        }
    }
}

/// Whether retrying may succeed after the orchestrator has been asked for the engine again.
fn is_retryable(error: &ClientError) -> bool {
    if let ClientError::Refused { code, .. } = error { is_transient(*code) } else { true }
}

/// Whether this error means that the engine is about to sleep or has another key.
const fn is_transient(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::Quiesced | ErrorCode::ShuttingDown | ErrorCode::InvalidEngineKey)
}

/// Where to start showing events: earlier ones are skipped, except a request that awaits an answer.
fn start_position(waiting: Option<&PendingRequest>) -> i64 {
    match waiting {
        Some(waiting) => waiting.created_at.unix_ms() - 1,
        None => SystemClock::new().now().unix_ms(),
    }
}
