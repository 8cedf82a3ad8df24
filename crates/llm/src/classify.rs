//! Classifies a provider's errors: the kind of failure, and when to retry.
//!
//! The vendors agree on status codes but on hardly anything else: the same failure is a code here, a type there,
//! and only in the message elsewhere. So codes are examined first, then the message, then the status.
//! `tests/unit/classify/cases.rs` contains each form as its vendor sends it, with the source.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use serde_json::Value;

use super::{ModelError, ModelErrorKind};

/// The delay that stands for "do not retry" (`x-should-retry: false`): longer than any provider is waited for, so
/// that the next model is tried.
const NEVER_RETRY_DELAY: Duration = Duration::from_hours(1);

/// Classifies an unsuccessful response. `now` is the local time, for retry delays that are given as a date.
pub(super) fn classify_response(status: u16, headers: &HeaderMap, body: &[u8], now: Timestamp) -> ModelError {
    let problem = ProviderError::from_body(body);
    let should_retry = headers.get("x-should-retry").map(|value| value == "true");
    let kind = error_kind(Some(status), should_retry, &problem);
    let retry_after = match should_retry {
        Some(false) if kind == ModelErrorKind::Busy => Some(NEVER_RETRY_DELAY),
        _ => parse_retry_after(headers, now).or(problem.retry_delay),
    };
    let message = format!("the provider answered {status}: {}", problem.display_message());
    ModelError { retry_after, ..ModelError::new(kind, message) }
}

/// Classifies an error that a provider reports within the stream of an answer. `event` is the whole event.
pub(super) fn classify_stream_error(event: &Value) -> ModelError {
    let problem = ProviderError::from_json(event);
    let kind = error_kind(problem.status, None, &problem);
    let message = format!("the provider aborted its answer: {}", problem.display_message());
    ModelError { retry_after: problem.retry_delay, ..ModelError::new(kind, message) }
}

/// Whether an event of a stream, in any protocol, reports an error. An event of another type does not, whatever
/// else it contains.
pub(super) fn is_error_event(event: &Value) -> bool {
    let event = event.get(0).unwrap_or(event);
    let is_error_type = ["type", "object"].iter().any(|field| event[field] == "error");
    is_error_type || !event["type"].is_string() && event.get("error").is_some_and(|error| !error.is_null())
}

/// A provider's error in the terms that are common to all vendors.
#[derive(Default)]
struct ProviderError {
    /// The message for a person.
    message: String,
    /// The message in lower case and without quotes, which the vendors use inconsistently. For a router, it
    /// includes the message of the provider behind it.
    normalized_message: String,
    /// The codes, types and reasons, in lower case.
    codes: Vec<String>,
    /// The status that the error itself contains. An error within a stream has no other.
    status: Option<u16>,
    /// The delay before the next attempt that the provider asked for.
    retry_delay: Option<Duration>,
}

impl ProviderError {
    fn from_body(body: &[u8]) -> Self {
        match serde_json::from_slice(body) {
            Ok(body) => Self::from_json(&body),
            Err(_) => Self::from_message(&text_or_page_title(&String::from_utf8_lossy(body))),
        }
    }

    fn from_json(body: &Value) -> Self {
        // Gemini wraps the errors of its streams in an array.
        let body = body.get(0).unwrap_or(body);
        let inner = [body.pointer("/response/error"), body.get("error")];
        let error = inner.into_iter().flatten().find(|error| !error.is_null()).unwrap_or(body);
        let text = |pointer: &str| error.pointer(pointer).and_then(Value::as_str);
        let message = error.as_str().or_else(|| text("/message")).or_else(|| text("/error/message"));
        let mut problem = Self::from_message(message.or_else(|| text("/detail")).unwrap_or_default());
        // OpenRouter's own message is only "Provider returned error"; this is the provider's response.
        if let Some(raw) = text("/metadata/raw") {
            problem.normalized_message.push_str(&normalize_message(raw));
            problem.message = format!("{}: {raw}", problem.message);
        }
        let details = error.get("details").and_then(Value::as_array).into_iter().flatten();
        let reasons = details.clone().filter_map(|detail| detail["reason"].as_str());
        let codes = ["/code", "/type", "/status"].into_iter().filter_map(text).chain(reasons);
        problem.codes = codes.map(str::to_lowercase).collect();
        problem.codes.extend(daily_quota_code(details.clone()));
        problem.status = error.get("code").and_then(parse_status);
        problem.retry_delay =
            details.filter_map(|detail| parse_retry_delay(detail["retryDelay"].as_str()?)).max();
        problem
    }

