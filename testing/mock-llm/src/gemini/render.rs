//! Renders a reply as a `GenerateContentResponse` or as a stream of them
//! (<https://ai.google.dev/api/generate-content>). Calls are not split, and the last chunk has the finish reason.
//!
//! The first call of an answer has a signature. If there are no calls, an empty text in the last chunk has it
//! (<https://ai.google.dev/gemini-api/docs/thought-signatures>).

use serde_json::{Value, json};

use super::always_signs;
use super::node::field;
use crate::issued::{IssuedAnswer, IssuedBlock, IssuedPart, seal};
use crate::protocol::{AnswerBody, IncomingRequest, RenderedAnswer};
use crate::reply::{Block, Reply, Stop, TokenCounts};
use crate::split::split;
use crate::transcript::{Transcript, TranscriptWriter, single_event};

/// A part of the answer in this wire's terms.
enum Part {
    Thought(String),
    Text(String),
    Call { call: Value, signature: Option<String> },
}

/// Renders the answer.
pub(super) fn answer(request: &IncomingRequest, reply: &Reply, number: u64) -> RenderedAnswer {
    let parts = parts(request, reply, number);
    let calls = parts.iter().any(|part| matches!(part, Part::Call { .. }));
    let last_signature = (!calls && is_signing(request)).then(|| seal(number, reply.blocks.len(), "text"));
    let envelope = Envelope {
        model: request.model(),
        id: format!("{number:024}"),
        usage: usage(reply.token_counts(request.raw.len())),
    };
    let finish = finish_reason(reply);
    let answer = if request.wants_stream() {
        AnswerBody::Stream(stream(&envelope, &parts, last_signature.as_deref(), reply, finish))
    } else {
        let mut content: Vec<Value> = parts.iter().map(Part::to_json).collect();
        if let Some(signature) = &last_signature {
            sign_last_part(&mut content, signature);
        }
        AnswerBody::Complete(envelope.response(&content, Some(finish)))
    };
    RenderedAnswer { answer, issued: Some(issued(request, &parts, last_signature)) }
}

fn parts(request: &IncomingRequest, reply: &Reply, number: u64) -> Vec<Part> {
    let config = thinking_config(request);
    let shows_thoughts =
        config.and_then(|config| field(config, "includeThoughts")) == Some(&Value::Bool(true));
    let mut unsigned = is_signing(request);
    let part = |(index, block): (usize, &Block)| match block {
        Block::Thinking { text } => shows_thoughts.then(|| Part::Thought(text.clone())),
        Block::Text { text } => Some(Part::Text(text.clone())),
        Block::Echo => Some(Part::Text(String::new())),
        // The vendor parses calls before it sends them, and never sends one that it cannot parse.
        Block::ToolUse { raw_input: Some(_), .. } | Block::RedactedThinking => None,
        Block::ToolUse { id, name, input, .. } => {
            let args = if input.is_null() { json!({}) } else { input.clone() };
            let mut call = json!({"name": name, "args": args});
            let id = id
                .clone()
                .or_else(|| always_signs(request.model()).then(|| format!("call_{number:016}{index:08}")));
            if let (Some(id), Some(members)) = (id, call.as_object_mut()) {
                members.insert("id".to_owned(), id.into());
            }
            let signature = std::mem::take(&mut unsigned).then(|| seal(number, index, name));
            Some(Part::Call { call, signature })
        }
    };
    reply.blocks.iter().enumerate().filter_map(part).collect()
}

/// Whether the model thinks for this request, and so signs its answer.
fn is_signing(request: &IncomingRequest) -> bool {
    let config = thinking_config(request);
    let budget = config.and_then(|config| field(config, "thinkingBudget")).and_then(Value::as_i64);
    always_signs(request.model()) || (config.is_some() && budget != Some(0))
}

fn thinking_config(request: &IncomingRequest) -> Option<&Value> {
    field(field(&request.body, "generationConfig")?, "thinkingConfig")
}

