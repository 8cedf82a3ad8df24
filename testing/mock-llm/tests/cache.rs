//! The simulated prompt caches of the vendors: the numbers of tokens that are read, written, or neither.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use common::{
    chat_call, chat_request, gemini_call, gemini_request, messages_call, messages_request, ollama_call,
    ollama_request, responses_call, responses_request, send_json, send_ok, with_members,
};
use mock_llm::{MockProvider, Reply, RequestCacheStats, Usage, Wire};
use serde_json::{Value, json};

/// The number of wires whose caches need no marks: all but Anthropic's.
const OTHER_WIRES: usize = Wire::COUNT - 1;

async fn tracking_provider() -> MockProvider {
    MockProvider::builder().track_cache(true).start().await.unwrap()
}

/// A text of about this many tokens.
fn text_of_tokens(count: usize) -> String {
    "abcd".repeat(count)
}

fn text(text: impl Into<String>) -> Value {
    json!({"type": "text", "text": text.into()})
}

fn marked(block: Value) -> Value {
    with_members(block, json!({"cache_control": {"type": "ephemeral"}}))
}

fn user(blocks: &[Value]) -> Value {
    json!({"role": "user", "content": blocks})
}

/// Sends a Messages request, and returns the tokens that it read, wrote and paid in full.
async fn send(provider: &MockProvider, changes: Value) -> (u64, u64, u64) {
    let answer = send_ok(messages_call(provider, &with_members(messages_request(), changes))).await;
    let stats = provider.cache_stats().requests.pop().unwrap();
    let RequestCacheStats { input, read, written, .. } = stats;
    let usage = &answer["usage"];
    assert_eq!(usage["input_tokens"], input, "the answer reports the recorded tokens");
    assert_eq!(usage["cache_read_input_tokens"], read);
    assert_eq!(usage["cache_creation_input_tokens"], written);
    (read, written, input)
}

#[tokio::test]
async fn a_mark_writes_a_prefix_and_a_later_request_reads_it() {
    let provider = tracking_provider().await;
    let system = json!([marked(text(text_of_tokens(2000)))]);
    let request = |question: &str| json!({"system": system, "messages": [user(&[text(question)])]});
    let (read, written, input) = send(&provider, request("one?")).await;
    assert!(
        read == 0 && (2000..2050).contains(&written) && (1..50).contains(&input),
        "{read} {written} {input}"
    );
    assert_eq!(send(&provider, request("two?")).await, (written, 0, input));
    // A change before the mark invalidates the whole prefix.
    let other = with_members(request("one?"), json!({"system": [marked(text(text_of_tokens(2001)))]}));
    assert_eq!(send(&provider, other).await.0, 0);
    // Another model has a cache of its own.
    assert_eq!(send(&provider, with_members(request("one?"), json!({"model": "claude-other"}))).await.0, 0);
    assert_eq!(
        send(&provider, with_members(request("one?"), json!({"system": text_of_tokens(2000)}))).await.1,
        0,
        "no mark, no write"
    );
    let account = provider.cache_stats();
    assert_eq!((account.requests.len(), account.read()), (5, written));
    let total = account.input() + account.read() + account.written();
    assert_eq!(account.read_percent(), account.read() * 100 / total);
}

#[tokio::test]
async fn a_growing_conversation_reads_what_it_wrote_though_the_marks_move() {
    let provider = tracking_provider().await;
    let mut messages = vec![user(&[text(text_of_tokens(1500))])];
    let mut known = 0;
    for turn in 0..4 {
        let mut sent = messages.clone();
        let last = sent.last_mut().unwrap();
        last["content"][0] = marked(last["content"][0].clone());
        let (read, written, input) = send(&provider, json!({"messages": sent})).await;
        assert_eq!((read, input), (known, 0), "turn {turn}");
        assert!(written >= 100, "turn {turn}");
        known = read + written;
        messages.push(json!({"role": "assistant", "content": [text("Yes.")]}));
        messages.push(user(&[text(text_of_tokens(200))]));
    }
}

#[tokio::test]
async fn short_prefixes_are_not_cached() {
    let provider = tracking_provider().await;
    for (length, writes) in [(900, false), (1100, true)] {
        let request = json!({"messages": [user(&[marked(text(text_of_tokens(length)))])]});
        assert_eq!(send(&provider, request).await.1 > 0, writes, "{length}");
    }
}

#[tokio::test]
async fn a_mark_looks_back_twenty_places() {
    // If 19 blocks follow the written one, it is at the twentieth position of the lookup. With 20 it is too far
    // away.
    for (more, reads) in [(19, true), (20, false)] {
        let provider = tracking_provider().await;
        let first = text(text_of_tokens(1500));
        send(&provider, json!({"messages": [user(&[marked(first.clone())])]})).await;
        let mut blocks = vec![first];
        blocks.extend((0..more).map(|index| text(format!("block {index}"))));
        let last = blocks.pop().unwrap();
        blocks.push(marked(last));
        assert_eq!(send(&provider, json!({"messages": [user(&blocks)]})).await.0 > 0, reads, "{more}");
    }
}

#[tokio::test]
async fn a_second_mark_looks_from_its_own_place() {
    let provider = tracking_provider().await;
    let first = text(text_of_tokens(1500));
    send(&provider, json!({"messages": [user(&[marked(first.clone())])]})).await;
    let mut blocks = vec![marked(first)];
    blocks.extend((0..30).map(|index| text(format!("block {index}"))));
    blocks.push(marked(text("last")));
    let (read, written, input) = send(&provider, json!({"messages": [user(&blocks)]})).await;
    assert!(read >= 1500 && written > 0 && input == 0, "{read} {written} {input}");
}

