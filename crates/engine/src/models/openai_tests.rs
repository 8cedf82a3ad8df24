//! The protocol as its documentation shows it, read in pieces of any size, and what is sent back.

use pretty_assertions::assert_eq;

use super::super::decoding::{answer, error, told};
use super::super::media::tests::{image, pdf, plain};
use super::super::{ToolReply, ToolSpec};
use super::*;

/// A stream after the vendor's documentation: text, two calls whose arguments come in parts, and the usage in a
/// chunk of its own.
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
        "Tokens { input: 82, output: 17, cache_read: 64, cache_write: 0, reasoning: 9 }",
    ];
    assert_eq!(told(STREAM, Decoding::default), expected);
}

#[test]
fn a_stream_that_ends_before_its_mark_is_broken_wherever_it_ends() {
    let (before_mark, _) = STREAM.split_once("data: [DONE]").unwrap();
    for (at, _) in before_mark.match_indices("\n\n") {
        let error = error(&STREAM[..at + 2], Decoding::default());
        assert_eq!(error.kind, ModelErrorKind::Broken);
        assert!(error.message.contains("without its end mark"), "{error}");
    }
    let no_reason = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n";
    assert!(error(no_reason, Decoding::default()).message.contains("without saying why"));
}

#[test]
fn an_answer_that_breaks_off_costs_what_the_provider_had_told() {
    let (before_mark, _) = STREAM.split_once("data: [DONE]").unwrap();
    let expected = Tokens { input: 82, output: 17, cache_read: 64, cache_write: 0, reasoning: 9 };
    assert_eq!(error(before_mark, Decoding::default()).spent, expected);
    // The usage comes last: an answer that breaks off before has told nothing.
    let (before_usage, _) = STREAM.split_once(r#"data: {"id":"chatcmpl-1","choices":[],"usage""#).unwrap();
    assert_eq!(error(before_usage, Decoding::default()).spent, Tokens::default());
}

/// A stream of these deltas, ended for `reason`.
fn stream(deltas: &[Value], reason: &str) -> String {
    let chunk = |delta: &Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]});
    let mut chunks: Vec<Value> = deltas.iter().map(chunk).collect();
    chunks.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}));
    let lines: Vec<String> = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    lines.concat() + "data: [DONE]\n\n"
}

fn calls(deltas: &[Value], reason: &str) -> Vec<ToolUse> {
    answer(&stream(deltas, reason), Decoding::default()).calls().cloned().collect()
}

#[test]
fn reasoning_and_refusals_of_compatible_servers_are_shown() {
    let deltas = [
        json!({"reasoning_content": "Hm."}),
        json!({"reasoning_content": "", "content": null, "tool_calls": null}),
        json!({"reasoning_content": null, "content": "So:"}),
        json!({"refusal": " no."}),
    ];
    let expected = [
        "start Thinking",
        "delta Hm.",
        "stop",
        "start Text",
        "delta So:",
        "delta  no.",
        "stop",
        "thinking Hm. None",
        "text So: no.",
        "Tokens { input: 0, output: 0, cache_read: 0, cache_write: 0, reasoning: 0 }",
    ];
    assert_eq!(told(&stream(&deltas, "stop"), Decoding::default), expected);
}

fn part(index: usize, id: Option<&str>, name: Option<&str>, arguments: &str) -> Value {
    json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]})
}

#[test]
fn ids_and_names_may_be_repeated_and_a_missing_id_is_made_up() {
    let repeated = [part(0, Some("c1"), Some("f"), "{\"a\":"), part(0, Some("c1"), Some("f"), "1}")];
    let [call] = &calls(&repeated, "tool_calls")[..] else { panic!() };
    assert_eq!((call.provider_id.as_str(), call.name.as_str(), &call.input), ("c1", "f", &json!({"a": 1})));
    let without = [part(0, None, Some("f"), "{}"), part(1, Some(""), Some("f"), "{}")];
    let without = calls(&without, "tool_calls");
    assert!(!without[0].provider_id.is_empty() && without[0].provider_id != without[1].provider_id);
}

#[test]
fn only_the_last_call_of_an_answer_that_was_cut_off_is_marked() {
    for arguments in ["{\"a\":1}", "", "{\"a\":"] {
        let deltas = [part(0, Some("c1"), Some("f"), "{}"), part(1, Some("c2"), Some("f"), arguments)];
        let [first, last] = &calls(&deltas, "length")[..] else { panic!() };
        assert!(first.broken.is_none() && last.broken.is_some(), "{arguments}");
    }
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
        let error = error(&format!("data: {data}\n\n"), Decoding::default());
        assert_eq!(error.kind, kind);
        assert!(error.message.contains("overloaded"));
    }
    for data in ["{", "[]", r#"{"choices":[{"delta":{"content":7}}]}"#] {
        assert_eq!(error(&format!("data: {data}\n\n"), Decoding::default()).kind, ModelErrorKind::Broken);
    }
}

