//! Fields of a body that the service does not know. An endpoint of the contract ignores them, and a header of the
//! response names them. Every other endpoint refuses them: a misspelled restriction must not be dropped.

use std::sync::{Arc, OnceLock};

use axum::extract::Request;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use serde::de::DeserializeOwned;
use serde_ignored::Path;

use super::extract::{invalid_request, parse_json};
use super::known_fields::known_fields;
use super::{ApiError, serde_errors};

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
    fn push(&mut self, path: &[String]) {
        self.count += 1;
        if self.names.len() < MAX_NAMED_FIELDS {
            self.names.push(printable(&path.join(".")));
        }
    }

    /// Sets the header that names them, if there are any.
    fn warn(&self, headers: &mut HeaderMap) {
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

/// Where an extractor leaves the unknown fields of a request for the layer that sets the headers of its response.
#[derive(Clone, Default)]
pub struct ResponseWarnings(Arc<OnceLock<UnknownFields>>);

impl ResponseWarnings {
    /// Gives the request a place for them.
    pub(super) fn attach(request: &mut Request) -> Self {
        let warnings = Self::default();
        request.extensions_mut().insert(warnings.clone());
        warnings
    }

    /// Returns those of the request with these extensions.
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// Has the response name `fields`.
    pub fn name(&self, fields: UnknownFields) {
        // A body is parsed once.
        let _ = self.0.set(fields);
    }

    /// Sets the header of the response.
    pub(super) fn apply(&self, headers: &mut HeaderMap) {
        if let Some(fields) = self.0.get() {
            fields.warn(headers);
        }
    }
}

/// The name with nothing in it that could be taken for another part of a header.
fn printable(path: &str) -> String {
    let safe =
        |char: char| if char.is_ascii_graphic() && !matches!(char, ',' | ';' | '"') { char } else { '?' };
    path.chars().take(MAX_NAME_CHARS).map(safe).collect()
}

/// Returns the names and indexes that lead to a field.
fn segments(path: &Path<'_>) -> Vec<String> {
    let (parent, segment) = match path {
        Path::Root => return Vec::new(),
        Path::Seq { parent, index } => (parent, index.to_string()),
        Path::Map { parent, key } => (parent, key.clone()),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            return segments(parent);
        }
    };
    let mut segments = segments(parent);
    segments.push(segment);
    segments
}

/// Parses a `T` from a JSON body like [`parse_json`], and collects the fields that it does not have.
///
/// # Errors
/// Returns the same errors as [`parse_json`].
pub fn parse_json_noting_unknown<T: DeserializeOwned>(body: &[u8]) -> Result<(T, UnknownFields), ApiError> {
    let mut unknown = UnknownFields::default();
    let parsed = parse_with(body, |path| unknown.push(&segments(&path)))?;
    Ok((parsed, unknown))
}

/// Parses a `T` from a JSON body like [`parse_json`], and refuses fields that it does not have.
///
/// # Errors
/// Returns the same errors as [`parse_json`], and one that names the first unknown field and the known ones.
pub fn parse_json_refusing_unknown<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut unknown: Option<Vec<String>> = None;
    let parsed = parse_with(body, |path| {
        unknown.get_or_insert_with(|| segments(&path));
    })?;
    match unknown.as_deref().and_then(<[String]>::split_last) {
        None => Ok(parsed),
        Some((name, parents)) => Err(refusal::<T>(name, parents)),
    }
}

/// Parses a `T` and calls `note` with each field that it does not have.
fn parse_with<T: DeserializeOwned>(body: &[u8], note: impl FnMut(Path<'_>)) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let parsed = serde_ignored::deserialize(&mut deserializer, note);
    let is_object = body.trim_ascii_start().starts_with(b"{") && std::str::from_utf8(body).is_ok();
    match parsed {
        Ok(parsed) if is_object && deserializer.end().is_ok() => Ok(parsed),
        // It says what is wrong, and takes an empty body for an empty object.
        _ => parse_json(body),
    }
}

fn refusal<T: DeserializeOwned>(name: &str, parents: &[String]) -> ApiError {
    let name: String = name.chars().take(MAX_NAME_CHARS).collect();
    let text = serde_errors::unknown_field(&name, known_fields::<T>(parents).unwrap_or_default());
    invalid_request(if parents.is_empty() { text } else { format!("`{}`: {text}", parents.join(".")) })
}

#[cfg(test)]
mod tests {
    use api::ErrorCode;
    use api::browser::MintToken;
    use api::engine::Execute;
    use api::schedules::CreateSchedule;
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
        let media = r#"{"task_id": "a", "media": [{"type": "text", "text": "b", "txt": 1}]}"#;
        assert_eq!(warning(media).unwrap(), "unknown fields: media.0.txt");
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
    fn a_refusal_names_the_field_and_those_that_there_are() {
        fn refusal<T: DeserializeOwned>(body: &str) -> String {
            let Err(error) = parse_json_refusing_unknown::<T>(body.as_bytes()) else {
                panic!("{body} was accepted");
            };
            let (code, message) = error.into_parts();
            assert_eq!(code, ErrorCode::InvalidRequest);
            message
        }
        assert_eq!(
            refusal::<MintToken>(r#"{"scopes": ["chat"], "taskId": "x"}"#),
            "there is no field `taskId`; it must be one of `scopes`, `task_id`, `lifetime_s`"
        );
        let time = r#"{"name": "a", "message": "b", "when": {"cron": "* * * * *", "timezone": "UTC"}}"#;
        assert_eq!(
            refusal::<CreateSchedule>(time),
            "`when`: there is no field `timezone`; it must be one of `cron`, `time_zone`, `at`, `every_seconds`, \
             `start`"
        );
        let options = r#"{"name": "a", "message": "b", "when": {}, "options": {"max_token": 5}}"#;
        let message = refusal::<CreateSchedule>(options);
        assert!(
            message.starts_with("`options`: there is no field `max_token`; it must be one of `direct`, ")
        );
        assert!(message.ends_with("`response_format`"), "{message}");
        let long = refusal::<MintToken>(&format!(r#"{{"scopes": ["chat"], "{}": 1}}"#, "x".repeat(5_000)));
        assert!(long.len() < 200 && long.ends_with("`lifetime_s`"), "{long}");
    }

    #[test]
    fn other_refusals_are_the_same() {
        for body in ["", "[]", "{}", "{\"task_id\": 7}", "{\"task_id\": \"a\"} x", "{\"task_id\": \"a\""] {
            let plain = parse_json::<Execute>(body.as_bytes()).unwrap_err().into_parts();
            let noted = parse_json_noting_unknown::<Execute>(body.as_bytes()).unwrap_err().into_parts();
            let refused = parse_json_refusing_unknown::<Execute>(body.as_bytes()).unwrap_err().into_parts();
            assert_eq!((&noted, &refused), (&plain, &plain), "{body}");
        }
    }

    proptest! {
        #[test]
        fn any_name_makes_a_valid_header(names in prop::collection::vec(any::<String>(), 1..40)) {
            let mut unknown = UnknownFields::default();
            for name in names {
                unknown.push(&[name]);
            }
            let mut headers = HeaderMap::new();
            unknown.warn(&mut headers);
            prop_assert!(headers[WARNING_HEADER].len() < 1_200);
        }
    }
}
