//! Completes the OpenAPI document that `utoipa` generates of a service's routes: it is then valid, generators make
//! readable clients of it, and it describes what every route has in common.

mod examples;
mod operations;
mod responses;
mod variants;

pub use self::examples::add_examples;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};

/// Completes `document`.
pub fn complete(document: &mut OpenApi) {
    operations::complete(document);
    responses::complete(document);
    variants::name_variants(document);
}

/// Returns the operations of a path with their methods.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    [
        ("get", &mut item.get),
        ("head", &mut item.head),
        ("post", &mut item.post),
        ("put", &mut item.put),
        ("patch", &mut item.patch),
        ("delete", &mut item.delete),
    ]
    .into_iter()
    .filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

#[cfg(test)]
#[path = "../../tests/unit/http/openapi.rs"]
mod tests;
