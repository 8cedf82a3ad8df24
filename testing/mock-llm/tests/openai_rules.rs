//! The rules of the Chat Completions wire: each rule is violated once, and the error must be the vendor's. Unusual
//! but valid requests must be accepted.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use common::{chat_call, chat_request, provider, send_json, send_ok, with_members};
use serde_json::{Value, json};

fn call(id: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "look", "arguments": "{}"}})
}

fn calls(ids: &[&str]) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": ids.iter().map(|id| call(id)).collect::<Vec<_>>()})
}

fn result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "done"})
}

fn user(content: impl Into<Value>) -> Value {
    json!({"role": "user", "content": content.into()})
}

/// A conversation that begins with the user.
fn messages(rest: &[Value]) -> Value {
    let mut messages = vec![user("hi")];
    messages.extend_from_slice(rest);
    json!({"messages": messages})
}

fn tool(name: &str, parameters: impl Into<Value>) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters.into()}})
}

/// Sends each request, and expects a 400 with this parameter whose message contains the words.
async fn assert_refused(cases: Vec<(Value, &str, &str)>) {
    let provider = provider().await;
    for (changes, param, words) in cases {
        let (status, body) =
            send_json(chat_call(&provider, &with_members(chat_request(), changes.clone()))).await;
        let error = &body["error"];
        let message = error["message"].as_str().unwrap_or_default();
        assert_eq!((status, &error["type"]), (400, &json!("invalid_request_error")), "{changes} {body}");
        assert!(message.contains(words), "{changes}\n is refused with {message}\n and not with {words}");
        assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{changes}");
        assert_eq!(provider.take_refusals().len(), 1);
    }
}

async fn assert_accepted(cases: Vec<Value>) {
    let provider = provider().await;
    for changes in cases {
        send_ok(chat_call(&provider, &with_members(chat_request(), changes))).await;
    }
}

#[tokio::test]
async fn parameters() {
    let both = json!({"max_tokens": 1, "max_completion_tokens": 1});
    assert_refused(vec![
        (json!({"model": null}), "", "you must provide a model parameter"),
        (json!({"messages": null}), "messages", "Missing required parameter: 'messages'."),
        (json!({"messages": []}), "messages", "Invalid 'messages': empty array."),
        (json!({"mystery": 1}), "", "Unrecognized request argument supplied: mystery"),
        (json!({"a": 1, "b": 1}), "", "Unrecognized request arguments supplied: a, b"),
        (json!({"stream_options": {}}), "stream_options", "only allowed when 'stream' is enabled"),
        (json!({"stream": true, "stream_options": {"x": 1}}), "stream_options.x", "Unknown parameter"),
        (
            both,
            "max_tokens",
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
        ),
        (json!({"max_tokens": 0}), "max_tokens", "integer below minimum value"),
        (
            json!({"reasoning_effort": "huge"}),
            "reasoning_effort",
            "Invalid value: 'huge'. Supported values are:",
        ),
        (
            json!({"temperature": 3}),
            "temperature",
            "decimal above maximum value. Expected a value <= 2, but got 3",
        ),
        (json!({"temperature": "hot"}), "temperature", "expected a decimal, but got a string instead"),
        (
            json!({"model": "gpt-5-mini", "max_tokens": 9}),
            "max_tokens",
            "Use 'max_completion_tokens' instead.",
        ),
        (
            json!({"model": "o3", "temperature": 0.5}),
            "temperature",
            "Only the default (1) value is supported.",
        ),
    ])
    .await;
    assert_accepted(vec![
        json!({"max_tokens": 9, "temperature": 0.5, "stop": ["x"], "user": "u", "seed": 1}),
        json!({"model": "gpt-5-mini", "max_completion_tokens": 9, "reasoning_effort": "low", "temperature": 1}),
    ])
    .await;
}

