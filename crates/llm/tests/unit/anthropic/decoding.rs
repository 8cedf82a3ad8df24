//! Streams from the vendor's documentation and from compatible servers, split into chunks of any size.

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

/// How servers that translate another protocol to this one may send the calls of one answer.
#[test]
fn blocks_that_are_open_at_once_are_told_apart() {
    let tool = |id: &str| json!({"type": "tool_use", "id": id, "name": "t", "input": {}});
    let input = |text: &str| json!({"type": "input_json_delta", "partial_json": text});
    let text = |text: &str| json!({"type": "text_delta", "text": text});
    let stop = |index: usize| json!({"type": "content_block_stop", "index": index});
    let events = [
        block_start(0, &json!({"type": "text", "text": ""})),
        block_delta(0, &text("So")),
        block_start(1, &tool("one")),
        block_start(2, &tool("two")),
        block_delta(1, &input("{\"a\":")),
        block_delta(2, &input("{\"b\":")),
        block_delta(0, &text(":")),
        block_delta(1, &input("1}")),
        stop(1),
        stop(1),
        block_delta(2, &input("2}")),
    ];
    let expected = [
        "start Text",
        "delta So",
        "stop",
        "start ToolUse",
        "stop",
        "start ToolUse",
        "stop",
        "start Text",
        "delta :",
        "stop",
        "text So:",
        r#"call one t {"a":1} None"#,
        r#"call two t {"b":2} None"#,
    ];
    let complete = stream(&[&events[..], &end_events("tool_use")].concat());
    assert_eq!(decode_to_lines(&complete, AnthropicDecoder::default)[..13], expected);
    // Truncated: the first call was complete by its own mark.
    let truncated = final_answer(
        &stream(&[&events[..], &end_events("max_tokens")].concat()),
        AnthropicDecoder::default(),
    );
    assert_eq!(truncated.calls().map(|call| call.broken.is_some()).collect::<Vec<_>>(), [false, true]);
    let events = [block_start(1, &tool("one")), block_start(2, &tool("two")), stop(2)];
    let truncated = final_answer(
        &stream(&[&events[..], &end_events("max_tokens")].concat()),
        AnthropicDecoder::default(),
    );
    assert_eq!(truncated.calls().map(|call| call.broken.is_some()).collect::<Vec<_>>(), [true, true]);
}

