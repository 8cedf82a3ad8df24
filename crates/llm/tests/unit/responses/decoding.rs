//! Streams from the vendor's documentation and from compatible servers, split into chunks of any size.

use pretty_assertions::assert_eq;
use serde_json::json;

use super::*;
use crate::decoder_testing::{decode_to_lines, final_answer, final_error};
use crate::{Block, ModelErrorKind};

/// A stream modelled on the vendor's documentation: reasoning with a summary in two parts, a remark, and two calls
/// whose events are interleaved.
pub(in super::super) const STREAM: &str = r#"event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","error":null,"incomplete_details":null,"output":[],"usage":null}}

event: response.in_progress
data: {"type":"response.in_progress","sequence_number":1,"response":{"id":"resp_1","status":"in_progress","output":[]}}

event: response.output_item.added
data: {"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":{"id":"rs_1","type":"reasoning","encrypted_content":"","summary":[]}}

event: response.reasoning_summary_part.added
data: {"type":"response.reasoning_summary_part.added","sequence_number":3,"item_id":"rs_1","output_index":0,"summary_index":0,"part":{"type":"summary_text","text":""}}

event: response.reasoning_summary_text.delta
data: {"type":"response.reasoning_summary_text.delta","sequence_number":4,"item_id":"rs_1","output_index":0,"summary_index":0,"delta":"**Grüße** "}

event: response.reasoning_summary_text.delta
data: {"type":"response.reasoning_summary_text.delta","sequence_number":5,"item_id":"rs_1","output_index":0,"summary_index":0,"delta":"🦀"}

event: response.reasoning_summary_text.done
data: {"type":"response.reasoning_summary_text.done","sequence_number":6,"item_id":"rs_1","output_index":0,"summary_index":0,"text":"**Grüße** 🦀"}

event: response.reasoning_summary_part.added
data: {"type":"response.reasoning_summary_part.added","sequence_number":7,"item_id":"rs_1","output_index":0,"summary_index":1,"part":{"type":"summary_text","text":""}}

event: response.reasoning_summary_text.delta
data: {"type":"response.reasoning_summary_text.delta","sequence_number":8,"item_id":"rs_1","output_index":0,"summary_index":1,"delta":"Two calls."}

event: response.output_item.done
data: {"type":"response.output_item.done","sequence_number":9,"output_index":0,"item":{"id":"rs_1","type":"reasoning","content":null,"encrypted_content":"gAAAAABo==","summary":[{"type":"summary_text","text":"**Grüße** 🦀"},{"type":"summary_text","text":"Two calls."}]}}

event: response.output_item.added
data: {"type":"response.output_item.added","sequence_number":10,"output_index":1,"item":{"id":"msg_1","type":"message","status":"in_progress","content":[],"phase":"commentary","role":"assistant"}}

