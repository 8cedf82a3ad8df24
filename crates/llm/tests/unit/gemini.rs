//! Streams from the protocol's documentation, split into chunks of any size, and the messages that are sent back.

use futures::StreamExt as _;
use mock_llm::{MockProvider, Reply};
use pretty_assertions::assert_eq;

use super::super::ModelErrorKind;
use super::super::ToolSpec;
use super::super::decoder_testing::{self, decode_to_lines, final_error};
use super::super::http::placeholder;
use super::super::media::tests::{FILE, IMAGE, audio, image, pdf, plain};
use super::*;

/// The parsed body of a request.
pub(super) fn body(profile: &ModelProfile, request: &Request<'_>) -> Value {
    json!(super::request_body(profile, request))
}

/// A stream of Gemini 3, modelled on the vendor's pages on thinking, function calling and thought signatures
/// (<https://ai.google.dev/gemini-api/docs/thinking>, <https://ai.google.dev/gemini-api/docs/function-calling>,
/// <https://ai.google.dev/gemini-api/docs/thought-signatures>): thoughts and text in parts, one of them signed,
/// two calls, the first of which is signed and has an id, and an empty part that has only a signature.
const STREAM: &str = r#"data: {"candidates": [{"content": {"parts": [{"text": "**Looking**\n","thought": true}],"role": "model"},"index": 0}],"usageMetadata": {"promptTokenCount": 472,"totalTokenCount": 540,"thoughtsTokenCount": 68},"modelVersion": "gemini-3-pro-preview","responseId": "r1"}

data: {"candidates": [{"content": {"parts": [{"text": "Grüße 🦀","thought": true}],"role": "model"},"index": 0}]}

data: {"candidates": [{"content": {"parts": [{"text": "I lo"}],"role": "model"},"index": 0}]}

data: {"candidates": [{"content": {"parts": [{"text": "ok"},{"text": " now."}],"role": "model"},"index": 0}]}

data: {"candidates": [{"content": {"parts": [{"text": " Soon.","thoughtSignature": "EqQBsig1=="}],"role": "model"},"index": 0}]}

data: {"candidates": [{"content": {"parts": [{"partOfTheFuture": {"a": 1}},{"functionCall": {"name": "get_weather","args": {"city": "Paris"},"id": "fc1"},"thoughtSignature": "EqQBsig2=="},{"functionCall": {"name": "get_time"}}],"role": "model"},"index": 0}]}

data: {"candidates": [{"content": {"parts": [{"text": "","thoughtSignature": "EqQBsig3=="}],"role": "model"},"finishReason": "STOP","index": 0}],"usageMetadata": {"promptTokenCount": 472,"cachedContentTokenCount": 400,"candidatesTokenCount": 21,"totalTokenCount": 593,"thoughtsTokenCount": 100}}

"#;

