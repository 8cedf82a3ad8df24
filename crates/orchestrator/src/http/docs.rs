//! The routes, each with its description: one cannot be without the other.

use axum::Json;
use axum::routing::{MethodRouter, any, get};
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use super::auth::Ready;
use super::{AppState, audit, engines, health, logs, metrics, products, proxy, versions};

/// Where the document is served.
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
        (name = "ledger", description = "What happened to the calling product, row by row"),
        (name = "figures", description = "The calling product's fleet in numbers"),
    ),
    modifiers(&Keys),
)]
struct Api;

/// The two headers that authenticate.
struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut Document) {
        let components = document.components.get_or_insert_default();
        for (name, header, whose) in [
            ("platform_key", "X-Platform-Key", "The product's key, as registration issued it"),
            ("admin_key", "X-Admin-Key", "The deployment's admin key"),
        ] {
            let key = ApiKeyValue::with_description(header, whose);
            components.add_security_scheme(name, SecurityScheme::ApiKey(ApiKey::Header(key)));
        }
    }
}

/// The routes that answer from the first moment on.
pub(super) fn startup_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(Api::openapi()).routes(routes!(health::health))
}

/// The routes that wait until the orchestrator is ready.
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

/// A route under every method there is. The document has those that people use.
fn every_method(route: UtoipaMethodRouter<AppState>) -> UtoipaMethodRouter<AppState> {
    let (schemas, paths, _) = route;
    (schemas, paths, any(proxy::proxy))
}

/// The document of all routes.
pub(crate) fn document() -> Document {
    let mut document = startup_routes().merge(ready_routes()).into_openapi();
    // The router's own form of a parameter that holds the rest of a path is not the document's.
    let paths = std::mem::take(&mut document.paths.paths);
    document.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    // One function passes all methods on; a client made from the document needs a name for each.
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
                // A suspended product may look, through the proxy too.
                if method == "get" {
                    operation.responses.responses.remove("403");
                }
            }
        }
    }
    document
}

/// Serves the document.
pub(super) fn serve() -> MethodRouter<AppState> {
    let document = document();
    get(move |_: Ready| std::future::ready(Json(document.clone())))
}
