//! What both services' OpenAPI documents have in common: examples, and that they are right.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// Requires that every JSON body of a request and of a success in `document` has an example, and every event; that
/// these have the fields of their schemas and no other; and that the `stated` examples (texts of JSON) are of operations
/// of the document.
pub fn assert_has_examples(document: &Value, stated: &[&str]) {
    let stated: Vec<Value> = stated.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    let faults = faults(document, &stated);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns a message for each example that is missing or wrong.
fn faults(document: &Value, stated: &[Value]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut known = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            known.insert(operation["operationId"].as_str().unwrap().to_owned());
            for (part, content) in contents(operation) {
                let place = format!("{method} {path}: {part}");
                faults.extend(content_faults(document, content).map(|fault| format!("{place}: {fault}")));
            }
        }
    }
    let stated = stated.iter().filter_map(|text| text["operations"].as_object()).flat_map(Map::keys);
    faults.extend(stated.filter(|id| !known.contains(*id)).map(|id| format!("there is no operation {id}")));
    faults
}

/// The bodies that an operation's readers want to see: JSON and event streams, of the request and of successes.
fn contents(operation: &Value) -> impl Iterator<Item = (String, &Value)> {
    let responses = operation["responses"].as_object().unwrap().iter();
    let successes = responses.filter(|(status, _)| status.starts_with('2'));
    let bodies = std::iter::once(("request".to_owned(), &operation["requestBody"]))
        .chain(successes.map(|(status, response)| (status.clone(), response)));
    bodies.flat_map(|(part, body)| {
        let media_types = body["content"].as_object().into_iter().flatten();
        media_types
            .filter(|(media_type, _)| {
                ["application/json", "text/event-stream"].contains(&media_type.as_str())
            })
            .map(move |(media_type, content)| (format!("{part} {media_type}"), content))
    })
}

fn content_faults(document: &Value, content: &Value) -> impl Iterator<Item = String> {
    let named = content["examples"].as_object().into_iter().flatten();
    let mut examples: Vec<(&str, &Value)> =
        named.map(|(name, example)| (name.as_str(), &example["value"])).collect();
    examples.extend(content.get("example").map(|example| ("example", example)));
    let mut faults = Vec::new();
    if examples.is_empty() {
        faults.push("has no example".to_owned());
    }
    for kind in kinds_of_events(document, content) {
        if !examples.iter().any(|(_, event)| event["event"] == kind.as_str()) {
            faults.push(format!("has no example of the event {kind}"));
        }
    }
    let schema = closed_schema(document, &content["schema"]);
    let validator = jsonschema::draft202012::new(&schema).expect("a schema of the document is valid");
    for (name, example) in examples {
        let errors = validator.iter_errors(example);
        faults.extend(errors.map(|error| format!("`{name}`: {error} (at `{}`)", error.instance_path())));
    }
    faults.into_iter()
}

/// The values of the discriminator of a union of events.
fn kinds_of_events(document: &Value, content: &Value) -> Vec<String> {
    let reference = content["schema"]["$ref"].as_str().unwrap_or_default();
    let union = document.pointer(reference.trim_start_matches('#')).unwrap_or(&Value::Null);
    let is_of_events = union["discriminator"]["propertyName"] == "event";
    let mapping = union["discriminator"]["mapping"].as_object().filter(|_| is_of_events);
    mapping.into_iter().flat_map(|mapping| mapping.keys().cloned()).collect()
}

/// A schema of the document with all that it refers to, so that it can be used by itself.
fn closed_schema(document: &Value, schema: &Value) -> Value {
    let components = document["components"]["schemas"].as_object().unwrap();
    let mut open = BTreeSet::new();
    parts(&document["components"]["schemas"], false, &mut open);
    // A part that is a union leaves it to its own variants' whole, too.
    loop {
        let known = open.len();
        for name in open.clone() {
            parts(&components[&name], true, &mut open);
        }
        if open.len() == known {
            break;
        }
    }
    let schemas = components.iter().map(|(name, schema)| {
        let closed = closed(schema.clone(), open.contains(name));
        (name.clone(), closed)
    });
    let schemas: Map<String, Value> = schemas.collect();
    let mut schema = closed(schema.clone(), false).as_object().cloned().unwrap_or_default();
    schema.insert("components".to_owned(), json!({"schemas": schemas}));
    schema.into()
}

/// The names of the schemas that are parts of others: what has all of them has the fields of each.
fn parts(schema: &Value, is_part: bool, names: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            let reference = fields.get("$ref").and_then(Value::as_str).filter(|_| is_part);
            names.extend(reference.and_then(|reference| reference.rsplit('/').next()).map(str::to_owned));
            for (name, value) in fields {
                let is_variant = ["oneOf", "anyOf"].contains(&name.as_str());
                parts(value, name == "allOf" || is_part && is_variant, names);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| parts(value, is_part, names)),
        _ => (),
    }
}

/// The schema without room for fields that it does not name. A part of another one leaves that to the whole.
fn closed(mut schema: Value, is_part: bool) -> Value {
    match &mut schema {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                *value = match name.as_str() {
                    "example" | "examples" | "enum" | "default" | "const" => continue,
                    "allOf" => closed(value.take(), true),
                    "oneOf" | "anyOf" => closed(value.take(), is_part),
                    // A property may have the name of a keyword.
                    "properties" => closed_properties(value),
                    _ => closed(value.take(), false),
                };
            }
            if !is_part && fields.contains_key("allOf") {
                fields.entry("unevaluatedProperties").or_insert(json!(false));
            } else if !is_part && fields.contains_key("properties") {
                fields.entry("additionalProperties").or_insert(json!(false));
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| *value = closed(value.take(), is_part)),
        _ => (),
    }
    schema
}

fn closed_properties(properties: &Value) -> Value {
    let properties = properties.as_object().into_iter().flatten();
    let closed = properties.map(|(name, schema)| (name.clone(), closed(schema.clone(), false)));
    Value::Object(closed.collect())
}
