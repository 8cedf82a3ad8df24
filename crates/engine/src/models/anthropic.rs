//! The Anthropic Messages protocol (<https://docs.anthropic.com/en/api/messages>).

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
use super::{
    Answer, Block, ChatModel, Content, Message, ModelError, ModelErrorKind, Part, Parts, Request, Tokens,
    ToolUse,
};

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

    fn takes(&self, _: MediaKind, _: &str) -> Result<(), String> {
        Err("this model takes no media".into())
    }

    fn ask(&self, request: &Request<'_>) -> Parts {
        call(self.endpoint.clone(), body(&self.model, request), Decoding::default())
    }
}

fn body(model: &str, request: &Request<'_>) -> Value {
    let mut body = json!({
        "model": model,
        "max_tokens": MAX_OUTPUT,
        "stream": true,
        "system": request.system,
        "messages": messages(model, request.messages),
    });
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({"name": tool.name, "description": tool.description, "input_schema": tool.input_schema})
        });
        insert(&mut body, "tools", tools.collect());
    }
    if request.thinking {
        insert(&mut body, "thinking", json!({"type": "enabled", "budget_tokens": THINKING_BUDGET}));
    }
    body
}

fn messages(model: &str, messages: &[Message]) -> Vec<Value> {
    let message = |message: &Message| match message {
        Message::User { content } => {
            let text = Content::text_of(content);
            json!({"role": "user", "content": [{"type": "text", "text": text}]})
        }
        Message::Assistant { model: author, blocks } => {
            let content = blocks.iter().filter_map(|each| block(each, author == model));
            json!({"role": "assistant", "content": content.collect::<Vec<_>>()})
        }
        Message::Results(replies) => {
            let content = replies.iter().map(|reply| {
                json!({
                    "type": "tool_result",
                    "tool_use_id": reply.provider_id,
                    "content": reply.text,
                    "is_error": reply.is_error,
                })
            });
            json!({"role": "user", "content": content.collect::<Vec<_>>()})
        }
    };
    let has_content =
        |message: &Value| message["content"].as_array().is_none_or(|content| !content.is_empty());
    // The provider refuses an empty message, such as an answer of nothing but another model's reasoning. It takes
    // the two user messages around it as one.
    messages.iter().map(message).filter(has_content).collect()
}

/// A block as it is sent back; none if the provider would refuse it.
fn block(block: &Block, same_model: bool) -> Option<Value> {
    match block {
        // The provider refuses empty and blank texts, also those that it sent.
        Block::Text { text } if text.trim().is_empty() => None,
        Block::Text { text } => Some(json!({"type": "text", "text": text})),
        // Signatures hold for the model that made them, and reasoning without one is refused.
        Block::Thinking { thinking, signature: Some(signature) } if same_model => {
            Some(json!({"type": "thinking", "thinking": thinking, "signature": signature}))
        }
        Block::RedactedThinking { data } if same_model => {
            Some(json!({"type": "redacted_thinking", "data": data}))
        }
        Block::Thinking { .. } | Block::RedactedThinking { .. } => None,
        Block::ToolUse(call) => {
            Some(json!({"type": "tool_use", "id": call.provider_id, "name": call.name, "input": call.input}))
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
        let cached = |count: Option<u64>| count.unwrap_or(0);
        let (read, write) =
            (cached(self.usage.cache_read_input_tokens), cached(self.usage.cache_creation_input_tokens));
        // The vendor counts cached parts of the prompt beside `input_tokens`, not in it.
        let usage = Tokens {
            input: cached(self.usage.input_tokens) + read + write,
            output: cached(self.usage.output_tokens),
            cache_read: read,
            cache_write: write,
            // Not told apart from other output by the vendor.
            reasoning: 0,
        };
        Answer { blocks, usage }
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
