//! The blocks of an answer in the making, for protocols whose streams do not mark them: one begins where the kind
//! changes.
//!
//! What is kept may be cut finer than what is shown: a text that the provider signed stays apart from what stands
//! beside it, for the provider wants each back as it was, while a person sees one text.

use std::collections::VecDeque;

use contract::CallId;
use contract::event::BlockType;
use serde_json::{Map, Value};

use super::http::Received;
use super::{Block, Part, StopCause, ToolUse};

/// A call that came whole. One without an id gets ours, by which its result is found.
pub(super) fn whole_call(
    id: Option<String>,
    name: String,
    input: Option<Value>,
    signature: Option<String>,
) -> ToolUse {
    let (input, broken) = match input {
        None | Some(Value::Null) => (Value::Object(Map::new()), None),
        Some(input) => super::tool_input(&input.to_string()),
    };
    let call_id = CallId::new();
    let provider_id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| call_id.to_string());
    ToolUse { call_id, provider_id, name, input, signature, broken }
}

/// The id that a provider gave a call, if it did.
pub(super) fn given_id(call: &ToolUse) -> Option<&str> {
    Some(call.provider_id.as_str()).filter(|id| *id != call.call_id.to_string())
}

/// What a model writes apart from calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prose {
    /// Output text.
    Text,
    /// Reasoning.
    Thinking,
}

/// The blocks so far.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    /// The block that is shown as open.
    open: Option<Prose>,
    received: Received,
}

impl Blocks {
    /// How much of the answer has come.
    pub(super) const fn received(&self) -> Received {
        self.received
    }

    /// Adds what the model wrote, which continues the block before if that is of its kind and neither is signed.
    pub(super) fn write(
        &mut self,
        prose: Prose,
        text: String,
        signature: Option<String>,
        parts: &mut VecDeque<Part>,
    ) {
        if !text.is_empty() {
            self.show(prose, parts);
            parts.push_back(Part::Delta(text.clone()));
        } else if signature.is_none() {
            return;
        }
        let bytes = text.len() + signature.as_ref().map_or(0, String::len);
        match (prose, self.blocks.last_mut()) {
            (Prose::Text, Some(Block::Text { text: before, signature: None }))
            | (Prose::Thinking, Some(Block::Thinking { thinking: before, signature: None }))
                if signature.is_none() =>
            {
                before.push_str(&text);
                return self.received.more(bytes);
            }
            (Prose::Text, _) => self.blocks.push(Block::Text { text, signature }),
            (Prose::Thinking, _) => self.blocks.push(Block::Thinking { thinking: text, signature }),
        }
        self.received.block(bytes);
    }

    /// Adds a call, which always comes whole.
    pub(super) fn call(&mut self, call: ToolUse, parts: &mut VecDeque<Part>) {
        self.close(parts);
        parts.extend([Part::Start(BlockType::ToolUse), Part::Stop]);
        let signature = call.signature.as_ref().map_or(0, String::len);
        let bytes = call.input.to_string().len() + call.name.len() + call.provider_id.len() + signature;
        self.received.block(bytes);
        self.blocks.push(Block::ToolUse(call));
    }

    /// Ends the open block and gives all of them. Where the answer did not end well, a call at their end was perhaps not
    /// whole.
    pub(super) fn finish(&mut self, stop: StopCause, parts: &mut VecDeque<Part>) -> Vec<Block> {
        self.close(parts);
        let mut blocks = std::mem::take(&mut self.blocks);
        if stop != StopCause::Done
            && let Some(Block::ToolUse(last)) = blocks.last_mut()
        {
            last.broken.get_or_insert_with(|| super::CUT_OFF.into());
        }
        blocks
    }

    fn show(&mut self, prose: Prose, parts: &mut VecDeque<Part>) {
        if self.open == Some(prose) {
            return;
        }
        self.close(parts);
        self.open = Some(prose);
        parts.push_back(Part::Start(match prose {
            Prose::Text => BlockType::Text,
            Prose::Thinking => BlockType::Thinking,
        }));
    }

    fn close(&mut self, parts: &mut VecDeque<Part>) {
        if self.open.take().is_some() {
            parts.push_back(Part::Stop);
        }
    }
}
