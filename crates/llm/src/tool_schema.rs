//! Converts a tool's schema to the subset of JSON Schema that every vendor accepts. Pure.
//!
//! The schemas of third-party tools use all of JSON Schema, and vendors refuse a whole request because of one of
//! them: for alternatives at the root (Anthropic, OpenAI), a root that is not an object (all), property names
//! other than `[A-Za-z0-9_.-]{1,64}` (Anthropic), arrays without `items` (OpenAI), references (Gemini), and for
//! invalid JSON Schema. The declared schema may be less strict than the one that a call's input is validated
//! against.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// The maximum depth of a schema.
const MAX_DEPTH: usize = 24;
/// The maximum size of a schema, in bytes of JSON. Of a larger one only the properties of the root are declared,
/// without their own schemas.
const MAX_SCHEMA_BYTES: usize = 32 * 1024;
/// The maximum number of references that are inlined: each may contain further ones.
const MAX_INLINED_REFS: usize = 200;
/// Keywords that describe the schema as a document, not a value.
const DOCUMENT_KEYWORDS: [&str; 10] = [
    "$schema",
    "$id",
    "id",
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$comment",
    "$vocabulary",
    "$defs",
    "definitions",
];
/// Keywords whose values are lists of schemas.
const COMPOSITION_KEYWORDS: [&str; 3] = ["anyOf", "oneOf", "allOf"];

/// Normalizes a tool's input schema for all vendors. A schema that is not an object's becomes the schema of any
/// object.
pub fn normalised(schema: &Value) -> Value {
    let mut normalizer = SchemaNormalizer { root: schema, inlined: 0 };
    let mut root = match normalizer.normalize_schema(schema, 0) {
        Value::Object(root) => root,
        _ => Map::new(),
    };
    flatten_composition(&mut root);
    root.insert("type".into(), json!("object"));
    if !root.get("properties").is_some_and(Value::is_object) {
        root.insert("properties".into(), json!({}));
    }
    retain_known_required(&mut root);
    let whole = Value::Object(root);
    if whole.to_string().len() > MAX_SCHEMA_BYTES { outline(&whole) } else { whole }
}

/// The names and descriptions of the root's properties, for a schema that is too large.
fn outline(schema: &Value) -> Value {
    let mut budget = MAX_SCHEMA_BYTES / 2;
    let mut kept = Map::new();
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let mut declared = Map::new();
        for keyword in ["type", "description"] {
            if let Some(value) = property.get(keyword).filter(|value| value.to_string().len() < 512) {
                declared.insert(keyword.into(), value.clone());
            }
        }
        let len = name.len() + Value::Object(declared.clone()).to_string().len();
        let Some(remaining) = budget.checked_sub(len) else { break };
        budget = remaining;
        kept.insert(name.clone(), Value::Object(declared));
    }
    json!({"type": "object", "properties": kept})
}

/// Rewrites a schema with its references inlined.
struct SchemaNormalizer<'a> {
    root: &'a Value,
    inlined: usize,
}

