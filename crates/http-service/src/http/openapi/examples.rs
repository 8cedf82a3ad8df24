//! Examples of requests, answers and events. A service states each of them once, in texts of JSON:
//!
//! ```json
//! {"operations": {"admit_user": {"request": {}, "responses": {"200": {}}}}, "events": {"text_delta": {}}}
//! ```
//!
//! Operations are named by their ids; `stream` is an event of an answer that is either JSON or a stream of another
//! protocol. An answer of several kinds has an example of each, named behind the status: `"201 file"`. A status without
//! an answer of its own has that of another success with the same schema. The events are messages of the service's event
//! streams.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{Content, OpenApi, RefOr, Response};

use super::operations;

const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Examples {
    operations: BTreeMap<String, OperationExamples>,
    events: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OperationExamples {
    request: Option<Value>,
    #[serde(default)]
    responses: BTreeMap<String, Value>,
    /// An event of another protocol, where an answer is either JSON or a stream of these.
    stream: Option<Value>,
}

/// Adds the examples of `texts` to `document`. A text that cannot be parsed is left out: a document without examples is
/// better than none, and the services' tests require them.
pub fn add_examples(document: &mut OpenApi, texts: &[&str]) {
    let texts = texts.iter().filter_map(|text| serde_json::from_str::<Examples>(text).ok());
    let mut examples = Examples::default();
    for more in texts {
        examples.operations.extend(more.operations);
        examples.events.extend(more.events);
    }
    for item in document.paths.paths.values_mut() {
        for (_, operation) in operations(item) {
            add_events(operation, &examples.events);
            let own = operation.operation_id.as_ref().and_then(|id| examples.operations.remove(id));
            if let Some(own) = own {
                add_request(operation, own.request);
                add_responses(operation, &own.responses);
                add_stream(operation, own.stream.as_ref());
            }
        }
    }
}

fn add_request(operation: &mut Operation, example: Option<Value>) {
    let Some(RefOr::T(body)) = &mut operation.request_body else { return };
    if let Some(RefOr::T(content)) = body.content.get_mut(JSON) {
        content.example = example;
    }
}

fn add_responses(operation: &mut Operation, examples: &BTreeMap<String, Value>) {
    let successes = || operation.responses.responses.iter().filter(|(status, _)| status.starts_with('2'));
    let schemas: BTreeMap<String, String> = successes()
        .filter_map(|(status, response)| Some((status.clone(), answer(response)?)))
        .map(|(status, content)| (status, schema(content)))
        .collect();
    for (status, response) in &mut operation.responses.responses {
        let Some(own) = schemas.get(status) else { continue };
        let example = examples.get(status).or_else(|| {
            let mut with_same = schemas.iter().filter(|(_, other)| *other == own);
            with_same.find_map(|(status, _)| examples.get(status))
        });
        let Some(content) = answer_mut(response) else { continue };
        content.example = example.cloned();
        for (key, example) in examples {
            if let Some((_, kind)) = key.split_once(' ').filter(|(of, _)| of == status) {
                add_named(content, kind, example);
            }
        }
    }
}

fn add_stream(operation: &mut Operation, example: Option<&Value>) {
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        let Some(RefOr::T(content)) = response.content.get_mut(EVENT_STREAM) else { continue };
        if status.starts_with('2') && !is_of_this_service(content) && content.example.is_none() {
            content.example = example.cloned();
        }
    }
}

fn add_events(operation: &mut Operation, events: &BTreeMap<String, Value>) {
    for response in operation.responses.responses.values_mut() {
        let RefOr::T(response) = response else { continue };
        let Some(RefOr::T(content)) = response.content.get_mut(EVENT_STREAM) else { continue };
        if !is_of_this_service(content) {
            continue;
        }
        for (name, event) in events {
            add_named(content, name, event);
        }
    }
}

fn add_named(content: &mut Content, name: &str, example: &Value) {
    let example = ExampleBuilder::new().value(Some(example.clone())).build();
    content.examples.insert(name.to_owned(), example.into());
}

/// Whether a stream has the service's own events, whose schema has a name, and not those of another protocol.
const fn is_of_this_service(stream: &Content) -> bool {
    matches!(stream.schema, Some(RefOr::Ref(_)))
}

/// What an answer's own example is about: JSON, or an event of another protocol.
fn answer(response: &RefOr<Response>) -> Option<&Content> {
    let RefOr::T(response) = response else { return None };
    let content = |media_type: &str| match response.content.get(media_type) {
        Some(RefOr::T(content)) => Some(content),
        _ => None,
    };
    content(JSON).or_else(|| content(EVENT_STREAM).filter(|stream| !is_of_this_service(stream)))
}

/// The same, to be changed.
fn answer_mut(response: &mut RefOr<Response>) -> Option<&mut Content> {
    let RefOr::T(response) = response else { return None };
    let media_type = if response.content.contains_key(JSON) { JSON } else { EVENT_STREAM };
    match response.content.get_mut(media_type) {
        Some(RefOr::T(content)) if media_type == JSON || !is_of_this_service(content) => Some(content),
        _ => None,
    }
}

/// The schema as a text, to compare it.
fn schema(content: &Content) -> String {
    serde_json::to_string(&content.schema).unwrap_or_default()
}
