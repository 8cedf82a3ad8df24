//! The OpenAPI document: its parts beside the routes, and the route that serves it.

use axum::Json;
use utoipa::Modify;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};

use super::auth::Authenticated;

/// Declares the scheme that the routes' `security` names.
pub(super) struct KeyScheme;

impl Modify for KeyScheme {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-Engine-Key")));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("engine_key", scheme);
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("bearer", bearer);
    }
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
