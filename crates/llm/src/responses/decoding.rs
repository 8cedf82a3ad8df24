//! Decodes the stream of OpenAI Responses (<https://platform.openai.com/docs/api-reference/responses-streaming>).
//!
//! The answer is a list of items, each with an index, whose events may be interleaved. Stream events are still
//! emitted in the order of the items: a later item waits until the ones before it are complete. Translating
//! servers give two items of different kinds the same index, or none; so an event is never assigned to an item of
//! another kind.

mod item;
mod wire;

use std::collections::VecDeque;

use item::{ItemKind, ItemRef, PartialItem, has_same_call_id, item_id, may_be_same_call};
use serde_json::Value;
use wire::{EventKind, FinalResponse, Usage, WireEvent};

use crate::http::{Decoder, ReceivedBytes, require_field};
use crate::{Answer, FinishReason, ModelError, StreamEvent, TokenUsage, classify};

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

#[cfg(test)]
#[path = "../../tests/unit/responses/decoding.rs"]
pub(super) mod tests;
