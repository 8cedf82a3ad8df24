//! Extractors whose rejections use the error envelope: 400 with the field and what it must be, 413 over the limit.
//!
//! In a handler's arguments they come after authentication. axum runs extractors in order, so a bad key is refused
//! before the path, the query or the body is examined.

use std::fmt;
use std::future::Future;

use api::ErrorCode;
use axum::RequestExt as _;
use axum::body::Bytes;
use axum::extract::path::ErrorKind;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use bytes::BytesMut;
use futures::StreamExt as _;
use http_body_util::LengthLimitError;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::error::Category;
use serde_json::{Map, Value};

use super::unknown_fields::{ResponseWarnings, parse_json_noting_unknown, parse_json_refusing_unknown};
use super::{ApiError, BodyTimeout, is_body_timeout, serde_errors};

/// The number of characters kept at either end of a message, which may quote a value as long as a body.
const KEPT_CHARS_PER_END: usize = 200;

pub(super) fn invalid_request(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, truncate_middle(message.into()))
}

/// Shortens a message in the middle: the field is at its beginning, and what the field must be at its end.
fn truncate_middle(message: String) -> String {
    let length = message.chars().count();
    if length <= 2 * KEPT_CHARS_PER_END {
        return message;
    }
    let (head, tail) =
        (message.chars().take(KEPT_CHARS_PER_END), message.chars().skip(length - KEPT_CHARS_PER_END));
    head.chain(" … ".chars()).chain(tail).collect()
}

/// A JSON body of any `Content-Type`, whose unknown fields are refused. An empty body counts as `{}`.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let body = read_body(request, state).await?;
        parse_json_refusing_unknown(&body).map(Json)
    }
}

/// Like [`Json`] for the endpoints of the contract: unknown fields are ignored, and a header of the response names
/// them.
#[derive(Debug)]
pub struct LenientJson<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for LenientJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let warnings = ResponseWarnings::of(request.extensions());
        let body = read_body(request, state).await?;
        let (parsed, unknown) = parse_json_noting_unknown(&body)?;
        warnings.name(unknown);
        Ok(Self(parsed))
    }
}

async fn read_body<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, ApiError> {
    Bytes::from_request(request, state).await.map_err(|rejection| body_rejection(&rejection))
}

/// Reads the body of a request to its end, and returns what is left of the request with it.
///
/// # Errors
/// Returns the errors of a body that is too large or incomplete.
pub async fn buffer_body(request: Request) -> Result<(Parts, Bytes), ApiError> {
    let (parts, body) = request.with_limited_body().into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.map_err(|error| body_error(&error))?;
    Ok((parts, body))
}

/// Decides whether more of a body may be kept in memory.
pub trait BodyAdmission {
    /// Waits until a body of `bytes` bytes may be kept in memory.
    fn admit(&mut self, bytes: usize) -> impl Future<Output = Result<(), ApiError>> + Send;
}

/// Reads a body to its end. Each piece is admitted before it is kept.
///
/// # Errors
/// Returns the errors of a body that is too large or incomplete, or that of `admission`.
pub async fn read_admitted_body(
    request: Request,
    admission: &mut (impl BodyAdmission + Send),
) -> Result<Bytes, ApiError> {
    let mut pieces = request.with_limited_body().into_body().into_data_stream();
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| body_error(&error))?;
        admission.admit(first.len() + rest.len() + piece.len()).await?;
        // Most bodies are one piece, which is not copied.
        if first.is_empty() && rest.is_empty() {
            first = piece;
        } else {
            rest.extend_from_slice(&std::mem::take(&mut first));
            rest.extend_from_slice(&piece);
        }
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

fn body_rejection(rejection: &BytesRejection) -> ApiError {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => payload_too_large(),
        _ => incomplete_body(rejection),
    }
}

fn body_error(error: &axum::Error) -> ApiError {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    if causes.into_iter().any(<dyn std::error::Error>::is::<LengthLimitError>) {
        return payload_too_large();
    }
    incomplete_body(error)
}

