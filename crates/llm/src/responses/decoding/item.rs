//! An item of the answer while it is received: what of it is emitted when, the block that it becomes, and which
//! item an event or an item of the final response means.

use std::collections::VecDeque;

use api::CallId;
use api::event::BlockType;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Block, StreamEvent, TRUNCATED_CALL_MESSAGE, ToolUse, parse_tool_input};

/// The item that an event belongs to.
#[derive(Clone, Copy)]
pub(super) struct ItemRef<'a> {
    pub(super) index: Option<u64>,
    /// The item's id; used if there is no index, which llama.cpp does not send.
    pub(super) id: Option<&'a str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemKind {
    Thinking,
    Text,
    Call,
}

impl ItemKind {
    /// The kind of an item; `None` if it is of no interest.
    pub(super) fn from_item(item: &Value) -> Option<Self> {
        match item["type"].as_str()? {
            "reasoning" => Some(Self::Thinking),
            "message" => Some(Self::Text),
            "function_call" => Some(Self::Call),
            _ => None,
        }
    }
}

/// How much of an item has been emitted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EmitState {
    NotStarted,
    Open,
    Ended,
}

/// An item of the answer that is being received.
pub(super) struct PartialItem {
    pub(super) kind: ItemKind,
    pub(super) index: Option<u64>,
    pub(super) id: Option<String>,
    /// The streamed content: a text, reasoning, or a call's arguments.
    pub(super) streamed: String,
    /// How much of the streamed content has been emitted, in bytes.
    emitted_bytes: usize,
    emit_state: EmitState,
    /// The item as the provider sends it: without its content at first, and complete at its end.
    pub(super) item: Value,
    pub(super) is_complete: bool,
    /// Whether the item was matched with one in the final response.
    pub(super) is_in_final_output: bool,
}

impl PartialItem {
    pub(super) fn new(kind: ItemKind, item_ref: ItemRef<'_>) -> Self {
        Self {
            kind,
            index: item_ref.index,
            id: item_ref.id.map(str::to_owned),
            streamed: String::new(),
            emitted_bytes: 0,
            emit_state: EmitState::NotStarted,
            item: Value::Null,
            is_complete: false,
            is_in_final_output: false,
        }
    }

    pub(super) fn matches(&self, item_ref: ItemRef<'_>) -> bool {
        match item_ref {
            ItemRef { index: Some(index), .. } => self.index == Some(index),
            ItemRef { id: Some(id), .. } => self.id.as_deref() == Some(id),
            // Neither index nor id: the event belongs to the item in progress.
            ItemRef { .. } => !self.is_complete,
        }
    }

    pub(super) fn complete(&mut self, item: Value) {
        if let Some(text) = item_text(self.kind, &item).filter(|_| self.streamed.is_empty()) {
            self.streamed = text;
        }
        self.item = item;
        self.is_complete = true;
    }

    /// Emits new content, and the block's end if the item is complete or `is_revoked`.
    pub(super) fn emit_ready(&mut self, is_revoked: bool, events: &mut VecDeque<StreamEvent>) {
        let kind = match self.kind {
            ItemKind::Thinking => BlockType::Thinking,
            ItemKind::Text => BlockType::Text,
            ItemKind::Call => BlockType::ToolUse,
        };
        let text = Some(&self.streamed).filter(|_| self.kind != ItemKind::Call);
        let new = text.and_then(|text| text.get(self.emitted_bytes..)).unwrap_or_default();
        let has_begun = self.kind == ItemKind::Call && self.emit_state == EmitState::NotStarted;
        if self.emit_state != EmitState::Open && (has_begun || !new.is_empty()) {
            events.push_back(StreamEvent::BlockStart(kind));
            self.emit_state = EmitState::Open;
        }
        if !new.is_empty() {
            events.push_back(StreamEvent::Delta(new.to_owned()));
            self.emitted_bytes = self.streamed.len();
        }
        if (self.is_complete || is_revoked) && self.emit_state == EmitState::Open {
            events.push_back(StreamEvent::BlockStop);
            self.emit_state = EmitState::Ended;
        }
    }

