//! Spans, and which one is current.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{self, Poll};

use opentelemetry::trace::{SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, ContextGuard, KeyValue, Value};
use opentelemetry_sdk::trace::SdkTracer;
use pin_project_lite::pin_project;

use crate::w3c::{Parent, format_traceparent};

/// What spans are made with once traces are exported.
pub(crate) struct Active {
    pub(crate) tracer: SdkTracer,
    pub(crate) captures_content: bool,
}

/// Set once, by [`crate::install`].
pub(crate) static ACTIVE: OnceLock<Active> = OnceLock::new();

/// Whether traces are exported.
pub fn is_on() -> bool {
    ACTIVE.get().is_some()
}

/// Whether spans have what users, models and tools say.
pub fn captures_content() -> bool {
    ACTIVE.get().is_some_and(|active| active.captures_content)
}

/// The role of a span in a call between programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It handles a call.
    Server,
    /// It calls somebody.
    Client,
    /// It is of neither side.
    Internal,
}

/// What a span begins with.
#[derive(Debug)]
pub struct Details {
    name: Cow<'static, str>,
    attributes: Vec<KeyValue>,
}

impl Details {
    /// A span called `name`, which is one of few: what varies belongs into attributes.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), attributes: Vec::new() }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push(KeyValue::new(key, value));
        self
    }
}

/// A span, or nothing while traces are not exported. It ends when it is dropped.
#[derive(Debug, Default)]
pub struct Span {
    context: Option<Context>,
}

impl Span {
    /// Begins a span within the current one.
    pub fn start(kind: Kind, details: impl FnOnce() -> Details) -> Self {
        let Some(active) = ACTIVE.get() else { return Self::default() };
        Self::begin(active, &Context::current(), kind, details())
    }

    /// Begins a span that continues the trace of `parent`, or a trace of its own without one.
    pub fn start_from(parent: Option<Parent>, kind: Kind, details: impl FnOnce() -> Details) -> Self {
        let Some(active) = ACTIVE.get() else { return Self::default() };
        let context = match parent {
            Some(Parent(parent)) => Context::new().with_remote_span_context(parent),
            None => Context::new(),
        };
        Self::begin(active, &context, kind, details())
    }

    fn begin(active: &Active, parent: &Context, kind: Kind, details: Details) -> Self {
        let Details { name, attributes } = details;
        let kind = match kind {
            Kind::Server => SpanKind::Server,
            Kind::Client => SpanKind::Client,
            Kind::Internal => SpanKind::Internal,
        };
        let builder = SpanBuilder::from_name(name).with_kind(kind).with_attributes(attributes);
        let span = active.tracer.build_with_context(builder, parent);
        Self { context: Some(parent.with_span(span)) }
    }

    /// Whether what is added to the span will be exported.
    pub fn is_recording(&self) -> bool {
        self.context.as_ref().is_some_and(|context| context.span().is_recording())
    }

    /// Adds an attribute.
    pub fn set<V: Into<Value>>(&self, key: &'static str, value: impl FnOnce() -> V) {
        if let Some(context) = self.context.as_ref().filter(|context| context.span().is_recording()) {
            context.span().set_attribute(KeyValue::new(key, value()));
        }
    }

    /// Marks what the span is about as failed. `error_type` is one of few names.
    pub fn fail(&self, error_type: impl Into<Cow<'static, str>>) {
        if let Some(context) = &self.context {
            context.span().set_attribute(KeyValue::new(ERROR_TYPE, Value::from(error_type.into())));
            // Without a description: the texts of errors may quote what callers and servers said.
            context.span().set_status(Status::error(""));
        }
    }

    /// Makes the span the current one of this thread for as long as the result is held.
    pub fn attach(&self) -> Attached {
        Attached { _guard: self.context.clone().map(Context::attach) }
    }

    /// The `traceparent` by which others continue the trace within this span.
    pub fn traceparent(&self) -> Option<String> {
        let context = self.context.as_ref()?;
        Some(format_traceparent(context.span().span_context()))
    }

    /// The `tracestate` that goes with it, if there is one.
    pub fn tracestate(&self) -> Option<String> {
        let state = self.context.as_ref()?.span().span_context().trace_state().header();
        (!state.is_empty()).then_some(state)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // Others may hold the context, within which they still work.
        if let Some(context) = &self.context {
            context.span().end();
        }
    }
}

/// The attribute that names the kind of a failure.
const ERROR_TYPE: &str = "error.type";

/// A span is current while this is held.
#[must_use]
pub struct Attached {
    _guard: Option<ContextGuard>,
}

/// Adds an attribute to the current span.
pub fn annotate<V: Into<Value>>(key: &'static str, value: impl FnOnce() -> V) {
    if is_on() {
        Context::map_current(|context| {
            if context.span().is_recording() {
                context.span().set_attribute(KeyValue::new(key, value()));
            }
        });
    }
}

/// Runs `future` with `span` as the current one. It does not end the span.
pub fn in_span<F>(span: &Span, future: F) -> InSpan<F> {
    InSpan { future, context: span.context.clone() }
}

/// Runs `future`, wherever it is polled, within the span that is current now.
pub fn in_current_span<F>(future: F) -> InSpan<F> {
    InSpan { future, context: is_on().then(Context::current) }
}

pin_project! {
    /// A future that is polled within a span.
    pub struct InSpan<F> {
        #[pin]
        future: F,
        context: Option<Context>,
    }
}

impl<F: Future> Future for InSpan<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _attached = this.context.clone().map(Context::attach);
        this.future.poll(context)
    }
}

#[cfg(test)]
#[path = "../tests/unit/span.rs"]
mod tests;