    fn from_message(message: &str) -> Self {
        Self {
            message: message.to_owned(),
            normalized_message: normalize_message(message),
            ..Self::default()
        }
    }

    fn matches(&self, codes: &[&str], phrases: &[&str]) -> bool {
        self.codes.iter().any(|code| codes.contains(&code.as_str()))
            || phrases.iter().any(|phrase| self.normalized_message.contains(phrase))
    }

    /// The message that a person is shown.
    fn display_message(&self) -> String {
        let shown = if self.message.is_empty() { self.codes.join(", ") } else { self.message.clone() };
        if shown.is_empty() { "no details".into() } else { shown }
    }
}

/// The text of a body that is not JSON; for an HTML page, such as a proxy's, its title.
fn text_or_page_title(text: &str) -> String {
    let text = text.trim();
    if !text.starts_with('<') {
        return text.to_owned();
    }
    let title = text.split_once("<title>").and_then(|(_, rest)| rest.split_once("</title>"));
    title.map_or("an HTML page", |(title, _)| title.trim()).to_owned()
}

fn normalize_message(message: &str) -> String {
    message.to_lowercase().replace(['`', '\'', '"', '\\'], "")
}

fn parse_status(code: &Value) -> Option<u16> {
    code.as_u64().or_else(|| code.as_str()?.parse().ok()).and_then(|code| u16::try_from(code).ok())
}

/// Returns a code if a daily quota is exhausted. Gemini uses the same message for quotas that recover within a
/// minute (<https://ai.google.dev/gemini-api/docs/rate-limits>).
fn daily_quota_code<'a>(details: impl Iterator<Item = &'a Value>) -> Option<String> {
    let mut violations = details.filter_map(|detail| detail["violations"].as_array()).flatten();
    let is_daily = |violation: &Value| violation["quotaId"].as_str().is_some_and(|id| id.contains("PerDay"));
    violations.any(is_daily).then(|| "quota_per_day".to_owned())
}

/// Parses a duration in Google's format, such as `34.07s`.
fn parse_retry_delay(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.strip_suffix('s')?.parse().ok()?).ok()
}

/// Parses `retry-after-ms` (milliseconds) or `Retry-After` (seconds or a date, RFC 9110, 10.2.3). A date is
/// relative to the response's own `Date`, if there is one, because clocks differ.
fn parse_retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let date = |name: &str| DateTimeParser::new().parse_timestamp(text(name)?).ok();
    let number = |name: &str| text(name)?.parse::<f64>().ok();
    let seconds = number("retry-after-ms")
        .map(|ms| ms / 1_000.0)
        .or_else(|| number(RETRY_AFTER.as_str()))
        .or_else(|| {
            let wait = date(RETRY_AFTER.as_str())?.duration_since(date(DATE.as_str()).unwrap_or(now));
            Some(wait.as_secs_f64().max(0.0))
        })?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn error_kind(status: Option<u16>, should_retry: Option<bool>, problem: &ProviderError) -> ModelErrorKind {
    use ModelErrorKind::{Auth, BrokenHistory, NoSuchModel, Quota, Refused, TooLong};
    // Most specific first: many of the codes below come with a status that says less.
    let rules: [(ModelErrorKind, &[&str], &[&str]); 7] = [
        (Refused, &[], &NO_IMAGES_PHRASES),
        (TooLong, &TOO_LONG_CODES, &TOO_LONG_PHRASES),
        (Quota, &QUOTA_CODES, &QUOTA_PHRASES),
        (BrokenHistory, &BROKEN_HISTORY_CODES, &BROKEN_HISTORY_PHRASES),
        (NoSuchModel, &NO_SUCH_MODEL_CODES, &NO_SUCH_MODEL_PHRASES),
        (Refused, &[], &MODERATION_PHRASES),
        (Auth, &AUTH_CODES, &AUTH_PHRASES),
    ];
    let rule = rules.into_iter().find(|(_, codes, phrases)| problem.matches(codes, phrases));
    match (rule.map(|(kind, ..)| kind), status) {
        // The model exists, but the key does not give access to it.
        (Some(NoSuchModel), Some(401 | 403)) => Auth,
        (Some(kind), _) => kind,
        (None, _) => error_kind_by_status(status, should_retry, problem),
    }
}

