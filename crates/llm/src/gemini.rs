//! The Gemini protocol (<https://ai.google.dev/api/generate-content>).
//!
//! The vendor signs parts of an answer and requires each of them back unchanged and in its place. A block's
//! signature is the vendor's `thoughtSignature`, and signed parts are blocks of their own
//! (<https://ai.google.dev/gemini-api/docs/thought-signatures>).

use std::collections::VecDeque;

use api::content::MediaKind;
use reqwest::header::HeaderName;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::answer_tool::WithAnswerTool;
use super::block_builder::{BlockBuilder, TextKind, complete_tool_use, provider_call_id};
use super::classify;
use super::http::{
    Decoder, Endpoint, RawFinishReason, ReceivedBytes, RequestBody, TokenCount, call_provider, insert,
    missing_end_marker, none_if_malformed, parse_event,
};
use super::media::{self, MP3, OutgoingContent, PDF, gemini_media, is_blank};
use super::profile::{Effort, ModelProfile, Thinking, no_effort};
use super::{
    Answer, Block, ChatModel, Content, EventStream, FinishReason, Message, ModelError, Request, StreamEvent,
    TokenUsage, ToolDeclaration, ToolReply, ToolUse,
};

/// The substitute signature for a call that the model did not make itself, such as one of another model. It comes
/// from the vendor's page on signatures.
const SKIP_SIGNATURE_VALIDATION: &str = "skip_thought_signature_validator";

/// A model that speaks Gemini.
pub(super) struct Gemini {
    profile: ModelProfile,
    endpoint: Endpoint,
}

impl Gemini {
    /// Creates a model. `base` is the vendor's address or a substitute, in the form that the vendor's SDKs take:
    /// without `/v1beta`.
    pub(super) fn new(base: &str, profile: ModelProfile, key: Option<SecretString>) -> Self {
        let (base, model) = (base.trim_end_matches('/'), profile.model.as_str());
        // As in the vendor's SDKs, the model's name may include its collection.
        let collection =
            if model.starts_with("models/") || model.starts_with("tunedModels/") { "" } else { "models/" };
        let endpoint = Endpoint {
            url: format!("{base}/v1beta/{collection}{model}:streamGenerateContent?alt=sse"),
            key_header: HeaderName::from_static("x-goog-api-key"),
            key_prefix: "",
            key,
            headers: &[],
        };
        Self { profile, endpoint }
    }
}

impl ChatModel for Gemini {
    fn name(&self) -> &str {
        &self.profile.model
    }

    fn supports_media(&self, kind: MediaKind, media_type: &str) -> Result<(), String> {
        gemini_media(&self.profile).check(kind, media_type)
    }

    fn supports_effort(&self) -> Result<(), String> {
        match self.profile.thinking {
            Thinking::Budget(_) | Thinking::Adaptive(_) | Thinking::Effort(_) => Ok(()),
            Thinking::Off => Err(no_effort(&self.profile.model)),
        }
    }

    fn stream(&self, request: &Request<'_>) -> EventStream {
        let call = |request: &Request<'_>| {
            let body = request_body(&self.profile, request);
            call_provider(self.endpoint.clone(), request, &body, GeminiDecoder::default())
        };
        match WithAnswerTool::new(request).filter(|_| !takes_schema(&self.profile.model, request)) {
            Some(tool) => {
                let events = call(&tool.request(request));
                tool.into_text(events)
            }
            None => call(request),
        }
    }
}

fn request_body<'a>(profile: &ModelProfile, request: &Request<'a>) -> RequestBody<[Tool<'a>; 1]> {
    let mut config = json!({
        "maxOutputTokens": request.max_output.unwrap_or(profile.max_output).min(profile.max_output),
    });
    let thinking = profile.thinking_for(request.effort);
    if let Some(thinking) = thinking_config(&profile.model, thinking, request.thinking) {
        insert(&mut config, "thinkingConfig", thinking);
    }
    let native = request.output.filter(|_| takes_schema(&profile.model, request));
    if let Some(format) = native {
        insert(&mut config, "responseMimeType", json!("application/json"));
        insert(&mut config, "responseJsonSchema", json!(format.schema));
    }
    // Older models refuse a schema beside tools, even if none may be called.
    let declares_tools = native.is_none() || combines_schema_and_tools(&profile.model);
    let tools: &[ToolDeclaration] = if declares_tools { request.tools } else { &[] };
    let mut body = json!({
        "systemInstruction": {"parts": [{"text": request.system}]},
        "contents": contents(profile, request.messages),
        "generationConfig": config,
    });
    if !tools.is_empty() && !request.allow_tool_calls {
        insert(&mut body, "toolConfig", json!({"functionCallingConfig": {"mode": "NONE"}}));
    }
    let declaration = |ToolDeclaration { name, description, input_schema }: &'a ToolDeclaration| {
        FunctionDeclaration { name, description, parameters_json_schema: input_schema }
    };
    let function_declarations: Vec<_> = tools.iter().map(declaration).collect();
    let tools = (!function_declarations.is_empty()).then_some([Tool { function_declarations }]);
    RequestBody { fields: body, tools }
}

