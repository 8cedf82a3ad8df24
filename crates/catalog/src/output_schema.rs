//! Validates a model's final answer against the schema that the request sets for it.

use resources::text::shorten_to_chars;
use serde_json::Value;

use super::schema::{Compiled, InvalidSchema, compile_or_locate};

/// The maximum length of a parser's message, in characters.
const MAX_PARSE_ERROR_CHARS: usize = 200;

/// The compiled schema of an answer.
#[derive(Debug)]
pub struct CompiledOutputSchema(Compiled);

impl CompiledOutputSchema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// Why the schema is invalid and where, for a person.
    pub fn compile(schema: &Value) -> Result<Self, String> {
        compile_or_locate(schema).map(Self).map_err(|InvalidSchema { path, reason }| {
            let path = if path.is_empty() { "/" } else { &path };
            format!("the schema is invalid at `{path}`: {reason}")
        })
    }

    /// Validates the text of an answer.
    ///
    /// # Errors
    /// Where the answer does not conform and what is expected there, one line for each error.
    pub fn validate(&self, answer: &str) -> Result<(), String> {
        if answer.trim().is_empty() {
            return Err("- it is empty".to_owned());
        }
        let value: Value = serde_json::from_str(answer).map_err(|error| {
            let error = shorten_to_chars(&error.to_string(), MAX_PARSE_ERROR_CHARS);
            format!("- it is not JSON alone: {error}")
        })?;
        self.0.errors(&value).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
#[path = "../tests/unit/output_schema.rs"]
mod tests;
