//! The provider around the wires: keys, records, the check for refusals when it is dropped, and the process with
//! its control endpoint.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use std::io::{BufRead, BufReader};
use std::panic::AssertUnwindSafe;
use std::process::{Command, Stdio};

use common::{
    chat_call, chat_request, gemini_call, gemini_request, messages_call, messages_request, ollama_call,
    ollama_request, provider, responses_call, responses_request, send_json, send_ok, send_stream,
    with_members,
};
use mock_llm::{MockProvider, Reply, Wire};
use reqwest::Client;
use serde_json::{Value, json};

#[tokio::test]
async fn keys_and_versions_are_checked() {
    let provider = MockProvider::builder().api_key("right").start().await.unwrap();
    let url = format!("{}/v1/messages", provider.base_url());
    let post = || Client::new().post(&url).json(&messages_request());
    let versioned = || post().header("anthropic-version", "2023-06-01");
    let chat_url = format!("{}/chat/completions", provider.openai_base_url());
    let chat = || Client::new().post(&chat_url).json(&chat_request());
    let cases = [
        (versioned(), 401, "x-api-key header is required"),
        (versioned().header("x-api-key", "wrong"), 401, "invalid x-api-key"),
        (post().header("x-api-key", "right"), 400, "anthropic-version: header is required"),
        (post().header("x-api-key", "right").header("anthropic-version", "1"), 400, "is not a valid version"),
        (chat(), 401, "You didn't provide an API key."),
        (chat().bearer_auth("wrong"), 401, "Incorrect API key provided"),
    ];
    for (call, expected_status, words) in cases {
        let (status, body) = send_json(call).await;
        assert_eq!(status, expected_status, "{body}");
        assert!(body["error"]["message"].as_str().unwrap().contains(words), "{body}");
    }
    assert_eq!(send_json(chat().bearer_auth("wrong")).await.1["error"]["code"], "invalid_api_key");
    send_ok(versioned().header("x-api-key", "right")).await;
    send_ok(chat().bearer_auth("right")).await;
    assert_eq!(provider.take_refusals().len(), 7);
}

#[tokio::test]
async fn every_wire_echoes_the_user() {
    let provider = provider().await;
    let calls: [_; Wire::COUNT] = [
        (messages_call(&provider, &messages_request()), "/content/0/text"),
        (chat_call(&provider, &chat_request()), "/choices/0/message/content"),
        (responses_call(&provider, &responses_request()), "/output/0/content/0/text"),
        (gemini_call(&provider, &gemini_request()), "/candidates/0/content/parts/0/text"),
        (ollama_call(&provider, &ollama_request()), "/message/content"),
    ];
    for (call, pointer) in calls {
        let answer = send_ok(call).await;
        assert_eq!(answer.pointer(pointer), Some(&json!("hi")), "{answer}");
    }
    let requests = provider.requests();
    let wires: Vec<Wire> = requests.iter().map(|request| request.wire).collect();
    assert_eq!(wires, Wire::ALL);
    let models: Vec<&str> = requests.iter().map(|request| request.model.as_str()).collect();
    assert_eq!(models, ["claude-test", "gpt-test", "gpt-5-test", "gemini-3-test", "qwen3"]);
    let keys: Vec<Option<&str>> = requests.iter().map(|request| request.api_key()).collect();
    assert_eq!(keys, [Some("key"), Some("key"), Some("key"), Some("key"), None]);
}