/// The kind of a failure by its status. `x-should-retry`, which the vendors' SDKs obey, is respected unless the
/// key or the account is at fault.
fn error_kind_by_status(
    status: Option<u16>,
    should_retry: Option<bool>,
    problem: &ProviderError,
) -> ModelErrorKind {
    use ModelErrorKind::{Auth, Busy, NoSuchModel, Quota, Refused, TooLong};
    match status {
        Some(401 | 403) => Auth,
        Some(402) => Quota,
        Some(404) => NoSuchModel,
        Some(413) => TooLong,
        Some(408 | 409 | 429 | 500..) => Busy,
        _ if should_retry == Some(true) => Busy,
        Some(_) => Refused,
        // Within a stream, where nearly all failures are the provider's.
        None if problem.codes.iter().any(|code| is_request_code(code)) => Refused,
        None => Busy,
    }
}

fn is_request_code(code: &str) -> bool {
    ["invalid_", "image_", "unsupported_"].iter().any(|start| code.starts_with(start))
        || ["policy", "content_filter"].iter().any(|part| code.contains(part))
}

const TOO_LONG_CODES: [&str; 3] =
    ["context_length_exceeded", "exceed_context_size_error", "request_too_large"];
const TOO_LONG_PHRASES: [&str; 24] = [
    "prompt is too long",
    "prompt too long",
    "exceed context limit",
    "exceeds the context window",
    "exceeds the context length",
    "exceeds the available context size",
    "exceeds the maximum number of tokens",
    "maximum context length",
    "maximum prompt length",
    "context length is only",
    "context length of only",
    "cannot truncate prompt with n_keep",
    "range of input length should be",
    "input is too long for requested model",
    "exceeds the maximum allowed input length",
    "longer than the models context length",
    "greater than the context length",
    "context window exceeds limit",
    "exceeded model token limit",
    "required for long context requests",
    "request too large for",
    // OpenAI's message about one part of the history. Other fields can be too long as well, but compaction does
    // not help there.
    "content: string too long",
    "output: string too long",
    "reduce the length of the messages",
];

const QUOTA_CODES: [&str; 6] = [
    "insufficient_quota",
    "billing_error",
    "billing_hard_limit_reached",
    "billing_not_active",
    "insufficient_credits",
    "quota_per_day",
];
const QUOTA_PHRASES: [&str; 11] = [
    "usage limit, upgrade for higher limits",
    "prepayment credits are depleted",
    "credit balance is too low",
    "reached your specified api usage limits",
    "insufficient balance",
    "insufficient credits",
    "requires more credits",
    "used all available credits",
    "run out of credits",
    "key limit exceeded",
    "free-models-per-day",
];

const BROKEN_HISTORY_CODES: [&str; 1] = ["invalid_encrypted_content"];
const BROKEN_HISTORY_PHRASES: [&str; 19] = [
    "signature in thinking block",
    "blocks in the latest assistant message cannot be modified",
    "expected thinking or redacted_thinking",
    "tool_use ids were found without tool_result",
    "tool_use_id found in tool_result",
    "content blocks must be non-empty",
    "no tool output found for function call",
    "no tool call found for function call output",
    "must be a response to a preceeding message with tool_calls",
    "must be followed by tool messages responding to each tool_call_id",
    "was provided without its required",
    "items are not persisted when store is set to false",
    "must be passed back to the api",
    "property reasoning_content is unsupported",
    "thought_signature",
    "thought signature",
    "function call turn comes immediately after",
    "function response turn comes immediately after",
    "number of function response parts is equal",
];

const NO_SUCH_MODEL_CODES: [&str; 5] =
    ["model_not_found", "model_decommissioned", "deploymentnotfound", "not_found_error", "not_found"];
const NO_SUCH_MODEL_PHRASES: [&str; 3] =
    ["model not exist", "is not a valid model id", "invalid model name passed in"];

/// Of models that take no images, by `OpenRouter` with 404 and by llama.cpp with 500: without them they answer.
const NO_IMAGES_PHRASES: [&str; 2] = ["found that support image input", "image input is not supported"];

/// `OpenRouter`'s 403 for content that a moderator refused; the key is valid.
const MODERATION_PHRASES: [&str; 1] = ["your input was flagged"];

const AUTH_CODES: [&str; 7] = [
    "authentication_error",
    "permission_error",
    "invalid_api_key",
    "api_key_invalid",
    "unauthenticated",
    "permission_denied",
    "unsupported_country_region_territory",
];
const AUTH_PHRASES: [&str; 1] = ["user location is not supported"];

#[cfg(test)]
#[path = "../tests/unit/classify/mod.rs"]
mod tests;
