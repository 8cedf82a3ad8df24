//! Decodes the stream of OpenAI Chat Completions, from the vendor and from compatible servers
//! (<https://platform.openai.com/docs/api-reference/chat-streaming>).

use std::borrow::Cow;
use std::collections::VecDeque;

use api::CallId;
use api::event::BlockType;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::REASONING_CONTENT_FIELD;
use super::content::{Chunk as ContentChunk, DeltaContent, thought_signature};
use crate::block_builder::TextKind;
use crate::http::{
    Decoder, RawFinishReason, ReceivedBytes, TokenCount, missing_finish_reason, none_if_malformed,
    parse_event,
};
use crate::{
    Answer, Block, FinishReason, ModelError, StreamEvent, TRUNCATED_CALL_MESSAGE, TokenUsage, ToolUse,
    classify, parse_tool_input,
};

/// A chunk of the answer. Rare fields are boxed, because each chunk is moved around while it is parsed.
#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    #[serde(default, deserialize_with = "none_if_malformed")]
    usage: Option<Box<Usage>>,
    error: Option<Box<Value>>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
    finish_reason: Option<String>,
    /// The place of an error in `OpenRouter`'s documentation.
    error: Option<Box<Value>>,
    /// Moonshot's place for the usage.
    #[serde(default, deserialize_with = "none_if_malformed")]
    usage: Option<Box<Usage>>,
}

/// All fields have defaults: a server written in PHP may send an empty delta as `[]`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Delta {
    content: Option<DeltaContent>,
    /// Text in which the model declines; displayed like any other text. Ignored if it is not a text.
    refusal: Option<Value>,
    /// Not part of the vendor's protocol, like the next two: `DeepSeek`, vLLM and others stream reasoning here.
    reasoning_content: Option<String>,
    /// Used by Groq, `OpenRouter` and newer versions of vLLM.
    reasoning: Option<String>,
    /// A list that `OpenRouter` sends beside the previous field. Ignored if it is not a list.
    reasoning_details: Option<Value>,
    /// Some compatible servers send `null`.
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Deserialize)]
struct CallDelta {
    /// Absent if a call arrives complete.
    index: Option<usize>,
    id: Option<String>,
    function: Option<FunctionDelta>,
    extra_content: Option<Value>,
}

#[derive(Default, Deserialize)]
struct FunctionDelta {
    name: Option<String>,
    /// A text; some compatible servers send the object itself.
    arguments: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Usage {
    prompt_tokens: TokenCount,
    completion_tokens: TokenCount,
    #[serde(deserialize_with = "none_if_malformed")]
    prompt_tokens_details: Option<PromptDetails>,
    #[serde(deserialize_with = "none_if_malformed")]
    completion_tokens_details: Option<CompletionDetails>,
    /// `DeepSeek`'s name (<https://api-docs.deepseek.com/guides/kv_cache>).
    prompt_cache_hit_tokens: TokenCount,
    /// Moonshot's name.
    cached_tokens: TokenCount,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: TokenCount,
    /// `OpenRouter`'s name (<https://openrouter.ai/docs/use-cases/usage-accounting>).
    cache_write_tokens: TokenCount,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct CompletionDetails {
    reasoning_tokens: TokenCount,
}

impl Usage {
    /// These counts; those that are missing are taken from `previous`.
    fn or_previous(&self, previous: TokenUsage) -> TokenUsage {
        let prompt = self.prompt_tokens_details.unwrap_or_default();
        let completion = self.completion_tokens_details.unwrap_or_default();
        let cached = prompt.cached_tokens.or(self.prompt_cache_hit_tokens).or(self.cached_tokens);
        let known_or =
            |count: TokenCount, previous: u64| if count.tokens() > 0 { count.tokens() } else { previous };
        TokenUsage {
            estimated: false,
            input: known_or(self.prompt_tokens, previous.input),
            output: known_or(self.completion_tokens, previous.output),
            cache_read: known_or(cached, previous.cache_read),
            cache_write: known_or(prompt.cache_write_tokens, previous.cache_write),
            reasoning: known_or(completion.reasoning_tokens, previous.reasoning),
        }
    }
}

impl CallDelta {
    fn name(&self) -> Option<&str> {
        self.function.as_ref()?.name.as_deref().filter(|name| is_non_empty(name))
    }

    /// The arguments as they are stored; `None` if there are none. Whitespace may follow a complete call.
    fn arguments(&self) -> Option<Cow<'_, str>> {
        match self.function.as_ref()?.arguments.as_ref()? {
            Value::String(more) => (!more.trim().is_empty()).then(|| more.into()),
            object @ Value::Object(_) => Some(object.to_string().into()),
            _ => None,
        }
    }
}

/// A call that is being received.
#[derive(Default)]
struct PartialCall {
    index: Option<usize>,
    id: String,
    name: String,
    arguments: String,
    extra_content: Option<Value>,
}

impl PartialCall {
    /// Whether a delta with a name must belong to another call: it has another name, or other arguments although
    /// this call already has all of its own.
    fn conflicts_with(&self, delta: &CallDelta) -> bool {
        let has_other_name = is_non_empty(&self.name) && delta.name().is_some_and(|name| name != self.name);
        has_other_name
            || delta.arguments().is_some_and(|more| more != self.arguments.as_str()) && self.is_complete()
    }

