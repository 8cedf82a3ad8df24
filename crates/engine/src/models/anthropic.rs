//! The Anthropic Messages protocol (<https://docs.anthropic.com/en/api/messages>).

use std::borrow::Cow;
use std::collections::VecDeque;

use contract::CallId;
use contract::content::MediaKind;
use contract::event::BlockType;
use reqwest::header::HeaderName;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};
use sse_stream::Sse;

use super::http::{Decoder, Endpoint, call, insert};
use super::media::{self, PDF, PLAIN_TEXT, Sendable, is_blank};
use super::{
    Answer, Block, ChatModel, Content, Message, ModelError, ModelErrorKind, Part, Parts, Request, Tokens,
    ToolReply, ToolUse,
};
use crate::sabotage::{self, Saboteur};

/// The most that an answer may have where nothing is configured; all current models take it.
const MAX_OUTPUT: u64 = 32_000;
/// How much of that a model may spend on thinking.
const THINKING_BUDGET: u64 = 16_000;

/// A model that speaks Anthropic Messages.
pub(super) struct Anthropic {
    model: String,
    endpoint: Endpoint,
}

impl Anthropic {
    /// `base` is the vendor's address or one that stands in for it, as the vendor's SDKs take it: without `/v1`.
    pub(super) fn new(base: &str, model: String, key: SecretString) -> Self {
        let endpoint = Endpoint {
            url: format!("{}/v1/messages", base.trim_end_matches('/')),
            key_header: HeaderName::from_static("x-api-key"),
            key_prefix: "",
            key,
            headers: &[("anthropic-version", "2023-06-01")],
        };
        Self { model, endpoint }
    }
}

impl ChatModel for Anthropic {
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
    let messages = messages(model, request.messages);
    let thinking = request.thinking && may_think(&messages);
    let mut body = json!({
        "model": model,
        "max_tokens": MAX_OUTPUT,
        "stream": true,
        "system": request.system,
        "messages": messages,
    });
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({"name": tool.name, "description": tool.description, "input_schema": tool.input_schema})
        });
        insert(&mut body, "tools", tools.collect());
    }
    if thinking {
        insert(&mut body, "thinking", json!({"type": "enabled", "budget_tokens": THINKING_BUDGET}));
    }
    body
}

fn messages(model: &str, messages: &[Message]) -> Vec<Value> {
    let message = |message: &Message| {
        let (role, content): (_, Vec<Value>) = match message {
            Message::User { content: contents } => ("user", contents.iter().filter_map(content).collect()),
            Message::Assistant { model: author, blocks } => {
                ("assistant", blocks.iter().filter_map(|each| block(each, author == model)).collect())
            }
            Message::Results(replies) => ("user", results(replies)),
        };
        // The provider refuses an empty message, such as an answer of nothing but another model's reasoning. It
        // takes the two user messages around it as one.
        (!content.is_empty()).then(|| json!({"role": role, "content": content}))
    };
    messages.iter().filter_map(message).collect()
}

/// Whether thinking may be asked for. Not where the calls whose results are sent come from answers without their
/// thinking, such as those of another model: the provider would refuse the request.
fn may_think(messages: &[Value]) -> bool {
    let has = |message: &Value, kind: &str| kinds(message).any(|each| each == kind);
    let asked = |message: &Value| message["role"] == "user" && !has(message, "tool_result");
    let since = messages.rsplit(asked).next().unwrap_or_default();
    since.first().is_none_or(|answer| {
        !has(answer, "tool_use") || matches!(kinds(answer).next(), Some("thinking" | "redacted_thinking"))
    })
}

/// The types of a message's blocks.
fn kinds(message: &Value) -> impl Iterator<Item = &str> {
    message["content"].as_array().into_iter().flatten().filter_map(|block| block["type"].as_str())
}

