//! Scripted faults on every wire. The tests synchronize without sleeping.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::{
    chat_call, chat_request, events, gemini_call, gemini_request, gemini_stream_call, messages_call,
    messages_request, ollama_call, ollama_request, provider, read_until, responses_call, responses_request,
    send_json, send_stream, with_members,
};
use mock_llm::{Fault, Gate, MockProvider, Refusal, Reply, Wire};
use reqwest::RequestBuilder;
use serde_json::{Value, json};

/// A streamed call on each wire.
fn streamed_calls(provider: &MockProvider) -> [RequestBuilder; Wire::COUNT] {
    let stream = json!({"stream": true});
    [
        messages_call(provider, &with_members(messages_request(), stream.clone())),
        chat_call(provider, &with_members(chat_request(), stream.clone())),
        responses_call(provider, &with_members(responses_request(), stream.clone())),
        gemini_stream_call(provider, &gemini_request()),
        ollama_call(provider, &with_members(ollama_request(), stream)),
    ]
}

/// A call for an answer that is not streamed on each wire.
fn complete_calls(provider: &MockProvider) -> [RequestBuilder; Wire::COUNT] {
    [
        messages_call(provider, &messages_request()),
        chat_call(provider, &chat_request()),
        responses_call(provider, &responses_request()),
        gemini_call(provider, &gemini_request()),
        ollama_call(provider, &ollama_request()),
    ]
}

/// An answer with ten deltas, `0` to `9`.
fn digits() -> Reply {
    Reply::from_text("0123456789").chars_per_delta(1)
}

/// The text of the deltas of a stream.
fn text_of(stream: &str) -> String {
    let text = |data: Value| {
        let is_done = data["type"] == "response.output_text.done";
        let candidates: [_; Wire::COUNT] = [
            &data["delta"]["text"],
            &data["choices"][0]["delta"]["content"],
            if is_done { &Value::Null } else { &data["delta"] },
            &data["candidates"][0]["content"]["parts"][0]["text"],
            &data["message"]["content"],
        ];
        candidates.iter().find_map(|candidate| candidate.as_str()).unwrap_or_default().to_owned()
    };
    let data = |line: &str| serde_json::from_str(line.strip_prefix("data: ").unwrap_or(line)).ok();
    stream.lines().filter_map(data).map(text).collect()
}

fn has_end_mark(stream: &str) -> bool {
    let marks: [&str; Wire::COUNT] = [
        "data: {\"type\":\"message_stop\"}",
        "data: [DONE]",
        "event: response.completed",
        "\"finishReason\":\"STOP\"",
        "\"done\":true",
    ];
    stream.ends_with('\n') && marks.iter().any(|mark| stream.contains(mark))
}

#[tokio::test]
async fn a_stream_without_a_fault_ends_well() {
    let provider = provider().await;
    provider.set_default_reply(digits());
    for call in streamed_calls(&provider) {
        let (text, ended) = send_stream(call).await;
        assert_eq!((text_of(&text).as_str(), has_end_mark(&text), ended), ("0123456789", true, true));
    }
}

#[tokio::test]
async fn a_cut_stream_ends_in_the_middle_of_http() {
    let provider = provider().await;
    for (deltas, expected) in [(0, ""), (3, "012"), (99, "0123456789")] {
        provider.set_default_reply(digits().fault(Fault::cut_after(deltas)));
        for call in streamed_calls(&provider) {
            let (text, ended) = send_stream(call).await;
            assert_eq!((text_of(&text).as_str(), has_end_mark(&text), ended), (expected, false, false));
        }
    }
}

#[tokio::test]
async fn a_stream_can_lack_only_its_end_mark() {
    let provider = provider().await;
    provider.set_default_reply(digits().fault(Fault::NoEndMark));
    for call in streamed_calls(&provider) {
        let (text, ended) = send_stream(call).await;
        assert_eq!((text_of(&text).as_str(), has_end_mark(&text), ended), ("0123456789", false, true));
    }
}

#[tokio::test]
async fn an_error_can_come_within_a_stream() {
    let provider = provider().await;
    provider.set_default_reply(digits().fault(Fault::error_event_after(2)));
    let [messages, chat, ..] = streamed_calls(&provider);

    let (text, ended) = send_stream(messages).await;
    assert!(ended);
    assert_eq!(text_of(&text), "01");
    let (name, data) = events(&text).pop().unwrap();
    let overloaded = json!({"type": "overloaded_error", "message": "Overloaded"});
    assert_eq!((name.as_str(), data), ("error", json!({"type": "error", "error": overloaded})));

    let (text, ended) = send_stream(chat).await;
    assert!(ended);
    assert_eq!(text_of(&text), "01");
    let (name, data) = events(&text).pop().unwrap();
    assert_eq!((name.as_str(), &data["error"]["type"]), ("", &json!("server_error")));
}

#[tokio::test]
async fn a_silent_stream_lasts_until_the_client_leaves() {
    let provider = provider().await;
    provider.set_default_reply(digits().fault(Fault::hang_after(2)));
    for call in streamed_calls(&provider) {
        let mut response = call.send().await.unwrap();
        read_until(&mut response, |text| text_of(text) == "01").await;
        drop(response);
        provider.wait_until_idle().await;
    }
}

