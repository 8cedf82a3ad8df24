//! `working_memory_set`: stores a value that the agent wants to keep in view within a task.

use api::tool_names;
use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Invocation, Tool, ToolError, ToolOutput, ToolStep, parse_input};

/// The maximum length of a key, in bytes.
const MAX_KEY_BYTES: usize = 256;
/// The maximum size of a value, in bytes of JSON.
const MAX_VALUE_BYTES: usize = 16 * 1024;

pub(super) struct WorkingMemorySet;

#[derive(Deserialize)]
struct WorkingMemorySetInput {
    key: String,
    value: Value,
}

/// Checks an entry of the working memory.
///
/// # Errors
/// What is wrong with it.
pub fn validate_working_memory(key: &str, value: &Value) -> Result<(), String> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(format!("`key` must be 1 to {MAX_KEY_BYTES} bytes long"));
    }
    if value.to_string().len() > MAX_VALUE_BYTES {
        return Err(format!("`value` must be at most {MAX_VALUE_BYTES} bytes of JSON"));
    }
    Ok(())
}

impl Tool for WorkingMemorySet {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: tool_names::WORKING_MEMORY_SET.into(),
            description:
                "Keeps a value under a key in this task's working memory, replacing what was there. \
                          Use it for facts, plans and intermediate results that must not be lost; null takes a \
                          key out. It holds 32 KiB in all: for longer texts write a file."
                    .into(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "key": {"type": "string", "description": "A short name for the value."},
                    "value": {"description": "What to keep: any JSON value."},
                },
                "required": ["key", "value"],
            }),
        }
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn needs_turn(&self) -> bool {
        true
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let WorkingMemorySetInput { key, value } = parse_input(invocation.input)?;
            validate_working_memory(&key, &value).map_err(ToolError)?;
            let text = format!("kept under `{key}`");
            Ok(ToolStep::Done(ToolOutput {
                text,
                working_memory: vec![(key, value)],
                ..ToolOutput::default()
            }))
        })
    }
}

#[cfg(test)]
#[path = "../tests/unit/working_memory.rs"]
mod tests;
