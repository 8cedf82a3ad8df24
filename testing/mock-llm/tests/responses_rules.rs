//! The rules of the Responses wire: each rule is violated once, and the error must be the vendor's. Unusual but
//! valid requests must be accepted.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use common::{provider, responses_call, responses_request, send_json, send_ok, with_members};
use mock_llm::{MockProvider, Reply};
use serde_json::{Value, json};

/// Sends each request, and expects a 400 with this parameter whose message contains the words.
async fn assert_refused(cases: Vec<(Value, &str, &str)>) {
    let provider = provider().await;
    for (changes, param, words) in cases {
        let (status, body) =
            send_json(responses_call(&provider, &with_members(responses_request(), changes.clone()))).await;
        let error = &body["error"];
        let message = error["message"].as_str().unwrap_or_default();
        assert_eq!((status, &error["type"]), (400, &json!("invalid_request_error")), "{changes} {body}");
        assert!(message.contains(words), "{changes}\n is refused with {message}\n and not with {words}");
        assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{changes}");
        assert_eq!(provider.take_refusals().len(), 1);
    }
}

fn tool(changes: Value) -> Value {
    json!({"tools": [with_members(json!({"type": "function", "name": "look", "parameters": {}}), changes)]})
}

fn input(items: &[Value]) -> Value {
    let mut all = vec![json!({"role": "user", "content": "hi"})];
    all.extend_from_slice(items);
    json!({"input": all})
}

#[tokio::test]
async fn parameters() {
    assert_refused(vec![
        (json!({"model": null}), "model", "Missing required parameter: 'model'."),
        (json!({"input": null}), "input", "Missing required parameter: 'input'."),
        (json!({"messages": []}), "messages", "Unknown parameter: 'messages'."),
        (
            json!({"max_output_tokens": 15}),
            "max_output_tokens",
            "Expected a value >= 16, but got 15 instead.",
        ),
        (json!({"include": ["everything"]}), "include[0]", "Invalid value: 'everything'."),
        (json!({"reasoning": {"effort": "some"}}), "reasoning.effort", "Invalid value: 'some'."),
        (json!({"temperature": 0.5}), "temperature", "'temperature' is not supported with this model"),
        (
            json!({"model": "gpt-4.1"}),
            "reasoning.effort",
            "'reasoning.effort' is not supported with this model",
        ),
        (json!({"model": "gpt-4.1", "reasoning": null}), "include", "Encrypted content is not supported"),
        (
            json!({"previous_response_id": "resp_1"}),
            "previous_response_id",
            "Previous response with id 'resp_1' not found.",
        ),
    ])
    .await;
    let provider = provider().await;
    for changes in [
        json!({"input": "hi"}),
        json!({"model": "gpt-4.1", "reasoning": null, "include": null, "temperature": 0.5}),
        json!({"instructions": "Be brief.", "prompt_cache_key": "a", "max_output_tokens": 16, "store": null}),
    ] {
        send_ok(responses_call(&provider, &with_members(responses_request(), changes))).await;
    }
}

