//! Properties of the Agent2Agent protocol's front: no request breaks it, and a client that follows a turn from any point
//! has the same answer in the end.

use api::event::{
    BlockStart, BlockType, Delta, Event, Failure, FailureCode, HitlKind, HitlRequest, HitlResolved,
    Lifecycle, SentEvent, StopReason,
};
use api::{HitlId, MessageId, TaskId, Timestamp, TurnId};
use axum::http::HeaderMap;
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::parts::Content;
use super::request::{self, ListTasks, OneTask, SendMessage};
use super::stream::{Beginning, TaskStream};
use crate::http::json_rpc::{Fault, RequestId};
use crate::http::projection::Projector;

fn params(value: Value) -> Map<String, Value> {
    let Value::Object(params) = value else { panic!("{value} is no object") };
    params
}

fn sent(fields: Value) -> Result<Content, Fault> {
    let mut message = json!({"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hi"}]});
    message.as_object_mut().unwrap().extend(params(fields));
    let send: SendMessage = request::parse(params(json!({ "message": message })))?;
    send.check()?;
    Content::parse(send.message.parts)
}

#[test]
fn what_cannot_be_meant_is_refused() {
    assert_eq!(sent(json!({})).unwrap().text, "Hi");
    for (fields, code) in [
        (json!({"messageId": ""}), -32602),
        (json!({"messageId": "x".repeat(201)}), -32602),
        (json!({"role": "ROLE_AGENT"}), -32602),
        (json!({"role": "user"}), -32602),
        (json!({"parts": []}), -32602),
        (json!({"parts": [{}]}), -32602),
        (json!({"parts": [{"text": "a", "url": "https://example.com"}]}), -32602),
        (json!({"parts": [{"raw": "AAAA"}]}), -32602),
        (json!({"parts": [{"raw": "?", "mediaType": "image/png"}]}), -32602),
        (json!({"parts": [{"file": {}}]}), -32602),
        (json!({"massage": 1}), -32602),
        (json!({"referenceTaskIds": ["turn_1"]}), -32004),
    ] {
        assert_eq!(sent(fields.clone()).unwrap_err().code, code, "{fields}");
    }
    for (fields, code) in [
        (json!({"tenant": "a"}), -32602),
        (json!({"odd": 1}), -32602),
        (json!({"configuration": {"acceptedOutputModes": ["image/png"]}}), -32005),
        (json!({"configuration": {"taskPushNotificationConfig": {"url": "https://example.com"}}}), -32003),
    ] {
        let mut request = params(json!({
            "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hi"}]},
        }));
        request.extend(params(fields.clone()));
        let outcome = request::parse(request).and_then(|send: SendMessage| send.check());
        assert_eq!(outcome.unwrap_err().code, code, "{fields}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(json!("ROLE_USER")),
    ];
    let keys =
        ["message", "messageId", "role", "parts", "text", "raw", "url", "data", "configuration", "id", "odd"];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        let key = prop::sample::select(keys.to_vec()).prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// What happens in a turn between its beginning and its end.
fn any_middle() -> impl Strategy<Value = Event> {
    let asked = HitlId::new();
    prop_oneof![
        "[a-zäöü ]{0,12}".prop_map(|text| Event::TextDelta(Delta { text })),
        "[a-zäöü ]{1,12}".prop_map(|text| Event::TextDelta(Delta { text })),
        (0..9_u32)
            .prop_map(|index| Event::ContentBlockStart(BlockStart { index, block_type: BlockType::Text })),
        Just(Event::ThreadLifecycle(Lifecycle::Retrying {
            message_id: MessageId::new(),
            void_after: 0,
            attempt: 2
        })),
        Just(Event::HitlRequest(HitlRequest {
            request_id: asked,
            task_id: TaskId::new("t").unwrap(),
            kind: HitlKind::Question,
            question: "Wirklich?".into(),
            created_at: Timestamp::from_unix_ms(0),
            options: None,
        })),
        Just(Event::HitlResolved(HitlResolved { request_id: asked, answer: "ja".into() })),
    ]
}

fn end_of(kind: u8, text: &str) -> Vec<Event> {
    let message_id = MessageId::new();
    match kind {
        0 => vec![Event::ThreadLifecycle(Lifecycle::Completed {
            message_id,
            answer_message_id: message_id,
            text: text.to_owned(),
            stop_reason: StopReason::EndTurn,
        })],
        1 => vec![Event::ThreadLifecycle(Lifecycle::Cancelled { message_id })],
        _ => vec![
            Event::ThreadLifecycle(Lifecycle::Errored { message_id }),
            Event::Error(Failure {
                code: FailureCode::ProviderAuth,
                message: "No.".into(),
                retryable: false,
            }),
        ],
    }
}

/// What a client knows that read a stream.
#[derive(Debug, Default, PartialEq)]
struct Known {
    text: String,
    state: String,
}

