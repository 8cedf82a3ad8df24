//! The OpenAPI document: its parts beside the routes, and the route that serves it.

use axum::Json;
use axum::routing::{MethodRouter, get};
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityScheme};
use utoipa::{Modify, OpenApi as _};

use super::auth::Ready;
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
    }
}

/// Returns the OpenAPI document of all routes.
pub(crate) fn document() -> OpenApi {
    let mut document = Document::openapi();
    // The router's wildcard syntax `{*path}` is not valid in OpenAPI.
    let paths = std::mem::take(&mut document.paths.paths);
    document.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    // One handler serves all methods of the proxy, but generated clients need one operation id per method.
    for item in document.paths.paths.values_mut() {
        let methods = [
            ("get", &mut item.get),
            ("post", &mut item.post),
            ("put", &mut item.put),
            ("patch", &mut item.patch),
            ("delete", &mut item.delete),
        ];
        for (method, operation) in methods {
            if let Some(operation) = operation
                && operation.operation_id.as_deref() == Some("proxy")
            {
                operation.operation_id = Some(format!("proxy_{method}"));
                // A suspended product may read, through the proxy too.
                if method == "get" {
                    operation.responses.responses.remove("403");
                }
            }
        }
    }
    document
}

/// Returns the route that serves the document.
pub(super) fn serve() -> MethodRouter<AppState> {
    let document = document();
    get(move |_: Ready| std::future::ready(Json(document.clone())))
}
