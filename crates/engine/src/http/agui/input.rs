//! `RunAgentInput`: the request for a run. Everything that can mean nothing for an agent is refused by name.

use api::TaskId;
use api::engine::Execute;
use api::turn_options::Effort;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::http::openai::{Extension, Fields, Prompt, VendorError, WithoutEffect, parse_effort};

/// A request for a run.
pub(super) struct RunInput {
    /// The thread.
    pub(super) thread: TaskId,
    pub(super) run_id: String,
    pub(super) start: Start,
    /// The fields that were accepted without an effect.
    pub(super) without_effect: WithoutEffect,
}

/// How a run begins.
pub(super) enum Start {
    /// With a message of the user.
    Message { request: MessageRequest, messages: Vec<Value> },
    /// With the answer to an interrupt.
    Resume { entry: ResumeEntry, messages: Vec<Value> },
}

/// What is set for the turn of a message.
#[derive(Clone)]
pub(super) struct MessageRequest {
    context: Option<String>,
    model: Option<String>,
    effort: Option<Effort>,
    /// The own options, as they were given: they were parsed once, to refuse wrong ones.
    extension: Option<Value>,
}

/// The answer to an interrupt.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResumeEntry {
    pub(super) interrupt_id: String,
    pub(super) status: ResumeStatus,
    #[serde(default)]
    pub(super) payload: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ResumeStatus {
    Resolved,
    Cancelled,
}

impl RunInput {
    pub(super) fn parse(body: Map<String, Value>) -> Result<Self, VendorError> {
        let mut fields = Fields::new(body);
        let missing = |name: &str| VendorError::invalid(name, "must be given");
        let thread = fields.text("threadId")?.ok_or_else(|| missing("threadId"))?;
        let thread = TaskId::new(thread).map_err(|error| VendorError::invalid("threadId", error))?;
        let run_id = fields.text("runId")?.ok_or_else(|| missing("runId"))?;
        let messages = fields.list("messages")?.ok_or_else(|| missing("messages"))?;
        // A newer version is taken for this one, as the protocol says.
        fields.text("protocolVersion")?;
        let tools = "the agent's tools are those of its catalog and of its user; a run cannot bring its own";
        fields.neutral("tools", &[json!([])], tools)?;
        fields.neutral("parentRunId", &[], "a run cannot be the part of another one here")?;
        let mut without_effect = WithoutEffect::default();
        let state = fields.take("state");
        if state.is_some_and(|state| state != json!({}) && state != json!("")) {
            // What the agent tells the client about its memory comes back with each request.
            without_effect.add("state");
        }
        let context = take_context(&mut fields)?;
        let request = take_options(&mut fields, context)?;
        let resume = fields.list("resume")?.filter(|entries| !entries.is_empty());
        fields.finish()?;
        let start = match resume {
            None => Start::Message { request, messages },
            Some(_) if request.has_options() => {
                let reason = "a run that resumes a turn has that turn's; neither `context` nor `forwardedProps` can be given";
                return Err(VendorError::unsupported("resume", reason));
            }
            Some(entries) => Start::Resume { entry: one_entry(entries)?, messages },
        };
        Ok(Self { thread, run_id, start, without_effect })
    }
}

/// A run ends at each request to a person, so that there is one at a time.
fn one_entry(mut entries: Vec<Value>) -> Result<ResumeEntry, VendorError> {
    let invalid = |error: &dyn std::fmt::Display| VendorError::invalid("resume", error);
    match (entries.pop(), entries.is_empty()) {
        (Some(entry), true) => serde_json::from_value(entry).map_err(|error| invalid(&error)),
        _ => Err(invalid(&"must have one entry: a run is interrupted by one request at a time")),
    }
}

fn take_context(fields: &mut Fields) -> Result<Option<String>, VendorError> {
    #[derive(Deserialize)]
    struct Context {
        description: String,
        value: String,
    }

    let context: Vec<Context> = fields.parse("context")?.unwrap_or_default();
    let texts = context.iter().map(|Context { description, value }| format!("{description}:\n{value}"));
    let texts: Vec<String> = texts.collect();
    Ok((!texts.is_empty()).then(|| texts.join("\n\n")))
}

