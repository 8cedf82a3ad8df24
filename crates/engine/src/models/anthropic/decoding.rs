//! How an answer of Anthropic Messages is read (<https://platform.claude.com/docs/en/build-with-claude/streaming>).

use std::collections::VecDeque;

use contract::CallId;
use contract::event::BlockType;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::models::http::{
    Count, Decoder, Ending, Received, as_it_is, field, if_readable, needed, no_known_form, no_reason, place,
};
use crate::models::{
    Answer, Block, CUT_OFF, ModelError, Part, StopCause, Tokens, ToolUse, classify, tool_input,
};

/// An event of the stream, with the fields of all its types: an enum that is told apart by a field would be read twice,
/// and its delta four times. What few of them have is boxed, for each is moved about while it is read.
#[derive(Default, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: EventKind,
    /// Which block it is of.
    index: Option<u64>,
    message: Option<Box<Start>>,
    content_block: Option<Box<ContentBlock>>,
    delta: Option<Delta>,
    #[serde(default, deserialize_with = "if_readable")]
    usage: Option<Box<Usage>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EventKind {
    MessageStart,
    ContentBlockStart,
    ContentBlockDelta,
    ContentBlockStop,
    MessageDelta,
    MessageStop,
    Error,
    #[default]
    #[serde(other)]
    Other,
}

impl EventKind {
    const fn is_of_block(self) -> bool {
        matches!(self, Self::ContentBlockStart | Self::ContentBlockDelta | Self::ContentBlockStop)
    }
}

#[derive(Deserialize)]
struct Start {
    #[serde(default, deserialize_with = "if_readable")]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentBlock {
    Text {
        text: Option<String>,
    },
    Thinking {
        thinking: Option<String>,
        signature: Option<String>,
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
    #[serde(default, deserialize_with = "nothing_if_null")]
    text: Option<String>,
    #[serde(default, deserialize_with = "nothing_if_null")]
    thinking: Option<String>,
    signature: Option<String>,
    #[serde(default, deserialize_with = "nothing_if_null")]
    partial_json: Option<String>,
    stop_reason: Option<String>,
}

/// More of a text: vLLM may write that there is nothing more as `null`.
fn nothing_if_null<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Option::deserialize(from).map(|more: Option<String>| Some(more.unwrap_or_default()))
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
    input_tokens: Count,
    output_tokens: Count,
    cache_read_input_tokens: Count,
    cache_creation_input_tokens: Count,
    #[serde(deserialize_with = "if_readable")]
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    thinking_tokens: Count,
}

/// A block, with what has come of it.
struct Coming {
    /// Its number; absent of some compatible servers.
    index: Option<u64>,
    content: Content,
    is_whole: bool,
}

enum Content {
    Text(String),
    Thinking { thinking: String, signature: String },
    Redacted(String),
    Tool { id: String, name: String, whole: Value, input: String },
    Ignored,
}

impl Content {
    /// What it is shown as; none if it is not.
    const fn shown_as(&self) -> Option<BlockType> {
        match self {
            Self::Text(_) => Some(BlockType::Text),
            Self::Thinking { .. } => Some(BlockType::Thinking),
            Self::Tool { .. } => Some(BlockType::ToolUse),
            Self::Redacted(_) | Self::Ignored => None,
        }
    }

    /// Whether it is a call, and the same as `other`.
    fn is_the_call(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tool { id, name, .. }, Self::Tool { id: other, name: others, .. }) => {
                !id.is_empty() && (id, name) == (other, others)
            }
            _ => false,
        }
    }

    /// The block; none if it is nothing to us.
    fn into_block(self, is_cut: bool) -> Option<Block> {
        Some(match self {
            Self::Text(text) => Block::Text { text, signature: None },
            Self::Thinking { thinking, signature } => Block::Thinking {
                thinking,
                signature: Some(signature).filter(|signature| !signature.is_empty()),
            },
            Self::Redacted(data) => Block::RedactedThinking { data },
            Self::Tool { id: provider_id, name, whole, input } => {
                // Servers that do not stream a call's input give it at once.
                let whole = if whole.is_null() { String::new() } else { whole.to_string() };
                let (input, broken) = tool_input(if input.trim().is_empty() { &whole } else { &input });
                let broken = broken.or_else(|| is_cut.then(|| CUT_OFF.to_owned()));
                Block::ToolUse(ToolUse {
                    call_id: CallId::new(),
                    provider_id,
                    name,
                    input,
                    signature: None,
                    broken,
                })
            }
            Self::Ignored => return None,
        })
    }
}

/// The vendor ends a block before it begins the next. Compatible servers may leave out ends, or give the calls of a
/// model mixed, as they were told of them: what comes belongs to the block of its index, and a block that is shown as
/// open is shown as ended where another goes on.
#[derive(Default)]
pub(super) struct Decoding {
    /// In the order in which they began.
    blocks: Vec<Coming>,
    /// The place of the block that is shown as open.
    shown: Option<usize>,
    usage: Usage,
    ending: Ending,
    received: Received,
}