event: response.content_part.added
data: {"type":"response.content_part.added","sequence_number":11,"item_id":"msg_1","output_index":1,"content_index":0,"part":{"type":"output_text","annotations":[],"logprobs":[],"text":""}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":12,"item_id":"msg_1","output_index":1,"content_index":0,"delta":"I look","logprobs":[],"obfuscation":"x"}

event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":13,"item_id":"msg_1","output_index":1,"content_index":0,"delta":" at both.","logprobs":[]}

event: response.output_item.done
data: {"type":"response.output_item.done","sequence_number":14,"output_index":1,"item":{"id":"msg_1","type":"message","status":"completed","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"I look at both."}],"phase":"commentary","role":"assistant"}}

event: response.output_item.added
data: {"type":"response.output_item.added","sequence_number":15,"output_index":2,"item":{"id":"fc_1","type":"function_call","status":"in_progress","arguments":"","call_id":"call_1","name":"get_weather"}}

event: response.output_item.added
data: {"type":"response.output_item.added","sequence_number":16,"output_index":3,"item":{"id":"fc_2","type":"function_call","status":"in_progress","arguments":"","call_id":"call_2","name":"get_time"}}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","sequence_number":17,"item_id":"fc_1","output_index":2,"delta":"{\"location\":"}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","sequence_number":18,"item_id":"fc_2","output_index":3,"delta":"{}"}

event: response.output_item.done
data: {"type":"response.output_item.done","sequence_number":19,"output_index":3,"item":{"id":"fc_2","type":"function_call","status":"completed","arguments":"{}","call_id":"call_2","name":"get_time"}}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","sequence_number":20,"item_id":"fc_1","output_index":2,"delta":"\"Paris\"}"}

event: response.function_call_arguments.done
data: {"type":"response.function_call_arguments.done","sequence_number":21,"item_id":"fc_1","output_index":2,"name":"get_weather","arguments":"{\"location\":\"Paris\"}"}

event: response.output_item.done
data: {"type":"response.output_item.done","sequence_number":22,"output_index":2,"item":{"id":"fc_1","type":"function_call","status":"completed","arguments":"{\"location\":\"Paris\"}","call_id":"call_1","name":"get_weather"}}

event: response.of_the_future
data: {"type":"response.of_the_future","sequence_number":23}

event: response.completed
data: {"type":"response.completed","sequence_number":24,"response":{"id":"resp_1","status":"completed","error":null,"incomplete_details":null,"output":[],"usage":{"input_tokens":82,"input_tokens_details":{"cached_tokens":64},"output_tokens":17,"output_tokens_details":{"reasoning_tokens":9},"total_tokens":99}}}

"#;

#[test]
fn a_documented_stream_reads_the_same_however_it_is_cut() {
    let reasoning = r#"thinking **Grüße** 🦀

Two calls. Some("{\"encrypted_content\":\"gAAAAABo==\",\"id\":\"rs_1\",\"summary\":[{\"text\":\"**Grüße** 🦀\",\"type\":\"summary_text\"},{\"text\":\"Two calls.\",\"type\":\"summary_text\"}],\"type\":\"reasoning\"}")"#;
    let expected = [
        "start Thinking",
        "delta **Grüße** ",
        "delta 🦀",
        "delta \n\n",
        "delta Two calls.",
        "stop",
        "start Text",
        "delta I look",
        "delta  at both.",
        "stop",
        "start ToolUse",
        "stop",
        "start ToolUse",
        "stop",
        reasoning,
        "text I look at both.",
        r#"call call_1 get_weather {"location":"Paris"} None"#,
        "call call_2 get_time {} None",
        "TokenUsage { input: 82, output: 17, cache_read: 64, cache_write: 0, reasoning: 9, estimated: false }",
    ];
    assert_eq!(decode_to_lines(STREAM, ResponsesDecoder::default), expected);
    assert_eq!(final_answer(STREAM, ResponsesDecoder::default()).stop, FinishReason::Done);
}

#[test]
fn a_stream_that_ends_before_its_mark_is_broken_wherever_it_ends() {
    let (before_mark, _) = STREAM.split_once("event: response.completed").unwrap();
    for (at, _) in before_mark.match_indices("\n\n") {
        let error = final_error(&STREAM[..at + 2], ResponsesDecoder::default());
        assert_eq!(error.kind, ModelErrorKind::Broken);
        assert!(error.message.contains("without its end marker"), "{error}");
        assert_eq!(error.usage, TokenUsage::default());
    }
}

pub(in super::super) fn stream(events: &[Value]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect::<Vec<_>>().concat()
}

fn call_item(index: usize, arguments: &str, event: &str) -> Value {
    let item = json!({"type": "function_call", "call_id": format!("call_{index}"), "name": "t",
        "arguments": arguments});
    json!({"type": format!("response.output_item.{event}"), "output_index": index, "item": item})
}

fn arguments(index: usize, delta: &str) -> Value {
    json!({"type": "response.function_call_arguments.delta", "output_index": index, "delta": delta})
}

pub(in super::super) fn ended(status: &str, reason: Option<&str>) -> Value {
    json!({"type": format!("response.{status}"), "response": {"status": status, "output": [],
        "incomplete_details": reason.map(|reason| json!({"reason": reason})),
        "usage": {"input_tokens": 7, "output_tokens": 5}}})
}

#[test]
fn an_answer_that_was_cut_off_says_so_and_its_last_call_is_marked() {
    let decode = |events: &[Value]| final_answer(&stream(events), ResponsesDecoder::default());
    let broken = |answer: &Answer| answer.calls().map(|call| call.broken.is_some()).collect::<Vec<bool>>();
    for text in ["{\"a\":1}", "", "{\"a\":"] {
        let first_events =
            [call_item(0, "{}", "added"), call_item(0, "{}", "done"), call_item(1, "", "added")];
        let truncated = [arguments(1, text), ended("incomplete", Some("max_output_tokens"))];
        let answer = decode(&[first_events.as_slice(), &truncated].concat());
        assert_eq!((broken(&answer), answer.stop), (vec![false, true], FinishReason::Length), "{text}");
        // Complete by its own mark, but the last item before the truncation.
        let completed_call = [call_item(1, text, "done"), ended("incomplete", Some("max_output_tokens"))];
        assert_eq!(
            broken(&decode(&[first_events.as_slice(), &completed_call].concat())),
            [false, true],
            "{text}"
        );
    }
    // LiteLLM reports a truncated answer in this form.
    let mut completed = ended("incomplete", None);
    completed["type"] = json!("response.completed");
    let as_completed = decode(&[call_item(0, "", "added"), call_item(0, "", "done"), completed]);
    assert_eq!((broken(&as_completed), as_completed.stop), (vec![true], FinishReason::Length));
    let filtered = [call_item(0, "{}", "added"), ended("incomplete", Some("content_filter"))];
    let filtered = decode(&filtered);
    assert_eq!((broken(&filtered), filtered.stop), (vec![true], FinishReason::Refusal));
}

#[test]
fn a_model_that_declines_is_shown_and_told_apart() {
    let declined = stream(&[
        json!({"type": "response.refusal.delta", "output_index": 0, "content_index": 0, "delta": "I "}),
        json!({"type": "response.refusal.delta", "output_index": 0, "content_index": 0, "delta": "cannot."}),
        ended("completed", None),
    ]);
    let expected = [
        "start Text",
        "delta I ",
        "delta cannot.",
        "stop",
        "text I cannot.",
        "TokenUsage { input: 7, output: 5, cache_read: 0, cache_write: 0, reasoning: 0, estimated: false }",
    ];
    assert_eq!(decode_to_lines(&declined, ResponsesDecoder::default), expected);
    assert_eq!(final_answer(&declined, ResponsesDecoder::default()).stop, FinishReason::Refusal);
}

#[test]
fn servers_that_stream_less_are_read_too() {
    let message = json!({"type": "message", "content": [{"type": "output_text", "text": "Hi."},
        {"type": "refusal", "refusal": " No."}]});
    let call = json!({"type": "function_call", "name": "t", "arguments": "{\"a\":1}"});
    let search = json!({"type": "web_search_call", "id": "ws_1"});
    let mut end = ended("completed", None);
    end["response"]["output"] = json!([search, message, call]);
    let answer = final_answer(&stream(&[end]), ResponsesDecoder::default());
    assert_eq!(answer.text(), "Hi. No.");
    let call = answer.calls().next().unwrap();
    assert_eq!((&call.input, &call.broken), (&json!({"a": 1}), &None));
    assert_eq!(call.provider_id, call.call_id.to_string());
    // No beginning or end of the items, but the end marker of the older protocol.
    let deltas = [
        json!({"type": "response.reasoning_text.delta", "delta": "Hm."}),
        json!({"type": "response.output_text.delta", "output_index": 1, "delta": "Hi."}),
        ended("completed", None),
    ];
    let lines = decode_to_lines(&(stream(&deltas) + "data: [DONE]\n\n"), ResponsesDecoder::default);
    let expected = [
        "start Thinking",
        "delta Hm.",
        "stop",
        "start Text",
        "delta Hi.",
        "stop",
        "thinking Hm. None",
        "text Hi.",
    ];
    assert_eq!(lines[..8], expected);
}

fn at(mut event: Value, number: Option<usize>) -> Value {
    event["output_index"] = json!(number);
    event
}

fn item(kind: &str, of: &Value) -> Value {
    json!({"type": format!("response.output_item.{kind}"), "item": of})
}

/// `LiteLLM`'s bridge from Chat Completions gives reasoning and text the same index, and counts calls from there.
#[test]
fn an_index_that_two_kinds_share_and_that_the_end_does_not_keep_mixes_and_doubles_nothing() {
    let (reasoning, message) =
        (json!({"type": "reasoning", "id": "r"}), json!({"type": "message", "content": [{"text": "So."}]}));
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "t", "arguments": "{}"});
    let mut end = ended("completed", None);
    end["response"]["output"] = json!([reasoning, message, call("one"), call("two")]);
    let text = |kind: &str, text: &str| json!({"type": format!("response.{kind}.delta"), "output_index": 0, "delta": text});
    let events = [
        at(item("added", &reasoning), Some(0)),
        text("reasoning_summary_text", "Hm."),
        at(item("done", &reasoning), Some(0)),
        text("output_text", "So."),
        at(item("added", &call("one")), Some(1)),
        at(item("done", &call("one")), Some(1)),
        at(item("added", &call("two")), Some(2)),
        at(item("done", &call("two")), Some(2)),
        end,
    ];
    let lines = decode_to_lines(&stream(&events), ResponsesDecoder::default);
    let expected = [
        "start Thinking",
        "delta Hm.",
        "stop",
        "start Text",
        "delta So.",
        "stop",
        "start ToolUse",
        "stop",
        "start ToolUse",
        "stop",
        "thinking Hm. None",
        "text So.",
        "call one t {} None",
        "call two t {} None",
    ];
    assert_eq!(lines[..14], expected);
}

