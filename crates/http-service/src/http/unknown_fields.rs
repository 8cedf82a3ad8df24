//! Fields of a body that the service does not know: they are ignored, and a header of the response names them.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::de::DeserializeOwned;

use super::ApiError;
use super::extract::parse_json;

/// The header that warns about something in the request that has no effect.
pub const WARNING_HEADER: HeaderName = HeaderName::from_static("roundhouse-warning");
/// The most fields that are named.
const MAX_NAMED_FIELDS: usize = 16;
/// The longest name that is repeated, in characters.
const MAX_NAME_CHARS: usize = 64;

/// The fields of a body that were ignored because the service does not know them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownFields {
    names: Vec<String>,
    count: usize,
}

impl UnknownFields {
    /// Adds a field that has no effect.
    pub fn push(&mut self, path: &str) {
        self.count += 1;
        if self.names.len() < MAX_NAMED_FIELDS {
            self.names.push(printable(path));
        }
    }

    /// Sets the header that names them, if there are any.
    pub fn warn(&self, headers: &mut HeaderMap) {
        if self.names.is_empty() {
            return;
        }
        let more = self.count - self.names.len();
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let text = format!("unknown fields: {}{more}", self.names.join(", "));
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(WARNING_HEADER, value);
        }
    }
}

/// The path without the marks of optional fields, which are segments of their own.
fn without_marks(path: &str) -> String {
    path.split('.').filter(|segment| *segment != "?").collect::<Vec<_>>().join(".")
}

/// The name with nothing in it that could be taken for another part of a header.
fn printable(path: &str) -> String {
    let safe =
        |char: char| if char.is_ascii_graphic() && !matches!(char, ',' | ';' | '"') { char } else { '?' };
    path.chars().take(MAX_NAME_CHARS).map(safe).collect()
}

/// Parses a `T` from a JSON body like [`parse_json`], and collects the fields that it does not have.
///
/// # Errors
/// Returns the same errors as [`parse_json`].
pub fn parse_json_noting_unknown<T: DeserializeOwned>(body: &[u8]) -> Result<(T, UnknownFields), ApiError> {
    let mut unknown = UnknownFields::default();
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let note = |path: serde_ignored::Path<'_>| unknown.push(&without_marks(&path.to_string()));
    let parsed = serde_ignored::deserialize(&mut deserializer, note);
    let is_object = body.trim_ascii_start().starts_with(b"{") && std::str::from_utf8(body).is_ok();
    match parsed {
        Ok(parsed) if is_object && deserializer.end().is_ok() => Ok((parsed, unknown)),
        // It says what is wrong, and takes an empty body for an empty object.
        _ => parse_json(body).map(|parsed| (parsed, UnknownFields::default())),
    }
}

#[cfg(test)]
mod tests {
    use api::engine::Execute;
    use proptest::prelude::*;

    use super::*;

    fn warning(body: &str) -> Option<String> {
        let (_, unknown) = parse_json_noting_unknown::<Execute>(body.as_bytes()).unwrap();
        let mut headers = HeaderMap::new();
        unknown.warn(&mut headers);
        headers.get(WARNING_HEADER).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn unknown_fields_are_named_and_known_ones_are_not() {
        assert_eq!(warning(r#"{"task_id": "a", "message": "b", "effort": null}"#), None);
        let two = r#"{"task_id": "a", "massage": "b", "response_format": {"type": "json_schema", "name": "x",
            "schema": {"type": "object", "odd": 1}, "nmae": 1}}"#;
        assert_eq!(warning(two).unwrap(), "unknown fields: massage, response_format.nmae");
    }

    #[test]
    fn what_is_named_is_bounded_and_can_stand_in_a_header() {
        let odd = r#"{"task_id": "a", "ä\r\nx-evil: 1, b": 2}"#;
        assert_eq!(warning(odd).unwrap(), "unknown fields: ???x-evil:?1??b");
        let many: Vec<String> = (0..1_000).map(|n| format!("\"{}{n}\": 1", "x".repeat(500))).collect();
        let warning = warning(&format!(r#"{{"task_id": "a", {}}}"#, many.join(", "))).unwrap();
        assert!(warning.len() < 1_200 && warning.ends_with(" and 984 more"), "{warning}");
    }

    #[test]
    fn a_refusal_is_the_same() {
        for body in ["", "[]", "{}", "{\"task_id\": 7}", "{\"task_id\": \"a\"} x", "{\"task_id\": \"a\""] {
            let noted = parse_json_noting_unknown::<Execute>(body.as_bytes()).unwrap_err().into_parts();
            assert_eq!(noted, parse_json::<Execute>(body.as_bytes()).unwrap_err().into_parts(), "{body}");
        }
    }

    proptest! {
        #[test]
        fn any_name_makes_a_valid_header(names in prop::collection::vec(any::<String>(), 1..40)) {
            let mut unknown = UnknownFields::default();
            for name in &names {
                unknown.push(name);
            }
            let mut headers = HeaderMap::new();
            unknown.warn(&mut headers);
            prop_assert!(headers[WARNING_HEADER].len() < 1_200);
        }
    }
}