/// Whether a request sets its schema in the field for it (<https://ai.google.dev/gemini-api/docs/structured-output>).
fn takes_schema(model: &str, request: &Request<'_>) -> bool {
    request.tools.is_empty() || !request.allow_tool_calls || combines_schema_and_tools(model)
}

/// Whether a model takes a schema beside tools, as models since Gemini 3 do. Older ones refuse that: "Function calling
/// with a response mime type: 'application/json' is unsupported".
fn combines_schema_and_tools(model: &str) -> bool {
    requires_signatures(model)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tool<'a> {
    function_declarations: Vec<FunctionDeclaration<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FunctionDeclaration<'a> {
    name: &'a str,
    description: &'a str,
    /// The field `parameters` accepts only a subset of OpenAPI's schemas.
    parameters_json_schema: &'a RawValue,
}

/// The thinking configuration (<https://ai.google.dev/gemini-api/docs/thinking>). If the model is not to think, it
/// gets the smallest budget or level it accepts, because thoughts count against the output limit.
fn thinking_config(model: &str, thinking: Thinking, thinks: bool) -> Option<Value> {
    let mut config = match thinking {
        Thinking::Off => return None,
        Thinking::Budget(tokens) if thinks => json!({"thinkingBudget": tokens}),
        // Thinking cannot be disabled on the larger models.
        Thinking::Budget(_) if model.contains("pro") => json!({"thinkingBudget": 128}),
        Thinking::Budget(_) => json!({"thinkingBudget": 0}),
        Thinking::Effort(effort) | Thinking::Adaptive(effort) => {
            json!({"thinkingLevel": thinking_level(if thinks { effort } else { Effort::Low })})
        }
    };
    if thinks {
        insert(&mut config, "includeThoughts", json!(true));
    }
    Some(config)
}

/// The vendor's name of an effort. Its models document no level above `high`.
fn thinking_level(effort: Effort) -> &'static str {
    match effort {
        Effort::Low => "LOW",
        Effort::Medium => "MEDIUM",
        Effort::High | Effort::Xhigh | Effort::Max => "HIGH",
    }
}

/// Converts the conversation. Adjacent messages of the same role are merged: the vendor has refused requests whose
/// roles do not alternate.
fn contents(profile: &ModelProfile, messages: &[Message]) -> Vec<Value> {
    let model = profile.model.as_str();
    let mut merged: Vec<(&str, Vec<Value>)> = Vec::new();
    let mut calls: Vec<&ToolUse> = Vec::new();
    for message in messages {
        let (role, parts) = match message {
            Message::User { content } => {
                ("user", content.iter().filter_map(|content| content_part(profile, content)).collect())
            }
            Message::Assistant { model: author, blocks } => {
                calls = blocks.iter().filter_map(as_tool_use).collect();
                ("model", answer_parts(blocks, author == model, requires_signatures(model)))
            }
            Message::Results(replies) => ("user", result_parts(profile, replies, &calls)),
        };
        match merged.last_mut() {
            Some((previous_role, previous_parts)) if *previous_role == role => previous_parts.extend(parts),
            // The vendor refuses contents without parts.
            _ if parts.is_empty() => {}
            _ => merged.push((role, parts)),
        }
    }
    merged.into_iter().map(|(role, parts)| json!({"role": role, "parts": parts})).collect()
}

fn as_tool_use(block: &Block) -> Option<&ToolUse> {
    match block {
        Block::ToolUse(call) => Some(call),
        Block::Text { .. } | Block::Thinking { .. } | Block::RedactedThinking { .. } => None,
    }
}

/// Whether a model refuses unsigned calls, as models since Gemini 3 do. Every name that is not a known older model
/// counts as such, because some names, like `gemini-flash-latest`, refer to the newest model.
fn requires_signatures(model: &str) -> bool {
    !["gemini-1", "gemini-2", "gemma"].iter().any(|old| model.trim_start_matches("models/").starts_with(old))
}