    /// Converts to a block; `None` if it is empty, such as reasoning that is neither displayed nor required back.
    /// `is_reduced` marks a call as possibly truncated.
    pub(super) fn into_block(self, is_reduced: bool) -> Option<Block> {
        match self.kind {
            ItemKind::Thinking => {
                // The provider does not accept reasoning without its encrypted form, because it has not stored it.
                let signature = self
                    .item
                    .get("encrypted_content")
                    .is_some_and(Value::is_string)
                    .then(|| without_nulls(&self.item));
                (signature.is_some() || !self.streamed.is_empty())
                    .then_some(Block::Thinking { thinking: self.streamed, signature })
            }
            ItemKind::Text => {
                // The phase distinguishes interim remarks from the answer, and the vendor requires it back.
                let phase = self.item.get("phase").filter(|phase| phase.is_string());
                let signature = phase.map(|phase| json!({"phase": phase}).to_string());
                (!self.streamed.is_empty()).then_some(Block::Text { text: self.streamed, signature })
            }
            ItemKind::Call => Some(Block::ToolUse(self.into_call(is_reduced))),
        }
    }

    pub(super) fn is_refusal(&self) -> bool {
        let parts = self.item.get("content").and_then(Value::as_array);
        parts.into_iter().flatten().any(|part| part["refusal"].as_str().is_some_and(|text| !text.is_empty()))
    }

    fn into_call(self, is_reduced: bool) -> ToolUse {
        let text = |field: &str| self.item.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        let arguments = text("arguments").unwrap_or(&self.streamed);
        let (input, broken) = parse_tool_input(arguments);
        // If only the beginning was sent, the intended input is unknown.
        let is_reduced = is_reduced || !self.is_complete && arguments.is_empty();
        let broken = broken.or_else(|| is_reduced.then(|| TRUNCATED_CALL_MESSAGE.to_owned()));
        let call_id = CallId::new();
        let provider_id = text("call_id").map_or_else(|| call_id.to_string(), str::to_owned);
        let name = text("name").unwrap_or_default().to_owned();
        ToolUse { call_id, provider_id, name, input, signature: None, broken }
    }
}

/// The text of a complete item; `None` for a call, whose arguments are read from the item.
fn item_text(kind: ItemKind, item: &Value) -> Option<String> {
    let text = |part: &Value| part["text"].as_str().or(part["refusal"].as_str()).map(str::to_owned);
    let texts = |field: &str, separator: &str| {
        let parts = item.get(field).and_then(Value::as_array)?;
        Some(parts.iter().filter_map(text).collect::<Vec<_>>().join(separator))
            .filter(|text| !text.is_empty())
    };
    match kind {
        // From models with open weights, the content is the reasoning itself.
        ItemKind::Thinking => texts("summary", "\n\n").or_else(|| texts("content", "")),
        ItemKind::Text => texts("content", ""),
        ItemKind::Call => None,
    }
}

/// An item as it is sent back: without null fields, which a request may not contain.
fn without_nulls(item: &Value) -> String {
    let fields = item.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect()).to_string()
}

/// Whether two items have the same call id.
pub(super) fn has_same_call_id(known: &Value, item: &Value) -> bool {
    call_id(item).is_some() && call_id(known) == call_id(item)
}

/// Whether an item may be the same as a streamed one, of which perhaps only a part was sent.
pub(super) fn may_be_same_call(known: &Value, item: &Value) -> bool {
    let name = known.get("name").filter(|name| name.as_str() != Some(""));
    name.is_none() || name == item.get("name")
}

fn call_id(item: &Value) -> Option<&str> {
    item.get("call_id")?.as_str().filter(|id| !id.is_empty())
}

/// The id of the item that an event belongs to. llama.cpp uses the id of a call as its item's id, and sent only
/// the former until June 2026 (<https://github.com/ggml-org/llama.cpp/issues/20607>).
pub(super) fn item_id(data: &str, item: Option<&Value>) -> Option<String> {
    #[derive(Deserialize)]
    struct WithItemId {
        item_id: Option<String>,
    }
    let id = item.and_then(|item| item.get("id")?.as_str().or(call_id(item))).map(str::to_owned);
    id.or_else(|| serde_json::from_str::<WithItemId>(data).ok()?.item_id)
}
