//! The positions of the breakpoints, and their effect on a cache that follows the vendor's documentation.

use futures::StreamExt as _;
use mock_llm::{MockProvider, Reply};
use pretty_assertions::assert_eq;
use secrecy::SecretString;

use super::*;
use crate::anthropic::Anthropic;
use crate::profile::ModelProfile;
use crate::{Answer, ChatModel as _, Message, Request, StreamEvent, ToolReply, ToolSpec};

/// A message with blocks of these types.
fn message(role: &str, kinds: &[&str]) -> Value {
    let blocks: Value = kinds.iter().map(|kind| json!({"type": kind})).collect();
    json!({"role": role, "content": blocks})
}

/// The indices of the blocks with breakpoints.
fn marked(mut messages: Vec<Value>) -> Vec<usize> {
    set_breakpoints(&mut messages);
    let blocks = messages.iter().flat_map(|message| message["content"].as_array().unwrap());
    let marks =
        blocks.enumerate().filter(|(_, block)| block["cache_control"] == json!({"type": "ephemeral"}));
    marks.map(|(at, _)| at).collect()
}

#[test]
fn the_last_two_ends_of_the_users_messages_are_marked() {
    assert!(marked(vec![]).is_empty());
    assert_eq!(marked(vec![message("user", &["text", "image"])]), [1]);
    let answer = message("assistant", &["thinking", "text", "tool_use"]);
    let conversation = vec![
        message("user", &["text"]),
        answer.clone(),
        message("user", &["tool_result"]),
        answer,
        message("user", &["tool_result", "text"]),
    ];
    assert_eq!(marked(conversation), [4, 9]);
}

#[test]
fn a_step_of_many_blocks_is_marked_in_between_but_never_on_reasoning() {
    let step = |calls: usize, results: usize| {
        let blocks = |kind: &'static str, count: usize| vec![kind; count];
        vec![
            message("user", &["text"]),
            message("assistant", &blocks("tool_use", calls)),
            message("user", &blocks("tool_result", results)),
        ]
    };
    assert_eq!(marked(step(9, 9)), [0, 18]);
    assert_eq!(marked(step(10, 9)), [0, 1, 19]);
    assert_eq!(marked(step(30, 30)), [0, 42, 60]);
    // Reasoning at the position of the breakpoint, and before it.
    let mut kinds = vec!["thinking"];
    kinds.extend(["tool_use", "thinking", "redacted_thinking"]);
    let far =
        vec![message("user", &["text"]), message("assistant", &kinds), message("user", &["tool_result"; 18])];
    assert_eq!(marked(far), [0, 2, 22]);
    let only_reasoning = vec![
        message("user", &["text"]),
        message("assistant", &["thinking"; 5]),
        message("user", &["text"; 18]),
    ];
    assert_eq!(marked(only_reasoning), [0, 23]);
}

/// Calls a model with a system prompt that is long enough to be cached.
async fn ask(model: &Anthropic, messages: &[Message]) -> Answer {
    let input_schema = json!({"type": "object", "properties": {}});
    let tools = [ToolSpec { name: "look".into(), description: "Looks.".into(), input_schema }.into()];
    let request = Request {
        system: &"Be brief. ".repeat(1_000),
        messages,
        tools: &tools,
        thinking: true,
        effort: None,
        max_output: None,
        allow_tool_calls: true,
        output: None,
        cache_key: "t",
    };
    match model.stream(&request).collect::<Vec<_>>().await.pop() {
        Some(Ok(StreamEvent::Done(answer))) => answer,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_request_finds_all_that_the_one_before_had() {
    let provider = MockProvider::builder().track_cache(true).start().await.unwrap();
    let model =
        Anthropic::new(&provider.base_url(), ModelProfile::for_tests("m"), Some(SecretString::from("sk-1")));
    let mut messages = vec![Message::user("hi")];
    // Steps with one call, and with more blocks than the provider's lookback.
    for calls in [1, 1, 30, 2, 12, 1] {
        let mut reply = Reply::new().thinking("Hm.");
        for _ in 0..calls {
            reply = reply.text("So:").tool_use("look", json!({}));
        }
        provider.enqueue(reply);
        let answer = ask(&model, &messages).await;
        let results = answer.calls().map(|call| ToolReply {
            provider_id: call.provider_id.clone(),
            text: "green ".repeat(100),
            remarks: Vec::new(),
            is_error: false,
        });
        let results = Message::Results(results.collect());
        messages.extend([Message::Assistant { model: "m".into(), blocks: answer.blocks }, results]);
    }
    let stats = provider.cache_stats();
    assert_eq!(stats.requests.len(), 6);
    for pair in stats.requests.windows(2) {
        assert_eq!(pair[1].read, pair[0].read + pair[0].written, "{stats:#?}");
        assert!(pair[1].written > 0, "{stats:#?}");
    }
    provider.assert_no_refusals();
}
