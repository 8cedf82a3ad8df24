//! Whatever the engine accepted is stored, no matter what happened to the engine afterwards.

use std::collections::BTreeMap;

use api::event::{Event, Lifecycle, SentEvent, StopReason};
use api::{HitlId, TurnId};

use crate::task::Acknowledged;

/// Returns the acknowledged requests that were lost, by the whole replay and the messages that the model received.
pub(super) fn check_acknowledged(
    acknowledged: &Acknowledged,
    events: &[SentEvent],
    was_sent: &dyn Fn(u64) -> bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let ends: BTreeMap<TurnId, &Event> = events
        .iter()
        .filter(|event| event.event.ends_turn())
        .map(|event| (event.turn_id, &event.event))
        .collect();
    let is_kept = |turn: &&TurnId| !acknowledged.rewound_turns.contains(turn);
    let forgotten = acknowledged.turns.iter().filter(is_kept).filter(|turn| !ends.contains_key(turn));
    wrong.extend(forgotten.map(|turn| format!("{turn} was accepted but is forgotten")));
    for turn in acknowledged.cancelled.iter().filter(is_kept) {
        if !matches!(ends.get(turn), Some(Event::ThreadLifecycle(Lifecycle::Cancelled { .. }))) {
            wrong.push(format!("{turn} was cancelled but ended otherwise: {:?}", ends.get(turn)));
        }
    }
    for (marker, turn) in &acknowledged.steers {
        let ended_by_itself = matches!(
            ends.get(turn),
            Some(Event::ThreadLifecycle(Lifecycle::Completed { stop_reason: StopReason::EndTurn, .. }))
        );
        if ended_by_itself && !acknowledged.rewound_turns.contains(turn) && !was_sent(*marker) {
            wrong.push(format!("{turn} was steered, but the message never reached the model"));
        }
    }
    wrong.extend(check_answers(acknowledged, events));
    wrong
}

fn check_answers(acknowledged: &Acknowledged, events: &[SentEvent]) -> Vec<String> {
    let mut requests: BTreeMap<HitlId, TurnId> = BTreeMap::new();
    let mut resolved: BTreeMap<HitlId, &str> = BTreeMap::new();
    for event in events {
        match &event.event {
            Event::HitlRequest(request) => _ = requests.insert(request.request_id, event.turn_id),
            Event::HitlResolved(answer) => _ = resolved.insert(answer.request_id, &answer.answer),
            _ => {}
        }
    }
    let broken = acknowledged.answers.iter().filter(|(id, answer)| match requests.get(id) {
        Some(turn) => {
            let cancelled =
                acknowledged.attempted_cancels.contains(turn) || acknowledged.rewound_turns.contains(turn);
            !cancelled && resolved.get(id) != Some(&answer.as_str())
        }
        // Its turn was rewound, or else a client is found to have seen an event that is not stored.
        None => false,
    });
    broken
        .map(|(id, answer)| {
            format!("{id} was answered with {answer:?}, but the event has {:?}", resolved.get(id))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{event, hitl_id, message_id, phase, turn_id};

    fn hitl_exchange() -> Vec<SentEvent> {
        let created_at = "2026-01-01T00:00:00.000Z";
        let request =
            json!({"request_id": hitl_id(), "kind": "question", "question": "?", "created_at": created_at});
        vec![
            phase(1, "started", json!({})),
            event(2, "hitl_request", request),
            event(3, "hitl_resolved", json!({"request_id": hitl_id(), "answer": "yes"})),
            phase(
                4,
                "completed",
                json!({"answer_message_id": message_id(), "text": "", "stop_reason": "end_turn"}),
            ),
        ]
    }

    #[test]
    fn promises_are_kept_or_broken() {
        let cases: [(Acknowledged, Option<&str>); 8] = [
            (Acknowledged { turns: [turn_id()].into(), ..Acknowledged::default() }, None),
            (
                Acknowledged {
                    turns: ["turn_00000000000000000000000000000002".parse().unwrap()].into(),
                    ..Acknowledged::default()
                },
                Some("forgotten"),
            ),
            (
                Acknowledged { answers: [(hitl_id(), "yes".to_owned())].into(), ..Acknowledged::default() },
                None,
            ),
            (
                Acknowledged { answers: [(hitl_id(), "no".to_owned())].into(), ..Acknowledged::default() },
                Some("the event has"),
            ),
            (
                Acknowledged { cancelled: [turn_id()].into(), ..Acknowledged::default() },
                Some("ended otherwise"),
            ),
            (Acknowledged { steers: vec![(1, turn_id())], ..Acknowledged::default() }, None),
            (Acknowledged { steers: vec![(2, turn_id())], ..Acknowledged::default() }, Some("never reached")),
            (
                Acknowledged {
                    steers: vec![(2, turn_id())],
                    rewound_turns: [turn_id()].into(),
                    ..Acknowledged::default()
                },
                None,
            ),
        ];
        for (acknowledged, broken) in cases {
            let wrong = check_acknowledged(&acknowledged, &hitl_exchange(), &|marker| marker == 1);
            assert_eq!(wrong.len(), usize::from(broken.is_some()), "{acknowledged:?}: {wrong:?}");
            assert!(wrong.iter().all(|wrong| wrong.contains(broken.unwrap())), "{wrong:?}");
        }
    }
}
