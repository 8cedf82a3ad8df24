//! What stands around every route of a service.

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
use axum::extract::{DefaultBodyLimit, MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures::FutureExt as _;
use futures::future::CatchUnwind;
use pin_project_lite::pin_project;
use tower::{Layer, Service};
use tracing::Span;

use super::ApiError;
use crate::ids;
use crate::trace_context::TraceContext;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The longest request id taken over from a caller.
const MAX_REQUEST_ID_BYTES: usize = 128;

/// Whose connection a request came over, as an extension of it. Behind a reverse proxy it is the proxy's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress(pub IpAddr);

/// Completes a service's router: refusals of the framework and panics in the envelope, a limit on bodies,
/// and for each request an id, a trace context and a log line.
pub fn apply_layers(router: Router, max_body_bytes: usize) -> Router {
    apply_layers_counting_errors(router, max_body_bytes, |_| {})
}

/// Like [`apply_layers`]; `refused` is told the code of every answer that is an error.
pub fn apply_layers_counting_errors(
    router: Router,
    max_body_bytes: usize,
    refused: impl Fn(ErrorCode) + Send + Sync + 'static,
) -> Router {
    let around = RequestLayer { limit: DefaultBodyLimit::max(max_body_bytes), on_error: Arc::new(refused) };
    router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        // All in one: each layer more costs every request several allocations.
        .layer(around)
}

/// What stands around every handler.
#[derive(Clone)]
struct RequestLayer {
    limit: DefaultBodyLimit,
    on_error: Arc<dyn Fn(ErrorCode) + Send + Sync>,
}

async fn not_found() -> ApiError {
    ApiError::new(ErrorCode::NotFound, "there is no such path; GET /openapi.json lists those there are")
}

async fn method_not_allowed() -> ApiError {
    ApiError::new(ErrorCode::MethodNotAllowed, "this path does not take that method; see the Allow header")
}

fn panic_response(cause: &(dyn Any + Send)) -> Response {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no message");
    tracing::error!(panic = text, "A request handler panicked.");
    ApiError::internal().into_response()
}

impl<S> Layer<S> for RequestLayer {
    type Service = RequestService<S>;

    fn layer(&self, route: S) -> RequestService<S> {
        RequestService { layer: self.clone(), inner: route }
    }
}

/// A route with all that stands around it. Written as a service, because a function would cost every request a
/// copy of the route and two allocations more.
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
        // The route's template, never the path: a path holds what callers chose, such as user ids.
        let route = request.extensions().get::<MatchedPath>().cloned();
        let client = request.extensions().get().map(|ClientAddress(address)| *address);
        // At the highest level, so that it is there for whatever line is logged in it.
        let span = tracing::error_span!(
            "request",
            request.id = request_id.to_str().unwrap_or_default(),
            trace.id = trace.trace_id(),
            http.method = request.method().as_str(),
            http.route = route.as_ref().map_or("-", MatchedPath::as_str),
            client.address = client.map(tracing::field::display),
        );
        let answer = {
            let _entered = span.enter();
            self.inner.call(request)
        };
        RequestFuture {
            // Nothing that a handler left half done is used again: what it shares is behind locks that see to
            // that.
            answer: AssertUnwindSafe(answer).catch_unwind(),
            span,
            finisher: Some(ResponseFinisher {
                request_id,
                trace,
                route,
                on_error: Arc::clone(&self.layer.on_error),
            }),
        }
    }
}

/// What an answer is given on its way out.
struct ResponseFinisher {
    request_id: HeaderValue,
    trace: TraceContext,
    route: Option<MatchedPath>,
    on_error: Arc<dyn Fn(ErrorCode) + Send + Sync>,
}

pin_project! {
    /// A request being answered.
    struct RequestFuture<F> {
        #[pin]
        answer: CatchUnwind<AssertUnwindSafe<F>>,
        span: Span,
        // None once it is answered.
        finisher: Option<ResponseFinisher>,
    }
}

impl<F: Future<Output = Result<Response, Infallible>>> Future for RequestFuture<F> {
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let entered = this.span.enter();
        let mut response = match ready!(this.answer.poll(context)) {
            Ok(Ok(response)) => response,
            Err(cause) => panic_response(&*cause),
        };
        tracing::debug!(http.status = response.status().as_u16(), "Answered a request.");
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
        // For what stands around the router, and cannot know which route it was.
        if let Some(route) = self.route {
            response.extensions_mut().insert(route);
        }
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID.clone(), self.request_id);
        if let Ok(traceparent) = self.trace.into_header() {
            headers.insert(TRACEPARENT.clone(), traceparent);
        }
    }
}

/// An answer that comes from no route, with an id of its own or the caller's, as every answer has.
pub(crate) fn with_request_id(headers: &HeaderMap, mut answer: Response) -> Response {
    let (request_id, trace) = (request_id(headers), TraceContext::from_header(headers.get(&TRACEPARENT)));
    ResponseFinisher { request_id, trace, route: None, on_error: Arc::new(|_| {}) }.apply(&mut answer);
    answer
}

/// The caller's request id if it is a sane one (visible ASCII, bounded), else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let sane = |id: &&HeaderValue| {
        (1..=MAX_REQUEST_ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers.get(&REQUEST_ID).filter(sane).cloned().unwrap_or_else(|| {
        let id = ids::uuid_v7().simple().to_string();
        HeaderValue::try_from(id).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
    })
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
