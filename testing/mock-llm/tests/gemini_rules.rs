//! The rules of the Gemini wire: each rule is violated once, and the error must be the vendor's. Unusual but valid
//! requests must be accepted.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail as tests do"
)]

mod common;

use common::{gemini_call, gemini_call_of, gemini_request, provider, send_json, send_ok, with_members};
use mock_llm::{MockProvider, Reply};
use reqwest::Client;
use serde_json::{Value, json};

/// Sends each request, and expects a 400 whose message contains the words.
async fn assert_refused(cases: Vec<(Value, &str)>) {
    let provider = provider().await;
    for (changes, words) in cases {
        let (status, body) =
            send_json(gemini_call(&provider, &with_members(gemini_request(), changes.clone()))).await;
        let error = &body["error"];
        let message = error["message"].as_str().unwrap_or_default();
        assert_eq!((status, &error["code"]), (400, &json!(400)), "{changes} {body}");
        assert_eq!(error["status"], "INVALID_ARGUMENT");
        assert!(message.contains(words), "{changes}\n is refused with {message}\n and not with {words}");
        assert_eq!(provider.take_refusals().len(), 1);
    }
}

async fn assert_accepted(cases: Vec<Value>) {
    let provider = provider().await;
    for changes in cases {
        send_ok(gemini_call(&provider, &with_members(gemini_request(), changes))).await;
    }
}

fn parameters(parameters: impl Into<Value>) -> Value {
    let declaration = json!({"name": "look", "description": "Looks.", "parameters": parameters.into()});
    json!({"tools": [{"functionDeclarations": [declaration]}]})
}

fn property(schema: impl Into<Value>) -> Value {
    parameters(json!({"type": "object", "properties": {"at": schema.into()}}))
}

fn thinking(config: impl Into<Value>) -> Value {
    json!({"generationConfig": {"thinkingConfig": config.into()}})
}

fn parts(role: &str, parts: impl Into<Value>) -> Value {
    json!({"role": role, "parts": parts.into()})
}

fn contents(rest: &[Value]) -> Value {
    let mut all = vec![parts("user", json!([{"text": "hi"}]))];
    all.extend_from_slice(rest);
    json!({"contents": all})
}

#[tokio::test]
async fn fields() {
    let content = |role: &str, values: Value| json!({"contents": [parts(role, values)]});
    let blob = json!([{"inlineData": {"mimeType": "image/png", "data": "%"}}]);
    let sound = |kind: &str| json!([{"inlineData": {"mimeType": kind, "data": "SUQz"}}]);
    let both = json!({"thinkingLevel": "low", "thinkingBudget": 5});
    let role = "Please use a valid role: user, model.";
    assert_refused(vec![
        (
            json!({"messages": []}),
            "Invalid JSON payload received. Unknown name \"messages\": Cannot find field.",
        ),
        (json!({"contents": null}), "* GenerateContentRequest.contents: contents is not specified"),
        (content("assistant", json!([{"text": "hi"}])), role),
        (content("system", json!([{"text": "hi"}])), role),
        (content("user", json!([])), "contents[0].parts: contents.parts must not be empty."),
        (content("user", json!([{}])), "contents[0].parts[0].data: required oneof field 'data'"),
        (
            content("user", json!([{"text": 5}])),
            "Invalid value at 'contents[0].parts[0].text' (TYPE_STRING), 5",
        ),
        (content("user", blob), "(TYPE_BYTES), Base64 decoding failed"),
        (content("user", sound("audio/mpeg")), "Unsupported MIME type: audio/mpeg"),
        (content("user", sound("audio/midi")), "Unsupported MIME type: audio/midi"),
        (thinking(json!({"budget": 5})), "Unknown name \"budget\" at 'generation_config.thinking_config'"),
        (thinking(json!({"thinkingLevel": "some"})), "ThinkingConfig.ThinkingLevel), \"some\""),
        (thinking(both), "only one of thinking budget and thinking level"),
        (json!({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}), "without function_declarations"),
    ])
    .await;
    // Both alphabets of Base64, both names of a field, and both cases of a level are accepted.
    assert_accepted(vec![
        json!({"contents": [{"parts": [{"inline_data": {"mime_type": "image/png", "data": "_-8="}}]}]}),
        thinking(json!({"thinking_level": "HIGH", "includeThoughts": false})),
        content("user", sound("audio/mp3")),
        content("user", sound("audio/flac")),
        json!({"systemInstruction": {"parts": [{"text": "Be brief."}]}, "generationConfig": {"maxOutputTokens": 5}}),
    ])
    .await;
}

#[tokio::test]
async fn audio_needs_a_model_that_takes_it() {
    let provider = provider().await;
    let sound = json!([{"inlineData": {"mimeType": "audio/wav", "data": "SUQz"}}]);
    let request = with_members(gemini_request(), json!({"contents": [parts("user", sound)]}));
    let (status, body) =
        send_json(gemini_call_of(&provider, "gemma-3-27b-it:generateContent", &request)).await;
    assert_eq!(status, 400, "{body}");
    let message = body["error"]["message"].as_str().unwrap();
    assert_eq!(message, "Audio input modality is not enabled for models/gemma-3-27b-it");
    assert_eq!(provider.take_refusals().len(), 1);
    send_ok(gemini_call(&provider, &request)).await;
}

