//! The answers of the Anthropic wire, streamed and complete.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use common::{events, messages_call, messages_request, provider, send_ok, send_stream, with_members};
use mock_llm::{Reply, Stop, Usage};
use serde_json::{Value, json};

fn thinking_request() -> Value {
    with_members(messages_request(), json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}))
}

/// An answer with every kind of block.
fn rich_reply() -> Reply {
    Reply::new()
        .thinking("Let me see.")
        .redacted_thinking()
        .text("I will look.")
        .tool_use("look", json!({"at": "sky"}))
        .deltas(2)
        .usage(Usage {
            input: Some(10),
            output: Some(20),
            cache_read: 3,
            cache_write: 4,
            reasoning: Some(5),
            withheld: false,
        })
}

#[tokio::test]
async fn a_stream_has_the_documented_events() {
    let provider = provider().await;
    provider.enqueue(rich_reply());
    let body = with_members(thinking_request(), json!({"stream": true}));
    let (text, ended) = send_stream(messages_call(&provider, &body)).await;
    assert!(ended);
    let events = events(&text);

    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let block = |deltas| {
        let mut names = vec!["content_block_start"];
        names.extend(vec!["content_block_delta"; deltas]);
        names.push("content_block_stop");
        names
    };
    let mut expected = vec!["message_start"];
    expected.extend(block(3));
    expected.insert(2, "ping");
    expected.extend(block(0));
    expected.extend(block(2));
    expected.extend(block(3));
    expected.extend(["message_delta", "message_stop"]);
    assert_eq!(names, expected);
    for (name, data) in &events {
        assert_eq!(data["type"], name.as_str());
    }

    let start = &events[0].1["message"];
    assert_eq!(start["content"], json!([]));
    assert_eq!(start["stop_reason"], Value::Null);
    assert_eq!(start["usage"]["input_tokens"], 10);
    assert_eq!(start["usage"]["cache_read_input_tokens"], 3);
    assert_eq!(start["usage"]["cache_creation_input_tokens"], 4);
    let end = &events[events.len() - 2].1;
    assert_eq!(end["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
    assert_eq!(end["usage"]["output_tokens"], 20);
    assert_eq!(end["usage"]["output_tokens_details"]["thinking_tokens"], 5);
}

#[tokio::test]
async fn the_deltas_of_a_stream_add_up_to_the_whole_message() {
    let provider = provider().await;
    provider.enqueue(rich_reply().chars_per_delta(3));
    provider.enqueue(rich_reply());
    let body = with_members(thinking_request(), json!({"stream": true}));
    let (text, _) = send_stream(messages_call(&provider, &body)).await;
    let answer = send_ok(messages_call(&provider, &thinking_request())).await;

    let mut blocks: Vec<Value> = Vec::new();
    let mut input = String::new();
    for (name, data) in events(&text) {
        match name.as_str() {
            "content_block_start" => blocks.push(data["content_block"].clone()),
            "content_block_delta" => {
                let block = blocks.last_mut().unwrap();
                for member in ["text", "thinking", "signature"] {
                    if let Some(part) = data["delta"][member].as_str() {
                        block[member] = (block[member].as_str().unwrap().to_owned() + part).into();
                    }
                }
                input.push_str(data["delta"]["partial_json"].as_str().unwrap_or_default());
            }
            _ => {}
        }
    }
    blocks[3]["input"] = serde_json::from_str(&input).unwrap();
    let content = answer["content"].as_array().unwrap();
    let without_ids = |blocks: &[Value]| {
        let mut blocks = blocks.to_vec();
        for (block, member) in [(0, "signature"), (1, "data"), (3, "id")] {
            assert!(!blocks[block][member].as_str().unwrap().is_empty());
            blocks[block][member] = "".into();
        }
        blocks
    };
    assert_eq!(without_ids(&blocks), without_ids(content));
    assert_ne!(blocks[0]["signature"], content[0]["signature"], "each answer has its own signature");
    assert_ne!(blocks[3]["id"], content[3]["id"]);
    assert_eq!(answer["stop_reason"], "tool_use");
    assert_eq!(answer["usage"]["output_tokens"], 20);
}

#[tokio::test]
async fn an_empty_script_answers_with_an_echo() {
    let provider = provider().await;
    let answer = send_ok(messages_call(&provider, &messages_request())).await;
    assert_eq!(answer["content"], json!([{"type": "text", "text": "hi"}]));
    assert_eq!(answer["stop_reason"], "end_turn");
}

#[tokio::test]
async fn thinking_is_shown_as_the_request_asks() {
    let provider = provider().await;
    provider.set_default_reply(Reply::new().thinking("Hm.").text("Yes."));
    let cases = [
        (json!({}), None),
        (json!({"thinking": {"type": "disabled"}}), None),
        (json!({"thinking": {"type": "adaptive"}}), Some("Hm.")),
        (json!({"thinking": {"type": "adaptive", "display": "omitted"}}), Some("")),
    ];
    for (changes, expected) in cases {
        let answer =
            send_ok(messages_call(&provider, &with_members(messages_request(), changes.clone()))).await;
        assert_eq!(answer["content"][0]["thinking"].as_str(), expected, "{changes}");
    }
}

#[tokio::test]
async fn a_call_can_be_cut_by_the_output_limit() {
    let provider = provider().await;
    provider.enqueue(Reply::new().truncated_tool_use("look", "{\"at\": \"sk").stop(Stop::MaxTokens));
    let body = with_members(messages_request(), json!({"stream": true}));
    let (text, _) = send_stream(messages_call(&provider, &body)).await;
    let parts: String = events(&text)
        .iter()
        .filter_map(|(_, data)| data["delta"]["partial_json"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(parts, "{\"at\": \"sk");
    assert!(text.contains("\"stop_reason\":\"max_tokens\""));
}
