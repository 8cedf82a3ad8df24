//! Decodes the stream of OpenAI Responses (<https://platform.openai.com/docs/api-reference/responses-streaming>).
//!
//! The answer is a list of items, each with an index, whose events may be interleaved. Stream events are still
//! emitted in the order of the items: a later item waits until the ones before it are complete. Translating
//! servers give two items of different kinds the same index, or none; so an event is never assigned to an item of
//! another kind.

use std::collections::VecDeque;

use api::CallId;
use api::event::BlockType;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::{
    Decoder, ReceivedBytes, TokenCount, index_field, malformed_event, none_if_malformed, optional_field,
    parse_untyped, require_field,
};
use crate::{
    Answer, Block, FinishReason, ModelError, StreamEvent, TRUNCATED_CALL_MESSAGE, TokenUsage, ToolUse,
    classify, parse_tool_input,
};

/// An event of the stream, with the fields of all types: an enum tagged by a field would be parsed twice. Rare
/// fields are boxed, because each event is moved around while it is parsed.
#[derive(Default, Deserialize)]
struct WireEvent {
    #[serde(rename = "type")]
    kind: EventKind,
    output_index: Option<u64>,
    delta: Option<String>,
    item: Option<Box<Value>>,
    response: Option<Box<FinalResponse>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
enum EventKind {
    #[serde(rename = "response.output_item.added")]
    ItemAdded,
    #[serde(rename = "response.reasoning_summary_part.added")]
    SummaryPartAdded,
    /// A summary of the reasoning or, from models with open weights, the reasoning itself.
    #[serde(rename = "response.reasoning_summary_text.delta", alias = "response.reasoning_text.delta")]
    ReasoningDelta,
    #[serde(rename = "response.output_text.delta")]
    TextDelta,
    #[serde(rename = "response.refusal.delta")]
    RefusalDelta,
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta,
    #[serde(rename = "response.output_item.done")]
    ItemDone,
    #[serde(rename = "response.completed")]
    Completed,
    #[serde(rename = "response.incomplete")]
    Incomplete,
    #[serde(rename = "response.failed")]
    Failed,
    #[serde(rename = "error")]
    Error,
    #[default]
    #[serde(other)]
    Other,
}

impl WireEvent {
    /// Parses an event. A malformed field is an error only if the event's type requires the field. Unlisted types,
    /// which the vendor may add at any time, may have any form.
    fn parse(data: &str) -> Result<Self, ModelError> {
        serde_json::from_str(data).or_else(|fault| {
            let event = parse_untyped(data, &fault)?;
            let kind = optional_field(&event, "type").ok_or_else(|| malformed_event(&fault))?;
            if kind == EventKind::Other {
                return Ok(Self::default());
            }
            Ok(Self {
                kind,
                output_index: if kind.is_item_event() { index_field(&event, "output_index")? } else { None },
                delta: optional_field(&event, "delta"),
                item: optional_field(&event, "item"),
                response: optional_field(&event, "response"),
            })
        })
    }
}

/// The complete response in the final event.
#[derive(Deserialize)]
struct FinalResponse {
    /// `LiteLLM` reports a truncated answer as completed too, and vLLM an aborted one: only this field tells how
    /// it ended.
    #[serde(default, deserialize_with = "none_if_malformed")]
    status: Option<String>,
    #[serde(default, deserialize_with = "none_if_malformed")]
    usage: Option<Usage>,
    incomplete_details: Option<IncompleteDetails>,
    output: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct IncompleteDetails {
    reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Usage {
    input_tokens: TokenCount,
    output_tokens: TokenCount,
    #[serde(deserialize_with = "none_if_malformed")]
    input_tokens_details: Option<InputDetails>,
    #[serde(deserialize_with = "none_if_malformed")]
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct InputDetails {
    cached_tokens: TokenCount,
    cache_write_tokens: TokenCount,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    reasoning_tokens: TokenCount,
}

impl EventKind {
    const fn is_item_event(self) -> bool {
        !matches!(self, Self::Completed | Self::Incomplete | Self::Failed | Self::Error | Self::Other)
    }
}

/// The item that an event belongs to.
#[derive(Clone, Copy)]
struct ItemRef<'a> {
    index: Option<u64>,
    /// The item's id; used if there is no index, which llama.cpp does not send.
    id: Option<&'a str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ItemKind {
    Thinking,
    Text,
    Call,
}

impl ItemKind {
    /// The kind of an item; `None` if it is of no interest.
    fn from_item(item: &Value) -> Option<Self> {
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
struct PartialItem {
    kind: ItemKind,
    index: Option<u64>,
    id: Option<String>,
    /// The streamed content: a text, reasoning, or a call's arguments.
    streamed: String,
    /// How much of the streamed content has been emitted, in bytes.
    emitted_bytes: usize,
    emit_state: EmitState,
    /// The item as the provider sends it: without its content at first, and complete at its end.
    item: Value,
    is_complete: bool,
    /// Whether the item was matched with one in the final response.
    is_in_final_output: bool,
}

impl PartialItem {
    fn new(kind: ItemKind, item_ref: ItemRef<'_>) -> Self {
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

    fn matches(&self, item_ref: ItemRef<'_>) -> bool {
        match item_ref {
            ItemRef { index: Some(index), .. } => self.index == Some(index),
            ItemRef { id: Some(id), .. } => self.id.as_deref() == Some(id),
            // Neither index nor id: the event belongs to the item in progress.
            ItemRef { .. } => !self.is_complete,
        }
    }

    fn complete(&mut self, item: Value) {
        if let Some(text) = item_text(self.kind, &item).filter(|_| self.streamed.is_empty()) {
            self.streamed = text;
        }
        self.item = item;
        self.is_complete = true;
    }

    /// Emits new content, and the block's end if the item is complete or `is_revoked`.
    fn emit_ready(&mut self, is_revoked: bool, events: &mut VecDeque<StreamEvent>) {
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
    fn into_block(self, is_reduced: bool) -> Option<Block> {
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

    fn is_refusal(&self) -> bool {
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

#[derive(Default)]
pub(super) struct ResponsesDecoder {
    /// In the order of the answer.
    items: Vec<PartialItem>,
    refused: bool,
    usage: TokenUsage,
    received: ReceivedBytes,
}

impl Decoder for ResponsesDecoder {
    fn decode_event(&mut self, data: &str, events: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        let WireEvent { kind, output_index, delta, item, response } = WireEvent::parse(data)?;
        let id = if kind.is_item_event() && output_index.is_none() {
            item_id(data, item.as_deref())
        } else {
            None
        };
        let item_ref = ItemRef { index: output_index, id: id.as_deref() };
        let reported_error =
            || classify::classify_stream_error(&serde_json::from_str(data).unwrap_or_default());
        match kind {
            EventKind::Completed | EventKind::Incomplete => {
                let end = *require_field(response, "response")?;
                let is_reduced = match end.status.as_deref() {
                    Some("failed" | "cancelled") => {
                        self.set_usage(end.usage.as_ref());
                        return Err(reported_error());
                    }
                    status => kind == EventKind::Incomplete || status == Some("incomplete"),
                };
                self.finish_response(end, is_reduced, events);
                return Ok(());
            }
            EventKind::Failed => {
                self.set_usage(response.and_then(|response| response.usage).as_ref());
                return Err(reported_error());
            }
            EventKind::Error => return Err(reported_error()),
            EventKind::ItemAdded | EventKind::ItemDone => {
                self.received.add(data.len());
                self.record_item(item_ref, *require_field(item, "item")?, kind == EventKind::ItemDone);
            }
            EventKind::SummaryPartAdded => self.start_summary_part(item_ref),
            EventKind::ReasoningDelta => {
                self.append_delta(item_ref, ItemKind::Thinking, &require_field(delta, "delta")?);
            }
            EventKind::TextDelta => {
                self.append_delta(item_ref, ItemKind::Text, &require_field(delta, "delta")?);
            }
            EventKind::RefusalDelta => {
                self.refused = true;
                self.append_delta(item_ref, ItemKind::Text, &require_field(delta, "delta")?);
            }
            EventKind::ArgumentsDelta => {
                self.append_delta(item_ref, ItemKind::Call, &require_field(delta, "delta")?);
            }
            EventKind::Other => return Ok(()),
        }
        self.emit(events);
        Ok(())
    }

    fn usage(&self) -> TokenUsage {
        self.usage
    }

    fn received(&self) -> ReceivedBytes {
        self.received
    }
}

impl ResponsesDecoder {
    /// Records that an item began, or is complete.
    fn record_item(&mut self, item_ref: ItemRef<'_>, item: Value, is_done: bool) {
        let Some(kind) = ItemKind::from_item(&item) else { return };
        self.with_item(
            item_ref,
            kind,
            |known| if is_done { known.complete(item) } else { known.item = item },
        );
    }

    fn start_summary_part(&mut self, item_ref: ItemRef<'_>) {
        let is_later_part = self.with_item(item_ref, ItemKind::Thinking, |item| !item.streamed.is_empty());
        if is_later_part {
            self.append_delta(item_ref, ItemKind::Thinking, "\n\n");
        }
    }

    /// Applies `update` to the item that an event belongs to, and creates the item if it is new.
    fn with_item<T>(
        &mut self,
        item_ref: ItemRef<'_>,
        kind: ItemKind,
        update: impl FnOnce(&mut PartialItem) -> T,
    ) -> T {
        let is_target = |item: &&mut PartialItem| item.kind == kind && item.matches(item_ref);
        if let Some(known) = self.items.iter_mut().rfind(is_target) {
            return update(known);
        }
        self.received.add_block(0);
        let mut item = PartialItem::new(kind, item_ref);
        let result = update(&mut item);
        // After all items with the same or a lower index; without an index, after all items.
        let is_later = |item: &PartialItem| item_ref.index.is_some_and(|index| item.index > Some(index));
        let at = self.items.iter().position(is_later).unwrap_or(self.items.len());
        self.items.insert(at, item);
        result
    }

    fn append_delta(&mut self, item_ref: ItemRef<'_>, kind: ItemKind, more: &str) {
        self.with_item(item_ref, kind, |item| item.streamed.push_str(more));
        self.received.add(more.len());
    }

    /// Emits new content of the items up to the first incomplete one.
    fn emit(&mut self, events: &mut VecDeque<StreamEvent>) {
        for item in &mut self.items {
            item.emit_ready(false, events);
            if !item.is_complete {
                return;
            }
        }
    }

    /// Emits the remaining content of all items.
    fn emit_rest(&mut self, events: &mut VecDeque<StreamEvent>) {
        self.items.iter_mut().for_each(|item| item.emit_ready(true, events));
    }

    fn set_usage(&mut self, usage: Option<&Usage>) {
        let Some(usage) = usage else { return };
        let input = usage.input_tokens_details.unwrap_or_default();
        let output = usage.output_tokens_details.unwrap_or_default();
        self.usage = TokenUsage {
            estimated: false,
            input: usage.input_tokens.tokens(),
            output: usage.output_tokens.tokens(),
            cache_read: input.cached_tokens.tokens(),
            cache_write: input.cache_write_tokens.tokens(),
            reasoning: output.reasoning_tokens.tokens(),
        };
    }

    fn finish_response(&mut self, end: FinalResponse, is_reduced: bool, events: &mut VecDeque<StreamEvent>) {
        self.set_usage(end.usage.as_ref());
        if !is_reduced {
            self.add_missing_items(end.output.unwrap_or_default(), events);
        }
        let reason = end.incomplete_details.and_then(|details| details.reason);
        let stop = match (is_reduced, reason.as_deref()) {
            (true, Some("content_filter")) => FinishReason::Refusal,
            (true, _) => FinishReason::Length,
            (false, _) if self.refused || self.items.iter().any(PartialItem::is_refusal) => {
                FinishReason::Refusal
            }
            (false, _) => FinishReason::Done,
        };
        self.emit_rest(events);
        let items = std::mem::take(&mut self.items);
        let last = items.len().saturating_sub(1);
        let block = |(at, item): (usize, PartialItem)| {
            // A call that was in progress when the answer was truncated, or was complete by chance.
            let is_reduced = is_reduced && (!item.is_complete || at == last);
            item.into_block(is_reduced)
        };
        let blocks = items.into_iter().enumerate().filter_map(block).collect();
        events.push_back(StreamEvent::Done(Answer { blocks, usage: self.usage, stop }));
    }

    /// Adds the items of `output` that were not streamed. `output` has every item, though not at the index at
    /// which it was streamed.
    fn add_missing_items(&mut self, output: Vec<Value>, events: &mut VecDeque<StreamEvent>) {
        let with_kind = |item: Value| Some((ItemKind::from_item(&item)?, item, None));
        let mut output: Vec<(ItemKind, Value, Option<usize>)> =
            output.into_iter().filter_map(with_kind).collect();
        // vLLM gives a call another id at the end (<https://github.com/vllm-project/vllm/issues/47916>): a
        // streamed call without another match is the same call, because no call may be run twice.
        for is_same in [has_same_call_id, may_be_same_call] {
            for (kind, item, position) in output.iter_mut().filter(|(.., position)| position.is_none()) {
                *position = self.match_final_item(*kind, |known| is_same(known, item));
            }
        }
        let (mut missing, mut insert_at) = (Vec::new(), 0);
        for (kind, item, position) in output {
            if let Some((at, known)) = position.and_then(|at| Some((at, self.items.get_mut(at)?))) {
                insert_at = at + 1;
                if !known.is_complete {
                    known.complete(item);
                }
            } else {
                let mut new = PartialItem::new(kind, ItemRef { index: None, id: None });
                new.complete(item);
                missing.push((insert_at, new));
            }
        }
        // The displayed open block is ended before another is displayed.
        self.emit_rest(events);
        for (at, item) in missing.into_iter().rev() {
            self.items.insert(at, item);
        }
    }

    /// The position of the first item of a kind that `is_same` accepts and that was not matched with a final item
    /// before.
    fn match_final_item(&mut self, kind: ItemKind, is_same: impl Fn(&Value) -> bool) -> Option<usize> {
        let is_same =
            |known: &PartialItem| known.kind == kind && !known.is_in_final_output && is_same(&known.item);
        let at = self.items.iter().position(is_same)?;
        self.items.get_mut(at)?.is_in_final_output = true;
        Some(at)
    }
}

/// Whether two items have the same call id.
fn has_same_call_id(known: &Value, item: &Value) -> bool {
    call_id(item).is_some() && call_id(known) == call_id(item)
}

/// Whether an item may be the same as a streamed one, of which perhaps only a part was sent.
fn may_be_same_call(known: &Value, item: &Value) -> bool {
    let name = known.get("name").filter(|name| name.as_str() != Some(""));
    name.is_none() || name == item.get("name")
}

fn call_id(item: &Value) -> Option<&str> {
    item.get("call_id")?.as_str().filter(|id| !id.is_empty())
}

/// The id of the item that an event belongs to. llama.cpp uses the id of a call as its item's id, and sent only
/// the former until June 2026 (<https://github.com/ggml-org/llama.cpp/issues/20607>).
fn item_id(data: &str, item: Option<&Value>) -> Option<String> {
    #[derive(Deserialize)]
    struct WithItemId {
        item_id: Option<String>,
    }
    let id = item.and_then(|item| item.get("id")?.as_str().or(call_id(item))).map(str::to_owned);
    id.or_else(|| serde_json::from_str::<WithItemId>(data).ok()?.item_id)
}

#[cfg(test)]
#[path = "../../tests/unit/responses/decoding.rs"]
pub(super) mod tests;
