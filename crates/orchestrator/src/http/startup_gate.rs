//! Answers requests before the orchestrator exists: while its registry is being opened, or while another
//! orchestrator holds it.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use api::orchestrator::HealthStatus;
use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{any, get};
use futures::future::Either;
use http_service::http::apply_layers;
use tower::{Service, ServiceExt as _};

use super::{MAX_BODY_BYTES, Routes, health, starting_up};

/// The service that answers 503 until the complete interface is set by [`StartupGate::open`].
#[derive(Clone)]
pub(crate) struct StartupGate {
    routes: Arc<OnceLock<Routes>>,
    /// Whether another orchestrator holds the registry.
    is_standby: Arc<AtomicBool>,
    startup_router: Router,
}

impl StartupGate {
    /// Returns a closed gate.
    pub(crate) fn new() -> Self {
        let is_standby = Arc::new(AtomicBool::new(false));
        let refuse = any(async || starting_up());
        let standby = Arc::clone(&is_standby);
        let health = get(async move || {
            let is_standby = standby.load(Ordering::Relaxed);
            health::unready_response(if is_standby { HealthStatus::Standby } else { HealthStatus::Starting })
        });
        let starting = Router::new().route("/health", health);
        // Explicit routes instead of a fallback: unmatched paths would be answered with 404, although they may
        // exist once the gate is open.
        let starting = starting.route("/", refuse.clone()).route("/{*path}", refuse);
        // The console says itself that this orchestrator cannot answer yet, and the documentation why.
        let starting = starting.merge(pages::routes());
        let starting = apply_layers(starting, MAX_BODY_BYTES);
        Self { routes: Arc::default(), is_standby, startup_router: starting }
    }

    /// Reports from now on that another orchestrator holds the registry.
    pub(crate) fn stand_by(&self) {
        self.is_standby.store(true, Ordering::Relaxed);
    }

    /// Opens the gate: `routes` answer all further requests.
    pub(crate) fn open(&self, routes: Routes) {
        // It is opened once; there is no second orchestrator whose routes could be set.
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
