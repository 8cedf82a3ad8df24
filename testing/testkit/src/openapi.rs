//! What both services' OpenAPI documents have in common: the rules without which generators produce nothing useful.

use std::collections::BTreeSet;

use api::ErrorCode;
use serde_json::Value;

/// Requires that `document` follows the rules.
pub fn assert_generates_well(document: &Value) {
    let faults = faults(document);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns a message for each rule that `document` breaks.
pub fn faults(document: &Value) -> Vec<String> {
    let mut faults = unresolved_references(document);
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        if path.contains('*') {
            faults.push(format!("{path} has the router's wildcard"));
        }
        for (method, operation) in item.as_object().unwrap() {
            let place = format!("{method} {path}");
            let id = operation["operationId"].as_str().unwrap_or_default();
            if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
                faults.push(format!("{place}: the operation id `{id}` is no name of a function"));
            }
            if !ids.insert(id.to_owned()) {
                faults.push(format!("{place}: the operation id `{id}` is not unique"));
            }
            faults
                .extend(undeclared_tags(document, operation).map(|tag| format!("{place}: the tag `{tag}`")));
            for (status, response) in operation["responses"].as_object().unwrap() {
                faults.extend(
                    response_faults(status, response, has_foreign_errors(operation))
                        .map(|fault| format!("{place}: {status} {fault}")),
                );
            }
        }
    }
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            faults.push(format!("the schema {name} is no name of a type"));
        }
        if schema["oneOf"].is_array() && schema["discriminator"].is_null() {
            faults.push(format!("the union {name} has no discriminator"));
        }
    }
    faults
}

fn unresolved_references(document: &Value) -> Vec<String> {
    let text = document.to_string();
    let pointers = text.split(r##""$ref":"#"##).skip(1).filter_map(|rest| rest.split('"').next());
    let unresolved = pointers.filter(|pointer| document.pointer(pointer).is_none());
    unresolved.map(|pointer| format!("there is no {pointer}")).collect()
}

fn undeclared_tags<'a>(document: &'a Value, operation: &'a Value) -> impl Iterator<Item = &'a str> {
    let is_declared =
        |tag: &str| document["tags"].as_array().into_iter().flatten().any(|declared| declared["name"] == tag);
    let tags = operation["tags"].as_array().into_iter().flatten().filter_map(Value::as_str);
    tags.filter(move |tag| !is_declared(tag))
}

/// Whether an operation is one of another protocol, whose errors have no code of ours.
fn has_foreign_errors(operation: &Value) -> bool {
    let is_foreign = |tag: &Value| ["openai", "mcp", "agui"].iter().any(|front| tag == front);
    operation["tags"].as_array().is_some_and(|tags| tags.iter().any(is_foreign))
}

fn response_faults(status: &str, response: &Value, has_foreign_errors: bool) -> impl Iterator<Item = String> {
    let mut faults = Vec::new();
    if response["description"].as_str().is_none_or(str::is_empty) {
        faults.push("has no description".to_owned());
    }
    let codes = response["x-error-codes"].as_array().cloned().unwrap_or_default();
    let is_error = status.starts_with('4') || status.starts_with('5');
    if !has_foreign_errors && is_error == codes.is_empty() {
        faults.push(format!("lists the codes {codes:?}"));
    }
    for code in codes {
        let parsed: Option<ErrorCode> = serde_json::from_value(code.clone()).ok();
        if parsed.is_none_or(|parsed| parsed.status().to_string() != status) {
            faults.push(format!("lists the code {code}, which has another status"));
        }
    }
    faults.into_iter()
}
