//! Scripted refusals: every wire reports them as its vendor does.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use std::collections::BTreeMap;

use common::{
    chat_call, chat_request, gemini_call, gemini_request, messages_call, messages_request, ollama_call,
    ollama_request, provider, responses_call, responses_request, send_json,
};
use mock_llm::{Fault, MockProvider, Refusal, Reply, Wire};
use reqwest::RequestBuilder;

/// All refusals that have a text of their own on each wire.
const REFUSALS: [Refusal; 9] = [
    Refusal::RateLimited { retry_after_s: Some(7) },
    Refusal::Overloaded,
    Refusal::ServerError,
    Refusal::Unauthorized,
    Refusal::Forbidden,
    Refusal::UnknownModel,
    Refusal::PromptTooLong,
    Refusal::QuotaExhausted,
    Refusal::BrokenHistory,
];

/// The status of each refusal on a wire, and a part of its body.
type Expected = [(u16, &'static str); 9];

const MESSAGES: Expected = [
    (429, "rate_limit_error"),
    (529, "overloaded_error"),
    (500, "api_error"),
    (401, "invalid x-api-key"),
    (403, "permission_error"),
    (404, "model: claude-test"),
    (400, "prompt is too long"),
    (400, "credit balance is too low"),
    (400, "Invalid `signature` in `thinking` block"),
];
const CHAT: Expected = [
    (429, "rate_limit_exceeded"),
    (503, "overloaded"),
    (500, "server_error"),
    (401, "invalid_api_key"),
    (403, "does not have access"),
    (404, "model_not_found"),
    (400, "maximum context length"),
    (429, "insufficient_quota"),
    (400, "must be a response to a preceeding message"),
];
const RESPONSES: Expected = [
    (429, "rate_limit_exceeded"),
    (503, "overloaded"),
    (500, "server_error"),
    (401, "invalid_api_key"),
    (403, "does not have access"),
    (404, "model_not_found"),
    (400, "exceeds the context window"),
    (429, "insufficient_quota"),
    (400, "invalid_encrypted_content"),
];
const GEMINI: Expected = [
    (429, "\"retryDelay\":\"7s\""),
    (503, "UNAVAILABLE"),
    (500, "INTERNAL"),
    (400, "API_KEY_INVALID"),
    (403, "PERMISSION_DENIED"),
    (404, "models/gemini-3-test is not found"),
    (400, "input token count (1048579) exceeds"),
    (429, "prepayment credits are depleted"),
    (400, "missing a thought_signature"),
];
const OLLAMA: Expected = [
    (429, "too many concurrent requests"),
    (503, "server busy"),
    (500, "running the model"),
    (401, "unauthorized"),
    (403, "requires a subscription"),
    (404, "model \\\"qwen3\\\" not found, try pulling it first"),
    (400, "exceeds the context length"),
    (429, "reached your weekly usage limit"),
    (400, "cannot unmarshal string"),
];

/// What each wire answers, in the order of [`calls`].
const EXPECTED: [Expected; Wire::COUNT] = [MESSAGES, CHAT, RESPONSES, GEMINI, OLLAMA];

/// A call on each wire.
fn calls(provider: &MockProvider) -> [RequestBuilder; Wire::COUNT] {
    [
        messages_call(provider, &messages_request()),
        chat_call(provider, &chat_request()),
        responses_call(provider, &responses_request()),
        gemini_call(provider, &gemini_request()),
        ollama_call(provider, &ollama_request()),
    ]
}

#[tokio::test]
async fn every_wire_refuses_in_its_own_words() {
    let provider = provider().await;
    for (index, refusal) in REFUSALS.into_iter().enumerate() {
        provider.set_default_reply(Reply::from_fault(Fault::refuse(refusal.clone())));
        let expected = EXPECTED.map(|wire| wire[index]);
        for (call, (status, words)) in calls(&provider).into_iter().zip(expected) {
            let (actual, body) = send_json(call).await;
            let text = body.to_string();
            assert!(
                actual == status && text.contains(words),
                "{refusal:?}: {actual} {text}\n and not {status} {words}"
            );
        }
    }
    provider.assert_no_refusals();
}

#[tokio::test]
async fn the_wait_is_in_a_header_except_on_geminis_wire() {
    let provider = provider().await;
    for (delay_s, expected) in [(Some(7), Some("7")), (None, None)] {
        let refusal = Refusal::RateLimited { retry_after_s: delay_s };
        provider.set_default_reply(Reply::from_fault(Fault::refuse(refusal)));
        for (index, call) in calls(&provider).into_iter().enumerate() {
            let response = call.send().await.unwrap();
            let header =
                response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
            let text = response.text().await.unwrap();
            let is_gemini = index == 3;
            assert_eq!(header.as_deref(), if is_gemini { None } else { expected });
            assert_eq!(text.contains("retryDelay"), is_gemini && delay_s.is_some());
        }
    }
}

#[tokio::test]
async fn any_other_error_can_be_scripted_on_every_wire() {
    let provider = provider().await;
    let refusal = Refusal::Other {
        status: 418,
        error_type: "TEAPOT".to_owned(),
        message: "short and stout".to_owned(),
        headers: BTreeMap::from([("x-should-retry".to_owned(), "false".to_owned())]),
    };
    provider.set_default_reply(Reply::from_fault(Fault::refuse(refusal)));
    for call in calls(&provider) {
        let response = call.send().await.unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["x-should-retry"]),
            (418, &"false".parse().unwrap())
        );
        assert!(response.text().await.unwrap().contains("short and stout"));
    }
}
