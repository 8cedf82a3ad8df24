//! The OpenAPI document: its parts beside the routes, and the route that serves it.

use axum::Json;
use axum::http::Method;
use utoipa::Modify;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{OpenApi, RefOr};

use super::auth::Authenticated;
use super::token_scopes::rule_for;

/// Declares the scheme that the routes' `security` names.
pub(super) struct KeyScheme;

impl Modify for KeyScheme {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-Engine-Key")));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("engine_key", scheme);
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("bearer", bearer);
        let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("browser_token", token);
    }
}

/// Describes the calls that browser tokens may make, from the table that permits them, and the refusals of tokens,
/// which every call has.
pub(super) fn describe_tokens(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in operations(item) {
            if operation.security.is_none() || path.starts_with("/v1/") {
                continue;
            }
            if rule_for(&method, path).is_some() {
                let token = SecurityRequirement::new("browser_token", Vec::<String>::new());
                operation.security.get_or_insert_default().push(token);
            }
            let responses = &mut operation.responses.responses;
            for (status, codes) in TOKEN_REFUSALS {
                match responses.get_mut(status) {
                    Some(RefOr::T(response)) if !response.description.contains(codes) => {
                        response.description = format!("{}, {codes}", response.description);
                    }
                    Some(_) => {}
                    None => {
                        let refusal = responses.get("401").cloned();
                        if let Some(RefOr::T(mut refusal)) = refusal {
                            codes.clone_into(&mut refusal.description);
                            responses.insert(status.to_owned(), RefOr::T(refusal));
                        }
                    }
                }
            }
        }
    }
}

/// The refusals of tokens, by their status.
const TOKEN_REFUSALS: [(&str, &str); 2] =
    [("401", "INVALID_TOKEN, TOKEN_EXPIRED, TOKEN_REVOKED"), ("403", "TOKEN_SCOPE")];

/// The operations of a path, with their methods.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    let methods = [
        (Method::GET, &mut item.get),
        (Method::HEAD, &mut item.head),
        (Method::POST, &mut item.post),
        (Method::PUT, &mut item.put),
        (Method::PATCH, &mut item.patch),
        (Method::DELETE, &mut item.delete),
    ];
    methods.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

/// Returns this document.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "get_openapi", security(("engine_key" = [])),
    responses(
        (status = 200, body = serde_json::Value, content_type = "application/json", description = "The document"),
        (status = 401, body = api::ErrorBody, description = "INVALID_ENGINE_KEY"),
    ),
)]
pub(super) async fn openapi(_: Authenticated) -> Json<OpenApi> {
    Json(super::document())
}
