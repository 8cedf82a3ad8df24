//! The thinking blocks that a client sends back: they must be unchanged, or they are refused.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use common::{messages_call, messages_request, provider, send_json, send_ok, with_members};
use mock_llm::{MockProvider, Reply};
use serde_json::{Value, json};

const MODIFIED: &str =
    "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified";

/// A request with thinking and this conversation.
fn thinking_request(messages: &[Value]) -> Value {
    let thinking = json!({"type": "enabled", "budget_tokens": 1024});
    with_members(messages_request(), json!({"thinking": thinking, "messages": messages}))
}

fn user(content: impl Into<Value>) -> Value {
    json!({"role": "user", "content": content.into()})
}

fn assistant(content: impl Into<Value>) -> Value {
    json!({"role": "assistant", "content": content.into()})
}

/// Makes the provider answer with this reply, and returns the issued blocks.
async fn issue_blocks(provider: &MockProvider, reply: Reply) -> Vec<Value> {
    provider.enqueue(reply);
    let answer = send_ok(messages_call(provider, &thinking_request(&[user("hi")]))).await;
    answer["content"].as_array().unwrap().clone()
}

/// A conversation with this answer and results for its calls.
fn with_tool_results(content: &[Value]) -> Vec<Value> {
    let result = |call: &Value| json!({"type": "tool_result", "tool_use_id": call["id"], "content": "done"});
    let calls = content.iter().filter(|block| block["type"] == "tool_use");
    vec![user("hi"), assistant(content), user(calls.map(result).collect::<Vec<_>>())]
}

