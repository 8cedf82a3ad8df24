//! What of a conversation is shown, and how: to a person, as the answer alone, or as JSON.

use std::io::{self, Write as _};

use api::citations::{Citation, Citations};
use api::engine::{Role, TaskMessage};
use api::event::{AgentEvent, BlockType, Event, HitlKind, HitlRequest, Lifecycle, SentEvent};
use resources::text::shorten_to_chars;
use serde_json::Value;

use super::editor::EditorRows;
use super::flow::{Look, Row, Style};
use super::live_area::LiveRows;
use super::paper::Paper;
use crate::terminal::{escape_control_characters, escape_hidden_characters, single_line};
use crate::turn_reader::json_line;

/// The longest excerpt that is shown of a tool's input or output, in characters.
const MAX_SHOWN_CHARS: usize = 500;
/// The longest excerpt that is shown of an earlier message, in characters.
const MAX_EARLIER_CHARS: usize = 8_000;

/// The model's thinking, which is told from its answer also without colours.
const THINKING: Look = Look { style: Style::Dim, first: "| thinking: ", rest: "| " };
const ANSWER: Look = Look::plain(Style::Plain);
const NOTE: Look = Look::plain(Style::Dim);
const PROBLEM: Look = Look::plain(Style::Red);
const CALL: Look = Look { style: Style::Dim, first: "→ ", rest: "  " };
const RESULT: Look = Look { style: Style::Dim, first: "← ", rest: "  " };
const ENTRY: Look = Look { style: Style::Plain, first: "", rest: "    " };
const MESSAGE: Look = Look { style: Style::Bold, first: "> ", rest: "  " };
const REPLY: Look = Look { style: Style::Bold, first: "? ", rest: "  " };

/// What is written to the standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// The conversation, for a person.
    Conversation,
    /// The answer of a turn, and nothing else.
    Answer,
    /// One event per line, as JSON.
    Json,
}

/// The output.
pub(super) struct Screen {
    pub(super) paper: Paper,
    format: Format,
    /// The answer of the turn that ended last.
    answer: Option<String>,
}

impl Screen {
    pub(super) fn new(is_edited: bool, format: Format) -> Self {
        Self { paper: Paper::new(is_edited), format, answer: None }
    }

    /// Shows how the conversation is continued: the state of the turn, and the message that is being written.
    pub(super) fn paint(&mut self, status: Option<&str>, editor: EditorRows) {
        let EditorRows { rows, cursor: (row, column) } = editor;
        let status = status.map(|text| Row { style: Style::Dim, text: text.to_owned() });
        // An empty row, and the status.
        let above = 1 + usize::from(status.is_some());
        let typed = rows.into_iter().map(|text| Row { style: Style::Plain, text });
        let rows = std::iter::once(Row::default()).chain(status).chain(typed).collect();
        self.paper.paint(LiveRows { rows, cursor: (row + above, column) });
    }

    /// Shows what the person has sent.
    pub(super) fn echo(&mut self, text: &str, is_answer: bool) {
        if !is_answer {
            self.paper.blank();
        }
        self.paper.block(if is_answer { REPLY } else { MESSAGE }, &escape_hidden_characters(text));
    }

    /// Shows something that is not part of the conversation.
    pub(super) fn note(&mut self, text: &str) {
        self.aside(NOTE, text);
    }

    /// Shows what went wrong.
    pub(super) fn problem(&mut self, text: &str) {
        self.aside(PROBLEM, &escape_hidden_characters(text));
    }

