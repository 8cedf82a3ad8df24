//! The layer around every route of a service: error envelope, body limit, request id, trace context, logging,
//! panics.

use std::any::Any;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use api::ErrorCode;
use axum::Router;
use axum::body::HttpBody as _;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures::FutureExt as _;
use futures::future::CatchUnwind;
use pin_project_lite::pin_project;
use tower::{Layer, Service};
use tracing::Span;
use uuid::Uuid;

use super::{ApiError, ResponseWarnings};
use crate::trace_context::TraceContext;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The longest request id that is adopted from a caller.
const MAX_REQUEST_ID_BYTES: usize = 128;

/// The address of a connection's peer, stored as an extension of the request. Behind a reverse proxy it is the
/// proxy's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress(pub IpAddr);

/// Completes a service's router: the framework's own errors and panics get the envelope, bodies get a limit, and
/// each request gets an id, a trace context and a log line.
pub fn apply_layers(router: Router, max_body_bytes: usize) -> Router {
    apply_layers_counting_errors(router, max_body_bytes, |_| {})
}

/// Like [`apply_layers`]; calls `on_error` with the code of every error response.
pub fn apply_layers_counting_errors(
    router: Router,
    max_body_bytes: usize,
    on_error: impl Fn(ErrorCode) + Send + Sync + 'static,
) -> Router {
    let layer = RequestLayer { limit: DefaultBodyLimit::max(max_body_bytes), on_error: Arc::new(on_error) };
    router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        // A single layer, because each further one costs every request several allocations.
        .layer(layer)
}

/// The single layer around every handler.
#[derive(Clone)]
struct RequestLayer {
    limit: DefaultBodyLimit,
    on_error: Arc<dyn Fn(ErrorCode) + Send + Sync>,
}

async fn not_found() -> ApiError {
    ApiError::new(ErrorCode::NotFound, "there is no such path; GET /openapi.json lists the paths")
}

async fn method_not_allowed() -> ApiError {
    ApiError::new(ErrorCode::MethodNotAllowed, "this path does not support that method; see the Allow header")
}

fn panic_response(cause: &(dyn Any + Send)) -> Response {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no message");
    tracing::error!(panic = text, "A request handler panicked.");
    ApiError::internal().into_response()
}

impl<S> Layer<S> for RequestLayer {
    type Service = RequestService<S>;

    fn layer(&self, inner: S) -> RequestService<S> {
        RequestService { layer: self.clone(), inner }
    }
}

/// A route with the layer around it. It is a service, because a function would cost every request a copy of the
/// route and two more allocations.
#[derive(Clone)]
struct RequestService<S> {
    layer: RequestLayer,
    inner: S,
}

impl<S> Service<Request> for RequestService<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = RequestFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        self.layer.limit.apply(&mut request);
        let request_id = request_id(request.headers());
        let trace = TraceContext::from_header(request.headers().get(&TRACEPARENT));
        // The route's template, never the path: a path contains callers' data, such as user ids.
        let route = request.extensions().get::<MatchedPath>().cloned();
        let client = request.extensions().get().map(|ClientAddress(address)| *address);
        // At the highest level, so that lines of every level have its fields.
        let span = tracing::error_span!(
            "request",
            request_id = request_id.to_str().unwrap_or_default(),
            trace_id = trace.trace_id(),
            http_method = request.method().as_str(),
            http_route = route.as_ref().map_or("-", MatchedPath::as_str),
            client_address = client.map(tracing::field::display),
        );
        // Only a body can have unknown fields.
        let warnings = (!request.body().is_end_stream()).then(|| ResponseWarnings::attach(&mut request));
        let response = {
            let _entered = span.enter();
            self.inner.call(request)
        };
        RequestFuture {
            // State that a panicking handler left inconsistent is not used again: shared state is behind locks
            // that ensure this.
            response: AssertUnwindSafe(response).catch_unwind(),
            span,
            finisher: Some(ResponseFinisher {
                request_id,
                trace,
                route,
                warnings,
                on_error: Arc::clone(&self.layer.on_error),
            }),
        }
    }
}

/// Adds the headers and extensions that every response gets.
struct ResponseFinisher {
    request_id: HeaderValue,
    trace: TraceContext,
    route: Option<MatchedPath>,
    warnings: Option<ResponseWarnings>,
    on_error: Arc<dyn Fn(ErrorCode) + Send + Sync>,
}

pin_project! {
    /// The handling of a request.
    struct RequestFuture<F> {
        #[pin]
        response: CatchUnwind<AssertUnwindSafe<F>>,
        span: Span,
        // `None` once the response is complete.
        finisher: Option<ResponseFinisher>,
    }
}

impl<F: Future<Output = Result<Response, Infallible>>> Future for RequestFuture<F> {
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let entered = this.span.enter();
        let mut response = match ready!(this.response.poll(context)) {
            Ok(Ok(response)) => response,
            Err(cause) => panic_response(&*cause),
        };
        tracing::debug!(http_status = response.status().as_u16(), "Answered a request.");
        drop(entered);
        if let Some(finisher) = this.finisher.take() {
            finisher.apply(&mut response);
        }
        Poll::Ready(Ok(response))
    }
}

impl ResponseFinisher {
    fn apply(self, response: &mut Response) {
        if let Some(code) = response.extensions().get() {
            (self.on_error)(*code);
        }
        // For code around the router, which cannot know the route.
        if let Some(route) = self.route {
            response.extensions_mut().insert(route);
        }
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID.clone(), self.request_id);
        if let Some(warnings) = self.warnings {
            warnings.apply(headers);
        }
        if let Ok(traceparent) = self.trace.into_header() {
            headers.insert(TRACEPARENT.clone(), traceparent);
        }
    }
}

/// Adds a request id (the caller's or a new one) and a trace context to a response that comes from no route.
pub(crate) fn with_request_id(headers: &HeaderMap, mut response: Response) -> Response {
    let (request_id, trace) = (request_id(headers), TraceContext::from_header(headers.get(&TRACEPARENT)));
    let finisher =
        ResponseFinisher { request_id, trace, route: None, warnings: None, on_error: Arc::new(|_| {}) };
    finisher.apply(&mut response);
    response
}

/// Returns the caller's request id if it is acceptable (1 to 128 visible ASCII characters), else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_acceptable = |id: &&HeaderValue| {
        (1..=MAX_REQUEST_ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers.get(&REQUEST_ID).filter(is_acceptable).cloned().unwrap_or_else(|| {
        let id = Uuid::now_v7().simple().to_string();
        HeaderValue::try_from(id).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
    })
}

#[cfg(test)]
#[path = "../../tests/unit/http/layers.rs"]
mod tests;
