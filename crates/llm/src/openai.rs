//! The OpenAI Chat Completions protocol (<https://platform.openai.com/docs/api-reference/chat>).

mod content;
mod decoding;

use api::content::MediaKind;
use api::response_format::ResponseFormat;
use reqwest::header::AUTHORIZATION;
use secrecy::SecretString;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use self::decoding::OpenAiDecoder;
use super::answer_tool::{WithAnswerTool, forced_tool};
use super::http::{Endpoint, RequestBody, call_provider, insert};
use super::media::{self, MP3, OutgoingContent, PDF, is_blank, openai_media};
use super::profile::{Effort, ModelProfile, Thinking, no_effort};
use super::{Block, ChatModel, Content, EventStream, Message, Request, ToolDeclaration, ToolReply, ToolUse};

/// A model that speaks OpenAI Chat Completions.
pub(super) struct OpenAi {
    profile: ModelProfile,
    dialect: Dialect,
    endpoint: Endpoint,
}

/// The dialect of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    /// The vendor's own.
    OpenAi,
    /// The dialect of the many compatible servers, some of which refuse newer features.
    Compatible,
}

impl OpenAi {
    /// Creates a model. `base` is the vendor's address or a substitute, in the form that the vendor's SDKs take:
    /// with `/v1`.
    pub(super) fn new(base: &str, profile: ModelProfile, key: Option<SecretString>) -> Self {
        Self::with_dialect(Dialect::OpenAi, base, profile, key)
    }

    /// Creates a model on a server that is compatible with the vendor's; `base` as for [`Self::new`].
    pub(super) fn compatible(base: &str, profile: ModelProfile, key: Option<SecretString>) -> Self {
        Self::with_dialect(Dialect::Compatible, base, profile, key)
    }

    fn with_dialect(dialect: Dialect, base: &str, profile: ModelProfile, key: Option<SecretString>) -> Self {
        let endpoint = Endpoint {
            url: format!("{}/chat/completions", base.trim_end_matches('/')),
            key_header: AUTHORIZATION,
            key_prefix: "Bearer ",
            key,
            headers: &[],
        };
        Self { profile, dialect, endpoint }
    }
}

impl ChatModel for OpenAi {
    fn name(&self) -> &str {
        &self.profile.model
    }

    fn supports_media(&self, kind: MediaKind, media_type: &str) -> Result<(), String> {
        openai_media(&self.profile).check(kind, media_type)
    }

    fn supports_effort(&self) -> Result<(), String> {
        match self.profile.thinking {
            Thinking::Effort(_) | Thinking::Adaptive(_) => Ok(()),
            Thinking::Off | Thinking::Budget(_) => Err(no_effort(&self.profile.model)),
        }
    }

    fn stream(&self, request: &Request<'_>) -> EventStream {
        let call = |request: &Request<'_>| {
            let body = request_body(self.dialect, &self.profile, request);
            call_provider(self.endpoint.clone(), request, &body, OpenAiDecoder::default())
        };
        // Compatible servers differ in whether they take a schema, and whether they do beside tools.
        let is_native = self.dialect == Dialect::OpenAi;
        match WithAnswerTool::new(request).filter(|_| !is_native) {
            Some(tool) => {
                let events = call(&tool.request(request));
                tool.into_text(events)
            }
            None => call(request),
        }
    }
}

fn request_body<'a>(
    dialect: Dialect,
    profile: &ModelProfile,
    request: &Request<'a>,
) -> RequestBody<Vec<Tool<'a>>> {
    let mut messages = vec![json!({"role": "system", "content": request.system})];
    messages.extend(request.messages.iter().flat_map(|message| to_messages(profile, message)));
    let mut body = json!({
        "model": profile.model,
        "stream": true,
        "stream_options": {"include_usage": true},
        "messages": messages,
    });
    let limited = |tokens: u64| json!(tokens.min(profile.max_output));
    match (dialect, request.max_output) {
        (Dialect::OpenAi, max_output) => {
            insert(&mut body, "max_completion_tokens", limited(max_output.unwrap_or(profile.max_output)));
            insert(&mut body, "prompt_cache_key", json!(cache_key(request.cache_key)));
        }
        (Dialect::Compatible, Some(max_output)) => insert(&mut body, "max_tokens", limited(max_output)),
        // Local servers refuse a limit that does not fit into the window beside the prompt, and know their own.
        (Dialect::Compatible, None) => {}
    }
    match (dialect, request.output) {
        (Dialect::OpenAi, Some(format)) => insert(&mut body, "response_format", response_format(format)),
        (Dialect::Compatible, Some(_)) | (_, None) => {}
    }
    if !request.tools.is_empty() && !request.allow_tool_calls {
        let forced = forced_tool(request).filter(|_| dialect == Dialect::Compatible);
        let choice = forced.map(|name| json!({"type": "function", "function": {"name": name}}));
        insert(&mut body, "tool_choice", choice.unwrap_or_else(|| json!("none")));
    }
    // An auxiliary call is to be answered without long reasoning.
    let thinking = profile.thinking_for(request.effort);
    let effort = match (thinking, request.thinking, request.allow_tool_calls) {
        (Thinking::Effort(effort) | Thinking::Adaptive(effort), true, _) => Some(effort),
        (Thinking::Effort(_) | Thinking::Adaptive(_), false, false) => Some(Effort::Low),
        _ => None,
    };
    if let Some(effort) = effort {
        insert(&mut body, "reasoning_effort", json!(effort));
    }
    RequestBody { fields: body, tools: Tool::from_declarations(request.tools) }
}

