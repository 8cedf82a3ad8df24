//! The OpenAI Chat Completions protocol (<https://platform.openai.com/docs/api-reference/chat>).

use std::collections::VecDeque;

use contract::CallId;
use contract::content::MediaKind;
use contract::event::BlockType;
use reqwest::header::AUTHORIZATION;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};
use sse_stream::Sse;

use super::http::{Decoder, Endpoint, call, insert};
use super::media::{self, PDF, Sendable, is_blank};
use super::{
    Answer, Block, ChatModel, Content, Message, ModelError, ModelErrorKind, Part, Parts, Request, Tokens,
    ToolReply, ToolUse,
};

/// A model that speaks OpenAI Chat Completions.
pub(super) struct OpenAi {
    model: String,
    endpoint: Endpoint,
}

impl OpenAi {
    /// `base` is the vendor's address or one that stands in for it, as the vendor's SDKs take it: with `/v1`.
    pub(super) fn new(base: &str, model: String, key: SecretString) -> Self {
        let endpoint = Endpoint {
            url: format!("{}/chat/completions", base.trim_end_matches('/')),
            key_header: AUTHORIZATION,
            key_prefix: "Bearer ",
            key,
            headers: &[],
        };
        Self { model, endpoint }
    }
}

impl ChatModel for OpenAi {
    fn name(&self) -> &str {
        &self.model
    }

    fn takes(&self, kind: MediaKind, media_type: &str) -> Result<(), String> {
        media::taken(kind, media_type)
    }

    fn ask(&self, request: &Request<'_>) -> Parts {
        call(self.endpoint.clone(), body(&self.model, request), Decoding::default())
    }
}

fn body(model: &str, request: &Request<'_>) -> Value {
    let mut messages = vec![json!({"role": "system", "content": request.system})];
    messages.extend(request.messages.iter().flat_map(message));
    let mut body = json!({
        "model": model,
        "stream": true,
        "stream_options": {"include_usage": true},
        "messages": messages,
    });
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({
                "type": "function",
                "function": {
                    "name": tool.name, "description": tool.description, "parameters": tool.input_schema,
                },
            })
        });
        insert(&mut body, "tools", tools.collect());
    }
    if request.thinking {
        insert(&mut body, "reasoning_effort", json!("high"));
    }
    body
}

fn message(message: &Message) -> Vec<Value> {
    match message {
        Message::User { content } => {
            user(content.iter().filter_map(Piece::of).collect()).into_iter().collect()
        }
        Message::Assistant { blocks, .. } => assistant(blocks).into_iter().collect(),
        Message::Results(replies) => results(replies),
    }
}

/// What a person gave, in the two kinds that this protocol knows.
enum Piece {
    Text(String),
    /// A part of a message, which only a user's message can have.
    Media(Value),
}

impl Piece {
    fn of(content: &Content) -> Option<Self> {
        Some(match Sendable::of(content)? {
            Sendable::Text(text) | Sendable::Plain { name: None, text } => Self::Text(text.into_owned()),
            Sendable::Plain { name: Some(name), text } => Self::Text(format!("Document {name}:\n\n{text}")),
            Sendable::Image { media_type, base64 } => {
                let url = data_url(media_type, &base64);
                Self::Media(json!({"type": "image_url", "image_url": {"url": url}}))
            }
            Sendable::Pdf { name, base64 } => {
                let file = json!({
                    "filename": name.unwrap_or("document.pdf"), "file_data": data_url(PDF, &base64),
                });
                Self::Media(json!({"type": "file", "file": file}))
            }
        })
    }

    fn into_part(self) -> Value {
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::Media(part) => part,
        }
    }
}

fn data_url(media_type: &str, base64: &str) -> String {
    format!("data:{media_type};base64,{base64}")
}

/// A user's message; none of nothing.
fn user(pieces: Vec<Piece>) -> Option<Value> {
    let content = match pieces.as_slice() {
        [] => return None,
        // The only form that all compatible servers take.
        [Piece::Text(text)] => json!(text),
        _ => pieces.into_iter().map(Piece::into_part).collect(),
    };
    Some(json!({"role": "user", "content": content}))
}

