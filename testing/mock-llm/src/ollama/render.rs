//! Renders a reply as one object or as lines of objects (<https://docs.ollama.com/api/chat>). Calls are not split,
//! and the last line has the token counts.

use serde_json::{Value, json};

use super::can_think;
use crate::protocol::{AnswerBody, IncomingRequest, RenderedAnswer};
use crate::reply::{Block, Reply, Stop, TokenCounts};
use crate::split::split;
use crate::transcript::{Transcript, TranscriptWriter, single_line};

/// Fixed, so that the transcripts of two runs are equal.
const CREATED_AT: &str = "2025-06-15T15:06:40.000000000Z";

/// A part of the answer in this wire's terms.
enum Part {
    Thinking(String),
    Text(String),
    Call(Value),
}

/// Renders the answer.
pub(super) fn answer(request: &IncomingRequest, reply: &Reply, number: u64) -> RenderedAnswer {
    let parts = parts(request, reply, number);
    let end = FinalObject {
        model: request.model(),
        reason: done_reason(reply),
        counts: reply.token_counts(request.raw.len()),
    };
    let answer = if request.wants_stream() {
        AnswerBody::Stream(stream(&end, &parts, reply))
    } else {
        AnswerBody::Complete(end.object(&complete_message(&parts)))
    };
    RenderedAnswer { answer, issued: None }
}

fn parts(request: &IncomingRequest, reply: &Reply, number: u64) -> Vec<Part> {
    // A model that can think does so unless the request disables it.
    let shows_thinking = can_think(request.model()) && request.body.get("think") != Some(&Value::Bool(false));
    let mut calls = 0;
    let part = |(index, block): (usize, &Block)| match block {
        Block::Thinking { text } => shows_thinking.then(|| Part::Thinking(text.clone())),
        Block::Text { text } => Some(Part::Text(text.clone())),
        Block::Echo => Some(Part::Text(String::new())),
        // The server parses calls before it sends them, and never sends one that it cannot parse.
        Block::ToolUse { raw_input: Some(_), .. } | Block::RedactedThinking => None,
        Block::ToolUse { id, name, input, .. } => {
            let arguments = if input.is_null() { json!({}) } else { input.clone() };
            let id = id.clone().unwrap_or_else(|| format!("call_{number:016}{index:08}"));
            let function = json!({"index": calls, "name": name, "arguments": arguments});
            calls += 1;
            Some(Part::Call(json!({"id": id, "function": function})))
        }
    };
    reply.blocks.iter().enumerate().filter_map(part).collect()
}

fn stream(end: &FinalObject<'_>, parts: &[Part], reply: &Reply) -> Transcript {
    let mut writer = TranscriptWriter::default();
    let line = |message: Value| json!({"model": end.model, "created_at": CREATED_AT, "message": message, "done": false});
    for part in parts {
        match part {
            Part::Thinking(text) => {
                for thinking in split(text, reply.chunking) {
                    let message = json!({"role": "assistant", "content": "", "thinking": thinking});
                    writer.delta_line(&line(message));
                }
            }
            Part::Text(text) => {
                for content in split(text, reply.chunking) {
                    writer.delta_line(&line(json!({"role": "assistant", "content": content})));
                }
            }
            Part::Call(call) => {
                writer.delta_line(&line(json!({"role": "assistant", "content": "", "tool_calls": [call]})));
            }
        }
    }
    writer.finish(single_line(&end.object(&json!({"role": "assistant", "content": ""}))))
}

/// The message of an answer that is not streamed.
fn complete_message(parts: &[Part]) -> Value {
    let mut thinking = String::new();
    let mut content = String::new();
    let mut calls = Vec::new();
    for part in parts {
        match part {
            Part::Thinking(text) => thinking.push_str(text),
            Part::Text(text) => content.push_str(text),
            Part::Call(call) => calls.push(call.clone()),
        }
    }
    let mut message = json!({"role": "assistant", "content": content});
    if let Some(members) = message.as_object_mut() {
        if !thinking.is_empty() {
            members.insert("thinking".to_owned(), thinking.into());
        }
        if !calls.is_empty() {
            members.insert("tool_calls".to_owned(), calls.into());
        }
    }
    message
}

/// The last object of an answer.
struct FinalObject<'a> {
    model: &'a str,
    reason: &'static str,
    counts: TokenCounts,
}

impl FinalObject<'_> {
    /// Renders the object. Durations are in nanoseconds, and the prompt's count includes cached tokens.
    fn object(&self, message: &Value) -> Value {
        json!({
            "model": self.model, "created_at": CREATED_AT, "message": message, "done": true, "done_reason": self.reason,
            "total_duration": 2_000_000, "load_duration": 500_000,
            "prompt_eval_count": self.counts.input + self.counts.cache_read + self.counts.cache_write,
            "prompt_eval_duration": 500_000, "eval_count": self.counts.output, "eval_duration": 1_000_000,
        })
    }
}

fn done_reason(reply: &Reply) -> &'static str {
    match reply.stop_reason() {
        Stop::MaxTokens => "length",
        Stop::EndTurn | Stop::ToolUse | Stop::Refusal => "stop",
    }
}
