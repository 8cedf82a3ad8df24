//! Decodes the stream of Anthropic Messages (<https://platform.claude.com/docs/en/build-with-claude/streaming>).

use std::collections::VecDeque;

use api::CallId;
use api::event::BlockType;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::http::{
    Decoder, RawFinishReason, ReceivedBytes, TokenCount, index_field, malformed_event, missing_finish_reason,
    none_if_malformed, optional_field, parse_untyped, require_field,
};
use crate::{
    Answer, Block, FinishReason, ModelError, StreamEvent, TRUNCATED_CALL_MESSAGE, TokenUsage, ToolUse,
    classify, parse_tool_input,
};

/// An event of the stream, with the fields of all types: an enum tagged by a field would be parsed twice, and its
/// delta four times. Rare fields are boxed, because each event is moved around while it is parsed.
#[derive(Default, Deserialize)]
struct WireEvent {
    #[serde(rename = "type")]
    kind: EventKind,
    /// The index of the block that the event belongs to.
    index: Option<u64>,
    message: Option<Box<MessageStart>>,
    content_block: Option<Box<ContentBlock>>,
    delta: Option<Delta>,
    #[serde(default, deserialize_with = "none_if_malformed")]
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
    const fn is_block_event(self) -> bool {
        matches!(self, Self::ContentBlockStart | Self::ContentBlockDelta | Self::ContentBlockStop)
    }
}

#[derive(Deserialize)]
struct MessageStart {
    #[serde(default, deserialize_with = "none_if_malformed")]
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
        /// Empty if the input is streamed.
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
    #[serde(default, deserialize_with = "empty_if_null")]
    text: Option<String>,
    #[serde(default, deserialize_with = "empty_if_null")]
    thinking: Option<String>,
    signature: Option<String>,
    #[serde(default, deserialize_with = "empty_if_null")]
    partial_json: Option<String>,
    stop_reason: Option<String>,
}

/// Deserializes more text: vLLM may write `null` for none.
fn empty_if_null<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
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
    input_tokens: TokenCount,
    output_tokens: TokenCount,
    cache_read_input_tokens: TokenCount,
    cache_creation_input_tokens: TokenCount,
    #[serde(deserialize_with = "none_if_malformed")]
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    thinking_tokens: TokenCount,
}

/// A block that is being received.
struct PartialBlock {
    /// The block's index; absent from some compatible servers.
    index: Option<u64>,
    content: BlockContent,
    is_complete: bool,
}

enum BlockContent {
    Text(String),
    Thinking { thinking: String, signature: String },
    Redacted(String),
    Tool { id: String, name: String, initial_input: Value, input: String },
    Ignored,
}

impl BlockContent {
    /// How the block is displayed; `None` if it is not displayed.
    const fn block_type(&self) -> Option<BlockType> {
        match self {
            Self::Text(_) => Some(BlockType::Text),
            Self::Thinking { .. } => Some(BlockType::Thinking),
            Self::Tool { .. } => Some(BlockType::ToolUse),
            Self::Redacted(_) | Self::Ignored => None,
        }
    }

