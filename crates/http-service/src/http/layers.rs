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
use uuid::Uuid;

use super::traced::{end_with_body, set_status, start_server_span};
use super::{ApiError, ResponseWarnings};
use crate::trace_context::{TRACEPARENT, TraceContext};

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

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
    let options = LayerOptions { max_body_bytes, forwarded_route: None, engine_id: None };
    apply_layers_with(router, options, on_error)
}

/// What services may choose about the layer.
#[derive(Clone, Debug)]
pub struct LayerOptions {
    /// The most bytes of a request's body.
    pub max_body_bytes: usize,
    /// The template of the route whose requests are forwarded to another service: they get the headers with the id and
    /// the trace of the request, so that the log lines of both services have the same.
    pub forwarded_route: Option<&'static str>,
    /// The engine that the service is, if it is one: each line of a request has its id.
    pub engine_id: Option<Arc<str>>,
}

/// Like [`apply_layers_counting_errors`], with further options.
pub fn apply_layers_with(
    router: Router,
    LayerOptions { max_body_bytes, forwarded_route, engine_id }: LayerOptions,
    on_error: impl Fn(ErrorCode) + Send + Sync + 'static,
) -> Router {
    let limit = DefaultBodyLimit::max(max_body_bytes);
    let layer = RequestLayer { limit, forwarded_route, engine_id, on_error: Arc::new(on_error) };
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
    forwarded_route: Option<&'static str>,
    engine_id: Option<Arc<str>>,
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
        // The route's template, never the path: a path contains callers' data, such as user ids.
        let route = request.extensions().get::<MatchedPath>().cloned();
        let server_span = start_server_span(&request, route.as_ref(), &request_id);
        let trace = TraceContext::of_span(&server_span, request.headers());
        if route.as_ref().is_some_and(|route| Some(route.as_str()) == self.layer.forwarded_route) {
            forward_ids(request.headers_mut(), &request_id, &trace);
        }
        let client = request.extensions().get().map(|ClientAddress(address)| *address);
        // At the highest level, so that lines of every level have its fields.
        let span = tracing::error_span!(
            "request",
            request_id = request_id.to_str().unwrap_or_default(),
            trace_id = trace.trace_id(),
            http_method = request.method().as_str(),
            http_route = route.as_ref().map_or("-", MatchedPath::as_str),
            client_address = client.map(tracing::field::display),
            product_id = tracing::field::Empty,
            engine_id = self.layer.engine_id.as_deref(),
        );
        // Only a body can have unknown fields.
        let warnings = (!request.body().is_end_stream()).then(|| ResponseWarnings::attach(&mut request));
        let response = {
            let (_entered, _attached) = (span.enter(), server_span.attach());
            self.inner.call(request)
        };
        RequestFuture {
            // State that a panicking handler left inconsistent is not used again: shared state is behind locks
            // that ensure this.
            response: AssertUnwindSafe(response).catch_unwind(),
            span,
            server_span: Some(server_span),
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
        span: tracing::Span,
        // `None` once the response is complete, whose body then has it.
        server_span: Option<traces::Span>,
        // `None` once the response is complete.
        finisher: Option<ResponseFinisher>,
    }
}

impl<F: Future<Output = Result<Response, Infallible>>> Future for RequestFuture<F> {
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let entered = this.span.enter();
        let attached = this.server_span.as_ref().map(traces::Span::attach);
        let mut response = match ready!(this.response.poll(context)) {
            Ok(Ok(response)) => response,
            Err(cause) => panic_response(&*cause),
        };
        tracing::debug!(http_status = response.status().as_u16(), "Answered a request.");
        drop((entered, attached));
        if let Some(server_span) = this.server_span.take() {
            set_status(&server_span, response.status());
            response = response.map(|body| end_with_body(server_span, body));
        }
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
    let (request_id, trace) = (request_id(headers), TraceContext::from_headers(headers));
    let finisher =
        ResponseFinisher { request_id, trace, route: None, warnings: None, on_error: Arc::new(|_| {}) };
    finisher.apply(&mut response);
    response
}

/// Sets the headers by which the service that a request is forwarded to knows its id and its trace.
fn forward_ids(headers: &mut HeaderMap, request_id: &HeaderValue, trace: &TraceContext) {
    headers.insert(REQUEST_ID.clone(), request_id.clone());
    if let Ok(traceparent) = trace.clone().into_header() {
        headers.insert(TRACEPARENT.clone(), traceparent);
    }
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