fn payload_too_large() -> ApiError {
    ApiError::new(ErrorCode::PayloadTooLarge, "the body is larger than this service accepts")
}

fn incomplete_body(error: &(dyn std::error::Error + 'static)) -> ApiError {
    if is_body_timeout(error) {
        BodyTimeout.into()
    } else {
        invalid_request("the body could not be read to its end")
    }
}

/// Parses a `T` from a JSON body; unknown fields are ignored. An empty body counts as `{}`.
pub(super) fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    // serde skips an ignored field unread, so the encoding must be checked beforehand.
    let Ok(body) = std::str::from_utf8(body) else { return Err(invalid_request("the body must be UTF-8")) };
    let body = if body.trim_ascii().is_empty() { "{}" } else { body };
    // serde also parses a struct from an array, field by field; the API accepts only objects.
    if !body.trim_ascii_start().starts_with('{') {
        return Err(invalid_request("the body must be a JSON object"));
    }
    // Tracking the path costs more than parsing, so it is done only for an invalid body, in a second pass.
    serde_json::from_str(body).map_err(|error| match error.classify() {
        Category::Eof => syntax_error("it ends too early", &error),
        _ => json_error::<T>(body, &error),
    })
}

/// Returns the error of an invalid `body`, with the field.
fn json_error<T: DeserializeOwned>(body: &str, error: &serde_json::Error) -> ApiError {
    let mut deserializer = serde_json::Deserializer::from_str(body);
    match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        // The object is valid; the error is in what follows it.
        Ok(_) => invalid_request(format!("the body must be one JSON object: {error}")),
        Err(error) if error.inner().classify() == Category::Data => field_error(&error),
        // If a name is expected and the value is no string, serde_json reports a syntax error.
        Err(error) if serde_json::from_str::<IgnoredAny>(body).is_ok() => field_error(&error),
        // For invalid JSON, the path is only that of the last field that was parsed.
        Err(error) => {
            let text = error.inner().to_string();
            let what = text.rsplit_once(" at line ").map_or(&*text, |(what, _)| what);
            syntax_error(what, error.inner())
        }
    }
}

fn syntax_error(what: &str, error: &serde_json::Error) -> ApiError {
    let (line, column) = (error.line(), error.column());
    invalid_request(format!("the body is not valid JSON: {what}, at line {line} column {column}"))
}

/// Parses a `T` from the fields of an object of a body.
///
/// # Errors
/// Returns the same errors as [`Json`], but for unknown fields, which are ignored.
pub fn parse_fields<T: DeserializeOwned>(object: Map<String, Value>) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(Value::Object(object)).map_err(|error| field_error(&error))
}

fn field_error<E: fmt::Display>(error: &serde_path_to_error::Error<E>) -> ApiError {
    let (path, text) = (error.path().to_string(), error.inner().to_string());
    // The path of a problem with the top-level object itself, such as a missing field, is `.`.
    let parent = if path == "." { String::new() } else { path };
    let named = serde_errors::field_name(&text).map(|field| match parent.as_str() {
        "" => field.to_owned(),
        parent => format!("{parent}.{field}"),
    });
    let (field, text) = match named {
        Some(field) if text.starts_with("missing") => (field, "must be given".to_owned()),
        Some(field) => (field, "must be given only once".to_owned()),
        None => (parent, serde_errors::rephrase(&text)),
    };
    if field.is_empty() { invalid_request(text) } else { invalid_request(format!("`{field}`: {text}")) }
}

