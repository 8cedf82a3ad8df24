//! A client's interpretation of the events of a turn.

use serde_json::Value;

use super::Event;

/// Asserts the invariants of every complete turn's events: their order, their nesting and their end.
#[track_caller]
pub(crate) fn assert_complete_turn(events: &[Event]) {
    assert!(events.is_sorted_by(|a, b| a.ts() < b.ts()), "ts does not increase strictly: {events:#?}");
    assert_eq!(events.first().and_then(Event::phase), Some("started"), "{events:#?}");
    for event in events {
        assert_eq!(event.data["turn_id"], events[0].data["turn_id"], "another turn's event: {event:?}");
        assert_eq!(event.data["task_id"], events[0].data["task_id"], "another task's event: {event:?}");
        if event.phase().is_some() {
            assert_eq!(event.data["message_id"], events[0].data["message_id"], "{event:?}");
        }
    }
    let end = events
        .iter()
        .position(|event| event.kind == "error" || matches!(event.phase(), Some("completed" | "cancelled")));
    assert_eq!(end, Some(events.len() - 1), "nothing follows the end: {events:#?}");
    assert_blocks(events);
    assert_tools(events);
}

/// Asserts that every delta is in a block of its type, and that blocks are numbered through the turn.
#[track_caller]
fn assert_blocks(events: &[Event]) {
    let mut open: Option<(&Value, &str)> = None;
    let mut blocks = 0;
    for event in events {
        match event.kind.as_str() {
            "content_block_start" => {
                assert_eq!(open, None, "two blocks at once: {event:?}");
                assert_eq!(event.data["index"], blocks, "blocks are numbered through the turn: {event:?}");
                blocks += 1;
                open = Some((&event.data["index"], event.data["block_type"].as_str().unwrap()));
            }
            "content_block_stop" => {
                let (index, _) = open.take().unwrap_or_else(|| panic!("no block is open: {event:?}"));
                assert_eq!(&event.data["index"], index);
            }
            "text_delta" => assert_eq!(open.map(|block| block.1), Some("text"), "{event:?}"),
            "thinking_delta" => assert_eq!(open.map(|block| block.1), Some("thinking"), "{event:?}"),
            _ => {}
        }
    }
    let failed = events.last().is_some_and(|event| event.kind == "error");
    assert!(open.is_none() || failed, "a block is left open: {events:#?}");
}

/// Asserts that each tool call is followed by one result. Calls of one answer run concurrently and end in any
/// order.
#[track_caller]
fn assert_tools(events: &[Event]) {
    let mut open: Vec<&Value> = Vec::new();
    for event in events {
        let id = &event.data["tool_call_id"];
        match event.kind.as_str() {
            "tool_call" => open.push(id),
            "tool_result" => {
                let at = open.iter().position(|call| *call == id);
                open.remove(
                    at.unwrap_or_else(|| panic!("a result without a call: {event:?} in {events:#?}")),
                );
            }
            _ => {}
        }
    }
    assert!(open.is_empty(), "calls without a result: {open:?} in {events:#?}");
}

/// The text that a client shows if it honours `void_after`.
pub(crate) fn visible_text(events: &[Event], kind: &str) -> String {
    let mut chunks: Vec<&Event> = Vec::new();
    for event in events {
        if event.phase() == Some("retrying") {
            let void_after = event.data["void_after"].as_i64().unwrap();
            chunks.retain(|chunk| chunk.ts() <= void_after);
        }
        if event.kind == kind {
            chunks.push(event);
        }
    }
    chunks.iter().map(|event| event.text()).collect()
}

/// The phases of a turn, in order.
pub(crate) fn phases(events: &[Event]) -> Vec<&str> {
    events.iter().filter_map(Event::phase).collect()
}

/// Asserts that a turn completed and that its deltas end with its text; returns the text.
#[track_caller]
pub(crate) fn assert_completed(events: &[Event]) -> &str {
    assert_complete_turn(events);
    let last = events.last().unwrap();
    assert_eq!(last.phase(), Some("completed"), "{events:#?}");
    let text = last.text();
    let shown = visible_text(events, "text_delta");
    assert!(shown.ends_with(text), "completed says {text:?}, the deltas {shown:?}");
    text
}

/// Asserts that a turn failed with the right last events; returns the data of its `error`.
#[track_caller]
pub(crate) fn assert_errored(events: &[Event]) -> &Value {
    assert_complete_turn(events);
    let [.., errored, error] = events else { panic!("too few events: {events:#?}") };
    assert_eq!((errored.phase(), error.kind.as_str()), (Some("errored"), "error"), "{events:#?}");
    &error.data
}

/// Asserts that a turn was cancelled.
#[track_caller]
pub(crate) fn assert_cancelled(events: &[Event]) {
    assert_complete_turn(events);
    assert_eq!(events.last().unwrap().phase(), Some("cancelled"), "{events:#?}");
}

/// The events of a type.
pub(crate) fn of_kind<'a>(events: &'a [Event], kind: &str) -> Vec<&'a Event> {
    events.iter().filter(|event| event.kind == kind).collect()
}

/// The values of working memory under a key, in the order of their updates.
pub(crate) fn memory_values<'a>(events: &'a [Event], key: &str) -> Vec<&'a Value> {
    let updates = of_kind(events, "working_memory_update").into_iter();
    updates.filter(|update| update.data["key"] == key).map(|update| &update.data["value"]).collect()
}
