//! What stands around every route of a service.

use std::any::Any;

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use contract::ErrorCode;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument;
use uuid::Uuid;

use super::ApiError;
use crate::trace_context::TraceContext;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The longest request id taken over from a caller.
const MAX_REQUEST_ID: usize = 128;

/// Completes a service's router: refusals of the framework and panics in the envelope, a limit on bodies,
/// and for each request an id, a trace context and a log line.
pub fn finish(router: Router, max_body_bytes: usize) -> Router {
    router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(max_body_bytes))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(observe))
}

async fn not_found() -> ApiError {
    ApiError::new(ErrorCode::NotFound, "there is no such path; GET /openapi.json lists those there are")
}

async fn method_not_allowed() -> ApiError {
    ApiError::new(ErrorCode::MethodNotAllowed, "this path does not take that method; see the Allow header")
}

#[expect(clippy::needless_pass_by_value, reason = "the form that the layer calls")]
fn panicked(cause: Box<dyn Any + Send>) -> Response {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no message");
    tracing::error!(panic = text, "A request handler panicked.");
    ApiError::internal().into_response()
}

async fn observe(request: Request, next: Next) -> Response {
    let request_id = request_id(request.headers());
    let trace = TraceContext::of_request(request.headers().get(&TRACEPARENT));
    // The route's template, never the path: a path holds what callers chose, such as user ids.
    let route = request.extensions().get::<MatchedPath>().map_or("-", MatchedPath::as_str).to_owned();
    // At the highest level, so that it is there for whatever line is logged in it.
    let span = tracing::error_span!(
        "request",
        request.id = request_id.to_str().unwrap_or_default(),
        trace.id = %trace.trace_id(),
        http.method = %request.method(),
        http.route = route,
    );
    let mut response = next.run(request).instrument(span.clone()).await;
    span.in_scope(|| tracing::debug!(http.status = response.status().as_u16(), "Answered a request."));
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID.clone(), request_id);
    if let Ok(traceparent) = HeaderValue::from_str(&trace.to_header()) {
        headers.insert(TRACEPARENT.clone(), traceparent);
    }
    response
}

/// The caller's request id if it is a sane one (visible ASCII, bounded), else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let sane = |id: &&HeaderValue| {
        (1..=MAX_REQUEST_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers.get(&REQUEST_ID).filter(sane).cloned().unwrap_or_else(|| {
        let id = Uuid::now_v7().simple().to_string();
        HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
    })
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
