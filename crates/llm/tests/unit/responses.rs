//! Requests, compared with the protocol's documentation, and the parts of an answer that are sent back.

use api::CallId;
use pretty_assertions::assert_eq;

use super::super::decoder_testing::final_answer;
use super::super::http::placeholder;
use super::super::media::tests::{FILE, IMAGE, image, pdf, plain};
use super::super::profile::Effort;
use super::super::{ToolSpec, ToolUse};
use super::decoding::tests::{STREAM, ended, stream};
use super::*;

/// The parsed body of a request.
fn body(profile: &ModelProfile, request: &Request<'_>) -> Value {
    json!(super::request_body(profile, request))
}

fn profile(thinking: Thinking) -> ModelProfile {
    ModelProfile { thinking, ..ModelProfile::for_tests("m") }
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
        cache_key: "task_1",
    }
}

/// The input that is sent to the model `m` for these messages.
fn sent(messages: &[Message]) -> Value {
    body(&profile(Thinking::Effort(Effort::High)), &request(messages))["input"].clone()
}

fn text(text: &str) -> Block {
    Block::Text { text: text.into(), signature: None }
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

fn reply(provider_id: &str, text: &str, remarks: Vec<Content>) -> ToolReply {
    ToolReply { provider_id: provider_id.into(), text: text.into(), remarks, is_error: false }
}

#[test]
fn a_whole_request_has_the_documented_form() {
    let tools = [ToolSpec {
        name: "read_file".into(),
        description: "Reads.".into(),
        input_schema: json!({"type": "object"}),
    }
    .into()];
    let messages = [Message::user("hi")];
    let full = Request {
        tools: &tools,
        thinking: true,
        effort: None,
        max_output: Some(900),
        allow_tool_calls: false,
        output: None,
        ..request(&messages)
    };
    let input =
        json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]);
    let expected = json!({
        "model": "m",
        "instructions": "Be brief.",
        "input": input,
        "stream": true,
        "store": false,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 900,
        "prompt_cache_key": "task_1",
        "reasoning": {"effort": "high", "summary": "auto"},
        "tools": [{
            "type": "function", "name": "read_file", "description": "Reads.",
            "parameters": {"type": "object"}, "strict": false,
        }],
        "parallel_tool_calls": true,
        "tool_choice": "none",
    });
    assert_eq!(body(&profile(Thinking::Effort(Effort::High)), &full), expected);
    // A model without reasoning, without tools, and with a limit below the provider's minimum.
    let plain =
        Request { thinking: true, max_output: Some(1), allow_tool_calls: false, ..request(&messages) };
    let expected = json!({
        "model": "m",
        "instructions": "Be brief.",
        "input": input,
        "stream": true,
        "store": false,
        "max_output_tokens": 16,
        "prompt_cache_key": "task_1",
    });
    assert_eq!(body(&profile(Thinking::Off), &plain), expected);
    let over_limit = Request { max_output: Some(1_000_000), ..request(&messages) };
    assert_eq!(body(&profile(Thinking::Off), &over_limit)["max_output_tokens"], 32_000);
}

#[test]
fn what_a_stream_gave_goes_back_as_it_came() {
    let answer = final_answer(STREAM, ResponsesDecoder::default());
    let messages = [
        Message::user("Paris?"),
        Message::Assistant { model: "m".into(), blocks: answer.blocks.clone() },
        Message::Results(vec![reply("call_1", "green", vec![]), reply("call_2", " ", vec![])]),
    ];
    let remark = json!({"type": "message", "role": "assistant",
        "content": [{"type": "output_text", "text": "I look at both."}]});
    let mut signed_remark = remark.clone();
    insert(&mut signed_remark, "phase", json!("commentary"));
    let rest = [
        json!({"type": "function_call", "call_id": "call_1", "name": "get_weather",
            "arguments": "{\"location\":\"Paris\"}"}),
        json!({"type": "function_call", "call_id": "call_2", "name": "get_time", "arguments": "{}"}),
        json!({"type": "function_call_output", "call_id": "call_1", "output": "green"}),
        json!({"type": "function_call_output", "call_id": "call_2", "output": "(no output)"}),
    ];
    let reasoning = json!({"id": "rs_1", "type": "reasoning", "encrypted_content": "gAAAAABo==", "summary": [
        {"type": "summary_text", "text": "**Grüße** 🦀"}, {"type": "summary_text", "text": "Two calls."},
    ]});
    let user =
        json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Paris?"}]});
    let expected = [&[user.clone(), reasoning, signed_remark][..], &rest].concat();
    assert_eq!(sent(&messages), json!(expected));
    // Another model gets neither the reasoning nor data that only the author of the answer understands.
    let other = ModelProfile { model: "other".into(), ..profile(Thinking::Effort(Effort::High)) };
    let expected = [&[user, remark][..], &rest].concat();
    assert_eq!(body(&other, &request(&messages))["input"], json!(expected));
}

