//! How an answer of OpenAI Chat Completions is read, the vendor's and that of the servers that took it over
//! (<https://platform.openai.com/docs/api-reference/chat-streaming>).

use std::borrow::Cow;
use std::collections::VecDeque;

use contract::CallId;
use contract::event::BlockType;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::REASONING_CONTENT;
use super::content::{Chunk as ContentChunk, Content, thought_signature};
use crate::models::blocks::Prose;
use crate::models::http::{Count, Decoder, Ending, Received, if_readable, no_reason, read};
use crate::models::{
    Answer, Block, CUT_OFF, ModelError, Part, StopCause, Tokens, ToolUse, classify, tool_input,
};

/// A piece of the answer. What few of them have is boxed, for each is moved about while it is read.
#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    #[serde(default, deserialize_with = "if_readable")]
    usage: Option<Box<Usage>>,
    error: Option<Box<Value>>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
    finish_reason: Option<String>,
    /// `OpenRouter`'s place for it, as its documentation has it.
    error: Option<Box<Value>>,
    /// Moonshot's place for it.
    #[serde(default, deserialize_with = "if_readable")]
    usage: Option<Box<Usage>>,
}

/// With defaults, for a server written in PHP may tell a delta of nothing as `[]`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Delta {
    content: Option<Content>,
    /// Text in which the model declines; shown as any other. Nothing where it is no text.
    refusal: Option<Value>,
    /// Not the vendor's own, as the two that follow: `DeepSeek`, vLLM and others stream reasoning here.
    reasoning_content: Option<String>,
    /// Groq, `OpenRouter`, newer vLLM.
    reasoning: Option<String>,
    /// `OpenRouter`, beside the field before: a list. Nothing where it is none.
    reasoning_details: Option<Value>,
    /// Some compatible servers send `null`.
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Deserialize)]
struct CallDelta {
    /// Absent where a call comes whole.
    index: Option<usize>,
    id: Option<String>,
    function: Option<FunctionDelta>,
    extra_content: Option<Value>,
}

#[derive(Default, Deserialize)]
struct FunctionDelta {
    name: Option<String>,
    /// A text; of some compatible servers the object itself.
    arguments: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Usage {
    prompt_tokens: Count,
    completion_tokens: Count,
    #[serde(deserialize_with = "if_readable")]
    prompt_tokens_details: Option<PromptDetails>,
    #[serde(deserialize_with = "if_readable")]
    completion_tokens_details: Option<CompletionDetails>,
    /// `DeepSeek`'s name (<https://api-docs.deepseek.com/guides/kv_cache>).
    prompt_cache_hit_tokens: Count,
    /// Moonshot's.
    cached_tokens: Count,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Count,
    /// `OpenRouter`'s (<https://openrouter.ai/docs/use-cases/usage-accounting>).
    cache_write_tokens: Count,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct CompletionDetails {
    reasoning_tokens: Count,
}

impl Usage {
    /// These counts, and where they tell nothing those of `before`.
    fn after(&self, before: Tokens) -> Tokens {
        let prompt = self.prompt_tokens_details.unwrap_or_default();
        let completion = self.completion_tokens_details.unwrap_or_default();
        let cached = prompt.cached_tokens.or(self.prompt_cache_hit_tokens).or(self.cached_tokens);
        let told = |count: Count, before: u64| if count.tokens() > 0 { count.tokens() } else { before };
        Tokens {
            estimated: false,
            input: told(self.prompt_tokens, before.input),
            output: told(self.completion_tokens, before.output),
            cache_read: told(cached, before.cache_read),
            cache_write: told(prompt.cache_write_tokens, before.cache_write),
            reasoning: told(completion.reasoning_tokens, before.reasoning),
        }
    }
}

impl CallDelta {
    fn name(&self) -> Option<&str> {
        self.function.as_ref()?.name.as_deref().filter(|name| is_filled(name))
    }

    /// The arguments as they are kept, where there are any: blanks may follow a call that is whole.
    fn arguments(&self) -> Option<Cow<'_, str>> {
        match self.function.as_ref()?.arguments.as_ref()? {
            Value::String(more) => (!more.trim().is_empty()).then(|| more.into()),
            whole @ Value::Object(_) => Some(whole.to_string().into()),
            _ => None,
        }
    }
}

/// A call, with what has come of it.
#[derive(Default)]
struct Call {
    index: Option<usize>,
    id: String,
    name: String,
    arguments: String,
    extra_content: Option<Value>,
}

impl Call {
    /// Whether a delta with a name must be of another call: it has another name, or other arguments than this one, which
    /// has all of its own.
    fn takes_no_more_of(&self, delta: &CallDelta) -> bool {
        let is_named_otherwise = is_filled(&self.name) && delta.name().is_some_and(|name| name != self.name);
        is_named_otherwise
            || delta.arguments().is_some_and(|more| more != self.arguments.as_str()) && self.is_whole()
    }

