//! The Anthropic Messages protocol (<https://docs.anthropic.com/en/api/messages>).

mod decoding;
mod prompt_cache;

use std::borrow::Cow;

use api::content::MediaKind;
use api::response_format::ResponseFormat;
use reqwest::header::HeaderName;
use secrecy::SecretString;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use self::decoding::AnthropicDecoder;
use super::answer_tool::{WithAnswerTool, forced_tool};
use super::http::{Endpoint, RequestBody, call_provider, insert};
use super::media::{self, OutgoingContent, PDF, PLAIN_TEXT, is_blank};
use super::profile::{ModelProfile, Thinking, no_effort};
use super::{Block, ChatModel, Content, EventStream, Message, Request, ToolDeclaration, ToolReply, ToolUse};

/// The minimum thinking budget, which must also be less than `max_tokens`
/// (<https://platform.claude.com/docs/en/build-with-claude/extended-thinking>).
const MIN_THINKING_TOKENS: u64 = 1_024;
/// The tokens that a thinking budget must leave for the answer.
const MIN_ANSWER_TOKENS: u64 = 1_024;

/// A model that speaks Anthropic Messages.
pub(super) struct Anthropic {
    profile: ModelProfile,
    endpoint: Endpoint,
}

impl Anthropic {
    /// Creates a model. `base` is the vendor's address or a substitute, in the form that the vendor's SDKs take:
    /// without `/v1`.
    pub(super) fn new(base: &str, profile: ModelProfile, key: Option<SecretString>) -> Self {
        let endpoint = Endpoint {
            url: format!("{}/v1/messages", base.trim_end_matches('/')),
            key_header: HeaderName::from_static("x-api-key"),
            key_prefix: "",
            key,
            headers: &[("anthropic-version", "2023-06-01")],
        };
        Self { profile, endpoint }
    }
}

impl ChatModel for Anthropic {
    fn name(&self) -> &str {
        &self.profile.model
    }

    fn supports_media(&self, kind: MediaKind, media_type: &str) -> Result<(), String> {
        media::check_common_media(kind, media_type)
    }

    fn supports_effort(&self) -> Result<(), String> {
        match self.profile.thinking {
            Thinking::Budget(_) | Thinking::Adaptive(_) => Ok(()),
            Thinking::Off | Thinking::Effort(_) => Err(no_effort(&self.profile.model)),
        }
    }

    fn stream(&self, request: &Request<'_>) -> EventStream {
        let call = |request: &Request<'_>| {
            let body = request_body(&self.profile, request);
            call_provider(self.endpoint.clone(), request, &body, AnthropicDecoder::default())
        };
        match WithAnswerTool::new(request).filter(|_| enforced_format(request).is_none()) {
            Some(tool) => {
                let events = call(&tool.request(request));
                tool.into_text(events)
            }
            None => call(request),
        }
    }
}

fn request_body<'a>(profile: &ModelProfile, request: &Request<'a>) -> RequestBody<Vec<Tool<'a>>> {
    let max_tokens = request.max_output.unwrap_or(profile.max_output).min(profile.max_output);
    let mut messages = messages(&profile.model, request.messages);
    let enforced = enforced_format(request);
    let forced = forced_tool(request).filter(|_| enforced.is_none());
    // A model that must call a tool cannot think before.
    let thinks = request.thinking && can_think(&messages) && forced.is_none();
    prompt_cache::set_breakpoints(&mut messages);
    let mut body = json!({
        "model": profile.model, "max_tokens": max_tokens, "stream": true, "messages": messages,
    });
    let tool = |ToolDeclaration { name, description, input_schema }: &'a ToolDeclaration| Tool {
        name,
        description,
        input_schema,
        cache_control: None,
    };
    let mut tools: Vec<Tool<'_>> = request.tools.iter().map(tool).collect();
    // The system prompt comes after the tools, so a cache breakpoint on it covers both.
    if !is_blank(request.system) {
        let mut system = text_block(request.system);
        prompt_cache::set_breakpoint(&mut system);
        insert(&mut body, "system", json!([system]));
    } else if let Some(last) = tools.last_mut() {
        last.cache_control = Some(prompt_cache::cache_control());
    }
    if !tools.is_empty() && !request.allow_tool_calls {
        // Apart from `auto` the only choice that is compatible with thinking
        // (<https://platform.claude.com/docs/en/build-with-claude/extended-thinking>).
        let choice = forced.map(|name| json!({"type": "tool", "name": name}));
        insert(&mut body, "tool_choice", choice.unwrap_or_else(|| json!({"type": "none"})));
    }
    if thinks {
        set_thinking(&mut body, profile.thinking_for(request.effort), max_tokens);
    }
    if let Some(format) = enforced {
        set_output_config(&mut body, "format", json!({"type": "json_schema", "schema": format.schema}));
    }
    RequestBody { fields: body, tools: (!tools.is_empty()).then_some(tools) }
}