/// A client that reads all events from `events`, of which it has read `known` when it begins to follow.
fn follow(events: &[Event], known: usize, beginning: Beginning) -> (Known, Vec<Value>) {
    let turn = (TaskId::new("t").unwrap(), TurnId::new());
    let mut stream = TaskStream::new(RequestId::text("r"), beginning, turn);
    let mut out = String::new();
    for (at, event) in events.iter().enumerate() {
        let (task_id, turn_id) = (TaskId::new("t").unwrap(), TurnId::new());
        let ts = i64::try_from(at + 1).unwrap();
        stream.apply(SentEvent { task_id, turn_id, ts, event: event.clone() }, &mut out);
        if at + 1 == known {
            stream.caught_up(&mut out);
        }
    }
    stream.interrupt(&mut out);
    let data = out.lines().filter_map(|line| line.strip_prefix("data: "));
    let results: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let mut client = Known::default();
    for message in &results {
        assert_eq!(message["id"], "r");
        let result = &message["result"];
        let artifact = &result["task"]["artifacts"][0]["parts"][0]["text"];
        if let Some(text) = artifact.as_str() {
            client.text = text.to_owned();
        }
        if let Some(text) = result["artifactUpdate"]["artifact"]["parts"][0]["text"].as_str() {
            if result["artifactUpdate"]["append"] != json!(true) {
                client.text.clear();
            }
            client.text.push_str(text);
        }
        for place in ["task", "statusUpdate"] {
            if let Some(state) = result[place]["status"]["state"].as_str() {
                client.state = state.to_owned();
            }
        }
    }
    (client, results)
}

proptest! {
    #[test]
    fn no_parameters_break_a_request(value in any_json()) {
        if let Value::Object(params) = value {
            if let Ok(send) = request::parse::<SendMessage>(params.clone()) {
                let _ = send.check().and_then(|()| Content::parse(send.message.parts)?.into_prompt());
            }
            let _ = request::parse::<OneTask>(params.clone());
            let _ = request::parse::<ListTasks>(params);
        }
    }

    /// From wherever a client follows a turn, it ends with the same answer and state, and begins with the task.
    #[test]
    fn a_turn_is_the_same_from_each_of_its_events(
        middle in prop::collection::vec(any_middle(), 0..12), end in 0..3_u8, is_streamed in any::<bool>(),
    ) {
        let last_text: String = middle.iter().fold(String::new(), |mut text, event| {
            match event {
                Event::TextDelta(delta) => text.push_str(&delta.text),
                Event::ContentBlockStart(_) | Event::ThreadLifecycle(_) => text.clear(),
                _ => {}
            }
            text
        });
        let answer = if is_streamed { last_text } else { "Another.".to_owned() };
        let asks = |event: &Event| matches!(event, Event::HitlRequest(_));
        let mut events = vec![Event::ThreadLifecycle(Lifecycle::Started { message_id: MessageId::new() })];
        // A stream ends at a question; that is another test.
        events.extend(middle.into_iter().filter(|event| !asks(event)));
        events.extend(end_of(end, &answer));
        let (whole, results) = follow(&events, 0, Beginning::First);
        prop_assert!(results[0]["result"].get("task").is_some());
        if end == 0 {
            prop_assert_eq!(&whole.text, &answer);
        }
        for known in 1..=events.len() {
            let (rest, results) = follow(&events, known, Beginning::Now);
            prop_assert!(results[0]["result"].get("task").is_some(), "{:?}", results);
            prop_assert_eq!(&rest.state, &whole.state);
            if end == 0 {
                prop_assert_eq!(&rest.text, &answer);
            }
        }
    }
}

#[test]
fn a_stream_ends_where_a_person_is_asked_and_not_where_one_answered() {
    let request_id = HitlId::new();
    let asks = Event::HitlRequest(HitlRequest {
        request_id,
        task_id: TaskId::new("t").unwrap(),
        kind: HitlKind::Permission,
        question: "May I?".into(),
        created_at: Timestamp::from_unix_ms(0),
        options: None,
    });
    let started = Event::ThreadLifecycle(Lifecycle::Started { message_id: MessageId::new() });
    let events = [started.clone(), asks.clone()];
    let (client, results) = follow(&events, 2, Beginning::First);
    assert_eq!(client.state, "TASK_STATE_INPUT_REQUIRED");
    let message = &results.last().unwrap()["result"]["statusUpdate"]["status"]["message"];
    assert_eq!((&message["role"], &message["parts"][0]["text"]), (&json!("ROLE_AGENT"), &json!("May I?")));
    assert_eq!(message["parts"][1]["data"]["request_id"], json!(request_id));
    let resolved = Event::HitlResolved(HitlResolved { request_id, answer: "yes".into() });
    let mut events = vec![started, asks, resolved];
    events.extend(end_of(0, "Done."));
    let (client, _) = follow(&events, 3, Beginning::Now);
    assert_eq!(client, Known { text: "Done.".into(), state: "TASK_STATE_COMPLETED".into() });
}

#[test]
fn a_request_names_its_version() {
    let version = |value: Option<&str>| {
        let mut headers = HeaderMap::new();
        if let Some(value) = value {
            headers.insert("a2a-version", value.parse().unwrap());
        }
        super::check_version(&headers).map_err(|fault| fault.code)
    };
    for supported in ["1", "1.0", "1.1"] {
        assert_eq!(version(Some(supported)), Ok(()));
    }
    for unsupported in [None, Some(""), Some("0.3"), Some("2.0"), Some("10.0")] {
        assert_eq!(version(unsupported), Err(-32009), "{unsupported:?}");
    }
}