#[test]
fn reasoning_that_the_provider_would_refuse_stays_here() {
    let reasoning = |signature: Option<&str>| Block::Thinking {
        thinking: "Hm".into(),
        signature: signature.map(str::to_owned),
    };
    let encrypted = r#"{"type":"reasoning","encrypted_content":"g","summary":[]}"#;
    let blocks = vec![
        reasoning(None),
        reasoning(Some("c2ln")),
        reasoning(Some("{}")),
        Block::RedactedThinking { data: "ZGF0YQ==".into() },
        text("Yes."),
        // No item follows this reasoning.
        reasoning(Some(encrypted)),
    ];
    let messages = [Message::Assistant { model: "m".into(), blocks }, Message::user(" ")];
    let expected = json!([{"type": "message", "role": "assistant",
        "content": [{"type": "output_text", "text": "Yes."}]}]);
    assert_eq!(sent(&messages), expected);
    let messages =
        [Message::Assistant { model: "m".into(), blocks: vec![reasoning(Some(encrypted)), call("c")] }];
    assert_eq!(sent(&messages)[0]["encrypted_content"], "g");
    // Reasoning without its encrypted form is displayed, but not sent back.
    let item_done = |item: Value| {
        stream(&[json!({"type": "response.output_item.done", "item": item}), ended("completed", None)])
    };
    let summary = json!([{"type": "summary_text", "text": "Hm"}]);
    let unencrypted =
        item_done(json!({"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": null}));
    let expected = Block::Thinking { thinking: "Hm".into(), signature: None };
    assert_eq!(final_answer(&unencrypted, ResponsesDecoder::default()).blocks, [expected]);
    let empty = item_done(json!({"type": "reasoning", "id": "rs_1", "summary": []}));
    assert_eq!(final_answer(&empty, ResponsesDecoder::default()).blocks, []);
}

#[test]
fn what_a_person_attached_is_sent_in_its_order() {
    let user_text = |text: &str| Content::Text { text: text.into() };
    let content = vec![
        user_text("look:"),
        image("a.png"),
        user_text(" "),
        pdf(None),
        pdf(Some("b.pdf")),
        plain("c.txt"),
    ];
    let input_text = |text: &str| json!({"type": "input_text", "text": text});
    let image_part = json!({"type": "input_image", "image_url": format!("data:image/png;base64,{}", placeholder(IMAGE)), "detail": "auto"});
    let file = |name: &str| json!({"type": "input_file", "filename": name, "file_data": format!("data:application/pdf;base64,{}", placeholder(FILE))});
    let expected = json!([{"type": "message", "role": "user", "content": [
        input_text("look:"),
        image_part,
        file("document.pdf"),
        file("b.pdf"),
        input_text("Document c.txt:\n\nplain text"),
    ]}]);
    assert_eq!(sent(&[Message::User { content }]), expected);
    let results = Message::Results(vec![
        reply("c1", "green", vec![user_text("mind the shade"), image("a.png")]),
        reply("c2", "", vec![pdf(Some("b.pdf"))]),
    ]);
    let expected = json!([
        {"type": "function_call_output", "call_id": "c1",
         "output": [input_text("green"), input_text("mind the shade"), image_part]},
        {"type": "function_call_output", "call_id": "c2", "output": [file("b.pdf")]},
    ]);
    assert_eq!(sent(&[results]), expected);
}

#[test]
fn a_schema_is_the_format_of_the_text() {
    let format = super::super::answer_tool::tests::format(false);
    let messages = [Message::user("hi")];
    let body = body(&profile(Thinking::Off), &Request { output: Some(&format), ..request(&messages) });
    let expected = json!({"type": "json_schema", "name": "place", "strict": false, "schema": format.schema});
    assert_eq!(body["text"], json!({"format": expected}));
}