#[derive(Serialize)]
struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<Value>,
}

/// The form that the provider is to enforce. It only takes schemas within narrow limits
/// (<https://platform.claude.com/docs/en/build-with-claude/structured-outputs>).
fn enforced_format<'a>(request: &Request<'a>) -> Option<&'a ResponseFormat> {
    request.output.filter(|format| format.strict)
}

/// Sets a field of the object that configures the output.
fn set_output_config(body: &mut Value, field: &str, value: Value) {
    let mut config = body.get("output_config").cloned().unwrap_or_else(|| json!({}));
    insert(&mut config, field, value);
    insert(body, "output_config", config);
}

/// Enables thinking if the output limit leaves room for it.
fn set_thinking(body: &mut Value, thinking: Thinking, max_tokens: u64) {
    match thinking {
        Thinking::Budget(tokens) => {
            let tokens = tokens.max(MIN_THINKING_TOKENS).min(max_tokens.saturating_sub(MIN_ANSWER_TOKENS));
            if tokens >= MIN_THINKING_TOKENS {
                insert(body, "thinking", json!({"type": "enabled", "budget_tokens": tokens}));
            }
        }
        Thinking::Adaptive(effort) => {
            // Some models return no thinking unless a display mode is requested
            // (<https://platform.claude.com/docs/en/build-with-claude/adaptive-thinking>).
            insert(body, "thinking", json!({"type": "adaptive", "display": "summarized"}));
            set_output_config(body, "effort", json!(effort));
        }
        Thinking::Off | Thinking::Effort(_) => {}
    }
}

fn messages(model: &str, messages: &[Message]) -> Vec<Value> {
    let message = |message: &Message| {
        let (role, content): (_, Vec<Value>) = match message {
            Message::User { content: contents } => {
                ("user", contents.iter().filter_map(content_block).collect())
            }
            Message::Assistant { model: author, blocks } => {
                ("assistant", blocks.iter().filter_map(|each| answer_block(each, author == model)).collect())
            }
            Message::Results(replies) => ("user", tool_results(replies)),
        };
        // The provider refuses an empty message, such as an answer that consists of another model's reasoning
        // only. It treats the two user messages around it as one.
        (!content.is_empty()).then(|| json!({"role": role, "content": content}))
    };
    messages.iter().filter_map(message).collect()
}

/// Whether thinking can be enabled. It cannot if the calls whose results are sent come from answers without their
/// thinking, such as those of another model: the provider would refuse the request.
fn can_think(messages: &[Value]) -> bool {
    let is_user = |message: &Value| message["role"] == "user";
    let has = |message: &Value, kind: &str| block_types(message).any(|each| each == kind);
    let is_prompt = |message: &Value| is_user(message) && !has(message, "tool_result");
    let may_begin = |begin: usize| {
        messages.get(begin).is_none_or(|answer| {
            !has(answer, "tool_use")
                || matches!(block_types(answer).next(), Some("thinking" | "redacted_thinking"))
        })
    };
    // A text message after results begins a round of answers in which each message counts by itself. Where
    // consecutive user messages are merged, it belongs to the results, and the round began earlier. Both readings
    // must be valid.
    let last_prompt = messages.iter().rposition(is_prompt);
    let merged_prompt = messages.iter().enumerate().rev().find_map(|(at, message)| {
        let mut run = messages.iter().take(at + 1).rev().take_while(|message| is_user(message));
        (is_prompt(message) && run.all(is_prompt)).then_some(at)
    });
    [last_prompt, merged_prompt].into_iter().all(|prompt| may_begin(prompt.map_or(0, |at| at + 1)))
}