impl Decoder for Decoding {
    fn event(&mut self, data: &str, parts: &mut VecDeque<Part>) -> Result<(), ModelError> {
        let Event { kind, index, message, content_block, delta, usage } = Event::read(data)?;
        match kind {
            // Whoever asked once more behind our back may tell both answers: a call would come twice.
            EventKind::MessageStart if !self.blocks.is_empty() => {
                return Err(no_known_form(&"the answer begins again"));
            }
            EventKind::MessageStart => {
                // The output count at the start is a placeholder. If the stream breaks off, an estimate of what came
                // is closer to what the vendor bills.
                let usage = message.and_then(|message| message.usage);
                self.count(usage.map(|usage| Usage { output_tokens: Count::default(), ..usage }));
            }
            EventKind::ContentBlockStart => {
                self.received.block(data.len());
                self.start(index, *needed(content_block, "content_block")?, parts);
            }
            EventKind::ContentBlockDelta => self.delta(index, needed(delta, "delta")?, parts)?,
            EventKind::ContentBlockStop => self.stop(index, parts),
            EventKind::MessageDelta => {
                self.count(usage.as_deref().copied());
                self.ending.told(needed(delta, "delta")?.stop_reason);
            }
            EventKind::MessageStop => {
                self.hide(parts);
                let answer = self.answer(self.ending.cause()?.ok_or_else(no_reason)?);
                parts.push_back(Part::Done(answer));
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

    fn received(&self) -> Received {
        self.received
    }
}

impl Event {
    /// Reads an event. A field that is not of its form is missed only if the type of the event needs it; one of a type
    /// that is not listed, which the vendor may add at any time, may have any form, and so may a delta.
    fn read(data: &str) -> Result<Self, ModelError> {
        serde_json::from_str(data).or_else(|fault| {
            let event = as_it_is(data, &fault)?;
            let kind = field(&event, "type").ok_or_else(|| no_known_form(&fault))?;
            let delta_kind = event.get("delta").and_then(|delta| field(delta, "type"));
            let is_delta_of_other_type =
                kind == EventKind::ContentBlockDelta && delta_kind == Some(DeltaKind::Other);
            if kind == EventKind::Other || is_delta_of_other_type {
                return Ok(Self::default());
            }
            Ok(Self {
                kind,
                index: if kind.is_of_block() { place(&event, "index")? } else { None },
                message: field(&event, "message"),
                content_block: field(&event, "content_block"),
                delta: field(&event, "delta"),
                usage: field(&event, "usage"),
            })
        })
    }
}

impl Usage {
    fn tokens(self) -> Tokens {
        let (read, write) =
            (self.cache_read_input_tokens.tokens(), self.cache_creation_input_tokens.tokens());
        Tokens {
            estimated: false,
            // The vendor counts cached parts of the prompt beside `input_tokens`, not in it.
            input: self.input_tokens.tokens().saturating_add(read).saturating_add(write),
            output: self.output_tokens.tokens(),
            cache_read: read,
            cache_write: write,
            reasoning: self.output_tokens_details.unwrap_or_default().thinking_tokens.tokens(),
        }
    }
}

impl Decoding {
    fn count(&mut self, usage: Option<Usage>) {
        let Some(usage) = usage else { return };
        let ours = &mut self.usage;
        ours.input_tokens = usage.input_tokens.or(ours.input_tokens);
        ours.output_tokens = usage.output_tokens.or(ours.output_tokens);
        ours.cache_read_input_tokens = usage.cache_read_input_tokens.or(ours.cache_read_input_tokens);
        ours.cache_creation_input_tokens =
            usage.cache_creation_input_tokens.or(ours.cache_creation_input_tokens);
        ours.output_tokens_details = usage.output_tokens_details.or(ours.output_tokens_details);
    }

    fn start(&mut self, index: Option<u64>, block: ContentBlock, parts: &mut VecDeque<Part>) {
        let (content, first) = match block {
            ContentBlock::Text { text } => (Content::Text(text.clone().unwrap_or_default()), text),
            ContentBlock::Thinking { thinking, signature } => {
                let signature = signature.unwrap_or_default();
                (Content::Thinking { thinking: thinking.clone().unwrap_or_default(), signature }, thinking)
            }
            ContentBlock::RedactedThinking { data } => (Content::Redacted(data), None),
            ContentBlock::ToolUse { id, name, input: whole } => {
                (Content::Tool { id, name, whole, input: String::new() }, None)
            }
            ContentBlock::Other => (Content::Ignored, None),
        };
        let shown_as = content.shown_as();
        if let Some(before) = self.blocks.iter_mut().rfind(|block| block.index == index) {
            // llama.cpp begins a call again before the last of its input. One that is whole is not made twice.
            if content.is_the_call(&before.content) {
                return;
            }
            // Two others of one index follow each other.
            before.is_whole = true;
        }
        self.blocks.push(Coming { index, content, is_whole: false });
        self.show(self.blocks.len() - 1, shown_as, parts);
        parts.extend(first.filter(|first| !first.is_empty()).map(Part::Delta));
    }

    /// The place of the block of an index. Where either has none, the last is meant, unless it has ended.
    fn place(&self, index: Option<u64>) -> Option<usize> {
        let known = self.blocks.iter().rposition(|block| block.index == index && index.is_some());
        known.or_else(|| {
            let last = self.blocks.last()?;
            let may_be_meant = !last.is_whole && (index.is_none() || last.index.is_none());
            may_be_meant.then(|| self.blocks.len() - 1)
        })
    }

    fn delta(
        &mut self,
        index: Option<u64>,
        delta: Delta,
        parts: &mut VecDeque<Part>,
    ) -> Result<(), ModelError> {
        let kind = needed(delta.kind, "type")?;
        let (more, name) = match kind {
            DeltaKind::Text => (delta.text, "text"),
            DeltaKind::Thinking => (delta.thinking, "thinking"),
            DeltaKind::Signature => (delta.signature, "signature"),
            DeltaKind::InputJson => (delta.partial_json, "partial_json"),
            DeltaKind::Other => return Ok(()),
        };
        let more = needed(more, name)?;
        if more.is_empty() {
            return Ok(());
        }
        let block = self.place(index).and_then(|at| Some((at, self.blocks.get_mut(at)?)));
        let (at, is_whole, content) =
            block.map_or((0, false, None), |(at, block)| (at, block.is_whole, Some(&mut block.content)));
        let shown_as = content.as_ref().and_then(|content| content.shown_as());
        let (all, is_shown) = match (kind, content) {
            (_, Some(Content::Ignored)) => return Ok(()),
            (DeltaKind::Text, Some(Content::Text(all)))
            | (DeltaKind::Thinking, Some(Content::Thinking { thinking: all, .. })) => (all, true),
            // `LiteLLM` tells it with the block's beginning and once more.
            (DeltaKind::Signature, Some(Content::Thinking { signature, .. })) if *signature == more => {
                return Ok(());
            }
            (DeltaKind::Signature, Some(Content::Thinking { signature: all, .. })) => (all, false),
            // Of a call that has ended there is no more: it would be another's.
            (DeltaKind::InputJson, Some(Content::Tool { input: all, .. })) if !is_whole => (all, false),
            // Some servers that translate go on with another kind in the block that is open, or begin none.
            (DeltaKind::Text, _) => {
                self.received.block(more.len());
                self.start(index, ContentBlock::Text { text: Some(more) }, parts);
                return Ok(());
            }
            (DeltaKind::Thinking, _) => {
                self.received.block(more.len());
                let block = ContentBlock::Thinking { thinking: Some(more), signature: None };
                self.start(index, block, parts);
                return Ok(());
            }
            _ => return Err(no_known_form(&format!("`{name}` for a block that takes none"))),
        };
        all.push_str(&more);
        self.received.more(more.len());
        if is_shown {
            self.show(at, shown_as, parts);
            parts.push_back(Part::Delta(more));
        }
        Ok(())
    }

    fn stop(&mut self, index: Option<u64>, parts: &mut VecDeque<Part>) {
        let place = self.place(index);
        if let Some(block) = place.and_then(|at| self.blocks.get_mut(at)) {
            block.is_whole = true;
        }
        if place.is_some() && self.shown == place {
            self.hide(parts);
        }
    }

    /// Shows a block as the one that is open.
    fn show(&mut self, at: usize, shown_as: Option<BlockType>, parts: &mut VecDeque<Part>) {
        if self.shown != Some(at) {
            self.hide(parts);
            self.shown = shown_as.is_some().then_some(at);
            parts.extend(shown_as.map(Part::Start));
        }
    }

    fn hide(&mut self, parts: &mut VecDeque<Part>) {
        parts.extend(self.shown.take().map(|_| Part::Stop));
    }

    fn answer(&mut self, stop: StopCause) -> Answer {
        let is_cut = stop != StopCause::Done;
        let coming = std::mem::take(&mut self.blocks);
        let last = coming.len().saturating_sub(1);
        // A call that was under way when the answer was cut off, or by chance just whole.
        let block = |(at, block): (usize, Coming)| {
            let is_cut = is_cut && (at == last || !block.is_whole);
            block.content.into_block(is_cut)
        };
        let blocks = coming.into_iter().enumerate().filter_map(block).collect();
        Answer { blocks, usage: self.spent(), stop }
    }
}

#[cfg(test)]
#[path = "decoding_tests.rs"]
mod tests;
