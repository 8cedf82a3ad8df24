//! Cross-origin requests of a product's pages (the Fetch standard's CORS protocol). Only credentials in a header are
//! accepted by either service, never a cookie, so `Access-Control-Allow-Credentials` is not sent. An origin is named
//! only if it is one of the product's; `*` is never sent.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures::future::{BoxFuture, Either};
use tower::Service;

use super::with_request_id;

/// The methods that a page may use.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";
/// The headers that a page may set.
const REQUEST_HEADERS: &str = "authorization, content-type, last-event-id, traceparent, x-request-id";
/// The headers of responses that a page may read besides the common ones.
const EXPOSED_HEADERS: &str =
    "content-range, etag, retry-after, roundhouse-warning, traceparent, x-request-id";
/// For how many seconds a browser may remember the answer to a preflight.
const PREFLIGHT_MAX_AGE_S: &str = "600";

/// Whether a request is a preflight: a browser's question whether a page may make a call.
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS
        && headers.contains_key(header::ORIGIN)
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Returns the origin of the page that makes a request; `None` if there is none or more than one.
pub fn origin(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let first = origins.next();
    first.filter(|_| origins.next().is_none())
}

/// Answers a preflight. `origin` is the page's, if it is allowed.
pub fn preflight_response(headers: &HeaderMap, origin: Option<HeaderValue>) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let answer = response.headers_mut();
    answer.insert(
        header::VARY,
        HeaderValue::from_static("Origin, Access-Control-Request-Method, Access-Control-Request-Headers"),
    );
    if let Some(origin) = origin {
        answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        for (name, value) in [
            (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS),
            (header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_MAX_AGE_S),
        ] {
            answer.insert(name, HeaderValue::from_static(value));
        }
    }
    with_request_id(headers, response)
}

/// Lets the page at `origin` read a response, if the origin is allowed, and nobody else's cache.
pub fn share_response(response: &mut HeaderMap, origin: Option<HeaderValue>) {
    response.append(header::VARY, HeaderValue::from_static("Origin"));
    if let Some(origin) = origin {
        response.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let exposed = HeaderValue::from_static(EXPOSED_HEADERS);
        response.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
}

/// Removes what another service said about sharing its response.
pub fn remove_sharing(headers: &mut HeaderMap) {
    let others: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("access-control-")).cloned().collect();
    for name in others {
        headers.remove(name);
    }
}

/// Decides which origins may call a service.
pub trait AllowOrigin: Clone + Send + Sync + 'static {
    /// Whether any origin is allowed: if none is, the service behaves as if there were no browsers.
    fn is_used(&self) -> bool;
    /// Whether this origin is allowed.
    fn allows(&self, origin: &str) -> bool;
}

/// A service whose responses pages of allowed origins may read.
#[derive(Clone)]
pub struct Cors<S, A> {
    inner: S,
    allow: A,
}

impl<S, A> Cors<S, A> {
    /// Wraps `inner`.
    pub const fn new(inner: S, allow: A) -> Self {
        Self { inner, allow }
    }
}

impl<S, A> Service<Request> for Cors<S, A>
where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send + 'static>,
    A: AllowOrigin,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        if !self.allow.is_used() {
            return Either::Left(self.inner.call(request));
        }
        let allowed = origin(request.headers())
            .filter(|origin| origin.to_str().is_ok_and(|text| self.allow.allows(text)))
            .cloned();
        if is_preflight(request.method(), request.headers()) {
            let response = preflight_response(request.headers(), allowed);
            return Either::Right(Box::pin(std::future::ready(Ok(response))));
        }
        let response = self.inner.call(request);
        Either::Right(Box::pin(async move {
            let mut response = response.await?;
            share_response(response.headers_mut(), allowed);
            Ok(response)
        }))
    }
}
