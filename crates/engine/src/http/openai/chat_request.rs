//! `POST /v1/chat/completions` as a request to run a turn.

use api::TaskId;
use api::engine::Execute;
use api::turn_options::MaxOutputTokens;
use serde_json::{Map, Value, json};

use super::error::VendorError;
use super::fields::{Fields, WithoutEffect};
use super::options::{self, Extension, HINTS};
use super::prompt::Prompt;

/// A request for a completion.
#[derive(Debug)]
pub(super) struct ChatRequest {
    /// The turn to run.
    pub(super) execute: Execute,
    /// The name of the model in answers.
    pub(super) model: String,
    /// Whether the answer is streamed.
    pub(super) is_streamed: bool,
    /// Whether a stream ends with the usage.
    pub(super) includes_usage: bool,
    /// The fields that were accepted without an effect.
    pub(super) without_effect: WithoutEffect,
}

impl ChatRequest {
    /// Translates a body. `header_task` is the task that a header names; a request that names none begins
    /// `new_task`.
    pub(super) fn parse(
        body: Map<String, Value>,
        header_task: Option<TaskId>,
        new_task: TaskId,
    ) -> Result<Self, VendorError> {
        let mut fields = Fields::new(body);
        let extension: Extension = fields.parse("roundhouse")?.unwrap_or_default();
        let (model, model_name) = options::take_model(&mut fields)?;
        options::take_neutral(&mut fields)?;
        take_refused(&mut fields)?;
        let mut without_effect = WithoutEffect::default();
        fields.hints(&HINTS, &mut without_effect);
        let is_streamed = fields.flag("stream")?.unwrap_or_default();
        let mut includes_usage = false;
        if let Some(mut stream) = fields.object("stream_options")? {
            includes_usage = stream.flag("include_usage")?.unwrap_or_default();
            options::take_obfuscation(&mut stream, &mut without_effect)?;
            stream.finish()?;
        }
        let effort = options::parse_effort("reasoning_effort", fields.text("reasoning_effort")?.as_deref())?;
        let max_output_tokens = take_max_tokens(&mut fields)?;
        let metadata = fields.parse("metadata")?;
        let format = fields.take("response_format");
        let response_format =
            options::parse_format("response_format", format, Some("json_schema"), &mut without_effect)?;
        let messages = fields.list("messages")?.unwrap_or_default();
        let task = extension.task_id.clone().or(header_task);
        let prompt = Prompt::new("messages", messages, None, task.is_some())?;
        fields.finish()?;
        without_effect.extend(prompt.without_effect());
        let execute = extension.into_execute(task.unwrap_or(new_task), prompt)?;
        let execute =
            Execute { model: model_name, effort, max_output_tokens, metadata, response_format, ..execute };
        Ok(Self { execute, model, is_streamed, includes_usage, without_effect })
    }
}

/// The budget, under its present name or the one that it had before.
fn take_max_tokens(fields: &mut Fields) -> Result<Option<MaxOutputTokens>, VendorError> {
    let (before, now) = (fields.parse("max_tokens")?, fields.parse("max_completion_tokens")?);
    if before.is_some() && now.is_some() && before != now {
        let reason = "must be that of `max_completion_tokens`, which is its new name";
        return Err(VendorError::invalid("max_tokens", reason));
    }
    Ok(now.or(before))
}

/// Takes the fields of this kind of request that can mean nothing for an agent.
fn take_refused(fields: &mut Fields) -> Result<(), VendorError> {
    fields.neutral("n", &[json!(1)], "a turn has one answer")?;
    fields.neutral("logprobs", &[json!(false)], "log probabilities are not available")?;
    fields.neutral("modalities", &[json!(["text"])], "answers are text")?;
    fields.neutral("verbosity", &[json!("medium")], "say in the instructions how long answers are to be")?;
    fields.neutral("logit_bias", &[json!({})], "the engine's configuration decides how its models sample")?;
    let tools = "the agent's tools are those of its catalog and of its user; a request cannot bring its own";
    for name in ["functions", "function_call", "web_search_options"] {
        fields.neutral(name, &[], tools)?;
    }
    let sampling = "the engine's configuration decides how its models sample";
    for name in ["presence_penalty", "frequency_penalty"] {
        fields.neutral(name, &[json!(0)], sampling)?;
    }
    fields.neutral("stop", &[json!([])], sampling)?;
    for name in ["seed", "prediction", "audio", "moderation"] {
        fields.neutral(name, &[], "it has no meaning for an agent's turn")?;
    }
    Ok(())
}