fn take_options(fields: &mut Fields, context: Option<String>) -> Result<MessageRequest, VendorError> {
    let mut request = MessageRequest { context, model: None, effort: None, extension: None };
    if let Some(mut props) = fields.object("forwardedProps")? {
        request.model = props.text("model")?;
        request.effort = parse_effort(&props.name("effort"), props.text("effort")?.as_deref())?;
        request.extension = props.take("roundhouse");
        request.parse_extension()?;
        props.finish()?;
    }
    Ok(request)
}

impl MessageRequest {
    fn has_options(&self) -> bool {
        self.context.is_some() || self.model.is_some() || self.effort.is_some() || self.extension.is_some()
    }

    fn parse_extension(&self) -> Result<Extension, VendorError> {
        let Some(extension) = &self.extension else { return Ok(Extension::default()) };
        let invalid = |error| VendorError::invalid("forwardedProps.roundhouse", error);
        let extension: Extension = serde_json::from_value(extension.clone()).map_err(invalid)?;
        if extension.task_id.is_some() {
            let reason = "the task of a run is its `threadId`";
            return Err(VendorError::unsupported("forwardedProps.roundhouse.task_id", reason));
        }
        Ok(extension)
    }

    /// The turn to run, and the fields of messages that have no effect. `has_history`: the thread has a history of
    /// its own.
    pub(super) fn into_execute(
        self,
        thread: &TaskId,
        messages: Vec<Value>,
        has_history: bool,
    ) -> Result<(Execute, WithoutEffect), VendorError> {
        let messages = messages.into_iter().enumerate();
        let messages: Result<Vec<_>, _> =
            messages.filter_map(|(at, message)| spoken(at, message).transpose()).collect();
        let extension = self.parse_extension()?;
        let prompt = Prompt::new("messages", messages?, self.context, has_history)?;
        let unused_fields = prompt.unused_fields.clone();
        let execute = extension.into_execute(thread.clone(), prompt)?;
        Ok((Execute { model: self.model, effort: self.effort, ..execute }, unused_fields))
    }
}

/// A message as the other front has it; `None` for what the agent itself has said beside its answers.
fn spoken(at: usize, message: Value) -> Result<Option<Value>, VendorError> {
    let name = |member: &str| format!("messages[{at}].{member}");
    let Value::Object(mut message) = message else {
        return Err(VendorError::invalid(&format!("messages[{at}]"), "must be an object"));
    };
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default().to_owned();
    match role.as_str() {
        // They come from the agent, whose history has them; other tools are refused.
        "tool" | "activity" | "reasoning" => return Ok(None),
        "assistant" => {
            message.retain(|member, _| matches!(member.as_str(), "role" | "content"));
            if message.get("content").is_none_or(Value::is_null) {
                message.insert("content".to_owned(), json!(""));
            }
        }
        _ => {}
    }
    // What every message may have, and no model sees.
    message.retain(|member, _| !matches!(member.as_str(), "metadata" | "encryptedValue" | "subagentRunId"));
    if let Some(Value::Array(parts)) = message.get_mut("content") {
        for (index, part) in parts.iter_mut().enumerate() {
            *part = translated_part(part, &name(&format!("content[{index}]")))?;
        }
    }
    Ok(Some(Value::Object(message)))
}

fn translated_part(part: &Value, param: &str) -> Result<Value, VendorError> {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    let source = |member: &str| part.pointer(&format!("/source/{member}")).and_then(Value::as_str);
    let url = || match (source("type"), source("value"), source("mimeType")) {
        (Some("data"), Some(data), Some(media_type)) => Ok(format!("data:{media_type};base64,{data}")),
        (Some("url"), Some(url), _) => Ok(url.to_owned()),
        (Some("file"), ..) => {
            let reason = "uploaded files of a provider are not known here; send the file itself";
            Err(VendorError::unsupported(&format!("{param}.source"), reason))
        }
        _ => {
            let expected = "must be `data` with `value` and `mimeType`, or `url` with `value`";
            Err(VendorError::invalid(&format!("{param}.source"), expected))
        }
    };
    match kind {
        "text" => Ok(json!({"type": "text", "text": part.get("text")})),
        "image" => Ok(json!({"type": "image_url", "image_url": {"url": url()?}})),
        "document" => {
            let url = url()?;
            let member = if url.starts_with("data:") { "file_data" } else { "file_url" };
            Ok(json!({"type": "input_file", member: url}))
        }
        _ => {
            let expected = "must be `text`, `image` or `document`; audio, video and others are not taken";
            Err(VendorError::unsupported(&format!("{param}.type"), expected))
        }
    }
}
