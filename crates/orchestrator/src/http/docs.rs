//! The OpenAPI document: its parts beside the routes, and the route that serves it.

use axum::Json;
use axum::routing::{MethodRouter, get};
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi as _};

use super::auth::Ready;
use super::examples::EXAMPLES;
use super::{AppState, Document};

/// The path of the OpenAPI document.
pub(super) const OPENAPI_PATH: &str = "/openapi.json";

/// Adds the two authentication headers to the document.
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
        let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("browser_token", token);
    }
}

/// Returns the OpenAPI document of all routes.
pub(crate) fn document() -> OpenApi {
    let mut document = Document::openapi();
    http_service::http::openapi::complete(&mut document);
    http_service::http::openapi::add_examples(&mut document, &EXAMPLES);
    // A suspended product may read, through the proxy too.
    for item in document.paths.paths.values_mut() {
        if let Some(get) = &mut item.get
            && get.operation_id.as_deref() == Some("proxy_get")
        {
            get.responses.responses.remove("403");
        }
    }
    document
}

/// Returns the route that serves the document.
pub(super) fn serve() -> MethodRouter<AppState> {
    let document = document();
    get(move |_: Ready| std::future::ready(Json(document.clone())))
}
