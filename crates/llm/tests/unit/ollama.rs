//! Streams from the protocol's documentation, split into chunks of any size, and the messages that are sent back.

use futures::StreamExt as _;
use mock_llm::{MockProvider, Reply};
use pretty_assertions::assert_eq;

use super::super::decoder_testing::{self, decode_to_lines, final_error};
use super::super::http::placeholder;
use super::super::media::tests::{IMAGE, image, pdf, plain};
use super::super::{ToolDeclaration, ToolSpec};
use super::*;
use crate::ModelErrorKind;

/// The parsed body of a request.
fn body(profile: &ModelProfile, request: &Request<'_>) -> Value {
    json!(super::request_body(profile, request))
}

/// A stream modelled on the vendor's pages on chats, thinking and streaming (<https://docs.ollama.com/api/chat>,
/// <https://docs.ollama.com/capabilities/thinking>, <https://docs.ollama.com/capabilities/streaming>).
const STREAM: &str = r#"{"model":"qwen3","created_at":"2025-10-26T17:15:24.097767Z","message":{"role":"assistant","content":"","thinking":"The user\n"},"done":false}
{"model":"qwen3","created_at":"2025-10-26T17:15:24.109172Z","message":{"role":"assistant","content":"","thinking":" greets."},"done":false}
{"model":"qwen3","created_at":"2025-10-26T17:15:24.121485Z","message":{"role":"assistant","content":"Grüße"},"done":false}
{"model":"qwen3","created_at":"2025-10-26T17:15:24.132802Z","message":{"role":"assistant","content":" 🦀\n"},"done":false}
{"model":"qwen3","created_at":"2025-10-26T17:15:24.166576Z","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","total_duration":4648158584,"load_duration":4071084,"prompt_eval_count":36,"prompt_eval_duration":439038000,"eval_count":180,"eval_duration":4196918000}
"#;

/// The end of a stream with two calls, modelled on the vendor's page on tools
/// (<https://docs.ollama.com/capabilities/tool-calling>).
const CALLS: &str = r#"{"model":"qwen3","message":{"role":"assistant","content":"","thinking":"Both."},"done":false}
{"model":"qwen3","message":{"role":"assistant","content":"I look.","tool_calls":[{"function":{"index":0,"name":"get_weather","arguments":{"city":"Paris"}}}]},"done":false}
{"model":"qwen3","message":{"role":"assistant","content":"","tool_calls":[{"id":"call_x","function":{"index":1,"name":"get_time","arguments":{}}}]},"done":false}
{"model":"qwen3","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","prompt_eval_count":8,"eval_count":9}
"#;

#[test]
fn a_documented_stream_reads_the_same_however_it_is_cut() {
    let expected = [
        "start Thinking",
        "delta The user\n",
        "delta  greets.",
        "stop",
        "start Text",
        "delta Grüße",
        "delta  🦀\n",
        "stop",
        "thinking The user\n greets. None",
        "text Grüße 🦀\n",
        "TokenUsage { input: 36, output: 180, cache_read: 0, cache_write: 0, reasoning: 0, estimated: false }",
    ];
    assert_eq!(decode_to_lines(STREAM, OllamaDecoder::default), expected);
    // Servers that imitate the vendor's may omit the last line end.
    assert_eq!(decode_to_lines(STREAM.trim_end(), OllamaDecoder::default), expected);
    assert_eq!(decode_to_lines(&format!("[DONE]\n{STREAM}"), OllamaDecoder::default), expected);
}

fn answer(stream: &str) -> Answer {
    decoder_testing::final_answer(stream, OllamaDecoder::default())
}

