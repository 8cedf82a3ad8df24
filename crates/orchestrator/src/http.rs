//! The orchestrator's HTTP interface. Each handler extracts its arguments, calls one function of `fleet` and
//! converts the result; the rules are in `fleet`.

mod audit;
mod audit_stream;
mod auth;
mod backups;
mod browser;
mod docs;
mod drift;
mod engines;
mod error;
mod examples;
mod fleet;
mod guarded_body;
mod health;
mod idempotency;
mod inbox;
mod log_filters;
mod logs;
mod maintenance;
mod measured;
mod metrics;
mod path_rewrite;
mod platform_keys;
mod product_states;
mod products;
mod proxy;
mod rollouts;
mod scrapes;
mod start_page;
mod startup_gate;
mod usage;
mod versions;
mod webhooks;

#[cfg(test)]
#[path = "../tests/unit/http/mod.rs"]
mod tests;

use std::sync::Arc;

use api::{AdminKey, ErrorCode};
use axum::Router;
use axum::extract::{FromRef, Request};
use axum::middleware;
use axum::response::Response;
use axum::routing::any;
use http_service::http::{ApiError, LayerOptions, apply_layers_with};
use tower::util::{MapRequest, MapResponse};

use self::docs::KeySchemes;
use self::idempotency::ByKey;
use self::measured::Measured;
use crate::fleet::Fleet;

#[cfg(test)]
pub(crate) use self::docs::document;
pub use self::scrapes::MetricsAddressError;
pub(crate) use self::scrapes::Scrapes;
pub(crate) use self::startup_gate::StartupGate;

/// The largest request body that is accepted.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// The state that all handlers share.
#[derive(Clone, FromRef)]
struct AppState {
    fleet: Arc<Fleet>,
    admin_key: AdminKey,
    proxy_client: proxy::ProxyClient,
}

http_service::routes! {
    AppState,
    openapi(
        info(
            title = "Roundhouse orchestrator",
            description = "Registers products and keeps one engine per user of each.",
        ),
        servers((url = "/", description = "The orchestrator's address")),
        tags(
            (name = "service", description = "The service itself"),
            (name = "products", description = "Products (tenants), for the operator"),
            (name = "engines", description = "The calling product's engines, one per user"),
            (name = "browser", description = "Browser tokens of the product's engines, and the origins of its pages"),
            (name = "inbox", description = "Questions of the product's engines that wait for a person"),
            (name = "audit", description = "The calling product's audit log"),
            (name = "webhooks", description = "Webhooks that get the rows of the calling product's audit log"),
            (name = "fleet", description = "The engines of all products, for the operator"),
            (name = "metrics", description = "The calling product's fleet in numbers, and the operator's metrics"),
        ),
        modifiers(&KeySchemes)
    ),
    health::health,
    products::list,
    products::register,
    products::replace_policy,
    product_states::get,
    product_states::disable,
    product_states::enable,
    product_states::plan_deletion,
    product_states::delete,
    platform_keys::list,
    platform_keys::create,
    platform_keys::revoke,
    engines::provision,
    engines::admit,
    engines::start,
    engines::stop,
    engines::rotate_key,
    versions::change,
    versions::list,
    versions::move_engines,
    engines::explain,
    inbox::list,
    browser::mint,
    browser::list,
    browser::revoke,
    browser::origins,
    browser::replace_origins,
    proxy::proxy,
    engines::get,
    engines::destroy,
    engines::list,
    logs::tail,
    log_filters::get_engine,
    log_filters::set_engine,
    log_filters::reset_engine,
    audit::list,
    audit::follow,
    webhooks::list,
    webhooks::create,
    webhooks::get,
    webhooks::update,
    webhooks::delete,
    webhooks::rotate_secret,
    webhooks::replay,
    webhooks::dead_letters,
    webhooks::retry_dead_letters,
    webhooks::discard_dead_letters,
    metrics::status,
    metrics::metrics,
    metrics::prometheus,
    usage::of_product,
    usage::of_fleet,
    fleet::engines,
    fleet::status,
    fleet::audit,
    fleet::follow,
    fleet::start_failed,
    fleet::drain,
    fleet::drain_progress,
    fleet::lift_drain,
    drift::list,
    drift::repair,
    log_filters::get_fleet,
    log_filters::set_fleet,
    log_filters::reset_fleet,
    maintenance::get,
    maintenance::begin,
    maintenance::end,
    rollouts::list,
    rollouts::start,
    rollouts::get,
    rollouts::engines,
    rollouts::pause,
    rollouts::resume,
    rollouts::roll_back,
    backups::start,
    backups::status,
    backups::list,
}

/// All routes with their middleware.
pub(crate) type Routes = Measured<ByKey<Rewritten>>;

/// Routes with the paths of requests and the headers of responses rewritten.
type Rewritten = MapResponse<MapRequest<Router, fn(Request) -> Request>, fn(Response) -> Response>;

/// Builds the routes with their middleware, which also counts and measures what callers receive.
pub(crate) fn routes(fleet: Arc<Fleet>, admin_key: AdminKey) -> Routes {
    let error_counter = Arc::clone(&fleet);
    let recorder = fleet.metrics().recorder().cloned();
    if let Some(recorder) = &recorder {
        let paths = [proxy::PATH, docs::OPENAPI_PATH, start_page::START_PAGE_PATH].map(str::to_owned);
        recorder.set_routes(docs::paths().chain(paths).chain(pages::paths()));
    }
    let app = AppState { fleet, admin_key, proxy_client: proxy::ProxyClient::new() };
    let others = router_without_middleware(app.clone());
    let execute_once = middleware::from_fn_with_state(app, idempotency::execute_once);
    let keyed = others.clone().route_layer(execute_once);
    let complete = |router| complete(router, Arc::clone(&error_counter));
    Measured::new(ByKey { keyed: complete(keyed), others: complete(others) }, recorder)
}

/// Adds what all routes have around them.
fn complete(router: Router, error_counter: Arc<Fleet>) -> Rewritten {
    let forwarded_route = Some(proxy::PATH);
    let options = LayerOptions { max_body_bytes: MAX_BODY_BYTES, forwarded_route, engine_id: None };
    let router = apply_layers_with(router, options, move |code| {
        error_counter.telemetry.record_error(code);
    });
    MapResponse::new(
        MapRequest::new(router, path_rewrite::rewrite_provision_path),
        path_rewrite::complete_allow_header,
    )
}

/// The routes without middleware.
fn router_without_middleware(app: AppState) -> Router {
    // The document lists only the proxy's common methods.
    let routes = table().route(proxy::PATH, any(proxy::proxy)).route(docs::OPENAPI_PATH, docs::serve());
    let routes = routes.route(start_page::START_PAGE_PATH, start_page::serve());
    routes.merge(pages::routes()).with_state(app)
}

fn starting_up() -> ApiError {
    let message = "this orchestrator is starting, a standby, or cut off from its registry; retry in a second";
    ApiError::new(ErrorCode::StartingUp, message).retry_after(1)
}