    fn aside(&mut self, look: Look, text: &str) {
        if self.paper.is_terminal() && self.format == Format::Conversation {
            self.paper.block(look, text);
        } else {
            // If standard error is closed, there is nobody to tell.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Shows the result of a command.
    pub(super) fn listing(&mut self, text: &str) {
        for line in text.lines() {
            self.paper.block(ENTRY, line);
        }
    }

    /// Shows an earlier message.
    pub(super) fn earlier_message(&mut self, message: &TaskMessage) {
        let texts = message_texts(&message.content);
        for text in texts {
            let text = shorten_to_chars(text.trim_end(), MAX_EARLIER_CHARS);
            match message.role {
                Role::User => self.echo(&text, false),
                Role::Assistant => self.paper.block(ANSWER, &escape_control_characters(&text)),
            }
        }
        for call in blocks(&message.content, "tool_use") {
            let name = call["name"].as_str().unwrap_or_default();
            self.call(name, &call["input"]);
        }
    }

    fn call(&mut self, tool: &str, input: &Value) {
        let text = format!("{tool} {input}");
        self.paper.block(CALL, &single_line(&text, MAX_SHOWN_CHARS));
    }

    /// Shows a request of the agent.
    pub(super) fn question(&mut self, request: &HitlRequest) {
        if self.format != Format::Conversation {
            return;
        }
        let (heading, options) = match request.kind {
            // Its options are always the same, and have shorter names than numbers.
            HitlKind::Permission => ("The agent asks for permission:", None),
            HitlKind::Question => ("The agent asks:", request.options.as_deref()),
        };
        self.paper.block(NOTE, heading);
        self.paper.block(ANSWER, &escape_hidden_characters(&request.question));
        for (number, option) in (1..).zip(options.unwrap_or_default()) {
            self.paper.block(ANSWER, &format!("  {number}. {}", single_line(option, MAX_SHOWN_CHARS)));
        }
    }

    /// Shows how to answer the request.
    pub(super) fn answer_hint(&mut self, request: &HitlRequest) {
        if self.format != Format::Conversation {
            return;
        }
        let hint = match (request.kind, &request.options) {
            (HitlKind::Permission, _) => {
                "[y]es / [n]o / [a]lways    (`n` with a reason; `a` in this conversation, `a everywhere` in all)"
            }
            (HitlKind::Question, Some(_)) => "A number, or an answer in your own words.",
            (HitlKind::Question, None) => "Your answer is the next line.",
        };
        self.paper.block(NOTE, hint);
    }

    /// Forgets the answer of a turn before.
    pub(super) fn forget_answer(&mut self) {
        self.answer = None;
    }

    /// Writes the answer of the turn that has ended, where only that is wanted.
    pub(super) fn finish_turn(&mut self) {
        self.paper.close();
        if let Some(answer) = self.answer.take()
            && self.format == Format::Answer
        {
            self.paper.write(&format!("{}\n", escape_control_characters(&answer)));
        }
    }

    /// Shows an event. A request of the agent is shown by [`Screen::question`].
    pub(super) fn event(&mut self, event: &SentEvent) {
        match self.format {
            Format::Conversation => self.show(&event.event),
            Format::Answer => self.note_answer(&event.event),
            Format::Json => self.paper.write(&json_line(event)),
        }
    }

    fn note_answer(&mut self, event: &Event) {
        match event {
            Event::ThreadLifecycle(Lifecycle::Completed { text, .. }) => self.answer = Some(text.clone()),
            Event::Error(failure) => self.problem(&failure.message),
            _ => {}
        }
    }

    fn show(&mut self, event: &Event) {
        match event {
            Event::TextDelta(delta) | Event::ThinkingDelta(delta) => {
                self.paper.push(&escape_control_characters(&delta.text));
            }
            Event::ContentBlockStart(start) => match start.block_type {
                BlockType::Text => self.paper.open(ANSWER),
                BlockType::Thinking => self.paper.open(THINKING),
                // A call is shown with its complete input.
                BlockType::ToolUse => {}
            },
            Event::ContentBlockStop(_) => self.paper.close(),
            Event::ToolCall(call) => self.call(&call.tool, &call.input),
            Event::ToolResult(result) => {
                let output = result.error.as_deref().unwrap_or(&result.output);
                let first = output.lines().next().unwrap_or_default();
                let more = if output.lines().nth(1).is_some() { " …" } else { "" };
                self.paper.block(RESULT, &format!("{}{more}", single_line(first, MAX_SHOWN_CHARS)));
            }
            Event::AgentEvent(agent) => self.sub_agent(agent),
            Event::CompactionEvent(compaction) => {
                let count = compaction.messages_collapsed;
                self.note(&format!("The conversation became too long: {count} messages were summarised."));
            }
            Event::Error(failure) => self.problem(&failure.message),
            Event::ThreadLifecycle(Lifecycle::Retrying { .. }) => {
                self.note("The answer was interrupted; here it is again in full:");
            }
            Event::ThreadLifecycle(Lifecycle::Cancelled { .. }) => {
                self.paper.close();
                self.note("The turn was cancelled.");
            }
            Event::Citations(Citations { citations, .. }) => self.citations(citations),
            Event::ThreadLifecycle(_)
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

    fn citations(&mut self, citations: &[Citation]) {
        for Citation { n, url, title, .. } in citations {
            let title = title.as_deref().map(|title| format!("{title}  ")).unwrap_or_default();
            let source = single_line(&format!("{title}{url}"), MAX_SHOWN_CHARS);
            self.paper.block(NOTE, &format!("[{n}] {source}"));
        }
    }

    /// Shows a sub-agent's calls only, since its answer is the result of the call that runs it.
    fn sub_agent(&mut self, agent: &AgentEvent) {
        if let Some(Event::ToolCall(call)) = agent.inner() {
            let text = format!("{} → {} {}", agent.agent, call.tool, call.input);
            self.paper.block(NOTE, &format!("  {}", single_line(&text, MAX_SHOWN_CHARS)));
        }
    }
}

/// The texts of a message: all of it, or its text blocks.
pub(super) fn message_texts(content: &Value) -> Vec<&str> {
    match content {
        Value::String(text) => vec![text],
        _ => blocks(content, "text").filter_map(|block| block["text"].as_str()).collect(),
    }
}

fn blocks<'a>(content: &'a Value, kind: &'static str) -> impl Iterator<Item = &'a Value> {
    content.as_array().into_iter().flatten().filter(move |block| block["type"] == kind)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_texts_of_a_message_are_found() {
        let blocks =
            json!([{"type": "text", "text": "a"}, {"type": "tool_use"}, {"type": "text", "text": "b"}]);
        assert_eq!(message_texts(&json!("all")), ["all"]);
        assert_eq!(message_texts(&blocks), ["a", "b"]);
        assert_eq!(message_texts(&json!(null)), [""; 0]);
    }
}