/// llama.cpp sends no index: items have ids, and the final response contains all of them.
#[test]
fn items_without_an_index_are_told_apart_by_their_ids() {
    let call = |id: &str, input: &str| json!({"type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": "t", "arguments": input});
    let input = |id: &str, delta: &str| json!({"type": "response.function_call_arguments.delta", "item_id": format!("fc_{id}"), "delta": delta});
    let message =
        json!({"type": "message", "id": "m", "content": [{"type": "output_text", "text": "I look."}]});
    let mut end = ended("completed", None);
    end["response"]["output"] = json!([message, call("one", "{\"a\":1}"), call("two", "{\"b\":2}")]);
    let events = [
        item("added", &json!({"type": "message", "id": "m"})),
        json!({"type": "response.output_text.delta", "item_id": "m", "delta": "I look."}),
        item("added", &call("one", "")),
        input("one", "{\"a\":1}"),
        item("added", &call("two", "")),
        input("two", "{\"b\":2}"),
        item("done", &message),
        item("done", &call("one", "{\"a\":1}")),
        item("done", &call("two", "{\"b\":2}")),
        end,
    ];
    for events in [
        events.to_vec(),
        events
            .iter()
            .filter(|event| event["item"]["id"] != "fc_one" && event["item_id"] != "fc_one")
            .cloned()
            .collect(),
    ] {
        let answer = final_answer(&stream(&events), ResponsesDecoder::default());
        assert_eq!(answer.text(), "I look.");
        let calls: Vec<_> =
            answer.calls().map(|call| (call.provider_id.as_str(), call.input.to_string())).collect();
        assert_eq!(calls, [("one", "{\"a\":1}".to_owned()), ("two", "{\"b\":2}".to_owned())]);
    }
}

