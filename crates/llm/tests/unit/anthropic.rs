//! Requests, compared with the protocol's documentation.

use api::CallId;
use pretty_assertions::assert_eq;

use super::super::ToolSpec;
use super::super::http::placeholder;
use super::super::media::tests::{FILE, IMAGE, image, pdf, plain};
use super::super::profile::Effort;
use super::*;

/// The parsed body of a request.
fn body(profile: &ModelProfile, request: &Request<'_>) -> Value {
    json!(super::request_body(profile, request))
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
    let blocks = vec![thinking, redacted, text("\n\n"), text("I read."), call("toolu_1"), call("toolu_2")];
    let reply = |provider_id: &str, text: &str, is_error| ToolReply {
        provider_id: provider_id.into(),
        remarks: Vec::new(),
        text: text.into(),
        is_error,
    };
    vec![
        Message::user("read it"),
        Message::Assistant { model: "m".into(), blocks },
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
        effort: None,
        max_output: None,
        allow_tool_calls: true,
        output: None,
        cache_key: "t",
    }
}

/// The messages that are sent to the model `m`, without cache breakpoints.
fn sent(messages: &[Message]) -> Value {
    without_breakpoints(body(&ModelProfile::for_tests("m"), &request(messages))["messages"].clone())
}

fn without_breakpoints(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            fields.remove("cache_control");
            fields.values_mut().for_each(|field| *field = without_breakpoints(field.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_breakpoints(item.take())),
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
        // The answer that consisted of unsigned reasoning only is omitted: an empty message would be refused.
        {"role": "user", "content": [{"type": "text", "text": "and?"}]},
    ]);
    let messages = conversation();
    assert_eq!(sent(&messages), expected);
}

#[test]
fn another_model_is_not_shown_the_reasoning() {
    let messages = conversation();
    let sent = body(&ModelProfile::for_tests("other"), &request(&messages))["messages"].to_string();
    assert!(!sent.contains("thinking") && !sent.contains("c2ln") && sent.contains("toolu_2"), "{sent}");
}

fn tools() -> [ToolDeclaration; 2] {
    ["read_file", "write_file"].map(|name| {
        ToolSpec { name: name.into(), description: "Acts.".into(), input_schema: json!({"type": "object"}) }
            .into()
    })
}

#[test]
fn a_whole_request_has_the_documented_form() {
    let breakpoint = json!({"type": "ephemeral"});
    let messages = [Message::user("hi")];
    let mut expected = json!({
        "model": "m",
        "max_tokens": 32_000,
        "stream": true,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": breakpoint}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": breakpoint}]}],
    });
    // Without tools there is nothing to forbid: the provider then refuses the field.
    let plain = Request { allow_tool_calls: false, ..request(&messages) };
    assert_eq!(body(&ModelProfile::for_tests("m"), &plain), expected);
    let tool = |name: &str| json!({"name": name, "description": "Acts.", "input_schema": {"type": "object"}});
    insert(&mut expected, "tools", json!([tool("read_file"), tool("write_file")]));
    insert(&mut expected, "tool_choice", json!({"type": "none"}));
    insert(&mut expected, "thinking", json!({"type": "enabled", "budget_tokens": 16_000}));
    let tools = tools();
    let full = Request { tools: &tools, thinking: true, ..plain };
    assert_eq!(body(&ModelProfile::for_tests("m"), &full), expected);
    // Without a system prompt the breakpoint is on the tools.
    let without_system = body(&ModelProfile::for_tests("m"), &Request { system: " ", ..full });
    assert_eq!(
        (&without_system["system"], &without_system["tools"][1]["cache_control"]),
        (&json!(null), &breakpoint)
    );
}

#[test]
fn how_a_model_thinks_is_up_to_it_and_to_the_bound_of_its_answer() {
    let messages = [Message::user("hi")];
    let sent_fields = |thinking, max_output| {
        let profile = ModelProfile { thinking, ..ModelProfile::for_tests("m") };
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
        assert_eq!(sent_fields(Thinking::Budget(tokens), max_output), (max_tokens, thinking, Value::Null));
    }
    let adaptive = json!({"type": "adaptive", "display": "summarized"});
    let expected = (900, adaptive, json!({"effort": "xhigh"}));
    assert_eq!(sent_fields(Thinking::Adaptive(Effort::Xhigh), Some(900)), expected);
    for thinking in [Thinking::Off, Thinking::Effort(Effort::High)] {
        assert_eq!(sent_fields(thinking, None), (32_000, Value::Null, Value::Null));
    }
}

