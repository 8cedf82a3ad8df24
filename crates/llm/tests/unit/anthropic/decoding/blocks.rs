//! Blocks whose events are interleaved, repeated, or missing.

use pretty_assertions::assert_eq;

use super::*;

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
