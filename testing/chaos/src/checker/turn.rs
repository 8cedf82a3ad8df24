//! The structure of a turn: its beginning and end, its blocks, calls and requests, and its visible text.

use std::collections::BTreeMap;

use api::event::{BlockType, Event, FailureCode, Lifecycle, SentEvent, StopReason, Usage};

/// Other facts known about a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TurnFacts {
    /// How many ends of the engine in a row left it without a new step.
    pub(super) restarts_without_progress: u64,
    /// Whether the provider may refuse the key.
    pub(super) may_fail: bool,
    /// Whether a client cancelled it.
    pub(super) may_be_cancelled: bool,
}

/// Eight engine starts may try a turn without progress: the ninth, after as many ends, gives up.
const RESUME_LIMIT: u64 = 9;

/// Returns the violations in the events of a turn that has ended.
pub(super) fn check_turn(events: &[SentEvent], facts: TurnFacts) -> Vec<String> {
    let mut wrong = Vec::new();
    let Some((first, last)) = events.first().zip(events.last()) else { return wrong };
    if !matches!(first.event, Event::ThreadLifecycle(Lifecycle::Started { .. })) {
        wrong.push(format!("a turn begins with {first:?}"));
    }
    let starts = events
        .iter()
        .filter(|event| matches!(event.event, Event::ThreadLifecycle(Lifecycle::Started { .. })));
    if starts.count() > 1 {
        wrong.push(format!("{} starts twice", first.turn_id));
    }
    let ends = events.iter().filter(|event| event.event.ends_turn()).count();
    if ends != 1 || !last.event.ends_turn() {
        wrong.push(format!("{} has {ends} ends, and its last event is {last:?}", first.turn_id));
    }
    wrong.extend(check_message_ids(events));
    wrong.extend(check_blocks(events));
    wrong.extend(check_calls(events));
    wrong.extend(check_hitl_requests(events));
    wrong.extend(check_usage(events));
    wrong.extend(check_retries(events));
    wrong.extend(check_end(events, facts));
    wrong
}

/// Every phase names the turn's user message.
fn check_message_ids(events: &[SentEvent]) -> Option<String> {
    let mut ids = events.iter().filter_map(|event| match &event.event {
        Event::ThreadLifecycle(
            Lifecycle::Started { message_id }
            | Lifecycle::Completed { message_id, .. }
            | Lifecycle::Errored { message_id }
            | Lifecycle::Resumed { message_id }
            | Lifecycle::Retrying { message_id, .. }
            | Lifecycle::Cancelled { message_id },
        ) => Some(message_id),
        _ => None,
    });
    let first = ids.next()?;
    let other = ids.find(|id| *id != first)?;
    Some(format!("a turn of message {first} also names message {other}"))
}

/// Block numbers increase through the turn, blocks never overlap, and each delta is in a block of its type.
fn check_blocks(events: &[SentEvent]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut open: Option<(u32, BlockType)> = None;
    let mut next_index = 0;
    for event in events {
        let is_valid = match &event.event {
            Event::ContentBlockStart(start) => {
                let is_valid = open.is_none() && start.index == next_index;
                next_index = start.index + 1;
                open = Some((start.index, start.block_type));
                is_valid
            }
            Event::ContentBlockStop(stop) => open.take().is_some_and(|(index, _)| index == stop.index),
            Event::TextDelta(_) => open.is_some_and(|(_, kind)| kind == BlockType::Text),
            Event::ThinkingDelta(_) => open.is_some_and(|(_, kind)| kind == BlockType::Thinking),
            Event::ThreadLifecycle(Lifecycle::Completed { .. }) => open.is_none(),
            _ => true,
        };
        if !is_valid {
            wrong.push(format!("blocks are not nested, {open:?} is open: {event:?}"));
        }
    }
    wrong
}

/// Each call has one result, after it. An interrupted turn may have calls without a result.
fn check_calls(events: &[SentEvent]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut open = BTreeMap::new();
    for event in events {
        match &event.event {
            Event::ToolCall(call) if open.insert(call.tool_call_id, true).is_some() => {
                wrong.push(format!("a call occurs twice: {event:?}"));
            }
            Event::ToolResult(result) if open.insert(result.tool_call_id, false) != Some(true) => {
                wrong.push(format!("a result without its call, or a second result: {event:?}"));
            }
            _ => {}
        }
    }
    let completed =
        |event: &SentEvent| matches!(event.event, Event::ThreadLifecycle(Lifecycle::Completed { .. }));
    if events.last().is_some_and(completed) {
        wrong.extend(open.iter().filter(|(_, open)| **open).map(|(id, _)| format!("{id} has no result")));
    }
    wrong
}

