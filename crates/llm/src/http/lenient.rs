//! Lenient parsing of event data. Fields that make up the answer must have the expected form; anything else, such
//! as the usage, must not break off an answer.

use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::{ModelError, ModelErrorKind, classify};

/// The failure of an event that does not have the form of its type.
pub(in super::super) fn malformed_event(reason: &dyn std::fmt::Display) -> ModelError {
    ModelError::new(ModelErrorKind::Broken, format!("the provider sent a malformed event: {reason}"))
}

/// Returns a field that is required by the event's type, or an error.
pub(in super::super) fn require_field<T>(field: Option<T>, name: &str) -> Result<T, ModelError> {
    field.ok_or_else(|| malformed_event(&format!("`{name}` is missing or malformed")))
}

/// Parses an event of a stream whose events all have the same form.
///
/// # Errors
/// The event does not have that form. An error that the provider reports in another form is classified as such.
pub(in super::super) fn parse_event<T: DeserializeOwned>(data: &str) -> Result<T, ModelError> {
    serde_json::from_str(data).map_err(|fault| match parse_untyped(data, &fault) {
        Ok(_) => malformed_event(&fault),
        Err(reported) => reported,
    })
}

/// Parses an event as untyped JSON after it could not be parsed as typed because of `fault`.
///
/// # Errors
/// The event is not JSON, or is an error reported by the provider: errors come in more forms than any other event.
pub(in super::super) fn parse_untyped(data: &str, fault: &serde_json::Error) -> Result<Value, ModelError> {
    let event = serde_json::from_str(data).map_err(|_| malformed_event(fault))?;
    if classify::is_error_event(&event) { Err(classify::classify_stream_error(&event)) } else { Ok(event) }
}

/// A field of such an event; `None` if it is malformed.
pub(in super::super) fn optional_field<T: DeserializeOwned>(event: &Value, name: &str) -> Option<T> {
    T::deserialize(event.get(name)?).ok()
}

/// The index of the block or item that such an event belongs to. It may be absent.
///
/// # Errors
/// The field is not an index: if it were treated as absent, the event would be assigned to another block.
pub(in super::super) fn index_field(event: &Value, name: &str) -> Result<Option<u64>, ModelError> {
    match event.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(number) => require_field(whole_number(number), name).map(Some),
    }
}

/// Deserializes a field of a struct, and treats a malformed one as absent. In a variant of an enum that serde tags
/// (`#[serde(tag = …)]`), it fails for every value, because serde buffers such fields and a `RawValue` cannot be buffered.
pub(in super::super) fn none_if_malformed<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let field = Option::<Box<RawValue>>::deserialize(from)?;
    Ok(field.and_then(|field| serde_json::from_str(field.get()).ok()))
}

/// A token count; `None` if it is absent or malformed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct TokenCount(Option<u64>);

impl TokenCount {
    /// Returns this count or, if it is absent or 0, the previous one. Counts only grow within an answer; servers
    /// that have nothing to add may write 0.
    #[must_use]
    pub(in super::super) fn or(self, previous: Self) -> Self {
        if self.tokens() > 0 { self } else { previous }
    }

    /// The number of tokens; 0 if it is unknown.
    pub(in super::super) fn tokens(self) -> u64 {
        self.0.unwrap_or(0)
    }
}

impl<'de> Deserialize<'de> for TokenCount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Value::deserialize(from).map(|count| Self(whole_number(&count)))
    }
}

/// A number used as a count; some servers write `1.0` for 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float saturates, and none is negative"
)]
fn whole_number(number: &Value) -> Option<u64> {
    let float = || number.as_f64().filter(|float| *float >= 0.0 && float.fract() == 0.0);
    number.as_u64().or_else(|| float().map(|float| float as u64))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Usage {
        count: TokenCount,
        #[serde(deserialize_with = "none_if_malformed")]
        details: Option<Details>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Details {
        count: TokenCount,
    }

    #[test]
    fn counts_that_are_none_break_nothing() {
        for (value, expected) in [
            (json!(7), Some(7)),
            (json!(7.0), Some(7)),
            (json!(-1), None),
            (json!(1.5), None),
            (json!(1e300), Some(u64::MAX)),
            (json!(null), None),
            (json!("7"), None),
            (json!([7]), None),
        ] {
            let usage: Usage = serde_json::from_str(&json!({ "count": value }).to_string()).unwrap();
            assert_eq!(usage, Usage { count: TokenCount(expected), details: None }, "{value}");
            let usage: Usage = serde_json::from_value(json!({"details": {"count": value}})).unwrap();
            let details = Some(Details { count: TokenCount(expected) });
            assert_eq!(usage, Usage { count: TokenCount(None), details }, "{value}");
        }
        for malformed in ["[]", "{}", "null", "\"none\""] {
            let usage: Usage =
                serde_json::from_str(&format!(r#"{{"count": 1, "details": {malformed}}}"#)).unwrap();
            assert_eq!(usage, Usage { count: TokenCount(Some(1)), details: None }, "{malformed}");
        }
    }
}