#[tokio::test]
async fn tools() {
    let nested = json!({"type": "function", "function": {"name": "look"}});
    let open = json!({"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]});
    assert_refused(vec![
        (json!({"tools": [nested]}), "tools[0].name", "Missing required parameter: 'tools[0].name'."),
        (tool(json!({"type": "web_search"})), "tools[0].type", "Invalid value: 'web_search'."),
        (tool(json!({"name": "look around"})), "tools[0].name", "does not match pattern"),
        (
            tool(json!({"strict": true, "parameters": open})),
            "tools[0].parameters",
            "'additionalProperties' is required",
        ),
        (
            json!({"tool_choice": {"type": "function", "name": "hear"}}),
            "tool_choice",
            "Tool choice 'hear' not found in 'tools' parameter.",
        ),
    ])
    .await;
    let provider = provider().await;
    for tools in [tool(json!({"strict": null})), tool(json!({"parameters": open})), json!({"tools": []})] {
        send_ok(responses_call(&provider, &with_members(responses_request(), tools))).await;
    }
}

#[tokio::test]
async fn items() {
    let call = json!({"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"});
    let output = json!({"type": "function_call_output", "call_id": "c", "output": "sky"});
    assert_refused(vec![
        (input(&[json!({"type": "song"})]), "input[1].type", "Invalid value: 'song'."),
        (
            input(&[json!({"role": "assistant", "content": [{"type": "input_text", "text": "hi"}]})]),
            "input[1].content[0].type",
            "Supported values are: 'output_text', and 'refusal'.",
        ),
        (
            input(&[json!({"role": "user", "content": [{"type": "input_image", "image_url": "data:text/plain,a"}]})]),
            "input[1].content[0].image_url",
            "unsupported image",
        ),
        (
            input(&[with_members(call.clone(), json!({"arguments": {"at": "sky"}})), output.clone()]),
            "input[1].arguments",
            "expected a string, but got an object instead.",
        ),
        (
            input(&[with_members(call.clone(), json!({"id": "rs_1"})), output.clone()]),
            "input[1].id",
            "Expected an ID that begins with 'fc'.",
        ),
        (
            input(&[json!({"type": "reasoning", "id": "rs_1"})]),
            "input[1].summary",
            "Missing required parameter: 'input[1].summary'.",
        ),
        (input(std::slice::from_ref(&call)), "input", "No tool output found for function call c."),
        (input(std::slice::from_ref(&output)), "input", "No tool call found for function call output with call_id c."),
        (
            input(&[output.clone(), call.clone()]),
            "input",
            "No tool call found for function call output with call_id c.",
        ),
    ])
    .await;
    // Items that this provider did not issue may lack ids, and several calls may come before their outputs.
    let other = with_members(call.clone(), json!({"call_id": "d"}));
    let parts = json!([{"type": "input_text", "text": "sky"}]);
    let outputs = [output, json!({"type": "function_call_output", "call_id": "d", "output": parts})];
    let provider = provider().await;
    let body =
        with_members(responses_request(), input(&[call, other, outputs[0].clone(), outputs[1].clone()]));
    send_ok(responses_call(&provider, &body)).await;
}

/// A provider, the items of an answer with reasoning, a text and a call, and the call's output.
async fn provider_with_answer() -> (MockProvider, Vec<Value>) {
    let provider = provider().await;
    provider.enqueue(Reply::new().thinking("Hm.").text("I look.").tool_use("look", json!({"at": "sky"})));
    let response = send_ok(responses_call(&provider, &responses_request())).await;
    let mut items = response["output"].as_array().unwrap().clone();
    let call_id = items[2]["call_id"].clone();
    items.push(json!({"type": "function_call_output", "call_id": call_id, "output": "blue"}));
    (provider, items)
}

/// Sends the items to this model, and returns the status, the error code and the message.
async fn send(provider: &MockProvider, model: &str, items: &[Value]) -> (u16, Value, String) {
    let body = with_members(with_members(responses_request(), input(items)), json!({"model": model}));
    let (status, body) = send_json(responses_call(provider, &body)).await;
    let error = &body["error"];
    (status, error["code"].clone(), error["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn reasoning_comes_back_as_it_was_issued() {
    let (provider, items) = provider_with_answer().await;
    let [reasoning, text, call, output] = items.as_slice() else { panic!("{items:?}") };
    assert_eq!(send(&provider, "gpt-5-test", &items).await.0, 200);

    let forged = with_members(reasoning.clone(), json!({"encrypted_content": "gAAAforged"}));
    let moved = with_members(reasoning.clone(), json!({"id": "rs_other"}));
    for (model, changed, words) in [
        ("gpt-5-test", &forged, "The encrypted content gAAA...rged could not be verified."),
        ("gpt-5-other", reasoning, "could not be verified"),
        ("gpt-5-test", &moved, "item_id did not match the target item id"),
    ] {
        let history = [changed.clone(), text.clone(), call.clone(), output.clone()];
        let (status, code, message) = send(&provider, model, &history).await;
        assert_eq!((status, code), (400, json!("invalid_encrypted_content")));
        assert!(message.contains(words), "{message}");
    }
    let unencrypted = with_members(reasoning.clone(), json!({"encrypted_content": null}));
    let (status, _, message) = send(&provider, "gpt-5-test", &[unencrypted, text.clone()]).await;
    assert_eq!(status, 404);
    assert!(message.contains("Items are not persisted when `store` is set to false."), "{message}");
    assert_eq!(provider.take_refusals().len(), 4);
}

#[tokio::test]
async fn reasoning_and_what_was_made_of_it_stay_together() {
    let (provider, items) = provider_with_answer().await;
    let [reasoning, text, call, output] = items.as_slice() else { panic!("{items:?}") };
    let more = json!({"role": "user", "content": "more"});
    let id = |item: &Value| item["id"].as_str().unwrap().to_owned();
    let unfollowed = format!(
        "Item '{}' of type 'reasoning' was provided without its required following item.",
        id(reasoning)
    );
    let alone = format!(
        "Item '{}' of type 'function_call' was provided without its required 'reasoning' item: '{}'.",
        id(call),
        id(reasoning)
    );
    for (history, expected) in [
        (vec![reasoning.clone()], &unfollowed),
        (vec![reasoning.clone(), more], &unfollowed),
        (vec![reasoning.clone(), call.clone(), output.clone()], &unfollowed),
        (vec![call.clone(), output.clone()], &alone),
    ] {
        let (status, _, message) = send(&provider, "gpt-5-test", &history).await;
        assert_eq!((status, &message), (400, expected));
    }
    assert_eq!(provider.take_refusals().len(), 4);
    // Without ids, the items need no reasoning.
    let without_id = |item: &Value| with_members(item.clone(), json!({"id": null}));
    let history = [without_id(text), without_id(call), output.clone()];
    assert_eq!(send(&provider, "gpt-5-test", &history).await.0, 200);
}
