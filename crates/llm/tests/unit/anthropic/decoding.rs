//! Streams from the vendor's documentation and from compatible servers, split into chunks of any size.

#[path = "decoding/blocks.rs"]
mod blocks;

use pretty_assertions::assert_eq;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::decoder_testing::{decode_to_lines, final_answer, final_error};
use crate::{ModelErrorKind, TokenUsage};

fn stream(events: &[Value]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect::<Vec<_>>().concat()
}

/// A stream modelled on the vendor's documentation: thinking with its signature in parts, text, pings, an event of
/// an unknown type, and a tool call whose input arrives in parts.
const STREAM: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_01","type":"message","role":"assistant","content":[],"model":"claude-sonnet-4-5","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":472,"cache_creation_input_tokens":20,"cache_read_input_tokens":1000,"output_tokens":2}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Is it cold? "}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Grüße 🦀"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQBCgIYAhIM"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"1gbcDa9GJwZA=="}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"EmwKAhgBEgy3va3"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

: a comment, which some proxies send to keep a connection open

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"Okay"}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"of_the_future","text":"?"}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":", let's\ncheck"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: content_block_start
data: {"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"toolu_01T1x1fJ34qAmk2tNTrN7Up6","name":"get_weather","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"{\"location\":"}}

event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":" \"San Francisco, CA\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":3}

event: event_of_the_future
data: {"type":"event_of_the_future","index":4}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":89}}

event: message_stop
data: {"type":"message_stop"}

"#;

#[test]
fn a_documented_stream_reads_the_same_however_it_is_cut() {
    let expected = [
        "start Thinking",
        "delta Is it cold? ",
        "delta Grüße 🦀",
        "stop",
        "start Text",
        "delta Okay",
        "delta , let's\ncheck",
        "stop",
        "start ToolUse",
        "stop",
        r#"thinking Is it cold? Grüße 🦀 Some("EqQBCgIYAhIM1gbcDa9GJwZA==")"#,
        "redacted EmwKAhgBEgy3va3",
        "text Okay, let's\ncheck",
        r#"call toolu_01T1x1fJ34qAmk2tNTrN7Up6 get_weather {"location":"San Francisco, CA"} None"#,
        "TokenUsage { input: 1492, output: 89, cache_read: 1000, cache_write: 20, reasoning: 0, estimated: false }",
    ];
    assert_eq!(decode_to_lines(STREAM, AnthropicDecoder::default), expected);
}

#[test]
fn a_stream_that_ends_before_its_mark_is_broken_wherever_it_ends() {
    let (before_mark, _) = STREAM.split_once("event: message_stop").unwrap();
    for (at, _) in before_mark.match_indices("\n\n") {
        let error = final_error(&STREAM[..at + 2], AnthropicDecoder::default());
        assert_eq!(error.kind, ModelErrorKind::Broken);
        assert!(error.message.contains("without its end marker"), "{error}");
    }
}

#[test]
fn errors_in_the_stream_are_told_apart() {
    use ModelErrorKind::{Auth, Broken, Busy, Quota, Refused};
    for (kind, expected) in [
        ("overloaded_error", Busy),
        ("api_error", Busy),
        ("rate_limit_error", Busy),
        ("timeout_error", Busy),
        ("invalid_request_error", Refused),
        ("authentication_error", Auth),
        ("permission_error", Auth),
        ("billing_error", Quota),
    ] {
        let data = json!({"type": "error", "error": {"type": kind, "message": "Overloaded"}});
        let error = final_error(&format!("event: error\ndata: {data}\n\n"), AnthropicDecoder::default());
        assert_eq!(error.kind, expected, "{kind}");
        assert!(error.message.contains("Overloaded"));
    }
    // From servers that omit the type, or the object.
    for data in [
        json!({"error": {"type": "overloaded_error", "message": "Overloaded"}}),
        json!({"type": "error", "message": "Overloaded", "delta": 1}),
        json!({"error": "Overloaded"}),
        json!([{"error": {"type": "overloaded_error", "message": "Overloaded"}}]),
    ] {
        let error = final_error(&format!("event: error\ndata: {data}\n\n"), AnthropicDecoder::default());
        assert_eq!(error.kind, Busy, "{data}");
        assert!(error.message.contains("Overloaded"), "{error}");
    }
    for data in [
        "{",
        "[]",
        "{}",
        r#"{"type":"content_block_delta","index":0}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta"}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":1}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"text":"of no type"}}"#,
        r#"{"type":"content_block_start","index":0,"content_block":"no object"}"#,
        r#"{"type":"content_block_delta","index":"0","delta":{"type":"text_delta","text":"of no block"}}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":1}}"#,
    ] {
        let error = final_error(&format!("data: {data}\n\n"), AnthropicDecoder::default());
        assert!(error.kind == Broken && error.message.contains("malformed event"), "{data}: {error}");
    }
}