fn stream(
    envelope: &Envelope<'_>,
    parts: &[Part],
    last_signature: Option<&str>,
    reply: &Reply,
    finish: &str,
) -> Transcript {
    let mut writer = TranscriptWriter::default();
    for part in parts {
        match part {
            Part::Thought(text) => {
                for text in split(text, reply.chunking) {
                    writer.delta(None, &envelope.response(&[thought(text)], None));
                }
            }
            Part::Text(text) => {
                for text in split(text, reply.chunking) {
                    writer.delta(None, &envelope.response(&[json!({"text": text})], None));
                }
            }
            Part::Call { .. } => writer.delta(None, &envelope.response(&[part.to_json()], None)),
        }
    }
    let mut last = vec![json!({"text": ""})];
    if let Some(signature) = last_signature {
        sign_last_part(&mut last, signature);
    }
    writer.finish(single_event(None, &envelope.response(&last, Some(finish))))
}

/// Adds a signature to the last part. If there is none, or if it is a thought, adds an empty text for it.
fn sign_last_part(parts: &mut Vec<Value>, signature: &str) {
    if parts.last().is_none_or(|last| last.get("thought").is_some()) {
        parts.push(json!({"text": ""}));
    }
    if let Some(members) = parts.last_mut().and_then(Value::as_object_mut) {
        members.insert("thoughtSignature".to_owned(), signature.into());
    }
}

/// The signed parts that the client must send back.
fn issued(request: &IncomingRequest, parts: &[Part], last_signature: Option<String>) -> IssuedAnswer {
    let calls = parts.iter().filter_map(|part| match part {
        Part::Call { call, signature: Some(seal) } => {
            Some(IssuedPart { seal: seal.clone(), call: Some(call.clone()) })
        }
        _ => None,
    });
    let text = last_signature.map(|seal| IssuedPart { seal, call: None });
    let blocks = calls.chain(text).map(IssuedBlock::Part).collect();
    IssuedAnswer { model: request.model().to_owned(), prefix: None, blocks }
}

impl Part {
    fn to_json(&self) -> Value {
        match self {
            Self::Thought(text) => thought(text),
            Self::Text(text) => json!({"text": text}),
            Self::Call { call, signature: None } => json!({"functionCall": call}),
            Self::Call { call, signature: Some(signature) } => {
                json!({"functionCall": call, "thoughtSignature": signature})
            }
        }
    }
}

fn thought(text: &str) -> Value {
    json!({"text": text, "thought": true})
}

/// The members that all responses share.
struct Envelope<'a> {
    model: &'a str,
    id: String,
    usage: Value,
}

impl Envelope<'_> {
    fn response(&self, parts: &[Value], finish_reason: Option<&str>) -> Value {
        let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": 0});
        if let (Some(reason), Some(members)) = (finish_reason, candidate.as_object_mut()) {
            members.insert("finishReason".to_owned(), reason.into());
        }
        json!({
            "candidates": [candidate], "usageMetadata": self.usage, "modelVersion": self.model, "responseId": self.id,
        })
    }
}

fn finish_reason(reply: &Reply) -> &'static str {
    let is_cut_call = |block: &Block| matches!(block, Block::ToolUse { raw_input: Some(_), .. });
    match reply.stop_reason() {
        Stop::MaxTokens => "MAX_TOKENS",
        Stop::Refusal => "SAFETY",
        Stop::EndTurn | Stop::ToolUse if reply.blocks.iter().any(is_cut_call) => "MALFORMED_FUNCTION_CALL",
        Stop::EndTurn | Stop::ToolUse => "STOP",
    }
}

/// The token counts in this wire's format: the prompt includes cached tokens, and the candidates do not include
/// thoughts.
fn usage(counts: TokenCounts) -> Value {
    let prompt = counts.input + counts.cache_read + counts.cache_write;
    let candidates = counts.output.saturating_sub(counts.reasoning);
    let mut usage = json!({
        "promptTokenCount": prompt,
        "candidatesTokenCount": candidates,
        "totalTokenCount": prompt + candidates + counts.reasoning,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt}],
    });
    let optional = [("thoughtsTokenCount", counts.reasoning), ("cachedContentTokenCount", counts.cache_read)];
    for (name, count) in optional.into_iter().filter(|(_, count)| *count > 0) {
        if let Some(members) = usage.as_object_mut() {
            members.insert(name.to_owned(), count.into());
        }
    }
    usage
}