impl SchemaNormalizer<'_> {
    fn normalize_schema(&mut self, schema: &Value, depth: usize) -> Value {
        // `true` accepts anything, and so does a schema that is not understood.
        let Value::Object(from) = schema else { return json!({}) };
        if depth >= MAX_DEPTH {
            return json!({});
        }
        if let Some(reference) = from.get("$ref") {
            return self.inline_ref(reference, from, depth);
        }
        let mut to = Map::new();
        for (keyword, value) in from {
            if !DOCUMENT_KEYWORDS.contains(&keyword.as_str())
                && let Some(value) = self.normalize_keyword(keyword, value, depth + 1)
            {
                to.insert(keyword.clone(), value);
            }
        }
        let is_array = to.get("type").is_some_and(|kind| {
            kind == "array" || kind.as_array().is_some_and(|kinds| kinds.contains(&json!("array")))
        });
        if is_array && !to.contains_key("items") {
            to.insert("items".into(), json!({}));
        }
        retain_known_required(&mut to);
        Value::Object(to)
    }

    /// The schema behind a reference within the document. A circular reference becomes a schema that accepts
    /// anything.
    fn inline_ref(&mut self, reference: &Value, from: &Map<String, Value>, depth: usize) -> Value {
        let pointer = reference.as_str().and_then(|reference| reference.strip_prefix('#'));
        let root = self.root;
        let target = pointer.and_then(|pointer| root.pointer(pointer));
        self.inlined += 1;
        let mut to = match target.filter(|_| self.inlined <= MAX_INLINED_REFS) {
            Some(target) => self.normalize_schema(target, depth + 1),
            None => json!({}),
        };
        if let (Value::Object(to), Some(description @ Value::String(_))) = (&mut to, from.get("description"))
        {
            to.insert("description".into(), description.clone());
        }
        to
    }

    /// Normalizes the value of a keyword; `None` if it has no form that vendors accept.
    fn normalize_keyword(&mut self, keyword: &str, value: &Value, depth: usize) -> Option<Value> {
        match (keyword, value) {
            ("properties", Value::Object(properties)) => {
                let allowed = properties.iter().filter(|(name, _)| is_property_name(name));
                let written =
                    allowed.map(|(name, property)| (name.clone(), self.normalize_schema(property, depth)));
                Some(Value::Object(written.collect()))
            }
            // A list of schemas, one per position, becomes a single schema for all positions.
            ("items", Value::Array(items)) => {
                Some(items.first().map_or_else(|| json!({}), |first| self.normalize_schema(first, depth)))
            }
            ("items" | "not" | "contains" | "propertyNames" | "if" | "then" | "else", _) => {
                Some(self.normalize_schema(value, depth))
            }
            ("additionalProperties", Value::Object(_)) => Some(self.normalize_schema(value, depth)),
            (_, Value::Array(schemas)) if COMPOSITION_KEYWORDS.contains(&keyword) => {
                let written: Vec<Value> =
                    schemas.iter().map(|schema| self.normalize_schema(schema, depth)).collect();
                (!written.is_empty()).then_some(Value::Array(written))
            }
            ("enum", Value::Array(values)) => {
                let mut distinct: Vec<Value> = Vec::new();
                for value in values {
                    if !distinct.contains(value) {
                        distinct.push(value.clone());
                    }
                }
                (!distinct.is_empty()).then_some(Value::Array(distinct))
            }
            ("type", Value::String(kind)) => is_type_name(kind).then(|| value.clone()),
            ("type", Value::Array(kinds)) => {
                let known: Vec<&Value> =
                    kinds.iter().filter(|kind| kind.as_str().is_some_and(is_type_name)).collect();
                match known.as_slice() {
                    [] => None,
                    [one] => Some((*one).clone()),
                    many => Some(json!(many)),
                }
            }
            ("description" | "title" | "format" | "pattern", Value::String(_))
            | ("const" | "default" | "examples", _)
            | ("required", Value::Array(_))
            | (
                "additionalProperties" | "uniqueItems" | "nullable" | "deprecated" | "readOnly" | "writeOnly",
                Value::Bool(_),
            )
            | (
                "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" | "minLength"
                | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties",
                Value::Number(_),
            ) => Some(value.clone()),
            // Malformed keywords, and those that are not part of JSON Schema.
            _ => None,
        }
    }
}

/// Merges alternatives at the root: any one of several objects becomes one object with the properties of all, of
/// which only those are required that every alternative requires.
fn flatten_composition(root: &mut Map<String, Value>) {
    for keyword in COMPOSITION_KEYWORDS {
        let Some(Value::Array(schemas)) = root.remove(keyword) else { continue };
        let mut required: Option<BTreeSet<String>> = None;
        for schema in &schemas {
            for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten()
            {
                let properties = root.entry("properties").or_insert_with(|| json!({}));
                if let Value::Object(properties) = properties {
                    properties.entry(name.clone()).or_insert_with(|| property.clone());
                }
            }
            let own = string_set(schema.get("required"));
            required = Some(match required {
                None => own,
                Some(others) if keyword == "allOf" => others.union(&own).cloned().collect(),
                Some(others) => others.intersection(&own).cloned().collect(),
            });
        }
        let all: BTreeSet<String> =
            string_set(root.get("required")).into_iter().chain(required.unwrap_or_default()).collect();
        root.insert("required".into(), json!(all));
    }
    for keyword in ["enum", "const", "not", "if", "then", "else"] {
        root.remove(keyword);
    }
}

fn string_set(list: Option<&Value>) -> BTreeSet<String> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// Removes unknown and duplicate names from `required`.
fn retain_known_required(schema: &mut Map<String, Value>) {
    let Some(required) = schema.remove("required") else { return };
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    let mut known: Vec<String> = Vec::new();
    for name in required.as_array().into_iter().flatten().filter_map(Value::as_str) {
        if properties.contains_key(name) && !known.iter().any(|other| other == name) {
            known.push(name.to_owned());
        }
    }
    if !known.is_empty() {
        schema.insert("required".into(), json!(known));
    }
}

fn is_type_name(kind: &str) -> bool {
    matches!(kind, "object" | "array" | "string" | "number" | "integer" | "boolean" | "null")
}

/// Anthropic's rule, the strictest: <https://platform.claude.com/docs/en/api/messages>.
fn is_property_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=64).contains(&name.len()) && name.bytes().all(is_allowed)
}

#[cfg(test)]
#[path = "../tests/unit/tool_schema.rs"]
mod tests;
