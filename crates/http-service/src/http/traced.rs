//! The span of a request, by the semantic conventions for HTTP
//! (<https://opentelemetry.io/docs/specs/semconv/http/http-spans/>). It ends when the response has been sent, so that a
//! stream takes as long as it is open.

use std::fmt::Display;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, StatusCode};
use hyper::body::{Frame, SizeHint};
use traces::{Details, Kind, Span};

use crate::trace_context::caller;

/// Routes that are asked all the time and say nothing about a request of anybody.
const UNTRACED_ROUTES: [&str; 2] = ["/health", "/metrics"];

/// Begins the span of a request, which continues the caller's trace.
pub(super) fn start_server_span(
    request: &Request,
    route: Option<&MatchedPath>,
    request_id: &HeaderValue,
) -> Span {
    if !traces::is_on() || route.is_some_and(|route| UNTRACED_ROUTES.contains(&route.as_str())) {
        return Span::default();
    }
    Span::start_from(caller(request.headers()), Kind::Server, || {
        // Any word may stand there.
        let method = match request.method().as_str() {
            known @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS") => known.to_owned(),
            _ => "_OTHER".to_owned(),
        };
        // Neither the path nor the query: they have callers' data, such as user ids.
        let name = route.map_or_else(|| method.clone(), |route| format!("{method} {}", route.as_str()));
        let details = Details::new(name)
            .with("http.request.method", method)
            .with("url.scheme", "http")
            .with("roundhouse.request.id", request_id.to_str().unwrap_or_default().to_owned());
        match route {
            Some(route) => details.with("http.route", route.as_str().to_owned()),
            None => details,
        }
    })
}

/// Notes of which product a request is: in its log lines from now on, and in its span.
pub fn note_product(id: impl Display) {
    note("product_id", "roundhouse.product.id", &id);
}

/// Notes which engine a request is about: in its log lines from now on, and in its span.
pub fn note_engine(id: impl Display) {
    note("engine_id", "roundhouse.engine.id", &id);
}

fn note(field: &'static str, attribute: &'static str, id: &dyn Display) {
    tracing::Span::current().record(field, tracing::field::display(id));
    traces::annotate(attribute, || id.to_string());
}

/// Adds the status of the response to the span of a request.
pub fn set_status(span: &Span, status: StatusCode) {
    span.set("http.response.status_code", || i64::from(status.as_u16()));
    if status.is_server_error() {
        span.fail(status.as_str().to_owned());
    }
}

/// Ends `span` once the body has been sent or abandoned.
pub fn end_with_body(span: Span, body: Body) -> Body {
    if span.is_recording() && !body.is_end_stream() { Body::new(TracedBody { body, span }) } else { body }
}

/// A body within whose span nothing more happens than that it is sent.
struct TracedBody {
    body: Body,
    span: Span,
}

impl HttpBody for TracedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Err(_)) = &frame {
            self.span.fail("body");
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
