//! The answers of the Chat Completions wire, streamed and complete.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use common::{chat_call, chat_request, events, provider, send_ok, send_stream, with_members};
use mock_llm::{MockProvider, Reply, Stop, Usage};
use serde_json::{Value, json};

fn rich_reply() -> Reply {
    Reply::new()
        .thinking("Hidden.")
        .text("I will look.")
        .tool_use_with_id("call_a", "look", json!({"at": "sky"}))
        .tool_use_with_id("call_b", "wait", Value::Null)
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
async fn a_stream_has_the_documented_chunks() {
    let provider = provider().await;
    provider.enqueue(rich_reply());
    let body = with_members(chat_request(), json!({"stream": true}));
    let (text, ended) = send_stream(chat_call(&provider, &body)).await;
    assert!(ended);
    let events = events(&text);
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(done.1, "[DONE]");
    for (name, chunk) in chunks {
        assert_eq!(name, "");
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk.get("usage"), None, "usage is reported only on request");
    }
    let deltas: Vec<&Value> = chunks.iter().map(|(_, chunk)| &chunk["choices"][0]["delta"]).collect();
    let call = |index: usize, id: &str, name: &str| {
        let function = json!({"name": name, "arguments": ""});
        json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
    };
    let arguments =
        |index: usize, text: &str| json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]});
    let expected = [
        json!({"role": "assistant", "content": "", "refusal": null}),
        json!({"content": "I will"}),
        json!({"content": " look."}),
        call(0, "call_a", "look"),
        arguments(0, "{\"at\":"),
        arguments(0, "\"sky\"}"),
        call(1, "call_b", "wait"),
        arguments(1, "{"),
        arguments(1, "}"),
        json!({}),
    ];
    assert_eq!(deltas, expected.iter().collect::<Vec<_>>());
    let finish_reasons: Vec<&Value> =
        chunks.iter().map(|(_, chunk)| &chunk["choices"][0]["finish_reason"]).collect();
    assert_eq!(finish_reasons.last().unwrap(), &&json!("tool_calls"));
    assert!(finish_reasons.iter().rev().skip(1).all(|reason| reason.is_null()));
}

#[tokio::test]
async fn usage_comes_in_a_chunk_of_its_own_when_asked_for() {
    let provider = provider().await;
    provider.enqueue(rich_reply());
    let body =
        with_members(chat_request(), json!({"stream": true, "stream_options": {"include_usage": true}}));
    let (text, _) = send_stream(chat_call(&provider, &body)).await;
    let events = events(&text);
    let (usage, others) = events[..events.len() - 1].split_last().unwrap();
    assert_eq!(usage.1["choices"], json!([]));
    let counts = &usage.1["usage"];
    assert_eq!(counts["prompt_tokens"], 13, "on this wire, the prompt includes cached tokens");
    assert_eq!(counts["total_tokens"], 33);
    assert_eq!(counts["prompt_tokens_details"]["cached_tokens"], 3);
    assert_eq!(counts["completion_tokens_details"]["reasoning_tokens"], 5);
    assert!(others.iter().all(|(_, chunk)| chunk.get("usage") == Some(&Value::Null)));
}

#[tokio::test]
async fn a_whole_completion_has_content_and_calls() {
    let provider = provider().await;
    provider.enqueue(rich_reply());
    provider.enqueue(Reply::from_text("cut").stop(Stop::MaxTokens));
    let answer = send_ok(chat_call(&provider, &chat_request())).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "I will look.");
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"at\":\"sky\"}");
    assert_eq!(choice["message"]["tool_calls"][1]["function"]["arguments"], "{}");
    assert_eq!(choice["message"].get("reasoning_content"), None);
    assert_eq!(answer["usage"]["prompt_tokens"], 13);
    let cut = send_ok(chat_call(&provider, &chat_request())).await;
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn reasoning_content_is_an_extension_to_be_switched_on() {
    let provider = MockProvider::builder().reasoning_content(true).start().await.unwrap();
    provider.set_default_reply(Reply::new().thinking("Hm.").text("Yes."));
    let answer = send_ok(chat_call(&provider, &chat_request())).await;
    assert_eq!(answer["choices"][0]["message"]["reasoning_content"], "Hm.");
    let (text, _) =
        send_stream(chat_call(&provider, &with_members(chat_request(), json!({"stream": true})))).await;
    assert!(text.contains("\"reasoning_content\":\"Hm.\""));
    let returned = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."},
        {"role": "user", "content": "hi"},
    ]);
    send_ok(chat_call(&provider, &with_members(chat_request(), json!({"messages": returned})))).await;
}