/// Each request is answered at most once, one is pending at a time, and none is repeated.
fn check_hitl_requests(events: &[SentEvent]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut pending = None;
    let mut questions = Vec::new();
    for event in events {
        match &event.event {
            Event::HitlRequest(request) => {
                if pending.replace(request.request_id).is_some() {
                    wrong.push(format!("a second request while one is pending: {event:?}"));
                }
                let ours = request.question.contains("line-") || request.question.contains("ask-");
                if ours && questions.contains(&&request.question) {
                    wrong.push(format!("a question was asked again: {event:?}"));
                }
                questions.push(&request.question);
            }
            Event::HitlResolved(resolved) if pending.take() != Some(resolved.request_id) => {
                wrong.push(format!("resolved without being pending: {event:?}"));
            }
            Event::ThreadLifecycle(Lifecycle::Completed { .. }) if pending.is_some() => {
                wrong.push(format!("completed while {pending:?} is pending"));
            }
            _ => {}
        }
    }
    wrong
}

/// Token counts never decrease.
fn check_usage(events: &[SentEvent]) -> Option<String> {
    let mut last = Usage::default();
    for event in events {
        let Event::Usage(usage) = &event.event else { continue };
        if usage.input_tokens < last.input_tokens || usage.output_tokens < last.output_tokens {
            return Some(format!("usage went down: {event:?}"));
        }
        last = usage.clone();
    }
    None
}

/// A retry voids only events of its own step, back to an event of the turn, and nothing that is committed.
fn check_retries(events: &[SentEvent]) -> Vec<String> {
    let on_record = |event: &SentEvent| {
        matches!(
            event.event,
            Event::ToolCall(_)
                | Event::ToolResult(_)
                | Event::Usage(_)
                | Event::HitlRequest(_)
                | Event::HitlResolved(_)
        )
    };
    let mut wrong = Vec::new();
    for (index, event) in events.iter().enumerate() {
        let Event::ThreadLifecycle(Lifecycle::Retrying { void_after, attempt, .. }) = event.event else {
            continue;
        };
        let before = events.get(..index).unwrap_or_default();
        let known = before.iter().any(|event| event.ts == void_after);
        if !known || attempt < 2 || before.iter().any(|event| event.ts > void_after && on_record(event)) {
            wrong.push(format!("it voids events that must not be voided: {event:?}"));
        }
    }
    wrong
}

/// The permitted ends of a turn.
fn check_end(events: &[SentEvent], facts: TurnFacts) -> Vec<String> {
    let mut wrong = Vec::new();
    match events.last().map(|event| &event.event) {
        Some(Event::ThreadLifecycle(Lifecycle::Completed { text, stop_reason, .. })) => {
            if !matches!(stop_reason, StopReason::EndTurn | StopReason::MaxTurns) {
                wrong.push(format!("completed with {stop_reason:?}"));
            }
            let visible = visible_text(events);
            if visible != *text {
                wrong.push(format!("completed with {text:?}, but clients show {visible:?}: {events:?}"));
            }
        }
        Some(Event::ThreadLifecycle(Lifecycle::Cancelled { .. })) if !facts.may_be_cancelled => {
            wrong.push("cancelled without a cancel request".into());
        }
        Some(Event::Error(failure)) => {
            let errored = events.iter().rev().nth(1).map(|event| &event.event);
            if !matches!(errored, Some(Event::ThreadLifecycle(Lifecycle::Errored { .. }))) {
                wrong.push(format!("the error is preceded by {errored:?}"));
            }
            let expected = match failure.code {
                FailureCode::ProviderAuth => facts.may_fail,
                // Waiting for the user does not count as a lack of progress.
                FailureCode::ResumeLimit => {
                    facts.restarts_without_progress >= RESUME_LIMIT && !awaits_human(events)
                }
                _ => false,
            };
            if !expected {
                wrong.push(format!(
                    "errored with {failure:?} after {} engine exits without a new step",
                    facts.restarts_without_progress
                ));
            }
        }
        _ => {}
    }
    wrong
}

/// Whether the turn was waiting for the user when it ended.
fn awaits_human(events: &[SentEvent]) -> bool {
    events.iter().fold(false, |awaits_human, event| match &event.event {
        Event::HitlRequest(_) => true,
        Event::HitlResolved(_) => false,
        _ => awaits_human,
    })
}

/// The text of the last model answer as shown by a client that honours `void_after`. `usage` ends each answer.
fn visible_text(events: &[SentEvent]) -> String {
    let mut chunks: Vec<(i64, &str)> = Vec::new();
    let mut answer = String::new();
    for event in events {
        match &event.event {
            Event::TextDelta(delta) => chunks.push((event.ts, &delta.text)),
            Event::ThreadLifecycle(Lifecycle::Retrying { void_after, .. }) => {
                chunks.retain(|(ts, _)| ts <= void_after);
            }
            Event::Usage(_) => answer = chunks.drain(..).map(|(_, text)| text).collect(),
            _ => {}
        }
    }
    answer
}

#[cfg(test)]
#[path = "turn_tests.rs"]
mod tests;
