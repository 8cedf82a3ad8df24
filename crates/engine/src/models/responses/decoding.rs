//! How an answer of OpenAI Responses is read
//! (<https://platform.openai.com/docs/api-reference/responses-streaming>).
//!
//! The answer is a list of items, each at its own index, and their events may be mixed. What is told of them is in
//! the order of the items all the same: what belongs to a later item waits until those before are whole. Servers that
//! translate give items of two kinds one index, or none: no event is of an item of another kind.

use std::collections::VecDeque;

use contract::CallId;
use contract::event::BlockType;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::models::http::{
    Count, Decoder, Received, as_it_is, field, if_readable, needed, no_known_form, place,
};
use crate::models::{
    Answer, Block, CUT_OFF, ModelError, Part, StopCause, Tokens, ToolUse, classify, tool_input,
};

/// An event of the stream, with the fields of all its types: an enum that is told apart by a field would be read twice.
/// What few of them have is boxed, for each is moved about while it is read.
#[derive(Default, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: EventKind,
    output_index: Option<u64>,
    delta: Option<String>,
    item: Option<Box<Value>>,
    response: Option<Box<End>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
enum EventKind {
    #[serde(rename = "response.output_item.added")]
    Added,
    #[serde(rename = "response.reasoning_summary_part.added")]
    SummaryPart,
    /// A summary of the reasoning or, of models with open weights, the reasoning itself.
    #[serde(rename = "response.reasoning_summary_text.delta", alias = "response.reasoning_text.delta")]
    Thinking,
    #[serde(rename = "response.output_text.delta")]
    Text,
    #[serde(rename = "response.refusal.delta")]
    Refusal,
    #[serde(rename = "response.function_call_arguments.delta")]
    Arguments,
    #[serde(rename = "response.output_item.done")]
    Done,
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

impl Event {
    /// Reads an event. A field that is not of its form is missed only if the type of the event needs it; one of a type
    /// that is not listed, which the vendor may add at any time, may have any form.
    fn read(data: &str) -> Result<Self, ModelError> {
        serde_json::from_str(data).or_else(|fault| {
            let event = as_it_is(data, &fault)?;
            let kind = field(&event, "type").ok_or_else(|| no_known_form(&fault))?;
            if kind == EventKind::Other {
                return Ok(Self::default());
            }
            Ok(Self {
                kind,
                output_index: if kind.is_of_item() { place(&event, "output_index")? } else { None },
                delta: field(&event, "delta"),
                item: field(&event, "item"),
                response: field(&event, "response"),
            })
        })
    }
}

/// The response at its end.
#[derive(Deserialize)]
struct End {
    /// `LiteLLM` tells of a cut answer as completed too, and vLLM of one that it gave up: how it ended is only here.
    #[serde(default, deserialize_with = "if_readable")]
    status: Option<String>,
    #[serde(default, deserialize_with = "if_readable")]
    usage: Option<Usage>,
    incomplete_details: Option<Incomplete>,
    output: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct Incomplete {
    reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Usage {
    input_tokens: Count,
    output_tokens: Count,
    #[serde(deserialize_with = "if_readable")]
    input_tokens_details: Option<InputDetails>,
    #[serde(deserialize_with = "if_readable")]
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct InputDetails {
    cached_tokens: Count,
    cache_write_tokens: Count,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    reasoning_tokens: Count,
}

impl EventKind {
    const fn is_of_item(self) -> bool {
        !matches!(self, Self::Completed | Self::Incomplete | Self::Failed | Self::Error | Self::Other)
    }
}

/// Which item an event is of.
#[derive(Clone, Copy)]
struct Place<'a> {
    index: Option<u64>,
    /// The item's id; looked at where there is no index, which llama.cpp does not send.
    id: Option<&'a str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    Call,
}

impl Kind {
    /// None of an item that is nothing to us.
    fn of(item: &Value) -> Option<Self> {
        match item["type"].as_str()? {
            "reasoning" => Some(Self::Thinking),
            "message" => Some(Self::Text),
            "function_call" => Some(Self::Call),
            _ => None,
        }
    }
}

/// What a person has been shown of an item.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    No,
    Open,
    Ended,
}

/// An item of the answer, with what has come of it.
struct Item {
    kind: Kind,
    index: Option<u64>,
    id: Option<String>,
    /// What was streamed: a text, reasoning, or a call's arguments.
    streamed: String,
    /// How much of that has been told, in bytes.
    told: usize,
    shown: Shown,
    /// The item as the provider gives it, first without its content and at its end whole.
    item: Value,
    is_whole: bool,
    /// Whether the end has been found to have it.
    is_at_end: bool,
}

impl Item {
    fn new(kind: Kind, place: Place<'_>) -> Self {
        Self {
            kind,
            index: place.index,
            id: place.id.map(str::to_owned),
            streamed: String::new(),
            told: 0,
            shown: Shown::No,
            item: Value::Null,
            is_whole: false,
            is_at_end: false,
        }
    }

