//! Renders a reply as a message, or as the stream of events of
//! <https://platform.claude.com/docs/en/api/messages-streaming>.

use serde_json::{Value, json};

use super::event::{Delta, Event, StopDelta};
use super::prefix::prefix;
use crate::issued::{IssuedAnswer, IssuedBlock, seal};
use crate::protocol::{AnswerBody, IncomingRequest, RenderedAnswer, Settings};
use crate::reply::{Block, Chunking, Reply, Stop, TokenCounts, arguments_text};
use crate::split::split;
use crate::transcript::{Transcript, TranscriptWriter};

/// A block with generated values for everything that the script does not set.
struct RenderedBlock {
    issued: IssuedBlock,
    /// The block in `content_block_start`.
    start_block: Value,
    /// The block in a message that is not streamed.
    complete: Value,
    deltas: Deltas,
}

/// The content of a block that is streamed as deltas.
enum Deltas {
    None,
    Text(String),
    Thinking { text: String, signature: String },
    InputJson(String),
}

/// Whether the answer contains thinking, according to the request's `thinking`.
#[derive(Clone, Copy, Eq, PartialEq)]
enum ThinkingDisplay {
    Off,
    Shown,
    /// `display: omitted`: there is a signature, but the text is empty.
    Omitted,
}

/// Renders the answer.
pub(super) fn answer(
    request: &IncomingRequest,
    reply: &Reply,
    number: u64,
    settings: &Settings,
) -> RenderedAnswer {
    let thinking = ThinkingDisplay::from_request(&request.body);
    let blocks: Vec<RenderedBlock> = reply
        .blocks
        .iter()
        // Without thinking in the request there is none in the answer, whatever the script says.
        .filter(|block| thinking != ThinkingDisplay::Off || !is_thinking(block))
        .enumerate()
        .map(|(index, block)| render(block, thinking, number, index))
        .collect();
    let usage = UsageCounts(reply.token_counts(request.raw.len()));
    let envelope = Envelope { id: format!("msg_{number:024}"), model: request.model().to_owned() };
    let answer = if request.wants_stream() {
        AnswerBody::Stream(stream(&envelope, &blocks, reply, &usage))
    } else {
        let content: Vec<&Value> = blocks.iter().map(|block| &block.complete).collect();
        AnswerBody::Complete(envelope.message(&content, Some(stop_reason(reply)), &usage.complete()))
    };
    RenderedAnswer { answer, issued: issued(request, blocks, settings) }
}

/// The parts that the client must send back. `None` for an answer without thinking.
fn issued(
    request: &IncomingRequest,
    blocks: Vec<RenderedBlock>,
    settings: &Settings,
) -> Option<IssuedAnswer> {
    let blocks: Vec<IssuedBlock> = blocks.into_iter().map(|block| block.issued).collect();
    blocks.iter().any(|block| block.seal().is_some()).then(|| IssuedAnswer {
        model: request.model().to_owned(),
        prefix: settings.bind_thinking.then(|| prefix(&request.body, usize::MAX)),
        blocks,
    })
}

fn stream(envelope: &Envelope, blocks: &[RenderedBlock], reply: &Reply, usage: &UsageCounts) -> Transcript {
    let mut writer = TranscriptWriter::default();
    let message = envelope.message(&[], None, &usage.at_start());
    write(&mut writer, &Event::MessageStart { message: &message });
    for (index, block) in blocks.iter().enumerate() {
        write(&mut writer, &Event::ContentBlockStart { index, content_block: &block.start_block });
        if index == 0 {
            write(&mut writer, &Event::Ping);
        }
        write_deltas(&mut writer, index, &block.deltas, reply.chunking);
        write(&mut writer, &Event::ContentBlockStop { index });
    }
    let delta = StopDelta { stop_reason: stop_reason(reply), stop_sequence: None };
    write(&mut writer, &Event::MessageDelta { delta, usage: &usage.at_end() });
    writer.finish("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")
}

fn write(writer: &mut TranscriptWriter, event: &Event<'_>) {
    writer.event(Some(event.name()), event);
}

/// Writes the fragments of a block. A signature and the empty fragment that opens a tool call do not count as
/// deltas.
fn write_deltas(writer: &mut TranscriptWriter, index: usize, deltas: &Deltas, chunking: Chunking) {
    let event = |delta| Event::ContentBlockDelta { index, delta };
    match deltas {
        Deltas::None => {}
        Deltas::Text(text) => {
            for text in split(text, chunking) {
                write_delta(writer, &event(Delta::TextDelta { text }));
            }
        }
        Deltas::Thinking { text, signature } => {
            for thinking in split(text, chunking) {
                write_delta(writer, &event(Delta::ThinkingDelta { thinking }));
            }
            write(writer, &event(Delta::SignatureDelta { signature }));
        }
        Deltas::InputJson(text) => {
            write(writer, &event(Delta::InputJsonDelta { partial_json: "" }));
            for partial_json in split(text, chunking) {
                write_delta(writer, &event(Delta::InputJsonDelta { partial_json }));
            }
        }
    }
}

