//! No event is lost or duplicated: each client has exactly what is stored.

use std::collections::BTreeSet;

use api::TurnId;
use api::event::SentEvent;

use crate::stream_reader::ReceivedEvents;

/// Returns the violations in the timestamps of a whole replay.
pub(super) fn check_timestamps(events: &[SentEvent]) -> Vec<String> {
    let mut wrong = Vec::new();
    for pair in events.windows(2) {
        if let [a, b] = pair
            && a.ts >= b.ts
        {
            wrong.push(format!("the replay's ts does not increase: {a:?}, then {b:?}"));
        }
    }
    let mut seen = BTreeSet::new();
    for turn in events.chunk_by(|a, b| a.turn_id == b.turn_id).filter_map(|turn| turn.first()) {
        if !seen.insert(turn.turn_id) {
            wrong.push(format!("the events of {} are interleaved with another turn's", turn.turn_id));
        }
    }
    wrong
}

/// Returns the violations in a client's events, compared with the whole replay. Turns rewound by an edit may or
/// may not be stored.
pub(super) fn check_client(
    client: &ReceivedEvents,
    events: &[SentEvent],
    rewound_turns: &BTreeSet<TurnId>,
) -> Option<String> {
    let counts = |event: &&SentEvent| !rewound_turns.contains(&event.turn_id);
    let wanted =
        |event: &&SentEvent| event.ts > client.after && client.turn.is_none_or(|turn| turn == event.turn_id);
    if client.events.is_empty()
        && client.turn.is_none()
        && client.after == 0
        && client.name.contains(" turn ")
    {
        // Disconnected before its first event, the client proves nothing.
        return None;
    }
    let mut stored = events.iter().filter(wanted).filter(counts);
    let mut received = client.events.iter().filter(counts);
    loop {
        return match (received.next(), stored.next()) {
            (None, None) => None,
            (Some(received), Some(stored)) if received == stored => continue,
            (Some(received), Some(stored)) if received.ts > stored.ts => {
                Some(format!("{} lost {stored:?}", client.name))
            }
            (Some(received), Some(stored)) if received.ts == stored.ts => {
                Some(format!("{} received {received:?}, but {stored:?} is stored", client.name))
            }
            (Some(received), _) => {
                Some(format!("{} received {received:?}, which is not stored", client.name))
            }
            (None, Some(stored)) => Some(format!("{} lost {stored:?}", client.name)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{delta, turn_id};

    fn client_events(events: Vec<SentEvent>, from: i64) -> ReceivedEvents {
        ReceivedEvents { name: "t observer".into(), after: from, turn: None, events }
    }

    #[test]
    fn a_client_has_its_slice_and_nothing_else() {
        let stored = vec![delta(1, "a"), delta(2, "b"), delta(3, "c")];
        let check = |events: Vec<SentEvent>, from| {
            check_client(&client_events(events, from), &stored, &BTreeSet::new())
        };
        assert_eq!(check(stored.clone(), 0), None);
        assert_eq!(check(stored[1..].to_vec(), 1), None);
        for (received, word) in [
            (stored[..2].to_vec(), "lost"),
            (stored[1..].to_vec(), "lost"),
            (vec![delta(1, "a"), delta(3, "c")], "lost"),
            (vec![delta(1, "a"), delta(2, "x"), delta(3, "c")], "is stored"),
            ([stored.clone(), vec![delta(4, "d")]].concat(), "not stored"),
            (vec![delta(1, "a"), delta(1, "a"), delta(2, "b"), delta(3, "c")], "not stored"),
        ] {
            let wrong = check(received.clone(), 0).unwrap();
            assert!(wrong.contains(word), "{received:?}: {wrong}");
        }
        let rewound_turns = BTreeSet::from([turn_id()]);
        assert_eq!(check_client(&client_events(vec![], 0), &stored, &rewound_turns), None);
    }

    #[test]
    fn times_rise() {
        assert!(check_timestamps(&[delta(1, "a"), delta(2, "b")]).is_empty());
        assert!(!check_timestamps(&[delta(1, "a"), delta(1, "b")]).is_empty());
    }
}