#[tokio::test]
async fn message_contents() {
    let part = |part: Value| json!({"messages": [user(json!([part]))]});
    let image = |url: &str| part(json!({"type": "image_url", "image_url": {"url": url}}));
    let url = "messages[0].content[0].image_url.url";
    let sound = |model: &str, audio: Value| {
        let content = json!([{"type": "input_audio", "input_audio": audio}]);
        json!({"model": model, "messages": [user(content)]})
    };
    let sound_data = "messages[0].content[0].input_audio.data";
    let mut object_arguments = call("a");
    object_arguments["function"]["arguments"] = json!({});
    let mut spaced_name = call("a");
    spaced_name["function"]["name"] = json!("a b");
    let calling = |call: Value| messages(&[json!({"role": "assistant", "tool_calls": [call]}), result("a")]);
    assert_refused(vec![
        (
            json!({"messages": [{"role": "robot", "content": "hi"}]}),
            "messages[0].role",
            "Invalid value: 'robot'.",
        ),
        (json!({"messages": [user(Value::Null)]}), "messages.[0].content", "expected a string, got null"),
        (messages(&[json!({"role": "assistant"})]), "messages.[1].content", "expected a string, got null"),
        (part(json!({"type": "video"})), "messages[0].content[0].type", "Invalid value: 'video'."),
        (image("data:image/bmp;base64,QUJD"), url, "You uploaded an unsupported image"),
        (image("data:image/png;base64,!"), url, "You uploaded an unsupported image"),
        (
            sound("gpt-audio", json!({"data": "UklGRgAAAABXQVZF", "format": "ogg"})),
            "messages[0].content[0].input_audio.format",
            "Invalid value: 'ogg'",
        ),
        (
            sound("gpt-audio", json!({"data": "UklGRgAAAABXQVZF"})),
            "messages[0].content[0].input_audio.format",
            "Missing required parameter",
        ),
        (
            sound("gpt-audio", json!({"data": "UklGRgAAAABXQVZF", "format": "wav", "name": "a"})),
            "messages[0].content[0].input_audio.name",
            "Unknown parameter",
        ),
        (sound("gpt-audio", json!({"data": "%", "format": "wav"})), sound_data, "could not be decoded"),
        (sound("gpt-audio", json!({"data": "SUQz", "format": "wav"})), sound_data, "could not be decoded"),
        (sound("gpt-audio", json!({"data": "", "format": "mp3"})), sound_data, "could not be decoded"),
        (
            sound("gpt-4o", json!({"data": "SUQz", "format": "mp3"})),
            "messages[0].content[0]",
            "expected to be either text or image_url type",
        ),
        (
            json!({"model": "gpt-audio", "messages": [user("hi")]}),
            "model",
            "requires that either input content or output modality contain audio",
        ),
        (
            calling(object_arguments),
            "messages[1].tool_calls[0].function.arguments",
            "expected a string, but got an object instead",
        ),
        (calling(spaced_name), "messages[1].tool_calls[0].function.name", "string does not match pattern"),
        (messages(&[calls(&[])]), "messages[1].tool_calls", "empty array"),
        (
            json!({"messages": [{"role": "user", "content": "hi", "id": 1}]}),
            "messages[0].id",
            "Unknown parameter",
        ),
        (
            messages(&[json!({"role": "assistant", "content": "x", "reasoning_content": "y"})]),
            "messages[1].reasoning_content",
            "Unknown parameter",
        ),
    ])
    .await;
    assert_accepted(vec![
        image("data:image/png;base64,QUJD"),
        image("https://example.com/a.png"),
        sound("gpt-4o-audio-preview", json!({"data": "UklGRgAAAABXQVZF", "format": "wav"})),
        sound("gpt-audio", json!({"data": "//uQAA==", "format": "mp3"})),
        messages(&[json!({"role": "assistant", "content": null, "refusal": "No."}), user("why")]),
        json!({"messages": [{"role": "developer", "content": "Be kind."}, user("hi")]}),
    ])
    .await;
}

#[tokio::test]
async fn calls_and_results() {
    let unanswered = "The following tool_call_ids did not have response messages: ";
    let unexpected =
        "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.";
    assert_refused(vec![
        (messages(&[calls(&["a"])]), "messages", unanswered),
        (messages(&[calls(&["a"]), user("no")]), "messages.[2].role", unanswered),
        (messages(&[calls(&["a", "b"]), result("a"), user("on")]), "messages.[3].role", "messages: b"),
        (messages(&[result("a")]), "messages.[1].role", unexpected),
        (messages(&[calls(&["a"]), result("b")]), "messages.[2].role", unexpected),
        (messages(&[calls(&["a"]), result("a"), result("a")]), "messages.[3].role", unexpected),
        (messages(&[calls(&["a"]), result("a"), user("on"), result("a")]), "messages.[4].role", unexpected),
    ])
    .await;
    assert_accepted(vec![
        messages(&[calls(&["a", "b"]), result("b"), result("a")]),
        messages(&[calls(&["a"]), result("a"), calls(&["a"]), result("a"), user("on")]),
    ])
    .await;
}

#[tokio::test]
async fn tools() {
    let object = || json!({"type": "object"});
    let one = |tool: Value| json!({"tools": [tool]});
    let strict = |parameters: Value| {
        let mut tool = tool("look", parameters);
        tool["function"]["strict"] = json!(true);
        one(tool)
    };
    let name = "tools[0].function.name";
    let parameters = "tools[0].function.parameters";
    let closed =
        json!({"type": "object", "additionalProperties": false, "properties": {"x": {"type": "string"}}});
    assert_refused(vec![
        (json!({"tools": []}), "tools", "Invalid 'tools': empty array."),
        (one(json!({"type": "function"})), "tools[0].function", "Missing required parameter"),
        (one(tool("a.b", object())), name, "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."),
        (one(tool(&"x".repeat(65), object())), name, "Expected a string with maximum length 64"),
        (one(tool("a", json!({"type": "array"}))), parameters, "got 'type: \"array\"'"),
        (one(tool("a", json!({"properties": {}}))), parameters, "got 'type: \"None\"'"),
        (strict(object()), parameters, "'additionalProperties' is required to be supplied and to be false"),
        (strict(closed.clone()), parameters, "Missing 'x'."),
        (json!({"tool_choice": "auto"}), "tool_choice", "is only allowed when 'tools' are specified"),
        (
            json!({"parallel_tool_calls": true}),
            "parallel_tool_calls",
            "is only allowed when 'tools' are specified",
        ),
        (
            with_members(
                one(tool("a", object())),
                json!({"tool_choice": {"type": "function", "function": {"name": "b"}}}),
            ),
            "tool_choice",
            "Tool choice 'b' not found in 'tools' parameter.",
        ),
    ])
    .await;
    assert_accepted(vec![
        one(tool("look", closed.clone())),
        strict(with_members(closed, json!({"required": ["x"]}))),
        with_members(
            one(json!({"type": "function", "function": {"name": "a"}})),
            json!({"tool_choice": "required"}),
        ),
    ])
    .await;
}
