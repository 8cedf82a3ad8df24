//! The protocol as its documentation shows it, read in pieces of any size, and what is sent back.

use contract::CallId;
use pretty_assertions::assert_eq;

use super::super::decoding::{answer, error, told};
use super::super::media::tests::{image, pdf, plain};
use super::super::profile::Effort;
use super::super::{ModelErrorKind, Tokens, ToolSpec};
use super::*;

/// The body of a request, as it is read.
fn body(profile: &Profile, request: &Request<'_>) -> Value {
    json!(super::body(profile, request))
}

/// A stream after the vendor's documentation: thinking with its signature in parts, text, pings, an event of a
/// type that is yet to come, and a tool call whose input comes in parts.
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
        "Tokens { input: 1492, output: 89, cache_read: 1000, cache_write: 20, reasoning: 0 }",
    ];
    assert_eq!(told(STREAM, Decoding::default), expected);
}

#[test]
fn a_stream_that_ends_before_its_mark_is_broken_wherever_it_ends() {
    let (before_mark, _) = STREAM.split_once("event: message_stop").unwrap();
    for (at, _) in before_mark.match_indices("\n\n") {
        let error = error(&STREAM[..at + 2], Decoding::default());
        assert_eq!(error.kind, ModelErrorKind::Broken);
        assert!(error.message.contains("without its end mark"), "{error}");
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
        let error = error(&format!("event: error\ndata: {data}\n\n"), Decoding::default());
        assert_eq!(error.kind, expected, "{kind}");
        assert!(error.message.contains("Overloaded"));
    }
    for data in [
        "{",
        "[]",
        "{}",
        r#"{"type":"content_block_delta","index":0}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta"}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":1}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"text":"of no type"}}"#,
        r#"{"type":"message_start"}"#,
        r#"{"type":"message_start","message":"no object"}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":1}}"#,
    ] {
        assert_eq!(error(&format!("data: {data}\n\n"), Decoding::default()).kind, Broken, "{data}");
    }
}

#[test]
fn what_is_of_no_type_of_ours_may_have_any_form() {
    let foreign = [
        json!({"type": "of_the_future", "message": "no object", "delta": 1, "usage": []}),
        json!({"type": "content_block_delta", "index": 2, "delta": {"type": "of_the_future", "text": {"a": 1}}}),
    ];
    let foreign: Vec<String> = foreign.iter().map(|event| format!("data: {event}\n\n")).collect();
    let (before, after) = STREAM.split_once("event: message_delta").unwrap();
    let with_foreign = format!("{before}{}event: message_delta{after}", foreign.concat());
    assert_eq!(told(&with_foreign, Decoding::default), told(STREAM, Decoding::default));
    let data = json!({"type": "error", "message": "no object", "error": {"type": "overloaded_error"}});
    assert_eq!(error(&format!("data: {data}\n\n"), Decoding::default()).kind, ModelErrorKind::Busy);
}

#[test]
fn an_answer_that_breaks_off_costs_what_the_provider_had_told() {
    let counted = |output| Tokens { input: 1492, output, cache_read: 1000, cache_write: 20, reasoning: 0 };
    let spent = |stream: &str| error(stream, Decoding::default()).spent;
    let (start, _) = STREAM.split_once("event: content_block_stop").unwrap();
    let (before_mark, _) = STREAM.split_once("event: message_stop").unwrap();
    assert_eq!(spent(""), Tokens::default());
    assert_eq!(spent(start), counted(2));
    assert_eq!(spent(before_mark), counted(89));
    let overloaded = json!({"type": "error", "error": {"type": "overloaded_error"}});
    for last in [overloaded.to_string(), "{".into()] {
        assert_eq!(spent(&format!("{start}data: {last}\n\n")), counted(2), "{last}");
    }
}

/// An answer of a text and a call, cut off for `reason` or not.
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
    let lines: Vec<String> = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    answer(&lines.concat(), Decoding::default()).calls().next().unwrap().clone()
}

