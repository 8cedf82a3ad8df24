//! Paths, operation ids and parameters.

use std::mem;

use utoipa::openapi::path::{Operation, Parameter};
use utoipa::openapi::schema::{SchemaType, Type};
use utoipa::openapi::{OpenApi, RefOr, Schema};

use super::operations;

pub(super) fn complete(document: &mut OpenApi) {
    // The router's wildcard syntax `{*path}` is not valid in OpenAPI.
    let paths = mem::take(&mut document.paths.paths);
    document.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    for item in document.paths.paths.values_mut() {
        // One handler may serve several methods of a path, but every operation needs an id of its own.
        let ids: Vec<_> = operations(item).map(|(_, operation)| operation.operation_id.clone()).collect();
        for (method, operation) in operations(item) {
            if ids.iter().filter(|id| **id == operation.operation_id).count() > 1 {
                operation.operation_id = operation.operation_id.take().map(|id| own_id(id, method));
            }
            operation.parameters.iter_mut().flatten().for_each(complete_parameter);
            if method == "head" {
                remove_content(operation);
            }
        }
    }
}

/// Returns the id of one of several operations that share `id`. That of `get_file` with HEAD is `head_file`; an id
/// that begins with no verb gets the method as its end.
fn own_id(id: String, method: &str) -> String {
    match (method, id.strip_prefix("get_").or_else(|| id.strip_prefix("list_"))) {
        ("head", Some(object)) => format!("head_{object}"),
        (_, Some(_)) => id,
        (_, None) => format!("{id}_{method}"),
    }
}

/// A parameter may be left out, but not be null.
fn complete_parameter(parameter: &mut RefOr<Parameter>) {
    let RefOr::T(Parameter { schema: Some(RefOr::T(Schema::Object(schema))), .. }) = parameter else {
        return;
    };
    if let SchemaType::Array(types) = &mut schema.schema_type {
        types.retain(|candidate| *candidate != Type::Null);
        if let [only] = types.as_slice() {
            schema.schema_type = SchemaType::Type(only.clone());
        }
    }
}

/// The responses to HEAD have no content.
fn remove_content(operation: &mut Operation) {
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            response.content.clear();
        }
    }
}
