//! The OpenAI Responses protocol (<https://platform.openai.com/docs/api-reference/responses>), stateless: nothing
//! is stored at the provider, and each request contains the whole conversation.

mod decoding;

use api::content::MediaKind;
use api::response_format::ResponseFormat;
use reqwest::header::AUTHORIZATION;
use secrecy::SecretString;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use self::decoding::ResponsesDecoder;
use super::http::{Endpoint, RequestBody, call_provider, insert};
use super::media::{self, OutgoingContent, PDF, is_blank};
use super::openai::cache_key;
use super::profile::{Effort, ModelProfile, Thinking, no_effort};
use super::{Block, ChatModel, Content, EventStream, Message, Request, ToolDeclaration, ToolReply};

/// The smallest output limit that the provider accepts, in tokens
/// (<https://platform.openai.com/docs/api-reference/responses/create>).
const MIN_OUTPUT_TOKENS: u64 = 16;

/// A model that speaks OpenAI Responses.
pub(super) struct OpenAiResponses {
    profile: ModelProfile,
    endpoint: Endpoint,
}

impl OpenAiResponses {
    /// Creates a model. `base` is the vendor's address or a substitute, in the form that the vendor's SDKs take:
    /// with `/v1`.
    pub(super) fn new(base: &str, profile: ModelProfile, key: Option<SecretString>) -> Self {
        let endpoint = Endpoint {
            url: format!("{}/responses", base.trim_end_matches('/')),
            key_header: AUTHORIZATION,
            key_prefix: "Bearer ",
            key,
            headers: &[],
        };
        Self { profile, endpoint }
    }
}

impl ChatModel for OpenAiResponses {
    fn name(&self) -> &str {
        &self.profile.model
    }

    fn supports_media(&self, kind: MediaKind, media_type: &str) -> Result<(), String> {
        media::check_common_media(kind, media_type)
    }

    fn supports_effort(&self) -> Result<(), String> {
        match self.profile.thinking {
            Thinking::Effort(_) | Thinking::Adaptive(_) => Ok(()),
            Thinking::Off | Thinking::Budget(_) => Err(no_effort(&self.profile.model)),
        }
    }

    fn stream(&self, request: &Request<'_>) -> EventStream {
        call_provider(
            self.endpoint.clone(),
            request,
            &request_body(&self.profile, request),
            ResponsesDecoder::default(),
        )
    }
}

fn request_body<'a>(profile: &ModelProfile, request: &Request<'a>) -> RequestBody<Vec<Tool<'a>>> {
    let max_output = request.max_output.unwrap_or(profile.max_output).min(profile.max_output);
    let mut body = json!({
        "model": profile.model,
        "instructions": request.system,
        "input": request.messages.iter().flat_map(|message| input_items(&profile.model, message)).collect::<Value>(),
        "stream": true,
        "store": false,
        "max_output_tokens": max_output.max(MIN_OUTPUT_TOKENS),
        "prompt_cache_key": cache_key(request.cache_key),
    });
    if let Some(ResponseFormat { name, schema, strict, .. }) = request.output {
        let format = json!({"type": "json_schema", "name": name, "schema": schema, "strict": strict});
        insert(&mut body, "text", json!({"format": format}));
    }
    if !request.tools.is_empty() {
        insert(&mut body, "parallel_tool_calls", json!(true));
        if !request.allow_tool_calls {
            insert(&mut body, "tool_choice", json!("none"));
        }
    }
    if profile.thinking != Thinking::Off {
        // Models without reasoning refuse this field ("Encrypted content is not supported with this model").
        insert(&mut body, "include", json!(["reasoning.encrypted_content"]));
    }
    // An auxiliary call is to be answered without long reasoning.
    let thinking = profile.thinking_for(request.effort);
    let effort = match (thinking, request.thinking, request.allow_tool_calls) {
        (Thinking::Effort(effort) | Thinking::Adaptive(effort), true, _) => Some(effort),
        (Thinking::Effort(_) | Thinking::Adaptive(_), false, false) => Some(Effort::Low),
        _ => None,
    };
    if let Some(effort) = effort {
        insert(&mut body, "reasoning", json!({"effort": effort, "summary": "auto"}));
    }
    let tools = request.tools.iter().map(|ToolDeclaration { name, description, input_schema }| Tool {
        kind: "function",
        name,
        description,
        parameters: input_schema,
        strict: false,
    });
    let tools = (!request.tools.is_empty()).then(|| tools.collect());
    RequestBody { fields: body, tools }
}