/// Kimi leaves the event out (<https://github.com/xemantic/anthropic-sdk-kotlin/issues/147>).
#[test]
fn blocks_that_nobody_ends_are_whole_where_the_next_begins_and_at_the_end() {
    let call = |id: &str| {
        let block = json!({"type": "tool_use", "id": id, "name": "t", "input": {"of": id}});
        json!({"type": "content_block_start", "content_block": block})
    };
    let end = json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}});
    let events = [call("one"), call("two"), end, json!({"type": "message_stop"})];
    let lines: Vec<String> = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    let answer = answer(&lines.concat(), Decoding::default());
    let inputs: Vec<&Value> = answer.calls().map(|call| &call.input).collect();
    assert_eq!(inputs, [&json!({"of": "one"}), &json!({"of": "two"})]);
}

#[test]
fn a_call_that_the_answer_was_cut_off_in_is_marked() {
    let whole = stopped_for("tool_use", "{\"a\":1}");
    assert_eq!((whole.input, whole.broken), (json!({"a": 1}), None));
    for reason in ["max_tokens", "model_context_window_exceeded"] {
        // Whole by chance, or cut before its first character: neither may be run.
        for input in ["{\"a\":1}", "", "{\"a\":"] {
            assert!(stopped_for(reason, input).broken.is_some(), "{reason} {input}");
        }
    }
    assert_eq!(stopped_for("tool_use", "").broken, None);
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
    let lines: Vec<String> = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    let stream = lines.concat();
    let expected = [
        "start Thinking",
        "delta Hm",
        "stop",
        "start ToolUse",
        "stop",
        r#"thinking Hm Some("c2ln")"#,
        r#"call toolu_1 t {"a":1} None"#,
        "Tokens { input: 1, output: 9, cache_read: 0, cache_write: 0, reasoning: 4 }",
    ];
    assert_eq!(told(&stream, Decoding::default), expected);
}

fn call(provider_id: &str) -> Block {
    Block::ToolUse(ToolUse {
        call_id: CallId::new(),
        provider_id: provider_id.into(),
        name: "read_file".into(),
        input: json!({"path": "a"}),
        signature: None,
        broken: None,
    })
}

fn text(text: &str) -> Block {
    Block::Text { text: text.into(), signature: None }
}

fn conversation() -> Vec<Message> {
    let thinking = Block::Thinking { thinking: "Hm \u{1F600}".into(), signature: Some("c2ln".into()) };
    let unsigned = Block::Thinking { thinking: "cut off".into(), signature: None };
    let redacted = Block::RedactedThinking { data: "ZGF0YQ==".into() };
    let ours = vec![thinking, redacted, text("\n\n"), text("I read."), call("toolu_1"), call("toolu_2")];
    let reply = |provider_id: &str, text: &str, is_error| ToolReply {
        provider_id: provider_id.into(),
        remarks: Vec::new(),
        text: text.into(),
        is_error,
    };
    vec![
        Message::user("read it"),
        Message::Assistant { model: "m".into(), blocks: ours },
        Message::Results(vec![reply("toolu_1", "green", false), reply("toolu_2", "no such file", true)]),
        Message::Assistant { model: "m".into(), blocks: vec![unsigned] },
        Message::user("and?"),
    ]
}

fn request(messages: &[Message]) -> Request<'_> {
    Request {
        system: "Be brief.",
        messages,
        tools: &[],
        thinking: false,
        max_output: None,
        may_call: true,
        cache_key: "t",
    }
}

/// The messages that are sent to the model `m`, without the marks for the cache.
fn sent(messages: &[Message]) -> Value {
    without_marks(body(&Profile::test("m"), &request(messages))["messages"].clone())
}

fn without_marks(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            fields.remove("cache_control");
            fields.values_mut().for_each(|field| *field = without_marks(field.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_marks(item.take())),
        _ => {}
    }
    value
}