/// llama.cpp's stream until June 2026: a call has only its own id, which also identifies its item.
#[test]
fn a_call_without_an_id_for_its_item_is_made_once() {
    let call = |id: &str, input: &str| json!({"type": "function_call", "call_id": format!("fc_{id}"), "name": "t", "arguments": input});
    let input = |id: &str, delta: &str| json!({"type": "response.function_call_arguments.delta", "item_id": format!("fc_{id}"), "delta": delta});
    for ids in [&["one"][..], &["one", "two"]] {
        let complete: Vec<Value> = ids.iter().map(|id| call(id, &format!("{{\"of\":\"{id}\"}}"))).collect();
        let mut events = Vec::new();
        for (id, complete) in ids.iter().zip(&complete) {
            let arguments = complete["arguments"].as_str().unwrap();
            events.extend([item("added", &call(id, "")), input(id, arguments)]);
        }
        events.extend(complete.iter().map(|complete| item("done", complete)));
        let mut end = ended("completed", None);
        end["response"]["output"] = json!(complete);
        events.push(end);
        let answer = final_answer(&stream(&events), ResponsesDecoder::default());
        let calls: Vec<_> =
            answer.calls().map(|call| (&*call.provider_id, call.input["of"].clone())).collect();
        let expected: Vec<_> = ids.iter().map(|id| (format!("fc_{id}"), json!(id))).collect();
        assert_eq!(calls, expected.iter().map(|(id, of)| (&**id, of.clone())).collect::<Vec<_>>());
    }
}