#[test]
fn what_the_model_said_goes_back_in_this_protocols_form() {
    let call = |id: &str| {
        Block::ToolUse(ToolUse {
            call_id: CallId::new(),
            provider_id: id.into(),
            name: "read_file".into(),
            input: json!({"path": "a"}),
            broken: None,
        })
    };
    let thinking = Block::Thinking { thinking: "Hm".into(), signature: Some("c2ln".into()) };
    let text = |text: &str| Block::Text { text: text.into() };
    let reply = |id: &str, text: &str| ToolReply {
        provider_id: id.into(),
        remarks: Vec::new(),
        text: text.into(),
        is_error: false,
    };
    let messages = [
        Message::user("read it"),
        Message::Assistant {
            model: "m".into(),
            blocks: vec![thinking, text("I "), text("read."), call("c1"), call("c2")],
        },
        Message::Results(vec![reply("c1", "green"), reply("c2", "")]),
        Message::Assistant { model: "m".into(), blocks: vec![call("c3")] },
        Message::Results(vec![reply("c3", "red")]),
        Message::Assistant { model: "m".into(), blocks: vec![text(" \n")] },
        Message::user(" "),
        Message::user("and?"),
    ];
    let tools = [ToolSpec {
        name: "read_file".into(),
        description: "Reads.".into(),
        input_schema: json!({"type": "object"}),
    }];
    let request = Request { system: "Be brief.", messages: &messages, tools: &tools, thinking: true };
    let sent = body("m", &request);
    let call = |id: &str| {
        json!({"id": id, "type": "function",
               "function": {"name": "read_file", "arguments": "{\"path\":\"a\"}"}})
    };
    let expected = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "read it"},
        {"role": "assistant", "content": "I read.", "tool_calls": [call("c1"), call("c2")]},
        {"role": "tool", "tool_call_id": "c1", "content": "green"},
        {"role": "tool", "tool_call_id": "c2", "content": "(no output)"},
        {"role": "assistant", "tool_calls": [call("c3")]},
        {"role": "tool", "tool_call_id": "c3", "content": "red"},
        // The answer of nothing but a blank text is gone, as some servers refuse it.
        {"role": "user", "content": "and?"},
    ]);
    assert_eq!(sent["messages"], expected);
    assert_eq!(sent["tools"][0]["function"]["parameters"], json!({"type": "object"}));
    assert_eq!(sent["stream_options"], json!({"include_usage": true}));
    assert_eq!(sent["reasoning_effort"], json!("high"));
    let plain = body("m", &Request { tools: &[], thinking: false, ..request });
    let fields: Vec<&String> = plain.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["messages", "model", "stream", "stream_options"]);
}

/// The messages that are sent of these, without the system's.
fn sent(messages: &[Message]) -> Value {
    let request = Request { system: "s", messages, tools: &[], thinking: false };
    body("m", &request)["messages"].as_array().unwrap()[1..].into()
}

#[test]
fn what_a_person_attached_is_sent_in_its_order() {
    let text = |text: &str| Content::Text { text: text.into() };
    let content =
        vec![text("look:"), image("a.png"), text(" "), pdf(None), pdf(Some("b.pdf")), plain("c.txt")];
    let file = |name: &str| json!({"type": "file", "file": {"filename": name, "file_data": "data:application/pdf;base64,JVBERg=="}});
    let expected = json!([{"role": "user", "content": [
        {"type": "text", "text": "look:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1hZ2U="}},
        file("document.pdf"),
        file("b.pdf"),
        {"type": "text", "text": "Document c.txt:\n\nplain text"},
    ]}]);
    assert_eq!(sent(&[Message::User { content }]), expected);
    let one = Message::User { content: vec![text(" "), text("hi")] };
    assert_eq!(sent(&[one]), json!([{"role": "user", "content": "hi"}]));
}

#[test]
fn media_added_to_results_follow_all_of_them() {
    let text = |text: &str| Content::Text { text: text.into() };
    let reply = |id: &str, text: &str, remarks| ToolReply {
        provider_id: id.into(),
        text: text.into(),
        remarks,
        is_error: false,
    };
    let results = Message::Results(vec![
        reply("c1", "green", vec![image("a.png"), text("mind the shade"), plain("c.txt")]),
        reply("c2", "", vec![text("no")]),
        reply("c3", "", vec![pdf(None)]),
    ]);
    let told =
        |id: &str| json!({"type": "text", "text": format!("To the result of the call {id} the user added:")});
    let expected = json!([
        {"role": "tool", "tool_call_id": "c1",
         "content": "green\n\nmind the shade\n\nDocument c.txt:\n\nplain text"},
        {"role": "tool", "tool_call_id": "c2", "content": "no"},
        {"role": "tool", "tool_call_id": "c3", "content": "(no output)"},
        {"role": "user", "content": [
            told("c1"),
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1hZ2U="}},
            told("c3"),
            {"type": "file", "file": {
                "filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBERg==",
            }},
        ]},
    ]);
    assert_eq!(sent(&[results]), expected);
}
