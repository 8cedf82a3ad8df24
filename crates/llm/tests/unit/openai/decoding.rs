//! Streams from the vendor's documentation and from compatible servers, split into chunks of any size.

use pretty_assertions::assert_eq;
use serde_json::json;

use super::*;
use crate::ModelErrorKind;
use crate::decoder_testing::{decode_to_lines, final_answer, final_error};

/// A stream modelled on the vendor's documentation: text, two calls whose arguments arrive in parts, and the usage
/// in a chunk of its own.
const STREAM: &str = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1694268190,"model":"gpt-5","system_fingerprint":"fp_4","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Grüße"},"finish_reason":null}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" 🦀\n"},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_DdmO9","type":"function","function":{"name":"get_weather","arguments":""}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"location\":"}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"Paris\"}"}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_ABC","type":"function","function":{"name":"get_time","arguments":""}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"id":"chatcmpl-1","choices":[],"usage":{"prompt_tokens":82,"completion_tokens":17,"total_tokens":99,"prompt_tokens_details":{"cached_tokens":64},"completion_tokens_details":{"reasoning_tokens":9}}}

data: [DONE]

"#;

#[test]
fn a_documented_stream_reads_the_same_however_it_is_cut() {
    let expected = [
        "start Text",
        "delta Grüße",
        "delta  🦀\n",
        "stop",
        "start ToolUse",
        "stop",
        "start ToolUse",
        "stop",
        "text Grüße 🦀\n",
        r#"call call_DdmO9 get_weather {"location":"Paris"} None"#,
        "call call_ABC get_time {} None",
        "TokenUsage { input: 82, output: 17, cache_read: 64, cache_write: 0, reasoning: 9, estimated: false }",
    ];
    assert_eq!(decode_to_lines(STREAM, OpenAiDecoder::default), expected);
}

#[test]
fn a_stream_that_ends_before_its_mark_is_broken_wherever_it_ends() {
    let (before_mark, _) = STREAM.split_once("data: [DONE]").unwrap();
    for (at, _) in before_mark.match_indices("\n\n") {
        let error = final_error(&STREAM[..at + 2], OpenAiDecoder::default());
        assert_eq!(error.kind, ModelErrorKind::Broken);
        assert!(error.message.contains("without its end marker"), "{error}");
    }
    let missing_finish_reason =
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n";
    assert!(
        final_error(missing_finish_reason, OpenAiDecoder::default())
            .message
            .contains("without a finish reason")
    );
}

#[test]
fn an_answer_that_breaks_off_costs_what_the_provider_had_told() {
    let (before_mark, _) = STREAM.split_once("data: [DONE]").unwrap();
    let expected =
        TokenUsage { input: 82, output: 17, cache_read: 64, cache_write: 0, reasoning: 9, estimated: false };
    assert_eq!(final_error(before_mark, OpenAiDecoder::default()).usage, expected);
    // The usage comes last: an answer that breaks off before it has reported none.
    let (before_usage, _) = STREAM.split_once(r#"data: {"id":"chatcmpl-1","choices":[],"usage""#).unwrap();
    assert_eq!(final_error(before_usage, OpenAiDecoder::default()).usage, TokenUsage::default());
}

/// A stream of these deltas that ends for `reason`.
pub(in super::super) fn stream(deltas: &[Value], reason: &str) -> String {
    let chunk = |delta: &Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]});
    let mut chunks: Vec<Value> = deltas.iter().map(chunk).collect();
    chunks.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}));
    let lines: Vec<String> = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    lines.concat() + "data: [DONE]\n\n"
}

fn calls(deltas: &[Value], reason: &str) -> Vec<ToolUse> {
    final_answer(&stream(deltas, reason), OpenAiDecoder::default()).calls().cloned().collect()
}

#[test]
fn reasoning_and_refusals_of_compatible_servers_are_shown() {
    let deltas = [
        json!({"reasoning_content": "Hm."}),
        json!({"reasoning_content": "", "content": null, "tool_calls": null}),
        json!({"reasoning_content": null, "content": "So:"}),
        json!({"refusal": " no."}),
        json!({"refusal": {}, "reasoning_details": {}}),
        json!([]),
    ];
    let expected = [
        "start Thinking",
        "delta Hm.",
        "stop",
        "start Text",
        "delta So:",
        "delta  no.",
        "stop",
        r#"thinking Hm. Some("reasoning_content")"#,
        "text So: no.",
        "TokenUsage { input: 0, output: 0, cache_read: 0, cache_write: 0, reasoning: 0, estimated: false }",
    ];
    assert_eq!(decode_to_lines(&stream(&deltas, "stop"), OpenAiDecoder::default), expected);
}

