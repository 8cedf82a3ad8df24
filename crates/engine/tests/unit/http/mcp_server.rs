//! Properties of the Model Context Protocol's front: sessions, what callers can do, and the stream of a call.

use api::event::{
    Delta, Event, Failure, FailureCode, HitlKind, HitlRequest, HitlResolved, Lifecycle, SentEvent, StopReason,
};
use api::{HitlId, MessageId, TaskId, Timestamp, TurnId};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::ask_projection::{AskProjection, Asking};
use super::caller::{Caller, Session};
use super::resumption::EventId;
use super::revision::Revision;
use super::tools::ToolCall;
use crate::http::json_rpc::RequestId;
use crate::http::projection::Projector;

#[test]
fn the_id_of_a_session_says_what_was_agreed_on() {
    for revision in Revision::ALL.into_iter().filter(|revision| revision.has_handshake()) {
        for capabilities in [json!({}), json!({"elicitation": {}})] {
            let caller = Caller::with_capabilities(revision, &capabilities);
            let session = Session::begin(&caller);
            assert_eq!(session.to_string().parse::<Session>().unwrap(), session);
            assert_eq!(session.caller().elicits, caller.elicits);
            assert_ne!(Session::begin(&caller), session);
        }
    }
    let id = "0".repeat(32);
    for text in [
        "",
        "2025-11-25",
        &format!("2025-11-25.asks.{id}0"),
        &format!("2025-11-25.may.{id}"),
        &format!("2026-07-28.asks.{id}"),
        &format!("2025-11-25.asks.{id} "),
    ] {
        assert!(text.parse::<Session>().is_err(), "{text}");
    }
}

