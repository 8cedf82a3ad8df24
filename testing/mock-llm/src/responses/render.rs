//! Renders a reply as output items: reasoning, messages and function calls.

use serde_json::{Value, json};

use super::response::{Outcome, Response};
use super::stream::stream;
use crate::issued::{IssuedAnswer, IssuedBlock, IssuedItem, ItemKind, seal};
use crate::protocol::{AnswerBody, IncomingRequest, RenderedAnswer};
use crate::reply::{Block, Reply, arguments_text};

/// An output item with generated values for everything that the script does not set.
pub(super) struct Item {
    pub(super) id: String,
    /// Its final status. All items but the last one of a truncated answer are complete.
    pub(super) status: &'static str,
    pub(super) content: Content,
}

/// The content of an item.
pub(super) enum Content {
    /// The summary and the encrypted content, each if the request asked for it.
    Reasoning {
        summary: Option<String>,
        sealed: Option<EncryptedContent>,
    },
    Message {
        text: String,
    },
    FunctionCall {
        call_id: String,
        name: String,
        arguments: String,
    },
}

/// The encrypted content of an item. In a stream, the item starts with a different value; only the last one is
/// complete.
pub(super) struct EncryptedContent {
    pub(super) start: String,
    pub(super) complete: String,
}

/// The parts of the reasoning that a request asks for.
#[derive(Clone, Copy)]
struct ReasoningVisibility {
    summary: bool,
    encrypted: bool,
}

/// Renders the answer.
pub(super) fn answer(request: &IncomingRequest, reply: &Reply, number: u64) -> RenderedAnswer {
    let outcome = Outcome::from_reply(reply);
    let items = items(request, reply, number, outcome);
    let response = Response::new(request, number);
    let output: Vec<Value> = items.iter().map(Item::complete).collect();
    let ended = response.ended(outcome, &output, reply.token_counts(request.raw.len()));
    let answer = if request.wants_stream() {
        AnswerBody::Stream(stream(
            &response.in_progress(),
            &items,
            reply.chunking,
            outcome.event_name(),
            &ended,
        ))
    } else {
        AnswerBody::Complete(ended)
    };
    RenderedAnswer { answer, issued: Some(issued(request, items)) }
}

fn items(request: &IncomingRequest, reply: &Reply, number: u64, outcome: Outcome) -> Vec<Item> {
    let visibility = ReasoningVisibility::from_request(&request.body);
    let contents =
        reply.blocks.iter().enumerate().map(|(index, block)| content(block, visibility, number, index));
    let last = reply.blocks.len().saturating_sub(1);
    let item = |(index, content): (usize, Content)| Item {
        id: format!("{}_{number:016}{index:08}", content.id_prefix()),
        status: if index == last { outcome.status() } else { "completed" },
        content,
    };
    contents.enumerate().map(item).collect()
}

fn content(block: &Block, visibility: ReasoningVisibility, number: u64, index: usize) -> Content {
    let sealed = |text: &str| {
        let complete = format!("gAAAAAB{}", seal(number, index, text));
        let start = format!("gAAAAAB{}", seal(number, index, "opening"));
        visibility.encrypted.then_some(EncryptedContent { start, complete })
    };
    match block {
        Block::Thinking { text } => {
            Content::Reasoning { summary: visibility.summary.then(|| text.clone()), sealed: sealed(text) }
        }
        Block::RedactedThinking => Content::Reasoning { summary: None, sealed: sealed("redacted") },
        Block::Text { text } => Content::Message { text: text.clone() },
        Block::Echo => Content::Message { text: String::new() },
        Block::ToolUse { id, name, input, raw_input } => Content::FunctionCall {
            call_id: id.clone().unwrap_or_else(|| format!("call_{number:016}{index:08}")),
            name: name.clone(),
            arguments: arguments_text(input, raw_input.as_deref()),
        },
    }
}

/// The items that the client must send back.
fn issued(request: &IncomingRequest, items: Vec<Item>) -> IssuedAnswer {
    let is_stored = request.body.get("store").and_then(Value::as_bool).unwrap_or(true);
    let issued = |item: Item| {
        let kind = match item.content {
            Content::Reasoning { sealed, .. } => {
                ItemKind::Reasoning { seal: sealed.map(|sealed| sealed.complete) }
            }
            Content::Message { .. } => ItemKind::Message,
            Content::FunctionCall { .. } => ItemKind::FunctionCall,
        };
        IssuedBlock::Item(IssuedItem { id: item.id, kind, is_stored })
    };
    IssuedAnswer {
        model: request.model().to_owned(),
        prefix: None,
        blocks: items.into_iter().map(issued).collect(),
    }
}

impl ReasoningVisibility {
    fn from_request(body: &Value) -> Self {
        let include = body.get("include").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        Self {
            summary: body.pointer("/reasoning/summary").is_some_and(Value::is_string),
            encrypted: include.iter().any(|wanted| wanted == "reasoning.encrypted_content"),
        }
    }
}

impl Content {
    fn id_prefix(&self) -> &'static str {
        match self {
            Self::Reasoning { .. } => "rs",
            Self::Message { .. } => "msg",
            Self::FunctionCall { .. } => "fc",
        }
    }
}

impl Item {
    /// The item in a response and in `response.output_item.done`.
    pub(super) fn complete(&self) -> Value {
        let id = &self.id;
        match &self.content {
            Content::Reasoning { summary, sealed } => {
                let summary: Vec<Value> = summary.iter().map(|text| summary_part(text)).collect();
                reasoning(id, &summary, sealed.as_ref().map(|sealed| sealed.complete.as_str()))
            }
            Content::Message { text } => json!({
                "id": id, "type": "message", "status": self.status, "role": "assistant", "content": [text_part(text)],
            }),
            Content::FunctionCall { call_id, name, arguments } => json!({
                "id": id, "type": "function_call", "status": self.status, "arguments": arguments, "call_id": call_id,
                "name": name,
            }),
        }
    }

    /// The item in `response.output_item.added`.
    pub(super) fn start_item(&self) -> Value {
        let id = &self.id;
        match &self.content {
            Content::Reasoning { sealed, .. } => {
                reasoning(id, &[], sealed.as_ref().map(|sealed| sealed.start.as_str()))
            }
            Content::Message { .. } => json!({
                "id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": [],
            }),
            Content::FunctionCall { call_id, name, .. } => json!({
                "id": id, "type": "function_call", "status": "in_progress", "arguments": "", "call_id": call_id,
                "name": name,
            }),
        }
    }
}

/// The only part of a summary.
pub(super) fn summary_part(text: &str) -> Value {
    json!({"type": "summary_text", "text": text})
}

/// The only part of a message.
pub(super) fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "annotations": [], "logprobs": [], "text": text})
}

fn reasoning(id: &str, summary: &[Value], encrypted_content: Option<&str>) -> Value {
    let mut item = json!({"id": id, "type": "reasoning", "summary": summary});
    if let (Some(encrypted_content), Some(members)) = (encrypted_content, item.as_object_mut()) {
        members.insert("encrypted_content".to_owned(), encrypted_content.into());
    }
    item
}
