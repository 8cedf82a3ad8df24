//! Helpers that the tests share: valid requests, and a plain HTTP client.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]
#![allow(dead_code, reason = "each test file uses a part of this")]

use mock_llm::MockProvider;
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};

/// Starts a provider with the default settings.
pub(crate) async fn provider() -> MockProvider {
    MockProvider::start().await.unwrap()
}

/// A Messages request with one user message.
pub(crate) fn messages_request() -> Value {
    json!({"model": "claude-test", "max_tokens": 2048, "messages": [{"role": "user", "content": "hi"}]})
}

/// A Chat Completions request with one user message.
pub(crate) fn chat_request() -> Value {
    json!({"model": "gpt-test", "messages": [{"role": "user", "content": "hi"}]})
}

/// A Responses request with one user message, from a client that keeps its own history.
pub(crate) fn responses_request() -> Value {
    json!({
        "model": "gpt-5-test", "store": false, "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"}, "input": [{"role": "user", "content": "hi"}],
    })
}

/// A Gemini request with one user content. The model is in the path.
pub(crate) fn gemini_request() -> Value {
    json!({
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "generationConfig": {"thinkingConfig": {"includeThoughts": true}},
    })
}

/// An Ollama request with one user message.
pub(crate) fn ollama_request() -> Value {
    json!({"model": "qwen3", "stream": false, "messages": [{"role": "user", "content": "hi"}]})
}

/// Returns `body` with these members changed. Null removes a member.
pub(crate) fn with_members(mut body: Value, changes: Value) -> Value {
    let members = body.as_object_mut().unwrap();
    let Value::Object(changes) = changes else { return changes };
    for (name, value) in changes {
        if value.is_null() {
            members.remove(&name);
        } else {
            members.insert(name, value);
        }
    }
    body
}

/// A call of the Messages API with its required headers.
pub(crate) fn messages_call(provider: &MockProvider, body: &Value) -> RequestBuilder {
    versioned_messages_call(provider, body, "2023-06-01")
}

/// A call of a version of the Messages API.
pub(crate) fn versioned_messages_call(
    provider: &MockProvider,
    body: &Value,
    version: &str,
) -> RequestBuilder {
    Client::new()
        .post(format!("{}/v1/messages", provider.base_url()))
        .header("x-api-key", "key")
        .header("anthropic-version", version)
        .json(body)
}

/// A call of Chat Completions with its required headers.
pub(crate) fn chat_call(provider: &MockProvider, body: &Value) -> RequestBuilder {
    Client::new()
        .post(format!("{}/chat/completions", provider.openai_base_url()))
        .bearer_auth("key")
        .json(body)
}

/// A call of Responses with its required headers.
pub(crate) fn responses_call(provider: &MockProvider, body: &Value) -> RequestBuilder {
    Client::new().post(format!("{}/responses", provider.openai_base_url())).bearer_auth("key").json(body)
}

/// A call of one of Gemini's newest models for an answer that is not streamed.
pub(crate) fn gemini_call(provider: &MockProvider, body: &Value) -> RequestBuilder {
    gemini_call_of(provider, "gemini-3-test:generateContent", body)
}

/// A call of one of Gemini's newest models for a stream.
pub(crate) fn gemini_stream_call(provider: &MockProvider, body: &Value) -> RequestBuilder {
    gemini_call_of(provider, "gemini-3-test:streamGenerateContent?alt=sse", body)
}

/// A call of a Gemini model and method.
pub(crate) fn gemini_call_of(provider: &MockProvider, call: &str, body: &Value) -> RequestBuilder {
    Client::new()
        .post(format!("{}/v1beta/models/{call}", provider.gemini_base_url()))
        .header("x-goog-api-key", "key")
        .json(body)
}

/// A call of Ollama, which needs no key.
pub(crate) fn ollama_call(provider: &MockProvider, body: &Value) -> RequestBuilder {
    Client::new().post(format!("{}/api/chat", provider.ollama_base_url())).json(body)
}

/// Sends a call, and returns the status and the JSON body of the response.
pub(crate) async fn send_json(call: RequestBuilder) -> (u16, Value) {
    let response = call.send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap())
}

/// Sends a call that must succeed, and returns the JSON body of the response.
pub(crate) async fn send_ok(call: RequestBuilder) -> Value {
    let (status, body) = send_json(call).await;
    assert_eq!(status, 200, "{body}");
    body
}

/// Sends a call, and returns the text of the stream and whether the HTTP body was complete.
pub(crate) async fn send_stream(call: RequestBuilder) -> (String, bool) {
    let mut response = call.send().await.unwrap();
    assert_eq!(response.status(), 200);
    let mut text = String::new();
    loop {
        match response.chunk().await {
            Ok(Some(bytes)) => text.push_str(std::str::from_utf8(&bytes).unwrap()),
            Ok(None) => return (text, true),
            Err(_) => return (text, false),
        }
    }
}

/// Reads a stream until its text satisfies a condition.
pub(crate) async fn read_until(response: &mut Response, condition: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    while !condition(&text) {
        let bytes = response.chunk().await.unwrap().expect("the stream continues");
        text.push_str(std::str::from_utf8(&bytes).unwrap());
    }
    text
}

/// Parses a stream of JSON lines.
pub(crate) fn lines(stream: &str) -> Vec<Value> {
    stream.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Parses a stream of server-sent events into names, empty if there is none, and data.
pub(crate) fn events(stream: &str) -> Vec<(String, Value)> {
    let event = |block: &str| {
        let line = |prefix| block.lines().find_map(|line| line.strip_prefix(prefix)).unwrap_or_default();
        let data = line("data: ");
        (line("event: ").to_owned(), serde_json::from_str(data).unwrap_or_else(|_| data.into()))
    };
    stream.split("\n\n").filter(|block| !block.is_empty()).map(event).collect()
}
