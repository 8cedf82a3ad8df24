//! Constructors of events for the checker's tests.

use api::event::SentEvent;
use api::{CallId, HitlId, MessageId, TaskId, TurnId};
use serde_json::{Value, json};

pub(crate) fn turn_id() -> TurnId {
    id("turn_", 1)
}

pub(crate) fn message_id() -> MessageId {
    id("msg_", 1)
}

pub(crate) fn hitl_id() -> HitlId {
    id("hitl-", 1)
}

pub(crate) fn call_id(number: u8) -> CallId {
    id("call_", number)
}

fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(prefix: &str, number: u8) -> T {
    format!("{prefix}{number:032}").parse().unwrap()
}

/// Returns an event of type `kind` with `data`.
pub(crate) fn event(ts: i64, kind: &str, mut data: Value) -> SentEvent {
    let fields = data.as_object_mut().unwrap();
    fields.insert("task_id".into(), json!(TaskId::new("t").unwrap()));
    fields.insert("turn_id".into(), json!(turn_id()));
    fields.insert("ts".into(), ts.into());
    SentEvent::from_sse(kind, &data.to_string()).unwrap()
}

pub(crate) fn delta(ts: i64, text: &str) -> SentEvent {
    event(ts, "text_delta", json!({"text": text}))
}

pub(crate) fn phase(ts: i64, phase: &str, mut more: Value) -> SentEvent {
    more["phase"] = phase.into();
    more["message_id"] = json!(message_id());
    event(ts, "thread_lifecycle", more)
}