/// The form of the answer (<https://platform.openai.com/docs/guides/structured-outputs>).
fn response_format(format: &ResponseFormat) -> Value {
    let ResponseFormat { name, schema, strict, .. } = format;
    let json_schema = json!({"name": name, "schema": schema, "strict": strict});
    json!({"type": "json_schema", "json_schema": json_schema})
}

/// Shortens `key` to the vendor's limit: "Expected a string with maximum length 64".
pub(super) fn cache_key(key: &str) -> String {
    const MAX: usize = 64;
    if key.chars().count() <= MAX {
        return key.to_owned();
    }
    hex::encode(Sha256::digest(key))
}

/// A tool declaration in the form of this protocol and of Ollama's.
#[derive(Serialize)]
#[serde(tag = "type", rename = "function")]
pub(super) struct Tool<'a> {
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
}

impl<'a> Tool<'a> {
    /// Converts the declarations; `None` if there are none.
    pub(super) fn from_declarations(tools: &'a [ToolDeclaration]) -> Option<Vec<Self>> {
        let function = |ToolDeclaration { name, description, input_schema }: &'a ToolDeclaration| Function {
            name,
            description,
            parameters: input_schema,
        };
        (!tools.is_empty()).then(|| tools.iter().map(|tool| Self { function: function(tool) }).collect())
    }
}

fn to_messages(profile: &ModelProfile, message: &Message) -> Vec<Value> {
    match message {
        Message::User { content } => {
            let parts = content.iter().filter_map(|content| ContentPart::from_content(profile, content));
            user_message(parts.collect()).into_iter().collect()
        }
        Message::Assistant { model: author, blocks } => {
            assistant_message(blocks, *author == profile.model).into_iter().collect()
        }
        Message::Results(replies) => tool_messages(profile, replies),
    }
}

/// A user's content, in the two kinds that this protocol knows.
enum ContentPart {
    Text(String),
    /// A message part that is not text. Only user messages can contain it.
    Media(Value),
}

impl ContentPart {
    fn from_content(profile: &ModelProfile, content: &Content) -> Option<Self> {
        Some(match openai_media(profile).outgoing(content)? {
            OutgoingContent::Text(text) | OutgoingContent::PlainText { name: None, text } => {
                Self::Text(text.into_owned())
            }
            OutgoingContent::PlainText { name: Some(name), text } => {
                Self::Text(format!("Document {name}:\n\n{text}"))
            }
            OutgoingContent::Image { media_type, base64 } => {
                let url = data_url(media_type, &base64);
                Self::Media(json!({"type": "image_url", "image_url": {"url": url}}))
            }
            OutgoingContent::Pdf { name, base64 } => {
                let file = json!({
                    "filename": name.unwrap_or("document.pdf"), "file_data": data_url(PDF, &base64),
                });
                Self::Media(json!({"type": "file", "file": file}))
            }
            OutgoingContent::Audio { media_type, base64 } => {
                let format = if media_type == MP3 { "mp3" } else { "wav" };
                let audio = json!({"data": base64, "format": format});
                Self::Media(json!({"type": "input_audio", "input_audio": audio}))
            }
        })
    }

    fn into_json(self) -> Value {
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::Media(part) => part,
        }
    }
}

fn data_url(media_type: &str, base64: &str) -> String {
    format!("data:{media_type};base64,{base64}")
}

/// A user's message; `None` if it is empty.
fn user_message(parts: Vec<ContentPart>) -> Option<Value> {
    let content = match parts.as_slice() {
        [] => return None,
        // The only form that all compatible servers accept.
        [ContentPart::Text(text)] => json!(text),
        _ => parts.into_iter().map(ContentPart::into_json).collect(),
    };
    Some(json!({"role": "user", "content": content}))
}

