//! Properties of the translations: no request and no order of events breaks them, and a response can be taken up
//! after each of its events.

use api::citations::{Citation, Citations, TextRange};
use api::event::{
    BlockStart, BlockStop, BlockType, Delta, Event, Failure, FailureCode, HitlKind, HitlRequest,
    HitlResolved, Lifecycle, SentEvent, StopReason, ToolCall, ToolResult, Usage,
};
use api::{CallId, HitlId, MessageId, TaskId, Timestamp, TurnId};
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::VendorError;
use super::chat_projection::ChatProjection;
use super::chat_request::ChatRequest;
use super::responses_items::Settings;
use super::responses_projection::ResponseProjection;
use super::responses_request::ResponseRequest;
use crate::http::projection::{Projector, patient_response};

fn task() -> TaskId {
    TaskId::new("täsk").unwrap()
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z]{0,8}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let key = prop_oneof![
            Just("type".to_owned()),
            Just("role".to_owned()),
            Just("content".to_owned()),
            Just("text".to_owned()),
            Just("image_url".to_owned()),
            Just("url".to_owned()),
            Just("file_data".to_owned()),
            "[a-z_]{1,8}",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn any_body() -> impl Strategy<Value = Map<String, Value>> {
    let names = [
        "model",
        "messages",
        "input",
        "stream",
        "stream_options",
        "tools",
        "n",
        "temperature",
        "response_format",
        "text",
        "reasoning",
        "metadata",
        "conversation",
        "previous_response_id",
        "roundhouse",
        "odd",
    ];
    let field = (prop::sample::select(names.to_vec()), any_json());
    prop::collection::vec(field, 0..6)
        .prop_map(|fields| fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// What happens in a turn between its beginning and its end.
fn any_middle() -> impl Strategy<Value = Event> {
    let call = TurnId::new().to_string().replace("turn_", "call_").parse::<CallId>().unwrap();
    let asked = HitlId::new();
    let text = "[a-zäöü ]{0,12}";
    let block = prop::sample::select(vec![BlockType::Text, BlockType::Thinking, BlockType::ToolUse]);
    prop_oneof![
        text.prop_map(|text| Event::TextDelta(Delta { text })),
        text.prop_map(|text| Event::TextDelta(Delta { text })),
        text.prop_map(|text| Event::ThinkingDelta(Delta { text })),
        (0..9_u32, block)
            .prop_map(|(index, block_type)| Event::ContentBlockStart(BlockStart { index, block_type })),
        (0..9_u32).prop_map(|index| Event::ContentBlockStop(BlockStop { index })),
        Just(Event::ToolCall(ToolCall { tool_call_id: call, tool: "shell".into(), input: json!({"a": 1}) })),
        any::<bool>().prop_map(move |fails| Event::ToolResult(ToolResult {
            tool_call_id: call,
            tool: "shell".into(),
            output: "ok".into(),
            error: fails.then(|| "no".into()),
            duration_ms: 1,
        })),
        Just(Event::HitlRequest(HitlRequest {
            request_id: asked,
            task_id: task(),
            kind: HitlKind::Question,
            question: "Wirklich?".into(),
            created_at: Timestamp::from_unix_ms(1),
            options: None,
        })),
        Just(Event::HitlResolved(HitlResolved { request_id: asked, answer: "ja".into() })),
        (0..400_i64).prop_map(|void_after| Event::ThreadLifecycle(Lifecycle::Retrying {
            message_id: MessageId::new(),
            void_after: 1_000 + void_after,
            attempt: 2,
        })),
        Just(Event::Usage(Usage { input_tokens: 2, output_tokens: 3, ..Usage::default() })),
        Just(Event::Citations(Citations {
            message_id: MessageId::new(),
            citations: vec![Citation {
                n: 1,
                url: "https://example.com".into(),
                title: None,
                ranges: vec![TextRange { start: 0, end: 1 }, TextRange { start: 2, end: 3 }],
            }],
        })),
    ]
}

/// The events of a turn with some time between them, its answer, and whether it completes.
fn any_turn() -> impl Strategy<Value = (Vec<SentEvent>, String, bool)> {
    let middle = prop::collection::vec((any_middle(), 1..20_i64), 0..30);
    (middle, "[a-zäöü]{1,12}", any::<bool>()).prop_map(|(middle, answer, completes)| {
        let (turn_id, message_id) = (TurnId::new(), MessageId::new());
        let mut ts = 1_000;
        let mut events = vec![SentEvent {
            task_id: task(),
            turn_id,
            ts,
            event: Event::ThreadLifecycle(Lifecycle::Started { message_id }),
        }];
        let end = if completes {
            Event::ThreadLifecycle(Lifecycle::Completed {
                message_id,
                answer_message_id: MessageId::new(),
                text: answer.clone(),
                stop_reason: StopReason::EndTurn,
            })
        } else {
            let (code, message) = (FailureCode::ProviderUnavailable, "later".into());
            Event::Error(Failure { code, message, retryable: true })
        };
        for (event, gap) in middle.into_iter().chain([(end, 1)]) {
            ts += gap;
            events.push(SentEvent { task_id: task(), turn_id, ts, event });
        }
        (events, answer, completes)
    })
}

fn project(projector: &mut impl Projector, events: &[SentEvent]) -> Vec<Value> {
    let mut out = String::new();
    for event in events {
        projector.apply(event.clone(), &mut out);
    }
    let data = out.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn response(events: &[SentEvent], after: Option<i64>) -> Vec<Value> {
    let turn_id = events[0].turn_id;
    project(&mut ResponseProjection::new(turn_id, task(), Settings::default(), after), events)
}

proptest! {
    #[test]
    fn no_body_breaks_a_translation(body in any_body()) {
        let _ = ChatRequest::parse(body.clone(), None, task());
        if let Ok(request) = ResponseRequest::parse(body, None, task()) {
            let _ = request.into_execute(task());
        }
    }

    #[test]
    fn a_response_is_taken_up_after_each_of_its_events((events, _, _) in any_turn()) {
        let all = response(&events, None);
        let numbers: Vec<i64> = all.iter().map(|event| event["sequence_number"].as_i64().unwrap()).collect();
        prop_assert!(numbers.is_sorted_by(|before, after| before < after), "{:?}", numbers);
        for (at, number) in numbers.iter().enumerate() {
            prop_assert_eq!(&response(&events, Some(*number)), &all[at + 1..]);
        }
    }

    #[test]
    fn each_item_begins_before_it_ends_and_the_answer_is_the_text((events, answer, completes) in any_turn()) {
        let all = response(&events, None);
        let of_kind = |kind: &str| -> Vec<Value> {
            let places = all.iter().filter(|event| event["type"] == kind);
            places.map(|event| event["output_index"].clone()).collect()
        };
        let added = of_kind("response.output_item.added");
        let expected: Vec<Value> = (0..added.len()).map(Value::from).collect();
        prop_assert_eq!(&added, &expected);
        for kind in ["response.output_text.done", "response.output_item.done", "response.output_text.delta"] {
            for place in of_kind(kind) {
                let begin = all.iter().position(|event| {
                    event["type"] == "response.output_item.added" && event["output_index"] == place
                });
                let end = all.iter().position(|event| event["type"] == kind && event["output_index"] == place);
                prop_assert!(begin < end);
            }
        }
        let last = &all.last().unwrap()["response"];
        prop_assert_eq!(&last["status"], if completes { "completed" } else { "failed" });
        if completes {
            let output = last["output"].as_array().unwrap();
            let messages: Vec<_> = output.iter().filter(|item| item["type"] == "message").collect();
            prop_assert_eq!(messages.len(), 1);
            prop_assert_eq!(&messages[0]["content"][0]["text"], &answer);
        }
    }

    #[test]
    fn a_completion_ends_once_and_never_mixes_answers((events, _, _) in any_turn()) {
        let mut projection = ChatProjection::new("default".into(), false, true);
        let chunks = project(&mut projection, &events);
        prop_assert!(projection.has_ended());
        let ends = chunks.iter().filter(|chunk| {
            chunk.get("error").is_some() || chunk["choices"][0]["finish_reason"].is_string()
        });
        prop_assert_eq!(ends.count(), 1);
        let ids: std::collections::HashSet<String> =
            chunks.iter().filter_map(|chunk| Some(chunk.get("id")?.to_string())).collect();
        prop_assert!(ids.len() <= 1);
    }
}

#[test]
fn a_turn_whose_deltas_are_gone_has_its_answer_nevertheless() {
    let (turn_id, message_id) = (TurnId::new(), MessageId::new());
    let sent = |ts, event| SentEvent { task_id: task(), turn_id, ts, event };
    let events = [
        sent(5_000, Event::ThreadLifecycle(Lifecycle::Started { message_id })),
        sent(
            6_000,
            Event::ThreadLifecycle(Lifecycle::Completed {
                message_id,
                answer_message_id: MessageId::new(),
                text: "Grüß Gott.".into(),
                stop_reason: StopReason::Budget,
            }),
        ),
    ];
    let last = response(&events, None).pop().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&json!("response.incomplete"), &json!("incomplete"))
    );
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], "Grüß Gott.");
    assert_eq!(last["response"]["created_at"], 5);
    let chunks = project(&mut ChatProjection::new("default".into(), false, false), &events);
    let content: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(content, "Grüß Gott.");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
}

/// What a response without a stream sends, if its outcome comes after `seconds`.
async fn sent_after(seconds: u64, outcome: Result<Value, VendorError>) -> (u16, String) {
    let response = patient_response(async move {
        tokio::time::sleep(std::time::Duration::from_secs(seconds)).await;
        outcome
    });
    let response = response.await;
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_response_that_takes_long_is_kept_alive_by_white_space() {
    let failure = || VendorError::unfinished("turn_unfinished", "later");
    assert_eq!(sent_after(1, Ok(json!({"a": 1}))).await, (200, "{\"a\":1}".to_owned()));
    assert_eq!(sent_after(1, Err(failure())).await.0, 503);
    let (status, body) = sent_after(200, Ok(json!({"a": 1}))).await;
    assert_eq!((status, &*body), (200, "   {\"a\":1}"));
    let (status, body) = sent_after(200, Err(failure())).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["error"]["code"]), (200, &json!("turn_unfinished")));
}
