//! The conversation: waits for keys or lines, for the events of the turn, and for what else was asked of the engine,
//! and does what the session decides.

mod answers;
mod commands;
mod turns;

use std::collections::VecDeque;

use api::engine::Execute;
use api::{HitlId, MessageId, TaskId, UserId};
use http_service::signals::{ShutdownSignal, ShutdownSignals};
use tokio::sync::mpsc;

use self::answers::{AnswerOutcome, OpenQuestion};
use self::commands::Done;
use super::command::{Typed, parse};
use super::editor::Edit;
use super::input::InputLine;
use super::opening::Opening;
use super::screen::{Format, Screen};
use super::session::{Action, MAX_QUEUED, Phase, Said, Session};
use super::terminal_input::TerminalEvent;
use super::{Input, Outcome};
use crate::error::Failure;
use crate::remote::Remote;
use crate::terminal::single_line;
use crate::turn_reader::{Start, TurnReader, TurnUpdate, Updates};

/// How many updates of a turn wait for the terminal; then the stream waits.
const MAX_UPDATES_AHEAD: usize = 256;

/// What a conversation begins with.
pub(super) struct Setup {
    pub(super) remote: Remote,
    pub(super) user: UserId,
    pub(super) opening: Opening,
    pub(super) input: Input,
    pub(super) format: Format,
    /// Whether a person types the messages.
    pub(super) is_typed: bool,
}

/// A conversation.
pub(super) struct Conversation {
    remote: Remote,
    user: UserId,
    task: TaskId,
    input: Input,
    is_typed: bool,
    screen: Screen,
    session: Session,
    /// Messages and commands that wait for the end of the turn.
    queue: VecDeque<Typed>,
    /// The beginning of a message that is continued on the next line, where there is no editor.
    continued: String,
    /// Whether the prompt has been written, where there is no editor.
    has_prompt: bool,
    question: Option<OpenQuestion>,
    /// A question whose answer is on its way.
    answering: Option<OpenQuestion>,
    last_answered: Option<HitlId>,
    /// The `ts` of the newest event that was shown.
    last_ts: i64,
    reading: Reading,
    /// The model of the messages to come.
    model: Option<String>,
    /// The message that the next one replaces.
    editing: Option<MessageId>,
    outcome: Option<Outcome>,
    updates: mpsc::Receiver<TurnUpdate>,
    update_sender: Updates,
    done: mpsc::Receiver<Done>,
    done_sender: mpsc::Sender<Done>,
}

/// What is known of the turn that is read.
#[derive(Default)]
struct Reading {
    /// Whether a turn may be running whose end was not seen.
    is_unseen: bool,
    /// Whether the events are those of a turn before the message's own.
    is_rest: bool,
    /// Whether the engine does not answer.
    is_away: bool,
}

/// What a conversation waits for.
enum Next {
    Turn(Box<TurnUpdate>),
    Done(Done),
    Terminal(TerminalEvent),
    Line(Option<InputLine>),
    Signal(ShutdownSignal),
}

/// Whether the conversation goes on.
type Flow = std::ops::ControlFlow<()>;

impl Conversation {
    /// Shows the opened conversation, and reads the turn that is running.
    pub(super) fn start(setup: Setup) -> Self {
        let Setup { remote, user, opening, input, format, is_typed } = setup;
        let (update_sender, updates) = mpsc::channel(MAX_UPDATES_AHEAD);
        let (done_sender, done) = mpsc::channel(MAX_QUEUED);
        let is_edited = matches!(input, Input::Editor(_));
        let mut this = Self {
            screen: Screen::new(is_edited, format),
            remote,
            user,
            task: opening.task.clone(),
            input,
            is_typed,
            session: Session::default(),
            queue: VecDeque::new(),
            continued: String::new(),
            has_prompt: false,
            question: None,
            answering: None,
            last_answered: None,
            last_ts: 0,
            reading: Reading::default(),
            model: None,
            editing: None,
            outcome: None,
            updates,
            update_sender,
            done,
            done_sender,
        };
        this.greet();
        this.show_opening(opening);
        this
    }

