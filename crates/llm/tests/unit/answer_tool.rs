//! The tool for the final answer: how it is offered, and how its calls become the text of the answer.

use api::CallId;
use api::response_format::ResponseFormat;
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

use super::super::{FinishReason, Message, TokenUsage};
use super::*;

pub(crate) fn format(strict: bool) -> ResponseFormat {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    serde_json::from_value(
        json!({"type": "json_schema", "name": "place", "schema": schema, "strict": strict}),
    )
    .unwrap()
}

fn call(name: &str, input: Value) -> Block {
    Block::ToolUse(ToolUse {
        call_id: CallId::new(),
        provider_id: "p".into(),
        name: name.into(),
        input,
        signature: None,
        broken: None,
    })
}

fn text(text: &str) -> Block {
    Block::Text { text: text.into(), signature: None }
}

/// The events of an answer, as a decoder sends them.
fn events_of(blocks: &[Block]) -> Vec<StreamEvent> {
    let mut events = Vec::new();
    for block in blocks {
        match block {
            Block::Text { text, .. } => {
                events.push(StreamEvent::BlockStart(BlockType::Text));
                events.push(StreamEvent::Delta(text.clone()));
            }
            _ => events.push(StreamEvent::BlockStart(BlockType::ToolUse)),
        }
        events.push(StreamEvent::BlockStop);
    }
    let (usage, stop) = (TokenUsage::default(), FinishReason::Done);
    events.push(StreamEvent::Done(Answer { blocks: blocks.to_vec(), usage, stop }));
    events
}

/// The events of an answer after translation, and its blocks.
fn translate(blocks: &[Block]) -> (Vec<StreamEvent>, Vec<Block>) {
    let mut translator = Translator { name: NAME.to_owned(), withheld: Vec::new() };
    let translated = events_of(blocks).into_iter().flat_map(|event| translator.translate(Ok(event)));
    let mut events: Vec<StreamEvent> = translated.map(Result::unwrap).collect();
    let Some(StreamEvent::Done(answer)) = events.pop() else { panic!("the answer has no end") };
    (events, answer.blocks)
}

#[test]
fn a_call_of_the_tool_is_the_text_of_the_answer() {
    let json = r#"{"city":"Bonn"}"#;
    let (events, blocks) = translate(&[text("Here:"), call(NAME, json!({"city": "Bonn"}))]);
    assert_eq!(blocks, [text(json)]);
    let sent = events_of(&[text("Here:"), text(json)]);
    assert_eq!(events, sent[..sent.len() - 1]);
    // Given twice, the first one counts.
    let twice = [call(NAME, json!({"city": "Bonn"})), call(NAME, json!({"city": "Ulm"}))];
    assert_eq!(translate(&twice).1, [text(json)]);
}

#[test]
fn other_calls_and_texts_stay_as_they_are() {
    for blocks in [vec![text("Hm."), call("read_file", json!({"path": "a"}))], vec![text("{}")]] {
        let (events, translated) = translate(&blocks);
        assert_eq!(translated, blocks);
        let sent = events_of(&blocks);
        assert_eq!(events, sent[..sent.len() - 1]);
    }
    let mixed = [text("Hm."), call("read_file", json!({})), call(NAME, json!({"city": "Bonn"}))];
    let (events, blocks) = translate(&mixed);
    assert_eq!(blocks[..2], mixed[..2]);
    assert_eq!(blocks[2], text(r#"{"city":"Bonn"}"#));
    let starts = events.iter().filter(|event| matches!(event, StreamEvent::BlockStart(_))).count();
    assert_eq!(starts, 3);
}

#[test]
fn the_tool_is_the_last_one_and_has_a_name_of_its_own() {
    let other =
        ToolSpec { name: NAME.into(), description: "x".into(), input_schema: json!({"type": "object"}) };
    let (tools, format) = ([other.into()], format(false));
    let mut request = Request {
        system: "",
        messages: &[Message::user("Hi")],
        tools: &tools,
        thinking: false,
        effort: None,
        max_output: None,
        allow_tool_calls: true,
        output: None,
        cache_key: "k",
    };
    assert!(WithAnswerTool::new(&request).is_none());
    request.output = Some(&format);
    let tool = WithAnswerTool::new(&request).unwrap();
    let with_tool = tool.request(&request);
    let names: Vec<&str> = with_tool.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["final_answer", "final_answer_"]);
    assert!(with_tool.tools[1].input_schema.get().contains("city"));
    assert_eq!(forced_tool(&with_tool), None);
    assert_eq!(forced_tool(&Request { allow_tool_calls: false, ..with_tool }), Some("final_answer_"));
}
