//! `POST /v1/responses` as a request to run a turn.

use api::TaskId;
use api::engine::Execute;
use serde_json::{Map, Value, json};

use super::error::VendorError;
use super::fields::{Fields, WithoutEffect};
use super::options::{self, Extension, HINTS};
use super::prompt::Prompt;

/// Items of an answer that a client may send back with its history. The agent knows them.
const ANSWER_ITEMS: [&str; 4] = ["reasoning", "mcp_call", "mcp_approval_request", "mcp_list_tools"];

/// Why a request does not say what becomes of a long conversation.
const HISTORY: &str = "the engine compacts conversations as its configuration says";

/// A request for a response, whose task is yet to be found.
#[derive(Debug)]
pub(super) struct ResponseRequest {
    /// The task that it continues.
    pub(super) place: Place,
    pub(super) is_streamed: bool,
    pub(super) in_background: bool,
    /// The fields that were accepted without an effect.
    pub(super) without_effect: WithoutEffect,
    extension: Extension,
    instructions: Option<String>,
    messages: Vec<Value>,
    options: Execute,
}

/// Where the turn continues.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    /// In a new task.
    New,
    /// In this task, which need not exist.
    Task(TaskId),
    /// After the response with this id.
    After(String),
}

impl ResponseRequest {
    /// Translates a body. `sample_task` stands for the task until it is known.
    pub(super) fn parse(
        body: Map<String, Value>,
        header_task: Option<TaskId>,
        sample_task: TaskId,
    ) -> Result<Self, VendorError> {
        let mut fields = Fields::new(body);
        let extension: Extension = fields.parse("roundhouse")?.unwrap_or_default();
        let (_, model) = options::take_model(&mut fields)?;
        options::take_neutral(&mut fields)?;
        take_refused(&mut fields)?;
        let mut without_effect = WithoutEffect::default();
        fields.hints(&HINTS, &mut without_effect);
        let is_streamed = fields.flag("stream")?.unwrap_or_default();
        let in_background = fields.flag("background")?.unwrap_or_default();
        if let Some(mut stream) = fields.object("stream_options")? {
            options::take_obfuscation(&mut stream, &mut without_effect)?;
            stream.finish()?;
        }
        let place = take_place(&mut fields, extension.task_id.clone().or(header_task))?;
        let effort = take_effort(&mut fields, &mut without_effect)?;
        let response_format = take_format(&mut fields, &mut without_effect)?;
        take_truncation(&mut fields, &mut without_effect)?;
        let max_output_tokens = fields.parse("max_output_tokens")?;
        let metadata = fields.parse("metadata")?;
        let instructions = fields.text("instructions")?;
        let mut messages = take_input(&mut fields)?;
        fields.finish()?;
        let before = messages.len();
        messages.retain(|item| !is_answer_item(item));
        if messages.len() < before {
            without_effect.add("items of input that are no messages");
        }
        let options = Execute {
            model,
            effort,
            max_output_tokens,
            metadata,
            response_format,
            ..Execute::new(sample_task, String::new())
        };
        Ok(Self {
            place,
            is_streamed,
            in_background,
            without_effect,
            extension,
            instructions,
            messages,
            options,
        })
    }

    /// The turn to run in `task_id`.
    pub(super) fn into_execute(self, task_id: TaskId) -> Result<(Execute, WithoutEffect), VendorError> {
        let Self { place, mut without_effect, extension, instructions, messages, options, .. } = self;
        let prompt = Prompt::new("input", messages, instructions, place != Place::New)?;
        without_effect.extend(prompt.without_effect());
        let execute = extension.into_execute(task_id, prompt)?;
        let Execute { model, effort, max_output_tokens, metadata, response_format, .. } = options;
        let execute = Execute { model, effort, max_output_tokens, metadata, response_format, ..execute };
        Ok((execute, without_effect))
    }
}

fn is_answer_item(item: &Value) -> bool {
    item.get("type").and_then(Value::as_str).is_some_and(|kind| ANSWER_ITEMS.contains(&kind))
}

fn take_input(fields: &mut Fields) -> Result<Vec<Value>, VendorError> {
    match fields.take("input") {
        Some(Value::String(text)) => Ok(vec![json!({"role": "user", "content": text})]),
        Some(Value::Array(items)) => Ok(items),
        _ => Err(VendorError::invalid("input", "must be a string or a list of messages")),
    }
}

fn take_place(fields: &mut Fields, task: Option<TaskId>) -> Result<Place, VendorError> {
    let conversation = match fields.take("conversation") {
        None => None,
        Some(Value::String(id)) => Some(id),
        Some(Value::Object(mut object)) => match object.remove("id") {
            Some(Value::String(id)) if object.is_empty() => Some(id),
            _ => return Err(VendorError::invalid("conversation", "must be a string or an object with `id`")),
        },
        Some(_) => {
            return Err(VendorError::invalid("conversation", "must be a string or an object with `id`"));
        }
    };
    let conversation = conversation.map(TaskId::new).transpose();
    let conversation = conversation.map_err(|error| VendorError::invalid("conversation", error))?;
    let previous = fields.text("previous_response_id")?;
    match (conversation.or(task), previous) {
        (Some(_), Some(_)) => {
            let reason = "cannot be given together with a conversation: it is in one already";
            Err(VendorError::invalid("previous_response_id", reason))
        }
        (Some(task_id), None) => Ok(Place::Task(task_id)),
        (None, Some(id)) => Ok(Place::After(id)),
        (None, None) => Ok(Place::New),
    }
}

fn take_effort(
    fields: &mut Fields,
    without_effect: &mut WithoutEffect,
) -> Result<Option<api::turn_options::Effort>, VendorError> {
    let Some(mut reasoning) = fields.object("reasoning")? else { return Ok(None) };
    let effort = options::parse_effort("reasoning.effort", reasoning.text("effort")?.as_deref())?;
    // Reasoning is sent as the model gives it.
    reasoning.hints(&["summary", "generate_summary"], without_effect);
    reasoning.finish()?;
    Ok(effort)
}

fn take_format(
    fields: &mut Fields,
    without_effect: &mut WithoutEffect,
) -> Result<Option<api::response_format::ResponseFormat>, VendorError> {
    let Some(mut text) = fields.object("text")? else { return Ok(None) };
    let verbosity = "say in the instructions how long answers are to be";
    text.neutral("verbosity", &[json!("medium")], verbosity)?;
    let format = options::parse_format("text.format", text.take("format"), None, without_effect)?;
    text.finish()?;
    Ok(format)
}

/// What becomes of a conversation that is too long. The engine never drops items from its middle, it compacts.
fn take_truncation(fields: &mut Fields, without_effect: &mut WithoutEffect) -> Result<(), VendorError> {
    match fields.text("truncation")?.as_deref() {
        None | Some("disabled") => {}
        Some("auto") => without_effect.add("truncation"),
        Some(_) => return Err(VendorError::unsupported("truncation", HISTORY)),
    }
    Ok(())
}

/// Takes the fields of this kind of request that can mean nothing for an agent.
fn take_refused(fields: &mut Fields) -> Result<(), VendorError> {
    fields.neutral("include", &[json!([])], "responses have what they have; nothing can be added")?;
    fields.neutral("context_management", &[json!([])], HISTORY)?;
    fields.neutral("prompt", &[], "stored prompts of the vendor are not known here")?;
    fields.neutral("max_tool_calls", &[], "use `roundhouse.max_turns`, which limits the model's calls")?;
    fields.neutral("moderation", &[], "it has no meaning for an agent's turn")
}