    fn is_complete(&self) -> bool {
        self.arguments.trim_end().ends_with('}')
            && serde_json::from_str::<IgnoredAny>(&self.arguments).is_ok()
    }
}

/// The open block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Prose(TextKind),
    /// The call at this position among all calls.
    Call(usize),
}

#[derive(Default)]
pub(super) struct OpenAiDecoder {
    text: String,
    thinking: String,
    /// The parts of the reasoning that the provider requires back: see [`super::reasoning_field`].
    reasoning_details: Vec<Value>,
    /// The stored signature if the provider requires the reasoning back in the field in which it came.
    reasoning_signature: Option<String>,
    calls: Vec<PartialCall>,
    open: Option<OpenBlock>,
    refused: bool,
    usage: TokenUsage,
    finish_reason: RawFinishReason,
    received: ReceivedBytes,
}

impl Decoder for OpenAiDecoder {
    fn decode_event(&mut self, data: &str, events: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        let chunk: Chunk = parse_event(data)?;
        let has_choices = chunk.choices.is_some();
        // Only one choice is requested.
        let choice = chunk.choices.into_iter().flatten().next();
        let usage = chunk.usage.as_deref().or(choice.as_ref().and_then(|choice| choice.usage.as_deref()));
        if let Some(usage) = usage {
            self.usage = usage.or_previous(self.usage);
        }
        if chunk.error.is_some() || !has_choices {
            let event = serde_json::from_str(data).unwrap_or_default();
            if chunk.error.is_some() || classify::is_error_event(&event) {
                return Err(classify::classify_stream_error(&event));
            }
        }
        if let Some(choice) = choice {
            if let Some(error) = choice.error {
                return Err(classify::classify_stream_error(&json!({"error": error})));
            }
            self.apply_delta(choice.delta.unwrap_or_default(), events);
            self.finish_reason.record(choice.finish_reason);
        }
        Ok(())
    }

    fn handle_done_marker(&mut self, events: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        let stop = self.finish_reason.parse()?.ok_or_else(missing_finish_reason)?;
        let stop = if self.refused && stop == FinishReason::Done { FinishReason::Refusal } else { stop };
        self.close_block(events);
        let mut blocks = Vec::from_iter(self.take_thinking_block());
        if !self.text.is_empty() {
            blocks.push(Block::Text { text: std::mem::take(&mut self.text), signature: None });
        }
        let last = self.calls.len().saturating_sub(1);
        for (at, call) in self.calls.drain(..).enumerate() {
            // Calls may be interleaved: a call without arguments may not have arrived at all.
            let is_reduced = stop != FinishReason::Done && (at == last || call.arguments.is_empty());
            let mut call = into_tool_use(call);
            if is_reduced {
                call.broken.get_or_insert_with(|| TRUNCATED_CALL_MESSAGE.into());
            }
            blocks.push(Block::ToolUse(call));
        }
        events.push_back(StreamEvent::Done(Answer { blocks, usage: self.usage, stop }));
        Ok(())
    }

    fn usage(&self) -> TokenUsage {
        self.usage
    }

    fn received(&self) -> ReceivedBytes {
        self.received
    }
}

