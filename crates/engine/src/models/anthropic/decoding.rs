//! How an answer of Anthropic Messages is read (<https://platform.claude.com/docs/en/build-with-claude/streaming>).

use std::collections::VecDeque;

use contract::CallId;
use contract::event::BlockType;
use serde::Deserialize;
use serde_json::Value;

use crate::models::http::{Decoder, Typed, needed, no_known_form};
use crate::models::{
    Answer, Block, CUT_OFF, ModelError, Part, StopCause, Tokens, ToolUse, classify, tool_input,
};

/// An event of the stream, with the fields of all its types: an enum that is told apart by a field would be read twice,
/// and its delta four times. What few of them have is boxed, for each is moved about while it is read.
#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: EventKind,
    message: Option<Box<Start>>,
    content_block: Option<Box<ContentBlock>>,
    delta: Option<Delta>,
    usage: Option<Box<Usage>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EventKind {
    MessageStart,
    ContentBlockStart,
    ContentBlockDelta,
    ContentBlockStop,
    MessageDelta,
    MessageStop,
    Error,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Start {
    #[serde(default)]
    usage: Usage,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentBlock {
    Text {
        #[serde(default)]
        text: String,
    },
    Thinking {
        #[serde(default)]
        thinking: String,
        #[serde(default)]
        signature: String,
    },
    RedactedThinking {
        data: String,
    },
    ToolUse {
        id: String,
        name: String,
        /// Empty where the input is streamed.
        #[serde(default)]
        input: Value,
    },
    #[serde(other)]
    Other,
}

/// More of the open block or, in a `message_delta`, of the message.
#[derive(Deserialize)]
struct Delta {
    #[serde(rename = "type")]
    kind: Option<DeltaKind>,
    text: Option<String>,
    thinking: Option<String>,
    signature: Option<String>,
    partial_json: Option<String>,
    stop_reason: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
enum DeltaKind {
    #[serde(rename = "text_delta")]
    Text,
    #[serde(rename = "thinking_delta")]
    Thinking,
    #[serde(rename = "signature_delta")]
    Signature,
    #[serde(rename = "input_json_delta")]
    InputJson,
    #[serde(other)]
    Other,
}

/// Counts are cumulative, and each may be absent.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Usage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Clone, Copy, Default, Deserialize)]
struct OutputDetails {
    thinking_tokens: Option<u64>,
}

/// The block that is open, with what has come of it.
enum Open {
    Text(String),
    Thinking { thinking: String, signature: String },
    Redacted(String),
    Tool { id: String, name: String, whole: Value, input: String },
    Ignored,
}

#[derive(Default)]
pub(super) struct Decoding {
    blocks: Vec<Block>,
    open: Option<Open>,
    usage: Usage,
    stop: StopCause,
}

impl Decoder for Decoding {
    fn event(&mut self, data: &str, parts: &mut VecDeque<Part>) -> Result<(), ModelError> {
        let Event { kind, message, content_block, delta, usage } = Event::read(data)?;
        match kind {
            EventKind::MessageStart => self.count(needed(message, "message")?.usage),
            EventKind::ContentBlockStart => self.start(*needed(content_block, "content_block")?, parts),
            EventKind::ContentBlockDelta => self.delta(needed(delta, "delta")?, parts)?,
            EventKind::ContentBlockStop => self.stop(parts),
            EventKind::MessageDelta => {
                self.count(usage.as_deref().copied().unwrap_or_default());
                self.stop = match needed(delta, "delta")?.stop_reason.as_deref() {
                    None => self.stop,
                    Some("max_tokens") => StopCause::Length,
                    Some("model_context_window_exceeded") => StopCause::ContextFull,
                    Some("refusal") => StopCause::Refusal,
                    Some(_) => StopCause::Done,
                };
            }
            EventKind::MessageStop => {
                self.stop(parts);
                parts.push_back(Part::Done(self.answer()));
            }
            EventKind::Error => {
                return Err(classify::broken_off(&serde_json::from_str(data).unwrap_or_default()));
            }
            EventKind::Other => {}
        }
        Ok(())
    }

    fn spent(&self) -> Tokens {
        self.usage.tokens()
    }
}

impl Event {
    /// Reads an event. One of a type that is not listed, which the vendor may add at any time, may have any form, and so
    /// may a delta.
    fn read(data: &str) -> Result<Self, ModelError> {
        serde_json::from_str(data).or_else(|error| {
            match serde_json::from_str(data).map(|Typed { kind }| kind) {
                Ok(kind @ (EventKind::Other | EventKind::Error)) => Ok(Self::of(kind)),
                Ok(EventKind::ContentBlockDelta) if has_delta_of_other_type(data) => {
                    Ok(Self::of(EventKind::Other))
                }
                _ => Err(no_known_form(&error)),
            }
        })
    }

    fn of(kind: EventKind) -> Self {
        Self { kind, message: None, content_block: None, delta: None, usage: None }
    }
}

fn has_delta_of_other_type(data: &str) -> bool {
    #[derive(Deserialize)]
    struct HasDelta {
        delta: Typed<DeltaKind>,
    }
    serde_json::from_str(data).is_ok_and(|HasDelta { delta }| delta.kind == DeltaKind::Other)
}

impl Usage {
    fn tokens(self) -> Tokens {
        let counted = |count: Option<u64>| count.unwrap_or(0);
        let (read, write) =
            (counted(self.cache_read_input_tokens), counted(self.cache_creation_input_tokens));
        Tokens {
            // The vendor counts cached parts of the prompt beside `input_tokens`, not in it.
            input: counted(self.input_tokens) + read + write,
            output: counted(self.output_tokens),
            cache_read: read,
            cache_write: write,
            reasoning: counted(self.output_tokens_details.and_then(|details| details.thinking_tokens)),
        }
    }
}

impl Decoding {
    fn count(&mut self, usage: Usage) {
        let ours = &mut self.usage;
        ours.input_tokens = usage.input_tokens.or(ours.input_tokens);
        ours.output_tokens = usage.output_tokens.or(ours.output_tokens);
        ours.cache_read_input_tokens = usage.cache_read_input_tokens.or(ours.cache_read_input_tokens);
        ours.cache_creation_input_tokens =
            usage.cache_creation_input_tokens.or(ours.cache_creation_input_tokens);
        ours.output_tokens_details = usage.output_tokens_details.or(ours.output_tokens_details);
    }

    fn start(&mut self, block: ContentBlock, parts: &mut VecDeque<Part>) {
        let (open, kind, first) = match block {
            ContentBlock::Text { text, .. } => (Open::Text(text.clone()), Some(BlockType::Text), text),
            ContentBlock::Thinking { thinking, signature } => {
                let open = Open::Thinking { thinking: thinking.clone(), signature };
                (open, Some(BlockType::Thinking), thinking)
            }
            ContentBlock::RedactedThinking { data } => (Open::Redacted(data), None, String::new()),
            ContentBlock::ToolUse { id, name, input: whole } => {
                let open = Open::Tool { id, name, whole, input: String::new() };
                (open, Some(BlockType::ToolUse), String::new())
            }
            ContentBlock::Other => (Open::Ignored, None, String::new()),
        };
        // Some compatible servers leave out that a block is whole.
        self.stop(parts);
        self.open = Some(open);
        parts.extend(kind.map(Part::Start));
        if !first.is_empty() {
            parts.push_back(Part::Delta(first));
        }
    }

    fn delta(&mut self, delta: Delta, parts: &mut VecDeque<Part>) -> Result<(), ModelError> {
        let kind = needed(delta.kind, "type")?;
        let (more, name) = match kind {
            DeltaKind::Text => (delta.text, "text"),
            DeltaKind::Thinking => (delta.thinking, "thinking"),
            DeltaKind::Signature => (delta.signature, "signature"),
            DeltaKind::InputJson => (delta.partial_json, "partial_json"),
            DeltaKind::Other => return Ok(()),
        };
        let more = needed(more, name)?;
        match (kind, &mut self.open) {
            (DeltaKind::Text, Some(Open::Text(all)))
            | (DeltaKind::Thinking, Some(Open::Thinking { thinking: all, .. })) => {
                all.push_str(&more);
                parts.push_back(Part::Delta(more));
            }
            (DeltaKind::Signature, Some(Open::Thinking { signature: all, .. }))
            | (DeltaKind::InputJson, Some(Open::Tool { input: all, .. })) => all.push_str(&more),
            // A delta that does not fit its block: nothing we could show.
            _ => {}
        }
        Ok(())
    }

    fn stop(&mut self, parts: &mut VecDeque<Part>) {
        let (block, shown) = match self.open.take() {
            Some(Open::Text(text)) => (Block::Text { text, signature: None }, true),
            Some(Open::Thinking { thinking, signature }) => {
                let signature = Some(signature).filter(|signature| !signature.is_empty());
                (Block::Thinking { thinking, signature }, true)
            }
            Some(Open::Redacted(data)) => (Block::RedactedThinking { data }, false),
            Some(Open::Tool { id, name, whole, input }) => {
                // Servers that do not stream a call's input give it at once.
                let whole = if whole.is_null() { String::new() } else { whole.to_string() };
                let input = if input.trim().is_empty() { &whole } else { &input };
                (Block::ToolUse(tool_use(id, name, input)), true)
            }
            Some(Open::Ignored) | None => return,
        };
        self.blocks.push(block);
        if shown {
            parts.push_back(Part::Stop);
        }
    }

    fn answer(&mut self) -> Answer {
        let mut blocks = std::mem::take(&mut self.blocks);
        let cut = matches!(self.stop, StopCause::Length | StopCause::ContextFull);
        if cut && let Some(Block::ToolUse(last)) = blocks.last_mut() {
            last.broken.get_or_insert_with(|| CUT_OFF.into());
        }
        Answer { blocks, usage: self.spent(), stop: self.stop }
    }
}

fn tool_use(provider_id: String, name: String, input: &str) -> ToolUse {
    let (input, broken) = tool_input(input);
    ToolUse { call_id: CallId::new(), provider_id, name, input, signature: None, broken }
}
