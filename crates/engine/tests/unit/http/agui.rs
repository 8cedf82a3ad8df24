//! Properties of the translation: no request breaks it, a run begins and ends once, and what a client has is left out.

use api::approvals::ApprovalDecision;
use api::event::{
    BlockStart, BlockType, Delta, Event, HitlKind, HitlRequest, HitlResolved, Lifecycle, SentEvent,
    StopReason, ToolCall, ToolResult, WorkingMemoryUpdate,
};
use api::{CallId, HitlId, MessageId, TaskId, Timestamp, TurnId};
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::input::{RunInput, Start};
use super::projection::{KnownState, RunProjection, Seen};
use super::resume::{Expected, Interrupt};
use super::split_seen;
use crate::http::projection::Projector;

fn body(fields: &Value) -> Map<String, Value> {
    let mut body = json!({
        "threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "Hi"}],
    });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body.as_object().unwrap().clone()
}

/// The code and the message of the refusal of a body; `None` if it is taken.
fn refusal(fields: &Value) -> Option<String> {
    let refused = |error: super::VendorError| Some(error.message().to_owned());
    match RunInput::parse(body(fields)) {
        Err(error) => refused(error),
        Ok(RunInput { thread, start: Start::Message { request, messages }, .. }) => {
            request.into_execute(&thread, messages, true).err().and_then(refused)
        }
        Ok(_) => None,
    }
}

#[test]
fn what_means_nothing_is_refused_by_name() {
    let user = |content: Value| json!({"messages": [{"id": "1", "role": "user", "content": content}]});
    for (fields, name) in [
        (json!({"threadId": ""}), "`threadId`"),
        (json!({"runId": null}), "`runId`"),
        (json!({"messages": null}), "`messages`"),
        (json!({"messages": []}), "`messages`"),
        (json!({"tools": [{"name": "f", "description": "g"}]}), "`tools`"),
        (json!({"parentRunId": "p"}), "`parentRunId`"),
        (json!({"forwardedProps": {"odd": 1}}), "`forwardedProps.odd`"),
        (json!({"forwardedProps": {"roundhouse": {"odd": 1}}}), "`forwardedProps.roundhouse`"),
        (json!({"forwardedProps": {"roundhouse": {"task_id": "x"}}}), "`forwardedProps.roundhouse.task_id`"),
        (json!({"odd": 1}), "`odd`"),
        (json!({"context": [{"value": "x"}]}), "`context`"),
        (json!({"resume": [{"interruptId": "x", "status": "odd"}]}), "`resume`"),
        (
            json!({"resume": [{"interruptId": "x", "status": "resolved"}, {"interruptId": "y", "status": "resolved"}]}),
            "`resume`",
        ),
        (
            user(
                json!([{"type": "audio", "source": {"type": "data", "value": "AA", "mimeType": "audio/wav"}}]),
            ),
            "`messages[0].content[0].type`",
        ),
        (
            user(json!([{"type": "image", "source": {"type": "file", "value": "f"}}])),
            "`messages[0].content[0].source`",
        ),
        (
            user(
                json!([{"type": "image", "source": {"type": "data", "value": "!", "mimeType": "image/png"}}]),
            ),
            "`messages[0]",
        ),
    ] {
        let message = refusal(&fields).unwrap_or_else(|| panic!("taken: {fields}"));
        assert!(message.starts_with(name), "{fields}: {message}");
    }
    for fields in [
        json!({}),
        json!({"tools": [], "context": [], "state": {}, "forwardedProps": {}, "protocolVersion": "1.0"}),
        json!({"context": [{"description": "Page", "value": "Home"}], "state": {"colour": "red"}}),
        json!({"forwardedProps": {"effort": "high", "roundhouse": {"direct": true}}}),
    ] {
        assert_eq!(refusal(&fields), None, "{fields}");
    }
}