fn request<'a>(messages: &'a [Message], tools: &'a [ToolDeclaration]) -> Request<'a> {
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

/// The messages that are sent for these, without the system prompt.
fn sent(model: &str, messages: &[Message]) -> Value {
    let body = body(&ModelProfile::for_tests(model), &request(messages, &[]));
    body["messages"].as_array().unwrap()[1..].into()
}

fn assistant(model: &str, blocks: Vec<Block>) -> Message {
    Message::Assistant { model: model.into(), blocks }
}

fn reply(call: &ToolUse, text: &str, remarks: Vec<Content>) -> ToolReply {
    ToolReply { provider_id: call.provider_id.clone(), text: text.into(), remarks, is_error: false }
}

/// A conversation in which `model` made the calls, with their results.
fn conversation(model: &str) -> Vec<Message> {
    let answer = answer(CALLS);
    let replies = answer.calls().map(|call| reply(call, &format!("of {}", call.name), vec![])).collect();
    vec![Message::user("how is it?"), assistant(model, answer.blocks), Message::Results(replies)]
}

#[test]
fn calls_go_back_with_their_reasoning_and_results_by_their_names() {
    let mut message = json!({"role": "assistant", "content": "I look.", "thinking": "Both.", "tool_calls": [
        {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}},
        {"id": "call_x", "function": {"name": "get_time", "arguments": {}}},
    ]});
    let expected = |message: &Value| {
        json!([
            {"role": "user", "content": "how is it?"},
            message,
            {"role": "tool", "tool_name": "get_weather", "content": "of get_weather"},
            {"role": "tool", "tool_name": "get_time", "tool_call_id": "call_x", "content": "of get_time"},
        ])
    };
    assert_eq!(sent("qwen3", &conversation("qwen3")), expected(&message));
    message.as_object_mut().unwrap().remove("thinking");
    assert_eq!(sent("qwen3", &conversation("another")), expected(&message));
    // A call without an id gets the engine's, because repeated calls could not be distinguished otherwise.
    let answer = answer(CALLS);
    let first = answer.calls().next().unwrap();
    assert_eq!(first.provider_id, first.call_id.to_string());
}

#[test]
fn the_whole_request_is_as_documented() {
    let messages = [Message::user("hi"), assistant("m", vec![Block::RedactedThinking { data: "x".into() }])];
    let tools = [ToolSpec {
        name: "look".into(),
        description: "Looks.".into(),
        input_schema: json!({"type": "object"}),
    }
    .into()];
    let expected = json!({
        "model": "qwen3",
        "stream": true,
        "think": true,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {
            "name": "look", "description": "Looks.", "parameters": {"type": "object"},
        }}],
        "options": {"num_ctx": 200_000, "num_predict": 32_000},
        "truncate": false,
        "shift": false,
    });
    let profile = ModelProfile::for_tests("qwen3");
    assert_eq!(body(&profile, &request(&messages, &tools)), expected);

    let limited = Request { allow_tool_calls: false, max_output: Some(100), ..request(&messages, &tools) };
    let limited_body = body(&profile, &limited);
    assert!(limited_body.get("tools").is_none(), "{limited_body}");
    assert_eq!(limited_body["options"], json!({"num_ctx": 200_000, "num_predict": 100}));
}

#[test]
fn how_hard_to_think_is_said_as_the_server_knows_it() {
    for (thinking, thinks, expected) in [
        (Thinking::Off, true, None),
        (Thinking::Off, false, None),
        (Thinking::Budget(9), true, Some(json!(true))),
        (Thinking::Adaptive(Effort::High), true, Some(json!(true))),
        (Thinking::Effort(Effort::Low), true, Some(json!("low"))),
        (Thinking::Effort(Effort::Xhigh), true, Some(json!("max"))),
        (Thinking::Effort(Effort::High), false, Some(json!(false))),
        (Thinking::Budget(9), false, Some(json!(false))),
    ] {
        assert_eq!(think_value(thinking, thinks), expected, "{thinking:?} {thinks}");
    }
}

