//! Helpers shared by the tests of the store and of its users: readers of events, and the opening of a turn.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::new_without_default,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic fails the test that uses it"
)]

use api::memory::Source;
use api::webhooks::WebhookEvent;
use api::{MessageId, Timestamp, TurnId};
use testkit::{SseEvent, parse_sse, with_deadline};

use crate::event_log::EventReader;
pub use crate::schema::create_older_version;
use crate::steps::{Opened, TurnBase, TurnOptions};
use crate::{DueDelivery, TaskRow};

/// Returns the row's number, for statements that a test writes itself.
pub fn row_number(task: TaskRow) -> i64 {
    task.0
}

/// Returns the next events of `reader` without heartbeats; `None` at its end.
pub async fn next_events(reader: &mut EventReader) -> Option<Vec<SseEvent>> {
    loop {
        let mut events = parse_sse(&with_deadline(reader.next()).await.unwrap()?);
        events.retain(|event| event.kind != "heartbeat");
        if !events.is_empty() {
            return Some(events);
        }
    }
}

/// Returns all events of `reader` up to its end.
pub async fn read_all(mut reader: EventReader) -> Vec<SseEvent> {
    let mut all = Vec::new();
    while let Some(events) = next_events(&mut reader).await {
        all.extend(events);
    }
    all
}

/// Reads until an event satisfies `predicate`; that one is included.
pub async fn read_until(reader: &mut EventReader, predicate: impl Fn(&SseEvent) -> bool) -> Vec<SseEvent> {
    let mut all = Vec::new();
    while !all.iter().any(&predicate) {
        let Some(events) = next_events(reader).await else { panic!("the stream ended before: {all:#?}") };
        all.extend(events);
    }
    all
}

/// Returns the opening of a turn with `message` and nothing else.
pub fn opened(message: &str) -> Opened {
    Opened {
        notes: Vec::new(),
        notes_source: Source::Agent.into(),
        recall_at: None,
        message_id: MessageId::new(),
        message: message.into(),
        media: Vec::new(),
        options: TurnOptions { max_turns: 50, super_thinking: false, direct: false, overrides: None },
        base: TurnBase::End,
        prompt: None,
        traceparent: None,
    }
}

/// A delivery of the end of a turn.
pub fn due_delivery(failures: u32, give_up_at: Timestamp) -> DueDelivery {
    let turn_id = TurnId::new();
    DueDelivery {
        id: format!("{turn_id}_ended"),
        event: WebhookEvent::TurnEnded,
        task: TaskRow(1),
        task_id: testkit::task_id("t"),
        turn_id,
        request_id: None,
        created_at: Timestamp::from_unix_ms(0),
        give_up_at,
        failures,
    }
}
