//! Terminal output: the conversation on standard output, everything else on standard error.

use std::cell::Cell;
use std::io::{self, IsTerminal as _, Write};

use api::citations::{Citation, Citations};
use api::event::{AgentEvent, BlockType, Event, HitlKind, HitlRequest, Lifecycle, SentEvent};

use crate::terminal::{escape_control_characters, escape_hidden_characters, single_line};

/// The longest excerpt shown of a line of tool output, in characters.
const MAX_SHOWN_CHARS: usize = 2_000;

const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const RESET: &str = "\x1b[0m";

/// Writes the conversation to the terminal.
pub(super) struct Screen {
    colours: bool,
    interactive: bool,
    /// Whether the open block is a text block.
    streaming: bool,
    /// The first error in writing the conversation.
    write_error: Cell<Option<io::Error>>,
}

impl Screen {
    pub(super) fn new() -> Self {
        let terminal = io::stdout().is_terminal();
        Self {
            colours: terminal && http_service::logging::color_enabled(),
            interactive: terminal && io::stdin().is_terminal(),
            streaming: false,
            write_error: Cell::default(),
        }
    }

    /// Writes; a closed terminal is noticed by the next read.
    fn write(&self, mut to: impl Write, style: &str, text: &str) {
        let result = if self.colours { write!(to, "{style}{text}{RESET}") } else { write!(to, "{text}") };
        if let Err(error) = result.and_then(|()| to.flush()) {
            self.write_error.set(Some(error));
        }
    }

    /// Takes the write error, unless it only means that the reader closed the pipe.
    pub(super) fn take_write_error(&self) -> Option<io::Error> {
        self.write_error.take().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
    }

    pub(super) fn prompt(&self) {
        if self.interactive {
            self.write(io::stdout(), "", "\n> ");
        }
    }

    /// Shows a request of the agent.
    pub(super) fn show_question(&self, request: &HitlRequest) {
        let (heading, options) = match request.kind {
            // Its options are always the same, and have shorter names than numbers.
            HitlKind::Permission => ("The agent asks for permission:", None),
            HitlKind::Question => ("The agent asks:", request.options.as_deref()),
        };
        self.write(io::stdout(), DIM, &format!("{heading}\n"));
        self.write(io::stdout(), "", &format!("{}\n", escape_hidden_characters(&request.question)));
        for (number, option) in (1..).zip(options.unwrap_or_default()) {
            self.write(io::stdout(), "", &format!("  {number}. {}\n", single_line(option, MAX_SHOWN_CHARS)));
        }
    }

    /// Shows how to answer the request.
    pub(super) fn show_answer_hint(&self, request: &HitlRequest) {
        let hint = match (request.kind, &request.options) {
            (HitlKind::Permission, _) => {
                "[y]es / [n]o / [a]lways    (`n` with a reason; `a` in this conversation, `a everywhere` in all)"
            }
            (HitlKind::Question, Some(_)) => "A number, or an answer in your own words.",
            (HitlKind::Question, None) => "Your answer is the next line.",
        };
        self.write(io::stdout(), DIM, &format!("{hint}\n"));
        self.prompt_answer();
    }

    pub(super) fn prompt_answer(&self) {
        if self.interactive {
            self.write(io::stdout(), "", "? ");
        }
    }

    pub(super) fn print_note(&self, text: &str) {
        self.write(io::stderr(), DIM, &format!("{text}\n"));
    }

    pub(super) fn print_problem(&self, text: &str) {
        self.write(io::stderr(), RED, &format!("{text}\n"));
    }

    pub(super) fn show_event(&mut self, event: &SentEvent) {
        match &event.event {
            Event::TextDelta(delta) => self.write(io::stdout(), "", &escape_control_characters(&delta.text)),
            Event::ThinkingDelta(delta) => self.write(io::stdout(), DIM, &escape_control_characters(&delta.text)),
            // A call is printed on a line of its own, so only streamed text needs a line ending.
            Event::ContentBlockStart(start) => self.streaming = start.block_type != BlockType::ToolUse,
            Event::ContentBlockStop(_) if self.streaming => self.write(io::stdout(), "", "\n"),
            Event::ToolCall(call) => {
                let (tool, input) = (single_line(&call.tool, MAX_SHOWN_CHARS), call.input.to_string());
                self.write(io::stdout(), DIM, &format!("→ {tool} {}\n", single_line(&input, MAX_SHOWN_CHARS)));
            }
            Event::ToolResult(result) => {
                let output = result.error.as_deref().unwrap_or(&result.output);
                let first = output.lines().next().unwrap_or_default();
                let more = if output.lines().nth(1).is_some() { " …" } else { "" };
                self.write(io::stdout(), DIM, &format!("← {}{more}\n", single_line(first, MAX_SHOWN_CHARS)));
            }
            Event::AgentEvent(agent) => self.show_agent_event(agent),
            Event::CompactionEvent(compaction) => {
                let count = compaction.messages_collapsed;
                self.print_note(&format!("The conversation became too long: {count} messages were summarised."));
            }
            Event::Error(failure) => self.print_problem(&escape_hidden_characters(&failure.message)),
            Event::ThreadLifecycle(Lifecycle::Retrying { .. }) => {
                self.print_note("The answer was interrupted; here it is again in full:");
            }
            Event::Citations(Citations { citations, .. }) => self.show_citations(citations),
            Event::ThreadLifecycle(_)
            | Event::ContentBlockStop(_)
            // These two depend on the open question.
            | Event::HitlRequest(_)
            | Event::HitlResolved(_)
            | Event::WorkingMemoryUpdate(_)
            | Event::ApprovalRequest(_)
            | Event::ApprovalResolved(_)
            | Event::UsageCap(_)
            | Event::BusyUpdate(_)
            | Event::ToolHook(_)
            | Event::Heartbeat(_)
            | Event::Usage(_) => {}
        }
    }

    fn show_citations(&self, citations: &[Citation]) {
        for Citation { n, url, title, .. } in citations {
            let title = title.as_deref().map(|title| format!("{title}  ")).unwrap_or_default();
            let source = single_line(&format!("{title}{url}"), MAX_SHOWN_CHARS);
            self.write(io::stdout(), DIM, &format!("[{n}] {source}\n"));
        }
    }

    /// Shows a sub-agent's calls only, since its answer is the result of the call that runs it.
    fn show_agent_event(&self, agent: &AgentEvent) {
        if let Some(Event::ToolCall(call)) = agent.inner() {
            let (name, tool) =
                (single_line(&agent.agent, MAX_SHOWN_CHARS), single_line(&call.tool, MAX_SHOWN_CHARS));
            let input = single_line(&call.input.to_string(), MAX_SHOWN_CHARS);
            self.write(io::stdout(), DIM, &format!("  {name} → {tool} {input}\n"));
        }
    }
}