    fn is_whole(&self) -> bool {
        self.arguments.trim_end().ends_with('}')
            && serde_json::from_str::<IgnoredAny>(&self.arguments).is_ok()
    }
}

/// The block that is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Prose(Prose),
    /// The call at this place of all calls.
    Call(usize),
}

#[derive(Default)]
pub(super) struct Decoding {
    text: String,
    thinking: String,
    /// What the provider wants back of the reasoning: see [`super::reasoning`].
    details: Vec<Value>,
    /// Where the reasoning came, if the provider wants it back there: what is kept as its signature.
    reasoned_in: Option<String>,
    calls: Vec<Call>,
    open: Option<Open>,
    refused: bool,
    usage: Tokens,
    ending: Ending,
    received: Received,
}

impl Decoder for Decoding {
    fn event(&mut self, data: &str, parts: &mut VecDeque<Part>) -> Result<(), ModelError> {
        let chunk: Chunk = read(data)?;
        let has_choices = chunk.choices.is_some();
        // Only one choice is asked for.
        let choice = chunk.choices.into_iter().flatten().next();
        let usage = chunk.usage.as_deref().or(choice.as_ref().and_then(|choice| choice.usage.as_deref()));
        if let Some(usage) = usage {
            self.usage = usage.after(self.usage);
        }
        if chunk.error.is_some() || !has_choices {
            let event = serde_json::from_str(data).unwrap_or_default();
            if chunk.error.is_some() || classify::tells_error(&event) {
                return Err(classify::broken_off(&event));
            }
        }
        if let Some(choice) = choice {
            if let Some(error) = choice.error {
                return Err(classify::broken_off(&json!({"error": error})));
            }
            self.delta(choice.delta.unwrap_or_default(), parts);
            self.ending.told(choice.finish_reason);
        }
        Ok(())
    }

