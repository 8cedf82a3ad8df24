//! The rules of the Ollama wire, and its answers, streamed and complete.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use common::{lines, ollama_call, ollama_request, provider, send_json, send_ok, send_stream, with_members};
use mock_llm::{Fault, MockProvider, Reply, Stop, Usage};
use serde_json::{Value, json};

fn messages(rest: &[Value]) -> Value {
    let mut all = vec![json!({"role": "user", "content": "hi"})];
    all.extend_from_slice(rest);
    json!({"messages": all})
}

fn call(arguments: impl Into<Value>) -> Value {
    let arguments = arguments.into();
    json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": arguments}}]})
}

#[tokio::test]
async fn rules() {
    let provider =
        MockProvider::builder().ollama_models(["qwen3", "llama3.2", "gpt-oss"]).start().await.unwrap();
    let cases = [
        (json!({"model": null}), 400, "model is required"),
        (json!({"model": "other"}), 404, "model \"other\" not found, try pulling it first"),
        (json!({"model": "llama3.2", "think": true}), 400, "\"llama3.2\" does not support thinking"),
        (json!({"think": "high"}), 400, "think value \"high\" is not supported for this model"),
        (json!({"think": "some"}), 400, "invalid think value: \"some\""),
        (json!({"options": {"num_ctx": "8k"}}), 400, "option \"num_ctx\" must be of type integer"),
        (
            json!({"messages": {}}),
            400,
            "json: cannot unmarshal object into Go struct field ChatRequest.messages",
        ),
        (messages(&[json!({"role": "robot", "content": "hi"})]), 400, "invalid role: robot"),
        (messages(&[json!({"role": "user", "content": []})]), 400, "cannot unmarshal array"),
        (messages(&[json!({"role": "user", "images": ["%"]})]), 400, "illegal base64 data"),
        (
            messages(&[call("{\"at\":\"sky\"}")]),
            400,
            "json: cannot unmarshal string into Go struct field ChatRequest.messages.tool_calls.function.arguments",
        ),
        (json!({"tools": [{"type": "function", "name": "look"}]}), 400, "ChatRequest.tools.function"),
    ];
    let count = cases.len();
    for (changes, expected, words) in cases {
        let (status, body) =
            send_json(ollama_call(&provider, &with_members(ollama_request(), changes.clone()))).await;
        let error = body["error"].as_str().unwrap_or_default();
        assert!(
            status == expected && error.contains(words),
            "{changes}\n gives {status} {body}\n and not {words}"
        );
    }
    assert_eq!(provider.take_refusals().len(), count);
    let result = json!({"role": "tool", "tool_name": "look", "content": "blue"});
    let image = json!({"role": "user", "content": "and this?", "images": ["iVBORw0KGgo="]});
    for changes in [
        messages(&[call(json!({"at": "sky"})), result, image]),
        json!({"model": "llama3.2", "think": false, "options": {"num_ctx": 8192, "temperature": 0.5}}),
        json!({"model": "gpt-oss", "think": "high"}),
        // The server ignores unknown members.
        json!({"colour": "red"}),
    ] {
        send_ok(ollama_call(&provider, &with_members(ollama_request(), changes))).await;
    }
}

#[tokio::test]
async fn only_the_cloud_asks_for_a_key() {
    let cloud = MockProvider::builder().api_key("right").start().await.unwrap();
    let (status, body) = send_json(ollama_call(&cloud, &ollama_request())).await;
    assert_eq!((status, body), (401, json!({"error": "unauthorized"})));
    cloud.take_refusals();
    send_ok(ollama_call(&cloud, &ollama_request()).bearer_auth("right")).await;
    send_ok(ollama_call(&provider().await, &ollama_request())).await;
}

fn rich_reply() -> Reply {
    Reply::new()
        .thinking("Hmm.")
        .text("I look.")
        .tool_use("look", json!({"at": "sky"}))
        .tool_use("wait", Value::Null)
        .deltas(2)
        .usage(Usage {
            input: Some(10),
            output: Some(20),
            cache_read: 3,
            cache_write: 0,
            reasoning: Some(5),
            withheld: false,
        })
}

#[tokio::test]
async fn a_stream_has_the_documented_lines() {
    let provider = provider().await;
    provider.enqueue_all([rich_reply(), rich_reply()]);
    // Without `stream`, the answer is streamed.
    let body = with_members(ollama_request(), json!({"stream": null}));
    let response = ollama_call(&provider, &body).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let lines = lines(&response.text().await.unwrap());
    let (last, others) = lines.split_last().unwrap();
    assert!(others.iter().all(|line| line["done"] == false));
    let field = |name: &str| -> Vec<&Value> {
        others
            .iter()
            .map(|line| &line["message"][name])
            .filter(|value| !value.is_null() && **value != "")
            .collect()
    };
    assert_eq!(field("thinking"), ["Hm", "m."]);
    assert_eq!(field("content"), ["I lo", "ok."]);
    let arguments: Vec<&Value> =
        field("tool_calls").iter().map(|calls| &calls[0]["function"]["arguments"]).collect();
    assert_eq!(arguments, [&json!({"at": "sky"}), &json!({})]);
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
    assert_eq!((&last["prompt_eval_count"], &last["eval_count"]), (&json!(13), &json!(20)));

    let answer = send_ok(ollama_call(&provider, &ollama_request())).await;
    assert_eq!(
        (&answer["message"]["thinking"], &answer["message"]["content"]),
        (&json!("Hmm."), &json!("I look."))
    );
    assert_eq!(answer["message"]["tool_calls"].as_array().unwrap().len(), 2);
    assert_eq!((&answer["done"], &answer["prompt_eval_count"]), (&json!(true), &json!(13)));
}

#[tokio::test]
async fn thinking_and_limits_are_the_requests_and_the_models() {
    let provider = provider().await;
    provider.set_default_reply(Reply::new().thinking("Hmm.").text("Yes.").stop(Stop::MaxTokens));
    for (changes, shows) in
        [(json!({}), true), (json!({"think": false}), false), (json!({"model": "llama3.2"}), false)]
    {
        let answer = send_ok(ollama_call(&provider, &with_members(ollama_request(), changes.clone()))).await;
        assert_eq!(answer["message"].get("thinking").is_some(), shows, "{changes}");
        assert_eq!(answer["done_reason"], "length");
    }
}

#[tokio::test]
async fn an_error_within_a_stream_is_a_line_and_no_end_mark_no_done() {
    let provider = provider().await;
    let body = with_members(ollama_request(), json!({"stream": true}));
    let digits = || Reply::from_text("0123").chars_per_delta(1);
    provider.enqueue_all([digits().fault(Fault::error_event_after(2)), digits().fault(Fault::NoEndMark)]);
    let (text, ended) = send_stream(ollama_call(&provider, &body)).await;
    let all = lines(&text);
    assert!(ended && all.len() == 3);
    assert_eq!(all[2], json!({"error": "server busy, please try again.  maximum pending requests exceeded"}));
    let (text, ended) = send_stream(ollama_call(&provider, &body)).await;
    let all = lines(&text);
    assert!(ended && all.len() == 4 && all.iter().all(|line| line["done"] == false));
}