/// The parameters of the path, percent-decoded.
#[derive(Debug)]
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        // axum leaves a malformed escape unchanged, so `%zz` would be accepted as a name.
        if !escapes_are_well_formed(parts.uri.path()) {
            return Err(invalid_request(
                "the path has a malformed escape: `%` must be followed by two hexadecimal digits",
            ));
        }
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Self(value)),
            Err(PathRejection::FailedToDeserializePathParams(failed)) => {
                let names = RawPathParams::from_request_parts(parts, state).await;
                // If there are several parameters, only the first can be invalid: the others accept any text.
                let first = names.as_ref().ok().and_then(|names| Some(names.iter().next()?.0));
                Err(path_param_error(failed.into_kind(), first.unwrap_or("path")))
            }
            Err(rejection) => Err(invalid_request(format!("the path is invalid: {}", rejection.body_text()))),
        }
    }
}

/// Returns the error of a path parameter: of `name`, unless `kind` names the parameter.
fn path_param_error(kind: ErrorKind, name: &str) -> ApiError {
    let wrong = |name: &str, message: &str| {
        invalid_request(format!("`{name}`, in the path: {}", serde_errors::rephrase(message)))
    };
    match kind {
        ErrorKind::DeserializeError { key, message, .. } => wrong(&key, &message),
        ErrorKind::Message(message) => wrong(name, &message),
        ErrorKind::InvalidUtf8InPathParam { key } => wrong(&key, "must be UTF-8 after percent-decoding"),
        kind => invalid_request(format!("the path is invalid: {kind}")),
    }
}

fn escapes_are_well_formed(path: &str) -> bool {
    path.split('%').skip(1).all(|rest| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2)
}

/// The parameters of the query.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parse_query(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

fn parse_query<T: DeserializeOwned>(query: &str) -> Result<T, ApiError> {
    let pairs = form_urlencoded::parse(query.as_bytes());
    let fields = serde_urlencoded::Deserializer::new(pairs);
    serde_path_to_error::deserialize(fields).map_err(|error| field_error(&error))
}

#[cfg(test)]
mod tests {
    use api::engine::{Execute, HitlRespond};
    use api::orchestrator::{ListEngines, ProvisionEngine, RegisterProduct, ReplacePolicy};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn refusal<T: DeserializeOwned>(body: &str) -> String {
        match parse_json::<T>(body.as_bytes()) {
            Ok(_) => panic!("{body} was accepted"),
            Err(error) => format!("{error:?}"),
        }
    }