    fn is_at(&self, place: Place<'_>) -> bool {
        match place {
            Place { index: Some(index), .. } => self.index == Some(index),
            Place { id: Some(id), .. } => self.id.as_deref() == Some(id),
            // Neither: what comes belongs to what is under way.
            Place { .. } => !self.is_whole,
        }
    }

    fn end(&mut self, item: Value) {
        if let Some(text) = whole_text(self.kind, &item).filter(|_| self.streamed.is_empty()) {
            self.streamed = text;
        }
        self.item = item;
        self.is_whole = true;
    }

    /// Tells what is new, and the end of what is whole or `is_over`.
    fn tell(&mut self, is_over: bool, parts: &mut VecDeque<Part>) {
        let kind = match self.kind {
            Kind::Thinking => BlockType::Thinking,
            Kind::Text => BlockType::Text,
            Kind::Call => BlockType::ToolUse,
        };
        let text = Some(&self.streamed).filter(|_| self.kind != Kind::Call);
        let new = text.and_then(|text| text.get(self.told..)).unwrap_or_default();
        let has_begun = self.kind == Kind::Call && self.shown == Shown::No;
        if self.shown != Shown::Open && (has_begun || !new.is_empty()) {
            parts.push_back(Part::Start(kind));
            self.shown = Shown::Open;
        }
        if !new.is_empty() {
            parts.push_back(Part::Delta(new.to_owned()));
            self.told = self.streamed.len();
        }
        if (self.is_whole || is_over) && self.shown == Shown::Open {
            parts.push_back(Part::Stop);
            self.shown = Shown::Ended;
        }
    }

    /// The block; none if there is nothing in it, such as reasoning that is neither shown nor wanted back.
    fn into_block(self, is_cut: bool) -> Option<Block> {
        match self.kind {
            Kind::Thinking => {
                // Without its sealed form the provider does not take it back: it has stored nothing.
                let signature = self
                    .item
                    .get("encrypted_content")
                    .is_some_and(Value::is_string)
                    .then(|| kept(&self.item));
                (signature.is_some() || !self.streamed.is_empty())
                    .then_some(Block::Thinking { thinking: self.streamed, signature })
            }
            Kind::Text => {
                // It tells interim remarks from the answer, and the vendor wants it back.
                let phase = self.item.get("phase").filter(|phase| phase.is_string());
                let signature = phase.map(|phase| json!({"phase": phase}).to_string());
                (!self.streamed.is_empty()).then_some(Block::Text { text: self.streamed, signature })
            }
            Kind::Call => Some(Block::ToolUse(self.into_call(is_cut))),
        }
    }

    fn is_refusal(&self) -> bool {
        let parts = self.item.get("content").and_then(Value::as_array);
        parts.into_iter().flatten().any(|part| part["refusal"].as_str().is_some_and(|text| !text.is_empty()))
    }

