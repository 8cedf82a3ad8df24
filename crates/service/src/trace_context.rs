//! W3C Trace Context: the `traceparent` header, version 00 (<https://www.w3.org/TR/trace-context/>).

use std::fmt;

use axum::http::HeaderValue;

use crate::ids;

/// Which trace a request belongs to, and the id of our own part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: TraceId,
    span_id: u64,
    flags: u8,
}

/// Identifies a trace over all services that take part in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(u128);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl TraceContext {
    /// Goes on with the caller's trace, or begins one where the caller sent none that is valid.
    pub fn of_request(header: Option<&HeaderValue>) -> Self {
        let span_id = ids::number();
        match header.and_then(|value| parse(value.to_str().ok()?)) {
            Some((trace_id, flags)) => Self { trace_id, span_id, flags },
            None => Self { trace_id: TraceId(ids::uuid().as_u128()), span_id, flags: 0 },
        }
    }

    /// The trace.
    pub const fn trace_id(self) -> TraceId {
        self.trace_id
    }

    /// The context as a `traceparent` header.
    pub fn to_header(self) -> String {
        format!("00-{}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

fn parse(header: &str) -> Option<(TraceId, u8)> {
    let mut parts = header.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
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
    let trace = hex(trace, 32).filter(|id| *id != 0)?;
    hex(span, 16).filter(|id| *id != 0)?;
    // Only the sampled flag is defined; others must not be passed on.
    let flags = hex(flags, 2)? & 1;
    Some((TraceId(trace), u8::try_from(flags).ok()?))
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
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_later_version_is_read_by_its_first_four_parts() {
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03-new";
        assert_eq!(parse(later), Some((TraceId(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736), 1)));
    }
}
