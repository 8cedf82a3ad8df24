//! Each vendor's errors in their original form, and errors in no vendor's form.

use std::collections::BTreeMap;

use futures::StreamExt as _;
use mock_llm::{Fault, MockProvider, Refusal, Reply};
use pretty_assertions::assert_eq;
use secrecy::SecretString;
use serde_json::json;

use self::cases::{ANTHROPIC, GEMINI, MESSAGES, OPENAI, OTHERS};
use super::super::ModelErrorKind::{Auth, BrokenHistory, Busy, NoSuchModel, Quota, Refused, TooLong};
use super::super::openai::OpenAi;
use super::super::profile::ModelProfile;
use super::super::{ChatModel as _, Message, Request};
use super::*;

mod cases;

fn now() -> Timestamp {
    "2026-11-22T04:00:00Z".parse().unwrap()
}

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

fn classified(status: u16, body: &str) -> ModelError {
    classify_response(status, &HeaderMap::new(), body.as_bytes(), now())
}

#[test]
fn each_vendors_errors_are_told_apart() {
    for (source, status, kind, body) in ANTHROPIC.into_iter().chain(OPENAI).chain(GEMINI).chain(OTHERS) {
        let error = classified(status, body);
        assert_eq!(error.kind, kind, "{source}: {body}");
        assert!(error.message.starts_with(&format!("the provider answered {status}: ")), "{error}");
    }
}

#[test]
fn what_only_the_message_tells_is_found_there() {
    for (source, status, kind, message) in MESSAGES {
        let body = json!({"error": {"message": message, "type": "invalid_request_error"}});
        assert_eq!(classified(status, &body.to_string()).kind, kind, "{source}: {message}");
    }
}

#[test]
fn some_codes_tell_enough() {
    for (code, kind) in [
        // https://platform.openai.com/docs/guides/error-codes
        ("billing_hard_limit_reached", Quota),
        ("billing_not_active", Quota),
        ("unsupported_country_region_territory", Auth),
        // https://github.com/Gitlawb/openclaude/issues/1528
        ("insufficient_credits", Quota),
        // https://github.com/atiilla/sqlmap-ai/issues/3
        ("model_decommissioned", NoSuchModel),
        // https://cloud.google.com/apis/design/errors
        ("UNAUTHENTICATED", Auth),
        ("PERMISSION_DENIED", Auth),
        ("NOT_FOUND", NoSuchModel),
    ] {
        let body = json!({"error": {"message": "", "code": code}});
        assert_eq!(classified(400, &body.to_string()).kind, kind, "{code}");
    }
}

