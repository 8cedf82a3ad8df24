//! Requests, compared with the protocol's documentation, and the parts of an answer that are sent back.

use api::CallId;
use pretty_assertions::assert_eq;

use super::super::ToolSpec;
use super::super::decoder_testing::{decode_to_lines, final_answer};
use super::super::http::placeholder;
use super::super::media::tests::{FILE, IMAGE, audio, image, pdf, plain};
use super::super::profile::Effort;
use super::decoding::tests::stream;
use super::*;

/// The parsed body of a request.
fn body(dialect: Dialect, profile: &ModelProfile, request: &Request<'_>) -> Value {
    json!(super::request_body(dialect, profile, request))
}

#[test]
fn what_the_model_said_goes_back_in_this_protocols_form() {
    let call = |id: &str| {
        Block::ToolUse(ToolUse {
            call_id: CallId::new(),
            provider_id: id.into(),
            name: "read_file".into(),
            input: json!({"path": "a"}),
            signature: None,
            broken: None,
        })
    };
    let thinking = Block::Thinking { thinking: "Hm".into(), signature: Some("c2ln".into()) };
    let text = |text: &str| Block::Text { text: text.into(), signature: None };
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
    let call = |id: &str| {
        json!({"id": id, "type": "function",
               "function": {"name": "read_file", "arguments": "{\"path\":\"a\"}"}})
    };
    let expected = json!([
        {"role": "user", "content": "read it"},
        {"role": "assistant", "content": "I read.", "tool_calls": [call("c1"), call("c2")]},
        {"role": "tool", "tool_call_id": "c1", "content": "green"},
        {"role": "tool", "tool_call_id": "c2", "content": "(no output)"},
        {"role": "assistant", "tool_calls": [call("c3")]},
        {"role": "tool", "tool_call_id": "c3", "content": "red"},
        // The answer that consisted of a blank text only is omitted, because some servers refuse it.
        {"role": "user", "content": "and?"},
    ]);
    assert_eq!(sent(&messages), expected);
}

/// The messages that are sent for these, without the system prompt.
fn sent(messages: &[Message]) -> Value {
    let request = Request {
        system: "s",
        messages,
        tools: &[],
        thinking: false,
        effort: None,
        max_output: None,
        allow_tool_calls: true,
        output: None,
        cache_key: "t",
    };
    let profile = ModelProfile { takes_audio: true, ..ModelProfile::for_tests("m") };
    body(Dialect::OpenAi, &profile, &request)["messages"].as_array().unwrap()[1..].into()
}