#[tokio::test]
async fn a_gate_holds_a_stream_at_its_place() {
    let provider = provider().await;
    for index in 0..Wire::COUNT {
        let (first, second) = (Gate::new(), Gate::new());
        provider.enqueue(digits().hold(3, &first).hold(10, &second));
        let call = streamed_calls(&provider).into_iter().nth(index).unwrap();
        let mut response = call.send().await.unwrap();
        let before = read_until(&mut response, |text| text_of(text) == "012").await;
        first.reached().await;
        first.release();
        second.reached().await;
        let between = read_until(&mut response, |text| text_of(text) == "3456789").await;
        second.release();
        let after = read_until(&mut response, has_end_mark).await;
        assert_eq!(text_of(&[before, between, after].concat()), "0123456789");
    }
}

#[tokio::test]
async fn a_gate_holds_a_whole_answer() {
    let provider = provider().await;
    let gate = Gate::new();
    provider.enqueue(digits().hold(3, &gate));
    let call = tokio::spawn(send_json(messages_call(&provider, &messages_request())));
    gate.reached().await;
    assert!(!call.is_finished());
    gate.release();
    assert_eq!(call.await.unwrap().0, 200);
}

#[tokio::test]
async fn whole_answers_break_too() {
    let provider = provider().await;
    provider.set_default_reply(digits().fault(Fault::cut_after(1)));
    for call in complete_calls(&provider) {
        assert!(call.send().await.unwrap().bytes().await.is_err());
    }
    provider.set_default_reply(digits().fault(Fault::error_event_after(1)));
    let statuses: [u16; Wire::COUNT] = [529, 503, 503, 503, 503];
    for (call, expected) in complete_calls(&provider).into_iter().zip(statuses) {
        assert_eq!(send_json(call).await.0, expected);
    }
}

#[tokio::test]
async fn delays_are_kept() {
    let provider = provider().await;
    provider.enqueue(digits().delay(Duration::from_millis(2)));
    provider.enqueue(digits().fault(Fault::SlowHeaders { delay_ms: 20 }));
    for (call, min_ms) in streamed_calls(&provider).into_iter().zip([18, 20]) {
        let start = Instant::now();
        let (text, _) = send_stream(call).await;
        assert_eq!(text_of(&text), "0123456789");
        assert!(start.elapsed() >= Duration::from_millis(min_ms));
    }
}

#[tokio::test]
async fn refusals_have_the_vendors_statuses_and_bodies() {
    let other = Refusal::Other {
        status: 418,
        error_type: "teapot".to_owned(),
        message: "short and stout".to_owned(),
        headers: BTreeMap::from([("x-should-retry".to_owned(), "false".to_owned())]),
    };
    let cases = [
        (Refusal::RateLimited { retry_after_s: Some(7) }, 429, "rate_limit_error", 429, "requests"),
        (Refusal::RateLimited { retry_after_s: None }, 429, "rate_limit_error", 429, "requests"),
        (Refusal::Overloaded, 529, "overloaded_error", 503, "server_error"),
        (Refusal::ServerError, 500, "api_error", 500, "server_error"),
        (Refusal::Unauthorized, 401, "authentication_error", 401, "invalid_request_error"),
        (Refusal::Forbidden, 403, "permission_error", 403, "invalid_request_error"),
        (Refusal::UnknownModel, 404, "not_found_error", 404, "invalid_request_error"),
        (Refusal::PromptTooLong, 400, "invalid_request_error", 400, "invalid_request_error"),
        (Refusal::QuotaExhausted, 400, "invalid_request_error", 429, "insufficient_quota"),
        (other, 418, "teapot", 418, "teapot"),
    ];
    let provider = provider().await;
    for (refusal, anthropic_status, anthropic_type, openai_status, openai_type) in cases {
        provider.set_default_reply(Reply::from_fault(Fault::refuse(refusal.clone())));
        let response = messages_call(&provider, &messages_request()).send().await.unwrap();
        let header =
            |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let expected_delay =
            matches!(refusal, Refusal::RateLimited { retry_after_s: Some(_) }).then_some("7");
        assert_eq!(header("retry-after").as_deref(), expected_delay);
        assert_eq!(header("x-should-retry").is_some(), matches!(refusal, Refusal::Other { .. }));
        assert!(header("request-id").is_some());
        assert_eq!(response.status().as_u16(), anthropic_status);
        let body: Value = response.json().await.unwrap();
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(anthropic_type)));

        let (status, body) = send_json(chat_call(&provider, &chat_request())).await;
        assert_eq!((status, &body["error"]["type"]), (openai_status, &json!(openai_type)));
    }
    provider.assert_no_refusals();
}

#[tokio::test]
async fn an_error_within_a_stream_can_be_chosen() {
    let provider = provider().await;
    provider.set_default_reply(digits().fault(Fault::error_event_with(2, Refusal::ServerError)));
    let words: [&str; Wire::COUNT] = [
        "api_error",
        "server_error",
        "\"code\":\"server_error\"",
        "\"status\":\"INTERNAL\"",
        "running the model",
    ];
    for (call, words) in streamed_calls(&provider).into_iter().zip(words) {
        let (text, ended) = send_stream(call).await;
        assert!(ended && text.contains(words), "{text}\n lacks {words}");
        assert_eq!((text_of(&text).as_str(), has_end_mark(&text)), ("01", false));
    }
    // Without a refusal, the error is that the provider is overloaded.
    let fault: Fault = serde_json::from_value(json!({"kind": "error_event_after", "deltas": 1})).unwrap();
    provider.set_default_reply(digits().fault(fault));
    let (text, _) =
        send_stream(messages_call(&provider, &with_members(messages_request(), json!({"stream": true}))))
            .await;
    assert!(text.contains("overloaded_error"));
}
