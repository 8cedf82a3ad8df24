//! `roundhouse chat`: a conversation with a user's engine in the terminal.

use std::io::{self, BufRead as _, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use contract::event::{BlockType, Event, Lifecycle, SentEvent};
use contract::{ErrorCode, PlatformKey, TaskId, UserId};
use futures::StreamExt as _;
use reqwest::Url;
use service::clock::{Clock as _, SystemClock};
use service::signals::{Asked, Endings};
use tokio::sync::mpsc;

use crate::client::{ClientError, Engine, Events, Orchestrator};
use crate::error::Failure;
use crate::up::folder::Folder;

/// How often a broken stream is taken up again before giving up, and how long to wait in between.
const RECONNECTS: u32 = 20;
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Arguments of `roundhouse chat`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The user to talk as; the engine is theirs. Their login name by default.
    #[arg(long, env = "USER", default_value = "me")]
    user: String,
    /// The conversation to begin or go on with.
    #[arg(long, default_value = "chat")]
    task: String,
    /// The folder of the `roundhouse up` to talk to.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The orchestrator's address; by default that of the `roundhouse up` of the folder.
    #[arg(long)]
    url: Option<Url>,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let user = UserId::new(args.user).map_err(|error| Failure::usage(format!("--user: {error}")))?;
    // A URL cannot carry these two as they are.
    if matches!(user.as_str(), "." | "..") {
        return Err(Failure::usage("--user: `.` and `..` cannot be talked to from here"));
    }
    let task = TaskId::new(args.task).map_err(|error| Failure::usage(format!("--task: {error}")))?;
    let folder = Folder::at(args.dir.as_deref()).map_err(Failure::usage)?;
    let (url, key) = access(folder.path(), args.url)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(Chat::begin(Orchestrator::new(url, key)?, user, task));
    // The thread that reads the terminal cannot be woken; it must not keep the program.
    runtime.shutdown_background();
    result
}

/// The address and key that `up` left in its folder; a product of one's own is used through the environment.
fn access(folder: &Path, url: Option<Url>) -> Result<(Url, PlatformKey), Failure> {
    let read = |file: &str| {
        let path = folder.join(file);
        std::fs::read_to_string(&path).map(|text| text.trim().to_owned()).map_err(|error| {
            Failure::usage(format!(
                "{} cannot be read ({error}): run `roundhouse up` first, or name its folder with --dir",
                path.display()
            ))
        })
    };
    let key = match std::env::var("ROUNDHOUSE_PLATFORM_KEY") {
        Ok(key) => key,
        Err(_) => read(crate::up::folder::PLATFORM_KEY)?,
    };
    let url = match url {
        Some(url) => url,
        None => Url::parse(&read(crate::up::folder::ADDRESS)?).context("the address in the folder")?,
    };
    Ok((url, PlatformKey::from_text(key)))
}

struct Chat {
    orchestrator: Orchestrator,
    engine: Engine,
    user: UserId,
    task: TaskId,
    screen: Screen,
    /// The newest event seen.
    seen: i64,
    /// Whether a turn was left to itself and its end not seen.
    left: bool,
}

/// How far a stream is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// To the last event of a turn.
    EndOfTurn,
    /// To its own end, which comes once no turn runs.
    EndOfStream,
}

impl Chat {
    async fn begin(orchestrator: Orchestrator, user: UserId, task: TaskId) -> Result<(), Failure> {
        let mut endings = Endings::listen().context("signals cannot be listened for")?;
        let engine = tokio::select! {
            engine = orchestrator.admit(&user) => engine?,
            _ = endings.asked() => return Ok(()),
        };
        // What was said before this chat is not for its screen.
        let seen = SystemClock::new().now().unix_ms();
        let screen = Screen::new();
        screen.note(&format!(
            "{user}'s engine, conversation `{task}`. Ctrl-D ends, Ctrl-C leaves a turn to itself."
        ));
        Self { orchestrator, engine, user, task, screen, seen, left: false }.converse(endings).await
    }

    async fn converse(mut self, mut endings: Endings) -> Result<(), Failure> {
        let mut lines = lines();
        loop {
            self.screen.prompt();
            let line = tokio::select! {
                line = lines.recv() => line,
                asked = endings.asked() => match asked {
                    Asked::Interrupt => {
                        self.screen.note("\nCtrl-D ends.");
                        continue;
                    }
                    Asked::Terminate | Asked::Hangup => None,
                },
            };
            let Some(line) = line else { return Ok(()) };
            if line.trim().is_empty() {
                continue;
            }
            let said = tokio::select! {
                said = self.say(&line) => Ok(said),
                asked = endings.asked() => Err(asked),
            };
            match said {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.screen.problem(&format!("{error:#}")),
                Err(Asked::Interrupt) => {
                    self.left = true;
                    self.screen
                        .note("\nThe turn goes on without you; your next message shows the rest first.");
                }
                Err(Asked::Terminate | Asked::Hangup) => return Ok(()),
            }
        }
    }

