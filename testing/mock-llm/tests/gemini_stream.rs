//! The answers of the Gemini wire, streamed and complete.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use common::{
    events, gemini_call, gemini_call_of, gemini_request, gemini_stream_call, provider, send_ok, send_stream,
    with_members,
};
use mock_llm::{Fault, Reply, Stop, Usage};
use serde_json::{Value, json};

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

/// A part without its signature and id, which tests cannot predict.
fn without_ids(part: &Value) -> Value {
    let mut part = with_members(part.clone(), json!({"thoughtSignature": null}));
    if let Some(call) = part.get_mut("functionCall").and_then(Value::as_object_mut) {
        call.remove("id");
    }
    part
}

#[tokio::test]
async fn a_stream_has_the_documented_chunks() {
    let provider = provider().await;
    provider.enqueue(rich_reply());
    let (text, ended) = send_stream(gemini_stream_call(&provider, &gemini_request())).await;
    assert!(ended);
    let chunks: Vec<Value> = events(&text).into_iter().map(|(_, chunk)| chunk).collect();
    let parts: Vec<Value> = chunks
        .iter()
        .map(|chunk| {
            let content = &chunk["candidates"][0]["content"];
            assert_eq!((&content["role"], content["parts"].as_array().unwrap().len()), (&json!("model"), 1));
            without_ids(&content["parts"][0])
        })
        .collect();
    let expected = [
        json!({"text": "Hm", "thought": true}),
        json!({"text": "m.", "thought": true}),
        json!({"text": "I lo"}),
        json!({"text": "ok."}),
        json!({"functionCall": {"name": "look", "args": {"at": "sky"}}}),
        json!({"functionCall": {"name": "wait", "args": {}}}),
        json!({"text": ""}),
    ];
    assert_eq!(parts, expected);
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["candidates"][0]["finishReason"], "STOP");
    assert!(others.iter().all(|chunk| chunk["candidates"][0].get("finishReason").is_none()));
    assert_eq!(last["modelVersion"], "gemini-3-test");
    let counts = &last["usageMetadata"];
    assert_eq!((&counts["promptTokenCount"], &counts["cachedContentTokenCount"]), (&json!(13), &json!(3)));
    assert_eq!((&counts["candidatesTokenCount"], &counts["thoughtsTokenCount"]), (&json!(15), &json!(5)));
    assert_eq!(counts["totalTokenCount"], 33);
}

#[tokio::test]
async fn a_text_is_signed_in_its_last_chunk() {
    let provider = provider().await;
    provider.set_default_reply(Reply::from_text("Blue.").deltas(1));
    let (text, _) = send_stream(gemini_stream_call(&provider, &gemini_request())).await;
    let last = events(&text).pop().unwrap().1;
    let part = &last["candidates"][0]["content"]["parts"][0];
    assert!(part["text"] == "" && part["thoughtSignature"].is_string(), "{part}");
    // The part may be sent back unchanged.
    let model = json!({"role": "model", "parts": [{"text": "Blue."}, part]});
    let user = json!({"role": "user", "parts": [{"text": "hi"}]});
    let body = with_members(gemini_request(), json!({"contents": [user, model, user]}));
    send_ok(gemini_call(&provider, &body)).await;
    // A model that does not think adds no signatures.
    let body = with_members(gemini_request(), json!({"generationConfig": null}));
    let answer = send_ok(gemini_call_of(&provider, "gemini-2.5-test:generateContent", &body)).await;
    assert_eq!(answer["candidates"][0]["content"]["parts"], json!([{"text": "Blue."}]));
}

#[tokio::test]
async fn thoughts_are_shown_when_asked_for() {
    let provider = provider().await;
    provider.set_default_reply(Reply::new().thinking("Hmm.").text("Yes."));
    let thoughts = |answer: Value| {
        let parts = answer["candidates"][0]["content"]["parts"].as_array().unwrap().clone();
        parts.iter().filter(|part| part["thought"] == true).count()
    };
    assert_eq!(thoughts(send_ok(gemini_call(&provider, &gemini_request())).await), 1);
    let body = with_members(gemini_request(), json!({"generationConfig": null}));
    assert_eq!(thoughts(send_ok(gemini_call(&provider, &body)).await), 0);
}

#[tokio::test]
async fn an_answer_says_why_it_ended() {
    let provider = provider().await;
    for (reply, expected) in [
        (Reply::from_text("cut").stop(Stop::MaxTokens), "MAX_TOKENS"),
        (Reply::from_text("no").stop(Stop::Refusal), "SAFETY"),
        (Reply::new().truncated_tool_use("look", "{\"at\": \"s"), "MALFORMED_FUNCTION_CALL"),
    ] {
        provider.enqueue(reply);
        let answer = send_ok(gemini_call(&provider, &gemini_request())).await;
        assert_eq!(answer["candidates"][0]["finishReason"], expected);
    }
    provider.enqueue(Reply::from_text("Blue.").fault(Fault::NoEndMark));
    let (text, ended) = send_stream(gemini_stream_call(&provider, &gemini_request())).await;
    assert!(ended && text.contains("Blue") && !text.contains("finishReason"));
}
