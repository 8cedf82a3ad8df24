//! The orchestrator's HTTP interface: extract, call one function of `fleet`, answer. No rules here.

mod audit;
mod auth;
mod docs;
mod engines;
mod error;
mod figures;
mod front;
mod health;
mod held;
mod logs;
mod products;
mod proxy;
mod seats;
mod versions;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRef, Request};
use axum::response::Response;
use contract::{AdminKey, ErrorCode};
use service::http::{ApiError, finish_counting};
use tower::util::{MapRequest, MapResponse};

use crate::fleet::Fleet;

#[cfg(test)]
pub(crate) use self::docs::document;
pub(crate) use self::front::Front;

/// The largest body taken.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// What handlers share.
#[derive(Clone, FromRef)]
struct App {
    fleet: Arc<Fleet>,
    admin_key: AdminKey,
    carrier: proxy::Carrier,
}

/// Every route, with all that stands around them.
pub(crate) type Routes = MapResponse<MapRequest<Router, fn(Request) -> Request>, fn(Response) -> Response>;

/// Makes the routes.
pub(crate) fn routes(fleet: Arc<Fleet>, admin_key: AdminKey) -> Routes {
    let counting = Arc::clone(&fleet);
    let router = bare(App { fleet, admin_key, carrier: proxy::Carrier::new() });
    let router = finish_counting(router, MAX_BODY_BYTES, move |code| counting.telemetry().refused(code));
    MapResponse::new(MapRequest::new(router, seats::keep_user_ids_apart), seats::name_all_methods)
}

/// The routes with nothing around them.
fn bare(app: App) -> Router {
    let routes = docs::always().merge(docs::when_ready().route(docs::PATH, docs::serve()));
    Router::from(routes).with_state(app)
}

fn starting_up() -> ApiError {
    ApiError::new(ErrorCode::StartingUp, "the orchestrator is starting; come back in a second").retry_after(1)
}
