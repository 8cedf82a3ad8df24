//! The rules of `tools` and `tool_choice` (<https://platform.openai.com/docs/guides/function-calling>).

use serde_json::Value;

use super::super::node::Node;
use crate::protocol::ApiError;

const MAX_NAME_LEN: usize = 64;

pub(super) fn check(root: &Node<'_>) -> Result<(), ApiError> {
    let mut names = Vec::new();
    if let Some(tools) = root.member("tools") {
        for tool in tools.non_empty_list()? {
            names.push(check_tool(&tool)?);
        }
    } else if let Some(name) =
        ["tool_choice", "parallel_tool_calls"].into_iter().find(|name| root.member(name).is_some())
    {
        let message =
            format!("Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified.");
        return Err(ApiError::invalid(message).with_param(name));
    }
    if let Some(parallel) = root.member("parallel_tool_calls") {
        parallel.boolean()?;
    }
    match root.member("tool_choice") {
        Some(choice) => check_choice(&choice, &names),
        None => Ok(()),
    }
}

/// Checks a function's name: `^[a-zA-Z0-9_-]{1,64}$`.
pub(crate) fn check_function_name(name: &Node<'_>) -> Result<(), ApiError> {
    let text = name.string()?;
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
    if text.is_empty() || !text.chars().all(is_allowed) {
        let detail = "string does not match pattern. Expected a string that matches the pattern \
                      '^[a-zA-Z0-9_-]+$'.";
        return Err(name.invalid(detail).with_code("invalid_value"));
    }
    if text.len() > MAX_NAME_LEN {
        let detail = format!(
            "string too long. Expected a string with maximum length {MAX_NAME_LEN}, but got a string with length {} \
             instead.",
            text.len()
        );
        return Err(name.invalid(&detail).with_code("string_above_max_length"));
    }
    Ok(())
}

fn check_tool<'a>(tool: &Node<'a>) -> Result<&'a str, ApiError> {
    tool.only(&["type", "function"])?;
    tool.required("type")?.one_of(&["function"])?;
    let function = tool.required("function")?;
    function.only(&["name", "description", "parameters", "strict"])?;
    let name = function.required("name")?;
    check_function_name(&name)?;
    if let Some(description) = function.member("description") {
        description.string()?;
    }
    let is_strict = function.member("strict").map_or(Ok(false), |strict| strict.boolean())?;
    if let Some(parameters) = function.member("parameters") {
        check_parameters(&parameters, name.string()?, is_strict)?;
    }
    name.string()
}

/// Checks a function's parameters: a JSON Schema of an object. In strict mode, additional properties must be
/// forbidden and all properties required.
pub(crate) fn check_parameters(parameters: &Node<'_>, name: &str, is_strict: bool) -> Result<(), ApiError> {
    let members = parameters.object()?;
    let refuse = |detail: &str| {
        Err(ApiError::invalid(format!("Invalid schema for function '{name}': {detail}"))
            .with_param(&parameters.path)
            .with_code("invalid_function_parameters"))
    };
    let kind = members.get("type").cloned().unwrap_or_default();
    // "Omitting parameters defines a function with an empty parameter list", and so does `{}`.
    if kind != "object" && !members.is_empty() {
        let kind = kind.as_str().unwrap_or("None");
        return refuse(&format!(
            "schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
        ));
    }
    let properties = members.get("properties");
    if properties.is_some_and(|properties| !properties.is_object()) {
        return refuse("'properties' is not of type 'object'.");
    }
    if !is_strict {
        return Ok(());
    }
    if members.get("additionalProperties") != Some(&Value::Bool(false)) {
        return refuse("In context=(), 'additionalProperties' is required to be supplied and to be false.");
    }
    let required = members.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let names = properties.and_then(Value::as_object).into_iter().flat_map(|properties| properties.keys());
    match names.into_iter().find(|name| !required.iter().any(|required| required == name.as_str())) {
        None => Ok(()),
        Some(missing) => refuse(&format!(
            "In context=(), 'required' is required to be supplied and to be an array including every key in \
             properties. Missing '{missing}'."
        )),
    }
}

/// The first violation of the rules of strict mode in a schema or in one inside it.
pub(crate) fn strict_violation(schema: &Value) -> Option<String> {
    let members = schema.as_object()?;
    let properties = members.get("properties").and_then(Value::as_object);
    if members.get("type").is_some_and(|kind| kind == "object") {
        if members.get("additionalProperties") != Some(&Value::Bool(false)) {
            let violation =
                "In context=(), 'additionalProperties' is required to be supplied and to be false.";
            return Some(violation.to_owned());
        }
        let required = members.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut names = properties.into_iter().flat_map(|properties| properties.keys());
        if let Some(missing) = names.find(|name| !required.iter().any(|required| required == name.as_str())) {
            return Some(format!(
                "In context=(), 'required' is required to be supplied and to be an array including every key in \
                 properties. Missing '{missing}'."
            ));
        }
    }
    let inner = properties.into_iter().flat_map(|properties| properties.values());
    inner.chain(members.get("items")).find_map(strict_violation)
}

fn check_choice(choice: &Node<'_>, names: &[&str]) -> Result<(), ApiError> {
    if matches!(choice.value, Value::String(_)) {
        return choice.one_of(&["none", "auto", "required"]).map(|_| ());
    }
    choice.required("type")?.one_of(&["function", "allowed_tools"])?;
    let Some(function) = choice.member("function") else { return Ok(()) };
    let name = function.required("name")?.string()?;
    if names.contains(&name) {
        return Ok(());
    }
    let message = format!("Tool choice '{name}' not found in 'tools' parameter.");
    Err(ApiError::invalid(message).with_param("tool_choice"))
}