impl OpenAiDecoder {
    fn apply_delta(&mut self, delta: Delta, events: &mut VecDeque<StreamEvent>) {
        self.append_reasoning(&delta, events);
        match delta.content {
            Some(DeltaContent::Text(text)) => self.append_text(TextKind::Text, text, events),
            Some(DeltaContent::Chunks(chunks)) => self.append_chunks(chunks, events),
            None => {}
        }
        if let Some(Value::String(refusal)) = delta.refusal {
            self.refused |= !refusal.is_empty();
            self.append_text(TextKind::Text, refusal, events);
        }
        for call in delta.tool_calls.into_iter().flatten() {
            self.apply_call_delta(call, events);
        }
    }

    fn append_text(&mut self, kind: TextKind, more: String, events: &mut VecDeque<StreamEvent>) {
        if more.is_empty() {
            return;
        }
        self.open_block(OpenBlock::Prose(kind), events);
        self.received.add(more.len());
        let buffer = match kind {
            TextKind::Text => &mut self.text,
            TextKind::Thinking => &mut self.thinking,
        };
        buffer.push_str(&more);
        events.push_back(StreamEvent::Delta(more));
    }

    fn append_chunks(&mut self, chunks: Vec<ContentChunk>, events: &mut VecDeque<StreamEvent>) {
        for chunk in chunks {
            let text = chunk.text();
            let ContentChunk::Thinking { signature, .. } = chunk else {
                self.append_text(TextKind::Text, text, events);
                continue;
            };
            self.received.add(signature.as_ref().map_or(0, String::len));
            if signature.is_some() || self.reasoning_signature.is_none() && is_non_empty(&text) {
                self.reasoning_signature = Some(thought_signature(signature));
            }
            self.append_text(TextKind::Thinking, text, events);
        }
    }

    /// Appends reasoning. Some servers send the same reasoning in several fields; only one of them is displayed.
    fn append_reasoning(&mut self, delta: &Delta, events: &mut VecDeque<StreamEvent>) {
        let details = delta.reasoning_details.as_ref().and_then(Value::as_array);
        let mut in_details = String::new();
        for detail in details.into_iter().flatten() {
            in_details.push_str(detail["text"].as_str().or(detail["summary"].as_str()).unwrap_or_default());
            append_reasoning_detail(&mut self.reasoning_details, detail, &mut self.received);
        }
        if delta.reasoning_content.as_deref().is_some_and(is_non_empty) {
            self.reasoning_signature = Some(REASONING_CONTENT_FIELD.to_owned());
        }
        let fields = [delta.reasoning_content.as_deref(), delta.reasoning.as_deref(), Some(&*in_details)];
        let more = fields.into_iter().flatten().find(|text| is_non_empty(text));
        self.append_text(TextKind::Thinking, more.unwrap_or_default().to_owned(), events);
    }

    fn apply_call_delta(&mut self, delta: CallDelta, events: &mut VecDeque<StreamEvent>) {
        let at = self.find_call(&delta);
        self.open_block(OpenBlock::Call(at), events);
        if at == self.calls.len() {
            self.calls.push(PartialCall { index: delta.index, ..PartialCall::default() });
            self.received.add_block(0);
        }
        let received = &mut self.received;
        let Some(call) = self.calls.get_mut(at) else { return };
        // Id and name arrive complete, and from some compatible servers with every part of the arguments.
        let mut set_once = |known: &mut String, sent: Option<String>| {
            if known.is_empty() {
                *known = sent.unwrap_or_default();
                received.add(known.len());
            }
        };
        set_once(&mut call.id, delta.id);
        let FunctionDelta { name, arguments } = delta.function.unwrap_or_default();
        let is_named = name.as_deref().is_some_and(is_non_empty);
        set_once(&mut call.name, name);
        if let Some(extra) = delta.extra_content.filter(Value::is_object) {
            received.add(extra.to_string().len());
            call.extra_content = Some(extra);
        }
        match arguments {
            // The same arguments again, from a server that ends with the complete call.
            Some(Value::String(again)) if is_named && again == call.arguments && call.is_complete() => {}
            Some(Value::String(more)) => {
                received.add(more.len());
                call.arguments.push_str(&more);
            }
            Some(object @ Value::Object(_)) => {
                call.arguments = object.to_string();
                received.add(call.arguments.len());
            }
            _ => {}
        }
    }