/// Mistral's reasoning models (<https://docs.mistral.ai/capabilities/reasoning>).
#[test]
fn content_may_come_in_chunks_some_of_which_are_thoughts() {
    let thought =
        |text: &str| json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]});
    let deltas = [
        json!({"role": "assistant", "content": ""}),
        json!({"content": [{"type": "thinking", "thinking": "Is it "}]}),
        json!({"content": [{"type": "thinking", "closed": true, "thinking": [
            {"type": "text", "text": "7"}, {"type": "text", "text": "?"}, {"type": "reference", "reference_ids": [1]},
        ]}]}),
        thought(" Hm."),
        json!({"content": [{"type": "text", "text": "Grü"}, {"type": "of_the_future"}, {"type": "text", "text": "ße"}]}),
        json!({"content": "."}),
    ];
    let expected = [
        "start Thinking",
        "delta Is it ",
        "delta 7?",
        "delta  Hm.",
        "stop",
        "start Text",
        "delta Grü",
        "delta ße",
        "delta .",
        "stop",
        r#"thinking Is it 7? Hm. Some("content")"#,
        "text Grüße.",
    ];
    assert_eq!(decode_to_lines(&stream(&deltas, "stop"), OpenAiDecoder::default)[..12], expected);
    let blank =
        final_answer(&stream(&[thought(""), json!({"content": "So."})], "stop"), OpenAiDecoder::default());
    assert_eq!(blank.blocks, [Block::Text { text: "So.".into(), signature: None }]);
}

fn part(index: usize, id: Option<&str>, name: Option<&str>, arguments: &str) -> Value {
    json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]})
}

#[test]
fn ids_and_names_may_be_repeated_and_a_missing_id_is_made_up() {
    let repeated = [part(0, Some("c1"), Some("f"), "{\"a\":"), part(0, Some("c1"), Some("f"), "1}")];
    let [call] = &calls(&repeated, "tool_calls")[..] else { panic!() };
    assert_eq!((call.provider_id.as_str(), call.name.as_str(), &call.input), ("c1", "f", &json!({"a": 1})));
    let without_ids = [part(0, None, Some("f"), "{}"), part(1, Some(""), Some("f"), "{}")];
    let without_ids = calls(&without_ids, "tool_calls");
    assert!(
        !without_ids[0].provider_id.is_empty() && without_ids[0].provider_id != without_ids[1].provider_id
    );
}

#[test]
fn only_the_last_call_of_an_answer_that_was_cut_off_is_marked() {
    for arguments in ["{\"a\":1}", "", "{\"a\":"] {
        let deltas = [part(0, Some("c1"), Some("f"), "{}"), part(1, Some("c2"), Some("f"), arguments)];
        let [first, last] = &calls(&deltas, "length")[..] else { panic!() };
        assert!(first.broken.is_none() && last.broken.is_some(), "{arguments}");
    }
    let mixed = [part(0, Some("c1"), Some("f"), ""), part(1, Some("c2"), Some("f"), "{}")];
    for reason in ["length", "content_filter"] {
        assert!(calls(&mixed, reason).iter().all(|call| call.broken.is_some()), "{reason}");
    }
    assert!(calls(&mixed, "tool_calls").iter().all(|call| call.broken.is_none()));
    let deltas = [part(0, Some("c1"), Some("f"), "{\"a\":")];
    assert!(calls(&deltas, "tool_calls")[0].broken.as_ref().unwrap().contains("not valid JSON"));
}