#[test]
fn what_the_model_said_goes_back_in_its_order_and_signed() {
    let expected = json!([
        {"role": "user", "content": [{"type": "text", "text": "read it"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm \u{1F600}", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "ZGF0YQ=="},
            {"type": "text", "text": "I read."},
            {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "a"}},
            {"type": "tool_use", "id": "toolu_2", "name": "read_file", "input": {"path": "a"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "green", "is_error": false},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such file", "is_error": true},
        ]},
        // The answer of nothing but unsigned reasoning is gone: an empty message would be refused.
        {"role": "user", "content": [{"type": "text", "text": "and?"}]},
    ]);
    let messages = conversation();
    assert_eq!(sent(&messages), expected);
}

#[test]
fn another_model_is_not_shown_the_reasoning() {
    let messages = conversation();
    let sent = body(&Profile::test("other"), &request(&messages))["messages"].to_string();
    assert!(!sent.contains("thinking") && !sent.contains("c2ln") && sent.contains("toolu_2"), "{sent}");
}

fn tools() -> [ToldTool; 2] {
    ["read_file", "write_file"].map(|name| {
        ToolSpec { name: name.into(), description: "Acts.".into(), input_schema: json!({"type": "object"}) }
            .into()
    })
}

#[test]
fn a_whole_request_has_the_documented_form() {
    let mark = json!({"type": "ephemeral"});
    let messages = [Message::user("hi")];
    let mut expected = json!({
        "model": "m",
        "max_tokens": 32_000,
        "stream": true,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": mark}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": mark}]}],
    });
    // Without tools there is nothing to forbid: the provider refuses the field then.
    let plain = Request { may_call: false, ..request(&messages) };
    assert_eq!(body(&Profile::test("m"), &plain), expected);
    let tool = |name: &str| json!({"name": name, "description": "Acts.", "input_schema": {"type": "object"}});
    insert(&mut expected, "tools", json!([tool("read_file"), tool("write_file")]));
    insert(&mut expected, "tool_choice", json!({"type": "none"}));
    insert(&mut expected, "thinking", json!({"type": "enabled", "budget_tokens": 16_000}));
    let tools = tools();
    let full = Request { tools: &tools, thinking: true, ..plain };
    assert_eq!(body(&Profile::test("m"), &full), expected);
    // Where there is no system's text the mark is on the tools.
    let silent = body(&Profile::test("m"), &Request { system: " ", ..full });
    assert_eq!((&silent["system"], &silent["tools"][1]["cache_control"]), (&json!(null), &mark));
}

#[test]
fn how_a_model_thinks_is_up_to_it_and_to_the_bound_of_its_answer() {
    let messages = [Message::user("hi")];
    let asked = |thinking, max_output| {
        let profile = Profile { thinking, ..Profile::test("m") };
        let body = body(&profile, &Request { thinking: true, max_output, ..request(&messages) });
        (body["max_tokens"].as_u64().unwrap(), body["thinking"].clone(), body["output_config"].clone())
    };
    let budget = |tokens: u64| json!({"type": "enabled", "budget_tokens": tokens});
    for (tokens, max_output, max_tokens, thinking) in [
        (16_000, None, 32_000, budget(16_000)),
        (16_000, Some(90_000), 32_000, budget(16_000)),
        (16_000, Some(10_000), 10_000, budget(8_976)),
        (16_000, Some(2_048), 2_048, budget(1_024)),
        (16_000, Some(2_047), 2_047, Value::Null),
        (16_000, Some(5), 5, Value::Null),
        (10, None, 32_000, budget(1_024)),
        (90_000, None, 32_000, budget(30_976)),
    ] {
        assert_eq!(asked(Thinking::Budget(tokens), max_output), (max_tokens, thinking, Value::Null));
    }
    let adaptive = json!({"type": "adaptive", "display": "summarized"});
    let expected = (900, adaptive, json!({"effort": "xhigh"}));
    assert_eq!(asked(Thinking::Adaptive(Effort::Xhigh), Some(900)), expected);
    for none in [Thinking::Off, Thinking::Effort(Effort::High)] {
        assert_eq!(asked(none, None), (32_000, Value::Null, Value::Null));
    }
}

