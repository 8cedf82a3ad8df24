//! The judgement of a task at its end: what each client saw, each turn's form, and every promise.
//!
//! The rules themselves are pure functions over events, in the modules below.

mod logs;
mod promises;
mod sequence;
mod turn;

use contract::event::{Event, Lifecycle, SentEvent};

use crate::calls::{LOGS, log};
use crate::client::Collected;
use crate::task::Task;
use crate::world::World;

/// Judges a task by its whole replay and what its clients have. What is wrong is told to the tally.
pub(crate) fn task(
    world: &World,
    task: &Task,
    events: &[SentEvent],
    clients: &[Collected],
) -> anyhow::Result<()> {
    let view = task.view();
    let mut wrong = sequence::whole(events);
    for client in clients {
        wrong.extend(sequence::client(client, events, &view.promises.taken_back));
    }
    for events in turns(events) {
        let Some(first) = events.first() else { continue };
        let facts = turn::Facts {
            ends_in_vain: world.stalls.of(&first.turn_id.to_string()),
            may_fail: world.mix.failure > 0.0,
            may_be_cancelled: view.promises.cancelling.contains(&first.turn_id),
        };
        if !view.promises.taken_back.contains(&first.turn_id) {
            wrong.extend(turn::whole(events, facts));
        }
        count(world, events, &mut wrong);
    }
    wrong.extend(promises::kept(&view.promises, events, &|mark| world.script.was_sent(mark)));
    let seen: Vec<&SentEvent> =
        events.iter().chain(clients.iter().flat_map(|client| &client.events)).collect();
    for which in LOGS {
        let name = log(&task.name, which);
        let text = std::fs::read_to_string(world.workspace.join(&name))?;
        let complete = view.promises.taken_back.is_empty();
        wrong.extend(logs::once(&name, &text, &seen, complete));
    }
    for what in wrong {
        world.tally.violation(format!("{}: {what}", task.name));
    }
    world.tally.count("tasks judged");
    world.tally.add("clients judged", u64::try_from(clients.len())?);
    world.tally.add("events judged", u64::try_from(events.len())?);
    Ok(())
}

/// The events of each turn.
fn turns(events: &[SentEvent]) -> impl Iterator<Item = &[SentEvent]> {
    events.chunk_by(|a, b| a.turn_id == b.turn_id)
}

fn count(world: &World, events: &[SentEvent], wrong: &mut Vec<String>) {
    for event in events {
        match &event.event {
            Event::ThreadLifecycle(Lifecycle::Resumed { .. }) => world.tally.count("resumed seen"),
            Event::ThreadLifecycle(Lifecycle::Retrying { .. }) => world.tally.count("retrying seen"),
            Event::ThreadLifecycle(Lifecycle::Cancelled { .. }) => world.tally.count("turns cancelled"),
            Event::ThreadLifecycle(Lifecycle::Completed { text, .. }) => {
                world.tally.count("turns completed");
                if !world.script.said(text) {
                    wrong.push(format!("completed with a text that the model never said: {text:?}"));
                }
            }
            Event::Error(failure) => world.tally.count(format!("turns errored with {:?}", failure.code)),
            Event::ToolResult(result) if result.error.as_deref().is_some_and(logs::is_unknown) => {
                world.tally.count("outcomes unknown");
            }
            _ => {}
        }
    }
    let resumed =
        |event: &SentEvent| matches!(event.event, Event::ThreadLifecycle(Lifecycle::Resumed { .. }));
    if events.iter().any(resumed) {
        world.tally.count("turns resumed");
    }
}
