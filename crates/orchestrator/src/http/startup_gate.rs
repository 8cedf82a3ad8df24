//! What answers while there is no orchestrator yet: the registry is being opened, or another one holds it.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{any, get};
use futures::future::Either;
use http_service::http::apply_layers;
use tower::{Service, ServiceExt as _};

use super::{MAX_BODY_BYTES, Routes, health, starting_up};

/// The whole interface, or what stands in its place until it is there.
#[derive(Clone)]
pub(crate) struct StartupGate {
    routes: Arc<OnceLock<Routes>>,
    startup_router: Router,
}

impl StartupGate {
    /// Nothing is there yet.
    pub(crate) fn new() -> Self {
        let refuse = any(async || starting_up());
        let starting = Router::new().route("/health", get(async || health::starting_response()));
        // As routes: what has none would be answered that it is not there, which may not be so.
        let starting = starting.route("/", refuse.clone()).route("/{*path}", refuse);
        let starting = apply_layers(starting, MAX_BODY_BYTES);
        Self { routes: Arc::default(), startup_router: starting }
    }

    /// From now on `routes` answer.
    pub(crate) fn open(&self, routes: Routes) {
        // Opened once: a second set would be of a second orchestrator.
        let _ = self.routes.set(routes);
    }
}

impl Service<Request> for StartupGate {
    type Response = Response;
    type Error = Infallible;
    type Future = Either<tower::util::Oneshot<Routes, Request>, tower::util::Oneshot<Router, Request>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match self.routes.get() {
            Some(routes) => Either::Left(routes.clone().oneshot(request)),
            None => Either::Right(self.startup_router.clone().oneshot(request)),
        }
    }
}
