//! The orchestrator's HTTP interface: extract, call one function of `fleet`, answer. No rules here.

mod audit;
mod auth;
mod docs;
mod engines;
mod error;
mod figures;
mod front;
mod health;
mod logs;
mod products;
mod proxy;
mod seats;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRef, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use contract::{AdminKey, ErrorCode};
use service::http::{ApiError, finish};
use tower::ServiceExt as _;

use crate::fleet::Fleet;

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
pub(crate) fn router(fleet: Arc<Fleet>, admin_key: AdminKey) -> Router {
    let app = App { fleet, admin_key, carrier: proxy::Carrier::default() };
    let when_ready = docs::when_ready()
        .route(docs::PATH, docs::serve())
        .layer(from_fn_with_state(app.clone(), only_if_ready));
    let router = Router::from(docs::always().merge(when_ready)).with_state(app);
    let router = finish(router, MAX_BODY_BYTES);
    Router::new().fallback_service(router.map_request(seats::keep_user_ids_apart))
}

/// Until the orchestrator is ready it says so, and nothing else.
async fn only_if_ready(State(fleet): State<Arc<Fleet>>, request: Request, next: Next) -> Response {
    if fleet.is_ready() { next.run(request).await } else { starting_up().into_response() }
}

fn starting_up() -> ApiError {
    ApiError::new(ErrorCode::StartingUp, "the orchestrator is starting; come back in a second").retry_after(1)
}