#[test]
fn what_the_agent_said_itself_is_no_message() {
    let messages = json!([
        {"id": "1", "role": "user", "content": "Hi"},
        {"id": "2", "role": "reasoning", "content": "Hm."},
        {"id": "3", "role": "assistant", "toolCalls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"id": "4", "role": "tool", "toolCallId": "c", "content": "ok"},
        {"id": "5", "role": "user", "content": [{"type": "text", "text": "And now?"}]},
    ]);
    let Start::Message { request, messages } =
        RunInput::parse(body(&json!({"messages": messages}))).unwrap().start
    else {
        panic!("a message begins a turn")
    };
    let execute = request.into_execute(&TaskId::new("t").unwrap(), messages, true).unwrap().0;
    assert_eq!(execute.message, "And now?");
}

/// The events of a turn that asks a person in the middle.
fn turn_events(turn_id: TurnId, request_id: HitlId, answer: &str) -> Vec<SentEvent> {
    let message_id = MessageId::new();
    let task_id = TaskId::new("t").unwrap();
    let call = CallId::new();
    let text = |text: &str| Event::TextDelta(Delta { text: text.into() });
    let block = |index, block_type| Event::ContentBlockStart(BlockStart { index, block_type });
    let events = vec![
        Event::ThreadLifecycle(Lifecycle::Started { message_id }),
        block(0, BlockType::Thinking),
        Event::ThinkingDelta(Delta { text: "Hm.".into() }),
        block(1, BlockType::Text),
        text("Let me "),
        text("äsk."),
        Event::ToolCall(ToolCall {
            tool_call_id: call,
            tool: "ask_user".into(),
            input: json!({"question": "Which?"}),
        }),
        Event::HitlRequest(HitlRequest {
            request_id,
            task_id: task_id.clone(),
            kind: HitlKind::Question,
            question: "Which?".into(),
            created_at: Timestamp::from_unix_ms(0),
            options: None,
        }),
        Event::HitlResolved(HitlResolved { request_id, answer: answer.into() }),
        Event::ToolResult(ToolResult {
            tool_call_id: call,
            tool: "ask_user".into(),
            output: answer.into(),
            error: None,
            duration_ms: 1,
        }),
        block(3, BlockType::Text),
        text("Then that."),
        Event::ThreadLifecycle(Lifecycle::Completed {
            message_id,
            answer_message_id: message_id,
            text: "Then that.".into(),
            stop_reason: StopReason::EndTurn,
        }),
    ];
    let sent = events.into_iter().zip(1..);
    sent.map(|(event, ts)| SentEvent { task_id: task_id.clone(), turn_id, ts, event }).collect()
}

fn run(mut projection: RunProjection, events: &[SentEvent]) -> Vec<Value> {
    let mut out = String::new();
    for event in events {
        projection.apply(event.clone(), &mut out);
    }
    out.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[test]
fn a_run_ends_at_a_request_and_the_next_one_begins_there() {
    let (turn_id, request_id) = (TurnId::new(), HitlId::new());
    let events = turn_events(turn_id, request_id, "red");
    let first = run(RunProjection::new("t", "r1".into(), Seen::default(), KnownState::default()), &events);
    let expected = [
        "RUN_STARTED",
        "STATE_SNAPSHOT",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "RUN_FINISHED",
    ];
    assert_eq!(kinds(&first), expected);
    let interrupt = &first.last().unwrap()["outcome"]["interrupts"][0];
    let parsed = Interrupt::parse(interrupt["id"].as_str().unwrap()).unwrap();
    assert_eq!((parsed.turn_id, parsed.request_id), (turn_id, request_id));

    let resumed = |answer: Expected| {
        let projection = RunProjection::new("t", "r2".into(), Seen::default(), KnownState::default());
        run(projection.resuming(request_id, answer), &events)
    };
    let second = resumed(Expected::Answer("red".into()));
    let expected = [
        "RUN_STARTED",
        "STATE_SNAPSHOT",
        "TOOL_CALL_RESULT",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ];
    assert_eq!(kinds(&second), expected);
    assert_eq!(second.last().unwrap()["outcome"], json!({"type": "success"}));
    // Another answer than the one that counts is not passed over.
    let other = resumed(Expected::Answer("green".into()));
    assert_eq!(kinds(&other), ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_ERROR"]);
    assert_eq!(kinds(&resumed(Expected::Decision(ApprovalDecision::Deny))), expected);
}

#[test]
fn a_client_has_the_working_memory_with_the_beginning_and_each_write_once() {
    let (turn_id, message_id) = (TurnId::new(), MessageId::new());
    let write =
        |key: &str, value: Value| Event::WorkingMemoryUpdate(WorkingMemoryUpdate { key: key.into(), value });
    let events = [
        Event::ThreadLifecycle(Lifecycle::Started { message_id }),
        write("recalled", json!(["a"])),
        write("a/b", json!(1)),
        write("a/b", json!(2)),
        write("gone", json!(null)),
        write("c~", json!(3)),
        write("a/b", json!(null)),
        write("a/b", json!(null)),
    ];
    let task_id = TaskId::new("t").unwrap();
    let events: Vec<SentEvent> = events
        .into_iter()
        .zip(1..)
        .map(|(event, ts)| SentEvent { task_id: task_id.clone(), turn_id, ts, event })
        .collect();
    // The memory was read after the first write.
    let state = KnownState { memory: [("a/b".to_owned(), json!(1))].into(), as_of: 3 };
    let shown = run(RunProjection::new("t", "r".into(), Seen::default(), state), &events);
    assert_eq!(shown[1]["snapshot"], json!({"a/b": 1}));
    let patches: Vec<&Value> = shown[2..].iter().map(|event| &event["delta"][0]).collect();
    let expected = [
        json!({"op": "add", "path": "/recalled", "value": ["a"]}),
        json!({"op": "add", "path": "/a~1b", "value": 2}),
        json!({"op": "add", "path": "/c~0", "value": 3}),
        json!({"op": "remove", "path": "/a~1b"}),
    ];
    assert_eq!(patches, expected.iter().collect::<Vec<_>>());
}

/// What a client has after these events: the texts of messages and calls, by id.
fn fold(messages: &mut Vec<Value>, events: &[Value]) {
    for event in events {
        let id = event.get("messageId").or(event.get("parentMessageId")).cloned().unwrap_or_default();
        let at = messages.iter().position(|message| message["id"] == id);
        match (event["type"].as_str().unwrap(), at) {
            ("TEXT_MESSAGE_START" | "REASONING_MESSAGE_START", None) => {
                messages.push(json!({"id": id, "role": event["role"], "content": ""}));
            }
            ("TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT", Some(at)) => {
                let text =
                    messages[at]["content"].as_str().unwrap().to_owned() + event["delta"].as_str().unwrap();
                messages[at]["content"] = json!(text);
            }
            ("TOOL_CALL_START", None) => {
                let call = json!({"id": event["toolCallId"], "function": {"arguments": ""}});
                messages.push(json!({"id": id, "role": "assistant", "toolCalls": [call]}));
            }
            ("TOOL_CALL_ARGS", _) => {
                let message =
                    messages.iter_mut().find(|message| message["toolCalls"][0]["id"] == event["toolCallId"]);
                let arguments = &mut message.unwrap()["toolCalls"][0]["function"]["arguments"];
                *arguments = json!(arguments.as_str().unwrap().to_owned() + event["delta"].as_str().unwrap());
            }
            ("TOOL_CALL_RESULT", _) => {
                messages.push(json!({"id": id, "role": "tool", "content": event["content"]}));
            }
            _ => {}
        }
    }
}

#[test]
fn after_each_event_the_same_run_gives_exactly_the_rest() {
    let (turn_id, request_id) = (TurnId::new(), HitlId::new());
    let events = turn_events(turn_id, request_id, "red");
    for is_resumed in [false, true] {
        let whole_run = |seen| {
            let projection = RunProjection::new("t", "r".into(), seen, KnownState::default());
            let answer = Expected::Answer("red".into());
            run(if is_resumed { projection.resuming(request_id, answer) } else { projection }, &events)
        };
        let whole = whole_run(Seen::default());
        let mut all = Vec::new();
        fold(&mut all, &whole);
        for seen in 0..whole.len() {
            let mut messages = Vec::new();
            fold(&mut messages, &whole[..seen]);
            let user = json!({"id": "1", "role": "user", "content": "Hi"});
            let sent = [vec![user.clone()], messages.clone()].concat();
            let (others, has) = split_seen(sent, Some(turn_id));
            assert_eq!(others, [user]);
            let rest = whole_run(has);
            assert_eq!((kinds(&rest)[0], *kinds(&rest).last().unwrap()), ("RUN_STARTED", "RUN_FINISHED"));
            fold(&mut messages, &rest);
            assert_eq!(messages, all, "after {seen} events");
        }
    }
}

proptest! {
    #[test]
    fn no_body_breaks_it(
        names in prop::collection::vec(prop::sample::select(vec![
            "threadId", "runId", "messages", "tools", "context", "state", "resume", "forwardedProps", "odd",
        ]), 0..5),
        value in prop::sample::select(vec![
            json!(null), json!(1), json!("x"), json!([]), json!([1]), json!([{}]), json!({}), json!({"role": []}),
            json!([{"role": "user", "content": [{"type": "image", "source": []}]}]),
        ]),
    ) {
        let fields: Map<String, Value> = names.into_iter().map(|name| (name.to_owned(), value.clone())).collect();
        refusal(&Value::Object(fields));
    }
}
