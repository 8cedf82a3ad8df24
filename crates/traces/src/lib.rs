//! Traces: the spans of both services, their propagation to others, and their export by OTLP.
//!
//! Nothing here costs anything until [`install`] has been called: a [`Span`] is then nothing, its details are never
//! computed, and a future in it is polled as if it were alone.

mod content;
mod export;
pub mod gen_ai;
mod logged_failures;
mod runtime_client;
mod span;
mod w3c;

pub use export::{Exporter, InstallError, Sampling, Settings, install};
pub use span::{
    Attached, Details, InSpan, Kind, Span, annotate, captures_content, in_current_span, in_span, is_on,
};
pub use w3c::{MAX_TRACESTATE_BYTES, Parent, outgoing_traceparent, parse_traceparent, stored_traceparent};

/// A value of an attribute.
pub use opentelemetry::Value;