/// Converts a user's content to a part.
fn content_part(profile: &ModelProfile, content: &Content) -> Option<Value> {
    let inline =
        |media_type: &str, base64: &str| json!({"inlineData": {"mimeType": media_type, "data": base64}});
    Some(match gemini_media(profile).outgoing(content)? {
        OutgoingContent::Text(text) => json!({"text": text}),
        OutgoingContent::PlainText { name, text } => json!({"text": media::titled_text(name, &text)}),
        OutgoingContent::Pdf { base64, .. } => inline(PDF, &base64),
        // The vendor's own name of the type.
        OutgoingContent::Audio { media_type: MP3, base64 } => inline("audio/mp3", &base64),
        OutgoingContent::Image { media_type, base64 } | OutgoingContent::Audio { media_type, base64 } => {
            inline(media_type, &base64)
        }
    })
}

/// Converts an answer to the parts that are sent back. Of another model's answer only texts and calls are sent.
fn answer_parts(blocks: &[Block], same_model: bool, needs_signature: bool) -> Vec<Value> {
    let mut parts: Vec<Value> = blocks.iter().filter_map(|block| answer_part(block, same_model)).collect();
    // The vendor checks the first call of each answer in the current turn. Earlier turns get the same signature,
    // so that the beginning of the conversation does not change.
    let first = parts.iter_mut().find(|part| part.get("functionCall").is_some());
    if let Some(first) = first.filter(|first| needs_signature && first.get("thoughtSignature").is_none()) {
        insert(first, "thoughtSignature", json!(SKIP_SIGNATURE_VALIDATION));
    }
    parts
}

fn answer_part(block: &Block, same_model: bool) -> Option<Value> {
    let (mut part, signature) = match block {
        // An empty part may carry a signature, and must then be sent back.
        Block::Text { text, signature } if is_blank(text) && !(same_model && signature.is_some()) => {
            return None;
        }
        Block::Text { text, signature } => (json!({"text": text}), signature),
        Block::Thinking { thinking, signature } if same_model => {
            (json!({"text": thinking, "thought": true}), signature)
        }
        Block::Thinking { .. } | Block::RedactedThinking { .. } => return None,
        Block::ToolUse(call) => {
            let mut sent = json!({"name": call.name, "args": call.input});
            if let Some(id) = provider_call_id(call) {
                insert(&mut sent, "id", json!(id));
            }
            (json!({"functionCall": sent}), &call.signature)
        }
    };
    if let Some(signature) = signature.as_ref().filter(|_| same_model) {
        insert(&mut part, "thoughtSignature", json!(signature));
    }
    Some(part)
}

/// The results, followed by the media that the user added.
fn result_parts(profile: &ModelProfile, replies: &[ToolReply], calls: &[&ToolUse]) -> Vec<Value> {
    let mut results = Vec::new();
    let mut added = Vec::new();
    for reply in replies {
        // A history without the call was repaired before this point, and the vendor would refuse it.
        let Some(call) = calls.iter().find(|call| call.provider_id == reply.provider_id) else { continue };
        let (result, media) = result_part(profile, reply, call);
        results.push(result);
        if !media.is_empty() {
            added.push(
                json!({"text": media::attachments_intro(provider_call_id(call).unwrap_or(&call.name))}),
            );
            added.extend(media);
        }
    }
    results.extend(added);
    results
}

/// A result, which the vendor matches by the tool's name, and the media that belong to it.
fn result_part(profile: &ModelProfile, reply: &ToolReply, call: &ToolUse) -> (Value, Vec<Value>) {
    let mut texts = Vec::from_iter(Some(reply.text.clone()).filter(|text| !is_blank(text)));
    let mut media = Vec::new();
    for mut remark in reply.remarks.iter().filter_map(|remark| content_part(profile, remark)) {
        match remark.get_mut("text").map(Value::take) {
            Some(Value::String(text)) => texts.push(text),
            _ => media.push(remark),
        }
    }
    let text = if texts.is_empty() { media::NO_OUTPUT.to_owned() } else { texts.join("\n\n") };
    // The vendor's own keys (google-genai, `types.py`, `FunctionResponse`).
    let key = if reply.is_error { "error" } else { "output" };
    let mut result = json!({"name": call.name, "response": {key: text}});
    if let Some(id) = provider_call_id(call) {
        insert(&mut result, "id", json!(id));
    }
    (json!({"functionResponse": result}), media)
}