#[test]
fn what_is_of_no_type_of_ours_may_have_any_form() {
    let unknown = [
        json!({"type": "of_the_future", "message": "no object", "delta": 1, "usage": [], "index": "0"}),
        json!({"type": "content_block_delta", "index": 2, "delta": {"type": "of_the_future", "text": {"a": 1}}}),
    ];
    let (before, after) = STREAM.split_once("event: message_delta").unwrap();
    let with_unknown = format!("{before}{}event: message_delta{after}", stream(&unknown));
    assert_eq!(
        decode_to_lines(&with_unknown, AnthropicDecoder::default),
        decode_to_lines(STREAM, AnthropicDecoder::default)
    );
    let data = json!({"type": "error", "message": "no object", "error": {"type": "overloaded_error"}});
    assert_eq!(
        final_error(&format!("data: {data}\n\n"), AnthropicDecoder::default()).kind,
        ModelErrorKind::Busy
    );
}

#[test]
fn what_is_not_needed_may_be_of_any_form() {
    for (as_documented, variant) in [
        (
            r#""type":"content_block_stop","index":0"#,
            r#""type":"content_block_stop","index":0,"delta":"none""#,
        ),
        (r#""thinking":"","signature":"""#, r#""thinking":null,"signature":null"#),
        (r#""thinking":"","signature":"""#, r#""thinking":"""#),
        (r#""content_block":{"type":"text","text":""}"#, r#""content_block":{"type":"text","text":null}"#),
        (r#""input_tokens":472"#, r#""input_tokens":472.0"#),
        (r#""output_tokens":2}"#, r#""output_tokens":null,"output_tokens_details":[]}"#),
        (r#"{"type":"message_stop"}"#, r#"{"type":"message_stop","usage":"none","index":"none"}"#),
        (r#""index":2"#, r#""index":2.0"#),
        (r#""partial_json":"""#, r#""partial_json":null"#),
        (
            r#""usage":{"output_tokens":89}"#,
            r#""usage":{"output_tokens":89,"input_tokens":0,"cache_read_input_tokens":-1}"#,
        ),
        ("event: message_stop", "data: [DONE]\n\nevent: message_stop"),
    ] {
        let changed_stream = STREAM.replace(as_documented, variant);
        assert_ne!(changed_stream, STREAM, "{as_documented}");
        assert_eq!(
            decode_to_lines(&changed_stream, AnthropicDecoder::default),
            decode_to_lines(STREAM, AnthropicDecoder::default),
            "{variant}"
        );
    }
    for start in [r#"{"type":"message_start"}"#, r#"{"type":"message_start","message":{"usage":[]}}"#] {
        let (_, rest) = STREAM.split_once("\n\n").unwrap();
        let answer = final_answer(&format!("data: {start}\n\n{rest}"), AnthropicDecoder::default());
        assert_eq!(answer.usage, TokenUsage { output: 89, ..TokenUsage::default() }, "{start}");
    }
    let huge = STREAM.replace(r#""input_tokens":472"#, &format!(r#""input_tokens":{}"#, u64::MAX));
    assert_eq!(final_answer(&huge, AnthropicDecoder::default()).usage.input, u64::MAX);
}

#[test]
fn an_answer_that_breaks_off_costs_what_the_provider_had_told() {
    let usage_with_output = |output| TokenUsage {
        input: 1492,
        output,
        cache_read: 1000,
        cache_write: 20,
        reasoning: 0,
        estimated: false,
    };
    let usage_of = |stream: &str| final_error(stream, AnthropicDecoder::default()).usage;
    let (start, _) = STREAM.split_once("event: content_block_stop").unwrap();
    let (before_mark, _) = STREAM.split_once("event: message_stop").unwrap();
    assert_eq!(usage_of(""), TokenUsage::default());
    // The first output count is a placeholder: the output is estimated from the received content instead.
    assert_eq!(usage_of(start), usage_with_output(0));
    assert_eq!(usage_of(before_mark), usage_with_output(89));
    let overloaded = json!({"type": "error", "error": {"type": "overloaded_error"}});
    for last in [overloaded.to_string(), "{".into()] {
        assert_eq!(usage_of(&format!("{start}data: {last}\n\n")), usage_with_output(0), "{last}");
    }
}

/// The call of an answer with this streamed input that ended for `reason`.
fn stopped_for(reason: &str, input: &str) -> ToolUse {
    let input = json!({"type": "input_json_delta", "partial_json": input});
    let events = [
        json!({"type": "message_start", "message": {"usage": {"input_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0,
               "content_block": {"type": "tool_use", "id": "toolu_1", "name": "t", "input": {}}}),
        json!({"type": "content_block_delta", "index": 0, "delta": input}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 1}}),
        json!({"type": "message_stop"}),
    ];
    final_answer(&stream(&events), AnthropicDecoder::default()).calls().next().unwrap().clone()
}

/// Kimi omits the event (<https://github.com/xemantic/anthropic-sdk-kotlin/issues/147>).
#[test]
fn blocks_that_nobody_ends_are_whole_where_the_next_begins_and_at_the_end() {
    let call = |id: &str| {
        let block = json!({"type": "tool_use", "id": id, "name": "t", "input": {"of": id}});
        json!({"type": "content_block_start", "content_block": block})
    };
    let end = json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}});
    let events = [call("one"), call("two"), end, json!({"type": "message_stop"})];
    let answer = final_answer(&stream(&events), AnthropicDecoder::default());
    let inputs: Vec<&Value> = answer.calls().map(|call| &call.input).collect();
    assert_eq!(inputs, [&json!({"of": "one"}), &json!({"of": "two"})]);
}

#[test]
fn a_call_that_the_answer_was_cut_off_in_is_marked() {
    let complete = stopped_for("tool_use", "{\"a\":1}");
    assert_eq!((complete.input, complete.broken), (json!({"a": 1}), None));
    for reason in ["max_tokens", "model_context_window_exceeded", "refusal"] {
        // Complete by chance, or truncated before its first character: neither may be run.
        for input in ["{\"a\":1}", "", "{\"a\":"] {
            assert!(stopped_for(reason, input).broken.is_some(), "{reason} {input}");
        }
    }
    assert_eq!(stopped_for("tool_use", "").broken, None);
}

/// Gateways that translate Chat Completions pass on finish reasons that they do not know.
#[test]
fn a_reason_to_end_is_known_in_the_words_of_the_other_protocol_too() {
    for reason in ["length", "content_filter", "sensitive"] {
        assert!(stopped_for(reason, "").broken.is_some(), "{reason}");
    }
    for (reason, kind, message) in [
        ("network_error", ModelErrorKind::Busy, "aborted its answer: network_error"),
        ("", ModelErrorKind::Broken, "without a finish reason"),
    ] {
        let events =
            [vec![block_start(0, &json!({"type": "text", "text": "half"}))], end_events(reason).to_vec()]
                .concat();
        let error = final_error(&stream(&events), AnthropicDecoder::default());
        assert!(error.kind == kind && error.message.contains(message), "{reason}: {error}");
    }
}

#[test]
fn a_call_may_come_whole_and_thinking_is_counted_where_it_is_told() {
    let events = [
        json!({"type": "message_start", "message": {"usage": {"input_tokens": 1, "service_tier": "standard"}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking",
            "thinking": "Hm", "signature": "c2ln"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use",
            "id": "toolu_1", "name": "t", "input": {"a": 1}, "caller": {"type": "direct"}}}),
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "content_block_start", "index": 2, "content_block": {"type": "server_tool_use",
            "id": "srvtoolu_1", "name": "web_search", "input": {}}}),
        json!({"type": "content_block_stop", "index": 2}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "context_management": null,
            "usage": {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 4}}}),
        json!({"type": "message_delta", "delta": {}}),
        json!({"type": "message_stop"}),
    ];
    let expected = [
        "start Thinking",
        "delta Hm",
        "stop",
        "start ToolUse",
        "stop",
        r#"thinking Hm Some("c2ln")"#,
        r#"call toolu_1 t {"a":1} None"#,
        "TokenUsage { input: 1, output: 9, cache_read: 0, cache_write: 0, reasoning: 4, estimated: false }",
    ];
    assert_eq!(decode_to_lines(&stream(&events), AnthropicDecoder::default), expected);
}

fn block_start(index: usize, block: &Value) -> Value {
    json!({"type": "content_block_start", "index": index, "content_block": block})
}

fn block_delta(index: usize, delta: &Value) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

fn end_events(reason: &str) -> [Value; 2] {
    let end = json!({"type": "message_delta", "delta": {"stop_reason": reason}});
    [end, json!({"type": "message_stop"})]
}