    fn into_call(self, is_cut: bool) -> ToolUse {
        let text = |field: &str| self.item.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        let arguments = text("arguments").unwrap_or(&self.streamed);
        let (input, broken) = tool_input(arguments);
        // Where nothing but a beginning was told, nobody knows what it was to be.
        let is_cut = is_cut || !self.is_whole && arguments.is_empty();
        let broken = broken.or_else(|| is_cut.then(|| CUT_OFF.to_owned()));
        let call_id = CallId::new();
        let provider_id = text("call_id").map_or_else(|| call_id.to_string(), str::to_owned);
        let name = text("name").unwrap_or_default().to_owned();
        ToolUse { call_id, provider_id, name, input, signature: None, broken }
    }
}

/// The text of a whole item; none of a call, whose arguments are read from the item.
fn whole_text(kind: Kind, item: &Value) -> Option<String> {
    let text = |part: &Value| part["text"].as_str().or(part["refusal"].as_str()).map(str::to_owned);
    let texts = |field: &str, separator: &str| {
        let parts = item.get(field).and_then(Value::as_array)?;
        Some(parts.iter().filter_map(text).collect::<Vec<_>>().join(separator))
            .filter(|text| !text.is_empty())
    };
    match kind {
        // Of models with open weights the content is the reasoning itself.
        Kind::Thinking => texts("summary", "\n\n").or_else(|| texts("content", "")),
        Kind::Text => texts("content", ""),
        Kind::Call => None,
    }
}

/// An item as it is sent back: all of it but what is empty, for which the provider has no room in a request.
fn kept(item: &Value) -> String {
    let fields = item.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect()).to_string()
}

#[derive(Default)]
pub(super) struct Decoding {
    /// In their order.
    items: Vec<Item>,
    refused: bool,
    usage: Tokens,
    received: Received,
}

impl Decoder for Decoding {
    fn event(&mut self, data: &str, parts: &mut VecDeque<Part>) -> Result<(), ModelError> {
        let Event { kind, output_index, delta, item, response } = Event::read(data)?;
        let id =
            if kind.is_of_item() && output_index.is_none() { item_id(data, item.as_deref()) } else { None };
        let place = Place { index: output_index, id: id.as_deref() };
        let broken_off = || classify::broken_off(&serde_json::from_str(data).unwrap_or_default());
        match kind {
            EventKind::Completed | EventKind::Incomplete => {
                let end = *needed(response, "response")?;
                let is_cut = match end.status.as_deref() {
                    Some("failed" | "cancelled") => {
                        self.count(end.usage.as_ref());
                        return Err(broken_off());
                    }
                    status => kind == EventKind::Incomplete || status == Some("incomplete"),
                };
                self.end(end, is_cut, parts);
                return Ok(());
            }
            EventKind::Failed => {
                self.count(response.and_then(|response| response.usage).as_ref());
                return Err(broken_off());
            }
            EventKind::Error => return Err(broken_off()),
            EventKind::Added | EventKind::Done => {
                self.received.more(data.len());
                self.item_told(place, *needed(item, "item")?, kind == EventKind::Done);
            }
            EventKind::SummaryPart => self.summary_part(place),
            EventKind::Thinking => self.delta(place, Kind::Thinking, &needed(delta, "delta")?),
            EventKind::Text => self.delta(place, Kind::Text, &needed(delta, "delta")?),
            EventKind::Refusal => {
                self.refused = true;
                self.delta(place, Kind::Text, &needed(delta, "delta")?);
            }
            EventKind::Arguments => self.delta(place, Kind::Call, &needed(delta, "delta")?),
            EventKind::Other => return Ok(()),
        }
        self.tell(parts);
        Ok(())
    }

    fn spent(&self) -> Tokens {
        self.usage
    }

    fn received(&self) -> Received {
        self.received
    }
}

impl Decoding {
    /// An item begins, or is whole.
    fn item_told(&mut self, place: Place<'_>, item: Value, is_whole: bool) {
        let Some(kind) = Kind::of(&item) else { return };
        self.with_item(place, kind, |known| if is_whole { known.end(item) } else { known.item = item });
    }

    fn summary_part(&mut self, place: Place<'_>) {
        let is_another = self.with_item(place, Kind::Thinking, |item| !item.streamed.is_empty());
        if is_another {
            self.delta(place, Kind::Thinking, "\n\n");
        }
    }

    /// Does `what` to the item at a place, which may begin with that.
    fn with_item<T>(&mut self, place: Place<'_>, kind: Kind, what: impl FnOnce(&mut Item) -> T) -> T {
        let is_it = |item: &&mut Item| item.kind == kind && item.is_at(place);
        if let Some(known) = self.items.iter_mut().rfind(is_it) {
            return what(known);
        }
        self.received.block(0);
        let mut item = Item::new(kind, place);
        let done = what(&mut item);
        // Behind all of its index and of those before; without one behind all.
        let is_later = |item: &Item| place.index.is_some_and(|index| item.index > Some(index));
        let at = self.items.iter().position(is_later).unwrap_or(self.items.len());
        self.items.insert(at, item);
        done
    }

    fn delta(&mut self, place: Place<'_>, kind: Kind, more: &str) {
        self.with_item(place, kind, |item| item.streamed.push_str(more));
        self.received.more(more.len());
    }

    /// Tells what is new of the items up to the first that is not whole.
    fn tell(&mut self, parts: &mut VecDeque<Part>) {
        for item in &mut self.items {
            item.tell(false, parts);
            if !item.is_whole {
                return;
            }
        }
    }

    /// Tells what is left of all items.
    fn tell_end(&mut self, parts: &mut VecDeque<Part>) {
        self.items.iter_mut().for_each(|item| item.tell(true, parts));
    }

