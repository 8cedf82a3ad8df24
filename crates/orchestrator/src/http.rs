//! The orchestrator's HTTP interface: extract, call one function of `fleet`, answer. No rules here.

mod audit;
mod auth;
mod docs;
mod engines;
mod error;
mod guarded_body;
mod health;
mod logs;
mod metrics;
mod path_rewrite;
mod products;
mod proxy;
mod startup_gate;
mod versions;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::{AdminKey, ErrorCode};
use axum::Router;
use axum::extract::{FromRef, Request};
use axum::response::Response;
use http_service::http::{ApiError, apply_layers_counting_errors};
use tower::util::{MapRequest, MapResponse};

use crate::fleet::Fleet;

#[cfg(test)]
pub(crate) use self::docs::document;
pub(crate) use self::startup_gate::StartupGate;

/// The largest body taken.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// What handlers share.
#[derive(Clone, FromRef)]
struct AppState {
    fleet: Arc<Fleet>,
    admin_key: AdminKey,
    proxy_client: proxy::ProxyClient,
}

/// Every route, with all that stands around them.
pub(crate) type Routes = MapResponse<MapRequest<Router, fn(Request) -> Request>, fn(Response) -> Response>;

/// Makes the routes.
pub(crate) fn routes(fleet: Arc<Fleet>, admin_key: AdminKey) -> Routes {
    let counting = Arc::clone(&fleet);
    let router =
        router_without_middleware(AppState { fleet, admin_key, proxy_client: proxy::ProxyClient::new() });
    let router = apply_layers_counting_errors(router, MAX_BODY_BYTES, move |code| {
        counting.telemetry().record_error(code);
    });
    MapResponse::new(
        MapRequest::new(router, path_rewrite::rewrite_provision_path),
        path_rewrite::complete_allow_header,
    )
}

/// The routes with nothing around them.
fn router_without_middleware(app: AppState) -> Router {
    let routes = docs::startup_routes().merge(docs::ready_routes().route(docs::OPENAPI_PATH, docs::serve()));
    Router::from(routes).with_state(app)
}

fn starting_up() -> ApiError {
    ApiError::new(ErrorCode::StartingUp, "the orchestrator is starting; come back in a second").retry_after(1)
}
