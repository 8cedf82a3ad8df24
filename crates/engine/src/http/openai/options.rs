//! What both kinds of requests can set for their turn, in the terms of `POST /execute`.

use api::TaskId;
use api::engine::{Execute, MaxTurns};
use api::response_format::ResponseFormat;
use api::turn_options::{AllowedTools, Effort, MaxCost, MaxTokens};
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::VendorError;
use super::fields::{Fields, WithoutEffect, object_of};
use super::prompt::Prompt;

/// The name of the model that the engine's configuration chooses.
pub(super) const DEFAULT_MODEL: &str = "default";
/// Fields for the vendor's own use, which change nothing about an answer.
pub(super) const HINTS: [&str; 5] =
    ["user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"];

/// The object `roundhouse`: what the vendor's API has no field for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Extension {
    pub(in crate::http) task_id: Option<TaskId>,
    direct: Option<bool>,
    super_thinking: Option<bool>,
    max_turns: Option<MaxTurns>,
    allowed_tools: Option<AllowedTools>,
    max_tokens: Option<MaxTokens>,
    max_cost_usd: Option<MaxCost>,
}

impl Extension {
    /// The request to run the turn of `prompt`.
    pub(in crate::http) fn into_execute(
        self,
        task_id: TaskId,
        prompt: Prompt,
    ) -> Result<Execute, VendorError> {
        let Prompt { instructions, message, media, .. } = prompt;
        let instructions = instructions.map(|text| {
            serde_json::from_value(Value::String(text))
                .map_err(|error| VendorError::invalid("instructions", error))
        });
        Ok(Execute {
            instructions: instructions.transpose()?,
            media,
            direct: self.direct.unwrap_or_default(),
            super_thinking: self.super_thinking.unwrap_or_default(),
            max_turns: self.max_turns,
            allowed_tools: self.allowed_tools,
            max_tokens: self.max_tokens,
            max_cost_usd: self.max_cost_usd,
            ..Execute::new(task_id, message)
        })
    }
}

/// Takes the fields that mean the same in both kinds of requests, and have no effect beyond their one good value.
pub(super) fn take_neutral(fields: &mut Fields) -> Result<(), VendorError> {
    let sampling = "the engine's configuration decides how its models sample; only the default is accepted";
    let one = [json!(1)];
    fields.neutral("temperature", &one, sampling)?;
    fields.neutral("top_p", &one, sampling)?;
    fields.neutral("top_logprobs", &[json!(0)], "log probabilities are not available")?;
    let tools = "the agent's tools are those of its catalog and of its user; a request cannot bring its own";
    fields.neutral("tools", &[json!([])], tools)?;
    fields.neutral("tool_choice", &[json!("auto")], "the agent decides which of its tools it calls")?;
    fields.neutral("parallel_tool_calls", &[json!(true)], "the agent decides how it calls its tools")?;
    let tiers = [json!("auto"), json!("default")];
    fields.neutral(
        "service_tier",
        &tiers,
        "the engine's configuration decides how its provider is called",
    )?;
    fields.neutral("store", &[json!(true)], "a turn is always stored: the conversation is the agent's memory")
}

/// The model, as it is named in answers, and as `POST /execute` takes it.
pub(super) fn take_model(fields: &mut Fields) -> Result<(String, Option<String>), VendorError> {
    let name = fields.text("model")?.unwrap_or_else(|| DEFAULT_MODEL.to_owned());
    let model = (name != DEFAULT_MODEL).then(|| name.clone());
    Ok((name, model))
}

/// The effort. `none` leaves it to the configuration.
pub(in crate::http) fn parse_effort(param: &str, name: Option<&str>) -> Result<Option<Effort>, VendorError> {
    let name = match name {
        None | Some("none") => return Ok(None),
        Some("minimal") => "low",
        Some(name) => name,
    };
    let invalid = |_| {
        VendorError::invalid(param, "must be `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`")
    };
    serde_json::from_value(json!(name)).map(Some).map_err(invalid)
}

/// Padding that hides the length of pieces from whoever listens. There is none.
pub(super) fn take_obfuscation(
    stream_options: &mut Fields,
    without_effect: &mut WithoutEffect,
) -> Result<(), VendorError> {
    if stream_options.flag("include_obfuscation")?.unwrap_or_default() {
        without_effect.add(stream_options.name("include_obfuscation"));
    }
    Ok(())
}

/// The form of the answer: `format` is the vendor's object, and `schema_member` the member that has the schema, if it
/// is not the object itself.
pub(super) fn parse_format(
    param: &str,
    format: Option<Value>,
    schema_member: Option<&str>,
    without_effect: &mut WithoutEffect,
) -> Result<Option<ResponseFormat>, VendorError> {
    let Some(format) = format else { return Ok(None) };
    let mut fields = object_of(format, param)?;
    let form = match fields.text("type")?.as_deref() {
        Some("text") => None,
        Some("json_object") => {
            Some(json!({"type": "json_schema", "name": "json_object", "schema": {"type": "object"}}))
        }
        Some("json_schema") => {
            let mut inner = match schema_member {
                None => fields,
                Some(member) => {
                    let missing = || VendorError::invalid(&format!("{param}.{member}"), "must be given");
                    let inner = fields.object(member)?.ok_or_else(missing)?;
                    fields.finish()?;
                    inner
                }
            };
            let form = json!({
                "type": "json_schema",
                "name": inner.text("name")?,
                "schema": inner.take("schema"),
                "strict": inner.flag("strict")?.unwrap_or_default(),
            });
            // What the form is for, the schema can say itself.
            if inner.text("description")?.is_some() {
                without_effect.add(inner.name("description"));
            }
            inner.finish()?;
            return parse_form(param, form).map(Some);
        }
        _ => {
            let expected = "must be `text`, `json_object` or `json_schema`";
            return Err(VendorError::invalid(&format!("{param}.type"), expected));
        }
    };
    fields.finish()?;
    form.map(|form| parse_form(param, form)).transpose()
}

fn parse_form(param: &str, form: Value) -> Result<ResponseFormat, VendorError> {
    serde_json::from_value(form).map_err(|error| VendorError::invalid(param, error))
}