/// The results, followed by the media that the user added: a result can contain only text, and nothing may stand
/// between two results.
fn tool_messages(profile: &ModelProfile, replies: &[ToolReply]) -> Vec<Value> {
    let mut results = Vec::new();
    let mut added = Vec::new();
    for reply in replies {
        let (result, media) = tool_message(profile, reply);
        results.push(result);
        if !media.is_empty() {
            added.push(ContentPart::Text(media::attachments_intro(&reply.provider_id)));
            added.extend(media);
        }
    }
    results.extend(user_message(added));
    results
}

fn tool_message(profile: &ModelProfile, reply: &ToolReply) -> (Value, Vec<ContentPart>) {
    let mut texts = Vec::from_iter(Some(reply.text.clone()).filter(|text| !is_blank(text)));
    let mut media = Vec::new();
    for remark in reply.remarks.iter().filter_map(|remark| ContentPart::from_content(profile, remark)) {
        match remark {
            ContentPart::Text(text) => texts.push(text),
            ContentPart::Media(_) => media.push(remark),
        }
    }
    let content = if texts.is_empty() { media::NO_OUTPUT.to_owned() } else { texts.join("\n\n") };
    (json!({"role": "tool", "tool_call_id": reply.provider_id, "content": content}), media)
}

/// The protocol has one text and one list of calls per message. An answer without either is not sent.
fn assistant_message(blocks: &[Block], same_model: bool) -> Option<Value> {
    let mut message = json!({"role": "assistant"});
    let mut text = String::new();
    let (mut thoughts, mut calls) = (Vec::new(), Vec::new());
    for block in blocks {
        match block {
            Block::Text { text: more, .. } => text.push_str(more),
            Block::ToolUse(call) => calls.push(tool_call(call, same_model)),
            Block::Thinking { thinking, signature: Some(signature) } if same_model => {
                if let Some(thought) = content::thinking_chunk(thinking, signature) {
                    thoughts.push(thought);
                } else if let Some((field, reasoning)) = reasoning_field(thinking, signature) {
                    insert(&mut message, field, reasoning);
                }
            }
            Block::Thinking { .. } | Block::RedactedThinking { .. } => {}
        }
    }
    let text = Some(text.as_str()).filter(|text| !is_blank(text));
    if text.is_none() && calls.is_empty() {
        return None;
    }
    if let Some(content) = content::to_request_content(thoughts, text) {
        insert(&mut message, CONTENT_FIELD, content);
    }
    if !calls.is_empty() {
        insert(&mut message, "tool_calls", json!(calls));
    }
    Some(message)
}

fn tool_call(call: &ToolUse, same_model: bool) -> Value {
    let function = json!({"name": call.name, "arguments": call.input.to_string()});
    let mut sent = json!({"id": call.provider_id, "type": "function", "function": function});
    if let Some(signature) = call.signature.as_deref().filter(|_| same_model)
        && let Ok(extra @ Value::Object(_)) = serde_json::from_str(signature)
    {
        insert(&mut sent, EXTRA_CONTENT_FIELD, extra);
    }
    sent
}

/// The field in which Gemini puts the signatures of its calls when it speaks this protocol
/// (<https://ai.google.dev/gemini-api/docs/thought-signatures>). Stored unchanged.
const EXTRA_CONTENT_FIELD: &str = "extra_content";
/// The field in which `DeepSeek` and many others stream reasoning, and in which `DeepSeek` requires it back with a
/// turn's calls (<https://api-docs.deepseek.com/guides/thinking_mode>).
const REASONING_CONTENT_FIELD: &str = "reasoning_content";
/// The field in which `OpenRouter` streams reasoning, in parts that it requires back
/// (<https://openrouter.ai/docs/use-cases/reasoning-tokens>). Stored unchanged.
const REASONING_DETAILS_FIELD: &str = "reasoning_details";

/// The field in which Mistral streams reasoning and accepts it back: see [`content`].
const CONTENT_FIELD: &str = "content";

/// The field in which reasoning is sent back. The signature holds that field's value or, if that was just the
/// reasoning text, the field's name.
fn reasoning_field(thinking: &str, signature: &str) -> Option<(&'static str, Value)> {
    if signature == REASONING_CONTENT_FIELD {
        return Some((REASONING_CONTENT_FIELD, json!(thinking)));
    }
    let details = serde_json::from_str(signature).ok().filter(Value::is_array)?;
    Some((REASONING_DETAILS_FIELD, details))
}

#[cfg(test)]
#[path = "../tests/unit/openai.rs"]
mod tests;