#[derive(Serialize)]
struct Tool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
    strict: bool,
}

fn input_items(model: &str, message: &Message) -> Vec<Value> {
    match message {
        Message::User { content } => {
            let parts: Vec<Value> = content.iter().filter_map(content_part).collect();
            let message = |parts| json!({"type": "message", "role": "user", "content": parts});
            (!parts.is_empty()).then(|| message(parts)).into_iter().collect()
        }
        Message::Assistant { model: author, blocks } => answer_items(blocks, author == model),
        Message::Results(replies) => replies.iter().map(function_call_output).collect(),
    }
}

/// Converts a user's content to a message part.
fn content_part(content: &Content) -> Option<Value> {
    Some(match OutgoingContent::from_content(content)? {
        OutgoingContent::Text(text) | OutgoingContent::PlainText { name: None, text } => input_text(&text),
        OutgoingContent::PlainText { name: Some(name), text } => {
            input_text(&format!("Document {name}:\n\n{text}"))
        }
        OutgoingContent::Image { media_type, base64 } => {
            let url = format!("data:{media_type};base64,{base64}");
            json!({"type": "input_image", "image_url": url, "detail": "auto"})
        }
        OutgoingContent::Pdf { name, base64 } => json!({
            "type": "input_file",
            "filename": name.unwrap_or("document.pdf"),
            "file_data": format!("data:{PDF};base64,{base64}"),
        }),
        // Not supported, so it was replaced by a text before this point.
        OutgoingContent::Audio { .. } => return None,
    })
}

fn input_text(text: &str) -> Value {
    json!({"type": "input_text", "text": text})
}

/// A result is sent as a text if possible: the other form is newer, and not all compatible servers support it.
fn function_call_output(reply: &ToolReply) -> Value {
    let text = Some(reply.text.as_str()).filter(|text| !is_blank(text));
    let remarks: Vec<Value> = reply.remarks.iter().filter_map(content_part).collect();
    let output = if remarks.is_empty() {
        json!(text.unwrap_or(media::NO_OUTPUT))
    } else {
        text.map(input_text).into_iter().chain(remarks).collect()
    };
    json!({"type": "function_call_output", "call_id": reply.provider_id, "output": output})
}

fn answer_items(blocks: &[Block], same_model: bool) -> Vec<Value> {
    let mut items: Vec<Value> = blocks.iter().filter_map(|block| answer_item(block, same_model)).collect();
    // Reasoning without a following item is refused ("was provided without its required following item").
    while items.last().is_some_and(|item| item["type"] == "reasoning") {
        items.pop();
    }
    items
}

/// A block as it is sent back; `None` if the provider would refuse it.
fn answer_item(block: &Block, same_model: bool) -> Option<Value> {
    match block {
        // The same model's blank text is kept: its reasoning is refused without the very item that followed it.
        Block::Text { text, .. } if is_blank(text) && !same_model => None,
        Block::Text { text, signature } => {
            let content = json!([{"type": "output_text", "text": text}]);
            let mut item = json!({"type": "message", "role": "assistant", "content": content});
            if let Some(signature) = signature.as_deref().filter(|_| same_model)
                && let Ok(Value::Object(fields)) = serde_json::from_str(signature)
            {
                fields.into_iter().for_each(|(field, value)| insert(&mut item, &field, value));
            }
            Some(item)
        }
        Block::Thinking { signature: Some(signature), .. } if same_model => {
            let item: Value = serde_json::from_str(signature).ok()?;
            (item.get("type") == Some(&json!("reasoning"))).then_some(item)
        }
        Block::Thinking { .. } | Block::RedactedThinking { .. } => None,
        Block::ToolUse(call) => Some(json!({
            "type": "function_call", "call_id": call.provider_id, "name": call.name,
            "arguments": call.input.to_string(),
        })),
    }
}

#[cfg(test)]
#[path = "../tests/unit/responses.rs"]
mod tests;