/// The results, and behind them the media that people added: a result has room for texts alone, and nothing may
/// stand between two results.
fn results(replies: &[ToolReply]) -> Vec<Value> {
    let mut results = Vec::new();
    let mut added = Vec::new();
    for reply in replies {
        let (result, media) = result(reply);
        results.push(result);
        if !media.is_empty() {
            added.push(Piece::Text(media::introduction(&reply.provider_id)));
            added.extend(media);
        }
    }
    results.extend(user(added));
    results
}

fn result(reply: &ToolReply) -> (Value, Vec<Piece>) {
    let mut texts = Vec::from_iter(Some(reply.text.clone()).filter(|text| !is_blank(text)));
    let mut media = Vec::new();
    for remark in reply.remarks.iter().filter_map(Piece::of) {
        match remark {
            Piece::Text(text) => texts.push(text),
            Piece::Media(_) => media.push(remark),
        }
    }
    let content = if texts.is_empty() { media::NO_OUTPUT.to_owned() } else { texts.join("\n\n") };
    (json!({"role": "tool", "tool_call_id": reply.provider_id, "content": content}), media)
}

/// This protocol has one text and a list of calls per message, and takes no reasoning back. An answer of nothing
/// else is not sent.
fn assistant(blocks: &[Block]) -> Option<Value> {
    let mut text = String::new();
    let mut calls = Vec::new();
    for block in blocks {
        match block {
            Block::Text { text: more } => text.push_str(more),
            Block::ToolUse(call) => calls.push(json!({
                "id": call.provider_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.input.to_string()},
            })),
            Block::Thinking { .. } | Block::RedactedThinking { .. } => {}
        }
    }
    let mut message = json!({"role": "assistant"});
    if !is_blank(&text) {
        insert(&mut message, "content", json!(text));
    } else if calls.is_empty() {
        return None;
    }
    if !calls.is_empty() {
        insert(&mut message, "tool_calls", json!(calls));
    }
    Some(message)
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Problem>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    /// Text in which the model declines; shown as any other.
    refusal: Option<String>,
    /// Not the vendor's own: several compatible servers stream reasoning here.
    reasoning_content: Option<String>,
    /// Some compatible servers send `null`.
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Deserialize)]
struct CallDelta {
    index: usize,
    id: Option<String>,
    function: Option<FunctionDelta>,
}

#[derive(Deserialize)]
struct FunctionDelta {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct CompletionDetails {
    #[serde(default)]
    reasoning_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Problem {
    #[serde(default)]
    message: String,
    code: Option<Value>,
}

struct Call {
    index: usize,
    id: String,
    name: String,
    arguments: String,
}

/// The block that is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Text,
    Thinking,
    Call(usize),
}

#[derive(Default)]
struct Decoding {
    text: String,
    thinking: String,
    calls: Vec<Call>,
    open: Option<Open>,
    usage: Tokens,
    finish_reason: Option<String>,
}

impl Decoder for Decoding {
    fn event(&mut self, event: &Sse, parts: &mut VecDeque<Part>) -> Result<(), ModelError> {
        let Some(data) = event.data.as_deref() else { return Ok(()) };
        if data.trim() == "[DONE]" {
            return self.done(parts);
        }
        let chunk: Chunk = serde_json::from_str(data).map_err(|error| {
            ModelError::new(
                ModelErrorKind::Broken,
                format!("the provider sent a chunk of no known form: {error}"),
            )
        })?;
        if let Some(error) = chunk.error {
            return Err(problem(&error));
        }
        if let Some(usage) = chunk.usage {
            self.usage = tokens(&usage);
        }
        // Only one choice is asked for.
        if let Some(choice) = chunk.choices.into_iter().next() {
            self.delta(choice.delta, parts);
            self.finish_reason = choice.finish_reason.or(self.finish_reason.take());
        }
        Ok(())
    }