#[test]
fn a_person_is_asked_only_by_a_caller_that_shows_forms() {
    for (revision, capabilities, elicits) in [
        (Revision::V2025_03_26, json!({"elicitation": {}}), false),
        (Revision::V2025_06_18, json!({"elicitation": {}}), true),
        (Revision::V2025_11_25, json!({"elicitation": {"form": {}, "url": {}}}), true),
        (Revision::V2025_11_25, json!({"elicitation": {"url": {}}}), false),
        (Revision::V2026_07_28, json!({"elicitation": {"form": {}}}), true),
        (Revision::V2026_07_28, json!({"elicitation": null}), false),
        (Revision::V2026_07_28, json!({}), false),
        (Revision::V2025_11_25, Value::Null, false),
    ] {
        assert_eq!(Caller::with_capabilities(revision, &capabilities).elicits, elicits, "{capabilities}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let keys = ["name", "arguments", "_meta", "progressToken", "requestState", "inputResponses", "odd"];
    leaf.prop_recursive(3, 16, 4, move |inner| {
        let key = prop::sample::select(keys.to_vec()).prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn message_id() -> MessageId {
    MessageId::new()
}

fn asks(request_id: HitlId) -> Event {
    Event::HitlRequest(HitlRequest {
        request_id,
        task_id: TaskId::new("t").unwrap(),
        kind: HitlKind::Permission,
        question: "May I?".into(),
        created_at: Timestamp::from_unix_ms(0),
        options: None,
    })
}

fn resolves(request_id: HitlId) -> Event {
    Event::HitlResolved(HitlResolved { request_id, answer: "yes".into() })
}

fn end_of(kind: u8) -> Vec<Event> {
    match kind {
        0 => vec![Event::ThreadLifecycle(Lifecycle::Completed {
            message_id: message_id(),
            answer_message_id: message_id(),
            text: "Done.".into(),
            stop_reason: StopReason::EndTurn,
        })],
        1 => vec![Event::ThreadLifecycle(Lifecycle::Cancelled { message_id: message_id() })],
        _ => vec![
            Event::ThreadLifecycle(Lifecycle::Errored { message_id: message_id() }),
            Event::Error(Failure {
                code: FailureCode::ProviderAuth,
                message: "The key is wrong.".into(),
                retryable: false,
            }),
        ],
    }
}

fn projection(revision: Revision, asking: Asking) -> AskProjection {
    let turn = (TaskId::new("t").unwrap(), TurnId::new());
    AskProjection::new(RequestId::text("call"), revision, asking, Some(json!("p")), turn, Vec::new())
}

/// What a caller receives if it has read everything after each of the `pauses`.
fn stream(projection: &mut AskProjection, events: &[Event], pauses: &[bool]) -> Vec<Value> {
    let encoded = encoded_stream(projection, events, pauses);
    encoded.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
}

/// The same with the ids of the events.
fn stream_with_ids(
    projection: &mut AskProjection,
    events: &[Event],
    pauses: &[bool],
) -> Vec<(EventId, Value)> {
    let encoded = encoded_stream(projection, events, pauses);
    let events = encoded.split_terminator("\n\n").map(|event| event.split_once('\n').unwrap());
    events
        .map(|(id, data)| {
            let id = id.strip_prefix("id: ").unwrap().parse().unwrap();
            (id, serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap())
        })
        .collect()
}

fn encoded_stream(projection: &mut AskProjection, events: &[Event], pauses: &[bool]) -> String {
    let mut out = String::new();
    let turn_id: TurnId = format!("turn_{}", "0".repeat(32)).parse().unwrap();
    for (at, event) in events.iter().enumerate() {
        let sent = SentEvent {
            task_id: TaskId::new("t").unwrap(),
            turn_id,
            ts: i64::try_from(at + 1).unwrap(),
            event: event.clone(),
        };
        projection.apply(sent, &mut out);
        if pauses.get(at).copied().unwrap_or(true) {
            projection.caught_up(&mut out);
        }
    }
    projection.interrupt(&mut out);
    out
}

proptest! {
    #[test]
    fn no_parameters_break_a_call(params in any_json()) {
        if let Value::Object(params) = params {
            let _ = ToolCall::parse(params);
        }
    }

    /// Whatever happens and however it is read, a call has exactly one answer, which is the last message.
    #[test]
    fn a_call_is_answered_once(
        steps in prop::collection::vec(0..4_u8, 0..8), end in 0..4_u8,
        pauses in prop::collection::vec(any::<bool>(), 12), by_request in any::<bool>(),
    ) {
        let asked = HitlId::new();
        let mut events = vec![Event::ThreadLifecycle(Lifecycle::Started { message_id: message_id() })];
        events.extend(steps.iter().map(|step| match step {
            0 => Event::TextDelta(Delta { text: "a".into() }),
            1 => asks(asked),
            2 => resolves(asked),
            _ => Event::ThreadLifecycle(Lifecycle::Resumed { message_id: message_id() }),
        }));
        if end < 3 {
            events.extend(end_of(end));
        }
        let (revision, asking) = if by_request {
            (Revision::V2025_11_25, Asking::ByRequest)
        } else {
            (Revision::V2026_07_28, Asking::ByResult)
        };
        let messages = stream(&mut projection(revision, asking), &events, &pauses);
        let is_answer = |message: &&Value| message["id"] == "call";
        prop_assert_eq!(messages.iter().filter(is_answer).count(), 1);
        prop_assert!(messages.last().is_some_and(|last| last["id"] == "call"));
        let mut last = 0;
        for message in messages.iter().filter(|message| message["method"] == "notifications/progress") {
            let progress = message["params"]["progress"].as_u64().unwrap();
            prop_assert!(progress > last);
            last = progress;
        }
        let questions = messages.iter().filter(|message| message["method"] == "elicitation/create");
        prop_assert!(questions.count() <= usize::from(by_request));
    }
}

proptest! {
    /// A caller that names the last event that it has gets exactly the rest, in particular no question twice.
    #[test]
    fn a_call_is_taken_up_after_each_of_its_messages(
        steps in prop::collection::vec(0..6_u8, 0..8), end in 0..4_u8,
        pauses in prop::collection::vec(any::<bool>(), 12),
    ) {
        let questions = [HitlId::new(), HitlId::new()];
        let mut events = vec![Event::ThreadLifecycle(Lifecycle::Started { message_id: message_id() })];
        events.extend(steps.iter().map(|step| match step {
            0 => Event::TextDelta(Delta { text: "a".into() }),
            1 => Event::ThreadLifecycle(Lifecycle::Resumed { message_id: message_id() }),
            2 | 3 => asks(questions[usize::from(*step - 2)]),
            _ => resolves(questions[usize::from(*step - 4)]),
        }));
        if end < 3 {
            events.extend(end_of(end));
        }
        let turn = (TaskId::new("t").unwrap(), TurnId::new());
        let new = || AskProjection::new(
            RequestId::text("call"), Revision::V2025_11_25, Asking::ByRequest, Some(json!(7)), turn.clone(), Vec::new(),
        );
        let first: EventId =
            new().first_event().unwrap().lines().next().unwrap().strip_prefix("id: ").unwrap().parse().unwrap();
        let all = stream_with_ids(&mut new(), &events, &pauses);
        let rest_after = |id: &EventId| {
            stream_with_ids(&mut new().taken_up_at(id.place), &events, &pauses)
        };
        prop_assert_eq!(&rest_after(&first), &all);
        for (at, (id, message)) in all.iter().enumerate() {
            // That the engine stops is no event of the turn.
            if message.get("error").is_none() {
                prop_assert_eq!(&rest_after(id), &all[at + 1..]);
            }
        }
    }

    #[test]
    fn no_id_of_an_event_breaks_it(text in ".{0,60}", bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = text.parse::<EventId>();
        let _ = URL_SAFE_NO_PAD.encode(bytes).parse::<EventId>();
    }
}

#[test]
fn what_was_answered_already_is_not_asked_again() {
    let asked = HitlId::new();
    let mut events = vec![asks(asked), resolves(asked)];
    events.extend(end_of(0));
    for (asking, revision) in
        [(Asking::ByRequest, Revision::V2025_06_18), (Asking::ByResult, Revision::V2026_07_28)]
    {
        let messages = stream(&mut projection(revision, asking), &events, &[false, true, true]);
        let last = messages.last().unwrap();
        assert_eq!(last["result"]["structuredContent"]["text"], "Done.", "{messages:?}");
        assert!(messages.iter().all(|message| message["method"] != "elicitation/create"), "{messages:?}");
    }
}

#[test]
fn a_person_is_asked_in_the_way_of_the_revision() {
    let asked = HitlId::new();
    let by_request = stream(&mut projection(Revision::V2025_11_25, Asking::ByRequest), &[asks(asked)], &[]);
    let question = by_request.iter().find(|message| message["method"] == "elicitation/create").unwrap();
    assert_eq!(question["id"], json!(asked.to_string()));
    assert_eq!(question["params"]["requestedSchema"]["properties"]["answer"]["enum"], json!(["yes", "no"]));
    let by_result = stream(&mut projection(Revision::V2026_07_28, Asking::ByResult), &[asks(asked)], &[]);
    let result = &by_result.last().unwrap()["result"];
    assert_eq!(result["resultType"], "input_required");
    assert_eq!(result["inputRequests"][asked.to_string()]["params"], question["params"]);
    assert!(result["requestState"].as_str().unwrap().starts_with("turn_"));
    let never = stream(&mut projection(Revision::V2025_03_26, Asking::Never), &[asks(asked)], &[]);
    let result = &never.last().unwrap()["result"];
    assert_eq!(result["structuredContent"]["status"], "waiting_for_person");
    assert!(result["content"][0]["text"].as_str().unwrap().contains("May I?"));
}

#[test]
fn a_failure_has_its_reason() {
    let messages = stream(&mut projection(Revision::V2025_11_25, Asking::Never), &end_of(2), &[]);
    let result = &messages.last().unwrap()["result"];
    assert_eq!(
        (&result["isError"], &result["content"][0]["text"]),
        (&json!(true), &json!("The key is wrong."))
    );
    assert_eq!(result["structuredContent"]["error"]["code"], "PROVIDER_AUTH");
}