    /// Runs the conversation to its end. Returns what did not go well, if anything did not.
    pub(super) async fn run(mut self, signals: &mut ShutdownSignals) -> Result<Option<Outcome>, Failure> {
        loop {
            self.show_prompt();
            let next = self.next(signals).await;
            if self.handle(next).is_break() {
                break;
            }
        }
        self.say_goodbye();
        match self.screen.paper.take_write_error() {
            Some(error) => Err(anyhow::Error::new(error).context("the output cannot be written").into()),
            None => Ok(self.outcome),
        }
    }

    fn greet(&mut self) {
        if matches!(self.input, Input::Once(_)) {
            return;
        }
        let task = single_line(self.task.as_str(), usize::MAX);
        let keys = if self.is_typed { " /help lists commands and keys." } else { "" };
        let user = single_line(self.user.as_str(), usize::MAX);
        self.screen.note(&format!("{user}'s engine, conversation `{task}`.{keys}"));
        if let Input::Editor(input) = &mut self.input
            && let Some(error) = input.history_error.take()
        {
            self.screen.problem(&format!("The history of messages cannot be used: {error}"));
        }
    }

    /// Shows what was said so far, and the turn that is running.
    fn show_opening(&mut self, opening: Opening) {
        let Opening { task, messages, has_older, is_running, last_ts } = opening;
        self.task = task;
        self.last_ts = last_ts;
        self.reading.is_unseen = is_running;
        if has_older {
            self.screen.note("…");
        }
        for message in &messages {
            self.screen.earlier_message(message);
        }
        self.session.phase = Phase::Idle;
        // A single message waits for the turn by itself.
        if is_running && !matches!(self.input, Input::Once(_)) {
            self.reading.is_unseen = false;
            self.read_turn(Start::Rest);
        }
        self.take_from_queue();
    }

    fn read_turn(&mut self, start: Start) {
        let updates = self.update_sender.clone();
        let reader = TurnReader::new(self.remote.clone(), self.task.clone(), self.last_ts, updates);
        tokio::task::spawn_local(reader.run(start));
        self.session.phase = Phase::Running;
    }

    /// Sends a message with the options that were chosen.
    fn send(&mut self, mut message: Execute) {
        message.model.clone_from(&self.model);
        let after_rest = std::mem::take(&mut self.reading.is_unseen);
        self.read_turn(Start::Message { message: Box::new(message), after_rest });
    }

    fn send_text(&mut self, text: String) {
        let edit_message_id = self.editing.take().map(|id| id.to_string());
        let message = Execute { edit_message_id, ..Execute::new(self.task.clone(), text) };
        self.send(message);
    }

    async fn next(&mut self, signals: &mut ShutdownSignals) -> Next {
        let phase = self.session.phase;
        let asked_at = self.question.as_ref().map(|question| question.shown_at);
        tokio::select! {
            // Events first: one may say that somebody else has answered.
            biased;
            signal = signals.recv() => Next::Signal(signal),
            Some(update) = self.updates.recv() => Next::Turn(Box::new(update)),
            Some(done) = self.done.recv() => Next::Done(done),
            input = next_input(&mut self.input, phase, asked_at) => input,
        }
    }

    fn handle(&mut self, next: Next) -> Flow {
        match next {
            Next::Turn(update) => {
                self.handle_update(*update);
                Flow::Continue(())
            }
            Next::Done(done) => {
                self.handle_done(done);
                Flow::Continue(())
            }
            Next::Terminal(TerminalEvent::Edits(edits)) => self.handle_edits(edits),
            // What is shown next is painted for the new size.
            Next::Terminal(TerminalEvent::Resized) => Flow::Continue(()),
            Next::Terminal(TerminalEvent::Continued) => {
                self.take_terminal_back();
                Flow::Continue(())
            }
            Next::Line(Some(Ok(line))) => self.handle_line(line),
            Next::Line(Some(Err(unreadable))) => {
                self.has_prompt = false;
                self.fail(Outcome::Failed, &unreadable.to_string());
                Flow::Continue(())
            }
            Next::Line(None) => self.say(Said::End),
            Next::Signal(ShutdownSignal::Interrupt) => self.say(Said::Interrupt { had_text: false }),
            // The terminal is gone, or is about to be.
            Next::Terminal(TerminalEvent::Gone)
            | Next::Signal(ShutdownSignal::Terminate | ShutdownSignal::Hangup) => self.leave_by_force(),
        }
    }

