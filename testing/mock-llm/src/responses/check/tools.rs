//! The rules of `tools` and `tool_choice`, in which functions have the flat form
//! (<https://platform.openai.com/docs/guides/function-calling>). The vendor's server tools are refused, because
//! this provider does not run them.

use serde_json::Value;

use crate::openai::check::tools::{check_function_name, check_parameters};
use crate::openai::node::Node;
use crate::protocol::ApiError;

pub(super) fn check(root: &Node<'_>) -> Result<(), ApiError> {
    let mut names = Vec::new();
    if let Some(tools) = root.member("tools") {
        for tool in tools.list()? {
            names.push(check_tool(&tool)?);
        }
    }
    match root.member("tool_choice") {
        Some(choice) => check_choice(&choice, &names),
        None => Ok(()),
    }
}

fn check_tool<'a>(tool: &Node<'a>) -> Result<&'a str, ApiError> {
    tool.required("type")?.one_of(&["function"])?;
    let name = tool.required("name")?;
    check_function_name(&name)?;
    tool.only(&["type", "name", "description", "parameters", "strict", "defer_loading", "allowed_callers"])?;
    if let Some(description) = tool.member("description") {
        description.string()?;
    }
    // The default means "strict if the schema allows it", which refuses nothing.
    let is_strict = tool.member("strict").map_or(Ok(false), |strict| strict.boolean())?;
    if let Some(parameters) = tool.member("parameters") {
        check_parameters(&parameters, name.string()?, is_strict)?;
    }
    name.string()
}

fn check_choice(choice: &Node<'_>, names: &[&str]) -> Result<(), ApiError> {
    if matches!(choice.value, Value::String(_)) {
        return choice.one_of(&["none", "auto", "required"]).map(|_| ());
    }
    if choice.required("type")?.one_of(&["function", "allowed_tools"])? == "allowed_tools" {
        return Ok(());
    }
    let name = choice.required("name")?.string()?;
    if names.contains(&name) {
        return Ok(());
    }
    let message = format!("Tool choice '{name}' not found in 'tools' parameter.");
    Err(ApiError::invalid(message).with_param("tool_choice"))
}