    #[test]
    fn a_refusal_names_the_field_and_what_it_must_be() {
        for (body, expected) in [
            ("", "`user_id`: must be given"),
            ("{}", "`user_id`: must be given"),
            (r#"{"user_id": null}"#, "`user_id`: must be a string, not null"),
            (r#"{"user_id": 7}"#, "`user_id`: must be a string, not `7`"),
            (r#"{"user_id": ""}"#, "`user_id`: must be 1 to 256 bytes"),
            (
                r#"{"user_id": "a", "engine_version": "svc-engine:latest"}"#,
                "`engine_version`: must be an image",
            ),
            (r#"["a"]"#, "must be a JSON object"),
            (r#""a""#, "must be a JSON object"),
            (r#"{"user_id": "a"} {}"#, "must be one JSON object"),
            (r#"{"user_id": "a""#, "the body is not valid JSON: it ends too early, at line 1 column"),
            ("{a: 1}", "the body is not valid JSON: key must be a string, at line 1 column 2"),
            (r#"{"user_id": tru}"#, "the body is not valid JSON: expected ident, at line 1 column"),
        ] {
            let refusal = refusal::<ProvisionEngine>(body);
            assert!(refusal.contains(expected), "{body}: {refusal}");
        }
        let nested = refusal::<RegisterProduct>(
            r#"{"slug": "a", "display_name": "A", "policy": {"max_engines": "3"}}"#,
        );
        assert!(nested.contains("`policy.max_engines`: must be an integer of at least 0"), "{nested}");
        let missing =
            refusal::<Execute>(r#"{"task_id": "a", "media": [{"type": "document", "source": {}}]}"#);
        assert!(missing.contains("`media[0].source.type`: must be given"), "{missing}");
        for scope in ["7", "true", "[]"] {
            let body = format!(r#"{{"task_id": "a", "answer": "always", "scope": {scope}}}"#);
            let no_name = refusal::<HitlRespond>(&body);
            assert!(no_name.contains("`scope`: must be a string, one of the allowed names"), "{no_name}");
        }
        let no_object = refusal::<Execute>(r#"{"task_id": "a", "media": ["a"]}"#);
        assert!(no_object.contains(r#"`media[0]`: must be an object, not \"a\""#), "{no_object}");
    }

    #[test]
    fn a_refusal_of_a_query_names_the_parameter_and_what_it_must_be() {
        for (query, message) in [
            ("limit=0", "`limit`: must be an integer from 1 to 1000"),
            ("limit=ten", "`limit`: must be an integer from 1 to 1000"),
            ("limit=", "`limit`: must be an integer from 1 to 1000"),
            ("limit=1&limit=2", "`limit`: must be given only once"),
            ("offset=-1", "`offset`: must be an integer of at least 0"),
            ("status=gone", "`status`: must be one of `provisioning`, `running`, "),
        ] {
            let (code, text) = parse_query::<ListEngines>(query).unwrap_err().into_parts();
            assert_eq!(code, ErrorCode::InvalidRequest);
            assert!(text.starts_with(message), "{query}: {text}");
        }
    }

    #[test]
    fn a_refusal_is_short_however_long_the_value() {
        let body = format!(r#"{{"user_id": "a", "engine_version": "{}"}}"#, "ü".repeat(100_000));
        let long = serde_json::json!({"policy": "ü".repeat(100_000)}).to_string();
        for (refusal, begin, end) in [
            (refusal::<ProvisionEngine>(&body), "`engine_version`: must be an image", ""),
            (refusal::<ReplacePolicy>(&long), "`policy`: must be an object, not \\\"üü", "üü\\\""),
        ] {
            assert!(refusal.contains(begin) && refusal.contains(end), "{refusal}");
            assert!(refusal.len() < 1_000, "{} bytes", refusal.len());
        }
    }

    #[test]
    fn the_fields_of_an_object_are_refused_by_name_too() {
        let refusal =
            |object: Value| parse_fields::<ProvisionEngine>(object.as_object().unwrap().clone()).unwrap_err();
        let (code, message) = refusal(json!({"user_id": ""})).into_parts();
        assert_eq!(code, ErrorCode::InvalidRequest);
        assert!(message.starts_with("`user_id`: must be 1 to 256 bytes"), "{message}");
        let (_, message) = refusal(json!({})).into_parts();
        assert!(message.contains("`user_id`: must be given"), "{message}");
        let object = json!({"user_id": "a", "colour": "red"}).as_object().unwrap().clone();
        assert_eq!(parse_fields::<ProvisionEngine>(object).unwrap().user_id.as_str(), "a");
    }

    #[test]
    fn what_is_no_utf8_is_refused_also_where_it_would_be_ignored() {
        assert!(parse_json::<ProvisionEngine>(b"{\"user_id\": \"a\", \"colour\": \"\xff\"}").is_err());
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let body = br#"{"user_id": "a", "colour": "red"}"#;
        assert_eq!(parse_json::<ProvisionEngine>(body).unwrap().user_id.as_str(), "a");
    }

    proptest! {
        #[test]
        fn no_body_panics_the_parser(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_json::<ProvisionEngine>(&body);
        }

        #[test]
        fn escapes_are_judged_like_a_decoder_would(path in "(%[0-9a-fA-F]{2}|[a-z/]|%){0,12}") {
            let mut rest = path.as_bytes();
            let mut good = true;
            while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
                good &= rest.len() >= at + 3 && rest[at + 1..at + 3].iter().all(u8::is_ascii_hexdigit);
                rest = &rest[at + 1..];
            }
            prop_assert_eq!(escapes_are_well_formed(&path), good);
        }
    }
}