async fn assert_refused(provider: &MockProvider, body: &Value, words: &str) {
    let (status, body) = send_json(messages_call(provider, body)).await;
    let message = body["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 400 && message.contains(words), "{body}\n does not contain {words}");
    provider.take_refusals();
}

/// Thinking, text, a call, thinking, redacted thinking and another call.
fn interleaved_reply() -> Reply {
    Reply::new()
        .thinking("First.")
        .text("One.")
        .tool_use("look", json!({}))
        .thinking("Second.")
        .redacted_thinking()
        .tool_use("hear", json!({}))
}

#[tokio::test]
async fn an_answer_is_accepted_as_it_was_issued() {
    let provider = provider().await;
    let content = issue_blocks(&provider, interleaved_reply()).await;
    send_ok(messages_call(&provider, &thinking_request(&with_tool_results(&content)))).await;
}

#[tokio::test]
async fn what_was_not_issued_is_refused() {
    let provider = provider().await;
    let content = issue_blocks(&provider, interleaved_reply()).await;
    let changed = |index: usize, member: &str, value: &str| {
        let mut content = content.clone();
        content[index][member] = value.into();
        thinking_request(&with_tool_results(&content))
    };
    let invalid_signature = "messages.1.content.0: Invalid `signature` in `thinking` block";
    assert_refused(&provider, &changed(0, "thinking", "Frist."), invalid_signature).await;
    assert_refused(&provider, &changed(0, "signature", "c2lnbmVk"), invalid_signature).await;
    let other_signature = content[3]["signature"].as_str().unwrap();
    assert_refused(&provider, &changed(0, "signature", other_signature), invalid_signature).await;
    let invalid_data = "messages.1.content.4: Invalid `data` in `redacted_thinking` block";
    assert_refused(&provider, &changed(4, "data", "c2VjcmV0"), invalid_data).await;

    let mut unsigned = content.clone();
    unsigned[0].as_object_mut().unwrap().remove("signature");
    let request = thinking_request(&with_tool_results(&unsigned));
    assert_refused(&provider, &request, "messages.1.content.0.thinking.signature: Field required").await;
}

#[tokio::test]
async fn thinking_belongs_to_its_model() {
    let provider = provider().await;
    let content = issue_blocks(&provider, interleaved_reply()).await;
    let request =
        with_members(thinking_request(&with_tool_results(&content)), json!({"model": "claude-other"}));
    assert_refused(&provider, &request, "Invalid `signature` in `thinking` block").await;
}

#[tokio::test]
async fn blocks_keep_their_order_and_their_neighbours() {
    let provider = provider().await;
    let content = issue_blocks(&provider, interleaved_reply()).await;
    let arranged = |order: &[usize]| {
        let content: Vec<Value> = order.iter().map(|index| content[*index].clone()).collect();
        thinking_request(&with_tool_results(&content))
    };
    let all_thinking_first = [0, 3, 4, 1, 2, 5];
    let thinking_swapped = [0, 1, 2, 4, 3, 5];
    let thinking_after_both_calls = [0, 1, 2, 5, 3, 4];
    let text_before_thinking = [1, 0, 2, 3, 4, 5];
    for order in [all_thinking_first, thinking_swapped, thinking_after_both_calls] {
        assert_refused(&provider, &arranged(&order), MODIFIED).await;
    }
    let expected = "Expected `thinking` or `redacted_thinking`, but found `text`";
    assert_refused(&provider, &arranged(&text_before_thinking), expected).await;
    let adaptive = with_members(arranged(&text_before_thinking), json!({"thinking": {"type": "adaptive"}}));
    assert_refused(&provider, &adaptive, MODIFIED).await;
    assert_refused(&provider, &arranged(&[0, 1, 2, 5]), MODIFIED).await;
    assert_refused(&provider, &arranged(&[0, 1, 2, 4, 5]), MODIFIED).await;
    send_ok(messages_call(&provider, &arranged(&[0, 2, 3, 4, 5]))).await;
}

#[tokio::test]
async fn texts_joined_into_one_move_the_thinking_between_them() {
    let provider = provider().await;
    let reply = Reply::new().thinking("A.").text("One.").thinking("B.").text("Two.");
    let content = issue_blocks(&provider, reply).await;
    let joined = json!([content[0], content[2], {"type": "text", "text": "One.Two."}]);
    assert_refused(&provider, &thinking_request(&[user("hi"), assistant(joined), user("on")]), MODIFIED)
        .await;
}

#[tokio::test]
async fn a_turn_with_a_budget_begins_with_thinking() {
    let provider = provider().await;
    let call = json!([{"type": "tool_use", "id": "toolu_foreign", "name": "look", "input": {}}]);
    let foreign = with_tool_results(call.as_array().unwrap());
    let expected =
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.";
    assert_refused(&provider, &thinking_request(&foreign), expected).await;
    // The rule does not apply to adaptive thinking, nor to completed turns.
    let adaptive = with_members(thinking_request(&foreign), json!({"thinking": {"type": "adaptive"}}));
    send_ok(messages_call(&provider, &adaptive)).await;
    let mut completed = foreign;
    completed.extend([assistant("Done."), user("Thanks.")]);
    send_ok(messages_call(&provider, &thinking_request(&completed))).await;
}

#[tokio::test]
async fn a_later_answer_of_a_turn_need_not_think() {
    let provider = provider().await;
    let first = issue_blocks(&provider, Reply::new().thinking("A.").tool_use("look", json!({}))).await;
    provider.enqueue(Reply::new().tool_use("look", json!({})));
    let mut messages = with_tool_results(&first);
    let second = send_ok(messages_call(&provider, &thinking_request(&messages))).await;
    messages.extend(with_tool_results(second["content"].as_array().unwrap()).into_iter().skip(1));
    send_ok(messages_call(&provider, &thinking_request(&messages))).await;
}

#[tokio::test]
async fn text_next_to_a_result_does_not_end_the_turn() {
    let provider = provider().await;
    let content = issue_blocks(&provider, Reply::new().thinking("A.").tool_use("look", json!({}))).await;
    let mut messages = with_tool_results(&content[1..]);
    messages[2]["content"].as_array_mut().unwrap().push(json!({"type": "text", "text": "and hurry"}));
    let expected = "Expected `thinking` or `redacted_thinking`, but found `tool_use`.";
    assert_refused(&provider, &thinking_request(&messages), expected).await;
}

#[tokio::test]
async fn thinking_of_earlier_turns_may_be_left_out() {
    let provider = provider().await;
    let content = issue_blocks(&provider, Reply::new().thinking("A.").tool_use("look", json!({}))).await;
    let mut messages = with_tool_results(&content[1..]);
    messages.extend([assistant("Done."), user("Thanks.")]);
    send_ok(messages_call(&provider, &thinking_request(&messages))).await;
}

#[tokio::test]
async fn thinking_is_no_beginning_of_an_answer() {
    let provider = provider().await;
    let content = issue_blocks(&provider, Reply::new().thinking("A.").text("B.")).await;
    let request = thinking_request(&[user("hi"), assistant(&content[..1])]);
    assert_refused(&provider, &request, "The final block in an assistant message cannot be `thinking`.")
        .await;
}

#[tokio::test]
async fn thinking_can_be_bound_to_its_conversation() {
    let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
    let content = issue_blocks(&provider, Reply::new().thinking("A.").tool_use("look", json!({}))).await;
    let request = thinking_request(&with_tool_results(&content));
    let with_mark = json!([{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]);
    let mut marked = with_tool_results(&content);
    marked[0] = user(with_mark);
    send_ok(messages_call(&provider, &request)).await;
    send_ok(messages_call(&provider, &thinking_request(&marked))).await;

    let mut edited = with_tool_results(&content);
    edited[0] = user("ho");
    let tools = json!([{"name": "look", "input_schema": {"type": "object"}}]);
    let cases = [
        (with_members(request.clone(), json!({"system": "New."})), "The `system` prompt differs from"),
        (with_members(request.clone(), json!({"tools": tools})), "The `tools` list differs from"),
        (thinking_request(&edited), "The block is bound to a different conversation."),
    ];
    for (request, words) in cases {
        assert_refused(&provider, &request, words).await;
    }
    let binding = json!({"prefix_mismatch_behavior": "drop_block"});
    let thinking = json!({"type": "enabled", "budget_tokens": 1024, "block_binding": binding});
    let dropping =
        messages_call(&provider, &with_members(request, json!({"system": "New.", "thinking": thinking})))
            .header("anthropic-beta", "thinking-binding-controls-2026-08-01");
    send_ok(dropping).await;
}