    fn count(&mut self, usage: Option<&Usage>) {
        let Some(usage) = usage else { return };
        let input = usage.input_tokens_details.unwrap_or_default();
        let output = usage.output_tokens_details.unwrap_or_default();
        self.usage = Tokens {
            estimated: false,
            input: usage.input_tokens.tokens(),
            output: usage.output_tokens.tokens(),
            cache_read: input.cached_tokens.tokens(),
            cache_write: input.cache_write_tokens.tokens(),
            reasoning: output.reasoning_tokens.tokens(),
        };
    }

    fn end(&mut self, end: End, is_cut: bool, parts: &mut VecDeque<Part>) {
        self.count(end.usage.as_ref());
        if !is_cut {
            self.complete(end.output.unwrap_or_default(), parts);
        }
        let reason = end.incomplete_details.and_then(|details| details.reason);
        let stop = match (is_cut, reason.as_deref()) {
            (true, Some("content_filter")) => StopCause::Refusal,
            (true, _) => StopCause::Length,
            (false, _) if self.refused || self.items.iter().any(Item::is_refusal) => StopCause::Refusal,
            (false, _) => StopCause::Done,
        };
        self.tell_end(parts);
        let items = std::mem::take(&mut self.items);
        let last = items.len().saturating_sub(1);
        let block = |(at, item): (usize, Item)| {
            // A call that was under way when the answer was cut off, or by chance just whole.
            let is_cut = is_cut && (!item.is_whole || at == last);
            item.into_block(is_cut)
        };
        let blocks = items.into_iter().enumerate().filter_map(block).collect();
        parts.push_back(Part::Done(Answer { blocks, usage: self.usage, stop }));
    }

    /// Adds what was not streamed of `output`, which has every item, though not at the index that it was streamed at.
    fn complete(&mut self, output: Vec<Value>, parts: &mut VecDeque<Part>) {
        let with_kind = |item: Value| Some((Kind::of(&item)?, item, None));
        let mut output: Vec<(Kind, Value, Option<usize>)> =
            output.into_iter().filter_map(with_kind).collect();
        // vLLM gives a call another id at the end (<https://github.com/vllm-project/vllm/issues/47916>): what was streamed
        // and has no other of its own is it, for no call must be made once more.
        for is_it in [has_call_id, may_be_named] {
            for (kind, item, place) in output.iter_mut().filter(|(.., place)| place.is_none()) {
                *place = self.found_at_end(*kind, |known| is_it(known, item));
            }
        }
        let (mut missing, mut behind) = (Vec::new(), 0);
        for (kind, item, place) in output {
            if let Some((at, known)) = place.and_then(|at| Some((at, self.items.get_mut(at)?))) {
                behind = at + 1;
                if !known.is_whole {
                    known.end(item);
                }
            } else {
                let mut new = Item::new(kind, Place { index: None, id: None });
                new.end(item);
                missing.push((behind, new));
            }
        }
        // What is shown as open is ended before another is shown.
        self.tell_end(parts);
        for (at, item) in missing.into_iter().rev() {
            self.items.insert(at, item);
        }
    }

    /// The place of the first item of a kind that `is_it` and that the end has not been found to have before.
    fn found_at_end(&mut self, kind: Kind, is_it: impl Fn(&Value) -> bool) -> Option<usize> {
        let is_it = |known: &Item| known.kind == kind && !known.is_at_end && is_it(&known.item);
        let at = self.items.iter().position(is_it)?;
        self.items.get_mut(at)?.is_at_end = true;
        Some(at)
    }
}

/// Whether two items are of one call.
fn has_call_id(known: &Value, item: &Value) -> bool {
    call_id(item).is_some() && call_id(known) == call_id(item)
}

/// Whether an item may be another as it was streamed, of which perhaps no more than a part was told.
fn may_be_named(known: &Value, item: &Value) -> bool {
    let name = known.get("name").filter(|name| name.as_str() != Some(""));
    name.is_none() || name == item.get("name")
}

fn call_id(item: &Value) -> Option<&str> {
    item.get("call_id")?.as_str().filter(|id| !id.is_empty())
}

/// The id of the item that an event is of. llama.cpp calls a call's item by the id of the call, and gave that alone until
/// June 2026 (<https://github.com/ggml-org/llama.cpp/issues/20607>).
fn item_id(data: &str, item: Option<&Value>) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        item_id: Option<String>,
    }
    let id = item.and_then(|item| item.get("id")?.as_str().or(call_id(item))).map(str::to_owned);
    id.or_else(|| serde_json::from_str::<Named>(data).ok()?.item_id)
}

#[cfg(test)]
#[path = "decoding_tests.rs"]
pub(super) mod tests;