/// A chunk of the answer. Unlisted fields and kinds of parts are ignored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Chunk {
    candidates: Option<Vec<Candidate>>,
    prompt_feedback: Option<PromptFeedback>,
    #[serde(default, deserialize_with = "none_if_malformed")]
    usage_metadata: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate {
    content: Option<CandidateContent>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct CandidateContent {
    parts: Option<Vec<CandidatePart>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CandidatePart {
    text: Option<String>,
    thought: Option<bool>,
    thought_signature: Option<String>,
    /// Boxed, because few parts have one and each part is moved around.
    function_call: Option<Box<FunctionCall>>,
}

#[derive(Deserialize)]
struct FunctionCall {
    id: Option<String>,
    name: String,
    args: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PromptFeedback {
    block_reason: Option<String>,
}

/// Counts are cumulative for the whole answer, and each may be absent.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Usage {
    prompt_token_count: TokenCount,
    cached_content_token_count: TokenCount,
    candidates_token_count: TokenCount,
    thoughts_token_count: TokenCount,
}

#[derive(Default)]
struct GeminiDecoder {
    blocks: BlockBuilder,
    usage: Usage,
    finish_reason: RawFinishReason,
    blocked: bool,
}

impl Decoder for GeminiDecoder {
    fn decode_event(&mut self, data: &str, events: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        let chunk: Chunk = parse_event(data)?;
        if let Some(error) = chunk.error {
            return Err(classify::classify_stream_error(&json!({"error": error})));
        }
        if let Some(usage) = chunk.usage_metadata {
            self.usage = self.usage.merged_with(usage);
        }
        self.blocked |= chunk.prompt_feedback.is_some_and(|feedback| feedback.block_reason.is_some());
        // Only one candidate is requested.
        if let Some(candidate) = chunk.candidates.into_iter().flatten().next() {
            for part in candidate.content.and_then(|content| content.parts).into_iter().flatten() {
                self.decode_part(part, events);
            }
            self.finish_reason.record(candidate.finish_reason);
        }
        Ok(())
    }

    /// Older models send a finish reason with each chunk, so only the end of the stream ends the answer.
    fn finish(&mut self, events: &mut VecDeque<StreamEvent>) -> Result<Answer, ModelError> {
        let stop = if self.blocked {
            FinishReason::Refusal
        } else {
            self.finish_reason.parse()?.ok_or_else(missing_end_marker)?
        };
        let blocks = self.blocks.finish(stop, events);
        Ok(Answer { blocks, usage: self.usage(), stop })
    }

    fn usage(&self) -> TokenUsage {
        self.usage.tokens()
    }

    fn received(&self) -> ReceivedBytes {
        self.blocks.received()
    }
}

impl GeminiDecoder {
    fn decode_part(&mut self, part: CandidatePart, events: &mut VecDeque<StreamEvent>) {
        if let Some(call) = part.function_call {
            let FunctionCall { id, name, args } = *call;
            return self.blocks.push_call(complete_tool_use(id, name, args, part.thought_signature), events);
        }
        let kind = if part.thought == Some(true) { TextKind::Thinking } else { TextKind::Text };
        self.blocks.append(kind, part.text.unwrap_or_default(), part.thought_signature, events);
    }
}

impl Usage {
    /// Merges these counts with those of a later chunk, which take precedence.
    fn merged_with(self, later: Self) -> Self {
        Self {
            prompt_token_count: later.prompt_token_count.or(self.prompt_token_count),
            cached_content_token_count: later.cached_content_token_count.or(self.cached_content_token_count),
            candidates_token_count: later.candidates_token_count.or(self.candidates_token_count),
            thoughts_token_count: later.thoughts_token_count.or(self.thoughts_token_count),
        }
    }

    fn tokens(self) -> TokenUsage {
        let reasoning = self.thoughts_token_count.tokens();
        TokenUsage {
            estimated: false,
            // Includes cached tokens.
            input: self.prompt_token_count.tokens(),
            // The vendor counts thoughts apart from the candidates.
            output: self.candidates_token_count.tokens().saturating_add(reasoning),
            cache_read: self.cached_content_token_count.tokens(),
            // The vendor's automatic caching does not charge for writes.
            cache_write: 0,
            reasoning,
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/gemini.rs"]
mod tests;

#[cfg(test)]
#[path = "../tests/unit/gemini/structured_output.rs"]
mod structured_output_tests;