#[test]
fn a_documented_stream_reads_the_same_however_it_is_cut() {
    let expected = [
        "start Thinking",
        "delta **Looking**\n",
        "delta Grüße 🦀",
        "stop",
        "start Text",
        "delta I lo",
        "delta ok",
        "delta  now.",
        "delta  Soon.",
        "stop",
        "start ToolUse",
        "stop",
        "start ToolUse",
        "stop",
        "thinking **Looking**\nGrüße 🦀 None",
        "text I look now.",
        "text  Soon.",
        r#"call fc1 get_weather {"city":"Paris"} None"#,
        "call fc2 get_time {} None",
        "text ",
        "TokenUsage { input: 472, output: 121, cache_read: 400, cache_write: 0, reasoning: 100, estimated: false }",
    ];
    // Ours would be a different one each time.
    let with_id =
        STREAM.replace(r#"{"name": "get_time"}"#, r#"{"name": "get_time","id": "fc2","args": null}"#);
    assert_eq!(decode_to_lines(&with_id, GeminiDecoder::default), expected);
    let without_last_end = STREAM.trim_end();
    assert_eq!(answer(without_last_end).blocks.len(), 6);
    let with_foreign_mark = format!("{STREAM}data: [DONE]\n\n");
    assert_eq!(answer(&with_foreign_mark).blocks.len(), 6);
}

fn answer(stream: &str) -> Answer {
    decoder_testing::final_answer(stream, GeminiDecoder::default())
}

/// The vendor's own SDK looks for errors in this form (js-genai, `_api_client.ts`, `processStreamResponse`).
#[test]
fn an_error_that_is_no_event_ends_an_answer_as_one_that_is() {
    let event = json!({"candidates": [{"content": {"parts": [{"text": "half"}]}, "finishReason": "STOP"}]});
    let refusal = json!({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Try later."}});
    for refusal in [refusal.to_string(), serde_json::to_string_pretty(&refusal).unwrap()] {
        for stream in [format!("data: {event}\n\n{refusal}"), refusal.clone()] {
            let error = final_error(&stream, GeminiDecoder::default());
            assert_eq!(error.kind, ModelErrorKind::Busy, "{error}");
            assert!(error.message.contains("Try later."), "{error}");
        }
    }
}

pub(super) fn request<'a>(messages: &'a [Message], tools: &'a [ToolDeclaration]) -> Request<'a> {
    Request {
        system: "Be brief.",
        messages,
        tools,
        thinking: true,
        effort: None,
        max_output: None,
        allow_tool_calls: true,
        output: None,
        cache_key: "t",
    }
}

fn sent(model: &str, messages: &[Message]) -> Value {
    let profile = ModelProfile { takes_audio: true, ..ModelProfile::for_tests(model) };
    body(&profile, &request(messages, &[]))["contents"].take()
}

fn reply(call: &ToolUse, text: &str, remarks: Vec<Content>, is_error: bool) -> ToolReply {
    ToolReply { provider_id: call.provider_id.clone(), text: text.into(), remarks, is_error }
}

fn assistant(model: &str, blocks: Vec<Block>) -> Message {
    Message::Assistant { model: model.into(), blocks }
}

/// A conversation in which `model` gave the answer of the stream.
fn conversation(model: &str) -> Vec<Message> {
    let answer = answer(STREAM);
    let replies =
        answer.calls().map(|call| reply(call, &format!("of {}", call.name), vec![], false)).collect();
    vec![Message::user("how is it?"), assistant(model, answer.blocks), Message::Results(replies)]
}

fn results_of_stream() -> Value {
    json!({"role": "user", "parts": [
        {"functionResponse": {"id": "fc1", "name": "get_weather", "response": {"output": "of get_weather"}}},
        {"functionResponse": {"name": "get_time", "response": {"output": "of get_time"}}},
    ]})
}

#[test]
fn what_the_vendor_signed_goes_back_as_it_came() {
    let expected = json!([
        {"role": "user", "parts": [{"text": "how is it?"}]},
        {"role": "model", "parts": [
            {"text": "**Looking**\nGrüße 🦀", "thought": true},
            {"text": "I look now."},
            {"text": " Soon.", "thoughtSignature": "EqQBsig1=="},
            {"functionCall": {"id": "fc1", "name": "get_weather", "args": {"city": "Paris"}},
             "thoughtSignature": "EqQBsig2=="},
            {"functionCall": {"name": "get_time", "args": {}}},
            {"text": "", "thoughtSignature": "EqQBsig3=="},
        ]},
        results_of_stream(),
    ]);
    for model in ["gemini-3-pro-preview", "gemini-2.5-pro"] {
        assert_eq!(sent(model, &conversation(model)), expected);
    }
    let thought = |signature: Option<&str>| Block::Thinking {
        thinking: "Hm".into(),
        signature: signature.map(str::to_owned),
    };
    let messages = [Message::user("a"), assistant("m", vec![thought(Some("c2ln")), thought(None)])];
    let parts =
        json!([{"text": "Hm", "thought": true, "thoughtSignature": "c2ln"}, {"text": "Hm", "thought": true}]);
    assert_eq!(sent("m", &messages)[1]["parts"], parts);
}

#[test]
fn another_model_is_sent_neither_thoughts_nor_signatures() {
    let expected = |signed: Option<&str>| {
        let mut call =
            json!({"functionCall": {"id": "fc1", "name": "get_weather", "args": {"city": "Paris"}}});
        if let Some(signed) = signed {
            call["thoughtSignature"] = json!(signed);
        }
        json!([
            {"role": "user", "parts": [{"text": "how is it?"}]},
            {"role": "model", "parts": [
                {"text": "I look now."},
                {"text": " Soon."},
                call,
                {"functionCall": {"name": "get_time", "args": {}}},
            ]},
            results_of_stream(),
        ])
    };
    let messages = conversation("another");
    // From Gemini 3 on a call must be signed: the vendor's substitute signature marks one that could not be.
    for model in ["gemini-3-flash", "models/gemini-3-flash", "gemini-flash-latest"] {
        assert_eq!(sent(model, &messages), expected(Some("skip_thought_signature_validator")), "{model}");
    }
    for model in ["gemini-2.5-flash", "models/gemini-2.0-flash"] {
        assert_eq!(sent(model, &messages), expected(None), "{model}");
    }
}

#[test]
fn a_conversation_that_grows_keeps_its_beginning() {
    // Parts with their roles: adjacent messages of one role are merged, which moves no part.
    let parts = |messages: &[Message]| -> Vec<String> {
        let contents = sent("gemini-3-pro-preview", messages);
        let contents = contents.as_array().unwrap().iter();
        let parts = contents.flat_map(|content| {
            let parts = content["parts"].as_array().unwrap().iter();
            parts.map(|part| format!("{} {part}", content["role"]))
        });
        parts.collect()
    };
    let mut messages = conversation("another");
    messages.extend([Message::user("and?"), assistant("gemini-3-pro-preview", answer(STREAM).blocks)]);
    messages.extend(conversation("another").pop());
    messages.extend(conversation("gemini-3-pro-preview"));
    let all_parts = parts(&messages);
    for end in 0..messages.len() {
        assert!(all_parts.starts_with(&parts(&messages[..end])), "cut at {end}");
    }
}

#[test]
fn the_whole_request_is_as_documented() {
    let messages = [Message::user("hi"), Message::user("there")];
    let tools = [ToolSpec {
        name: "look".into(),
        description: "Looks.".into(),
        input_schema: json!({"type": "object", "additionalProperties": false}),
    }
    .into()];
    let profile = ModelProfile::for_tests("gemini-2.5-flash");
    let expected = json!({
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [{"role": "user", "parts": [{"text": "hi"}, {"text": "there"}]}],
        "tools": [{"functionDeclarations": [{
            "name": "look",
            "description": "Looks.",
            "parametersJsonSchema": {"type": "object", "additionalProperties": false},
        }]}],
        "generationConfig": {
            "maxOutputTokens": 32_000,
            "thinkingConfig": {"thinkingBudget": 16_000, "includeThoughts": true},
        },
    });
    assert_eq!(body(&profile, &request(&messages, &tools)), expected);

    let limited = Request { allow_tool_calls: false, max_output: Some(100), ..request(&messages, &tools) };
    let limited_body = body(&profile, &limited);
    assert_eq!(limited_body["toolConfig"], json!({"functionCallingConfig": {"mode": "NONE"}}));
    assert_eq!(limited_body["tools"], expected["tools"]);
    assert_eq!(limited_body["generationConfig"]["maxOutputTokens"], 100);
    let without_tools = body(&profile, &Request { allow_tool_calls: false, ..request(&messages, &[]) });
    assert!(
        without_tools.get("tools").is_none() && without_tools.get("toolConfig").is_none(),
        "{without_tools}"
    );
}

#[test]
fn how_hard_to_think_is_said_as_the_model_knows_it() {
    let config = |model: &str, thinking, thinks| {
        let profile = ModelProfile { thinking, ..ModelProfile::for_tests(model) };
        let messages = [Message::user("hi")];
        let request = Request { thinking: thinks, ..request(&messages, &[]) };
        body(&profile, &request)["generationConfig"]["thinkingConfig"].take()
    };
    for (model, thinking, thinks, expected) in [
        ("gemini-2.5-flash", Thinking::Off, true, Value::Null),
        ("gemini-2.5-flash", Thinking::Budget(9), false, json!({"thinkingBudget": 0})),
        ("gemini-2.5-pro", Thinking::Budget(9), false, json!({"thinkingBudget": 128})),
        (
            "gemini-3-pro",
            Thinking::Effort(Effort::Medium),
            true,
            json!({"thinkingLevel": "MEDIUM", "includeThoughts": true}),
        ),
        (
            "gemini-3-pro",
            Thinking::Adaptive(Effort::High),
            true,
            json!({"thinkingLevel": "HIGH", "includeThoughts": true}),
        ),
        ("gemini-3-pro", Thinking::Effort(Effort::Max), false, json!({"thinkingLevel": "LOW"})),
    ] {
        assert_eq!(config(model, thinking, thinks), expected, "{model} {thinking:?} {thinks}");
    }
}

#[test]
fn what_a_person_gave_is_sent_in_its_order() {
    let text = |text: &str| Content::Text { text: text.into() };
    let content = vec![text("look:"), image("a.png"), text(" "), pdf(Some("b.pdf")), plain("c.txt")];
    let content = [content, vec![audio("audio/mpeg"), audio("audio/flac")]].concat();
    let sound = |media_type: &str| json!({"inlineData": {"mimeType": media_type, "data": placeholder(FILE)}});
    let of_image = json!({"inlineData": {"mimeType": "image/png", "data": placeholder(IMAGE)}});
    let of_pdf = json!({"inlineData": {"mimeType": "application/pdf", "data": placeholder(FILE)}});
    let expected = json!([{"role": "user", "parts": [
        {"text": "look:"}, of_image, of_pdf, {"text": "Document c.txt:\n\nplain text"}, sound("audio/mp3"),
        sound("audio/flac"),
    ]}]);
    assert_eq!(sent("m", &[Message::User { content }]), expected);

    // Beside the results of calls: texts within them, media after all of them.
    let answer = answer(STREAM);
    let [first, second] = answer.calls().collect::<Vec<_>>()[..] else { panic!() };
    let replies = vec![
        reply(first, "green", vec![image("a.png"), text("mind the shade"), plain("c.txt")], false),
        reply(second, " ", vec![pdf(None)], true),
    ];
    let messages = [Message::user("hi"), assistant("m", answer.blocks.clone()), Message::Results(replies)];
    let output = "green\n\nmind the shade\n\nDocument c.txt:\n\nplain text";
    let expected = json!([
        {"functionResponse": {"id": "fc1", "name": "get_weather", "response": {"output": output}}},
        {"functionResponse": {"name": "get_time", "response": {"error": "(no output)"}}},
        {"text": "Belonging to the result of the call fc1:"},
        of_image,
        {"text": "Belonging to the result of the call get_time:"},
        of_pdf,
    ]);
    assert_eq!(sent("m", &messages)[2]["parts"], expected);
}

fn chunk(candidate: &Value) -> String {
    format!("data: {}\n\n", json!({"candidates": [candidate]}))
}

#[test]
fn a_stream_that_ends_before_a_reason_is_broken_wherever_it_ends() {
    let (before_reason, _) =
        STREAM.split_once(r#"data: {"candidates": [{"content": {"parts": [{"text": """#).unwrap();
    for (at, _) in before_reason.match_indices("\n\n") {
        let error = final_error(&STREAM[..at + 2], GeminiDecoder::default());
        assert_eq!(error.kind, ModelErrorKind::Broken);
        assert!(error.message.contains("without its end marker"), "{error}");
        assert_eq!((error.usage.input, error.usage.reasoning), (472, 68));
    }
    assert_eq!(final_error("", GeminiDecoder::default()).kind, ModelErrorKind::Broken);
}

#[test]
fn pieces_after_a_reason_to_end_are_read() {
    // The stream of models before Gemini 2: each chunk has a finish reason.
    let text_chunk =
        |text: &str| chunk(&json!({"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}));
    let usage = "data: {\"usageMetadata\":{\"promptTokenCount\":3,\"candidatesTokenCount\":2}}\n\n";
    let answer = answer(&format!("{}{}{usage}", text_chunk("a"), text_chunk("b")));
    assert_eq!((answer.text().as_str(), answer.usage.input, answer.usage.output), ("ab", 3, 2));
}

#[test]
fn what_is_not_needed_may_be_absent_in_any_form() {
    let events = [
        json!({"candidates": null, "usageMetadata": "none"}),
        json!({"candidates": [{"content": {"parts": null}}], "usageMetadata": {"promptTokenCount": null}}),
        json!({"candidates": [{"content": null}], "usageMetadata": {"thoughtsTokenCount": u64::MAX}}),
        json!({"candidates": [{"content": {"parts": [{"text": "a", "thought": null}]}, "finishReason": "STOP"}],
               "usageMetadata": {"promptTokenCount": 3.0, "candidatesTokenCount": 2}}),
    ];
    let answer =
        answer(&events.iter().map(|event| format!("data: {event}\n\n")).collect::<Vec<_>>().concat());
    assert_eq!((answer.text().as_str(), answer.usage.input, answer.usage.output), ("a", 3, u64::MAX));
}

#[test]
fn each_reason_to_end_has_its_meaning() {
    let stream_with_reason = |reason: &str| {
        let parts = json!([{"text": "So"}, {"functionCall": {"name": "f", "args": {"a": 1}}}]);
        chunk(&json!({"content": {"parts": parts}, "finishReason": reason}))
    };
    for (reason, stop) in [
        ("STOP", FinishReason::Done),
        ("REASON_OF_THE_FUTURE", FinishReason::Done),
        ("MAX_TOKENS", FinishReason::Length),
        ("SAFETY", FinishReason::Refusal),
        ("RECITATION", FinishReason::Refusal),
        ("BLOCKLIST", FinishReason::Refusal),
        ("PROHIBITED_CONTENT", FinishReason::Refusal),
        ("SPII", FinishReason::Refusal),
    ] {
        let answer = answer(&stream_with_reason(reason));
        assert_eq!(answer.stop, stop, "{reason}");
        let call = answer.calls().next().unwrap();
        // The call that a filter stopped may be incomplete.
        assert_eq!(call.broken.is_some(), stop != FinishReason::Done, "{reason}");
    }
    for missing in ["", "FINISH_REASON_UNSPECIFIED"] {
        assert_eq!(
            final_error(&stream_with_reason(missing), GeminiDecoder::default()).message,
            missing_end_marker().message,
            "{missing}"
        );
        assert_eq!(
            answer(&(stream_with_reason("MAX_TOKENS") + &stream_with_reason(missing))).stop,
            FinishReason::Length,
            "{missing}"
        );
    }
    for (reason, kind) in [
        ("MALFORMED_FUNCTION_CALL", ModelErrorKind::Broken),
        ("OTHER", ModelErrorKind::Broken),
        ("MISSING_THOUGHT_SIGNATURE", ModelErrorKind::BrokenHistory),
    ] {
        let error = final_error(&stream_with_reason(reason), GeminiDecoder::default());
        assert_eq!(error.kind, kind, "{reason}");
        assert!(error.message.contains(reason), "{error}");
    }
    let invalid_input = chunk(&json!({
        "content": {"parts": [{"functionCall": {"name": "f", "args": [1]}}]}, "finishReason": "STOP",
    }));
    assert!(
        answer(&invalid_input).calls().next().unwrap().broken.as_ref().unwrap().contains("not a JSON object")
    );
}

#[test]
fn a_prompt_that_is_blocked_is_declined() {
    let blocked = json!({
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 8},
    });
    let answer = answer(&format!("data: {blocked}\n\n"));
    assert_eq!((answer.stop, answer.usage.input, answer.blocks), (FinishReason::Refusal, 8, vec![]));
}

#[test]
fn errors_in_the_stream_are_told_apart() {
    use ModelErrorKind::{Auth, Broken, Busy, NoSuchModel, Refused};
    for (code, status, expected) in [
        (400, "INVALID_ARGUMENT", Refused),
        (403, "PERMISSION_DENIED", Auth),
        (404, "NOT_FOUND", NoSuchModel),
        (429, "RESOURCE_EXHAUSTED", Busy),
        (500, "INTERNAL", Busy),
        (503, "UNAVAILABLE", Busy),
    ] {
        let data = json!({"error": {"code": code, "message": "The model is overloaded.", "status": status}});
        let error = final_error(&format!("data: {data}\n\n"), GeminiDecoder::default());
        assert_eq!(error.kind, expected, "{status}");
        assert!(error.message.contains("overloaded"), "{error}");
    }
    // The vendor reports errors in this form if no event stream was requested.
    let error_in_list = r#"data: [{"error": {"code": 503, "message": "The model is overloaded."}}]"#;
    assert_eq!(final_error(&format!("{error_in_list}\n\n"), GeminiDecoder::default()).kind, Busy);
    for data in ["{", "[]", r#"{"candidates":7}"#, r#"{"candidates":[{"content":{"parts":[{"text":7}]}}]}"#] {
        let error = final_error(&format!("data: {data}\n\n"), GeminiDecoder::default());
        assert!(error.kind == Broken && error.message.contains("malformed event"), "{data}: {error}");
    }
}

#[test]
fn a_model_is_addressed_as_the_vendors_sdk_does() {
    for (base, model, url) in [
        ("https://a.test", "g", "https://a.test/v1beta/models/g:streamGenerateContent?alt=sse"),
        ("https://a.test/", "models/g", "https://a.test/v1beta/models/g:streamGenerateContent?alt=sse"),
        (
            "https://a.test/b",
            "tunedModels/g",
            "https://a.test/b/v1beta/tunedModels/g:streamGenerateContent?alt=sse",
        ),
    ] {
        assert_eq!(Gemini::new(base, ModelProfile::for_tests(model), None).endpoint.url, url);
    }
}

/// An answer of a mock provider that refuses whatever the vendor would refuse.
async fn ask(provider: &MockProvider, name: &str, messages: &[Message]) -> Answer {
    let thinking =
        if name.starts_with("gemini-3") { Thinking::Effort(Effort::High) } else { Thinking::Budget(1_024) };
    let profile = ModelProfile { thinking, ..ModelProfile::for_tests(name) };
    let model = Gemini::new(&provider.base_url(), profile, Some(SecretString::from("k-1")));
    let input_schema = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let tools = [ToolSpec { name: "look".into(), description: "Looks.".into(), input_schema }.into()];
    match model.stream(&request(messages, &tools)).collect::<Vec<_>>().await.pop() {
        Some(Ok(StreamEvent::Done(answer))) => answer,
        other => panic!("{other:?}\n{messages:#?}"),
    }
}

fn replies_to(answer: &Answer, remarks: &[Content]) -> Message {
    Message::Results(answer.calls().map(|call| reply(call, "green", remarks.to_vec(), false)).collect())
}

#[tokio::test]
async fn the_vendors_rules_are_kept_over_many_turns() {
    let provider = MockProvider::start().await.unwrap();
    for (name, other) in
        [("gemini-3-pro-preview", "gemini-2.5-flash"), ("gemini-2.5-flash", "gemini-3-pro-preview")]
    {
        let content = vec![Content::Text { text: "look".into() }, image("a.png"), pdf(None), plain("b.txt")];
        let mut messages = vec![Message::User { content }];
        for remarks in [vec![], vec![image("c.png"), plain("d.txt")]] {
            let input = || json!({"at": 1});
            provider.enqueue(
                Reply::new()
                    .thinking("Hm.")
                    .text("I look.")
                    .tool_use("look", input())
                    .tool_use("look", input()),
            );
            let answer = ask(&provider, name, &messages).await;
            assert_eq!(answer.calls().count(), 2);
            let results = replies_to(&answer, &remarks);
            messages.extend([assistant(name, answer.blocks), results]);
        }
        // Another model continues here, which accepts neither the signatures nor unsigned calls.
        ask(&provider, other, &messages).await;
        provider.enqueue(Reply::new().thinking("So.").text("Grüße \u{1F980}"));
        let answer = ask(&provider, name, &messages).await;
        assert_eq!(answer.text(), "Grüße \u{1F980}");
        messages.extend([assistant(name, answer.blocks), Message::user("and?"), Message::user("well?")]);
        ask(&provider, name, &messages).await;
        ask(&provider, other, &messages).await;

        let signed: Vec<String> = messages.iter().flat_map(signatures).collect();
        assert_eq!(signed.len(), 3, "{messages:#?}");
        let [.., previous, last] = &provider.requests()[..] else { panic!() };
        let (same_model_body, other_model_body) = (previous.body.to_string(), last.body.to_string());
        assert!(signed.iter().all(|signature| same_model_body.contains(signature)), "{same_model_body}");
        assert!(signed.iter().all(|signature| !other_model_body.contains(signature)), "{other_model_body}");
    }
}

fn signatures(message: &Message) -> Vec<String> {
    let Message::Assistant { blocks, .. } = message else { return Vec::new() };
    let signature = |block: &Block| match block {
        Block::Text { signature, .. } | Block::Thinking { signature, .. } => signature.clone(),
        Block::ToolUse(call) => call.signature.clone(),
        Block::RedactedThinking { .. } => None,
    };
    blocks.iter().filter_map(signature).collect()
}
