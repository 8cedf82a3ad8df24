//! The rules of `tools` and `toolConfig` (<https://ai.google.dev/gemini-api/docs/function-calling>). The vendor's
//! server tools are refused, because this provider does not run them.

use std::collections::HashSet;

use super::super::error::invalid;
use super::super::node::Node;
use super::schema;
use crate::protocol::ApiError;

const MAX_NAME_LEN: usize = 64;

pub(super) fn check(root: &Node<'_>) -> Result<(), ApiError> {
    let mut names = HashSet::new();
    if let Some(tools) = root.member("tools") {
        for tool in tools.list()? {
            tool.only(&["functionDeclarations"])?;
            let Some(declarations) = tool.member("functionDeclarations") else { continue };
            for declaration in declarations.list()? {
                let name = check_declaration(&declaration)?;
                if !names.insert(name) {
                    return Err(invalid(format!("Duplicate function declaration found: {name}")));
                }
            }
        }
    }
    match root.member("toolConfig") {
        Some(config) => check_config(&config, &names),
        None => Ok(()),
    }
}

fn check_declaration<'a>(declaration: &Node<'a>) -> Result<&'a str, ApiError> {
    declaration.only(&[
        "name",
        "description",
        "behavior",
        "parameters",
        "parametersJsonSchema",
        "response",
        "responseJsonSchema",
    ])?;
    let name = declaration.member("name").map_or(Ok(""), |name| name.string())?;
    if !is_valid_name(name) {
        return Err(invalid(format!(
            "* GenerateContentRequest.{}.name: Invalid function name. Must start with a letter or an underscore. Must \
             be alphameric (a-z, A-Z, 0-9), underscores (_), dots (.), colons (:), or dashes (-), with a maximum \
             length of {MAX_NAME_LEN}.\n",
            declaration.path
        )));
    }
    if let Some(description) = declaration.member("description") {
        description.string()?;
    }
    match (declaration.member("parameters"), declaration.member("parametersJsonSchema")) {
        (Some(_), Some(_)) => Err(declaration
            .violation("parameters and parameters_json_schema are mutually exclusive; please set only one.")),
        (Some(parameters), None) => schema::check(&parameters),
        // Any JSON Schema is accepted.
        (None, Some(parameters)) => parameters.object().map(|_| ()),
        (None, None) => Ok(()),
    }?;
    Ok(name)
}

fn is_valid_name(name: &str) -> bool {
    let is_first = |character: char| character.is_ascii_alphabetic() || character == '_';
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || "_.:-".contains(character);
    name.starts_with(is_first) && name.chars().all(is_allowed) && name.len() <= MAX_NAME_LEN
}

fn check_config(config: &Node<'_>, names: &HashSet<&str>) -> Result<(), ApiError> {
    config.only(&["functionCallingConfig", "retrievalConfig", "includeServerSideToolInvocations"])?;
    let Some(calling) = config.member("functionCallingConfig") else { return Ok(()) };
    calling.only(&["mode", "allowedFunctionNames"])?;
    let modes = ["MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"];
    let mode = match calling.member("mode") {
        Some(mode) => mode.one_of("FunctionCallingConfig.Mode", &modes)?,
        None => "AUTO".to_owned(),
    };
    if names.is_empty() {
        return Err(invalid("Function calling config is set without function_declarations."));
    }
    let Some(allowed) = calling.member("allowedFunctionNames") else { return Ok(()) };
    if !["ANY", "VALIDATED"].contains(&mode.as_str()) {
        return Err(invalid("Allowed function names should be set only when function calling mode is ANY."));
    }
    for name in allowed.list()? {
        let name = name.string()?;
        if !names.contains(name) {
            return Err(invalid(format!(
                "allowed_function_names: {name} is not one of the declared functions."
            )));
        }
    }
    Ok(())
}
