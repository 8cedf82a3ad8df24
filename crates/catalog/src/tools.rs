//! `tools/<name>.json`: tools that run a program or call a server.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use api::tool_names;
use serde::Deserialize;
use serde_json::{Value, json};

use super::environment::{Environment, expand_variables};
use super::{
    last_good_version, list_folder, read_text, redacted_json_error, resolve_catalog_path,
    truncate_with_warning,
};
use crate::{HttpCall, Permission, Schema};

/// The maximum size of a tool's file, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// The maximum number of tools in a catalog.
const MAX_TOOLS: usize = 256;
/// The maximum length of a description, in bytes. It is sent to every model in every turn.
const MAX_DESCRIPTION_BYTES: usize = 1_024;
/// The maximum number of parts of a command.
const MAX_COMMAND_PARTS: usize = 256;
/// The maximum number of a request's headers.
const MAX_HEADERS: usize = 64;

/// A tool of the catalog.
#[derive(Clone, Debug, PartialEq)]
pub struct CatalogTool {
    /// Its name, which is its file's: one that every provider accepts, and not that of a built-in tool.
    pub name: String,
    /// Its description, for the model.
    pub description: String,
    /// The JSON Schema of its input: a valid one, for an object.
    pub input_schema: Value,
    /// Its default permission, if `permissions.json` has no rule for it.
    pub permission: Permission,
    /// Whether a second run has the same effect as one.
    pub idempotent: bool,
    /// Whether its program may use the network.
    pub network: bool,
    /// What a call runs.
    pub implementation: ToolImplementation,
}

/// The implementation of a tool.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolImplementation {
    /// A program and its arguments. It receives the input as JSON on its standard input; its standard output is
    /// the result. Paths of the catalog's own files are absolute.
    Command(Vec<String>),
    /// A request with the input as its JSON body or in its query; the response is the result.
    Http(HttpCall),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolFile {
    name: Option<String>,
    description: String,
    input_schema: Option<Value>,
    permission: Option<String>,
    idempotent: Option<bool>,
    network: Option<bool>,
    command: Option<Vec<String>>,
    http: Option<HttpSection>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpSection {
    method: Option<String>,
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// Loads all tools of the catalog in `catalog`; `before` are those of the previous load.
pub(super) fn load(
    catalog: &Path,
    environment: &Environment,
    before: &[Arc<CatalogTool>],
    warnings: &mut Vec<String>,
) -> Vec<Arc<CatalogTool>> {
    let Some(mut files) = list_folder(&catalog.join("tools"), "tools", warnings) else {
        return before.to_vec();
    };
    // Other files there belong to the tools: their programs.
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    truncate_with_warning(MAX_TOOLS, &mut files, "tools", warnings);
    let mut tools = Vec::new();
    for file in files {
        let name = file.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        match read_text(&file, MAX_FILE_BYTES).and_then(|text| parse(&name, &text, catalog, environment)) {
            Ok(tool) => tools.push(Arc::new(tool)),
            Err(reason) => {
                let (last_good, outcome) = last_good_version(&file, before, |tool| tool.name == name);
                warnings.push(format!("tools/{name}.json: {reason}{outcome}"));
                tools.extend(last_good);
            }
        }
    }
    tools
}

fn parse(name: &str, text: &str, catalog: &Path, environment: &Environment) -> Result<CatalogTool, String> {
    // The text may hold secrets, and a message of serde may quote them: only the position is reported.
    let written: ToolFile = serde_json::from_str(text).map_err(|error| redacted_json_error(&error))?;
    if !tool_names::is_valid(name) {
        return Err("its name must be 1 to 64 of A-Z, a-z, 0-9, `_` and `-`".into());
    }
    if tool_names::BUILT_IN.contains(&name) {
        return Err("a built-in tool has this name: choose another one".into());
    }
    if written.name.is_some_and(|written| written != name) {
        return Err(format!("its `name` must be that of its file, `{name}`"));
    }
    let description = written.description.trim().to_owned();
    if description.is_empty() || description.len() > MAX_DESCRIPTION_BYTES {
        return Err(format!(
            "its `description` must be 1 to {MAX_DESCRIPTION_BYTES} bytes: say what it is good at"
        ));
    }
    let permission = match written.permission.as_deref() {
        None => Permission::Ask,
        Some(permission) => Permission::from_name(permission)
            .ok_or("its `permission` must be \"allow\", \"ask\" or \"deny\"")?,
    };
    let implementation = match (written.command, written.http) {
        (Some(command), None) => ToolImplementation::Command(resolve_command(command, catalog)?),
        (None, Some(http)) => ToolImplementation::Http(parse_http_call(&http, environment)?),
        _ => return Err("it must have either a `command` or an `http`".into()),
    };
    Ok(CatalogTool {
        name: name.to_owned(),
        description,
        input_schema: validated_schema(written.input_schema)?,
        permission,
        idempotent: written.idempotent.unwrap_or(false),
        network: written.network.unwrap_or(true),
        implementation,
    })
}

fn validated_schema(written: Option<Value>) -> Result<Value, String> {
    let schema = written.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    if schema.get("type") != Some(&json!("object")) {
        return Err("its `input_schema` must be a JSON Schema with \"type\": \"object\"".into());
    }
    Schema::compiled(&schema).map_err(|reason| format!("its `input_schema` cannot be used: {reason}"))?;
    Ok(schema)
}

/// Resolves the paths of the catalog's files in a command, because its program starts in the workspace.
pub(super) fn resolve_command(command: Vec<String>, catalog: &Path) -> Result<Vec<String>, String> {
    let [program, ..] = command.as_slice() else { return Err("its `command` is empty".into()) };
    if program.is_empty()
        || command.len() > MAX_COMMAND_PARTS
        || command.iter().any(|part| part.contains('\0'))
    {
        return Err(format!(
            "its `command` must be a program and its arguments, at most {MAX_COMMAND_PARTS} in all"
        ));
    }
    // A bare name is searched on the `PATH`.
    if program.contains('/') && !program.starts_with('/') && resolve_catalog_path(program, catalog).is_none()
    {
        return Err(format!("there is no file `{program}` in the catalog"));
    }
    Ok(command.into_iter().map(|part| resolve_catalog_path(&part, catalog).unwrap_or(part)).collect())
}

fn parse_http_call(written: &HttpSection, environment: &Environment) -> Result<HttpCall, String> {
    let method = written.method.as_deref().unwrap_or("POST");
    http_call(method, &written.url, &written.headers, environment)
}

/// Returns a request of the catalog, whose URL and headers may refer to environment variables.
pub(super) fn http_call(
    method: &str,
    url: &str,
    headers: &BTreeMap<String, String>,
    environment: &Environment,
) -> Result<HttpCall, String> {
    if headers.len() > MAX_HEADERS {
        return Err(format!("it has over {MAX_HEADERS} `headers`"));
    }
    let headers =
        headers.iter().map(|(name, value)| Ok((name.clone(), expand_variables(value, environment)?)));
    let headers: BTreeMap<String, String> = headers.collect::<Result<_, String>>()?;
    HttpCall::parse(method, &expand_variables(url, environment)?, &headers)
}

#[cfg(test)]
#[path = "../tests/unit/tools.rs"]
mod tests;
