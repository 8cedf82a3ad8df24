//! The events of a turn as values, for whoever translates them into another form than their own on the wire.

use std::collections::VecDeque;

use api::event::SentEvent;
use store::StoreError;

use super::turn_stream::TurnStream;

/// The events that the sender of a message receives, one by one. Heartbeats are among them.
pub(crate) struct TurnEvents {
    stream: TurnStream,
    /// Events that were read together with the last one.
    read: VecDeque<SentEvent>,
}

impl TurnEvents {
    /// The events of `stream`.
    pub(crate) fn new(stream: TurnStream) -> Self {
        Self { stream, read: VecDeque::new() }
    }

    /// The next event; `None` if no more events can come, also because the engine stops. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<SentEvent>, StoreError> {
        loop {
            if let Some(event) = self.read.pop_front() {
                return Ok(Some(event));
            }
            let Some(chunk) = self.stream.next().await? else { return Ok(None) };
            self.read = parse_events(&chunk);
        }
    }

    /// The next event, if it has been read already.
    pub(crate) fn next_read(&mut self) -> Option<SentEvent> {
        self.read.pop_front()
    }

    /// Whether it has returned all events that exist so far.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.read.is_empty() && self.stream.is_caught_up()
    }
}

/// Parses Server-Sent Events. Events of a type that this version does not know are left out.
fn parse_events(chunk: &[u8]) -> VecDeque<SentEvent> {
    let text = std::str::from_utf8(chunk).unwrap_or_default();
    text.split("\n\n").filter_map(parse_event).collect()
}

fn parse_event(frame: &str) -> Option<SentEvent> {
    let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    SentEvent::from_sse(field("event")?, field("data")?).ok()
}

#[cfg(test)]
mod tests {
    use api::event::{Delta, Event, Heartbeat, Lifecycle};
    use api::{MessageId, TaskId, TurnId};
    use pretty_assertions::assert_eq;
    use proptest::prelude::*;

    use super::*;

    fn sent(ts: i64, event: Event) -> SentEvent {
        SentEvent { task_id: TaskId::new("task\n\nü").unwrap(), turn_id: TurnId::new(), ts, event }
    }

    proptest! {
        #[test]
        fn what_is_sent_is_what_is_read(texts in prop::collection::vec(any::<String>(), 0..20)) {
            let started = Event::ThreadLifecycle(Lifecycle::Started { message_id: MessageId::new() });
            let deltas = texts.into_iter().map(|text| Event::TextDelta(Delta { text }));
            let events: Vec<_> = [started, Event::Heartbeat(Heartbeat {})]
                .into_iter()
                .chain(deltas)
                .zip(1..)
                .map(|(event, ts)| sent(ts, event))
                .collect();
            let chunk: String = events.iter().map(|event| event.to_sse().unwrap()).collect();
            prop_assert_eq!(Vec::from(parse_events(chunk.as_bytes())), events);
        }

        #[test]
        fn no_bytes_stop_it(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_events(&bytes);
        }
    }

    #[test]
    fn an_event_of_a_later_version_is_left_out() {
        let known = sent(2, Event::TextDelta(Delta { text: "a".into() }));
        let unknown = known.to_sse().unwrap().replace("text_delta", "smell_delta");
        let chunk = format!("{unknown}{}", known.to_sse().unwrap());
        assert_eq!(Vec::from(parse_events(chunk.as_bytes())), [known]);
    }
}