    fn end_mark(&mut self, parts: &mut VecDeque<Part>) -> Result<(), ModelError> {
        let stop = self.ending.cause()?.ok_or_else(no_reason)?;
        let stop = if self.refused && stop == StopCause::Done { StopCause::Refusal } else { stop };
        self.close(parts);
        let mut blocks = Vec::from_iter(self.thinking_block());
        if !self.text.is_empty() {
            blocks.push(Block::Text { text: std::mem::take(&mut self.text), signature: None });
        }
        let last = self.calls.len().saturating_sub(1);
        for (at, call) in self.calls.drain(..).enumerate() {
            // Calls may come mixed: one of which no argument has come may not have come at all.
            let is_cut = stop != StopCause::Done && (at == last || call.arguments.is_empty());
            let mut call = tool_use(call);
            if is_cut {
                call.broken.get_or_insert_with(|| CUT_OFF.into());
            }
            blocks.push(Block::ToolUse(call));
        }
        parts.push_back(Part::Done(Answer { blocks, usage: self.usage, stop }));
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
    fn delta(&mut self, delta: Delta, parts: &mut VecDeque<Part>) {
        self.reason(&delta, parts);
        match delta.content {
            Some(Content::Text(text)) => self.write(Prose::Text, text, parts),
            Some(Content::Chunks(chunks)) => self.chunks(chunks, parts),
            None => {}
        }
        if let Some(Value::String(refusal)) = delta.refusal {
            self.refused |= !refusal.is_empty();
            self.write(Prose::Text, refusal, parts);
        }
        for call in delta.tool_calls.into_iter().flatten() {
            self.call(call, parts);
        }
    }

    fn write(&mut self, prose: Prose, more: String, parts: &mut VecDeque<Part>) {
        if more.is_empty() {
            return;
        }
        self.switch(Open::Prose(prose), parts);
        self.received.more(more.len());
        let all = match prose {
            Prose::Text => &mut self.text,
            Prose::Thinking => &mut self.thinking,
        };
        all.push_str(&more);
        parts.push_back(Part::Delta(more));
    }

    fn chunks(&mut self, chunks: Vec<ContentChunk>, parts: &mut VecDeque<Part>) {
        for chunk in chunks {
            let text = chunk.text();
            let ContentChunk::Thinking { signature, .. } = chunk else {
                self.write(Prose::Text, text, parts);
                continue;
            };
            self.received.more(signature.as_ref().map_or(0, String::len));
            if signature.is_some() || self.reasoned_in.is_none() && is_filled(&text) {
                self.reasoned_in = Some(thought_signature(signature));
            }
            self.write(Prose::Thinking, text, parts);
        }
    }

    /// Some servers send the same reasoning in several fields: only one of them is shown.
    fn reason(&mut self, delta: &Delta, parts: &mut VecDeque<Part>) {
        let details = delta.reasoning_details.as_ref().and_then(Value::as_array);
        let mut in_details = String::new();
        for detail in details.into_iter().flatten() {
            in_details.push_str(detail["text"].as_str().or(detail["summary"].as_str()).unwrap_or_default());
            add_detail(&mut self.details, detail, &mut self.received);
        }
        if delta.reasoning_content.as_deref().is_some_and(is_filled) {
            self.reasoned_in = Some(REASONING_CONTENT.to_owned());
        }
        let fields = [delta.reasoning_content.as_deref(), delta.reasoning.as_deref(), Some(&*in_details)];
        let more = fields.into_iter().flatten().find(|text| is_filled(text));
        self.write(Prose::Thinking, more.unwrap_or_default().to_owned(), parts);
    }

    fn call(&mut self, delta: CallDelta, parts: &mut VecDeque<Part>) {
        let at = self.place(&delta);
        self.switch(Open::Call(at), parts);
        if at == self.calls.len() {
            self.calls.push(Call { index: delta.index, ..Call::default() });
            self.received.block(0);
        }
        let received = &mut self.received;
        let Some(call) = self.calls.get_mut(at) else { return };
        // Id and name come whole, and from some compatible servers with every part of the arguments.
        let mut first = |known: &mut String, sent: Option<String>| {
            if known.is_empty() {
                *known = sent.unwrap_or_default();
                received.more(known.len());
            }
        };
        first(&mut call.id, delta.id);
        let FunctionDelta { name, arguments } = delta.function.unwrap_or_default();
        let is_named = name.as_deref().is_some_and(is_filled);
        first(&mut call.name, name);
        if let Some(extra) = delta.extra_content.filter(Value::is_object) {
            received.more(extra.to_string().len());
            call.extra_content = Some(extra);
        }
        match arguments {
            // All of it once more, from a server that closes with the whole call.
            Some(Value::String(again)) if is_named && again == call.arguments && call.is_whole() => {}
            Some(Value::String(more)) => {
                received.more(more.len());
                call.arguments.push_str(&more);
            }
            Some(whole @ Value::Object(_)) => {
                call.arguments = whole.to_string();
                received.more(call.arguments.len());
            }
            _ => {}
        }
    }

    /// Which call a delta belongs to: that of its index, else that of its id, else the last. Servers that send calls whole
    /// give all of them one index or none, and perhaps no id: a delta with a name may begin another.
    fn place(&self, delta: &CallDelta) -> usize {
        let id = delta.id.as_deref().filter(|id| is_filled(id));
        let known = match delta.index {
            Some(index) => self.calls.iter().rposition(|call| call.index == Some(index)),
            None => id
                .and_then(|id| self.calls.iter().rposition(|call| call.id == id))
                .or_else(|| self.calls.len().checked_sub(1)),
        };
        let is_another = |call: &Call| match id {
            _ if delta.name().is_none() => false,
            Some(id) if is_filled(&call.id) => call.id != id,
            // What an id cannot tell.
            _ => delta.index.is_none() || call.takes_no_more_of(delta),
        };
        known.filter(|at| !self.calls.get(*at).is_some_and(is_another)).unwrap_or(self.calls.len())
    }

    /// The stream has no block marks: a block begins where the kind changes.
    fn switch(&mut self, to: Open, parts: &mut VecDeque<Part>) {
        if self.open == Some(to) {
            return;
        }
        self.close(parts);
        self.open = Some(to);
        parts.push_back(Part::Start(match to {
            Open::Prose(Prose::Text) => BlockType::Text,
            Open::Prose(Prose::Thinking) => BlockType::Thinking,
            Open::Call(_) => BlockType::ToolUse,
        }));
    }

    fn close(&mut self, parts: &mut VecDeque<Part>) {
        if self.open.take().is_some() {
            parts.push_back(Part::Stop);
        }
    }

    fn thinking_block(&mut self) -> Option<Block> {
        let thinking = std::mem::take(&mut self.thinking);
        let signature = if self.details.is_empty() {
            self.reasoned_in.take()
        } else {
            Some(Value::Array(std::mem::take(&mut self.details)).to_string())
        };
        (signature.is_some() || !thinking.is_empty()).then_some(Block::Thinking { thinking, signature })
    }
}

fn is_filled(text: &str) -> bool {
    !text.is_empty()
}

/// Adds a part of the reasoning: more of the last one if it has its index and type, else a new one.
fn add_detail(details: &mut Vec<Value>, more: &Value, received: &mut Received) {
    // Only the first piece of one may have its id.
    let has_id = |known: &Value| known["id"].is_null() || more["id"].is_null() || known["id"] == more["id"];
    let is_same =
        |known: &Value| known["type"] == more["type"] && known["index"] == more["index"] && has_id(known);
    let Some(known) = details.last_mut().filter(|known| is_same(known)).and_then(Value::as_object_mut) else {
        received.block(more.to_string().len());
        return details.push(more.clone());
    };
    for (field, value) in more.as_object().into_iter().flatten() {
        let grows = matches!(field.as_str(), "text" | "summary" | "data");
        match (known.get_mut(field), value) {
            (_, Value::Null) => {}
            // Sealed reasoning that is told twice; a text may well be the same twice.
            (Some(before), value) if before == value && (!grows || field == "data") => {}
            (Some(Value::String(before)), Value::String(more)) if grows => {
                received.more(more.len());
                before.push_str(more);
            }
            (_, value) => {
                received.more(field.len() + value.to_string().len());
                known.insert(field.clone(), value.clone());
            }
        }
    }
}

fn tool_use(call: Call) -> ToolUse {
    let (input, broken) = tool_input(&call.arguments);
    let call_id = CallId::new();
    // A result is matched to its call by the id, so calls without one get ours.
    let provider_id = if call.id.is_empty() { call_id.to_string() } else { call.id };
    let signature = call.extra_content.map(|extra| extra.to_string());
    ToolUse { call_id, provider_id, name: call.name, input, signature, broken }
}

#[cfg(test)]
#[path = "decoding_tests.rs"]
pub(super) mod tests;