#[test]
fn what_a_person_attached_is_sent_in_its_order() {
    let text = |text: &str| Content::Text { text: text.into() };
    let content =
        vec![text("look:"), image("a.png"), text(" "), pdf(None), pdf(Some("b.pdf")), plain("c.txt")];
    let content = [content, vec![audio("audio/wav"), audio("audio/mpeg"), audio("audio/ogg")]].concat();
    let sound = |format: &str| json!({"type": "input_audio", "input_audio": {"data": placeholder(FILE), "format": format}});
    let file = |name: &str| json!({"type": "file", "file": {"filename": name, "file_data": format!("data:application/pdf;base64,{}", placeholder(FILE))}});
    let expected = json!([{"role": "user", "content": [
        {"type": "text", "text": "look:"},
        {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{}", placeholder(IMAGE))}},
        file("document.pdf"),
        file("b.pdf"),
        {"type": "text", "text": "Document c.txt:\n\nplain text"},
        sound("wav"),
        sound("mp3"),
        {"type": "text", "text": "[The audio 録音 is of a type that this model does not accept.]"},
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
    let intro =
        |id: &str| json!({"type": "text", "text": format!("Belonging to the result of the call {id}:")});
    let expected = json!([
        {"role": "tool", "tool_call_id": "c1",
         "content": "green\n\nmind the shade\n\nDocument c.txt:\n\nplain text"},
        {"role": "tool", "tool_call_id": "c2", "content": "no"},
        {"role": "tool", "tool_call_id": "c3", "content": "(no output)"},
        {"role": "user", "content": [
            intro("c1"),
            {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{}", placeholder(IMAGE))}},
            intro("c3"),
            {"type": "file", "file": {
                "filename": "document.pdf", "file_data": format!("data:application/pdf;base64,{}", placeholder(FILE)),
            }},
        ]},
    ]);
    assert_eq!(sent(&[results]), expected);
}

#[test]
fn a_whole_request_is_in_the_vendors_form_or_in_that_of_compatible_servers() {
    let tools = [ToolSpec {
        name: "read_file".into(),
        description: "Reads.".into(),
        input_schema: json!({"type": "object"}),
    }
    .into()];
    let messages = [Message::user("hi")];
    let request = Request {
        system: "Be brief.",
        messages: &messages,
        tools: &tools,
        thinking: true,
        effort: None,
        max_output: None,
        allow_tool_calls: false,
        output: None,
        cache_key: "task_1",
    };
    let profile = |thinking| ModelProfile { thinking, ..ModelProfile::for_tests("m") };
    let mut expected = json!({
        "model": "m",
        "stream": true,
        "stream_options": {"include_usage": true},
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {
            "name": "read_file", "description": "Reads.", "parameters": {"type": "object"},
        }}],
        "tool_choice": "none",
        "reasoning_effort": "medium",
    });
    let effort = profile(Thinking::Effort(Effort::Medium));
    assert_eq!(body(Dialect::Compatible, &effort, &request), expected);
    let own = [("max_completion_tokens", json!(32_000)), ("prompt_cache_key", json!("task_1"))];
    for (field, value) in own {
        insert(&mut expected, field, value);
    }
    assert_eq!(body(Dialect::OpenAi, &effort, &request), expected);
    // Neither tools nor reasoning, and a limit of its own, which never exceeds the model's.
    let plain = Request { tools: &[], max_output: Some(900), ..request };
    let plain = |dialect| body(dialect, &profile(Thinking::Off), &plain);
    let fields = |body: &Value| body.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    let (own, compatible) = (plain(Dialect::OpenAi), plain(Dialect::Compatible));
    assert_eq!(fields(&own), "max_completion_tokens messages model prompt_cache_key stream stream_options");
    assert_eq!(fields(&compatible), "max_tokens messages model stream stream_options");
    assert_eq!((&own["max_completion_tokens"], &compatible["max_tokens"]), (&json!(900), &json!(900)));
    let over_limit = Request { max_output: Some(90_000), ..request };
    assert_eq!(body(Dialect::Compatible, &effort, &over_limit)["max_tokens"], 32_000);
}

#[test]
fn a_long_key_for_the_cache_is_shortened_to_one_of_its_own() {
    assert_eq!(cache_key(&"ü".repeat(64)), "ü".repeat(64));
    let [one, other] = ["a", "b"].map(|end| cache_key(&("x".repeat(64) + end)));
    assert!(one.len() == 64 && other.len() == 64 && one != other, "{one} {other}");
}

#[test]
fn each_constructor_speaks_its_own_dialect() {
    let dialect = |model: &OpenAi| (model.dialect, model.endpoint.url.clone());
    let (base, url) = ("https://h/v1/", "https://h/v1/chat/completions".to_owned());
    assert_eq!(
        dialect(&OpenAi::new(base, ModelProfile::for_tests("m"), None)),
        (Dialect::OpenAi, url.clone())
    );
    assert_eq!(
        dialect(&OpenAi::compatible(base, ModelProfile::for_tests("m"), None)),
        (Dialect::Compatible, url)
    );
}

/// The message that is sent back for an answer of these deltas: to the same model, and to another one.
fn sent_back(deltas: &[Value]) -> [Value; 2] {
    let blocks = final_answer(&stream(deltas, "tool_calls"), OpenAiDecoder::default()).blocks;
    ["m", "other"].map(|author| {
        let message = Message::Assistant { model: author.into(), blocks: blocks.clone() };
        sent(&[message])[0].clone()
    })
}

#[test]
fn reasoning_goes_back_in_the_field_that_it_came_in() {
    let call =
        json!({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}]});
    let plain = json!({"role": "assistant", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]});
    let with_field = |field: &str, value: Value| {
        let mut message = plain.clone();
        insert(&mut message, field, value);
        message
    };
    let deepseek = [json!({"reasoning_content": "Grüße"}), json!({"reasoning_content": " 🦀"}), call.clone()];
    assert_eq!(sent_back(&deepseek), [with_field("reasoning_content", json!("Grüße 🦀")), plain.clone()]);
    let thought = |text: &str| json!({"type": "thinking", "thinking": [{"type": "text", "text": text}]});
    let mistral =
        [json!({"content": [thought("Grüße")]}), json!({"content": [thought(" 🦀")]}), call.clone()];
    let thoughts =
        json!([{"type": "thinking", "thinking": [{"type": "text", "text": "Grüße 🦀"}], "closed": true}]);
    assert_eq!(sent_back(&mistral), [with_field("content", thoughts.clone()), plain.clone()]);
    let signed = json!({"type": "thinking", "thinking": [], "signature": "c2ln"});
    let [signed, _] = sent_back(&[&mistral[..2], &[json!({"content": [signed]}), call.clone()]].concat());
    assert_eq!(signed["content"][0]["signature"], "c2ln");
    assert_eq!(signed["content"][0]["thinking"], thoughts[0]["thinking"]);
    let [to_same, to_another] = sent_back(&[&mistral[..1], &[json!({"content": "So."})]].concat());
    assert_eq!(to_another, json!({"role": "assistant", "content": "So."}));
    assert_eq!(to_same["content"][0]["thinking"][0]["text"], "Grüße");
    assert_eq!(to_same["content"][1], json!({"type": "text", "text": "So."}));
    // Groq refuses the field in which it streams this, and no server requires it back.
    assert_eq!(sent_back(&[json!({"reasoning": "Hm."}), call.clone()]), [plain.clone(), plain.clone()]);
    let text = |text: &str| json!({"type": "reasoning.text", "text": text, "format": "anthropic-claude-v1", "index": 0});
    let signed = json!({"type": "reasoning.text", "signature": "c2ln", "format": null, "index": 0});
    let sealed = json!({"type": "reasoning.encrypted", "data": "ZGF0YQ==", "id": "rs_1", "index": 1});
    let openrouter = [
        json!({"reasoning": "I", "reasoning_details": [text("I")]}),
        json!({"reasoning": " see.", "reasoning_details": [text(" see.")]}),
        json!({"reasoning": null, "reasoning_details": [signed]}),
        json!({"reasoning_details": [sealed]}),
        call,
    ];
    let details = json!([
        {"type": "reasoning.text", "text": "I see.", "signature": "c2ln", "format": "anthropic-claude-v1", "index": 0},
        {"type": "reasoning.encrypted", "data": "ZGF0YQ==", "id": "rs_1", "index": 1},
    ]);
    assert_eq!(sent_back(&openrouter), [with_field("reasoning_details", details), plain]);
    let lines = decode_to_lines(&stream(&openrouter, "tool_calls"), OpenAiDecoder::default);
    assert_eq!(lines[..4], ["start Thinking", "delta I", "delta  see.", "stop"]);
}

#[test]
fn geminis_signatures_of_calls_go_back_with_them() {
    let extra = json!({"google": {"thought_signature": "c2ln"}});
    let delta = |id: &str, arguments: &str, extra: Option<&Value>| {
        let mut call = json!({"index": 0, "id": id, "type": "function",
            "function": {"name": "f", "arguments": arguments}});
        if let Some(extra) = extra {
            insert(&mut call, "extra_content", extra.clone());
        }
        json!({"tool_calls": [call]})
    };
    // Calls arrive complete, in parallel, and all with the same index.
    let deltas = [delta("c1", "{\"a\":1}", Some(&extra)), delta("c2", "{}", None)];
    let call = |id: &str, arguments: &str| {
        json!({"id": id, "type": "function",
        "function": {"name": "f", "arguments": arguments}})
    };
    let (mut signed, first, second) = (call("c1", "{\"a\":1}"), call("c1", "{\"a\":1}"), call("c2", "{}"));
    insert(&mut signed, "extra_content", extra);
    let message = |calls: [Value; 2]| json!({"role": "assistant", "tool_calls": calls});
    assert_eq!(sent_back(&deltas), [message([signed, second.clone()]), message([first, second])]);
}

#[test]
fn a_schema_is_set_natively_or_is_that_of_a_tool() {
    let (messages, profile) = ([Message::user("hi")], ModelProfile::for_tests("m"));
    let format = super::super::answer_tool::tests::format(true);
    let request = Request {
        system: "",
        messages: &messages,
        tools: &[],
        thinking: false,
        effort: None,
        max_output: None,
        allow_tool_calls: false,
        output: Some(&format),
        cache_key: "t",
    };
    let own = body(Dialect::OpenAi, &profile, &request);
    let json_schema = json!({"name": "place", "strict": true, "schema": format.schema});
    assert_eq!(own["response_format"], json!({"type": "json_schema", "json_schema": json_schema}));
    assert_eq!(own["tool_choice"], Value::Null);
    let tool = WithAnswerTool::new(&request).unwrap();
    let compatible = body(Dialect::Compatible, &profile, &tool.request(&request));
    assert_eq!(compatible["response_format"], Value::Null);
    assert_eq!(compatible["tools"][0]["function"]["name"], "final_answer");
    assert_eq!(compatible["tool_choice"], json!({"type": "function", "function": {"name": "final_answer"}}));
    let offered = Request { allow_tool_calls: true, ..tool.request(&request) };
    assert_eq!(body(Dialect::Compatible, &profile, &offered)["tool_choice"], Value::Null);
}
