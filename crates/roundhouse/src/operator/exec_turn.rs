//! `roundhouse engine exec-turn`: sends a message to a user's engine and shows the turn as it goes.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use api::TaskId;
use api::engine::Execute;
use api::event::{BlockType, Event, Lifecycle, SentEvent};
use http_service::signals::ShutdownSignals;
use serde_json::json;
use tokio::sync::mpsc;

use super::engine::UserArgument;
use super::input;
use super::output;
use super::session::Session;
use crate::client::Call;
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::remote::Remote;
use crate::terminal::{escape_control_characters, single_line};
use crate::turn_reader::{Start, TurnReader, TurnUpdate, json_line};

/// How many events wait for being shown.
const UPDATES_AHEAD: usize = 64;

/// Arguments of `roundhouse engine exec-turn`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    user: UserArgument,
    /// The message; `-` reads it from the standard input.
    message: String,
    /// The conversation to start or continue.
    #[arg(long, default_value = "operator")]
    task: String,
    /// Print the events of the turn as JSON, one on a line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: AccessOptions,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let Args { user, message, task, json, access } = args;
    let task = TaskId::new(task).map_err(|error| Failure::usage(format!("--task: {error}")))?;
    let message = if message == "-" { input::read_text(Path::new("-"))? } else { message };
    let body = json!({"task_id": task, "message": message});
    let execute: Execute = serde_json::from_value(body).map_err(Failure::usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = ShutdownSignals::listen().context("cannot listen for signals")?;
        let remote = tokio::select! {
            remote = wake(access, user) => remote?,
            signal = signals.recv() => return Err(Failure::Interrupted(signal)),
        };
        tokio::select! {
            result = show_turn(&remote, execute, task.clone(), json) => result,
            signal = signals.recv() => {
                // Nobody is left to read the answer. If it cannot be cancelled, the turn goes on, as others do.
                let _ = remote.engine().cancel(&task).await;
                output::note("roundhouse: the turn is cancelled");
                Err(Failure::Interrupted(signal))
            }
        }
    })
}

/// Wakes the user's engine, which must exist.
async fn wake(access: AccessOptions, user: UserArgument) -> Result<Remote, Failure> {
    let Session { orchestrator } = Session::product(access)?;
    // From here, the engines' own addresses may be out of reach.
    let session = Session { orchestrator: orchestrator.through_proxy() };
    session.call(&Call::get(&["engines", user.user.as_str()])).await?;
    Remote::admit(session.orchestrator.clone(), user.user).await.map_err(|error| session.failure(error))
}

async fn show_turn(remote: &Remote, message: Execute, task: TaskId, json: bool) -> Result<(), Failure> {
    let (sender, mut updates) = mpsc::channel(UPDATES_AHEAD);
    let reader = TurnReader::new(remote.clone(), task, 0, sender);
    let start = Start::Message { message: Box::new(message), after_rest: false };
    let reading = reader.run(start);
    let showing = async {
        let mut shown = Shown { json, is_own: false, in_line: false };
        while let Some(update) = updates.recv().await {
            if let Some(end) = shown.update(update)? {
                return end;
            }
        }
        Err(anyhow!("the turn was not read to its end").into())
    };
    tokio::pin!(showing);
    tokio::select! {
        result = &mut showing => result,
        () = reading => showing.await,
    }
}

/// What was shown of a turn.
struct Shown {
    json: bool,
    /// Whether the turn of the message has begun: before it, the end of another one may be read.
    is_own: bool,
    /// Whether the line that was written last is not finished.
    in_line: bool,
}

impl Shown {
    /// Shows an update; returns how the turn ended, if it did.
    fn update(&mut self, update: TurnUpdate) -> Result<Option<Result<(), Failure>>, Failure> {
        match update {
            TurnUpdate::OwnTurn => self.is_own = true,
            TurnUpdate::RestFirst => self.aside("another turn of this conversation comes first")?,
            TurnUpdate::Away => self.aside("the engine does not answer; trying again")?,
            TurnUpdate::Back => self.aside("the engine answers again")?,
            TurnUpdate::Event(event) if self.is_own => return self.event(&event),
            TurnUpdate::Event(_) => {}
            TurnUpdate::Request { event, request, is_open } => {
                if self.is_own {
                    self.event(&event)?;
                }
                if is_open {
                    self.end_line()?;
                    return Ok(Some(Err(Failure::Failed(anyhow!(
                        "the agent waits for a person: {}; `roundhouse chat --task` answers it",
                        single_line(&request.question, 500)
                    )))));
                }
            }
            TurnUpdate::Ended(ended) => {
                self.end_line()?;
                return Ok(Some(ended.map_err(Failure::from)));
            }
        }
        Ok(None)
    }

    fn event(&mut self, sent: &SentEvent) -> Result<Option<Result<(), Failure>>, Failure> {
        if self.json {
            output::write(&json_line(sent))?;
        }
        match &sent.event {
            Event::TextDelta(delta) if !self.json => {
                output::write(&escape_control_characters(&delta.text))?;
                self.in_line = !delta.text.ends_with('\n');
            }
            Event::ContentBlockStart(block) if block.block_type == BlockType::Text => self.end_line()?,
            Event::ToolCall(call) => self.aside(&format!("calls {}", single_line(&call.tool, 100)))?,
            Event::ThreadLifecycle(Lifecycle::Retrying { .. }) => {
                self.aside("the answer was interrupted; here it is again in full")?;
            }
            Event::ThreadLifecycle(Lifecycle::Completed { .. }) => {
                self.end_line()?;
                return Ok(Some(Ok(())));
            }
            Event::ThreadLifecycle(Lifecycle::Cancelled { .. }) => {
                self.end_line()?;
                return Ok(Some(Err(anyhow!("the turn was cancelled").into())));
            }
            Event::Error(failure) => {
                self.end_line()?;
                let message = single_line(&failure.message, 2_000);
                return Ok(Some(Err(anyhow!("the turn failed: {message}").into())));
            }
            _ => {}
        }
        Ok(None)
    }

    /// Tells a person something that is not part of the answer.
    fn aside(&mut self, text: &str) -> Result<(), Failure> {
        self.end_line()?;
        output::note(&format!("roundhouse: {text}"));
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.in_line) { output::write("\n") } else { Ok(()) }
    }
}