#[test]
fn each_request_begins_as_the_one_before_and_is_marked_where_that_one_ended() {
    let all = conversation();
    let tools = tools();
    let asked = |messages: &[Message]| {
        let thinks = Request { tools: &tools, thinking: true, ..request(messages) };
        body(&Profile::test("m"), &thinks)
    };
    let begins = |end: usize| without_marks(asked(&all[..end])["messages"].clone());
    let (first, second, third) = (begins(1), begins(3), begins(5));
    for (earlier, later) in [(&first, &second), (&second, &third)] {
        let earlier = earlier.as_array().unwrap();
        assert_eq!(later.as_array().unwrap()[..earlier.len()], earlier[..]);
    }
    let whole = asked(&all);
    assert_eq!(whole.to_string().matches("cache_control").count(), 3);
    assert!(whole["messages"][2]["content"][1]["cache_control"].is_object(), "{whole}");
    assert!(whole["messages"][3]["content"][0]["cache_control"].is_object(), "{whole}");
}

fn said(text: &str) -> Content {
    Content::Text { text: text.into() }
}

fn image_block() -> Value {
    json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aW1hZ2U="}})
}

fn pdf_source() -> Value {
    json!({"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="})
}

#[test]
fn what_a_person_attached_is_sent_in_its_order() {
    let content = vec![
        said("look:"),
        image("a.png"),
        said(" "),
        pdf(None),
        pdf(Some("b.pdf")),
        plain("c.txt"),
        said("so?"),
    ];
    let messages = [Message::User { content }, Message::User { content: vec![said("\n")] }];
    let plain_source = json!({"type": "text", "media_type": "text/plain", "data": "plain text"});
    let expected = json!([{"role": "user", "content": [
        {"type": "text", "text": "look:"},
        image_block(),
        {"type": "document", "source": pdf_source()},
        {"type": "document", "source": pdf_source(), "title": "b.pdf"},
        {"type": "document", "source": plain_source, "title": "c.txt"},
        {"type": "text", "text": "so?"},
    ]}]);
    assert_eq!(sent(&messages), expected);
}

#[test]
fn what_a_person_added_to_a_result_stands_within_it_or_behind_all_results() {
    let reply = |id: &str, text: &str, is_error, remarks| ToolReply {
        provider_id: id.into(),
        text: text.into(),
        remarks,
        is_error,
    };
    let messages = [Message::Results(vec![
        reply("toolu_1", "green", false, vec![said("mind the shade"), image("a.png"), pdf(None)]),
        reply("toolu_2", " ", false, vec![image("a.png")]),
        reply("toolu_3", "refused", true, vec![image("a.png"), said("not so")]),
        reply("toolu_4", "", true, vec![said(" ")]),
    ])];
    let result = |id: &str, content: Value, is_error: bool| json!({"type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error});
    let text = |text: &str| json!({"type": "text", "text": text});
    let document = json!({"type": "document", "source": pdf_source()});
    let expected = json!([{"role": "user", "content": [
        result("toolu_1", json!([text("green"), text("mind the shade"), image_block(), document]), false),
        result("toolu_2", json!([image_block()]), false),
        result("toolu_3", json!([text("refused"), text("not so")]), true),
        result("toolu_4", json!("(no output)"), true),
        text("To the result of the call toolu_3 the user added:"),
        image_block(),
    ]}]);
    assert_eq!(sent(&messages), expected);
}

#[test]
fn another_vendors_ids_are_spelt_in_the_characters_that_are_taken() {
    assert_eq!(call_id("toolu_01-aZ"), "toolu_01-aZ");
    assert_eq!(call_id("f.x:0"), "f_2e_x_3a_0");
    let messages = [
        Message::Assistant { model: "other".into(), blocks: vec![call("f:0")] },
        Message::Results(vec![ToolReply {
            provider_id: "f:0".into(),
            text: "green".into(),
            remarks: Vec::new(),
            is_error: false,
        }]),
    ];
    let sent = sent(&messages);
    assert_eq!(sent[0]["content"][0]["id"], "f_3a_0");
    assert_eq!(sent[1]["content"][0]["tool_use_id"], "f_3a_0");
}
