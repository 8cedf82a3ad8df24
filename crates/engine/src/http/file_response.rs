//! Responses with the content of a file: conditions, ranges and headers (RFC 9110), for files of the
//! workspace and attached ones.

use std::fmt::Write as _;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::{ErrorCode, Timestamp};
use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use http_service::http::ApiError;
use tools::user_files::{Comparison, contains};

/// The content of a file, for the OpenAPI document.
#[derive(utoipa::ToSchema)]
#[schema(value_type = String, format = Binary)]
pub(super) struct FileContent(#[expect(dead_code, reason = "only its schema is used")] Vec<u8>);

/// What a response says of a file.
pub(super) struct Representation<'a> {
    /// The entity tag, without quotation marks.
    pub(super) etag: &'a str,
    /// When it was last changed; `None` for content that never changes.
    pub(super) modified: Option<Timestamp>,
    /// The size in bytes.
    pub(super) size: u64,
    /// The media type.
    pub(super) content_type: &'a str,
    /// The name under which it is saved.
    pub(super) name: &'a str,
    /// Whether a browser saves it rather than showing it.
    pub(super) is_download: bool,
    /// The value of `Cache-Control`.
    pub(super) cache_control: &'static str,
}

/// The part of a file that a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Selection {
    NotModified,
    PreconditionFailed,
    NotSatisfiable,
    All,
    Part(Range<u64>),
}

/// Builds the response to a request for a file. `read` returns the body with this range of the content.
///
/// # Errors
/// A condition of the request does not hold, or the file cannot be read at the moment.
pub(super) fn file_response(
    method: &Method,
    headers: &HeaderMap,
    file: &Representation<'_>,
    read: impl FnOnce(Range<u64>) -> Result<Body, ApiError>,
) -> Result<Response, ApiError> {
    let (status, range) = match select(method, headers, file) {
        Selection::PreconditionFailed => {
            let message = "the file has changed: the condition of the request does not hold";
            return Err(ApiError::new(ErrorCode::PreconditionFailed, message));
        }
        Selection::NotSatisfiable => {
            let message = format!("`Range`: the file has {} bytes", file.size);
            let mut response = ApiError::new(ErrorCode::RangeNotSatisfiable, message).into_response();
            set(response.headers_mut(), CONTENT_RANGE, &format!("bytes */{}", file.size));
            return Ok(response);
        }
        Selection::NotModified => {
            let mut response = StatusCode::NOT_MODIFIED.into_response();
            add_version(response.headers_mut(), file);
            return Ok(response);
        }
        Selection::All => (StatusCode::OK, 0..file.size),
        Selection::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
    };
    let length = range.end - range.start;
    let mut headers = HeaderMap::new();
    if status == StatusCode::PARTIAL_CONTENT {
        let last = range.end.saturating_sub(1);
        set(&mut headers, CONTENT_RANGE, &format!("bytes {}-{last}/{}", range.start, file.size));
    }
    add_version(&mut headers, file);
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    set(&mut headers, CONTENT_TYPE, file.content_type);
    set(&mut headers, CONTENT_DISPOSITION, &content_disposition(file.name, file.is_download));
    add_protection(&mut headers);
    let body = if method == Method::HEAD { Body::empty() } else { read(range)? };
    Ok((status, headers, body).into_response())
}

/// Adds what keeps a browser from running a file: files come from anywhere.
pub(super) fn add_protection(headers: &mut HeaderMap) {
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
}

/// Sets a header, unless the value cannot be one.
pub(super) fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn add_version(headers: &mut HeaderMap, file: &Representation<'_>) {
    set(headers, ETAG, &quoted(file.etag));
    if let Some(modified) = file.modified {
        set(headers, LAST_MODIFIED, &httpdate::fmt_http_date(system_time(modified)));
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(file.cache_control));
}

/// Returns the tag as headers write it.
pub(super) fn quoted(etag: &str) -> String {
    format!("\"{etag}\"")
}

