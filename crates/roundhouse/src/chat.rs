//! `roundhouse chat`: a conversation with a user's engine, for a person at a terminal or for a program.
//!
//! [`session`] decides what happens, [`conversation`] does it. A turn is read by a task of its own, so that the
//! terminal answers to keys whatever the engine does.

mod answer_parser;
mod command;
mod conversation;
mod editor;
mod flow;
mod history;
mod input;
mod keys;
mod live_area;
mod look_up;
mod opening;
mod paper;
mod raw_terminal;
mod screen;
mod session;
mod terminal_input;

use std::io::{self, IsTerminal as _, Read as _};
use std::process::ExitCode;

use anyhow::Context as _;
use api::TaskId;
use http_service::signals::ShutdownSignals;

use self::conversation::{Conversation, Setup};
use self::input::LineInput;
use self::screen::Format;
use self::terminal_input::TerminalInput;
use crate::client::ClientError;
use crate::engine_access::EngineOptions;
use crate::error::Failure;
use crate::remote::Remote;

/// The longest message that is read from the standard input.
const MAX_MESSAGE_BYTES: u64 = 4 * 1024 * 1024;

/// What `--help` says below the options.
const EXIT_CODES: &str = "\
Exit codes, unless a person types the messages:
  0  every turn completed
  1  something failed: the engine cannot be reached, a message could not be sent
  2  the command line is wrong
  3  a turn failed
  4  a turn was cancelled
  5  the agent waits for a person's answer";

/// Arguments of `roundhouse chat`.
#[derive(clap::Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(flatten)]
    engine: EngineOptions,
    /// The conversation to start or continue.
    #[arg(long, default_value = "chat")]
    task: String,
    /// Send this message, print the answer and end. `-` reads the message from the standard input.
    #[arg(short = 'p', long, value_name = "MESSAGE")]
    prompt: Option<String>,
    /// Print the events of the turns instead, one line of JSON for each. The messages must be piped in, or one be
    /// given with `-p`.
    #[arg(long)]
    json: bool,
}

/// Where the messages come from.
enum Input {
    /// A person, in the editor.
    Editor(Box<TerminalInput>),
    /// Lines: each is a message, or an answer.
    Lines(LineInput),
    /// One message; there is nobody to answer.
    Once(Option<String>),
}

/// How a conversation ended, for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Failed,
    TurnFailed,
    Cancelled,
    NeedsPerson,
}

impl Outcome {
    const fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::TurnFailed => 3,
            Self::Cancelled => 4,
            Self::NeedsPerson => 5,
        }
    }
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let task = TaskId::new(args.task).map_err(|error| Failure::usage(format!("--task: {error}")))?;
    let (orchestrator, user) = args.engine.resolve()?;
    let format = match (args.json, &args.prompt) {
        (true, _) => Format::Json,
        (false, Some(_)) => Format::Answer,
        (false, None) => Format::Conversation,
    };
    let is_typed = args.prompt.is_none() && io::stdin().is_terminal();
    if is_typed && format == Format::Json {
        return Err(Failure::usage("--json needs a message: give it with -p, or pipe it in"));
    }
    let message = args.prompt.map(read_message).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // One thread: the turn's task and the terminal's need no locks.
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, async {
        let mut signals = ShutdownSignals::listen().context("cannot listen for signals")?;
        let opened = async {
            let remote = Remote::admit(orchestrator, user.clone()).await?;
            let opening = if is_typed {
                opening::open(&remote, task).await?
            } else {
                opening::open_quietly(&remote, task).await?
            };
            Ok::<_, ClientError>((remote, opening))
        };
        // Before the terminal is taken over, so that its own Ctrl-C ends this.
        let (remote, opening) = tokio::select! {
            opened = opened => opened?,
            _ = signals.recv() => return Ok(if is_typed { None } else { Some(Outcome::Cancelled) }),
        };
        let input = match message {
            Some(message) => Input::Once(Some(message)),
            None if is_typed && can_edit() => Input::Editor(Box::new(TerminalInput::open(&user)?)),
            None => Input::Lines(LineInput::spawn_reader()),
        };
        Conversation::start(Setup { remote, user, opening, input, format, is_typed }).run(&mut signals).await
    });
    // The thread that reads the terminal cannot be woken, and must not delay the exit.
    runtime.shutdown_background();
    let outcome = result?;
    Ok(outcome.filter(|_| !is_typed).map_or(ExitCode::SUCCESS, |outcome| outcome.exit_code().into()))
}

/// Whether the terminal can be drawn on.
fn can_edit() -> bool {
    let term = std::env::var_os("TERM");
    io::stdout().is_terminal() && term.is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// The message that was given, or that of the standard input.
fn read_message(prompt: String) -> Result<String, Failure> {
    let message = if prompt == "-" { read_input()? } else { prompt };
    if message.trim().is_empty() {
        return Err(Failure::usage("the message is empty"));
    }
    Ok(message)
}

fn read_input() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let mut input = io::stdin().lock().take(MAX_MESSAGE_BYTES + 1);
    input.read_to_end(&mut bytes).context("the input cannot be read")?;
    if bytes.len() as u64 > MAX_MESSAGE_BYTES {
        return Err(Failure::usage(format!("the message is longer than {MAX_MESSAGE_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::usage(format!("the message is not UTF-8, from byte {at} on; nothing was sent"))
    })
}