#[tokio::test]
async fn schemas() {
    let text = json!({"type": "string"});
    assert_refused(vec![
        (
            parameters(json!({"type": "object", "properties": {"at": text}, "additionalProperties": false})),
            "Invalid JSON payload received. Unknown name \"additionalProperties\" at \
             'tools[0].function_declarations[0].parameters': Cannot find field.",
        ),
        (
            property(json!({"type": "object", "$schema": "x", "properties": {"a": text}})),
            "Unknown name \"$schema\" at 'tools[0].function_declarations[0].parameters.properties[at]'",
        ),
        (property(json!({"type": ["string", "null"]})), "Proto field is not repeating, cannot start list."),
        (property(json!({"type": "text"})), "v1beta.Type), \"text\""),
        (property(json!({"type": "string", "enum": [1]})), "enum[0]' (TYPE_STRING), 1"),
        (property(json!({"type": "string", "format": "uri"})), "only 'enum' and 'date-time' are supported"),
        (property(json!({"type": "array"})), "parameters.properties[at].items: missing field."),
        (
            parameters(json!({"type": "object", "properties": {}})),
            "parameters.properties: should be non-empty",
        ),
    ])
    .await;
    let any =
        json!({"name": "look", "parametersJsonSchema": {"type": "object", "additionalProperties": false}});
    assert_accepted(vec![
        parameters(json!({"type": "OBJECT", "properties": {"at": text}, "required": ["at"]})),
        property(json!({"type": "array", "items": text, "minItems": 1})),
        json!({"tools": [{"functionDeclarations": [any]}, {"functionDeclarations": [{"name": "wait"}]}]}),
    ])
    .await;
}

#[tokio::test]
async fn declarations() {
    let declare = |names: &[&str]| {
        let all: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        json!({"tools": [{"functionDeclarations": all}]})
    };
    let choose = |config: Value| {
        with_members(declare(&["look"]), json!({"toolConfig": {"functionCallingConfig": config}}))
    };
    let both = json!({"name": "look", "parameters": {"type": "string"}, "parametersJsonSchema": {}});
    assert_refused(vec![
        (declare(&["2look"]), "Invalid function name. Must start with a letter or an underscore."),
        (declare(&["look", "look"]), "Duplicate function declaration found: look"),
        (json!({"tools": [{"functionDeclarations": [both]}]}), "mutually exclusive"),
        (json!({"tools": [{"googleSearch": {}}]}), "Unknown name \"googleSearch\" at 'tools[0]'"),
        (choose(json!({"mode": "SOMETIMES"})), "FunctionCallingConfig.Mode), \"SOMETIMES\""),
        (
            choose(json!({"mode": "AUTO", "allowedFunctionNames": ["look"]})),
            "only when function calling mode is ANY",
        ),
        (choose(json!({"mode": "ANY", "allowedFunctionNames": ["hear"]})), "hear is not one of"),
    ])
    .await;
    assert_accepted(vec![
        declare(&["_look.at:sky-1"]),
        choose(json!({"mode": "ANY", "allowedFunctionNames": ["look"]})),
    ])
    .await;
}

