//! Builds the blocks of an answer for protocols whose streams do not mark them: a block begins where the kind
//! changes.
//!
//! The stored blocks may be finer than the displayed ones. A text that the provider signed is stored apart from
//! its neighbours, because the provider wants each back unchanged, while the user sees one text.

use std::collections::VecDeque;

use api::CallId;
use api::event::BlockType;
use serde_json::{Map, Value};

use super::http::ReceivedBytes;
use super::{Block, FinishReason, StreamEvent, ToolUse};

/// Builds a call that arrived complete. A call without an id gets the engine's, by which its result is matched.
pub(super) fn complete_tool_use(
    id: Option<String>,
    name: String,
    input: Option<Value>,
    signature: Option<String>,
) -> ToolUse {
    let (input, broken) = match input {
        None | Some(Value::Null) => (Value::Object(Map::new()), None),
        Some(input) => super::parse_tool_input(&input.to_string()),
    };
    let call_id = CallId::new();
    let provider_id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| call_id.to_string());
    ToolUse { call_id, provider_id, name, input, signature, broken }
}

/// The id that the provider gave to a call, if it gave one.
pub(super) fn provider_call_id(call: &ToolUse) -> Option<&str> {
    Some(call.provider_id.as_str()).filter(|id| *id != call.call_id.to_string())
}

/// The kind of what a model writes apart from calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextKind {
    /// Output text.
    Text,
    /// Reasoning.
    Thinking,
}

/// The blocks of an answer that is being received.
#[derive(Debug, Default)]
pub(super) struct BlockBuilder {
    blocks: Vec<Block>,
    /// The displayed block that is open.
    open: Option<TextKind>,
    received: ReceivedBytes,
}

impl BlockBuilder {
    /// How many bytes of the answer have been received.
    pub(super) const fn received(&self) -> ReceivedBytes {
        self.received
    }

    /// Appends text. It continues the previous block if that is of the same kind and neither of them is signed.
    pub(super) fn append(
        &mut self,
        kind: TextKind,
        text: String,
        signature: Option<String>,
        events: &mut VecDeque<StreamEvent>,
    ) {
        if !text.is_empty() {
            self.open_block(kind, events);
            events.push_back(StreamEvent::Delta(text.clone()));
        } else if signature.is_none() {
            return;
        }
        let bytes = text.len() + signature.as_ref().map_or(0, String::len);
        match (kind, self.blocks.last_mut()) {
            (TextKind::Text, Some(Block::Text { text: previous, signature: None }))
            | (TextKind::Thinking, Some(Block::Thinking { thinking: previous, signature: None }))
                if signature.is_none() =>
            {
                previous.push_str(&text);
                return self.received.add(bytes);
            }
            (TextKind::Text, _) => self.blocks.push(Block::Text { text, signature }),
            (TextKind::Thinking, _) => self.blocks.push(Block::Thinking { thinking: text, signature }),
        }
        self.received.add_block(bytes);
    }

    /// Appends a call, which always arrives complete.
    pub(super) fn push_call(&mut self, call: ToolUse, events: &mut VecDeque<StreamEvent>) {
        self.close_block(events);
        events.extend([StreamEvent::BlockStart(BlockType::ToolUse), StreamEvent::BlockStop]);
        let signature = call.signature.as_ref().map_or(0, String::len);
        let bytes = call.input.to_string().len() + call.name.len() + call.provider_id.len() + signature;
        self.received.add_block(bytes);
        self.blocks.push(Block::ToolUse(call));
    }

    /// Ends the open block and returns all blocks. If the answer did not end normally, a call at its end is marked
    /// as broken because it may be incomplete.
    pub(super) fn finish(&mut self, stop: FinishReason, events: &mut VecDeque<StreamEvent>) -> Vec<Block> {
        self.close_block(events);
        let mut blocks = std::mem::take(&mut self.blocks);
        if stop != FinishReason::Done
            && let Some(Block::ToolUse(last)) = blocks.last_mut()
        {
            last.broken.get_or_insert_with(|| super::TRUNCATED_CALL_MESSAGE.into());
        }
        blocks
    }

    fn open_block(&mut self, kind: TextKind, events: &mut VecDeque<StreamEvent>) {
        if self.open == Some(kind) {
            return;
        }
        self.close_block(events);
        self.open = Some(kind);
        events.push_back(StreamEvent::BlockStart(match kind {
            TextKind::Text => BlockType::Text,
            TextKind::Thinking => BlockType::Thinking,
        }));
    }

    fn close_block(&mut self, events: &mut VecDeque<StreamEvent>) {
        if self.open.take().is_some() {
            events.push_back(StreamEvent::BlockStop);
        }
    }
}
