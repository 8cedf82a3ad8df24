//! W3C Trace Context: the `traceparent` header, version 00 (<https://www.w3.org/TR/trace-context/>).

use axum::http::HeaderValue;
use axum::http::header::InvalidHeaderValue;
use uuid::Uuid;

/// The trace of a request and the id of this service's span in it: the text of a `traceparent` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext(String);

impl TraceContext {
    /// Continues the caller's trace, or starts a new one if the header is missing or invalid.
    pub fn from_header(header: Option<&HeaderValue>) -> Self {
        let mut text = String::with_capacity(55);
        text.push_str("00-");
        let parent = header.and_then(|value| parse(value.to_str().ok()?));
        match parent {
            Some((trace_id, _)) => text.push_str(trace_id),
            None => text.push_str(&hex::encode(Uuid::now_v7())),
        }
        text.push('-');
        // Never 0, which means that there is no span.
        text.push_str(&hex::encode(fastrand::u64(1..).to_be_bytes()));
        text.push_str(if parent.is_some_and(|(_, sampled)| sampled) { "-01" } else { "-00" });
        Self(text)
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

/// Returns the id of the trace, and whether it is sampled; `None` if `header` is invalid.
fn parse(header: &str) -> Option<(&str, bool)> {
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
    Some((trace_id, hex(flags, 2)? & 1 == 1))
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
        assert_eq!(parse(later), Some(("4bf92f3577b34da6a3ce929d0e0e4736", true)));
    }
}
