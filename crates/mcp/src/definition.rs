//! The definition of a tool as its server describes it, validated and bounded.
//!
//! Whatever is usable of a server's list is used: a definition that is not is left out, never the whole server.

use std::collections::HashSet;

use catalog::ServerOrigin;
use resources::text::{first_bytes, first_chars};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tools::approval;

/// The maximum number of a server's tools.
pub(super) const MAX_TOOLS: usize = 512;
/// The maximum size of a tool's definition, and of all definitions of a server, in bytes.
pub(super) const MAX_TOOL_BYTES: usize = 64 * 1024;
pub(super) const MAX_TOTAL_BYTES: usize = 2 * 1024 * 1024;
/// The maximum length of a name, in characters, as in the protocol.
const MAX_NAME_CHARS: usize = 128;
/// The maximum length of a description that is kept, in bytes.
const MAX_DESCRIPTION_BYTES: usize = 4 * 1024;
/// The same limits for a server that the user has added: its definitions are stored twice, as listed and as
/// approved.
const MAX_USER_TOOLS: usize = 128;
const MAX_USER_TOTAL_BYTES: usize = 256 * 1024;
/// How deep the schema of a tool of such a server is: people read it with a line for each value.
const MAX_USER_SCHEMA_DEPTH: usize = 32;
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
pub(super) fn validate_tools(server: &str, origin: ServerOrigin, listed: &[Value]) -> Vec<ToolDefinition> {
    let (max_tools, max_total_bytes) = match origin {
        ServerOrigin::Catalog => (MAX_TOOLS, MAX_TOTAL_BYTES),
        ServerOrigin::User => (MAX_USER_TOOLS, MAX_USER_TOTAL_BYTES),
    };
    let mut tools: Vec<ToolDefinition> = Vec::new();
    let mut names = HashSet::new();
    let mut bytes = 0;
    let (mut skipped, mut replaced_schemas) = (DefinitionFaults::default(), DefinitionFaults::default());
    for tool in listed {
        let (definition, has_object_schema) = match parse_definition(tool, origin) {
            Ok(read) => read,
            Err(reason) => {
                skipped.add(|| reason);
                continue;
            }
        };
        let size = definition.size();
        let reason = if size > MAX_TOOL_BYTES {
            Some(format!("its definition has over {MAX_TOOL_BYTES} bytes"))
        } else if bytes + size > max_total_bytes {
            Some(format!("the definitions together have over {max_total_bytes} bytes"))
        } else if tools.len() == max_tools {
            Some(format!("the server has over {max_tools} tools"))
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
fn parse_definition(tool: &Value, origin: ServerOrigin) -> Result<(ToolDefinition, bool), String> {
    let name = tool.get("name").and_then(Value::as_str).ok_or("a tool has no name")?;
    if !is_valid_name(name) {
        let shortened = first_chars(name, MAX_NAME_CHARS);
        return Err(format!("{shortened:?}: its name must be 1 to {MAX_NAME_CHARS} visible characters"));
    }
    let description = tool.get("description").and_then(Value::as_str).unwrap_or_default();
    let hint = |hint: &str| tool.pointer(hint).and_then(Value::as_bool).unwrap_or(false);
    let schema = tool.get("inputSchema").and_then(object_schema);
    let has_object_schema = schema.is_some();
    let mut definition = ToolDefinition {
        name: name.to_owned(),
        description: first_bytes(description, MAX_DESCRIPTION_BYTES).to_owned(),
        input_schema: schema.unwrap_or_else(|| json!({"type": "object", "properties": {}})),
        read_only: hint("/annotations/readOnlyHint"),
        idempotent: hint("/annotations/idempotentHint"),
    };
    if origin == ServerOrigin::User {
        definition.remove_hidden_text();
        if is_deeper_than(&definition.input_schema, MAX_USER_SCHEMA_DEPTH) {
            return Err(format!(
                "{name}: its input schema is nested over {MAX_USER_SCHEMA_DEPTH} levels deep"
            ));
        }
        if has_hidden_text(&definition.input_schema) {
            return Err(format!("{name}: its input schema has invisible or control characters"));
        }
    }
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
    let visible = |character: char| {
        character.is_ascii_graphic() || (character.is_alphanumeric() && !approval::is_hiding(character))
    };
    (1..=MAX_NAME_CHARS).contains(&name.chars().count()) && name.chars().all(visible)
}

impl ToolDefinition {
    /// Removes what the model would read and a person would not see.
    fn remove_hidden_text(&mut self) {
        remove_hidden(&mut self.description);
        remove_hidden_from_schema(&mut self.input_schema);
    }

    fn size(&self) -> usize {
        // Strings and JSON values can always be serialized.
        serde_json::to_vec(self).map_or(0, |bytes| bytes.len())
    }
}

/// Removes control characters, invisible ones, and those that change the text direction.
fn remove_hidden(text: &mut String) {
    if !text.chars().all(is_seen) {
        text.retain(is_seen);
    }
}

/// Whether a person sees a character, or what it does.
fn is_seen(character: char) -> bool {
    matches!(character, '\n' | '\t') || !(character.is_control() || approval::is_hiding(character))
}

/// Does so in the texts of a schema that only describe. The others are what a call has to match.
fn remove_hidden_from_schema(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if ["description", "title", "$comment"].contains(&name.as_str()) => {
                        remove_hidden(text);
                    }
                    field => remove_hidden_from_schema(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(remove_hidden_from_schema),
        _ => {}
    }
}

/// Whether the model would read something in a schema that a person would not see.
fn has_hidden_text(schema: &Value) -> bool {
    let hides = |text: &str| !text.chars().all(is_seen);
    match schema {
        Value::Object(fields) => fields.iter().any(|(name, field)| hides(name) || has_hidden_text(field)),
        Value::Array(items) => items.iter().any(has_hidden_text),
        Value::String(text) => hides(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Whether objects and arrays are nested over `levels` deep.
fn is_deeper_than(value: &Value, levels: usize) -> bool {
    let mut parts: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Object(fields) => Box::new(fields.values()),
        Value::Array(items) => Box::new(items.iter()),
        _ => return false,
    };
    levels == 0 || parts.any(|part| is_deeper_than(part, levels - 1))
}

#[cfg(test)]
#[path = "../tests/unit/definition.rs"]
mod tests;