/// `LiteLLM` and `SGLang` have sent such content (<https://github.com/BerriAI/litellm/issues/33224>,
/// <https://github.com/sgl-project/sglang/issues/26795>).
#[test]
fn what_does_not_fit_its_block_begins_one_or_is_refused_and_never_joins_another() {
    let text = |text: &str| json!({"type": "text_delta", "text": text});
    let thinking = |text: &str| json!({"type": "thinking_delta", "thinking": text});
    let input = |text: &str| json!({"type": "input_json_delta", "partial_json": text});
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "t", "input": {}});
    let stop = |index: usize| json!({"type": "content_block_stop", "index": index});
    let decode = |events: &[Value]| {
        decode_to_lines(&stream(&[events, &end_events("tool_use")].concat()), AnthropicDecoder::default)
    };
    let signature = json!({"type": "signature_delta", "signature": "c2ln"});
    let lines = decode(&[
        block_start(0, &json!({"type": "text"})),
        block_delta(0, &thinking("Hm")),
        block_delta(0, &thinking(".")),
        block_delta(0, &signature),
        block_delta(0, &text("So")),
        block_start(1, &call("one")),
        block_delta(1, &text("!")),
        block_delta(7, &text("?")),
    ]);
    let blocks: Vec<&str> = lines.iter().skip_while(|line| *line != "text ").map(String::as_str).collect();
    let expected =
        ["text ", r#"thinking Hm. Some("c2ln")"#, "text So", "call one t {} None", "text !", "text ?"];
    assert_eq!(blocks[..6], expected, "{lines:?}");
    for events in [
        vec![block_start(0, &call("one")), stop(0), block_delta(1, &input("{\"path\":\"/\"}"))],
        vec![block_start(0, &json!({"type": "text"})), block_delta(0, &input("{}"))],
        vec![block_delta(0, &signature)],
        // For a call that has ended: it would be taken for the other's, which would run without its input.
        vec![
            block_start(0, &call("one")),
            block_delta(0, &input("{}")),
            stop(0),
            block_start(1, &call("two")),
            block_delta(0, &input("{}")),
        ],
    ] {
        assert!(decode(&events).last().unwrap().contains("malformed event"), "{events:?}");
    }
    // The end of a block that does not exist ends no other block.
    let events = [block_start(0, &call("one")), stop(5), block_start(1, &call("two")), stop(1)];
    let truncated = final_answer(
        &stream(&[&events[..], &end_events("max_tokens")].concat()),
        AnthropicDecoder::default(),
    );
    assert!(truncated.calls().all(|call| call.broken.is_some()));
    // llama.cpp begins a call once more before the last part of its input.
    let repeated = [
        block_start(0, &call("one")),
        block_delta(0, &input("{\"a\":")),
        block_start(0, &call("one")),
        block_delta(0, &input("1}")),
        stop(0),
    ];
    let repeated = decode(&repeated);
    assert_eq!(repeated[..3], ["start ToolUse", "stop", r#"call one t {"a":1} None"#], "{repeated:?}");
}

/// A gateway that retries may repeat what it sent before the first attempt failed.
#[test]
fn an_answer_that_begins_again_is_broken_and_no_call_is_made_twice() {
    let start = json!({"type": "message_start", "message": {"usage": {"input_tokens": 7}}});
    let call =
        |id: &str| block_start(0, &json!({"type": "tool_use", "id": id, "name": "t", "input": {"a": 1}}));
    let stop = json!({"type": "content_block_stop", "index": 0});
    let events = [start.clone(), call("one"), stop.clone(), start.clone(), call("two"), stop.clone()];
    let error =
        final_error(&stream(&[&events[..], &end_events("tool_use")].concat()), AnthropicDecoder::default());
    assert!(
        error.kind == ModelErrorKind::Broken && error.message.contains("a second answer begins"),
        "{error}"
    );
    // Before any other content, a second beginning has no effect.
    let events = [start.clone(), start, call("one"), stop.clone(), call("one"), stop];
    let answer =
        final_answer(&stream(&[&events[..], &end_events("tool_use")].concat()), AnthropicDecoder::default());
    assert_eq!(answer.calls().map(|call| call.input.to_string()).collect::<Vec<_>>(), [r#"{"a":1}"#]);
}

/// `LiteLLM` sends a signature at the block's beginning and once more.
#[test]
fn a_signature_that_is_told_twice_is_one() {
    let signature = |text: &str| block_delta(0, &json!({"type": "signature_delta", "signature": text}));
    let events = [
        block_start(0, &json!({"type": "thinking", "thinking": "Hm", "signature": "c2ln"})),
        signature("c2ln"),
        signature(""),
    ];
    let answer =
        final_answer(&stream(&[&events[..], &end_events("end_turn")].concat()), AnthropicDecoder::default());
    let signature = Some("c2ln".to_owned());
    assert_eq!(answer.blocks, [Block::Thinking { thinking: "Hm".into(), signature }]);
}

#[test]
fn an_end_mark_without_a_reason_is_no_end() {
    let events = [block_start(0, &json!({"type": "text", "text": "half"})), json!({"type": "message_stop"})];
    let error = final_error(&stream(&events), AnthropicDecoder::default());
    assert!(
        error.kind == ModelErrorKind::Broken && error.message.contains("without a finish reason"),
        "{error}"
    );
}

/// A block as its kind and its chunks.
fn block() -> impl Strategy<Value = (u8, Vec<String>)> {
    (0..3_u8, prop::collection::vec("[a-z]{0,3}", 0..4))
}

proptest! {
    #[test]
    fn blocks_say_the_same_in_whatever_order_their_pieces_come(
        blocks in prop::collection::vec(block(), 1..5),
        turns in prop::collection::vec(any::<prop::sample::Index>(), 40),
        has_stops in any::<bool>(),
    ) {
        let mut queues: Vec<VecDeque<Value>> = Vec::new();
        let mut expected = Vec::new();
        for (index, (kind, chunks)) in blocks.iter().enumerate() {
            let content = chunks.concat();
            let (block, field, delta, line) = match kind {
                0 => (json!({"type": "text"}), "text", "text_delta", format!("text {content}")),
                1 => (json!({"type": "thinking"}), "thinking", "thinking_delta", format!("thinking {content} None")),
                _ => {
                    let id = format!("c{index}");
                    let line = format!(r#"call {id} t {{"of":"{content}"}} None"#);
                    let call = json!({"type": "tool_use", "id": id, "name": "t", "input": {}});
                    (call, "partial_json", "input_json_delta", line)
                }
            };
            let mut chunks = chunks.clone();
            if *kind > 1 {
                chunks.insert(0, "{\"of\":\"".to_owned());
                chunks.push("\"}".to_owned());
            }
            let deltas = chunks.iter().map(|chunk| block_delta(index, &json!({"type": delta, field: chunk})));
            let stop = has_stops.then(|| json!({"type": "content_block_stop", "index": index}));
            queues.push(std::iter::once(block_start(index, &block)).chain(deltas).chain(stop).collect());
            expected.push((index, line));
        }
        let (mut events, mut order, mut turns) = (Vec::new(), Vec::new(), turns.iter().cycle());
        while let Some(last) = queues.iter().rposition(|queue| !queue.is_empty()) {
            let at = turns.next().unwrap().index(last + 1);
            if let Some(event) = queues[at].pop_front() {
                if event["type"] == "content_block_start" {
                    order.push(at);
                }
                events.push(event);
            }
        }
        events.extend(end_events("tool_use"));
        let lines = decode_to_lines(&stream(&events), AnthropicDecoder::default);
        let is_event_line = |line: &&String| ["start ", "delta ", "stop"].iter().any(|begin| line.starts_with(begin));
        let (event_lines, answer_lines): (Vec<&String>, Vec<&String>) = lines.iter().partition(is_event_line);
        expected.sort_by_key(|(index, _)| order.iter().position(|at| at == index));
        let expected: Vec<&String> = expected.iter().map(|(_, line)| line).collect();
        prop_assert_eq!(&answer_lines[..answer_lines.len() - 1], expected);
        let mut open = false;
        for line in event_lines {
            prop_assert_eq!(open, !line.starts_with("start "), "{:?}", lines);
            open = line != "stop";
        }
        prop_assert!(!open, "{:?}", lines);
    }
}