#[tokio::test]
async fn a_responder_answers_what_finds_the_script_empty() {
    let provider = provider().await;
    provider.set_responder(|request| {
        Reply::from_text(request.body["messages"].as_array().unwrap().len().to_string())
    });
    provider.enqueue(Reply::from_text("scripted"));
    let mut request = messages_request();
    let text = |body: Value| body["content"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(text(send_ok(messages_call(&provider, &request)).await), "scripted");
    assert_eq!(text(send_ok(messages_call(&provider, &request)).await), "1");
    let more = [json!({"role": "assistant", "content": "1"}), json!({"role": "user", "content": "more"})];
    request["messages"].as_array_mut().unwrap().extend(more);
    assert_eq!(text(send_ok(messages_call(&provider, &request)).await), "3");
    // Refused requests do not reach the responder.
    let (status, _) =
        send_json(messages_call(&provider, &with_members(request, json!({"model": null})))).await;
    assert_eq!((status, provider.take_refusals().len()), (400, 1));
}

#[tokio::test]
async fn requests_are_kept_byte_for_byte() {
    let provider = provider().await;
    let raw = "{ \"max_tokens\":9,\"model\" : \"m\", \"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    let call = messages_call(&provider, &json!(null)).body(raw);
    send_ok(call).await;
    send_ok(chat_call(&provider, &chat_request())).await;
    let requests = provider.wait_for_requests(2).await;
    assert_eq!(requests[0].raw, raw.as_bytes());
    assert_eq!(requests[0].body["model"], "m");
    assert_eq!((requests[0].wire, requests[1].wire), (Wire::AnthropicMessages, Wire::OpenAiChat));
    assert_eq!((requests[0].api_key(), requests[1].api_key()), (Some("key"), Some("key")));
    assert_eq!(requests[0].header("Anthropic-Version"), Some("2023-06-01"));
}

#[tokio::test]
async fn replies_are_given_in_order_and_not_to_refused_requests() {
    let provider = provider().await;
    provider.enqueue_all([Reply::from_text("first"), Reply::from_text("second")]);
    send_json(messages_call(&provider, &json!({}))).await;
    provider.take_refusals();
    for (expected, pending) in [("first", 1), ("second", 0), ("hi", 0)] {
        let answer = send_ok(messages_call(&provider, &messages_request())).await;
        assert_eq!(answer["content"][0]["text"], expected);
        assert_eq!(provider.pending_replies(), pending);
    }
}

#[tokio::test]
async fn a_body_that_is_no_json_and_an_unknown_path_are_refused() {
    let provider = provider().await;
    let (status, body) = send_json(messages_call(&provider, &json!(null)).body("{")).await;
    assert_eq!((status, &body["error"]["type"]), (400, &json!("invalid_request_error")));
    assert_eq!(send_json(chat_call(&provider, &json!(null)).body("{")).await.0, 400);
    let unknown = Client::new().get(format!("{}/v1/messages", provider.base_url())).send().await.unwrap();
    assert_eq!(unknown.status(), 404);
    let reasons: Vec<String> = provider.take_refusals().into_iter().map(|refusal| refusal.reason).collect();
    assert_eq!(reasons.len(), 3);
    assert_eq!(reasons[2], "no wire has GET /v1/messages");
}

#[tokio::test]
async fn a_request_of_more_than_the_vendors_limit_is_refused() {
    let provider = provider().await;
    let body = vec![b' '; 33 * 1024 * 1024];
    let (status, body) = send_json(messages_call(&provider, &json!(null)).body(body)).await;
    assert_eq!((status, &body["error"]["type"]), (413, &json!("request_too_large")));
    assert_eq!(provider.take_refusals().len(), 1);
}

#[tokio::test]
async fn requests_can_be_forgotten() {
    let provider = provider().await;
    send_ok(messages_call(&provider, &messages_request())).await;
    provider.clear_requests();
    send_ok(chat_call(&provider, &chat_request())).await;
    assert_eq!(provider.wait_for_requests(2).await.len(), 1);
}

#[tokio::test]
async fn dropping_a_provider_with_refusals_fails_the_test() {
    let guarded = provider().await;
    send_json(messages_call(&guarded, &json!({}))).await;
    let panic = std::panic::catch_unwind(AssertUnwindSafe(|| drop(guarded))).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("refused 1 request(s)") && message.contains("400 "), "{message}");

    let unguarded = MockProvider::builder().panic_on_refusals(false).start().await.unwrap();
    send_json(messages_call(&unguarded, &json!({}))).await;
    drop(unguarded);
}

#[tokio::test]
async fn a_dropped_provider_answers_no_more() {
    let provider = provider().await;
    let call = messages_call(&provider, &messages_request());
    drop(provider);
    assert!(call.send().await.is_err());
}

#[tokio::test]
async fn a_long_stream_is_one_piece() {
    let provider = provider().await;
    provider.set_default_reply(Reply::from_text("word ".repeat(2000)).deltas(2000));
    for call in [messages_call(&provider, &with_members(messages_request(), json!({"stream": true})))] {
        let (text, ended) = send_stream(call).await;
        assert!(ended);
        assert_eq!(text.matches("text_delta").count(), 2000);
    }
}

/// A running process, which is killed when the test ends.
struct Process(std::process::Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn the_process_is_scripted_through_its_control_endpoint() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_mock-llm"))
        .args(["--port", "0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    let _process = Process(child);
    let mut base = String::new();
    BufReader::new(stdout).read_line(&mut base).unwrap();
    let base = base.trim();

    let script = json!([
        {"blocks": [{"type": "text", "text": "scripted"}], "chunking": {"chars": 2}, "usage": {"output": 7}},
        {"fault": {"kind": "refuse", "refusal": {"reason": "rate_limited", "retry_after_s": 3}}},
    ]);
    let control = |body: Value| Client::new().post(format!("{base}/control/replies")).json(&body).send();
    assert_eq!(control(script).await.unwrap().status(), 204);
    assert_eq!(control(json!({"blocks": [{"type": "song"}]})).await.unwrap().status(), 400);

    let call = || {
        let call = Client::new().post(format!("{base}/v1/messages")).header("x-api-key", "key");
        call.header("anthropic-version", "2023-06-01").json(&messages_request())
    };
    let answer = send_ok(call()).await;
    assert_eq!(
        (&answer["content"][0]["text"], &answer["usage"]["output_tokens"]),
        (&json!("scripted"), &json!(7))
    );
    assert_eq!(send_json(call()).await.0, 429);
    let records: Value =
        Client::new().get(format!("{base}/control/requests")).send().await.unwrap().json().await.unwrap();
    assert_eq!(records["requests"].as_array().unwrap().len(), 2);
    assert_eq!(records["requests"][0]["body"], messages_request());
    assert_eq!((&records["refusals"], &records["pending_replies"]), (&json!([]), &json!(0)));
}
