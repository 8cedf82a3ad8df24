//! Responses: the refusals that many operations share, the error codes, and the headers of every response.

use api::{ErrorBody, ErrorCode};
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use serde::de::value::{Error as ValueError, StrDeserializer};
use utoipa::ToSchema as _;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::header::Header;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, Response, ResponseBuilder};

use super::operations;

/// The extension that lists the codes of an error response.
const ERROR_CODES: &str = "x-error-codes";

pub(super) fn complete(document: &mut OpenApi) {
    for item in document.paths.paths.values_mut() {
        for (method, operation) in operations(item) {
            add_shared_refusals(method, operation);
            let takes_json = takes_json(operation);
            for (status, response) in &mut operation.responses.responses {
                if let RefOr::T(response) = response {
                    list_error_codes(response);
                    refer_to_headers(status, takes_json, response);
                }
            }
        }
    }
    let components = document.components.get_or_insert_default();
    for (name, schema_type, description) in [
        (
            "X-Request-Id",
            Type::String,
            "The id of the request: the caller's, or a new one. The log has it too",
        ),
        ("traceparent", Type::String, "The trace context (W3C) of the response"),
        (
            "Roundhouse-Warning",
            Type::String,
            "The fields of the request that had no effect, if there are any. Only operations of the contract ignore \
             unknown fields; the others refuse them",
        ),
        ("Retry-After", Type::Integer, "The number of seconds after which to retry, if that is known"),
    ] {
        let mut header = Header::new(ObjectBuilder::new().schema_type(schema_type).build());
        header.description = Some(description.to_owned());
        components.headers.insert(name.to_owned(), header.into());
    }
}

/// Whether the operation has a JSON body.
fn takes_json(operation: &Operation) -> bool {
    let body = operation.request_body.as_ref();
    body.is_some_and(|body| matches!(body, RefOr::T(body) if body.content.contains_key("application/json")))
}

/// Adds the refusals that come from reading any parameters or any body.
fn add_shared_refusals(method: &str, operation: &mut Operation) {
    let has_body = operation.request_body.is_some();
    let has_input =
        has_body || operation.parameters.as_ref().is_some_and(|parameters| !parameters.is_empty());
    let needs_key = operation.security.is_some();
    for (applies, code) in
        [(has_input && needs_key, ErrorCode::InvalidRequest), (has_body, ErrorCode::RequestTimeout)]
    {
        if applies {
            let response = || RefOr::T(refusal(method, code));
            operation.responses.responses.entry(code.status().to_string()).or_insert_with(response);
        }
    }
}

fn refusal(method: &str, code: ErrorCode) -> Response {
    let response = ResponseBuilder::new().description(format!("`{code}`"));
    if method == "head" {
        return response.build();
    }
    let body = Content::new(Some(Ref::from_schema_name(ErrorBody::name())));
    response.content("application/json", body).build()
}

/// Lists the codes that the description of an error response names, for programs, each with an example.
fn list_error_codes(response: &mut Response) {
    let codes = error_codes(&response.description);
    if codes.is_empty() {
        return;
    }
    for content in response.content.values_mut() {
        let RefOr::T(content) = content else { continue };
        if !refers_to_envelope(content) {
            continue;
        }
        for code in &codes {
            let body = ErrorBody::new(*code, "What is wrong, where, and what to do.");
            let example = ExampleBuilder::new().value(serde_json::to_value(body).ok());
            content.examples.insert(code.to_string(), example.into());
        }
    }
    let codes: Vec<String> = codes.iter().map(ErrorCode::to_string).collect();
    let extensions = response.extensions.get_or_insert_default();
    extensions.insert(ERROR_CODES.to_owned(), codes.into());
}

fn refers_to_envelope(content: &Content) -> bool {
    let envelope = Ref::from_schema_name(ErrorBody::name()).ref_location;
    matches!(&content.schema, Some(RefOr::Ref(reference)) if reference.ref_location == envelope)
}

/// Returns the error codes that a text names.
pub(super) fn error_codes(text: &str) -> Vec<ErrorCode> {
    let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
    words
        .filter_map(|word| {
            let word: StrDeserializer<'_, ValueError> = word.into_deserializer();
            ErrorCode::deserialize(word).ok()
        })
        .collect()
}

fn refer_to_headers(status: &str, takes_json: bool, response: &mut Response) {
    let may_be_retried = ["429", "503"].contains(&status);
    let retry_after = may_be_retried.then_some("Retry-After");
    let warning = (takes_json && status.starts_with('2')).then_some("Roundhouse-Warning");
    for name in ["X-Request-Id", "traceparent"].into_iter().chain(retry_after).chain(warning) {
        let reference = RefOr::Ref(Ref::new(format!("#/components/headers/{name}")));
        response.headers.entry(name.to_owned()).or_insert(reference);
    }
}