/// Returns the time as HTTP knows it: in whole seconds, from 1970 to 9999.
fn system_time(time: Timestamp) -> SystemTime {
    const END_OF_9999: u64 = 253_402_300_799;
    let seconds = u64::try_from(time.unix_ms() / 1_000).unwrap_or(0);
    UNIX_EPOCH + Duration::from_secs(seconds.min(END_OF_9999))
}

/// Returns the value of a header that is a list; its lines count as one.
///
/// # Errors
/// It is not text.
pub(super) fn list(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, ApiError> {
    let lines: Result<Vec<_>, _> = headers.get_all(name).iter().map(HeaderValue::to_str).collect();
    match lines {
        Ok(lines) if lines.is_empty() => Ok(None),
        Ok(lines) => Ok(Some(lines.join(", "))),
        Err(_) => {
            let message = format!("`{name}`: must be a list of entity tags");
            Err(ApiError::new(ErrorCode::InvalidRequest, message))
        }
    }
}

/// Returns the value of a header that is a date; `None` for any other value, which is ignored.
pub(super) fn date(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

/// Evaluates the conditions in the order of RFC 9110, section 13.2.2.
fn select(method: &Method, headers: &HeaderMap, file: &Representation<'_>) -> Selection {
    let list = |name| list(headers, &name).ok().flatten();
    let modified = file.modified.map(system_time);
    let changed_since = |since: SystemTime| modified.is_some_and(|modified| modified > since);
    match (list(IF_MATCH), date(headers, &IF_UNMODIFIED_SINCE)) {
        (Some(tags), _) if !contains(&tags, file.etag, Comparison::Strong) => {
            return Selection::PreconditionFailed;
        }
        (None, Some(since)) if changed_since(since) => return Selection::PreconditionFailed,
        _ => {}
    }
    match (list(IF_NONE_MATCH), date(headers, &IF_MODIFIED_SINCE)) {
        (Some(tags), _) if contains(&tags, file.etag, Comparison::Weak) => return Selection::NotModified,
        (None, Some(since)) if modified.is_some() && !changed_since(since) => return Selection::NotModified,
        _ => {}
    }
    // A date is no proof of the version: the file may have changed twice in its second.
    let is_current = headers.get(IF_RANGE).is_none_or(|version| *version == quoted(file.etag));
    let range = headers
        .get(RANGE)
        .and_then(|range| range.to_str().ok())
        .filter(|_| method == Method::GET && is_current);
    match range.and_then(|range| parse_range(range, file.size)) {
        None => Selection::All,
        Some(None) => Selection::NotSatisfiable,
        Some(Some(range)) => Selection::Part(range),
    }
}

/// Parses a single range of bytes of a file with `size` bytes. The outer `None` is for what is ignored:
/// another unit, several ranges, or a malformed one; the inner one for a range that the file does not have.
#[expect(clippy::option_option, reason = "private, and used once")]
fn parse_range(range: &str, size: u64) -> Option<Option<Range<u64>>> {
    let number = |text: &str| {
        if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse::<u64>().ok() } else { None }
    };
    let (first, last) = range.strip_prefix("bytes=")?.trim().split_once('-')?;
    let range = match (first, last) {
        ("", last) => size.saturating_sub(number(last)?)..size,
        (first, "") => number(first)?..size,
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return None;
            }
            first..last.saturating_add(1).min(size)
        }
    };
    Some((range.start < range.end).then_some(range))
}

/// Returns the value of `Content-Disposition` (RFC 6266). A name that is not plain ASCII is given in both
/// forms.
pub(super) fn content_disposition(name: &str, is_download: bool) -> String {
    let kind = if is_download { "attachment" } else { "inline" };
    let is_plain = |char: char| char.is_ascii_graphic() && !matches!(char, '"' | '\\' | '%') || char == ' ';
    let plain: String = name.chars().map(|char| if is_plain(char) { char } else { '_' }).collect();
    let mut value = format!("{kind}; filename=\"{plain}\"");
    if plain != name {
        let encoded = tools::user_files::encode(name.as_ref());
        // Writing to a string cannot fail.
        let _ = write!(value, "; filename*=UTF-8''{encoded}");
    }
    value
}

#[cfg(test)]
#[path = "../../tests/unit/http/file_response.rs"]
mod tests;
