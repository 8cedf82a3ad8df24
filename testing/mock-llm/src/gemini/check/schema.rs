//! The rules of `parameters`, which is a subset of OpenAPI's schemas (<https://ai.google.dev/api/caching#Schema>).
//! Other keywords of JSON Schema are refused as unknown names; they are for `parametersJsonSchema`.

use serde_json::Value;

use super::super::node::Node;
use crate::protocol::ApiError;

const KEYWORDS: &[&str] = &[
    "type",
    "format",
    "title",
    "description",
    "nullable",
    "enum",
    "maxItems",
    "minItems",
    "properties",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "example",
    "anyOf",
    "propertyOrdering",
    "default",
    "items",
    "minimum",
    "maximum",
];
const TYPES: &[&str] =
    &["TYPE_UNSPECIFIED", "STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"];

pub(super) fn check(schema: &Node<'_>) -> Result<(), ApiError> {
    schema.only(KEYWORDS)?;
    let kind = match schema.member("type") {
        Some(kind) if kind.value.is_array() => {
            return Err(schema.unknown_name("type", "Proto field is not repeating, cannot start list."));
        }
        Some(kind) => kind.one_of("Type", TYPES)?,
        None => String::new(),
    };
    for name in ["enum", "required", "propertyOrdering"] {
        if let Some(names) = schema.member(name) {
            names.list()?.iter().try_for_each(|name| name.string().map(|_| ()))?;
        }
    }
    for name in ["title", "description", "pattern", "format"] {
        if let Some(text) = schema.member(name) {
            text.string()?;
        }
    }
    check_type(schema, &kind)?;
    if let Some(items) = schema.member("items") {
        check(&items)?;
    }
    if let Some(choices) = schema.member("anyOf") {
        choices.list()?.iter().try_for_each(check)?;
    }
    properties(schema)?.iter().try_for_each(check)
}

/// Checks the rules that depend on the type of a schema.
fn check_type(schema: &Node<'_>, kind: &str) -> Result<(), ApiError> {
    match kind {
        "OBJECT" if properties(schema)?.is_empty() => {
            Err(Node { path: format!("{}.properties", schema.path), value: schema.value }
                .violation("should be non-empty for OBJECT type"))
        }
        "ARRAY" if schema.member("items").is_none() => {
            Err(Node { path: format!("{}.items", schema.path), value: schema.value }
                .violation("missing field."))
        }
        "STRING" => match schema.member("format") {
            Some(format) if !["enum", "date-time"].contains(&format.string()?) => {
                Err(format.violation("only 'enum' and 'date-time' are supported for STRING type"))
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// The schemas of the properties. In paths, their names are in brackets and unchanged.
fn properties<'a>(schema: &Node<'a>) -> Result<Vec<Node<'a>>, ApiError> {
    let Some(properties) = schema.member("properties") else { return Ok(Vec::new()) };
    let node =
        |(name, value): (&String, &'a Value)| Node { path: format!("{}[{name}]", properties.path), value };
    Ok(properties.object()?.iter().map(node).collect())
}