    /// A turn whose end a program did not see has not succeeded.
    fn leave_by_force(&mut self) -> Flow {
        if !self.session.phase.is_idle() {
            self.outcome.get_or_insert(Outcome::Failed);
        }
        Flow::Break(())
    }

    fn handle_edits(&mut self, edits: Vec<Edit>) -> Flow {
        for edit in edits {
            let said = match edit {
                Edit::None => continue,
                Edit::Submitted(text) => Said::Line(self.take_typed(&text)),
                Edit::Interrupted { had_text } => Said::Interrupt { had_text },
                Edit::EndOfInput => Said::End,
                Edit::Suspended => {
                    self.suspend();
                    continue;
                }
                Edit::Redraw => {
                    self.screen.paper.scroll_away();
                    continue;
                }
                Edit::Replaced => {
                    self.screen.note("A byte that is not UTF-8 became \u{fffd}.");
                    continue;
                }
                Edit::TooLong => {
                    self.screen.problem("The message is too long; the last input was not added.");
                    continue;
                }
            };
            self.say(said)?;
        }
        Flow::Continue(())
    }

    /// What was typed in the editor, which shows it in the conversation and remembers it.
    fn take_typed(&mut self, text: &str) -> Typed {
        let is_answer = self.session.phase == Phase::Asked;
        if !text.trim().is_empty() {
            self.screen.echo(text, is_answer);
            if let Input::Editor(input) = &mut self.input
                && !is_answer
            {
                input.editor.history.add(text);
            }
        }
        parse(text)
    }

    fn suspend(&mut self) {
        self.screen.paper.clear_area();
        if let Input::Editor(input) = &self.input
            && let Err(error) = input.terminal.suspend()
        {
            self.screen.problem(&format!("The program cannot be suspended: {error}"));
        }
    }

    /// Whatever has stopped the program: if the terminal was used meanwhile, what it shows below is not ours.
    fn take_terminal_back(&mut self) {
        let Input::Editor(input) = &self.input else { return };
        match input.terminal.make_raw_again() {
            Ok(true) => self.screen.paper.forget_area(),
            Ok(false) => {}
            Err(error) => self.screen.problem(&format!("The terminal cannot be used: {error}")),
        }
    }

    /// A line that was read without an editor. Only what a person types can be a command.
    fn handle_line(&mut self, line: String) -> Flow {
        self.has_prompt = false;
        if !self.is_typed {
            return self.say(Said::Line(Typed::Message(line)));
        }
        self.continued.push_str(&line);
        if self.continued.ends_with('\\') {
            self.continued.pop();
            self.continued.push('\n');
            return Flow::Continue(());
        }
        let line = std::mem::take(&mut self.continued);
        self.say(Said::Line(parse(&line)))
    }

    /// Decides what to do about something that was said, and does it.
    fn say(&mut self, said: Said) -> Flow {
        let action = self.session.decide(said, self.queue.len());
        match action {
            Action::Nothing => self.editing = None,
            Action::Send(text) => self.send_text(text),
            Action::Queue(typed) => {
                self.queue.push_back(typed);
                self.screen.note("This waits until the turn has ended.");
            }
            Action::RefuseToQueue => self.screen.problem("Too much is waiting already; this was not taken."),
            Action::Answer(text) => self.answer(&text),
            Action::Run(command) => self.run_command(command),
            Action::Explain(text) => self.screen.problem(&text),
            Action::Cancel => self.cancel(),
            Action::WarnBeforeLeaving => self.screen.note("Ctrl-C again leaves, and so does Ctrl-D."),
            Action::Leave => return Flow::Break(()),
        }
        self.has_prompt = false;
        Flow::Continue(())
    }

