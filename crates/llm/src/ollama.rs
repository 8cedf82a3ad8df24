//! The Ollama protocol (<https://docs.ollama.com/api/chat>).

use std::collections::VecDeque;

use api::content::MediaKind;
use reqwest::header::AUTHORIZATION;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer_tool::WithAnswerTool;
use super::block_builder::{BlockBuilder, TextKind, complete_tool_use, provider_call_id};
use super::classify;
use super::http::{
    Decoder, Endpoint, Framing, ReceivedBytes, RequestBody, TokenCount, call_provider, insert, parse_event,
};
use super::media::{self, OLLAMA_MEDIA, OutgoingContent, is_blank};
use super::openai::Tool;
use super::profile::{Effort, ModelProfile, Thinking, no_effort};
use super::{
    Answer, Block, ChatModel, Content, EventStream, FinishReason, Message, ModelError, Request, StreamEvent,
    TokenUsage, ToolReply, ToolUse,
};

/// A model that speaks Ollama.
pub(super) struct Ollama {
    profile: ModelProfile,
    endpoint: Endpoint,
}

impl Ollama {
    /// Creates a model. `base` is the server's address, in the form that the vendor's SDKs take: without `/api`. A
    /// self-hosted server needs no key.
    pub(super) fn new(base: &str, profile: ModelProfile, key: Option<SecretString>) -> Self {
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

    fn supports_media(&self, kind: MediaKind, media_type: &str) -> Result<(), String> {
        OLLAMA_MEDIA.check(kind, media_type)
    }

    fn supports_effort(&self) -> Result<(), String> {
        match self.profile.thinking {
            Thinking::Effort(_) => Ok(()),
            // Such models only think or do not.
            Thinking::Off | Thinking::Budget(_) | Thinking::Adaptive(_) => {
                Err(no_effort(&self.profile.model))
            }
        }
    }

    fn stream(&self, request: &Request<'_>) -> EventStream {
        let call = |request: &Request<'_>| {
            let body = request_body(&self.profile, request);
            call_provider(self.endpoint.clone(), request, &body, OllamaDecoder::default())
        };
        match WithAnswerTool::new(request).filter(|_| !takes_schema(request)) {
            Some(tool) => {
                let events = call(&tool.request(request));
                tool.into_text(events)
            }
            None => call(request),
        }
    }
}

fn request_body<'a>(profile: &ModelProfile, request: &Request<'a>) -> RequestBody<Vec<Tool<'a>>> {
    let mut body = json!({
        "model": profile.model,
        "stream": true,
        "messages": messages(profile, request),
        "options": {
            // The server's default window is small, regardless of the model's.
            "num_ctx": profile.context_window,
            "num_predict": request.max_output.unwrap_or(profile.max_output).min(profile.max_output),
        },
        // Otherwise the server truncates a conversation that is too long, and answers as if nothing were missing
        // (<https://github.com/ollama/ollama/pull/17944>).
        "truncate": false,
        "shift": false,
    });
    if let Some(think) = think_value(profile.thinking_for(request.effort), request.thinking) {
        insert(&mut body, "think", think);
    }
    if let Some(format) = request.output.filter(|_| takes_schema(request)) {
        insert(&mut body, "format", json!(format.schema));
    }
    // The protocol cannot forbid calls other than by not declaring the tools.
    let tools = Tool::from_declarations(request.tools).filter(|_| request.allow_tool_calls);
    RequestBody { fields: body, tools }
}

/// Whether a request sets its schema in the field for it (<https://docs.ollama.com/capabilities/structured-outputs>).
/// The server would hold the model to the schema from the first token on, so that it could call no tool.
fn takes_schema(request: &Request<'_>) -> bool {
    request.tools.is_empty() || !request.allow_tool_calls
}

/// The thinking option (<https://docs.ollama.com/capabilities/thinking>). It is omitted for models that cannot
/// think: the server would refuse the request.
fn think_value(thinking: Thinking, thinks: bool) -> Option<Value> {
    match thinking {
        Thinking::Off => None,
        Thinking::Effort(effort) if thinks => Some(json!(think_level(effort))),
        Thinking::Effort(_) | Thinking::Budget(_) | Thinking::Adaptive(_) => Some(json!(thinks)),
    }
}

/// The server's name of an effort.
fn think_level(effort: Effort) -> &'static str {
    match effort {
        Effort::Low => "low",
        Effort::Medium => "medium",
        Effort::High => "high",
        Effort::Xhigh | Effort::Max => "max",
    }
}

fn messages(profile: &ModelProfile, request: &Request<'_>) -> Vec<Value> {
    let mut sent = vec![json!({"role": "system", "content": request.system})];
    let mut calls: Vec<&ToolUse> = Vec::new();
    for message in request.messages {
        match message {
            Message::User { content } => {
                sent.extend(user_message(content.iter().filter_map(ContentPart::from_content).collect()));
            }
            Message::Assistant { model, blocks } => {
                let answer = assistant_message(blocks, *model == profile.model);
                calls = answer.calls;
                sent.extend(answer.message);
            }
            Message::Results(replies) => sent.extend(tool_messages(replies, &calls)),
        }
    }
    sent
}

/// A user's content, in the two kinds that this protocol knows.
enum ContentPart {
    Text(String),
    /// An image in base64.
    Image(String),
}

impl ContentPart {
    fn from_content(content: &Content) -> Option<Self> {
        Some(match OLLAMA_MEDIA.outgoing(content)? {
            OutgoingContent::Text(text) => Self::Text(text.into_owned()),
            OutgoingContent::PlainText { name, text } => Self::Text(media::titled_text(name, &text)),
            OutgoingContent::Image { base64, .. } => Self::Image(base64),
            // Not supported, so it was replaced by a text before this point.
            OutgoingContent::Pdf { .. } | OutgoingContent::Audio { .. } => return None,
        })
    }
}

