//! What stands around every route of a service.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use contract::ErrorCode;
use futures::FutureExt as _;
use tracing::Instrument;

use super::ApiError;
use crate::ids;
use crate::trace_context::TraceContext;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The longest request id taken over from a caller.
const MAX_REQUEST_ID: usize = 128;

/// Completes a service's router: refusals of the framework and panics in the envelope, a limit on bodies,
/// and for each request an id, a trace context and a log line.
pub fn finish(router: Router, max_body_bytes: usize) -> Router {
    finish_counting(router, max_body_bytes, |_| {})
}

/// Like [`finish`]; `refused` is told the code of every answer that is an error.
pub fn finish_counting(
    router: Router,
    max_body_bytes: usize,
    refused: impl Fn(ErrorCode) + Send + Sync + 'static,
) -> Router {
    let around = Around { limit: DefaultBodyLimit::max(max_body_bytes), refused: Arc::new(refused) };
    router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        // All in one: each layer more costs every request several allocations.
        .layer(from_fn_with_state(around, observe))
}

/// What stands around every handler.
#[derive(Clone)]
struct Around {
    limit: DefaultBodyLimit,
    refused: Arc<dyn Fn(ErrorCode) + Send + Sync>,
}

async fn not_found() -> ApiError {
    ApiError::new(ErrorCode::NotFound, "there is no such path; GET /openapi.json lists those there are")
}

async fn method_not_allowed() -> ApiError {
    ApiError::new(ErrorCode::MethodNotAllowed, "this path does not take that method; see the Allow header")
}

fn panicked(cause: &(dyn Any + Send)) -> Response {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no message");
    tracing::error!(panic = text, "A request handler panicked.");
    ApiError::internal().into_response()
}

async fn observe(State(around): State<Around>, mut request: Request, next: Next) -> Response {
    around.limit.apply(&mut request);
    let request_id = request_id(request.headers());
    let trace = TraceContext::of_request(request.headers().get(&TRACEPARENT));
    // The route's template, never the path: a path holds what callers chose, such as user ids.
    let route = request.extensions().get::<MatchedPath>().cloned();
    // At the highest level, so that it is there for whatever line is logged in it.
    let span = tracing::error_span!(
        "request",
        request.id = request_id.to_str().unwrap_or_default(),
        trace.id = %trace.trace_id(),
        http.method = %request.method(),
        http.route = route.as_ref().map_or("-", MatchedPath::as_str),
    );
    let answer = async {
        // Nothing that a handler left half done is used again: what it shares is behind locks that see to that.
        let run = AssertUnwindSafe(next.run(request)).catch_unwind();
        let response = run.await.unwrap_or_else(|cause| panicked(&*cause));
        tracing::debug!(http.status = response.status().as_u16(), "Answered a request.");
        response
    };
    let mut response = answer.instrument(span).await;
    if let Some(code) = response.extensions().get() {
        (around.refused)(*code);
    }
    // For what stands around the router, and cannot know which route it was.
    if let Some(route) = route {
        response.extensions_mut().insert(route);
    }
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID.clone(), request_id);
    if let Ok(traceparent) = HeaderValue::try_from(trace.to_header()) {
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
        let id = ids::uuid().simple().to_string();
        HeaderValue::try_from(id).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
    })
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