    fn spent(&self) -> Tokens {
        self.usage
    }
}

impl Decoding {
    fn delta(&mut self, delta: Delta, parts: &mut VecDeque<Part>) {
        if let Some(more) = delta.reasoning_content.filter(|more| !more.is_empty()) {
            self.switch(Open::Thinking, parts);
            self.thinking.push_str(&more);
            parts.push_back(Part::Delta(more));
        }
        for more in [delta.content, delta.refusal].into_iter().flatten().filter(|more| !more.is_empty()) {
            self.switch(Open::Text, parts);
            self.text.push_str(&more);
            parts.push_back(Part::Delta(more));
        }
        for call in delta.tool_calls.into_iter().flatten() {
            self.switch(Open::Call(call.index), parts);
            self.call(call);
        }
    }

    fn call(&mut self, delta: CallDelta) {
        let index = delta.index;
        if !self.calls.iter().any(|call| call.index == index) {
            let empty = String::new;
            self.calls.push(Call { index, id: empty(), name: empty(), arguments: empty() });
        }
        let Some(call) = self.calls.iter_mut().find(|call| call.index == index) else { return };
        // Id and name come whole, and from some compatible servers with every part of the arguments.
        let first = |known: &mut String, sent: Option<String>| {
            if known.is_empty() {
                *known = sent.unwrap_or_default();
            }
        };
        first(&mut call.id, delta.id);
        if let Some(FunctionDelta { name, arguments }) = delta.function {
            first(&mut call.name, name);
            call.arguments.push_str(&arguments.unwrap_or_default());
        }
    }

    /// The stream has no block marks: a block begins where the kind changes.
    fn switch(&mut self, to: Open, parts: &mut VecDeque<Part>) {
        if self.open == Some(to) {
            return;
        }
        self.close(parts);
        self.open = Some(to);
        parts.push_back(Part::Start(match to {
            Open::Text => BlockType::Text,
            Open::Thinking => BlockType::Thinking,
            Open::Call(_) => BlockType::ToolUse,
        }));
    }

    fn close(&mut self, parts: &mut VecDeque<Part>) {
        if self.open.take().is_some() {
            parts.push_back(Part::Stop);
        }
    }

    fn done(&mut self, parts: &mut VecDeque<Part>) -> Result<(), ModelError> {
        let Some(finish_reason) = self.finish_reason.take() else {
            let what = "the provider's stream ended without saying why";
            return Err(ModelError::new(ModelErrorKind::Broken, what));
        };
        self.close(parts);
        let mut blocks = Vec::new();
        if !self.thinking.is_empty() {
            blocks.push(Block::Thinking { thinking: std::mem::take(&mut self.thinking), signature: None });
        }
        if !self.text.is_empty() {
            blocks.push(Block::Text { text: std::mem::take(&mut self.text) });
        }
        let mut calls: Vec<ToolUse> = self.calls.drain(..).map(tool_use).collect();
        if finish_reason == "length"
            && let Some(last) = calls.last_mut()
        {
            last.broken.get_or_insert_with(|| super::CUT_OFF.into());
        }
        blocks.extend(calls.into_iter().map(Block::ToolUse));
        parts.push_back(Part::Done(Answer { blocks, usage: self.usage }));
        Ok(())
    }
}

fn tool_use(call: Call) -> ToolUse {
    let (input, broken) = super::tool_input(&call.arguments);
    let call_id = CallId::new();
    // A result is matched to its call by the id, so calls without one get ours.
    let provider_id = if call.id.is_empty() { call_id.to_string() } else { call.id };
    ToolUse { call_id, provider_id, name: call.name, input, broken }
}

fn tokens(usage: &Usage) -> Tokens {
    Tokens {
        input: usage.prompt_tokens,
        output: usage.completion_tokens,
        cache_read: usage
            .prompt_tokens_details
            .as_ref()
            .and_then(|details| details.cached_tokens)
            .unwrap_or(0),
        cache_write: 0,
        reasoning: usage
            .completion_tokens_details
            .as_ref()
            .and_then(|details| details.reasoning_tokens)
            .unwrap_or(0),
    }
}

fn problem(error: &Problem) -> ModelError {
    let quota = error.code.as_ref().and_then(Value::as_str) == Some("insufficient_quota");
    let kind = if quota { ModelErrorKind::Quota } else { ModelErrorKind::Busy };
    ModelError::new(kind, format!("the provider broke its answer off: {}", error.message))
}

#[cfg(test)]
#[path = "openai_tests.rs"]
mod tests;