/// vLLM (<https://github.com/vllm-project/vllm/issues/47916>).
#[test]
fn a_call_that_has_another_id_at_the_end_is_made_once() {
    let call = |id: &str, name: &str| json!({"type": "function_call", "call_id": id, "name": name, "arguments": "{\"a\":1}"});
    let mut events = Vec::new();
    for (index, name) in ["f", "g", "f"].into_iter().enumerate() {
        let call = call(&format!("streamed_{index}"), name);
        events.extend([at(item("added", &call), Some(index)), at(item("done", &call), Some(index))]);
    }
    let mut end = ended("completed", None);
    end["response"]["output"] =
        json!([call("end_0", "f"), call("end_1", "g"), call("end_2", "f"), call("more", "h")]);
    events.push(end);
    let answer = final_answer(&stream(&events), ResponsesDecoder::default());
    let calls: Vec<&str> = answer.calls().map(|call| call.provider_id.as_str()).collect();
    assert_eq!(calls, ["streamed_0", "streamed_1", "streamed_2", "more"]);
}

#[test]
fn a_call_of_which_only_the_beginning_was_told_is_marked() {
    let events = [call_item(0, "", "added"), ended("completed", None)];
    assert!(
        final_answer(&stream(&events), ResponsesDecoder::default()).calls().all(|call| call.broken.is_some())
    );
    let events = [call_item(0, "", "added"), call_item(0, "", "done"), ended("completed", None)];
    assert!(
        final_answer(&stream(&events), ResponsesDecoder::default()).calls().all(|call| call.broken.is_none())
    );
}

#[test]
fn what_only_an_item_tells_is_read() {
    let reasoning =
        json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]});
    let refusal = json!({"type": "message", "content": [{"type": "refusal", "refusal": "No."}]});
    let events = [
        at(item("done", &reasoning), Some(0)),
        at(item("done", &refusal), Some(1)),
        ended("completed", None),
    ];
    let answer = final_answer(&stream(&events), ResponsesDecoder::default());
    let thinking = Block::Thinking { thinking: "Hm.".into(), signature: None };
    assert_eq!(answer.blocks, [thinking, Block::Text { text: "No.".into(), signature: None }]);
    assert_eq!(answer.stop, FinishReason::Refusal);
}

