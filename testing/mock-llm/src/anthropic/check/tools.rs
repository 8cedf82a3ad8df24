//! The rules of `tools` and `tool_choice`
//! (<https://platform.claude.com/docs/en/agents-and-tools/tool-use/implement-tool-use>).

use std::collections::HashSet;

use serde_json::Value;

use super::super::node::Node;
use super::thinking::ThinkingConfig;
use crate::protocol::ApiError;

const SCHEMA_TYPES: &[&str] = &["array", "boolean", "integer", "null", "number", "object", "string"];

/// Whether a tool may have this name: `^[a-zA-Z0-9_-]{1,64}$`.
pub(super) fn is_tool_name(name: &str) -> bool {
    let is_allowed =
        |character: char| character.is_ascii_alphanumeric() || character == '_' || character == '-';
    (1..=64).contains(&name.len()) && name.chars().all(is_allowed)
}

pub(super) fn check(root: &Node<'_>, thinking: ThinkingConfig) -> Result<(), ApiError> {
    let mut names = HashSet::new();
    if let Some(tools) = root.member("tools") {
        for tool in tools.list()? {
            if !names.insert(check_tool(&tool)?) {
                return Err(ApiError::invalid("tools: Tool names must be unique."));
            }
        }
    }
    match root.member("tool_choice") {
        Some(choice) => check_choice(&choice, &names, thinking),
        None => Ok(()),
    }
}

/// Checks a tool and returns its name. The vendor's server tools, which have types of their own, are refused,
/// because this provider does not run them.
fn check_tool<'a>(tool: &Node<'a>) -> Result<&'a str, ApiError> {
    if tool.member("type").is_some() {
        tool.tag(&["custom"])?;
    }
    let tool = tool.as_variant("custom");
    tool.only(&[
        "type",
        "name",
        "description",
        "input_schema",
        "cache_control",
        "strict",
        "input_examples",
        "eager_input_streaming",
        "defer_loading",
        "allowed_callers",
    ])?;
    let name = tool.required("name")?;
    if !is_tool_name(name.string()?) {
        return Err(name.error("String should match pattern '^[a-zA-Z0-9_-]{1,64}$'"));
    }
    if let Some(description) = tool.member("description") {
        description.string()?;
    }
    check_input_schema(&tool.required("input_schema")?)?;
    name.string()
}

fn check_input_schema(schema: &Node<'_>) -> Result<(), ApiError> {
    let members = schema.object()?;
    match members.get("type") {
        None => return Err(ApiError::invalid(format!("{}.type: Field required", schema.path))),
        Some(kind) if kind == "object" => {}
        Some(_) => return Err(ApiError::invalid(format!("{}.type: Input should be 'object'", schema.path))),
    }
    if ["oneOf", "allOf", "anyOf"].iter().any(|keyword| members.contains_key(*keyword)) {
        return Err(schema.error("input_schema does not support oneOf, allOf, or anyOf at the top level"));
    }
    if is_schema(schema.value) {
        return Ok(());
    }
    Err(schema.error(
        "JSON schema is invalid. It must match JSON Schema draft 2020-12 \
         (https://json-schema.org/draft/2020-12). Learn more about tool use at \
         https://docs.claude.com/en/docs/tool-use.",
    ))
}

/// Whether the usual keywords have values that are valid in JSON Schema 2020-12.
fn is_schema(schema: &Value) -> bool {
    let Value::Object(members) = schema else { return schema.is_boolean() };
    members.iter().all(|(keyword, value)| match keyword.as_str() {
        "type" => match value {
            Value::Array(kinds) => !kinds.is_empty() && kinds.iter().all(is_type),
            kind => is_type(kind),
        },
        "properties" | "$defs" | "patternProperties" => {
            value.as_object().is_some_and(|schemas| schemas.values().all(is_schema))
        }
        "required" => value.as_array().is_some_and(|names| names.iter().all(Value::is_string)),
        "enum" => value.is_array(),
        "items" | "additionalProperties" | "not" => is_schema(value),
        "anyOf" | "oneOf" | "allOf" | "prefixItems" => {
            value.as_array().is_some_and(|schemas| !schemas.is_empty() && schemas.iter().all(is_schema))
        }
        "description" | "title" | "$ref" | "$schema" | "$id" | "pattern" | "format" => value.is_string(),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => value.is_number(),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
            value.is_u64()
        }
        "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" => value.is_boolean(),
        // JSON Schema allows unknown keywords.
        _ => true,
    })
}

fn is_type(value: &Value) -> bool {
    value.as_str().is_some_and(|kind| SCHEMA_TYPES.contains(&kind))
}

fn check_choice(choice: &Node<'_>, names: &HashSet<&str>, thinking: ThinkingConfig) -> Result<(), ApiError> {
    let kind = choice.tag(&["any", "auto", "none", "tool"])?;
    if names.is_empty() {
        return Err(ApiError::invalid(
            "tool_choice: tool_choice may only be specified while providing tools.",
        ));
    }
    let choice = choice.as_variant(kind);
    match kind {
        "none" => choice.only(&["type"])?,
        "tool" => choice.only(&["type", "name", "disable_parallel_tool_use"])?,
        _ => choice.only(&["type", "disable_parallel_tool_use"])?,
    };
    if kind == "tool" {
        let name = choice.required("name")?.string()?;
        if !names.contains(name) {
            return Err(ApiError::invalid(format!("Tool '{name}' not found in provided tools")));
        }
    }
    // "Adaptive thinking supports forced tool use", but thinking with a budget does not.
    if matches!(kind, "any" | "tool") && thinking == ThinkingConfig::Budget {
        return Err(ApiError::invalid("Thinking may not be enabled when tool_choice forces tool use."));
    }
    Ok(())
}