#[test]
fn what_a_person_gave_is_sent_as_texts_and_images() {
    let text = |text: &str| Content::Text { text: text.into() };
    let content =
        vec![text("look:"), image("a.png"), text(" "), pdf(Some("b.pdf")), plain("c.txt"), image("d.png")];
    let replacement = "[The document b.pdf is of a type that this model does not accept.]";
    let expected = json!([{
        "role": "user",
        "content": format!("look:\n\n{replacement}\n\nDocument c.txt:\n\nplain text"),
        "images": [placeholder(IMAGE), placeholder(IMAGE)],
    }]);
    assert_eq!(sent("m", &[Message::User { content }]), expected);
    let model = Ollama::new("http://localhost:11434", ModelProfile::for_tests("m"), None);
    assert!(model.supports_media(MediaKind::Document, "application/pdf").unwrap_err().contains("text/plain"));

    // Beside the results of calls: texts within them, images after all of them.
    let answer = answer(CALLS);
    let [first, second] = answer.calls().collect::<Vec<_>>()[..] else { panic!() };
    let replies =
        vec![reply(first, "green", vec![image("a.png"), text("mind the shade")]), reply(second, " ", vec![])];
    let messages = [Message::user("hi"), assistant("m", answer.blocks.clone()), Message::Results(replies)];
    let expected = json!([
        {"role": "tool", "tool_name": "get_weather", "content": "green\n\nmind the shade"},
        {"role": "tool", "tool_name": "get_time", "tool_call_id": "call_x", "content": "(no output)"},
        {"role": "user", "content": "Belonging to the result of the call get_weather:", "images": [placeholder(IMAGE)]},
    ]);
    assert_eq!(Value::from(&sent("m", &messages).as_array().unwrap()[2..]), expected);
}

#[test]
fn a_conversation_that_grows_keeps_its_beginning() {
    let lines = |messages: &[Message]| -> Vec<String> {
        sent("qwen3", messages).as_array().unwrap().iter().map(Value::to_string).collect()
    };
    let mut messages = conversation("qwen3");
    messages.extend([assistant("qwen3", answer(STREAM).blocks), Message::user("and?")]);
    messages.extend(conversation("another"));
    let all_lines = lines(&messages);
    for end in 0..messages.len() {
        assert!(all_lines.starts_with(&lines(&messages[..end])), "cut at {end}");
    }
}

#[test]
fn a_stream_that_ends_before_its_mark_is_broken_wherever_it_ends() {
    for stream in [STREAM, CALLS] {
        let (before_mark, _) = stream.trim_end().rsplit_once('\n').unwrap();
        for (at, _) in before_mark.match_indices('\n') {
            let error = final_error(&stream[..=at], OllamaDecoder::default());
            assert_eq!(error.kind, ModelErrorKind::Broken);
            assert!(error.message.contains("without its end marker"), "{error}");
        }
    }
    // In the middle of a line.
    assert_eq!(
        final_error(&STREAM[..STREAM.len() - 9], OllamaDecoder::default()).kind,
        ModelErrorKind::Broken
    );
}

