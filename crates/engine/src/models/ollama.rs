//! The Ollama protocol (<https://docs.ollama.com/api/chat>).

use std::collections::VecDeque;

use contract::content::MediaKind;
use reqwest::header::AUTHORIZATION;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::{Blocks, Prose, given_id, whole_call};
use super::classify;
use super::http::{Body, Count, Decoder, Endpoint, Framing, Received, call, insert, read};
use super::media::{self, OLLAMA, Sendable, is_blank};
use super::openai::Tool;
use super::profile::{Effort, Profile, Thinking};
use super::{
    Answer, Block, ChatModel, Content, Message, ModelError, Part, Parts, Request, StopCause, Tokens,
    ToolReply, ToolUse,
};

/// A model that speaks Ollama.
pub(super) struct Ollama {
    profile: Profile,
    endpoint: Endpoint,
}

impl Ollama {
    /// `base` is the server's address, as the vendor's SDKs take it: without `/api`. A server of one's own wants no
    /// key.
    pub(super) fn new(base: &str, profile: Profile, key: Option<SecretString>) -> Self {
        let endpoint = Endpoint {
            url: format!("{}/api/chat", base.trim_end_matches('/')),
            key_header: AUTHORIZATION,
            key_prefix: "Bearer ",
            key,
            headers: &[],
        };
        Self { profile, endpoint }
    }
}

impl ChatModel for Ollama {
    fn name(&self) -> &str {
        &self.profile.model
    }

    fn takes(&self, kind: MediaKind, media_type: &str) -> Result<(), String> {
        OLLAMA.take(kind, media_type)
    }

    fn ask(&self, request: &Request<'_>) -> Parts {
        call(self.endpoint.clone(), request, &body(&self.profile, request), Decoding::default())
    }
}

fn body<'a>(profile: &Profile, request: &Request<'a>) -> Body<Vec<Tool<'a>>> {
    let mut body = json!({
        "model": profile.model,
        "stream": true,
        "messages": messages(profile, request),
        "options": {
            // A server's own window is small, whatever the model can.
            "num_ctx": profile.context_window,
            "num_predict": request.max_output.unwrap_or(profile.max_output).min(profile.max_output),
        },
        // Or a longer conversation is cut, and answered as if nothing were missing
        // (<https://github.com/ollama/ollama/pull/17944>).
        "truncate": false,
        "shift": false,
    });
    if let Some(think) = think(profile.thinking, request.thinking) {
        insert(&mut body, "think", think);
    }
    // There is no way to forbid calls but not to tell of the tools.
    let tools = Tool::all(request.tools).filter(|_| request.may_call);
    Body { fields: body, tools }
}

/// How the model is to think (<https://docs.ollama.com/capabilities/thinking>). Models that cannot are not asked: the
/// server refuses such requests.
fn think(thinking: Thinking, thinks: bool) -> Option<Value> {
    match thinking {
        Thinking::Off => None,
        Thinking::Effort(effort) if thinks => Some(json!(level(effort))),
        Thinking::Effort(_) | Thinking::Budget(_) | Thinking::Adaptive(_) => Some(json!(thinks)),
    }
}

/// The server's name of an effort.
fn level(effort: Effort) -> &'static str {
    match effort {
        Effort::Low => "low",
        Effort::Medium => "medium",
        Effort::High => "high",
        Effort::Xhigh | Effort::Max => "max",
    }
}

fn messages(profile: &Profile, request: &Request<'_>) -> Vec<Value> {
    let mut sent = vec![json!({"role": "system", "content": request.system})];
    let mut calls: Vec<&ToolUse> = Vec::new();
    for message in request.messages {
        match message {
            Message::User { content } => sent.extend(user(content.iter().filter_map(Piece::of).collect())),
            Message::Assistant { model, blocks } => {
                let said = assistant(blocks, *model == profile.model);
                calls = said.calls;
                sent.extend(said.message);
            }
            Message::Results(replies) => sent.extend(results(replies, &calls)),
        }
    }
    sent
}

/// What a person gave, in the two kinds that this protocol knows.
enum Piece {
    Text(String),
    /// In base64.
    Image(String),
}

impl Piece {
    fn of(content: &Content) -> Option<Self> {
        Some(match OLLAMA.sendable(content)? {
            Sendable::Text(text) => Self::Text(text.into_owned()),
            Sendable::Plain { name, text } => Self::Text(media::titled(name, &text)),
            Sendable::Image { base64, .. } => Self::Image(base64),
            // Not taken, and so told as a text before it comes here.
            Sendable::Pdf { .. } => return None,
        })
    }
}

/// A user's message: its texts, and its images beside them. None of nothing.
fn user(pieces: Vec<Piece>) -> Option<Value> {
    if pieces.is_empty() {
        return None;
    }
    let mut texts = Vec::new();
    let mut images = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => texts.push(text),
            Piece::Image(base64) => images.push(base64),
        }
    }
    let mut message = json!({"role": "user", "content": texts.join("\n\n")});
    if !images.is_empty() {
        insert(&mut message, "images", json!(images));
    }
    Some(message)
}

