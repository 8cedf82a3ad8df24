//! What answers while there is no orchestrator yet: the registry is being opened, or another one holds it.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use service::http::{ApiError, finish};
use tower::{ServiceExt as _, service_fn};

use super::{MAX_BODY_BYTES, health, starting_up};

/// The place of the whole interface, until it is there.
#[derive(Clone, Default)]
pub(crate) struct Front(Arc<OnceLock<Router>>);

impl Front {
    /// From now on `router` answers.
    pub(crate) fn open(&self, router: Router) {
        // Opened once: a second router would be of a second orchestrator.
        let _ = self.0.set(router);
    }

    /// The router that answers from the first moment on.
    pub(crate) fn router(&self) -> Router {
        let starting = Router::new().route("/health", get(async || health::starting()));
        let starting = finish(starting.fallback_service(service_fn(refuse)), MAX_BODY_BYTES);
        let opened = Arc::clone(&self.0);
        Router::new().fallback_service(service_fn(move |request: Request| {
            opened.get().unwrap_or(&starting).clone().oneshot(request)
        }))
    }
}

async fn refuse(_: Request) -> Result<axum::response::Response, Infallible> {
    let refusal: ApiError = starting_up();
    Ok(axum::response::IntoResponse::into_response(refusal))
}
