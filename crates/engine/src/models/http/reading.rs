//! How the data of an event is read. What an answer is made of must be of its form; all else, such as what it costs,
//! must not break it off.

use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::models::{ModelError, ModelErrorKind, classify};

/// The mark that Chat Completions end with, which some compatible servers send in streams of other protocols too.
pub(in super::super) const END_MARK: &str = "[DONE]";

/// The failure of an event that is not of the form that its type has.
pub(in super::super) fn no_known_form(what: &dyn std::fmt::Display) -> ModelError {
    ModelError::new(ModelErrorKind::Broken, format!("the provider sent an event of no known form: {what}"))
}

/// A field that the type of an event has.
pub(in super::super) fn needed<T>(field: Option<T>, name: &str) -> Result<T, ModelError> {
    field.ok_or_else(|| no_known_form(&format!("`{name}` is missing or not as it should be")))
}

/// Reads an event of the one form that all events of a stream have.
///
/// # Errors
/// It is not of that form; an error that the provider reports is told as what it is.
pub(in super::super) fn read<T: DeserializeOwned>(data: &str) -> Result<T, ModelError> {
    serde_json::from_str(data).map_err(|fault| match as_it_is(data, &fault) {
        Ok(_) => no_known_form(&fault),
        Err(told) => told,
    })
}

/// An event that could not be read for `fault`, as it is.
///
/// # Errors
/// It is no JSON, or an error that the provider reports: those come in more forms than any other event.
pub(in super::super) fn as_it_is(data: &str, fault: &serde_json::Error) -> Result<Value, ModelError> {
    let event = serde_json::from_str(data).map_err(|_| no_known_form(fault))?;
    if classify::tells_error(&event) { Err(classify::broken_off(&event)) } else { Ok(event) }
}

/// A field of such an event; none if it is not of its form.
pub(in super::super) fn field<T: DeserializeOwned>(event: &Value, name: &str) -> Option<T> {
    T::deserialize(event.get(name)?).ok()
}

/// The field of such an event that tells what it is of. It may be absent.
///
/// # Errors
/// It is not of its form: taken for absent, the event would be another's.
pub(in super::super) fn place<T: DeserializeOwned>(
    event: &Value,
    name: &str,
) -> Result<Option<T>, ModelError> {
    let place = Option::deserialize(event.get(name).unwrap_or(&Value::Null));
    place.map_err(|fault: serde_json::Error| no_known_form(&format!("`{name}`: {fault}")))
}

/// Reads a field that is taken for absent if it is not of its form.
pub(in super::super) fn if_readable<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let field = Option::<Box<RawValue>>::deserialize(from)?;
    Ok(field.and_then(|field| serde_json::from_str(field.get()).ok()))
}

/// A count of tokens. None where it is absent or not of its form; some servers write `1.0` for 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Count(Option<u64>);

impl Count {
    /// This count or, where it is none, the one told before.
    #[must_use]
    pub(in super::super) const fn or(self, before: Self) -> Self {
        if self.0.is_some() { self } else { before }
    }

    /// What is counted; nothing where nothing is told.
    pub(in super::super) fn tokens(self) -> u64 {
        self.0.unwrap_or(0)
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let count = Value::deserialize(from)?;
        Ok(Self(count.as_u64().or_else(|| count.as_f64().map(whole))))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float saturates, and no count is negative"
)]
fn whole(count: f64) -> u64 {
    count as u64
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Usage {
        told: Count,
        #[serde(deserialize_with = "if_readable")]
        details: Option<Details>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Details {
        told: Count,
    }

    #[test]
    fn counts_that_are_none_break_nothing() {
        for (told, count) in [
            (json!(7), Some(7)),
            (json!(7.0), Some(7)),
            (json!(-1), Some(0)),
            (json!(1e300), Some(u64::MAX)),
            (json!(null), None),
            (json!("7"), None),
            (json!([7]), None),
        ] {
            let read: Usage = serde_json::from_str(&json!({ "told": told }).to_string()).unwrap();
            assert_eq!(read, Usage { told: Count(count), details: None }, "{told}");
            let read: Usage = serde_json::from_value(json!({"details": {"told": told}})).unwrap();
            let details = Some(Details { told: Count(count) });
            assert_eq!(read, Usage { told: Count(None), details }, "{told}");
        }
        for odd in ["[]", "{}", "null", "\"none\""] {
            let read: Usage = serde_json::from_str(&format!(r#"{{"told": 1, "details": {odd}}}"#)).unwrap();
            assert_eq!(read, Usage { told: Count(Some(1)), details: None }, "{odd}");
        }
    }
}