#[test]
fn errors_in_the_stream_are_told_apart() {
    for (code, kind) in [
        (json!("insufficient_quota"), ModelErrorKind::Quota),
        (json!("server_error"), ModelErrorKind::Busy),
        (json!(503), ModelErrorKind::Busy),
        (json!(null), ModelErrorKind::Busy),
    ] {
        let data = json!({"error": {"message": "The server is overloaded", "code": code}});
        let error = final_error(&format!("data: {data}\n\n"), OpenAiDecoder::default());
        assert_eq!(error.kind, kind);
        assert!(error.message.contains("overloaded"));
    }
    // Within a choice, as in OpenRouter's documentation, and with the usage.
    let in_choice = json!({"choices": [{"delta": {}, "finish_reason": "error", "error": {"code": 400,
        "message": "This endpoint's maximum context length is 8192 tokens."}}], "usage": {"prompt_tokens": 7}});
    let in_choice = final_error(&format!("data: {in_choice}\n\n"), OpenAiDecoder::default());
    assert_eq!((in_choice.kind, in_choice.usage.input), (ModelErrorKind::TooLong, 7), "{in_choice}");
    let with_usage = json!({"error": {"code": 503, "message": "no"}, "usage": {"prompt_tokens": 7}});
    assert_eq!(final_error(&format!("data: {with_usage}\n\n"), OpenAiDecoder::default()).usage.input, 7);
    // Errors of vLLM and llama.cpp; for the latter see <https://github.com/ggml-org/llama.cpp/pull/16109>.
    for (event, kind) in [
        (
            r#"data: {"object":"error","message":"overloaded","type":"BadRequestError","code":400}"#,
            ModelErrorKind::Refused,
        ),
        (
            r#"data: {"object":"error","message":"overloaded","code":503,"usage":"none"}"#,
            ModelErrorKind::Busy,
        ),
        (r#"data: {"error":{"message":"overloaded"},"choices":"none"}"#, ModelErrorKind::Busy),
        (r#"error: {"code":503,"message":"overloaded","type":"unavailable_error"}"#, ModelErrorKind::Busy),
        (
            r#"error: {"code":400,"message":"overloaded","type":"exceed_context_size_error"}"#,
            ModelErrorKind::TooLong,
        ),
    ] {
        let error = final_error(&format!("{event}\n\n"), OpenAiDecoder::default());
        assert_eq!(error.kind, kind, "{event}");
        assert!(error.message.contains("overloaded"), "{error}");
    }
    for data in [
        "{",
        "[]",
        r#"{"choices":[{"delta":{"content":7}}]}"#,
        r#"{"choices":[{"delta":{"content":[7]}}]}"#,
        r#"{"choices":[{"delta":{"content":[{"type":"text","text":7}]}}]}"#,
    ] {
        let error = final_error(&format!("data: {data}\n\n"), OpenAiDecoder::default());
        assert!(
            error.kind == ModelErrorKind::Broken && error.message.contains("malformed event"),
            "{data}: {error}"
        );
    }
}

#[test]
fn reasoning_that_comes_in_several_fields_is_shown_once() {
    let both = [
        json!({"reasoning": "Hm.", "reasoning_content": "Hm."}),
        json!({"reasoning_details": [{"type": "reasoning.summary", "summary": " So.", "index": 0}]}),
        json!({"content": "Yes."}),
    ];
    let lines = decode_to_lines(&stream(&both, "stop"), OpenAiDecoder::default);
    assert_eq!(lines[..5], ["start Thinking", "delta Hm.", "delta  So.", "stop", "start Text"]);
}

#[test]
fn calls_of_servers_without_index_or_id_are_told_apart() {
    let decode = |deltas: &[Value]| {
        let calls = calls(deltas, "tool_calls");
        let ids: std::collections::HashSet<&str> =
            calls.iter().map(|call| call.provider_id.as_str()).collect();
        assert_eq!(ids.len(), calls.len());
        calls.iter().map(|call| (call.name.clone(), call.input.to_string())).collect::<Vec<_>>()
    };
    let call = |id: Option<&str>, name: Option<&str>, arguments: Value| json!({"id": id, "function": {"name": name, "arguments": arguments}});
    let expected = |calls: &[(&str, &str)]| {
        calls.iter().map(|(name, input)| ((*name).to_owned(), (*input).to_owned())).collect::<Vec<_>>()
    };
    let complete = [json!({"tool_calls": [
        call(None, Some("f"), json!("{\"a\":1}")),
        call(Some(""), Some("f"), json!({"b": 2})),
        call(Some("c3"), Some("g"), json!("{}")),
    ]})];
    assert_eq!(decode(&complete), expected(&[("f", "{\"a\":1}"), ("f", "{\"b\":2}"), ("g", "{}")]));
    let in_parts = [
        json!({"tool_calls": [call(Some("c1"), Some("f"), json!("{\"a\""))]}),
        json!({"tool_calls": [call(None, None, json!(":1}"))]}),
        json!({"tool_calls": [call(Some("c2"), Some("g"), json!("{"))]}),
        json!({"tool_calls": [call(Some("c2"), Some("g"), json!("}"))]}),
    ];
    assert_eq!(decode(&in_parts), expected(&[("f", "{\"a\":1}"), ("g", "{}")]));
    let mixed = [
        json!({"tool_calls": [call(Some("c1"), Some("f"), json!("")), call(Some("c2"), Some("g"), json!(""))]}),
        json!({"tool_calls": [call(Some("c1"), None, json!("{\"a\":1}"))]}),
        json!({"tool_calls": [call(Some("c2"), None, json!("{\"b\":2}"))]}),
    ];
    assert_eq!(decode(&mixed), expected(&[("f", "{\"a\":1}"), ("g", "{\"b\":2}")]));
    // All with the same index, like Gemini's early ones.
    for [first, second] in [[json!("{\"a\":1}"), json!("{\"b\":2}")], [json!({"a": 1}), json!({"b": 2})]] {
        for name in ["f", "g"] {
            let one = |name: &str, arguments: &Value| {
                let mut call = call(Some(""), Some(name), arguments.clone());
                call["index"] = json!(0);
                json!({"tool_calls": [call]})
            };
            let calls = decode(&[one("f", &first), one(name, &second)]);
            assert_eq!(calls, expected(&[("f", "{\"a\":1}"), (name, "{\"b\":2}")]));
        }
    }
}

#[test]
fn a_call_that_is_told_once_more_at_the_end_is_made_once() {
    let input = "{\"a\": 1}";
    let decode_calls = |deltas: &[Value]| {
        let calls = calls(deltas, "tool_calls");
        calls.into_iter().map(|call| (call.input, call.broken)).collect::<Vec<_>>()
    };
    let once = (json!({"a": 1}), None);
    for id in [Some("c1"), None] {
        let again = [part(0, id, Some("f"), ""), part(0, None, None, input), part(0, id, Some("f"), input)];
        assert_eq!(decode_calls(&again), std::slice::from_ref(&once));
        let blank = [part(0, id, Some("f"), input), part(0, id, Some("f"), "\n")];
        assert_eq!(decode_calls(&blank), std::slice::from_ref(&once));
    }
    let complete = |id: &str| json!({"id": id, "function": {"name": "f", "arguments": input}});
    let both = json!({"tool_calls": [complete("c1"), complete("c2")]});
    assert_eq!(decode_calls(&[both.clone(), both]), [once.clone(), once]);
}

/// From `OpenRouter`, for models that encrypt their reasoning.
#[test]
fn sealed_reasoning_is_neither_mixed_nor_doubled() {
    let encrypted = |id: Option<&str>, data: &str| json!({"reasoning_details": [{"type": "reasoning.encrypted", "index": 0, "id": id, "data": data}]});
    let deltas = [
        encrypted(Some("a"), "X"),
        encrypted(None, "Y"),
        encrypted(Some("b"), "Z"),
        encrypted(Some("b"), "Z"),
    ];
    let answer = final_answer(&stream(&deltas, "stop"), OpenAiDecoder::default());
    let [Block::Thinking { signature: Some(details), .. }] = &answer.blocks[..] else { panic!("{answer:?}") };
    let details: Value = serde_json::from_str(details).unwrap();
    let details: Vec<_> =
        details.as_array().unwrap().iter().map(|detail| (&detail["id"], &detail["data"])).collect();
    assert_eq!(details, [(&json!("a"), &json!("XY")), (&json!("b"), &json!("Z"))]);
}

#[test]
fn each_servers_reason_to_stop_is_understood() {
    let hi = [json!({"content": "Hi."})];
    for (reason, stop) in [
        ("stop", FinishReason::Done),
        ("tool_calls", FinishReason::Done),
        ("eos", FinishReason::Done),
        ("length", FinishReason::Length),
        ("MAX_TOKENS", FinishReason::Length),
        ("model_length", FinishReason::Length),
        ("model_context_window_exceeded", FinishReason::ContextFull),
        ("content_filter", FinishReason::Refusal),
        ("sensitive", FinishReason::Refusal),
        ("content_filtered", FinishReason::Refusal),
        ("content_filter: SAFETY", FinishReason::Refusal),
        ("RECITATION", FinishReason::Refusal),
    ] {
        assert_eq!(final_answer(&stream(&hi, reason), OpenAiDecoder::default()).stop, stop, "{reason}");
    }
    for reason in ["insufficient_system_resource", "network_error", "error", "abort"] {
        assert_eq!(
            final_error(&stream(&hi, reason), OpenAiDecoder::default()).kind,
            ModelErrorKind::Busy,
            "{reason}"
        );
    }
    // From Gemini behind this protocol.
    for reason in ["function_call_filter: MALFORMED_FUNCTION_CALL", "malformed_function_call"] {
        assert_eq!(
            final_error(&stream(&hi, reason), OpenAiDecoder::default()).kind,
            ModelErrorKind::Broken,
            "{reason}"
        );
    }
    // A missing value as sglang sends it (<https://github.com/sgl-project/sglang/issues/3912>).
    let truncated = stream(&hi, "length");
    let (before, mark) = truncated.rsplit_once("data: [DONE]").unwrap();
    let empty_reason = json!({"choices": [{"delta": {}, "finish_reason": ""}]});
    let repeated = format!("{before}data: {empty_reason}\n\ndata: [DONE]{mark}");
    assert_eq!(final_answer(&repeated, OpenAiDecoder::default()).stop, FinishReason::Length);
    let refusal = [json!({"refusal": "No."})];
    assert_eq!(final_answer(&stream(&refusal, "stop"), OpenAiDecoder::default()).stop, FinishReason::Refusal);
}

#[test]
fn tokens_are_counted_by_any_servers_names() {
    let decode_usage = |usage: Value| {
        let chunks = [
            json!({"choices": [{"delta": {"content": "Hi."}, "finish_reason": "stop", "usage": null}], "usage": null}),
            json!({"choices": null, "usage": usage}),
        ];
        let lines: Vec<String> = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
        final_answer(&(lines.concat() + "data: [DONE]\n\n"), OpenAiDecoder::default()).usage
    };
    let tokens = |cache_read, cache_write, reasoning| TokenUsage {
        estimated: false,
        input: 9,
        output: 5,
        cache_read,
        cache_write,
        reasoning,
    };
    let usage = |more: Value| {
        let mut usage = json!({"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14});
        more.as_object().unwrap().iter().for_each(|(field, value)| usage[field] = value.clone());
        decode_usage(usage)
    };
    assert_eq!(
        usage(json!({"prompt_tokens_details": null, "completion_tokens_details": null})),
        tokens(0, 0, 0)
    );
    let openrouter = json!({"prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 2}, "cost": 0.1});
    assert_eq!(usage(openrouter), tokens(4, 3, 2));
    assert_eq!(usage(json!({"prompt_cache_hit_tokens": 6, "prompt_cache_miss_tokens": 3})), tokens(6, 0, 0));
    assert_eq!(usage(json!({"cached_tokens": 7})), tokens(7, 0, 0));
    assert_eq!(decode_usage(json!({"prompt_tokens": null})), TokenUsage::default());
    let malformed =
        json!({"prompt_tokens": 9.0, "completion_tokens_details": [], "prompt_tokens_details": "none"});
    assert_eq!(usage(malformed), tokens(0, 0, 0));
    assert_eq!(decode_usage(json!("none")), TokenUsage::default());
    let with_usage = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}});
    let malformed_usage = json!({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": "none", "completion_tokens": 5}});
    let stream = format!("data: {with_usage}\n\ndata: {malformed_usage}\n\ndata: [DONE]\n\n");
    assert_eq!(final_answer(&stream, OpenAiDecoder::default()).usage, tokens(0, 0, 0));
    let in_choice = json!({"choices": [{"delta": {}, "finish_reason": "stop",
        "usage": {"prompt_tokens": 9, "completion_tokens": 5}}]});
    let stream = format!("data: {in_choice}\n\ndata: [DONE]\n\n");
    assert_eq!(final_answer(&stream, OpenAiDecoder::default()).usage, tokens(0, 0, 0));
}

#[test]
fn whatever_is_kept_of_reasoning_counts() {
    let counts_bytes = |details: Value| {
        let mut decoder = OpenAiDecoder::default();
        let chunk = json!({"choices": [{"delta": {"reasoning_details": details}}]}).to_string();
        decoder.decode_event(&chunk, &mut VecDeque::new()).unwrap();
        let before = decoder.received();
        decoder.decode_event(&chunk, &mut VecDeque::new()).unwrap();
        (before != ReceivedBytes::default(), decoder.received() != before)
    };
    assert_eq!(counts_bytes(json!([{"index": 1, "data": {"a": [1]}}, {"index": 2}])), (true, true));
    // An identical repetition has no effect.
    assert_eq!(counts_bytes(json!([{"type": "x", "index": 1, "text": "", "format": "f"}])), (true, false));
}
