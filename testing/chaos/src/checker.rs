//! Checks a task at its end: what each client saw, the structure of each turn, and every acknowledged request.
//!
//! The rules themselves are pure functions over events, in the modules below.

mod acknowledged;
mod logs;
mod sequence;
mod turn;

use api::event::{Event, Lifecycle, SentEvent};

use crate::context::RunContext;
use crate::stream_reader::ReceivedEvents;
use crate::task::TrackedTask;
use crate::tool_calls::{LOG_NAMES, log_file_name};

/// Checks a task by its whole replay and what its clients received. Violations go to the counters.
pub(crate) fn check_task(
    context: &RunContext,
    task: &TrackedTask,
    events: &[SentEvent],
    clients: &[ReceivedEvents],
) -> anyhow::Result<()> {
    let view = task.view();
    let mut wrong = sequence::check_timestamps(events);
    for client in clients {
        wrong.extend(sequence::check_client(client, events, &view.acknowledged.rewound_turns));
    }
    for events in group_by_turn(events) {
        let Some(first) = events.first() else { continue };
        let facts = turn::TurnFacts {
            restarts_without_progress: context.stalls.restarts_without_progress(&first.turn_id.to_string()),
            may_fail: context.workload.failure > 0.0,
            may_be_cancelled: view.acknowledged.attempted_cancels.contains(&first.turn_id),
        };
        if !view.acknowledged.rewound_turns.contains(&first.turn_id) {
            wrong.extend(turn::check_turn(events, facts));
        }
        count_coverage(context, events, &mut wrong);
    }
    wrong.extend(acknowledged::check_acknowledged(&view.acknowledged, events, &|marker| {
        context.script.was_sent(marker)
    }));
    let seen: Vec<&SentEvent> =
        events.iter().chain(clients.iter().flat_map(|client| &client.events)).collect();
    for which in LOG_NAMES {
        let name = log_file_name(&task.name, which);
        let text = std::fs::read_to_string(context.workspace.join(&name))?;
        let complete = view.acknowledged.rewound_turns.is_empty();
        wrong.extend(logs::check_log(&name, &text, &seen, complete));
    }
    for what in wrong {
        context.counters.record_violation(format!("{}: {what}", task.name));
    }
    context.counters.count("tasks judged");
    context.counters.add("clients judged", u64::try_from(clients.len())?);
    context.counters.add("events judged", u64::try_from(events.len())?);
    Ok(())
}

/// The events of each turn.
fn group_by_turn(events: &[SentEvent]) -> impl Iterator<Item = &[SentEvent]> {
    events.chunk_by(|a, b| a.turn_id == b.turn_id)
}

fn count_coverage(context: &RunContext, events: &[SentEvent], wrong: &mut Vec<String>) {
    for event in events {
        match &event.event {
            Event::ThreadLifecycle(Lifecycle::Resumed { .. }) => context.counters.count("resumed seen"),
            Event::ThreadLifecycle(Lifecycle::Retrying { .. }) => context.counters.count("retrying seen"),
            Event::ThreadLifecycle(Lifecycle::Cancelled { .. }) => context.counters.count("turns cancelled"),
            Event::ThreadLifecycle(Lifecycle::Completed { text, .. }) => {
                context.counters.count("turns completed");
                if !context.script.has_produced(text) {
                    wrong.push(format!("completed with a text that the model never produced: {text:?}"));
                }
            }
            Event::Error(failure) => context.counters.count(format!("turns errored with {:?}", failure.code)),
            Event::ToolResult(result) if result.error.as_deref().is_some_and(logs::is_unknown_outcome) => {
                context.counters.count("outcomes unknown");
            }
            _ => {}
        }
    }
    let resumed =
        |event: &SentEvent| matches!(event.event, Event::ThreadLifecycle(Lifecycle::Resumed { .. }));
    if events.iter().any(resumed) {
        context.counters.count("turns resumed");
    }
}
