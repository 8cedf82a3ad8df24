//! The definition of a tool as its server describes it, validated and bounded.
//!
//! Whatever is usable of a server's list is used: a definition that is not is left out, never the whole server.

use std::collections::HashSet;

use resources::text::{first_bytes, first_chars};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The maximum number of a server's tools.
pub(super) const MAX_TOOLS: usize = 512;
/// The maximum size of a tool's definition, and of all definitions of a server, in bytes.
pub(super) const MAX_TOOL_BYTES: usize = 64 * 1024;
pub(super) const MAX_TOTAL_BYTES: usize = 2 * 1024 * 1024;
/// The maximum length of a name, in characters, as in the protocol.
const MAX_NAME_CHARS: usize = 128;
/// The maximum length of a description that is kept, in bytes.
const MAX_DESCRIPTION_BYTES: usize = 4 * 1024;
/// How many invalid definitions the log names.
const MAX_LOGGED_FAULTS: usize = 5;

/// A server's tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ToolDefinition {
    /// Its name at the server.
    pub name: String,
    /// Its description.
    pub description: String,
    /// The JSON Schema of its input, which is an object.
    pub input_schema: Value,
    /// Whether the server declares it read-only.
    pub(crate) read_only: bool,
    /// Whether the server declares it idempotent.
    pub idempotent: bool,
}

/// Returns the prefix of the names of a server's tools.
pub(super) fn tool_name_prefix(server: &str) -> String {
    format!("{server}__")
}

/// Faults of one kind in a server's list: their number, and the first of them. They are logged as one line,
/// however many there are.
#[derive(Default)]
struct DefinitionFaults {
    count: usize,
    examples: Vec<String>,
}

impl DefinitionFaults {
    fn add(&mut self, fault: impl FnOnce() -> String) {
        self.count += 1;
        if self.examples.len() < MAX_LOGGED_FAULTS {
            self.examples.push(fault());
        }
    }

    fn log(&self, server: &str, what: &str) {
        if self.count > 0 {
            tracing::warn!(server, count = self.count, first = self.examples.join("; "), "{what}");
        }
    }
}

/// Returns the usable tools of a server's list, in its order; logs the number of the others and the first of them.
pub(super) fn validate_tools(server: &str, listed: &[Value]) -> Vec<ToolDefinition> {
    let mut tools: Vec<ToolDefinition> = Vec::new();
    let mut names = HashSet::new();
    let mut bytes = 0;
    let (mut skipped, mut replaced_schemas) = (DefinitionFaults::default(), DefinitionFaults::default());
    for tool in listed {
        let (definition, has_object_schema) = match parse_definition(tool) {
            Ok(read) => read,
            Err(reason) => {
                skipped.add(|| reason);
                continue;
            }
        };
        let size = definition.size();
        let reason = if size > MAX_TOOL_BYTES {
            Some(format!("its definition has over {MAX_TOOL_BYTES} bytes"))
        } else if bytes + size > MAX_TOTAL_BYTES {
            Some(format!("the definitions together have over {MAX_TOTAL_BYTES} bytes"))
        } else if tools.len() == MAX_TOOLS {
            Some(format!("the server has over {MAX_TOOLS} tools"))
        } else if !names.insert(definition.name.clone()) {
            Some("another tool has the same name".to_owned())
        } else {
            None
        };
        if let Some(reason) = reason {
            skipped.add(|| format!("{}: {reason}", definition.name));
            continue;
        }
        if !has_object_schema {
            replaced_schemas.add(|| definition.name.clone());
        }
        bytes += size;
        tools.push(definition);
    }
    skipped.log(server, "Some tools of a server are skipped.");
    replaced_schemas.log(
        server,
        "Some tools of a server have an input schema that is not for an object; any object is accepted.",
    );
    tools
}

/// Parses one tool of `tools/list`; returns also whether its input schema was usable, or the reason why it is
/// invalid.
fn parse_definition(tool: &Value) -> Result<(ToolDefinition, bool), String> {
    let name = tool.get("name").and_then(Value::as_str).ok_or("a tool has no name")?;
    if !is_valid_name(name) {
        let shortened = first_chars(name, MAX_NAME_CHARS);
        return Err(format!("{shortened:?}: its name must be 1 to {MAX_NAME_CHARS} visible characters"));
    }
    let description = tool.get("description").and_then(Value::as_str).unwrap_or_default();
    let hint = |hint: &str| tool.pointer(hint).and_then(Value::as_bool).unwrap_or(false);
    let schema = tool.get("inputSchema").and_then(object_schema);
    let has_object_schema = schema.is_some();
    let definition = ToolDefinition {
        name: name.to_owned(),
        description: first_bytes(description, MAX_DESCRIPTION_BYTES).to_owned(),
        input_schema: schema.unwrap_or_else(|| json!({"type": "object", "properties": {}})),
        read_only: hint("/annotations/readOnlyHint"),
        idempotent: hint("/annotations/idempotentHint"),
    };
    Ok((definition, has_object_schema))
}

/// Returns the schema, if it is one for objects.
fn object_schema(schema: &Value) -> Option<Value> {
    let fields = schema.as_object()?;
    let is_object = fields.get("type").is_none_or(|kind| kind == "object");
    let has_properties = fields.get("properties").is_none_or(Value::is_object);
    if !is_object || !has_properties {
        return None;
    }
    let mut fields = fields.clone();
    fields.insert("type".into(), "object".into());
    Some(Value::Object(fields))
}

/// Whether a name can be shown to people and in logs.
fn is_valid_name(name: &str) -> bool {
    let visible = |character: char| character.is_ascii_graphic() || character.is_alphanumeric();
    (1..=MAX_NAME_CHARS).contains(&name.chars().count()) && name.chars().all(visible)
}

impl ToolDefinition {
    fn size(&self) -> usize {
        // Strings and JSON values can always be serialized.
        serde_json::to_vec(self).map_or(0, |bytes| bytes.len())
    }
}

#[cfg(test)]
#[path = "../tests/unit/definition.rs"]
mod tests;