#[test]
fn what_has_no_more_to_say_goes_by_its_status() {
    let expected = [
        (302, Refused),
        (400, Refused),
        (401, Auth),
        (402, Quota),
        (403, Auth),
        (404, NoSuchModel),
        (408, Busy),
        (409, Busy),
        (413, TooLong),
        (422, Refused),
        (429, Busy),
        (500, Busy),
        (503, Busy),
        (529, Busy),
    ];
    for (status, kind) in expected {
        let bodies = ["", "no", "{}", "[]", "null", r#"{"error":null}"#, "<html><body>oops</body></html>"];
        for body in bodies {
            assert_eq!(classified(status, body).kind, kind, "{status} {body}");
        }
    }
}

#[test]
fn what_a_person_is_shown_is_to_the_point() {
    let shown = |body: &str| classified(500, body).message;
    assert_eq!(shown(""), "the provider answered 500: no details");
    assert_eq!(shown("upstream connect error\n"), "the provider answered 500: upstream connect error");
    assert_eq!(shown(r#"{"detail":"Not Found"}"#), "the provider answered 500: Not Found");
    assert_eq!(shown(r#"{"error":{"type":"api_error"}}"#), "the provider answered 500: api_error");
    let page = "<html>\n<head><title> 502 Bad Gateway </title></head><body>nginx</body></html>";
    assert_eq!(shown(page), "the provider answered 500: 502 Bad Gateway");
    assert_eq!(shown("<!doctype html><p>no"), "the provider answered 500: an HTML page");
}

#[test]
fn a_key_that_is_not_for_the_model_is_told_from_a_model_that_is_not_there() {
    let body =
        json!({"error": {"message": "Project does not have access to model `m`", "code": "model_not_found"}});
    for (status, kind) in [(403, Auth), (404, NoSuchModel), (400, NoSuchModel)] {
        assert_eq!(classified(status, &body.to_string()).kind, kind, "{status}");
    }
}

#[test]
fn what_was_refused_by_a_moderator_is_not_the_keys_fault() {
    // https://openrouter.ai/docs/api/reference/errors-and-debugging
    let body = r#"{"error":{"code":403,"message":"openai/gpt-4 requires moderation. Your input was flagged for \"sexual\".","metadata":{"reasons":["sexual"],"flagged_input":"..."}}}"#;
    assert_eq!(classified(403, body).kind, Refused);
}

#[test]
fn errors_within_a_stream_are_told_by_the_same_rules() {
    for (event, kind) in [
        // https://platform.claude.com/docs/en/build-with-claude/streaming
        (json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}), Busy),
        (json!({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}), Refused),
        (
            json!({"type": "error", "error": {"type": "invalid_request_error",
                "message": "messages.1.content.0: Invalid `signature` in `thinking` block"}}),
            BrokenHistory,
        ),
        // https://github.com/earendil-works/pi/pull/1458
        (
            json!({"type": "response.failed", "response": {"status": "failed", "error": {
                "code": "rate_limit_exceeded", "message": "Requests have exceeded token rate limit"}}}),
            Busy,
        ),
        (
            json!({"type": "response.failed", "response": {"error": {"code": "context_length_exceeded",
                "message": "Your input exceeds the context window of this model."}}}),
            TooLong,
        ),
        (json!({"type": "response.failed", "response": {"error": {"code": "invalid_prompt"}}}), Refused),
        (json!({"type": "response.failed", "response": {"error": null}}), Busy),
        // https://platform.openai.com/docs/api-reference/responses-streaming/error
        (
            json!({"type": "error", "code": "server_error", "message": "Sorry", "param": null, "sequence_number": 3}),
            Busy,
        ),
        (
            json!({"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}),
            Quota,
        ),
        // https://openrouter.ai/docs/api/reference/errors-and-debugging
        (json!({"error": {"code": 502, "message": "Provider disconnected"}}), Busy),
        (json!({"error": {"code": "429", "message": "Slow down"}}), Busy),
        // https://github.com/oobabooga/textgen/issues/7257
        (
            json!({"error": {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 14429,
                "message": "the request exceeds the available context size."}}),
            TooLong,
        ),
        // https://ai.google.dev/gemini-api/docs/troubleshooting
        (
            json!([{"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}]),
            Busy,
        ),
        (json!({"error": {"code": 400, "message": "no", "status": "INVALID_ARGUMENT"}}), Refused),
        // https://github.com/ollama/ollama/blob/main/docs/api.md
        (json!({"error": "an error was encountered while running the model"}), Busy),
    ] {
        let error = classify_stream_error(&event);
        assert_eq!(error.kind, kind, "{event}");
        assert!(error.message.starts_with("the provider aborted its answer: "), "{error}");
    }
}

#[test]
fn the_provider_says_whether_and_when_to_ask_again() {
    let retry = |status: u16, pairs: &[(&'static str, &'static str)]| {
        let error = classify_response(status, &headers(pairs), b"{}", now());
        (error.kind, error.retry_after.map(|delay| delay.as_millis()))
    };
    assert_eq!(retry(429, &[("retry-after", "3")]), (Busy, Some(3_000)));
    assert_eq!(retry(503, &[("retry-after", "3"), ("retry-after-ms", "250")]), (Busy, Some(250)));
    let date = ("retry-after", "Sun, 22 Nov 2026 04:00:20 GMT");
    assert_eq!(retry(503, &[date]), (Busy, Some(20_000)));
    let server_date = ("date", "Sun, 22 Nov 2026 04:00:15 GMT");
    assert_eq!(retry(503, &[date, server_date]), (Busy, Some(5_000)));
    assert_eq!(retry(503, &[("retry-after", "Sun, 22 Nov 2026 03:00:00 GMT")]), (Busy, Some(0)));
    for invalid in ["-1", "soon", "NaN"] {
        assert_eq!(retry(429, &[("retry-after", invalid)]), (Busy, None), "{invalid}");
    }
    assert_eq!(retry(400, &[("x-should-retry", "true")]), (Busy, None));
    assert_eq!(retry(401, &[("x-should-retry", "true")]), (Auth, None));
    assert_eq!(retry(400, &[("x-should-retry", "false")]), (Refused, None));
    // The failure is the provider's, but it forbids a retry.
    let (kind, delay) = retry(529, &[("x-should-retry", "false"), ("retry-after", "1")]);
    assert!(kind == Busy && delay > Some(30_000), "{delay:?}");
}

#[test]
fn gemini_says_in_its_body_when_to_ask_again() {
    let delay = |text: &str| {
        json!({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": text},
        ]}})
    };
    assert_eq!(classified(429, &delay("34.5s").to_string()).retry_after, Some(Duration::from_millis(34_500)));
    assert_eq!(classify_stream_error(&delay("2s")).retry_after, Some(Duration::from_secs(2)));
    for invalid in ["", "s", "2", "-2s"] {
        assert_eq!(classify_stream_error(&delay(invalid)).retry_after, None, "{invalid}");
    }
}

#[tokio::test]
async fn a_key_that_a_server_repeats_is_not_shown() {
    let provider = MockProvider::builder().api_key("sk-proj-1").start().await.unwrap();
    provider.enqueue(Reply::from_fault(Fault::refuse(Refusal::Other {
        status: 401,
        error_type: "invalid_request_error".into(),
        message: "Incorrect API key provided: sk-proj-1.".into(),
        headers: BTreeMap::new(),
    })));
    let key = Some(SecretString::from("sk-proj-1"));
    let model = OpenAi::new(&provider.openai_base_url(), ModelProfile::for_tests("m"), key);
    let messages = [Message::user("hi")];
    let request = Request {
        system: "Be brief.",
        messages: &messages,
        tools: &[],
        thinking: false,
        effort: None,
        max_output: None,
        allow_tool_calls: true,
        output: None,
        cache_key: "t",
    };
    let error = model.stream(&request).next().await.unwrap().unwrap_err();
    assert_eq!(error.kind, Auth);
    assert_eq!(error.message, "the provider answered 401: Incorrect API key provided: [the key].");
}