#[tokio::test]
async fn methods_and_keys() {
    let provider = MockProvider::builder().api_key("key").start().await.unwrap();
    let keyless = |key: Option<&str>| {
        let url = format!("{}/v1beta/models/gemini-3-test:generateContent", provider.gemini_base_url());
        let call = Client::new().post(url).json(&gemini_request());
        key.map_or(call.try_clone().unwrap(), |key| call.header("x-goog-api-key", key))
    };
    let calls = [
        (keyless(None), 403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers"),
        (keyless(Some("wrong")), 400, "INVALID_ARGUMENT", "API key not valid."),
        (
            gemini_call_of(&provider, "gemini-3:sing", &gemini_request()),
            404,
            "NOT_FOUND",
            "models/gemini-3 is not found",
        ),
        (
            gemini_call_of(&provider, "gemini-3:streamGenerateContent", &gemini_request()),
            400,
            "INVALID_ARGUMENT",
            "`alt=sse` is missing",
        ),
        (
            gemini_call_of(
                &provider,
                "gemini-2.5:generateContent",
                &with_members(gemini_request(), thinking(json!({"thinkingLevel": "low"}))),
            ),
            400,
            "INVALID_ARGUMENT",
            "Thinking level is not supported for this model.",
        ),
    ];
    for (call, expected, expected_status, words) in calls {
        let (status, body) = send_json(call).await;
        assert_eq!((status, &body["error"]["status"]), (expected, &json!(expected_status)), "{body}");
        assert!(body["error"]["message"].as_str().unwrap().contains(words), "{body}");
    }
    assert_eq!(provider.take_refusals().len(), 5);
    send_ok(keyless(Some("key"))).await;
    let request = provider.requests().pop().unwrap();
    assert_eq!((request.model.as_str(), request.api_key()), ("gemini-3-test", Some("key")));
    assert_eq!(request.path, "/v1beta/models/gemini-3-test:generateContent");
}

/// A provider, and the content of an answer with two calls.
async fn provider_with_calls() -> (MockProvider, Value) {
    let provider = provider().await;
    let call = |at: &str| json!({"at": at});
    provider.enqueue(Reply::new().tool_use("look", call("sky")).tool_use("look", call("sea")));
    let response = send_ok(gemini_call(&provider, &gemini_request())).await;
    (provider, response["candidates"][0]["content"].clone())
}

/// The responses to the calls of a content.
fn responses_to(content: &Value) -> Value {
    let response = |part: &Value| {
        let call = &part["functionCall"];
        json!({"functionResponse": {"name": call["name"], "id": call["id"], "response": {"seen": "blue"}}})
    };
    parts("user", content["parts"].as_array().unwrap().iter().map(response).collect::<Vec<_>>())
}

async fn assert_history_refused(provider: &MockProvider, history: &[Value], words: &str) {
    let (status, body) =
        send_json(gemini_call(provider, &with_members(gemini_request(), contents(history)))).await;
    let message = body["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 400 && message.contains(words), "{history:?}\n gives {body}\n and not {words}");
    provider.take_refusals();
}

#[tokio::test]
async fn calls_and_responses_are_paired_turns() {
    let (provider, calls) = provider_with_calls().await;
    let answers = responses_to(&calls);
    let half = parts("user", json!([answers["parts"][0]]));
    let model_text = parts("model", json!([{"text": "I look."}]));
    let mut misnamed = answers.clone();
    misnamed["parts"][0]["functionResponse"]["name"] = json!("hear");
    let number =
        "Please ensure that the number of function response parts is equal to the number of function call";
    assert_history_refused(&provider, &[calls.clone(), half], number).await;
    assert_history_refused(&provider, std::slice::from_ref(&calls), number).await;
    assert_history_refused(&provider, &[calls.clone(), parts("user", json!([{"text": "and?"}]))], number)
        .await;
    assert_history_refused(&provider, &[calls.clone(), misnamed], "the name and the id of its call").await;
    let after_model =
        "function call turn comes immediately after a user turn or after a function response turn";
    assert_history_refused(&provider, &[model_text.clone(), calls.clone(), answers.clone()], after_model)
        .await;
    let orphans = "function response turn comes immediately after a function call turn";
    assert_history_refused(&provider, &[model_text, answers.clone()], orphans).await;
    send_ok(gemini_call(&provider, &with_members(gemini_request(), contents(&[calls, answers])))).await;
}

#[tokio::test]
async fn signatures_come_back_on_the_calls_they_were_issued_for() {
    let (provider, calls) = provider_with_calls().await;
    let answers = responses_to(&calls);
    let signed = |signature: Option<&str>| {
        let mut calls = calls.clone();
        calls["parts"][0] = with_members(calls["parts"][0].clone(), json!({"thoughtSignature": signature}));
        calls
    };
    assert!(calls["parts"][0]["thoughtSignature"].is_string());
    assert_eq!(calls["parts"][1].get("thoughtSignature"), None, "only the first of parallel calls is signed");
    let missing = "Function call is missing a thought_signature in functionCall parts.";
    assert_history_refused(&provider, &[signed(None), answers.clone()], missing).await;
    assert_history_refused(
        &provider,
        &[signed(None), answers.clone()],
        "function call `default_api:look` , position 2.",
    )
    .await;
    let corrupted = "Corrupted thought signature.";
    assert_history_refused(&provider, &[signed(Some("Zm9yZ2Vk")), answers.clone()], corrupted).await;
    let mut moved = calls.clone();
    moved["parts"][0]["functionCall"]["args"] = json!({"at": "ground"});
    assert_history_refused(&provider, &[moved, answers.clone()], corrupted).await;
    let other = gemini_call_of(
        &provider,
        "gemini-3-other:generateContent",
        &with_members(gemini_request(), contents(&[calls.clone(), answers.clone()])),
    );
    assert_eq!(send_json(other).await.0, 400, "a signature is valid only for the model that issued it");
    provider.take_refusals();

    // Signatures are not required in earlier turns and by older models, and the documented dummies are accepted.
    let later = [
        signed(None),
        answers.clone(),
        parts("model", json!([{"text": "Blue."}])),
        parts("user", json!([{"text": "more"}])),
    ];
    send_ok(gemini_call(&provider, &with_members(gemini_request(), contents(&later)))).await;
    for dummy in ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"] {
        let history = [signed(Some(dummy)), answers.clone()];
        send_ok(gemini_call(&provider, &with_members(gemini_request(), contents(&history)))).await;
    }
    let body = with_members(gemini_request(), contents(&[signed(None), answers]));
    send_ok(gemini_call_of(&provider, "gemini-2.5-test:generateContent", &body)).await;
}
