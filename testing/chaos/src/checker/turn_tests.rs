use serde_json::json;

use super::*;
use crate::testing::{call_id, delta, event, phase};

/// A turn with a tool call, and with an answer whose beginning was repeated differently after a restart.
fn turn() -> Vec<SentEvent> {
    let start =
        |ts, index: u32| event(ts, "content_block_start", json!({"index": index, "block_type": "text"}));
    let stop = |ts, index: u32| event(ts, "content_block_stop", json!({"index": index}));
    let usage = |ts, tokens: u64| {
        let counts = json!({"model": "m", "input_tokens": tokens, "output_tokens": tokens,
            "cache_read_tokens": 0,            "cache_write_tokens": 0, "reasoning_tokens": 0});
        event(ts, "usage", counts)
    };
    let call = call_id(1);
    vec![
        phase(1, "started", json!({})),
        start(2, 0),
        delta(3, "Let me see."),
        stop(4, 0),
        usage(5, 1),
        event(6, "tool_call", json!({"tool_call_id": call, "tool": "x", "input": {}})),
        event(7, "tool_result", json!({"tool_call_id": call, "tool": "x", "output": "y", "duration_ms": 0})),
        start(8, 1),
        delta(9, "It i"),
        phase(10, "resumed", json!({})),
        stop(11, 1),
        phase(12, "retrying", json!({"void_after": 7, "attempt": 2})),
        start(13, 2),
        delta(14, "All is well."),
        stop(15, 2),
        usage(16, 2),
        phase(
            17,
            "completed",
            json!({"answer_message_id": crate::testing::message_id(), "text": "All is well.",
            "stop_reason": "end_turn"}),
        ),
    ]
}

#[test]
fn a_right_turn_is_right() {
    assert_eq!(check_turn(&turn(), TurnFacts::default()), Vec::<String>::new());
}

#[test]
fn every_event_that_is_missing_is_missed() {
    // An event whose absence leaves no trace in the turn itself: `resumed`.
    let harmless = [9];
    for index in (0..turn().len()).filter(|index| !harmless.contains(index)) {
        let mut events = turn();
        let missing = events.remove(index);
        // Their content is in no later event of the turn; the comparison with the clients' events detects the
        // loss.
        if missing.ts == 3 || missing.ts == 9 || missing.ts == 5 {
            continue;
        }
        assert!(!check_turn(&events, TurnFacts::default()).is_empty(), "{missing:?} is not missed");
    }
}

#[test]
fn every_event_that_is_doubled_is_seen() {
    // Text of steps that are not the last one, and events without a counterpart.
    let harmless = [3, 5, 9, 10, 12, 16];
    for index in 0..turn().len() {
        let mut events = turn();
        let doubled = events[index].clone();
        events.insert(index, doubled.clone());
        let seen = !check_turn(&events, TurnFacts::default()).is_empty();
        assert!(seen || harmless.contains(&doubled.ts), "{doubled:?} twice is not seen");
    }
}

#[test]
fn a_repetition_takes_back_its_own_step() {
    // 0 and 12 are not earlier events, and 6 is followed by a recorded result.
    for (void_after, is_valid) in [(0, false), (6, false), (7, true), (12, false)] {
        let mut events = turn();
        events[11] = phase(12, "retrying", json!({"void_after": void_after, "attempt": 2}));
        assert_eq!(check_retries(&events).is_empty(), is_valid, "{void_after}");
    }
}

#[test]
fn errors_must_be_expected() {
    let error = |code: &str| {
        let failure = json!({"code": code, "message": "m", "retryable": false});
        vec![phase(1, "started", json!({})), phase(2, "errored", json!({})), event(3, "error", failure)]
    };
    let facts = TurnFacts { restarts_without_progress: 9, may_fail: true, may_be_cancelled: false };
    assert!(check_turn(&error("RESUME_LIMIT"), facts).is_empty());
    assert!(check_turn(&error("PROVIDER_AUTH"), facts).is_empty());
    assert!(
        !check_turn(&error("RESUME_LIMIT"), TurnFacts { restarts_without_progress: 8, ..facts }).is_empty()
    );
    assert!(!check_turn(&error("PROVIDER_AUTH"), TurnFacts { may_fail: false, ..facts }).is_empty());
    assert!(!check_turn(&error("INTERNAL_ERROR"), facts).is_empty());
    let cancelled = [phase(1, "started", json!({})), phase(2, "cancelled", json!({}))];
    assert!(!check_turn(&cancelled, facts).is_empty());
    assert!(check_turn(&cancelled, TurnFacts { may_be_cancelled: true, ..facts }).is_empty());
}