/// An answer as it is sent back, and the calls that it makes.
struct Sent<'a> {
    message: Option<Value>,
    calls: Vec<&'a ToolUse>,
}

/// The protocol has one reasoning, one text and a list of calls per message. An answer of nothing else is not sent,
/// nor is another model's reasoning.
fn assistant(blocks: &[Block], same_model: bool) -> Sent<'_> {
    let (mut text, mut thinking) = (String::new(), String::new());
    let mut calls = Vec::new();
    for block in blocks {
        match block {
            Block::Text { text: more, .. } => text.push_str(more),
            Block::Thinking { thinking: more, .. } if same_model => thinking.push_str(more),
            Block::Thinking { .. } | Block::RedactedThinking { .. } => {}
            Block::ToolUse(call) => calls.push(call),
        }
    }
    if is_blank(&text) && calls.is_empty() {
        return Sent { message: None, calls };
    }
    let mut message = json!({"role": "assistant", "content": text});
    if !thinking.is_empty() {
        insert(&mut message, "thinking", json!(thinking));
    }
    if !calls.is_empty() {
        insert(&mut message, "tool_calls", calls.iter().copied().map(called).collect());
    }
    Sent { message: Some(message), calls }
}

fn called(call: &ToolUse) -> Value {
    let mut called = json!({"function": {"name": call.name, "arguments": call.input}});
    if let Some(id) = given_id(call) {
        insert(&mut called, "id", json!(id));
    }
    called
}

/// The results, and behind them the images that people added.
fn results(replies: &[ToolReply], calls: &[&ToolUse]) -> Vec<Value> {
    let mut results = Vec::new();
    let mut added = Vec::new();
    for reply in replies {
        // A history without the call is repaired before it comes here.
        let Some(call) = calls.iter().find(|call| call.provider_id == reply.provider_id) else { continue };
        let (result, images) = result(reply, call);
        results.push(result);
        if !images.is_empty() {
            added.push(Piece::Text(media::introduction(&call.name)));
            added.extend(images);
        }
    }
    results.extend(user(added));
    results
}

/// A result, which most models know by its tool and its place, and the images that go with it.
fn result(reply: &ToolReply, call: &ToolUse) -> (Value, Vec<Piece>) {
    let mut texts = Vec::from_iter(Some(reply.text.clone()).filter(|text| !is_blank(text)));
    let mut images = Vec::new();
    for remark in reply.remarks.iter().filter_map(Piece::of) {
        match remark {
            Piece::Text(text) => texts.push(text),
            Piece::Image(_) => images.push(remark),
        }
    }
    let content = if texts.is_empty() { media::NO_OUTPUT.to_owned() } else { texts.join("\n\n") };
    let mut result = json!({"role": "tool", "tool_name": call.name, "content": content});
    if let Some(id) = given_id(call) {
        insert(&mut result, "tool_call_id", json!(id));
    }
    (result, images)
}

/// A line of the answer. Fields that are not listed are ignored.
#[derive(Deserialize)]
struct Chunk {
    message: Option<Said>,
    done: Option<bool>,
    done_reason: Option<String>,
    #[serde(default)]
    prompt_eval_count: Count,
    #[serde(default)]
    eval_count: Count,
    /// A text; of servers that stand in for the vendor's also an object.
    error: Option<Value>,
}

#[derive(Default, Deserialize)]
struct Said {
    thinking: Option<String>,
    content: Option<String>,
    /// Each comes whole.
    tool_calls: Option<Vec<Call>>,
}

#[derive(Deserialize)]
struct Call {
    /// Older servers give none.
    id: Option<String>,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    arguments: Option<Value>,
}

#[derive(Default)]
struct Decoding {
    blocks: Blocks,
    usage: Tokens,
}

impl Decoder for Decoding {
    const FRAMING: Framing = Framing::Lines;

    fn event(&mut self, data: &str, parts: &mut VecDeque<Part>) -> Result<(), ModelError> {
        let chunk: Chunk = read(data)?;
        if let Some(error) = chunk.error {
            return Err(classify::broken_off(&json!({"error": error})));
        }
        let Said { thinking, content, tool_calls } = chunk.message.unwrap_or_default();
        self.blocks.write(Prose::Thinking, thinking.unwrap_or_default(), None, parts);
        self.blocks.write(Prose::Text, content.unwrap_or_default(), None, parts);
        for Call { id, function } in tool_calls.into_iter().flatten() {
            self.blocks.call(whole_call(id, function.name, function.arguments, None), parts);
        }
        if chunk.done == Some(true) {
            let (input, output) = (chunk.prompt_eval_count.tokens(), chunk.eval_count.tokens());
            self.usage = Tokens { input, output, ..Tokens::default() };
            let stop = match chunk.done_reason.as_deref() {
                Some("length") => StopCause::Length,
                _ => StopCause::Done,
            };
            let blocks = self.blocks.finish(stop, parts);
            parts.push_back(Part::Done(Answer { blocks, usage: self.usage, stop }));
        }
        Ok(())
    }

    fn spent(&self) -> Tokens {
        self.usage
    }

    fn received(&self) -> Received {
        self.blocks.received()
    }
}

#[cfg(test)]
#[path = "ollama_tests.rs"]
mod tests;
