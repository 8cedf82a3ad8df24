//! What the tests share: requests that every rule accepts, and a plain HTTP client.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]
#![allow(dead_code, reason = "each test file uses a part of this")]

use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use strict_provider::StrictProvider;

/// Starts a provider.
pub(crate) async fn provider() -> StrictProvider {
    StrictProvider::start().await.unwrap()
}

/// A Messages request of one user message.
pub(crate) fn messages_request() -> Value {
    json!({"model": "claude-test", "max_tokens": 2048, "messages": [{"role": "user", "content": "hi"}]})
}

/// A Chat Completions request of one user message.
pub(crate) fn chat_request() -> Value {
    json!({"model": "gpt-test", "messages": [{"role": "user", "content": "hi"}]})
}

/// `body` with other members set; null removes one.
pub(crate) fn with(mut body: Value, changes: Value) -> Value {
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

/// A call of the Messages API with its headers.
pub(crate) fn messages_call(provider: &StrictProvider, body: &Value) -> RequestBuilder {
    versioned_messages_call(provider, body, "2023-06-01")
}

/// A call of the Messages API in a version of it.
pub(crate) fn versioned_messages_call(
    provider: &StrictProvider,
    body: &Value,
    version: &str,
) -> RequestBuilder {
    Client::new()
        .post(format!("{}/v1/messages", provider.base_url()))
        .header("x-api-key", "key")
        .header("anthropic-version", version)
        .json(body)
}

/// A call of Chat Completions with its headers.
pub(crate) fn chat_call(provider: &StrictProvider, body: &Value) -> RequestBuilder {
    Client::new()
        .post(format!("{}/chat/completions", provider.openai_base_url()))
        .bearer_auth("key")
        .json(body)
}

/// The status and the JSON body of an answer.
pub(crate) async fn answer(call: RequestBuilder) -> (u16, Value) {
    let response = call.send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap())
}

/// The JSON of an answer that must be a success.
pub(crate) async fn success(call: RequestBuilder) -> Value {
    let (status, body) = answer(call).await;
    assert_eq!(status, 200, "{body}");
    body
}

/// What came of a stream, and whether it ended as HTTP says.
pub(crate) async fn stream(call: RequestBuilder) -> (String, bool) {
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
        let bytes = response.chunk().await.unwrap().expect("the stream goes on");
        text.push_str(std::str::from_utf8(&bytes).unwrap());
    }
    text
}

/// The events of a stream as name (empty when there is none) and data.
pub(crate) fn events(stream: &str) -> Vec<(String, Value)> {
    let event = |block: &str| {
        let line = |prefix| block.lines().find_map(|line| line.strip_prefix(prefix)).unwrap_or_default();
        let data = line("data: ");
        (line("event: ").to_owned(), serde_json::from_str(data).unwrap_or_else(|_| data.into()))
    };
    stream.split("\n\n").filter(|block| !block.is_empty()).map(event).collect()
}
