//! The terminal: the conversation on standard output, all else on standard error.

use std::cell::Cell;
use std::io::{self, IsTerminal as _, Write};

use contract::event::{AgentEvent, BlockType, Event, HitlKind, HitlRequest, Lifecycle, SentEvent};

use crate::terminal::{harmless, on_one_line, visible};

/// How much of a line is shown that the agent's tools gave, in characters.
const SHOWN: usize = 2_000;

const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// See the module.
pub(super) struct Screen {
    colours: bool,
    interactive: bool,
    /// Whether the open block is one of text.
    streaming: bool,
    /// Why the conversation cannot be written any more.
    lost: Cell<Option<io::Error>>,
}

impl Screen {
    pub(super) fn new() -> Self {
        let terminal = io::stdout().is_terminal();
        Self {
            colours: terminal && service::logging::wants_colours(),
            interactive: terminal && io::stdin().is_terminal(),
            streaming: false,
            lost: Cell::default(),
        }
    }

    /// Writes; a terminal that is gone is noticed by the next read.
    fn write(&self, mut to: impl Write, style: &str, text: &str) {
        let result = if self.colours { write!(to, "{style}{text}{PLAIN}") } else { write!(to, "{text}") };
        if let Err(error) = result.and_then(|()| to.flush()) {
            self.lost.set(Some(error));
        }
    }

    /// Why something could not be written, unless who reads it has seen enough.
    pub(super) fn lost(&self) -> Option<io::Error> {
        self.lost.take().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
    }

    pub(super) fn prompt(&self) {
        if self.interactive {
            self.write(io::stdout(), "", "\n> ");
        }
    }

    /// Shows what the agent asks.
    pub(super) fn question(&self, request: &HitlRequest) {
        let (who, options) = match request.kind {
            // The answers to it are always the same, and have shorter names than numbers.
            HitlKind::Permission => ("The agent asks for leave:", None),
            HitlKind::Question => ("The agent asks:", request.options.as_deref()),
        };
        self.write(io::stdout(), DIM, &format!("{who}\n"));
        self.write(io::stdout(), "", &format!("{}\n", visible(&request.question)));
        for (number, option) in (1..).zip(options.unwrap_or_default()) {
            self.write(io::stdout(), "", &format!("  {number}. {}\n", on_one_line(option, SHOWN)));
        }
    }

    /// Shows how to answer it.
    pub(super) fn ask(&self, request: &HitlRequest) {
        let how = match (request.kind, &request.options) {
            (HitlKind::Permission, _) => {
                "[y]es / [n]o / [a]lways    (`n` and why not; `a` in this conversation, `a everywhere` in all)"
            }
            (HitlKind::Question, Some(_)) => "A number, or an answer in your own words.",
            (HitlKind::Question, None) => "Your answer is the next line.",
        };
        self.write(io::stdout(), DIM, &format!("{how}\n"));
        self.prompt_answer();
    }

    pub(super) fn prompt_answer(&self) {
        if self.interactive {
            self.write(io::stdout(), "", "? ");
        }
    }

    pub(super) fn note(&self, text: &str) {
        self.write(io::stderr(), DIM, &format!("{text}\n"));
    }

    pub(super) fn problem(&self, text: &str) {
        self.write(io::stderr(), RED, &format!("{text}\n"));
    }

    pub(super) fn show(&mut self, event: &SentEvent) {
        match &event.event {
            Event::TextDelta(delta) => self.write(io::stdout(), "", &harmless(&delta.text)),
            Event::ThinkingDelta(delta) => self.write(io::stdout(), DIM, &harmless(&delta.text)),
            // A call is told by its own line, so only what was streamed is ended by one.
            Event::ContentBlockStart(start) => self.streaming = start.block_type != BlockType::ToolUse,
            Event::ContentBlockStop(_) if self.streaming => self.write(io::stdout(), "", "\n"),
            Event::ToolCall(call) => {
                let (tool, input) = (on_one_line(&call.tool, SHOWN), call.input.to_string());
                self.write(io::stdout(), DIM, &format!("→ {tool} {}\n", on_one_line(&input, SHOWN)));
            }
            Event::ToolResult(result) => {
                let said = result.error.as_deref().unwrap_or(&result.output);
                let first = said.lines().next().unwrap_or_default();
                let more = if said.lines().nth(1).is_some() { " …" } else { "" };
                self.write(io::stdout(), DIM, &format!("← {}{more}\n", on_one_line(first, SHOWN)));
            }
            Event::AgentEvent(agent) => self.show_agent(agent),
            Event::CompactionEvent(compaction) => {
                let count = compaction.messages_collapsed;
                self.note(&format!("The conversation had become long: {count} messages were summarised."));
            }
            Event::Error(failure) => self.problem(&visible(&failure.message)),
            Event::ThreadLifecycle(Lifecycle::Retrying { .. }) => {
                self.note("The answer was cut off; this is the whole of it anew:");
            }
            Event::ThreadLifecycle(_)
            | Event::ContentBlockStop(_)
            // These two depend on what is still open.
            | Event::HitlRequest(_)
            | Event::HitlResolved(_)
            | Event::WorkingMemoryUpdate(_)
            | Event::Heartbeat(_)
            | Event::Usage(_) => {}
        }
    }

    /// What a sub-agent does: its calls alone, since its answer comes as the result of the call that runs it.
    fn show_agent(&self, agent: &AgentEvent) {
        if let Some(Event::ToolCall(call)) = agent.inner() {
            let (who, tool) = (on_one_line(&agent.agent, SHOWN), on_one_line(&call.tool, SHOWN));
            let input = on_one_line(&call.input.to_string(), SHOWN);
            self.write(io::stdout(), DIM, &format!("  {who} → {tool} {input}\n"));
        }
    }
}
