//! The form that a request sets for the final answer of its turn: JSON that matches a schema.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

use crate::text::{TextRule, ValidatedText};
use crate::turn_options::InvalidOption;

/// The maximum size of a schema, in bytes of JSON. The model reads it with the message.
pub const MAX_SCHEMA_BYTES: usize = 16 * 1024;
/// The maximum nesting of a schema, in objects and lists inside each other.
pub const MAX_SCHEMA_DEPTH: usize = 32;

/// The rules of the texts of a form.
pub mod rule {
    use super::TextRule;

    /// The name of a form.
    pub enum FormatName {}

    impl TextRule for FormatName {
        const NAME: &'static str = "ResponseFormatName";
        const EXPECTED: &'static str = "1 to 64 letters, digits, `_` and `-`";
        const MAX_BYTES: usize = 64;
        fn is_valid(text: &str) -> bool {
            text.chars().all(|each| each.is_ascii_alphanumeric() || each == '_' || each == '-')
        }
    }
}

/// The name of a form, as vendors accept it.
pub type FormatName = ValidatedText<rule::FormatName>;

/// The form of the final answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResponseFormat {
    /// `json_schema`.
    #[serde(rename = "type")]
    pub kind: FormatKind,
    /// A name for the form, which the model sees.
    pub name: FormatName,
    /// The JSON Schema of the answer.
    pub schema: OutputSchema,
    /// Whether the provider is to enforce the schema. Each provider supports only a part of JSON Schema then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
}

/// The only type of [`ResponseFormat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FormatKind {
    /// JSON that matches a schema.
    JsonSchema,
}

/// The JSON Schema of an object, within the bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct OutputSchema(Value);

impl OutputSchema {
    /// The schema.
    pub const fn as_value(&self) -> &Value {
        &self.0
    }
}

impl TryFrom<Value> for OutputSchema {
    type Error = InvalidOption;

    fn try_from(schema: Value) -> Result<Self, InvalidOption> {
        if schema.get("type").and_then(Value::as_str) != Some("object") {
            return Err(InvalidOption::new("the JSON Schema of an object: its root has the `type` `object`"));
        }
        if !is_within_depth(&schema, MAX_SCHEMA_DEPTH) {
            return Err(InvalidOption::new(format!(
                "a schema that is nested at most {MAX_SCHEMA_DEPTH} deep"
            )));
        }
        if schema.to_string().len() > MAX_SCHEMA_BYTES {
            return Err(InvalidOption::new(format!("a schema of at most {MAX_SCHEMA_BYTES} bytes")));
        }
        Ok(Self(schema))
    }
}

/// Whether objects and lists are nested at most `depth` deep.
fn is_within_depth(value: &Value, depth: usize) -> bool {
    let Some(inner) = depth.checked_sub(1) else { return !(value.is_object() || value.is_array()) };
    match value {
        Value::Object(members) => members.values().all(|member| is_within_depth(member, inner)),
        Value::Array(items) => items.iter().all(|item| is_within_depth(item, inner)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

impl utoipa::PartialSchema for OutputSchema {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some("A JSON Schema whose root has the `type` `object`, of at most 16,384 bytes."))
            .into()
    }
}

impl ToSchema for OutputSchema {
    fn name() -> Cow<'static, str> {
        "OutputSchema".into()
    }
}

#[cfg(test)]
#[path = "../tests/unit/response_format.rs"]
mod tests;
