//! The trace of a request: the `traceparent` header of W3C Trace Context (<https://www.w3.org/TR/trace-context/>).

use axum::http::header::InvalidHeaderValue;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use traces::{Parent, Span, parse_traceparent};
use uuid::Uuid;

pub(crate) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The trace of a request and the id of this service's span in it: the text of a `traceparent` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext(String);

impl TraceContext {
    /// Continues the caller's trace, or starts a new one if the header is missing or invalid.
    pub fn from_headers(headers: &HeaderMap) -> Self {
        let mut text = String::with_capacity(55);
        text.push_str("00-");
        let parent = headers.get(&TRACEPARENT).and_then(|value| parse_traceparent(value.to_str().ok()?));
        match parent {
            Some((trace_id, _, _)) => text.push_str(trace_id),
            None => text.push_str(&hex::encode(Uuid::now_v7())),
        }
        text.push('-');
        // Never 0, which means that there is no span.
        text.push_str(&hex::encode(fastrand::u64(1..).to_be_bytes()));
        text.push_str(if parent.is_some_and(|(_, _, sampled)| sampled) { "-01" } else { "-00" });
        Self(text)
    }

    /// The trace that `span` belongs to; without one, like [`TraceContext::from_headers`].
    pub(crate) fn of_span(span: &Span, headers: &HeaderMap) -> Self {
        span.traceparent().map_or_else(|| Self::from_headers(headers), Self)
    }

    /// Returns the id of the trace, as 32 hexadecimal digits.
    pub fn trace_id(&self) -> &str {
        self.0.get(3..35).unwrap_or_default()
    }

    /// Converts the context into a `traceparent` header.
    pub fn into_header(self) -> Result<HeaderValue, InvalidHeaderValue> {
        HeaderValue::try_from(self.0)
    }
}

/// The caller's span, if the headers name one.
pub(crate) fn caller(headers: &HeaderMap) -> Option<Parent> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    Parent::from_headers(text(&TRACEPARENT)?, text(&TRACESTATE))
}

/// Sets the headers by which the receiver of a request continues the trace within `span`, which must not be nothing.
pub fn propagate(span: &Span, headers: &mut HeaderMap) {
    let header = |text: Option<String>| HeaderValue::try_from(text?).ok();
    let Some(traceparent) = header(span.traceparent()) else { return };
    headers.insert(TRACEPARENT.clone(), traceparent);
    match header(span.tracestate()) {
        Some(tracestate) => headers.insert(TRACESTATE.clone(), tracestate),
        None => headers.remove(&TRACESTATE),
    };
}