#[test]
fn each_request_begins_as_the_one_before_and_is_marked_where_that_one_ended() {
    let messages = conversation();
    let tools = tools();
    let sent_body = |messages: &[Message]| {
        let request = Request { tools: &tools, thinking: true, ..request(messages) };
        body(&ModelProfile::for_tests("m"), &request)
    };
    let messages_of = |end: usize| without_breakpoints(sent_body(&messages[..end])["messages"].clone());
    let (first, second, third) = (messages_of(1), messages_of(3), messages_of(5));
    for (earlier, later) in [(&first, &second), (&second, &third)] {
        let earlier = earlier.as_array().unwrap();
        assert_eq!(later.as_array().unwrap()[..earlier.len()], earlier[..]);
    }
    let full_body = sent_body(&messages);
    assert_eq!(full_body.to_string().matches("cache_control").count(), 3);
    assert!(full_body["messages"][2]["content"][1]["cache_control"].is_object(), "{full_body}");
    assert!(full_body["messages"][3]["content"][0]["cache_control"].is_object(), "{full_body}");
}

fn user_text(text: &str) -> Content {
    Content::Text { text: text.into() }
}

fn image_block() -> Value {
    json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": placeholder(IMAGE)}})
}

fn pdf_source() -> Value {
    json!({"type": "base64", "media_type": "application/pdf", "data": placeholder(FILE)})
}

#[test]
fn what_a_person_attached_is_sent_in_its_order() {
    let content = vec![
        user_text("look:"),
        image("a.png"),
        user_text(" "),
        pdf(None),
        pdf(Some("b.pdf")),
        plain("c.txt"),
        user_text("so?"),
    ];
    let messages = [Message::User { content }, Message::User { content: vec![user_text("\n")] }];
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
        reply("toolu_1", "green", false, vec![user_text("mind the shade"), image("a.png"), pdf(None)]),
        reply("toolu_2", " ", false, vec![image("a.png")]),
        reply("toolu_3", "refused", true, vec![image("a.png"), user_text("not so")]),
        reply("toolu_4", "", true, vec![user_text(" ")]),
    ])];
    let result = |id: &str, content: Value, is_error: bool| json!({"type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error});
    let text = |text: &str| json!({"type": "text", "text": text});
    let document = json!({"type": "document", "source": pdf_source()});
    let expected = json!([{"role": "user", "content": [
        result("toolu_1", json!([text("green"), text("mind the shade"), image_block(), document]), false),
        result("toolu_2", json!([image_block()]), false),
        result("toolu_3", json!([text("refused"), text("not so")]), true),
        result("toolu_4", json!("(no output)"), true),
        text("Belonging to the result of the call toolu_3:"),
        image_block(),
    ]}]);
    assert_eq!(sent(&messages), expected);
}

#[test]
fn another_vendors_ids_are_spelt_in_the_characters_that_are_taken() {
    assert_eq!(sanitize_call_id("toolu_01-aZ"), "toolu_01-aZ");
    assert_eq!(sanitize_call_id("f.x:0"), "f_2e_x_3a_0");
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

#[test]
fn a_strict_schema_is_enforced_and_another_is_that_of_a_tool() {
    let formats = [true, false].map(super::super::answer_tool::tests::format);
    let (messages, adaptive) = ([Message::user("hi")], Thinking::Adaptive(Effort::High));
    let profile = ModelProfile { thinking: adaptive, ..ModelProfile::for_tests("m") };
    let strict = Request { output: Some(&formats[0]), thinking: true, ..request(&messages) };
    let format = json!({"type": "json_schema", "schema": formats[0].schema});
    assert_eq!(body(&profile, &strict)["output_config"], json!({"effort": "high", "format": format}));
    let other = Request { output: Some(&formats[1]), ..strict };
    let tool = WithAnswerTool::new(&other).unwrap();
    let offered = body(&profile, &tool.request(&other));
    assert_eq!(offered["output_config"], json!({"effort": "high"}));
    assert_eq!(
        (&offered["tools"][0]["name"], &offered["tool_choice"]),
        (&json!("final_answer"), &Value::Null)
    );
    let forced = body(&profile, &Request { allow_tool_calls: false, ..tool.request(&other) });
    assert_eq!(forced["tool_choice"], json!({"type": "tool", "name": "final_answer"}));
    assert_eq!(forced["thinking"], Value::Null);
}
