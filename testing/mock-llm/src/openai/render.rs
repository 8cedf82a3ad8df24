//! Renders a reply as a `chat.completion` or as `chat.completion.chunk`s
//! (<https://platform.openai.com/docs/api-reference/chat-streaming>).
//!
//! Chat Completions does not transmit thinking. It counts as reasoning tokens, and is sent only if the provider
//! supports the `reasoning_content` of compatible servers.

use serde_json::{Value, json};

use super::chunk::{Arguments, Choice, Chunk, Delta, Head, NamedFunction, ToolCall, Usage};
use crate::protocol::{AnswerBody, IncomingRequest, RenderedAnswer, Settings};
use crate::reply::{Block, Reply, Stop, TokenCounts, arguments_text};
use crate::split::split;
use crate::transcript::{Transcript, TranscriptWriter};

/// Fixed, so that the transcripts of two runs are equal.
const CREATED_AT: u64 = 1_750_000_000;

/// A part of the answer in this wire's terms.
enum Part {
    Reasoning(String),
    Text(String),
    ToolCall { id: String, name: String, arguments: String },
}

/// Renders the answer.
pub(super) fn answer(
    request: &IncomingRequest,
    reply: &Reply,
    number: u64,
    settings: &Settings,
) -> RenderedAnswer {
    let parts: Vec<Part> = reply
        .blocks
        .iter()
        .enumerate()
        .filter_map(|(index, block)| part(block, number, index, settings))
        .collect();
    let usage = usage(reply.token_counts(request.raw.len()));
    let answer = if request.wants_stream() {
        let includes_usage = request.body.pointer("/stream_options/include_usage")
            == Some(&Value::Bool(true))
            && !reply.usage.withheld;
        let head = head(request, number, "chat.completion.chunk");
        AnswerBody::Stream(stream(&head, &parts, reply, includes_usage.then_some(&usage)))
    } else {
        AnswerBody::Complete(complete(&head(request, number, "chat.completion"), &parts, reply, &usage))
    };
    RenderedAnswer { answer, issued: None }
}

fn head(request: &IncomingRequest, number: u64, object: &'static str) -> Head {
    Head {
        id: format!("chatcmpl-{number:024}"),
        object,
        created: CREATED_AT,
        model: request.model().to_owned(),
        service_tier: "default",
        system_fingerprint: "fp_strict",
    }
}

fn part(block: &Block, number: u64, index: usize, settings: &Settings) -> Option<Part> {
    match block {
        Block::Thinking { text } => settings.reasoning_content.then(|| Part::Reasoning(text.clone())),
        Block::RedactedThinking | Block::Echo => None,
        Block::Text { text } => Some(Part::Text(text.clone())),
        Block::ToolUse { id, name, input, raw_input } => Some(Part::ToolCall {
            id: id.clone().unwrap_or_else(|| format!("call_{number:016}{index:08}")),
            name: name.clone(),
            arguments: arguments_text(input, raw_input.as_deref()),
        }),
    }
}

fn stream(head: &Head, parts: &[Part], reply: &Reply, usage: Option<&Value>) -> Transcript {
    let mut stream =
        ChunkWriter { writer: TranscriptWriter::default(), head, includes_usage: usage.is_some() };
    stream.write(Delta::Opening { role: "assistant", content: "", refusal: None }, None);
    let mut index = 0;
    for part in parts {
        match part {
            Part::Reasoning(text) => {
                for reasoning_content in split(text, reply.chunking) {
                    stream.write_delta(Delta::Reasoning { reasoning_content });
                }
            }
            Part::Text(text) => {
                for content in split(text, reply.chunking) {
                    stream.write_delta(Delta::Content { content });
                }
            }
            Part::ToolCall { id, name, arguments } => {
                let function = NamedFunction { name, arguments: "" };
                let opening = ToolCall::Opening { index, id, r#type: "function", function };
                stream.write(Delta::ToolCalls { tool_calls: [opening] }, None);
                for arguments in split(arguments, reply.chunking) {
                    let fragment = ToolCall::Arguments { index, function: Arguments { arguments } };
                    stream.write_delta(Delta::ToolCalls { tool_calls: [fragment] });
                }
                index += 1;
            }
        }
    }
    stream.write(Delta::End {}, Some(finish_reason(reply)));
    if let Some(usage) = usage {
        stream.writer.event(None, &Chunk { head, choices: &[], usage: Usage::Counts(usage) });
    }
    stream.writer.finish("data: [DONE]\n\n")
}

/// Writes chunks with one choice.
struct ChunkWriter<'a> {
    writer: TranscriptWriter,
    head: &'a Head,
    includes_usage: bool,
}

impl ChunkWriter<'_> {
    /// Writes a chunk that does not count as a delta.
    fn write(&mut self, delta: Delta<'_>, finish_reason: Option<&'static str>) {
        let choices = [Choice { index: 0, delta, logprobs: None, finish_reason }];
        self.writer.event(None, &Chunk { head: self.head, choices: &choices, usage: self.usage() });
    }

    /// Writes a chunk that counts as a delta.
    fn write_delta(&mut self, delta: Delta<'_>) {
        let choices = [Choice { index: 0, delta, logprobs: None, finish_reason: None }];
        self.writer.delta(None, &Chunk { head: self.head, choices: &choices, usage: self.usage() });
    }

    fn usage(&self) -> Usage<'static> {
        if self.includes_usage { Usage::Null } else { Usage::Absent }
    }
}

fn complete(head: &Head, parts: &[Part], reply: &Reply, usage: &Value) -> Value {
    let mut text = String::new();
    let mut reasoning = String::new();
    let mut calls = Vec::new();
    for part in parts {
        match part {
            Part::Reasoning(piece) => reasoning.push_str(piece),
            Part::Text(piece) => text.push_str(piece),
            Part::ToolCall { id, name, arguments } => {
                let function = json!({"name": name, "arguments": arguments});
                calls.push(json!({"id": id, "type": "function", "function": function}));
            }
        }
    }
    let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { text.into() };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null, "annotations": []});
    if !reasoning.is_empty() {
        insert_member(&mut message, "reasoning_content", reasoning.into());
    }
    if !calls.is_empty() {
        insert_member(&mut message, "tool_calls", calls.into());
    }
    let mut completion = json!(head);
    let choice = json!({
        "index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason(reply),
    });
    insert_member(&mut completion, "choices", json!([choice]));
    insert_member(&mut completion, "usage", usage.clone());
    completion
}

fn insert_member(object: &mut Value, name: &str, value: Value) {
    if let Some(members) = object.as_object_mut() {
        members.insert(name.to_owned(), value);
    }
}

fn finish_reason(reply: &Reply) -> &'static str {
    match reply.stop_reason() {
        Stop::EndTurn => "stop",
        Stop::ToolUse => "tool_calls",
        Stop::MaxTokens => "length",
        Stop::Refusal => "content_filter",
    }
}

/// The token counts in this wire's format: the prompt includes cached tokens.
fn usage(counts: TokenCounts) -> Value {
    let prompt = counts.input + counts.cache_read + counts.cache_write;
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": counts.output,
        "total_tokens": prompt + counts.output,
        "prompt_tokens_details": {
            "cached_tokens": counts.cache_read, "cache_write_tokens": counts.cache_write, "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": counts.reasoning, "audio_tokens": 0,
            "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
        },
    })
}
