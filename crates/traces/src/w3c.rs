//! W3C Trace Context, version 00 (<https://www.w3.org/TR/trace-context/>): reading a caller's and writing one's own.

use std::str::FromStr as _;

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};

use crate::span::is_on;

/// The longest `tracestate` that is adopted from a caller: what the standard asks every implementation to pass on.
pub const MAX_TRACESTATE_BYTES: usize = 512;

/// The span of a caller, whose trace is continued.
#[derive(Clone, Debug)]
pub struct Parent(pub(crate) SpanContext);

impl Parent {
    /// The parent that these headers name; `None` if they name none that is valid.
    pub fn from_headers(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let (trace_id, span_id, is_sampled) = parse_traceparent(traceparent)?;
        let trace_id = TraceId::from_hex(trace_id).ok()?;
        let span_id = SpanId::from_hex(span_id).ok()?;
        let flags = if is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
        // An unusable state does not invalidate the parent.
        let state = tracestate.filter(|state| state.len() <= MAX_TRACESTATE_BYTES);
        let state = state.and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
        Some(Self(SpanContext::new(trace_id, span_id, flags, true, state)))
    }
}

/// Returns the ids of trace and span in a `traceparent`, and whether the trace is sampled; `None` if it is invalid.
pub fn parse_traceparent(header: &str) -> Option<(&str, &str, bool)> {
    let mut parts = header.split('-');
    let (version, trace_id, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, digits: usize| {
        let valid = text.len() == digits
            && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if valid { u128::from_str_radix(text, 16).ok() } else { None }
    };
    let version = hex(version, 2)?;
    // Version ff is forbidden; version 00 has exactly four parts, later ones may have more.
    if version == 0xff || (version == 0 && parts.next().is_some()) {
        return None;
    }
    hex(trace_id, 32).filter(|id| *id != 0)?;
    hex(span, 16).filter(|id| *id != 0)?;
    // Only the sampled flag is defined; others must not be passed on.
    Some((trace_id, span, hex(flags, 2)? & 1 == 1))
}

/// The `traceparent` that another party is sent: that of the current span, if its trace is recorded.
pub fn outgoing_traceparent() -> Option<String> {
    current().filter(SpanContext::is_sampled).as_ref().map(format_traceparent)
}

/// The `traceparent` by which the current trace can be continued later, recorded or not.
pub fn stored_traceparent() -> Option<String> {
    current().as_ref().map(format_traceparent)
}

fn current() -> Option<SpanContext> {
    if !is_on() {
        return None;
    }
    let span_context = Context::map_current(|context| context.span().span_context().clone());
    span_context.is_valid().then_some(span_context)
}

pub(crate) fn format_traceparent(context: &SpanContext) -> String {
    format!(
        "00-{:032x}-{:016x}-{:02x}",
        context.trace_id(),
        context.span_id(),
        context.trace_flags().to_u8() & 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_parents_begin_a_new_trace() {
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-extra",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        ] {
            assert_eq!(parse_traceparent(wrong), None, "{wrong}");
            assert!(Parent::from_headers(wrong, None).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_later_version_is_read_by_its_first_four_parts() {
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03-new";
        let expected = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", true);
        assert_eq!(parse_traceparent(later), Some(expected));
        let Parent(context) = Parent::from_headers(later, None).unwrap();
        let written = format_traceparent(&context);
        assert_eq!(written, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    }

    #[test]
    fn an_unusable_state_does_not_invalidate_the_parent() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let state_of = |state: &str| {
            let Parent(context) = Parent::from_headers(parent, Some(state)).unwrap();
            assert!(!context.is_sampled());
            context.trace_state().header()
        };
        assert_eq!(state_of("vendor=1,other=2"), "vendor=1,other=2");
        assert_eq!(state_of("no state"), "");
        assert_eq!(state_of(&format!("v={}", "x".repeat(MAX_TRACESTATE_BYTES))), "");
    }
}
