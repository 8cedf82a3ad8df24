//! The routes and their OpenAPI document, built together so that no route is undocumented.

use axum::Json;
use axum::routing::{MethodRouter, any, get};
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use super::auth::Ready;
use super::{AppState, audit, engines, health, logs, metrics, products, proxy, versions};

/// The path of the OpenAPI document.
pub(super) const OPENAPI_PATH: &str = "/openapi.json";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Roundhouse orchestrator",
        description = "Registers products and keeps one engine per user of each.",
    ),
    tags(
        (name = "service", description = "The service itself"),
        (name = "products", description = "Products (tenants), for the operator"),
        (name = "engines", description = "The calling product's engines, one per user"),
        (name = "ledger", description = "The calling product's audit log"),
        (name = "figures", description = "The calling product's fleet in numbers, and the operator's metrics"),
    ),
    modifiers(&Keys),
)]
struct Api;

/// Adds the two authentication headers to the document.
struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut Document) {
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

/// The routes that answer while the orchestrator starts.
pub(super) fn startup_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(Api::openapi()).routes(routes!(health::health))
}

/// The routes that answer `STARTING_UP` until the orchestrator is ready.
pub(super) fn ready_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(products::list))
        .routes(routes!(products::register))
        .routes(routes!(products::replace_policy))
        .routes(routes!(engines::provision))
        .routes(routes!(engines::admit))
        .routes(routes!(engines::start))
        .routes(routes!(engines::stop))
        .routes(routes!(engines::rotate_key))
        .routes(routes!(versions::change))
        .routes(routes!(versions::list))
        .routes(routes!(versions::move_engines))
        .routes(routes!(engines::explain))
        .routes(every_method(routes!(proxy::proxy)))
        .routes(routes!(engines::get, engines::destroy))
        .routes(routes!(engines::list))
        .routes(routes!(logs::tail))
        .routes(routes!(audit::list))
        .routes(routes!(audit::follow))
        .routes(routes!(metrics::status))
        .routes(routes!(metrics::metrics))
        .routes(routes!(metrics::prometheus))
}

/// Serves `route` for every method. The document lists only the common ones.
fn every_method(route: UtoipaMethodRouter<AppState>) -> UtoipaMethodRouter<AppState> {
    let (schemas, paths, _) = route;
    (schemas, paths, any(proxy::proxy))
}

/// Returns the OpenAPI document of all routes.
pub(crate) fn document() -> Document {
    let mut document = startup_routes().merge(ready_routes()).into_openapi();
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