/// The types of a message's blocks.
fn block_types(message: &Value) -> impl Iterator<Item = &str> {
    message["content"].as_array().into_iter().flatten().filter_map(|block| block["type"].as_str())
}

/// Converts a user's content to a block.
fn content_block(content: &Content) -> Option<Value> {
    Some(match OutgoingContent::from_content(content)? {
        OutgoingContent::Text(text) => text_block(&text),
        OutgoingContent::Image { media_type, base64 } => {
            json!({"type": "image", "source": source("base64", media_type, &base64)})
        }
        OutgoingContent::Pdf { name, base64 } => document_block(name, &source("base64", PDF, &base64)),
        OutgoingContent::PlainText { name, text } => document_block(name, &source("text", PLAIN_TEXT, &text)),
        // Not supported, so it was replaced by a text before this point.
        OutgoingContent::Audio { .. } => return None,
    })
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn source(kind: &str, media_type: &str, data: &str) -> Value {
    json!({"type": kind, "media_type": media_type, "data": data})
}

fn document_block(name: Option<&str>, source: &Value) -> Value {
    let mut document = json!({"type": "document", "source": source});
    if let Some(name) = name {
        insert(&mut document, "title", json!(name));
    }
    document
}

/// All results come first, or the provider does not find them.
fn tool_results(replies: &[ToolReply]) -> Vec<Value> {
    let (mut results, following): (Vec<Value>, Vec<Vec<Value>>) = replies.iter().map(tool_result).unzip();
    results.extend(following.into_iter().flatten());
    results
}

/// A call's result block, and the blocks that must stand beside it: the result of a failed call may contain only
/// text.
fn tool_result(reply: &ToolReply) -> (Value, Vec<Value>) {
    let id = sanitize_call_id(&reply.provider_id);
    let fits_in_result = |block: &Value| !reply.is_error || block["type"] == "text";
    let (remarks, mut following): (Vec<Value>, Vec<Value>) =
        reply.remarks.iter().filter_map(content_block).partition(fits_in_result);
    if !following.is_empty() {
        following.insert(0, text_block(&media::attachments_intro(&id)));
    }
    let text = Some(reply.text.as_str()).filter(|text| !is_blank(text));
    let content = if remarks.is_empty() {
        json!(text.unwrap_or(media::NO_OUTPUT))
    } else {
        text.map(text_block).into_iter().chain(remarks).collect()
    };
    let result =
        json!({"type": "tool_result", "tool_use_id": id, "content": content, "is_error": reply.is_error});
    (result, following)
}

/// Makes a call's id acceptable to this vendor: an id from another vendor may have characters that it refuses.
fn sanitize_call_id(id: &str) -> Cow<'_, str> {
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
    if id.chars().all(is_allowed) {
        return id.into();
    }
    let escape = |character| match character {
        allowed if is_allowed(allowed) => allowed.to_string(),
        other => format!("_{:x}_", u32::from(other)),
    };
    id.chars().map(escape).collect()
}

/// Whether a signature is this vendor's. A model of the same name may have been called over another protocol,
/// whose signatures are JSON.
fn is_own_signature(signature: &str) -> bool {
    !signature.starts_with(['{', '['])
}

/// A block as it is sent back; `None` if the provider would refuse it.
fn answer_block(block: &Block, same_model: bool) -> Option<Value> {
    match block {
        // The provider refuses empty and blank texts, even those that it sent itself.
        Block::Text { text, .. } if is_blank(text) => None,
        Block::Text { text, .. } => Some(text_block(text)),
        // Signatures are valid only for the model that made them, and reasoning without a signature is refused.
        Block::Thinking { thinking, signature: Some(signature) }
            if same_model && is_own_signature(signature) =>
        {
            Some(json!({"type": "thinking", "thinking": thinking, "signature": signature}))
        }
        Block::RedactedThinking { data } if same_model => {
            Some(json!({"type": "redacted_thinking", "data": data}))
        }
        Block::Thinking { .. } | Block::RedactedThinking { .. } => None,
        Block::ToolUse(ToolUse { provider_id, name, input, .. }) => Some(
            json!({"type": "tool_use", "id": sanitize_call_id(provider_id), "name": name, "input": input}),
        ),
    }
}

#[cfg(test)]
#[path = "../tests/unit/anthropic.rs"]
mod tests;