/// What a person gave, as a block.
fn content(content: &Content) -> Option<Value> {
    Some(match Sendable::of(content)? {
        Sendable::Text(text) => text_block(&text),
        Sendable::Image { media_type, base64 } => {
            json!({"type": "image", "source": source("base64", media_type, &base64)})
        }
        Sendable::Pdf { name, base64 } => document(name, &source("base64", PDF, &base64)),
        Sendable::Plain { name, text } => document(name, &source("text", PLAIN_TEXT, &text)),
    })
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn source(kind: &str, media_type: &str, data: &str) -> Value {
    json!({"type": kind, "media_type": media_type, "data": data})
}

fn document(name: Option<&str>, source: &Value) -> Value {
    let mut document = json!({"type": "document", "source": source});
    if let Some(name) = name {
        insert(&mut document, "title", json!(name));
    }
    document
}

/// All results come first, or the provider does not find them.
fn results(replies: &[ToolReply]) -> Vec<Value> {
    let (mut results, beside): (Vec<Value>, Vec<Vec<Value>>) = replies.iter().map(result).unzip();
    results.extend(beside.into_iter().flatten());
    results
}

/// A call's result, and what has to stand beside it: in the result of a failed call the provider takes only texts.
fn result(reply: &ToolReply) -> (Value, Vec<Value>) {
    let id = call_id(&reply.provider_id);
    let fits = |block: &Value| !reply.is_error || block["type"] == "text";
    let (remarks, mut beside): (Vec<Value>, Vec<Value>) =
        reply.remarks.iter().filter_map(content).partition(fits);
    if !beside.is_empty() {
        beside.insert(0, text_block(&media::introduction(&id)));
    }
    let text = Some(reply.text.as_str()).filter(|text| !is_blank(text));
    let content = if remarks.is_empty() {
        json!(text.unwrap_or(media::NO_OUTPUT))
    } else {
        text.map(text_block).into_iter().chain(remarks).collect()
    };
    let result =
        json!({"type": "tool_result", "tool_use_id": id, "content": content, "is_error": reply.is_error});
    (result, beside)
}

/// A call's id as this vendor takes it: another's may have characters that it refuses.
fn call_id(id: &str) -> Cow<'_, str> {
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
    if id.chars().all(is_allowed) {
        return id.into();
    }
    let spell = |character| match character {
        allowed if is_allowed(allowed) => allowed.to_string(),
        other => format!("_{:x}_", u32::from(other)),
    };
    id.chars().map(spell).collect()
}

/// A block as it is sent back; none if the provider would refuse it.
fn block(block: &Block, same_model: bool) -> Option<Value> {
    match block {
        // The provider refuses empty and blank texts, also those that it sent.
        Block::Text { text } if is_blank(text) => None,
        Block::Text { text } => Some(text_block(text)),
        // Signatures hold for the model that made them, and reasoning without one is refused.
        Block::Thinking { thinking, signature: Some(signature) } if same_model => {
            let signature = if sabotage::by(Saboteur::DropSignatures) { "forged" } else { signature };
            Some(json!({"type": "thinking", "thinking": thinking, "signature": signature}))
        }
        Block::RedactedThinking { data } if same_model => {
            Some(json!({"type": "redacted_thinking", "data": data}))
        }
        Block::Thinking { .. } | Block::RedactedThinking { .. } => None,
        Block::ToolUse(ToolUse { provider_id, name, input, .. }) => {
            Some(json!({"type": "tool_use", "id": call_id(provider_id), "name": name, "input": input}))
        }
    }
}