/// A user's message: its texts with its images beside them; `None` if it is empty.
fn user_message(parts: Vec<ContentPart>) -> Option<Value> {
    if parts.is_empty() {
        return None;
    }
    let mut texts = Vec::new();
    let mut images = Vec::new();
    for part in parts {
        match part {
            ContentPart::Text(text) => texts.push(text),
            ContentPart::Image(base64) => images.push(base64),
        }
    }
    let mut message = json!({"role": "user", "content": texts.join("\n\n")});
    if !images.is_empty() {
        insert(&mut message, "images", json!(images));
    }
    Some(message)
}

/// An answer as it is sent back, and the calls that it makes.
struct AssistantMessage<'a> {
    message: Option<Value>,
    calls: Vec<&'a ToolUse>,
}

/// The protocol has one reasoning text, one text and one list of calls per message. An answer without any of these
/// is not sent, and neither is another model's reasoning.
fn assistant_message(blocks: &[Block], same_model: bool) -> AssistantMessage<'_> {
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
        return AssistantMessage { message: None, calls };
    }
    let mut message = json!({"role": "assistant", "content": text});
    if !thinking.is_empty() {
        insert(&mut message, "thinking", json!(thinking));
    }
    if !calls.is_empty() {
        insert(&mut message, "tool_calls", calls.iter().copied().map(tool_call).collect());
    }
    AssistantMessage { message: Some(message), calls }
}

fn tool_call(call: &ToolUse) -> Value {
    let mut value = json!({"function": {"name": call.name, "arguments": call.input}});
    if let Some(id) = provider_call_id(call) {
        insert(&mut value, "id", json!(id));
    }
    value
}

/// The results, followed by the images that the user added.
fn tool_messages(replies: &[ToolReply], calls: &[&ToolUse]) -> Vec<Value> {
    let mut results = Vec::new();
    let mut added = Vec::new();
    for reply in replies {
        // A history without the call was repaired before this point.
        let Some(call) = calls.iter().find(|call| call.provider_id == reply.provider_id) else { continue };
        let (result, images) = tool_message(reply, call);
        results.push(result);
        if !images.is_empty() {
            added.push(ContentPart::Text(media::attachments_intro(&call.name)));
            added.extend(images);
        }
    }
    results.extend(user_message(added));
    results
}

/// A result, which most models match by its tool and position, and the images that belong to it.
fn tool_message(reply: &ToolReply, call: &ToolUse) -> (Value, Vec<ContentPart>) {
    let mut texts = Vec::from_iter(Some(reply.text.clone()).filter(|text| !is_blank(text)));
    let mut images = Vec::new();
    for remark in reply.remarks.iter().filter_map(ContentPart::from_content) {
        match remark {
            ContentPart::Text(text) => texts.push(text),
            ContentPart::Image(_) => images.push(remark),
        }
    }
    let content = if texts.is_empty() { media::NO_OUTPUT.to_owned() } else { texts.join("\n\n") };
    let mut result = json!({"role": "tool", "tool_name": call.name, "content": content});
    if let Some(id) = provider_call_id(call) {
        insert(&mut result, "tool_call_id", json!(id));
    }
    (result, images)
}

/// A line of the answer. Unlisted fields are ignored.
#[derive(Deserialize)]
struct Chunk {
    message: Option<MessageDelta>,
    done: Option<bool>,
    done_reason: Option<String>,
    #[serde(default)]
    prompt_eval_count: TokenCount,
    #[serde(default)]
    eval_count: TokenCount,
    /// A text; some servers that imitate the vendor's send an object.
    error: Option<Value>,
}

#[derive(Default, Deserialize)]
struct MessageDelta {
    thinking: Option<String>,
    content: Option<String>,
    /// Each call arrives complete.
    tool_calls: Option<Vec<ToolCall>>,
}

#[derive(Deserialize)]
struct ToolCall {
    /// Absent from older servers.
    id: Option<String>,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    arguments: Option<Value>,
}

#[derive(Default)]
struct OllamaDecoder {
    blocks: BlockBuilder,
    usage: TokenUsage,
}

impl Decoder for OllamaDecoder {
    const FRAMING: Framing = Framing::Ndjson;

    fn decode_event(&mut self, data: &str, events: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        let chunk: Chunk = parse_event(data)?;
        if let Some(error) = chunk.error {
            return Err(classify::classify_stream_error(&json!({"error": error})));
        }
        let MessageDelta { thinking, content, tool_calls } = chunk.message.unwrap_or_default();
        self.blocks.append(TextKind::Thinking, thinking.unwrap_or_default(), None, events);
        self.blocks.append(TextKind::Text, content.unwrap_or_default(), None, events);
        for ToolCall { id, function } in tool_calls.into_iter().flatten() {
            self.blocks.push_call(complete_tool_use(id, function.name, function.arguments, None), events);
        }
        if chunk.done == Some(true) {
            let (input, output) = (chunk.prompt_eval_count.tokens(), chunk.eval_count.tokens());
            self.usage = TokenUsage { input, output, ..TokenUsage::default() };
            let stop = match chunk.done_reason.as_deref() {
                Some("length") => FinishReason::Length,
                _ => FinishReason::Done,
            };
            let blocks = self.blocks.finish(stop, events);
            events.push_back(StreamEvent::Done(Answer { blocks, usage: self.usage, stop }));
        }
        Ok(())
    }

    fn usage(&self) -> TokenUsage {
        self.usage
    }

    fn received(&self) -> ReceivedBytes {
        self.blocks.received()
    }
}

#[cfg(test)]
#[path = "../tests/unit/ollama.rs"]
mod tests;