    fn cancel(&mut self) {
        self.queue.clear();
        self.close_question();
        if !self.screen.paper.is_live() {
            self.screen.note("Cancelling the turn …");
        }
        let (remote, task) = (self.remote.clone(), self.task.clone());
        self.spawn(async move {
            match remote.call(async |engine| engine.cancel(&task).await).await {
                Ok(()) => Done::Nothing,
                Err(error) => Done::NotCancelled(error),
            }
        });
    }

    /// Reports what went wrong.
    fn fail(&mut self, outcome: Outcome, problem: &str) {
        self.note_outcome(outcome);
        self.screen.problem(problem);
    }

    /// The first thing that did not go well decides how a program learns of it.
    fn note_outcome(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
    }

    /// Asks something of the engine beside the turn.
    fn spawn(&self, request: impl Future<Output = Done> + 'static) {
        let done = self.done_sender.clone();
        tokio::task::spawn_local(async move {
            // If nobody listens any more, the program is about to end.
            let _ = done.send(request.await).await;
        });
    }

    fn show_prompt(&mut self) {
        let phase = self.session.phase;
        let status = match phase {
            _ if self.reading.is_away => Some("reconnecting …"),
            Phase::Running => Some("working … (Ctrl-C cancels)"),
            Phase::Cancelling => Some("cancelling …"),
            Phase::Idle | Phase::Asked => None,
        };
        let prompt = if phase == Phase::Asked { "? " } else { "> " };
        match &self.input {
            Input::Editor(input) => {
                let columns = super::raw_terminal::size().columns.saturating_sub(1);
                let rows = input.editor.rows(prompt, columns);
                self.screen.paint(status, rows);
            }
            Input::Lines(_)
                if self.is_typed && !self.has_prompt && (phase.is_idle() || phase == Phase::Asked) =>
            {
                let space = if phase.is_idle() && self.continued.is_empty() { "\n" } else { "" };
                let prompt = if self.continued.is_empty() { prompt } else { "  " };
                self.screen.paper.inline(&format!("{space}{prompt}"));
                self.has_prompt = true;
            }
            Input::Lines(_) | Input::Once(_) => {}
        }
    }

    /// Says what becomes of a turn that is left.
    fn say_goodbye(&mut self) {
        self.screen.paper.close();
        match self.session.phase {
            Phase::Idle => {}
            Phase::Running | Phase::Cancelling => {
                self.note_outcome(Outcome::Failed);
                self.screen.note("The turn goes on without you; `roundhouse chat` shows the rest.");
            }
            Phase::Asked => {
                self.note_outcome(Outcome::NeedsPerson);
                self.screen.note(
                    "The agent is waiting for an answer: `roundhouse chat` in this conversation asks again, and \
                     POST /hitl/respond accepts it.",
                );
            }
        }
        if !self.queue.is_empty() {
            self.screen.problem("What was waiting for the end of the turn was not sent.");
        }
        self.screen.paper.clear_area();
    }
}

async fn next_input(input: &mut Input, phase: Phase, asked_at: Option<std::time::Instant>) -> Next {
    match input {
        Input::Editor(terminal) => Next::Terminal(terminal.next().await),
        Input::Lines(lines) if phase.is_idle() => Next::Line(lines.next_message().await),
        Input::Lines(lines) => Next::Line(lines.next_answer(asked_at).await),
        Input::Once(message) if phase.is_idle() || phase == Phase::Asked => {
            let message = if phase.is_idle() { message.take() } else { None };
            Next::Line(message.map(Ok))
        }
        Input::Once(_) => std::future::pending().await,
    }
}
