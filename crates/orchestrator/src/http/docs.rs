//! The OpenAPI document: its parts beside the routes, and the route that serves it.

use std::collections::btree_map::Entry;

use api::ProductId;
use axum::Json;
use axum::http::Method;
use axum::routing::{MethodRouter, get};
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{OpenApi, RefOr, Required, SecurityRequirement};
use utoipa::{Modify, OpenApi as _, PartialSchema as _};

use super::auth::Ready;
use super::examples::EXAMPLES;
use super::idempotency;
use super::{AppState, Document};
use crate::domain::idempotency::MAX_KEY_CHARS;

/// The path of the OpenAPI document.
pub(super) const OPENAPI_PATH: &str = "/openapi.json";

/// Adds the ways to authenticate to the document.
pub(super) struct KeySchemes;

impl Modify for KeySchemes {
    fn modify(&self, document: &mut OpenApi) {
        let components = document.components.get_or_insert_default();
        for (name, header, description) in [
            ("platform_key", "X-Platform-Key", "The product's key, issued at registration"),
            ("admin_key", "X-Admin-Key", "The deployment's admin key"),
        ] {
            let key = ApiKeyValue::with_description(header, description);
            components.add_security_scheme(name, SecurityScheme::ApiKey(ApiKey::Header(key)));
        }
        let admin =
            Http::builder().scheme(HttpAuthScheme::Bearer).description(Some("The deployment's admin key"));
        components.add_security_scheme("admin_bearer", SecurityScheme::Http(admin.build()));
        let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("browser_token", token);
    }
}

/// The paths of the document, as templates.
pub(super) fn paths() -> impl Iterator<Item = String> {
    Document::openapi().paths.paths.into_keys()
}

/// Returns the OpenAPI document of all routes.
pub(crate) fn document() -> OpenApi {
    let mut document = Document::openapi();
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        operations.into_iter().flatten().for_each(describe_operator_access);
        let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        operations.into_iter().flatten().for_each(describe_disabled_product);
    }
    for (path, item) in &mut document.paths.paths {
        let operations = [
            (Method::POST, &mut item.post),
            (Method::PUT, &mut item.put),
            (Method::PATCH, &mut item.patch),
            (Method::DELETE, &mut item.delete),
        ];
        for (method, operation) in operations {
            if let Some(operation) = operation.as_mut().filter(|_| idempotency::honours(&method, path)) {
                describe_idempotency(operation);
            }
        }
    }
    http_service::http::openapi::complete(&mut document);
    http_service::http::openapi::add_examples(&mut document, &EXAMPLES);
    // A suspended product may read, through the proxy too.
    for item in document.paths.paths.values_mut() {
        if let Some(get) = &mut item.get
            && get.operation_id.as_deref() == Some("proxy_get")
            && let Some(RefOr::T(refused)) = get.responses.responses.get_mut("403")
        {
            DISABLED.clone_into(&mut refused.description);
        }
    }
    document
}

/// The description of the refusal of a product that is out of use.
const DISABLED: &str = "`PRODUCT_DISABLED`: the operator has disabled the product, or is deleting it";

/// Adds the refusal of a product that is out of use to an operation that products call.
fn describe_disabled_product(operation: &mut Operation) {
    let of_product = SecurityRequirement::new("platform_key", [] as [&str; 0]);
    if !operation.security.as_deref().is_some_and(|keys| keys.contains(&of_product)) {
        return;
    }
    let responses = &mut operation.responses.responses;
    let Some(mut disabled) = responses.get("401").cloned() else { return };
    if let RefOr::T(response) = &mut disabled {
        DISABLED.clone_into(&mut response.description);
    }
    match responses.entry("403".to_owned()) {
        Entry::Vacant(entry) => {
            entry.insert(disabled);
        }
        Entry::Occupied(mut entry) => {
            if let RefOr::T(response) = entry.get_mut() {
                response.description = format!("{}; {DISABLED}", response.description);
            }
        }
    }
}

/// Adds what comes with the admin key to an operation that takes it in place of the product's key.
fn describe_operator_access(operation: &mut Operation) {
    let keys = ["platform_key", "admin_key"].map(|key| SecurityRequirement::new(key, [] as [&str; 0]));
    if operation.security.as_deref() != Some(&keys) {
        return;
    }
    let description = "The product that an operator acts for, beside `X-Admin-Key`; a product leaves it out";
    let product_id = ParameterBuilder::new()
        .name("X-Product-Id")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(ProductId::schema()));
    operation.parameters.get_or_insert_default().push(RefOr::T(product_id.build()));
    let responses = &mut operation.responses.responses;
    let Some(RefOr::T(refused)) = responses.get_mut("401") else { return };
    refused.description.push_str("; with the admin key `INVALID_ADMIN_KEY`");
    let described = |description: &str| {
        let mut response = refused.clone();
        description.clone_into(&mut response.description);
        RefOr::T(response)
    };
    let (invalid, unknown) = (
        described("`INVALID_REQUEST`: both keys and `X-Product-Id`"),
        described("With the admin key `PRODUCT_NOT_FOUND`"),
    );
    responses.entry("400".to_owned()).or_insert(invalid);
    match responses.entry("404".to_owned()) {
        Entry::Vacant(entry) => {
            entry.insert(unknown);
        }
        Entry::Occupied(mut entry) => {
            if let RefOr::T(response) = entry.get_mut() {
                response.description.push_str("; with the admin key `PRODUCT_NOT_FOUND`");
            }
        }
    }
}

/// Adds the key of a call to an operation that honours it.
fn describe_idempotency(operation: &mut Operation) {
    let description = "Identifies the call: whoever repeats it with the same key gets the first one's answer, with \
                       `Idempotency-Replayed: true`, and nothing is done again. Kept for 24 hours";
    let key = ObjectBuilder::new()
        .schema_type(SchemaType::new(Type::String))
        .min_length(Some(1))
        .max_length(Some(MAX_KEY_CHARS))
        .pattern(Some("^[!-~]+$"));
    let key = ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(key));
    operation.parameters.get_or_insert_default().push(RefOr::T(key.build()));
    let responses = &mut operation.responses.responses;
    let Some(RefOr::T(refused)) = responses.get("401").cloned() else { return };
    for (status, what) in [
        ("400", "`INVALID_REQUEST`"),
        ("409", "`IDEMPOTENCY_KEY_IN_USE`, with `Retry-After`: the call with this key is still under way"),
        ("413", "`PAYLOAD_TOO_LARGE`"),
        ("422", "`IDEMPOTENCY_KEY_REUSED`: another request was made with this key"),
    ] {
        match responses.entry(status.to_owned()) {
            Entry::Vacant(entry) => {
                let mut response = refused.clone();
                what.clone_into(&mut response.description);
                entry.insert(RefOr::T(response));
            }
            Entry::Occupied(mut entry) => {
                if let RefOr::T(response) = entry.get_mut()
                    && status == "409"
                {
                    response.description = format!("{}; {what}", response.description);
                }
            }
        }
    }
}

/// Returns the route that serves the document.
pub(super) fn serve() -> MethodRouter<AppState> {
    let document = document();
    get(move |_: Ready| std::future::ready(Json(document.clone())))
}
