//! `tools/<name>.json`: tools that run a program, or ask a server.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::mcp_servers::{Environment, expand_variables};
use super::{last_good_version, list_folder, read_text, truncate_with_warning};
use crate::llm::is_tool_name;
use crate::tools::{BUILT_IN_NAMES, HttpCall, Permission, Schema};

/// The most bytes of a tool's file.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// The most tools of a catalog.
const MAX_TOOLS: usize = 256;
/// The longest description, in bytes. Every model is told it in every turn.
const MAX_DESCRIPTION_BYTES: usize = 1_024;
/// The most parts of a command.
const MAX_COMMAND_PARTS: usize = 256;
/// The most headers of a request.
const MAX_HEADERS: usize = 64;

/// A tool of the catalog.
#[derive(Clone, Debug, PartialEq)]
pub struct CatalogTool {
    /// Its name, which is its file's: one that every provider takes, and none of a built-in tool.
    pub name: String,
    /// What it is for, for the model.
    pub description: String,
    /// The JSON Schema of its input: a valid one, for an object.
    pub input_schema: Value,
    /// Whether it needs a person's leave where `permissions.json` does not say.
    pub permission: Permission,
    /// Whether running it twice is as good as once.
    pub idempotent: bool,
    /// Whether its program may use the network.
    pub network: bool,
    /// What a call of it runs.
    pub implementation: ToolImplementation,
}

/// What a call of a tool runs.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolImplementation {
    /// A program and its arguments. It is given the input as JSON on its standard input; what it writes to its
    /// standard output is the result. Paths of the catalog's own files are absolute.
    Command(Vec<String>),
    /// A request, with the input as its JSON body; what is answered is the result.
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

/// Reads all tools of the catalog in `catalog`, where `before` is what it held before.
pub(super) fn load(
    catalog: &Path,
    environment: &Environment,
    before: &[Arc<CatalogTool>],
    warnings: &mut Vec<String>,
) -> Vec<Arc<CatalogTool>> {
    let Some(mut files) = list_folder(&catalog.join("tools"), "tools", warnings) else {
        return before.to_vec();
    };
    // What else is there belongs to the tools: their programs.
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
    // The text may hold secrets, and what serde says of a value may repeat it: only the place is told.
    let written: ToolFile = serde_json::from_str(text).map_err(|error| redacted_json_error(&error))?;
    if !is_tool_name(name) {
        return Err("its name must be 1 to 64 of A-Z, a-z, 0-9, `_` and `-`".into());
    }
    if BUILT_IN_NAMES.contains(&name) {
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
    let runs = match (written.command, written.http) {
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
        implementation: runs,
    })
}

/// What is wrong with a JSON text that may hold secrets.
pub(super) fn redacted_json_error(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    match error.classify() {
        serde_json::error::Category::Data => {
            let text = error.to_string();
            // Names of fields are told, values are not.
            let names_fields = ["unknown field", "missing field", "duplicate field"];
            if names_fields.iter().any(|start| text.starts_with(start)) {
                return text;
            }
            format!("a value is not of the type that is wanted, at line {line} column {column}")
        }
        _ => format!("it is not JSON, at line {line} column {column}"),
    }
}

fn validated_schema(written: Option<Value>) -> Result<Value, String> {
    let schema = written.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    if schema.get("type") != Some(&json!("object")) {
        return Err("its `input_schema` must be a JSON Schema with \"type\": \"object\"".into());
    }
    Schema::compiled(&schema).map_err(|reason| format!("its `input_schema` cannot be used: {reason}"))?;
    Ok(schema)
}

/// The command with the paths of the catalog's files in full: its program begins in the workspace.
fn resolve_command(command: Vec<String>, catalog: &Path) -> Result<Vec<String>, String> {
    let [program, ..] = command.as_slice() else { return Err("its `command` is empty".into()) };
    if program.is_empty()
        || command.len() > MAX_COMMAND_PARTS
        || command.iter().any(|part| part.contains('\0'))
    {
        return Err(format!(
            "its `command` must be a program and its arguments, at most {MAX_COMMAND_PARTS} in all"
        ));
    }
    // A bare name is looked for on the `PATH`.
    if program.contains('/') && !program.starts_with('/') && resolve_catalog_path(program, catalog).is_none()
    {
        return Err(format!("there is no file `{program}` in the catalog"));
    }
    Ok(command.into_iter().map(|part| resolve_catalog_path(&part, catalog).unwrap_or(part)).collect())
}

/// The whole path of a part of a command that names a file of the catalog.
pub(super) fn resolve_catalog_path(part: &str, catalog: &Path) -> Option<String> {
    let path = Path::new(part);
    let named = path.is_relative() && part.contains('/');
    let path = Some(catalog.join(path)).filter(|path| named && path.is_file())?;
    Some(path.to_string_lossy().into_owned())
}

fn parse_http_call(written: &HttpSection, environment: &Environment) -> Result<HttpCall, String> {
    if written.headers.len() > MAX_HEADERS {
        return Err(format!("it has over {MAX_HEADERS} `headers`"));
    }
    let headers =
        written.headers.iter().map(|(name, value)| Ok((name.clone(), expand_variables(value, environment)?)));
    let headers: BTreeMap<String, String> = headers.collect::<Result<_, String>>()?;
    let url = expand_variables(&written.url, environment)?;
    HttpCall::parse(written.method.as_deref().unwrap_or("POST"), &url, &headers)
}

#[cfg(test)]
#[path = "tools_tests.rs"]
mod tests;