fn write_delta(writer: &mut TranscriptWriter, event: &Event<'_>) {
    writer.delta(Some(event.name()), event);
}

fn render(block: &Block, thinking: ThinkingDisplay, number: u64, index: usize) -> RenderedBlock {
    match block {
        Block::Thinking { text } => {
            let text = if thinking == ThinkingDisplay::Omitted { "" } else { text.as_str() };
            let signature = seal(number, index, text);
            RenderedBlock {
                issued: IssuedBlock::Thinking { text: text.to_owned(), seal: signature.clone() },
                start_block: json!({"type": "thinking", "thinking": "", "signature": ""}),
                complete: json!({"type": "thinking", "thinking": text, "signature": signature}),
                deltas: Deltas::Thinking { text: text.to_owned(), signature },
            }
        }
        Block::RedactedThinking => {
            let data = seal(number, index, "redacted");
            let complete = json!({"type": "redacted_thinking", "data": data});
            RenderedBlock {
                issued: IssuedBlock::Redacted { seal: data },
                start_block: complete.clone(),
                complete,
                deltas: Deltas::None,
            }
        }
        Block::Text { text } => rendered_text(text),
        Block::Echo => rendered_text(""),
        Block::ToolUse { id, name, input, raw_input } => {
            let id = id.clone().unwrap_or_else(|| format!("toolu_{number:016}{index:08}"));
            let raw = arguments_text(input, raw_input.as_deref());
            // A call that is truncated in the middle of its JSON has no complete input.
            let input: Value = serde_json::from_str(&raw).unwrap_or_else(|_| json!({}));
            RenderedBlock {
                start_block: json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
                complete: json!({"type": "tool_use", "id": id, "name": name, "input": input}),
                issued: IssuedBlock::ToolUse { id },
                deltas: Deltas::InputJson(raw),
            }
        }
    }
}

fn rendered_text(text: &str) -> RenderedBlock {
    RenderedBlock {
        issued: IssuedBlock::Text { is_blank: text.trim().is_empty() },
        start_block: json!({"type": "text", "text": ""}),
        complete: json!({"type": "text", "text": text}),
        deltas: Deltas::Text(text.to_owned()),
    }
}

fn is_thinking(block: &Block) -> bool {
    matches!(block, Block::Thinking { .. } | Block::RedactedThinking)
}

fn stop_reason(reply: &Reply) -> &'static str {
    match reply.stop_reason() {
        Stop::EndTurn => "end_turn",
        Stop::ToolUse => "tool_use",
        Stop::MaxTokens => "max_tokens",
        Stop::Refusal => "refusal",
    }
}

impl ThinkingDisplay {
    fn from_request(body: &Value) -> Self {
        let member =
            |name| body.get("thinking").and_then(|thinking| thinking.get(name)).and_then(Value::as_str);
        match (member("type"), member("display")) {
            (None | Some("disabled"), _) => Self::Off,
            (Some(_), Some("omitted")) => Self::Omitted,
            (Some(_), _) => Self::Shown,
        }
    }
}

/// The members that streamed and complete messages share.
struct Envelope {
    id: String,
    model: String,
}

impl Envelope {
    fn message(&self, content: &[&Value], stop_reason: Option<&str>, usage: &Value) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": stop_reason, "stop_sequence": null, "usage": usage,
        })
    }
}

/// The token counts of one answer in this wire's format.
struct UsageCounts(TokenCounts);

impl UsageCounts {
    /// The counts in `message_start`: the input is known, the output has hardly begun.
    fn at_start(&self) -> Value {
        self.value(self.0.output.min(1))
    }

    /// The counts in a complete message.
    fn complete(&self) -> Value {
        let mut usage = self.value(self.0.output);
        if let Some(members) = usage.as_object_mut() {
            members.insert("output_tokens_details".to_owned(), self.details());
        }
        usage
    }

    /// The counts in `message_delta`: the totals.
    fn at_end(&self) -> Value {
        json!({
            "input_tokens": self.0.input, "output_tokens": self.0.output,
            "cache_creation_input_tokens": self.0.cache_write, "cache_read_input_tokens": self.0.cache_read,
            "output_tokens_details": self.details(),
        })
    }

    fn value(&self, output: u64) -> Value {
        json!({
            "input_tokens": self.0.input, "output_tokens": output,
            "cache_creation_input_tokens": self.0.cache_write, "cache_read_input_tokens": self.0.cache_read,
            "cache_creation": {"ephemeral_5m_input_tokens": self.0.cache_write, "ephemeral_1h_input_tokens": 0},
            "service_tier": "standard",
        })
    }

    fn details(&self) -> Value {
        json!({"thinking_tokens": self.0.reasoning})
    }
}