    /// The call that a delta belongs to: by index, else by id, else the last one. Servers that send complete calls
    /// give all of them the same index or none, and perhaps no id, so a delta with a name may begin another call.
    fn find_call(&self, delta: &CallDelta) -> usize {
        let id = delta.id.as_deref().filter(|id| is_non_empty(id));
        let known = match delta.index {
            Some(index) => self.calls.iter().rposition(|call| call.index == Some(index)),
            None => id
                .and_then(|id| self.calls.iter().rposition(|call| call.id == id))
                .or_else(|| self.calls.len().checked_sub(1)),
        };
        let is_another = |call: &PartialCall| match id {
            _ if delta.name().is_none() => false,
            Some(id) if is_non_empty(&call.id) => call.id != id,
            // The ids do not decide.
            _ => delta.index.is_none() || call.conflicts_with(delta),
        };
        known.filter(|at| !self.calls.get(*at).is_some_and(is_another)).unwrap_or(self.calls.len())
    }

    /// Opens a block. The stream has no block marks: a block begins where the kind changes.
    fn open_block(&mut self, to: OpenBlock, events: &mut VecDeque<StreamEvent>) {
        if self.open == Some(to) {
            return;
        }
        self.close_block(events);
        self.open = Some(to);
        events.push_back(StreamEvent::BlockStart(match to {
            OpenBlock::Prose(TextKind::Text) => BlockType::Text,
            OpenBlock::Prose(TextKind::Thinking) => BlockType::Thinking,
            OpenBlock::Call(_) => BlockType::ToolUse,
        }));
    }

    fn close_block(&mut self, events: &mut VecDeque<StreamEvent>) {
        if self.open.take().is_some() {
            events.push_back(StreamEvent::BlockStop);
        }
    }

    fn take_thinking_block(&mut self) -> Option<Block> {
        let thinking = std::mem::take(&mut self.thinking);
        let signature = if self.reasoning_details.is_empty() {
            self.reasoning_signature.take()
        } else {
            Some(Value::Array(std::mem::take(&mut self.reasoning_details)).to_string())
        };
        (signature.is_some() || !thinking.is_empty()).then_some(Block::Thinking { thinking, signature })
    }
}

fn is_non_empty(text: &str) -> bool {
    !text.is_empty()
}

/// Adds a part of the reasoning: it continues the last part if index and type are the same, else it is a new one.
fn append_reasoning_detail(details: &mut Vec<Value>, more: &Value, received: &mut ReceivedBytes) {
    // Only the first chunk of a part may have its id.
    let has_id = |known: &Value| known["id"].is_null() || more["id"].is_null() || known["id"] == more["id"];
    let is_same =
        |known: &Value| known["type"] == more["type"] && known["index"] == more["index"] && has_id(known);
    let Some(known) = details.last_mut().filter(|known| is_same(known)).and_then(Value::as_object_mut) else {
        received.add_block(more.to_string().len());
        return details.push(more.clone());
    };
    for (field, value) in more.as_object().into_iter().flatten() {
        let is_appended = matches!(field.as_str(), "text" | "summary" | "data");
        match (known.get_mut(field), value) {
            (_, Value::Null) => {}
            // Encrypted reasoning that was sent twice; a text may legitimately repeat.
            (Some(previous), value) if previous == value && (!is_appended || field == "data") => {}
            (Some(Value::String(previous)), Value::String(more)) if is_appended => {
                received.add(more.len());
                previous.push_str(more);
            }
            (_, value) => {
                received.add(field.len() + value.to_string().len());
                known.insert(field.clone(), value.clone());
            }
        }
    }
}

fn into_tool_use(call: PartialCall) -> ToolUse {
    let (input, broken) = parse_tool_input(&call.arguments);
    let call_id = CallId::new();
    // A result is matched to its call by the id, so calls without one get the engine's.
    let provider_id = if call.id.is_empty() { call_id.to_string() } else { call.id };
    let signature = call.extra_content.map(|extra| extra.to_string());
    ToolUse { call_id, provider_id, name: call.name, input, signature, broken }
}

#[cfg(test)]
#[path = "../../tests/unit/openai/decoding.rs"]
pub(super) mod tests;
