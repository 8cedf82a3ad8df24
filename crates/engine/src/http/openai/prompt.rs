//! The messages of a request as the message of a turn. A task has its own history, so only the newest messages of
//! the user become the turn's message. A request without a task brings its history along: it is attached as text.

use api::content::ContentBlock;
use serde_json::{Value, json};

use super::error::VendorError;
use super::fields::{Fields, WithoutEffect, object_of};

/// What stands before the earlier messages of a request that begins a task.
const HISTORY_NOTE: &str =
    "The conversation before this message took place elsewhere. These were its messages:";

/// The beginning of a turn.
#[derive(Debug, Default, PartialEq)]
pub(in crate::http) struct Prompt {
    /// The texts of the system and the developer.
    pub(in crate::http) instructions: Option<String>,
    /// The text of the user.
    pub(in crate::http) message: String,
    /// What is attached to it.
    pub(in crate::http) media: Vec<ContentBlock>,
    /// Whether earlier messages were left out, because the task has its own.
    leaves_history_out: bool,
    /// The fields of messages that have no effect.
    pub(in crate::http) unused_fields: WithoutEffect,
}

/// A message of a request.
struct Message {
    role: Role,
    text: String,
    media: Vec<ContentBlock>,
}

#[derive(Clone, Copy, PartialEq)]
enum Role {
    Instructions,
    User,
    Assistant,
}

impl Prompt {
    /// Makes the prompt of `messages`, which the request calls `param`. `has_history`: the task has a history.
    pub(in crate::http) fn new(
        param: &str,
        messages: Vec<Value>,
        first_instructions: Option<String>,
        has_history: bool,
    ) -> Result<Self, VendorError> {
        let mut instructions: Vec<String> = first_instructions.into_iter().collect();
        let (mut spoken, mut unused_fields) = (Vec::new(), WithoutEffect::default());
        for (index, message) in messages.into_iter().enumerate() {
            let fields = object_of(message, &format!("{param}[{index}]"))?;
            let message = parse_message(fields, &mut unused_fields)?;
            match message.role {
                Role::Instructions => instructions.push(message.text),
                Role::User | Role::Assistant => spoken.push(message),
            }
        }
        let newest =
            spoken.iter().rposition(|message| message.role == Role::Assistant).map_or(0, |last| last + 1);
        let newest = spoken.split_off(newest);
        if newest.is_empty() {
            return Err(VendorError::invalid(param, "the last message must be one of the user"));
        }
        let leaves_history_out = has_history && !spoken.is_empty();
        let mut media = if has_history { Vec::new() } else { attach_history(spoken) };
        let mut texts = Vec::new();
        for message in newest {
            texts.push(message.text);
            media.extend(message.media);
        }
        let instructions = (!instructions.is_empty()).then(|| instructions.join("\n\n"));
        Ok(Self { instructions, message: join(texts), media, leaves_history_out, unused_fields })
    }

    /// What has no effect: fields of messages, and earlier messages of a task that has its own.
    pub(in crate::http) fn without_effect(&self) -> WithoutEffect {
        let mut without_effect = self.unused_fields.clone();
        if self.leaves_history_out {
            without_effect.add("messages before the last answer");
        }
        without_effect
    }
}

/// The earlier messages as attachments of the first one that the task gets.
fn attach_history(messages: Vec<Message>) -> Vec<ContentBlock> {
    if messages.is_empty() {
        return Vec::new();
    }
    let mut attachments = Vec::new();
    let mut text = HISTORY_NOTE.to_owned();
    for message in messages {
        let role = if message.role == Role::User { "user" } else { "assistant" };
        // As JSON, so that no text of a message can be taken for the beginning of another one.
        text.push('\n');
        text.push_str(&json!({"role": role, "content": message.text}).to_string());
        attachments.extend(message.media);
    }
    attachments.insert(0, ContentBlock::Text(text));
    attachments
}

fn join(texts: Vec<String>) -> String {
    texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n")
}

fn parse_message(mut fields: Fields, unused: &mut WithoutEffect) -> Result<Message, VendorError> {
    fields.neutral(
        "type",
        &[json!("message")],
        "only messages are taken: the agent calls its tools itself",
    )?;
    let role = match fields.text("role")?.as_deref() {
        Some("system" | "developer") => Role::Instructions,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool" | "function") => {
            let reason = "results of tools cannot be sent: the agent calls its tools itself";
            return Err(VendorError::unsupported(&fields.name("role"), reason));
        }
        _ => {
            let expected = "must be `system`, `developer`, `user` or `assistant`";
            return Err(VendorError::invalid(&fields.name("role"), expected));
        }
    };
    let content_name = fields.name("content");
    let (text, media) = match fields.take("content") {
        Some(Value::String(text)) => (text, Vec::new()),
        Some(Value::Array(parts)) => parse_parts(&content_name, parts, role, unused)?,
        _ => return Err(VendorError::invalid(&content_name, "must be a string or a list of parts")),
    };
    let calls = "calls of tools cannot be sent: the agent calls its tools itself";
    fields.neutral("tool_calls", &[json!([])], calls)?;
    fields.neutral("audio", &[], "recordings of answers are not known here; send the text")?;
    fields.hints(&["name", "refusal", "reasoning_content"], unused);
    fields.discard(&["id", "status", "phase", "annotations"]);
    fields.finish()?;
    Ok(Message { role, text, media })
}