/// An event of the stream. Types that are not listed, which the vendor may add at any time, are ignored.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event {
    MessageStart {
        message: Start,
    },
    ContentBlockStart {
        content_block: ContentBlock,
    },
    ContentBlockDelta {
        delta: Delta,
    },
    ContentBlockStop {},
    MessageDelta {
        delta: MessageDelta,
        #[serde(default)]
        usage: Usage,
    },
    MessageStop {},
    Error {
        error: Problem,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Start {
    #[serde(default)]
    usage: Usage,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentBlock {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
    },
    RedactedThinking {
        data: String,
    },
    ToolUse {
        id: String,
        name: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Delta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct MessageDelta {
    stop_reason: Option<String>,
}

#[derive(Deserialize)]
struct Problem {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    message: String,
}

/// Counts are cumulative, and each may be absent.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Usage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

/// The block that is open, with what has come of it.
enum Open {
    Text(String),
    Thinking { thinking: String, signature: String },
    Redacted(String),
    Tool { id: String, name: String, input: String },
    Ignored,
}

#[derive(Default)]
struct Decoding {
    blocks: Vec<Block>,
    open: Option<Open>,
    usage: Usage,
    cut: bool,
}

impl Decoder for Decoding {
    fn event(&mut self, event: &Sse, parts: &mut VecDeque<Part>) -> Result<(), ModelError> {
        let Some(data) = event.data.as_deref() else { return Ok(()) };
        let event = serde_json::from_str(data).map_err(|error| {
            ModelError::new(
                ModelErrorKind::Broken,
                format!("the provider sent an event of no known form: {error}"),
            )
        })?;
        match event {
            Event::MessageStart { message } => self.count(message.usage),
            Event::ContentBlockStart { content_block } => self.start(content_block, parts),
            Event::ContentBlockDelta { delta } => self.delta(delta, parts),
            Event::ContentBlockStop {} => self.stop(parts),
            Event::MessageDelta { delta, usage } => {
                self.count(usage);
                self.cut = matches!(
                    delta.stop_reason.as_deref(),
                    Some("max_tokens" | "model_context_window_exceeded")
                );
            }
            Event::MessageStop {} => parts.push_back(Part::Done(self.answer())),
            Event::Error { error } => return Err(problem(&error)),
            Event::Other => {}
        }
        Ok(())
    }

    fn spent(&self) -> Tokens {
        self.usage.tokens()
    }
}

impl Usage {
    fn tokens(self) -> Tokens {
        let counted = |count: Option<u64>| count.unwrap_or(0);
        let (read, write) =
            (counted(self.cache_read_input_tokens), counted(self.cache_creation_input_tokens));
        Tokens {
            // The vendor counts cached parts of the prompt beside `input_tokens`, not in it.
            input: counted(self.input_tokens) + read + write,
            output: counted(self.output_tokens),
            cache_read: read,
            cache_write: write,
            // Not told apart from other output by the vendor.
            reasoning: 0,
        }
    }
}

impl Decoding {
    fn count(&mut self, usage: Usage) {
        let ours = &mut self.usage;
        ours.input_tokens = usage.input_tokens.or(ours.input_tokens);
        ours.output_tokens = usage.output_tokens.or(ours.output_tokens);
        ours.cache_read_input_tokens = usage.cache_read_input_tokens.or(ours.cache_read_input_tokens);
        ours.cache_creation_input_tokens =
            usage.cache_creation_input_tokens.or(ours.cache_creation_input_tokens);
    }

    fn start(&mut self, block: ContentBlock, parts: &mut VecDeque<Part>) {
        let (open, kind, first) = match block {
            ContentBlock::Text { text } => (Open::Text(text.clone()), Some(BlockType::Text), text),
            ContentBlock::Thinking { thinking } => {
                let open = Open::Thinking { thinking: thinking.clone(), signature: String::new() };
                (open, Some(BlockType::Thinking), thinking)
            }
            ContentBlock::RedactedThinking { data } => (Open::Redacted(data), None, String::new()),
            ContentBlock::ToolUse { id, name } => {
                (Open::Tool { id, name, input: String::new() }, Some(BlockType::ToolUse), String::new())
            }
            ContentBlock::Other => (Open::Ignored, None, String::new()),
        };
        self.open = Some(open);
        parts.extend(kind.map(Part::Start));
        if !first.is_empty() {
            parts.push_back(Part::Delta(first));
        }
    }

    fn delta(&mut self, delta: Delta, parts: &mut VecDeque<Part>) {
        match (delta, &mut self.open) {
            (Delta::Text { text }, Some(Open::Text(all)))
            | (Delta::Thinking { thinking: text }, Some(Open::Thinking { thinking: all, .. })) => {
                all.push_str(&text);
                parts.push_back(Part::Delta(text));
            }
            (Delta::Signature { signature }, Some(Open::Thinking { signature: all, .. })) => {
                all.push_str(&signature);
            }
            (Delta::InputJson { partial_json }, Some(Open::Tool { input, .. })) => {
                input.push_str(&partial_json);
            }
            // Kinds that we do not know, or a delta that does not fit its block: nothing we could show.
            _ => {}
        }
    }

    fn stop(&mut self, parts: &mut VecDeque<Part>) {
        let (block, shown) = match self.open.take() {
            Some(Open::Text(text)) => (Block::Text { text }, true),
            Some(Open::Thinking { thinking, signature }) => {
                let signature = Some(signature).filter(|signature| !signature.is_empty());
                (Block::Thinking { thinking, signature }, true)
            }
            Some(Open::Redacted(data)) => (Block::RedactedThinking { data }, false),
            Some(Open::Tool { id, name, input }) => (Block::ToolUse(tool_use(id, name, &input)), true),
            Some(Open::Ignored) | None => return,
        };
        self.blocks.push(block);
        if shown {
            parts.push_back(Part::Stop);
        }
    }

    fn answer(&mut self) -> Answer {
        let mut blocks = std::mem::take(&mut self.blocks);
        if self.cut
            && let Some(Block::ToolUse(last)) = blocks.last_mut()
        {
            last.broken.get_or_insert_with(|| super::CUT_OFF.into());
        }
        Answer { blocks, usage: self.spent() }
    }
}

fn tool_use(provider_id: String, name: String, input: &str) -> ToolUse {
    let (input, broken) = super::tool_input(input);
    ToolUse { call_id: CallId::new(), provider_id, name, input, broken }
}

fn problem(error: &Problem) -> ModelError {
    // The error types of <https://docs.anthropic.com/en/api/errors>.
    let kind = match error.kind.as_str() {
        "authentication_error" | "permission_error" => ModelErrorKind::Auth,
        "invalid_request_error" | "not_found_error" | "request_too_large" => ModelErrorKind::Refused,
        "billing_error" => ModelErrorKind::Quota,
        _ => ModelErrorKind::Busy,
    };
    ModelError::new(kind, format!("the provider broke its answer off: {} ({})", error.message, error.kind))
}

#[cfg(test)]
#[path = "anthropic_tests.rs"]
mod tests;
