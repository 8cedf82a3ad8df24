//! Parses events from the bytes of a stream that may be cut anywhere.

use api::event::{Event, SentEvent};

/// Takes bytes as they come and gives whole events. What a cut leaves of an event is dropped with it, as
/// Server-Sent Events have it: an event counts once its empty line has come.
#[derive(Debug, Default)]
pub(crate) struct EventParser(Vec<u8>);

impl EventParser {
    /// Returns the events completed by these bytes; heartbeats are checked and left out.
    ///
    /// # Errors An event that violates the contract.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<SentEvent>, String> {
        self.0.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.0.windows(2).position(|two| two == b"\n\n") {
            let rest = self.0.split_off(end + 2);
            let frame = std::mem::replace(&mut self.0, rest);
            events.extend(parse_event(&frame)?);
        }
        Ok(events)
    }
}

/// Parses one event; `None` for one that is not stored.
fn parse_event(frame: &[u8]) -> Result<Option<SentEvent>, String> {
    let text = std::str::from_utf8(frame).map_err(|error| format!("an event is not UTF-8: {error}"))?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let (Some(kind), Some(data)) = (field("event"), field("data")) else {
        return Err(format!("an event has no type or no data: {text:?}"));
    };
    let event = SentEvent::from_sse(kind, data).map_err(|error| format!("{error}: {text:?}"))?;
    match (field("id"), &event.event) {
        (None, Event::Heartbeat(_) | Event::BusyUpdate(_)) => Ok(None),
        (Some(id), _) if id == event.ts.to_string() => Ok(Some(event)),
        (id, _) => Err(format!("the event has the wrong id {id:?}: {text:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: &str = "turn_00000000000000000000000000000001";

    fn delta(ts: i64) -> String {
        format!(
            "id: {ts}\nevent: text_delta\ndata: {{\"task_id\":\"t\",\"turn_id\":\"{TURN}\",\"ts\":{ts},\"text\":\"x\"}}\n\n"
        )
    }

    #[test]
    fn an_event_counts_once_it_is_whole() {
        let both = [delta(1), delta(2)].concat();
        for disconnect in 0..both.len() {
            let mut parser = EventParser::default();
            let before = parser.push(&both.as_bytes()[..disconnect]).unwrap();
            let after = parser.push(&both.as_bytes()[disconnect..]).unwrap();
            let times: Vec<i64> = before.iter().chain(&after).map(|event| event.ts).collect();
            assert_eq!(times, [1, 2], "cut at {disconnect}");
            assert_eq!(before.len(), usize::from(disconnect >= delta(1).len()), "cut at {disconnect}");
        }
    }

    #[test]
    fn what_is_no_event_is_said() {
        for wrong in [
            delta(1).replacen("id: 1", "id: 2", 1),
            "event: text_delta\n\n".into(),
            delta(1).replace("text_delta", "news"),
        ] {
            assert!(EventParser::default().push(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