#[tokio::test]
async fn a_run_of_calls_or_of_results_is_one_place() {
    let provider = tracking_provider().await;
    let call =
        |index: usize| json!({"type": "tool_use", "id": format!("t{index}"), "name": "look", "input": {}});
    let result =
        |index: usize| json!({"type": "tool_result", "tool_use_id": format!("t{index}"), "content": "blue"});
    let first = text(text_of_tokens(1500));
    send(&provider, json!({"messages": [user(&[marked(first.clone())])]})).await;
    let calls: Vec<Value> = (0..30).map(call).collect();
    let mut results: Vec<Value> = (0..30).map(result).collect();
    let last = results.pop().unwrap();
    results.push(marked(last));
    let messages = json!([user(&[first]), {"role": "assistant", "content": calls}, user(&results)]);
    assert!(send(&provider, json!({"messages": messages})).await.0 >= 1500);
}

#[tokio::test]
async fn what_is_said_about_thinking_belongs_to_the_messages() {
    let provider = tracking_provider().await;
    let request = json!({
        "max_tokens": 9000, "system": [marked(text(text_of_tokens(1500)))],
        "messages": [user(&[marked(text(text_of_tokens(1500)))])],
    });
    let (_, total, _) = send(&provider, request.clone()).await;
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 2000}});
    let (read, written, _) = send(&provider, with_members(request, thinking)).await;
    assert!((1500..1600).contains(&read), "the system prompt is read: {read}");
    assert_eq!(read + written, total);
}

#[tokio::test]
async fn five_marks_are_refused_and_a_mark_on_the_request_is_one_on_its_last_block() {
    let provider = tracking_provider().await;
    let blocks: Vec<Value> = (0..5).map(|index| marked(text(format!("block {index}")))).collect();
    let body = with_members(messages_request(), json!({"messages": [user(&blocks)]}));
    let (status, error) = send_json(messages_call(&provider, &body)).await;
    assert_eq!(status, 400);
    assert!(error["error"]["message"].as_str().unwrap().contains("A maximum of 4 blocks with cache_control"));
    provider.take_refusals();
    assert_eq!(provider.cache_stats().requests, [], "refused requests are not counted");
    let request = marked(json!({"messages": [user(&[text(text_of_tokens(1500))])]}));
    assert!(send(&provider, request.clone()).await.1 > 0);
    assert!(send(&provider, request).await.0 > 0);
}

#[tokio::test]
async fn the_other_vendors_read_common_prefixes_in_steps() {
    let provider = tracking_provider().await;
    let rules = text_of_tokens(1500);
    let calls = |question: &str| -> [_; OTHER_WIRES] {
        [
            chat_call(
                &provider,
                &with_members(
                    chat_request(),
                    json!({"messages": [
                        {"role": "system", "content": rules}, {"role": "user", "content": question},
                    ]}),
                ),
            ),
            responses_call(
                &provider,
                &with_members(responses_request(), json!({"instructions": rules, "input": question})),
            ),
            gemini_call(
                &provider,
                &with_members(
                    gemini_request(),
                    json!({
                        "systemInstruction": {"parts": [{"text": rules}]},
                        "contents": [{"parts": [{"text": question}]}],
                    }),
                ),
            ),
            ollama_call(
                &provider,
                &with_members(
                    ollama_request(),
                    json!({"messages": [
                        {"role": "system", "content": rules}, {"role": "user", "content": question},
                    ]}),
                ),
            ),
        ]
    };
    let cached = [
        "/usage/prompt_tokens_details/cached_tokens",
        "/usage/input_tokens_details/cached_tokens",
        "/usageMetadata/cachedContentTokenCount",
    ];
    for call in calls("What?") {
        send_ok(call).await;
    }
    for (index, call) in calls("Why?").into_iter().enumerate() {
        let answer = send_ok(call).await;
        if let Some(pointer) = cached.get(index) {
            // 1500 tokens and some JSON syntax, rounded down to a multiple of 128.
            assert_eq!(answer.pointer(pointer), Some(&json!(1408)), "{answer}");
        }
    }
    let requests = provider.cache_stats().requests;
    let reads: Vec<u64> = requests.iter().map(|request| request.read).collect();
    assert_eq!(reads, [[0; OTHER_WIRES], [1408; OTHER_WIRES]].concat());
    assert!(requests.iter().all(|request| request.written == 0 && request.input + request.read > 1500));
    // Another key has a cache of its own.
    let keyed = with_members(
        chat_request(),
        json!({"prompt_cache_key": "b", "messages": [{"role": "system", "content": rules}]}),
    );
    send_ok(chat_call(&provider, &keyed)).await;
    assert_eq!(provider.cache_stats().requests.pop().unwrap().read, 0);
}

#[tokio::test]
async fn a_scripted_usage_is_what_the_answer_says() {
    let provider = tracking_provider().await;
    let usage = Usage { input: Some(5), cache_read: 7, ..Usage::default() };
    provider.enqueue(Reply::from_text("hi").usage(usage));
    let answer = send_ok(messages_call(&provider, &messages_request())).await;
    assert_eq!(
        (&answer["usage"]["input_tokens"], &answer["usage"]["cache_read_input_tokens"]),
        (&json!(5), &json!(7))
    );
    assert_eq!(provider.cache_stats().requests.len(), 1, "the request is still recorded");
}