    /// Sends a message and shows the turn; first the rest of one that was left to itself.
    async fn say(&mut self, message: &str) -> anyhow::Result<()> {
        if self.left {
            self.catch_up().await?;
        }
        let events = match self.engine.execute(&self.task, message).await {
            // Someone else talks to the same task.
            Err(ClientError::Refused { code: ErrorCode::TaskBusy, .. }) => {
                self.catch_up().await?;
                self.engine.execute(&self.task, message).await?
            }
            Err(ClientError::Failed(_)) => {
                // Asleep, or moved to another port: the orchestrator knows.
                self.engine = self.orchestrator.admit(&self.user).await?;
                self.engine.execute(&self.task, message).await?
            }
            events => events?,
        };
        self.show(events, Until::EndOfTurn).await
    }

    /// Shows what has come of the task since the newest event seen, until no turn runs.
    async fn catch_up(&mut self) -> anyhow::Result<()> {
        self.screen.note("The rest of the turn before:");
        match self.engine.replay(&self.task, self.seen).await {
            Ok(rest) => self.show(rest, Until::EndOfStream).await?,
            // It was left before it had begun.
            Err(ClientError::Refused { code: ErrorCode::TaskNotFound, .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.left = false;
        Ok(())
    }

    /// Shows a stream to its end, over breaks and restarts of the engine.
    async fn show(&mut self, mut events: Events, until: Until) -> anyhow::Result<()> {
        let mut reconnects = 0;
        loop {
            match events.next().await {
                Some(Ok(event)) => {
                    reconnects = 0;
                    self.seen = self.seen.max(event.ts);
                    self.screen.show(&event);
                    if event.event.ends_turn() && until == Until::EndOfTurn {
                        return Ok(());
                    }
                }
                None if until == Until::EndOfStream => return Ok(()),
                Some(Err(_)) | None => events = self.reconnect(&mut reconnects).await?,
            }
        }
    }

    /// Takes up a stream that ended before its turn, at the place where it ended.
    async fn reconnect(&mut self, reconnects: &mut u32) -> anyhow::Result<Events> {
        loop {
            anyhow::ensure!(
                *reconnects < RECONNECTS,
                "the turn's events cannot be had; its end is not known"
            );
            *reconnects += 1;
            tokio::time::sleep(RECONNECT_PAUSE).await;
            if let Ok(engine) = self.orchestrator.admit(&self.user).await {
                self.engine = engine;
                if let Ok(events) = self.engine.replay(&self.task, self.seen).await {
                    return Ok(events);
                }
            }
        }
    }
}

/// Lines from standard input, read on a thread of their own.
fn lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The terminal: the conversation on standard output, all else on standard error.
struct Screen {
    colours: bool,
    interactive: bool,
    /// Whether the open block is one of text.
    streaming: bool,
}

const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

impl Screen {
    fn new() -> Self {
        let terminal = io::stdout().is_terminal();
        Self {
            colours: terminal && std::env::var_os("NO_COLOR").is_none(),
            interactive: terminal && io::stdin().is_terminal(),
            streaming: false,
        }
    }

    /// Writes; a terminal that is gone is noticed by the next read.
    fn write(&self, mut to: impl Write, style: &str, text: &str) {
        let result = if self.colours { write!(to, "{style}{text}{PLAIN}") } else { write!(to, "{text}") };
        let _ = result.and_then(|()| to.flush());
    }

    fn prompt(&self) {
        if self.interactive {
            self.write(io::stdout(), "", "\n> ");
        }
    }

    fn note(&self, text: &str) {
        self.write(io::stderr(), DIM, &format!("{text}\n"));
    }

    fn problem(&self, text: &str) {
        self.write(io::stderr(), RED, &format!("{text}\n"));
    }

    fn show(&mut self, event: &SentEvent) {
        match &event.event {
            Event::TextDelta(delta) => self.write(io::stdout(), "", &delta.text),
            Event::ThinkingDelta(delta) => self.write(io::stdout(), DIM, &delta.text),
            // A call is told by its own line, so only what was streamed is ended by one.
            Event::ContentBlockStart(start) => self.streaming = start.block_type != BlockType::ToolUse,
            Event::ContentBlockStop(_) if self.streaming => self.write(io::stdout(), "", "\n"),
            Event::ToolCall(call) => {
                self.write(io::stdout(), DIM, &format!("→ {} {}\n", call.tool, call.input));
            }
            Event::ToolResult(result) => {
                let said = result.error.as_deref().unwrap_or(&result.output);
                let first = said.lines().next().unwrap_or_default();
                let more = if said.lines().nth(1).is_some() { " …" } else { "" };
                self.write(io::stdout(), DIM, &format!("← {first}{more}\n"));
            }
            Event::Error(failure) => self.problem(&failure.message),
            Event::ThreadLifecycle(Lifecycle::Retrying { .. }) => {
                self.note("The answer was cut off; this is the whole of it anew:");
            }
            Event::ThreadLifecycle(_)
            | Event::ContentBlockStop(_)
            | Event::HitlRequest(_)
            | Event::HitlResolved(_)
            | Event::WorkingMemoryUpdate(_)
            | Event::CompactionEvent(_)
            | Event::Heartbeat(_)
            | Event::Usage(_) => {}
        }
    }
}