#[test]
fn errors_in_the_stream_are_told_apart_and_cost_what_they_cost() {
    let failed = json!({"type": "response.failed", "response": {"status": "failed",
        "error": {"code": "server_error", "message": "Sorry."}, "usage": {"input_tokens": 7, "output_tokens": 5}}});
    let failed = final_error(&stream(&[failed]), ResponsesDecoder::default());
    assert_eq!((failed.kind, failed.usage.input, failed.usage.output), (ModelErrorKind::Busy, 7, 5));
    assert!(failed.message.contains("Sorry."), "{failed}");
    let too_long = json!({"type": "error", "sequence_number": 2, "error": {"type": "invalid_request_error",
        "code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}});
    assert_eq!(final_error(&stream(&[too_long]), ResponsesDecoder::default()).kind, ModelErrorKind::TooLong);
    let quota = json!({"type": "error", "code": "insufficient_quota", "message": "no", "param": null});
    assert_eq!(final_error(&stream(&[quota]), ResponsesDecoder::default()).kind, ModelErrorKind::Quota);
    for status in ["failed", "cancelled"] {
        let mut aborted = ended(status, None);
        aborted["type"] = json!("response.completed");
        let aborted = final_error(&stream(&[aborted]), ResponsesDecoder::default());
        assert_eq!((aborted.kind, aborted.usage.input), (ModelErrorKind::Busy, 7), "{status}");
    }
    for malformed in [
        json!({"type": "response.failed"}),
        json!({"type": "response.failed", "response": "no object"}),
        json!({"error": {"message": "Sorry."}}),
        json!({"error": "Sorry.", "response": 1}),
    ] {
        assert_eq!(
            final_error(&stream(&[malformed]), ResponsesDecoder::default()).kind,
            ModelErrorKind::Busy
        );
    }
    for data in [
        "{",
        "[]",
        "{}",
        r#"{"type":"response.output_text.delta"}"#,
        r#"{"type":"response.output_text.delta","delta":1}"#,
        r#"{"type":"response.output_text.delta","output_index":"0","delta":"of no item"}"#,
        r#"{"type":"response.output_item.added"}"#,
        r#"{"type":"response.completed"}"#,
        r#"{"type":"response.completed","response":"no object"}"#,
    ] {
        let error = final_error(&format!("data: {data}\n\n"), ResponsesDecoder::default());
        assert!(
            error.kind == ModelErrorKind::Broken && error.message.contains("malformed event"),
            "{data}: {error}"
        );
    }
}

#[test]
fn what_is_of_no_type_of_ours_may_have_any_form() {
    let unknown = json!({"type": "response.of_the_future", "delta": {"a": 1}, "item": 1, "response": "no object", "output_index": "0"});
    let (before, after) = STREAM.split_once("event: response.completed").unwrap();
    let with_unknown = format!("{before}data: {unknown}\n\nevent: response.completed{after}");
    assert_eq!(
        decode_to_lines(&with_unknown, ResponsesDecoder::default),
        decode_to_lines(STREAM, ResponsesDecoder::default)
    );
    let unknown = [
        json!({"type": "response.reasoning_summary_part.added", "output_index": 1, "delta": {}, "item": 1}),
        json!({"type": "response.output_text.delta", "output_index": null, "delta": "Hi.", "response": 1}),
        json!({"type": "response.completed", "output_index": -1, "response": {"output": null, "usage": {
            "input_tokens": 7.0, "output_tokens": null, "input_tokens_details": [], "output_tokens_details": 0,
        }}}),
    ];
    let answer = final_answer(&stream(&unknown), ResponsesDecoder::default());
    assert_eq!((answer.text().as_str(), answer.usage.input, answer.usage.output), ("Hi.", 7, 0));
    let data = json!({"type": "error", "response": "no object", "code": "insufficient_quota"});
    assert_eq!(final_error(&stream(&[data]), ResponsesDecoder::default()).kind, ModelErrorKind::Quota);
}