#[test]
fn an_answer_that_was_cut_off_says_so() {
    let truncated = answer(&CALLS.replace(r#""done_reason":"stop""#, r#""done_reason":"length""#));
    assert_eq!(truncated.stop, FinishReason::Length);
    let broken: Vec<bool> = truncated.calls().map(|call| call.broken.is_some()).collect();
    assert_eq!(broken, [false, true]);
    let complete = answer(CALLS);
    assert_eq!(complete.stop, FinishReason::Done);
    assert!(complete.calls().all(|call| call.broken.is_none()));
    let text = answer(&CALLS.replace("{\"city\":\"Paris\"}", "\"Paris\""));
    assert!(text.calls().next().unwrap().broken.as_ref().unwrap().contains("not a JSON object"));
}

#[test]
fn errors_in_the_stream_are_told() {
    // Modelled on <https://docs.ollama.com/api/errors>.
    let line = "{\"error\":\"an error was encountered while running the model\"}\n";
    let (start, _) =
        STREAM.split_once("{\"model\":\"qwen3\",\"created_at\":\"2025-10-26T17:15:24.132802Z\"").unwrap();
    let error_of = |stream: &str| final_error(stream, OllamaDecoder::default());
    let error = error_of(&format!("{start}{line}"));
    assert_eq!(error.kind, ModelErrorKind::Busy);
    assert!(error.message.contains("while running the model"), "{error}");
    let error = error_of(r#"{"error":{"code":503,"message":"The model is overloaded."}}"#);
    assert_eq!((error.kind, error.message.contains("overloaded")), (ModelErrorKind::Busy, true), "{error}");
    let nulls = concat!(
        r#"{"message":null,"done":null,"error":null,"eval_count":null}"#,
        "\n",
        r#"{"message":{"content":"a","tool_calls":null},"done":true,"prompt_eval_count":null,"eval_count":2.0}"#,
    );
    let parsed = answer(nulls);
    assert_eq!((parsed.text().as_str(), parsed.usage.input, parsed.usage.output), ("a", 0, 2));
    for line in ["{", "[]", r#"{"message":7}"#, "data: {}"] {
        let error = error_of(line);
        assert!(
            error.kind == ModelErrorKind::Broken && error.message.contains("malformed event"),
            "{line}: {error}"
        );
    }
}

#[test]
fn a_server_is_addressed_as_the_vendors_sdk_does() {
    for base in ["http://localhost:11434", "http://localhost:11434/"] {
        assert_eq!(
            Ollama::new(base, ModelProfile::for_tests("m"), None).endpoint.url,
            "http://localhost:11434/api/chat"
        );
    }
}

/// An answer of a mock provider that refuses whatever the server would refuse.
async fn ask(provider: &MockProvider, name: &str, messages: &[Message]) -> Answer {
    let model = Ollama::new(&provider.base_url(), ModelProfile::for_tests(name), None);
    let input_schema = json!({"type": "object", "properties": {}});
    let tools = [ToolSpec { name: "look".into(), description: "Looks.".into(), input_schema }.into()];
    match model.stream(&request(messages, &tools)).collect::<Vec<_>>().await.pop() {
        Some(Ok(StreamEvent::Done(answer))) => answer,
        other => panic!("{other:?}\n{messages:#?}"),
    }
}

#[tokio::test]
async fn the_servers_rules_are_kept_over_many_turns() {
    let provider = MockProvider::start().await.unwrap();
    let content = vec![Content::Text { text: "look".into() }, image("a.png"), pdf(None), plain("b.txt")];
    let mut messages = vec![Message::User { content }];
    for remarks in [vec![], vec![image("c.png"), plain("d.txt")]] {
        let input = || json!({"at": 1});
        let calls =
            Reply::new().thinking("Hm.").text("I look.").tool_use("look", input()).tool_use("look", input());
        provider.enqueue(calls);
        let answer = ask(&provider, "qwen3", &messages).await;
        let replies = answer.calls().map(|call| reply(call, "green", remarks.clone())).collect::<Vec<_>>();
        assert_eq!(replies.len(), 2);
        messages.extend([assistant("qwen3", answer.blocks), Message::Results(replies)]);
    }
    provider.enqueue(Reply::new().thinking("So.").text("Grüße \u{1F980}"));
    let answer = ask(&provider, "qwen3", &messages).await;
    assert_eq!(answer.text(), "Grüße \u{1F980}");
    messages.extend([assistant("qwen3", answer.blocks), Message::user("and?"), Message::user("well?")]);
    ask(&provider, "qwen3", &messages).await;
    let last = provider.requests().pop().unwrap().body.to_string();
    assert_eq!(last.matches(r#""thinking":"#).count(), 3, "{last}");
    ask(&provider, "deepseek-r1", &messages).await;
    let last = provider.requests().pop().unwrap().body.to_string();
    assert_eq!(last.matches(r#""thinking":"#).count(), 0, "{last}");
}

#[test]
fn a_schema_is_the_format_of_an_answer_that_calls_no_tool() {
    let format = super::super::answer_tool::tests::format(false);
    let tool = super::super::ToolSpec {
        name: "a".into(),
        description: "b".into(),
        input_schema: json!({"type": "object"}),
    };
    let (messages, tools) = ([Message::user("hi")], [tool.into()]);
    let beside_tools = Request { output: Some(&format), ..request(&messages, &tools) };
    assert!(!takes_schema(&beside_tools));
    assert_eq!(body(&ModelProfile::for_tests("m"), &beside_tools)["format"], Value::Null);
    let last = body(&ModelProfile::for_tests("m"), &Request { allow_tool_calls: false, ..beside_tools });
    assert_eq!((&last["format"], &last["tools"]), (&json!(format.schema), &Value::Null));
}