fn parse_parts(
    param: &str,
    parts: Vec<Value>,
    role: Role,
    unused: &mut WithoutEffect,
) -> Result<(String, Vec<ContentBlock>), VendorError> {
    let (mut texts, mut media) = (Vec::new(), Vec::new());
    for (index, part) in parts.into_iter().enumerate() {
        let mut fields = object_of(part, &format!("{param}[{index}]"))?;
        let kind = fields.text("type")?;
        match kind.as_deref() {
            Some("text" | "input_text" | "output_text") => {
                let text = fields.text("text")?;
                texts.push(text.ok_or_else(|| VendorError::invalid(&fields.name("text"), "must be given"))?);
                fields.hints(&["prompt_cache_breakpoint"], unused);
                fields.discard(&["annotations", "logprobs"]);
                fields.finish()?;
            }
            Some("image_url" | "input_image" | "file" | "input_file") if role != Role::User => {
                return Err(VendorError::unsupported(
                    &fields.name("type"),
                    "only users attach images and files",
                ));
            }
            Some("image_url") => {
                let mut image = match fields.take("image_url") {
                    // Some clients send the address alone.
                    Some(Value::String(url)) => object_of(json!({"url": url}), &fields.name("image_url"))?,
                    Some(object) => object_of(object, &fields.name("image_url"))?,
                    None => return Err(VendorError::invalid(&fields.name("image_url"), "must be given")),
                };
                media.push(image_of(&mut image, "url", unused)?);
                fields.hints(&["prompt_cache_breakpoint"], unused);
                image.finish()?;
                fields.finish()?;
            }
            Some("input_image") => {
                media.push(image_of(&mut fields, "image_url", unused)?);
                fields.finish()?;
            }
            Some("file") => {
                let file = fields.object("file")?;
                let mut file =
                    file.ok_or_else(|| VendorError::invalid(&fields.name("file"), "must be given"))?;
                media.push(file_of(&mut file, unused)?);
                fields.hints(&["prompt_cache_breakpoint"], unused);
                file.finish()?;
                fields.finish()?;
            }
            Some("input_file") => {
                media.push(file_of(&mut fields, unused)?);
                fields.finish()?;
            }
            _ => {
                let expected = "must be a part with text, an image or a file; audio and others are not taken";
                return Err(VendorError::unsupported(&fields.name("type"), expected));
            }
        }
    }
    Ok((join(texts), media))
}

fn image_of(
    fields: &mut Fields,
    url_member: &str,
    unused: &mut WithoutEffect,
) -> Result<ContentBlock, VendorError> {
    let files = "uploaded files of the vendor are not known here; send the image itself";
    fields.neutral("file_id", &[], files)?;
    take_hints_of_media(fields, unused);
    let name = fields.name(url_member);
    let url = fields.text(url_member)?.ok_or_else(|| VendorError::invalid(&name, "must be given"))?;
    block(&name, media_of("image", &name, &url, None)?)
}

fn file_of(fields: &mut Fields, unused: &mut WithoutEffect) -> Result<ContentBlock, VendorError> {
    let files = "uploaded files of the vendor are not known here; send the file itself as `file_data`";
    fields.neutral("file_id", &[], files)?;
    take_hints_of_media(fields, unused);
    let name = fields.text("filename")?;
    if let Some(url) = fields.text("file_url")? {
        return block(&fields.name("file_url"), json!({"type": "document", "url": url, "name": name}));
    }
    let param = fields.name("file_data");
    let data = fields.text("file_data")?.ok_or_else(|| VendorError::invalid(&param, "must be given"))?;
    block(&param, media_of("document", &param, &data, name.as_deref())?)
}

/// The attachment of a `data:` URL, or of an address on the web.
fn media_of(kind: &str, param: &str, url: &str, name: Option<&str>) -> Result<Value, VendorError> {
    if let Some(rest) = url.strip_prefix("data:") {
        let expected = "must be base64: `data:TYPE;base64,DATA`";
        let (media_type, data) =
            rest.split_once(";base64,").ok_or_else(|| VendorError::invalid(param, expected))?;
        return Ok(json!({"type": kind, "media_type": media_type, "data": data, "name": name}));
    }
    Ok(json!({"type": kind, "url": url, "name": name}))
}

/// How closely a model looks is its own choice, and where its provider's cache begins is the engine's.
fn take_hints_of_media(fields: &mut Fields, unused: &mut WithoutEffect) {
    fields.hint_unless("detail", &[json!("auto")], unused);
    fields.hints(&["prompt_cache_breakpoint"], unused);
}

fn block(param: &str, block: Value) -> Result<ContentBlock, VendorError> {
    serde_json::from_value(block).map_err(|error| VendorError::invalid(param, error))
}