    /// Whether this is a call, and the same one as `other`.
    fn is_same_call(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tool { id, name, .. }, Self::Tool { id: other, name: others, .. }) => {
                !id.is_empty() && (id, name) == (other, others)
            }
            _ => false,
        }
    }

    /// Converts to a block; `None` if it is of an unknown kind. `is_reduced` marks a call as possibly truncated.
    fn into_block(self, is_reduced: bool) -> Option<Block> {
        Some(match self {
            Self::Text(text) => Block::Text { text, signature: None },
            Self::Thinking { thinking, signature } => Block::Thinking {
                thinking,
                signature: Some(signature).filter(|signature| !signature.is_empty()),
            },
            Self::Redacted(data) => Block::RedactedThinking { data },
            Self::Tool { id: provider_id, name, initial_input, input } => {
                // Servers that do not stream a call's input send it here at once.
                let initial_input =
                    if initial_input.is_null() { String::new() } else { initial_input.to_string() };
                let (input, broken) =
                    parse_tool_input(if input.trim().is_empty() { &initial_input } else { &input });
                let broken = broken.or_else(|| is_reduced.then(|| TRUNCATED_CALL_MESSAGE.to_owned()));
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

/// The decoder of a stream. The vendor ends a block before it begins the next. Compatible servers may omit the
/// ends, or interleave a model's calls as they received them: content belongs to the block of its index, and the
/// displayed block is ended when another one continues.
#[derive(Default)]
pub(super) struct AnthropicDecoder {
    /// In the order in which they began.
    blocks: Vec<PartialBlock>,
    /// The position of the displayed block that is open.
    open_block: Option<usize>,
    usage: Usage,
    finish_reason: RawFinishReason,
    received: ReceivedBytes,
}

impl Decoder for AnthropicDecoder {
    fn decode_event(&mut self, data: &str, events: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        let WireEvent { kind, index, message, content_block, delta, usage } = WireEvent::parse(data)?;
        match kind {
            // An intermediary that retried unnoticed may send both answers, and a call would be run twice.
            EventKind::MessageStart if !self.blocks.is_empty() => {
                return Err(malformed_event(&"a second answer begins"));
            }
            EventKind::MessageStart => {
                // The output count at the start is a placeholder. If the stream breaks off, an estimate from the
                // received content is closer to what the vendor bills.
                let usage = message.and_then(|message| message.usage);
                self.merge_usage(usage.map(|usage| Usage { output_tokens: TokenCount::default(), ..usage }));
            }
            EventKind::ContentBlockStart => {
                self.received.add_block(data.len());
                self.start_block(index, *require_field(content_block, "content_block")?, events);
            }
            EventKind::ContentBlockDelta => {
                self.apply_delta(index, require_field(delta, "delta")?, events)?;
            }
            EventKind::ContentBlockStop => self.stop_block(index, events),
            EventKind::MessageDelta => {
                self.merge_usage(usage.as_deref().copied());
                self.finish_reason.record(require_field(delta, "delta")?.stop_reason);
            }
            EventKind::MessageStop => {
                self.emit_block_stop(events);
                let answer = self.take_answer(self.finish_reason.parse()?.ok_or_else(missing_finish_reason)?);
                events.push_back(StreamEvent::Done(answer));
            }
            EventKind::Error => {
                return Err(classify::classify_stream_error(&serde_json::from_str(data).unwrap_or_default()));
            }
            EventKind::Other => {}
        }
        Ok(())
    }

    fn usage(&self) -> TokenUsage {
        self.usage.tokens()
    }

    fn received(&self) -> ReceivedBytes {
        self.received
    }
}

impl WireEvent {
    /// Parses an event. A malformed field is an error only if the event's type requires the field. Unlisted types,
    /// which the vendor may add at any time, may have any form, and so may their deltas.
    fn parse(data: &str) -> Result<Self, ModelError> {
        serde_json::from_str(data).or_else(|fault| {
            let event = parse_untyped(data, &fault)?;
            let kind = optional_field(&event, "type").ok_or_else(|| malformed_event(&fault))?;
            let delta_kind = event.get("delta").and_then(|delta| optional_field(delta, "type"));
            let is_delta_of_other_type =
                kind == EventKind::ContentBlockDelta && delta_kind == Some(DeltaKind::Other);
            if kind == EventKind::Other || is_delta_of_other_type {
                return Ok(Self::default());
            }
            Ok(Self {
                kind,
                index: if kind.is_block_event() { index_field(&event, "index")? } else { None },
                message: optional_field(&event, "message"),
                content_block: optional_field(&event, "content_block"),
                delta: optional_field(&event, "delta"),
                usage: optional_field(&event, "usage"),
            })
        })
    }
}

impl Usage {
    fn tokens(self) -> TokenUsage {
        let (read, write) =
            (self.cache_read_input_tokens.tokens(), self.cache_creation_input_tokens.tokens());
        TokenUsage {
            estimated: false,
            // The vendor counts cached parts of the prompt in addition to `input_tokens`, not in it.
            input: self.input_tokens.tokens().saturating_add(read).saturating_add(write),
            output: self.output_tokens.tokens(),
            cache_read: read,
            cache_write: write,
            reasoning: self.output_tokens_details.unwrap_or_default().thinking_tokens.tokens(),
        }
    }
}

impl AnthropicDecoder {
    fn merge_usage(&mut self, usage: Option<Usage>) {
        let Some(usage) = usage else { return };
        let merged = &mut self.usage;
        merged.input_tokens = usage.input_tokens.or(merged.input_tokens);
        merged.output_tokens = usage.output_tokens.or(merged.output_tokens);
        merged.cache_read_input_tokens = usage.cache_read_input_tokens.or(merged.cache_read_input_tokens);
        merged.cache_creation_input_tokens =
            usage.cache_creation_input_tokens.or(merged.cache_creation_input_tokens);
        merged.output_tokens_details = usage.output_tokens_details.or(merged.output_tokens_details);
    }

    fn start_block(&mut self, index: Option<u64>, block: ContentBlock, events: &mut VecDeque<StreamEvent>) {
        let (content, first) = match block {
            ContentBlock::Text { text } => (BlockContent::Text(text.clone().unwrap_or_default()), text),
            ContentBlock::Thinking { thinking, signature } => {
                let signature = signature.unwrap_or_default();
                (
                    BlockContent::Thinking { thinking: thinking.clone().unwrap_or_default(), signature },
                    thinking,
                )
            }
            ContentBlock::RedactedThinking { data } => (BlockContent::Redacted(data), None),
            ContentBlock::ToolUse { id, name, input } => {
                (BlockContent::Tool { id, name, initial_input: input, input: String::new() }, None)
            }
            ContentBlock::Other => (BlockContent::Ignored, None),
        };
        let block_type = content.block_type();
        if let Some(previous) = self.blocks.iter_mut().rfind(|block| block.index == index) {
            // llama.cpp begins a call again before the last part of its input. A complete call is not duplicated.
            if content.is_same_call(&previous.content) {
                return;
            }
            // Two different blocks with the same index follow each other.
            previous.is_complete = true;
        }
        self.blocks.push(PartialBlock { index, content, is_complete: false });
        self.emit_block_start(self.blocks.len() - 1, block_type, events);
        events.extend(first.filter(|first| !first.is_empty()).map(StreamEvent::Delta));
    }

    /// The position of the block with this index. If the index or the last block's own is missing, the last block
    /// is used unless it has ended.
    fn find_block(&self, index: Option<u64>) -> Option<usize> {
        let known = self.blocks.iter().rposition(|block| block.index == index && index.is_some());
        known.or_else(|| {
            let last = self.blocks.last()?;
            let is_candidate = !last.is_complete && (index.is_none() || last.index.is_none());
            is_candidate.then(|| self.blocks.len() - 1)
        })
    }

    fn apply_delta(
        &mut self,
        index: Option<u64>,
        delta: Delta,
        events: &mut VecDeque<StreamEvent>,
    ) -> Result<(), ModelError> {
        let kind = require_field(delta.kind, "type")?;
        let (more, name) = match kind {
            DeltaKind::Text => (delta.text, "text"),
            DeltaKind::Thinking => (delta.thinking, "thinking"),
            DeltaKind::Signature => (delta.signature, "signature"),
            DeltaKind::InputJson => (delta.partial_json, "partial_json"),
            DeltaKind::Other => return Ok(()),
        };
        let more = require_field(more, name)?;
        if more.is_empty() {
            return Ok(());
        }
        let block = self.find_block(index).and_then(|at| Some((at, self.blocks.get_mut(at)?)));
        let (at, is_complete, content) =
            block.map_or((0, false, None), |(at, block)| (at, block.is_complete, Some(&mut block.content)));
        let block_type = content.as_ref().and_then(|content| content.block_type());
        let (buffer, is_shown) = match (kind, content) {
            (_, Some(BlockContent::Ignored)) => return Ok(()),
            (DeltaKind::Text, Some(BlockContent::Text(buffer)))
            | (DeltaKind::Thinking, Some(BlockContent::Thinking { thinking: buffer, .. })) => (buffer, true),
            // `LiteLLM` sends the signature at the block's beginning and once more.
            (DeltaKind::Signature, Some(BlockContent::Thinking { signature, .. })) if *signature == more => {
                return Ok(());
            }
            (DeltaKind::Signature, Some(BlockContent::Thinking { signature: buffer, .. })) => (buffer, false),
            // A call that has ended gets no more input: it would belong to another call.
            (DeltaKind::InputJson, Some(BlockContent::Tool { input: buffer, .. })) if !is_complete => {
                (buffer, false)
            }
            // Some translating servers continue with another kind in the open block, or do not begin one.
            (DeltaKind::Text, _) => {
                self.received.add_block(more.len());
                self.start_block(index, ContentBlock::Text { text: Some(more) }, events);
                return Ok(());
            }
            (DeltaKind::Thinking, _) => {
                self.received.add_block(more.len());
                let block = ContentBlock::Thinking { thinking: Some(more), signature: None };
                self.start_block(index, block, events);
                return Ok(());
            }
            _ => return Err(malformed_event(&format!("`{name}` for a block of another type"))),
        };
        buffer.push_str(&more);
        self.received.add(more.len());
        if is_shown {
            self.emit_block_start(at, block_type, events);
            events.push_back(StreamEvent::Delta(more));
        }
        Ok(())
    }

    fn stop_block(&mut self, index: Option<u64>, events: &mut VecDeque<StreamEvent>) {
        let position = self.find_block(index);
        if let Some(block) = position.and_then(|at| self.blocks.get_mut(at)) {
            block.is_complete = true;
        }
        if position.is_some() && self.open_block == position {
            self.emit_block_stop(events);
        }
    }

    /// Displays a block as the open one.
    fn emit_block_start(
        &mut self,
        at: usize,
        block_type: Option<BlockType>,
        events: &mut VecDeque<StreamEvent>,
    ) {
        if self.open_block != Some(at) {
            self.emit_block_stop(events);
            self.open_block = block_type.is_some().then_some(at);
            events.extend(block_type.map(StreamEvent::BlockStart));
        }
    }

    fn emit_block_stop(&mut self, events: &mut VecDeque<StreamEvent>) {
        events.extend(self.open_block.take().map(|_| StreamEvent::BlockStop));
    }

    fn take_answer(&mut self, stop: FinishReason) -> Answer {
        let is_reduced = stop != FinishReason::Done;
        let partial_blocks = std::mem::take(&mut self.blocks);
        let last = partial_blocks.len().saturating_sub(1);
        // A call that was in progress when the answer was truncated, or was complete by chance.
        let block = |(at, block): (usize, PartialBlock)| {
            let is_reduced = is_reduced && (at == last || !block.is_complete);
            block.content.into_block(is_reduced)
        };
        let blocks = partial_blocks.into_iter().enumerate().filter_map(block).collect();
        Answer { blocks, usage: self.usage(), stop }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/anthropic/decoding.rs"]
mod tests;
