//! Story 5: a client that disconnects and reconnects gets exactly the events that it missed.

use futures::future::join_all;
use pretty_assertions::assert_eq;
use reqwest::Method;

use crate::support::http::send;
use crate::support::turn::{assert_complete_turn, assert_completed};
use crate::support::{Engine, Event, EventStream, StandaloneEngine};

/// A message that the built-in script answers with thinking, a tool call and text.
const MESSAGE: &str = "remember that my colour is green";

/// Replays a task after the event `last`, which is named by its id (`Last-Event-ID`) or its time (`after`).
async fn resume_replay(engine: &Engine, task: &str, last: &Event, by_id: bool) -> EventStream {
    if by_id {
        // The id takes precedence over `after`.
        let request = engine.request(Method::GET, &format!("/execute/replay?task_id={task}&after=0"));
        EventStream::open(request.header("last-event-id", &last.id)).await
    } else {
        engine.replay(task, last.ts()).await
    }
}

/// Starts a turn, disconnects after `count` events and reconnects; a second reader stays connected.
async fn assert_resumes_after(engine: &Engine, task: &str, count: usize, by_id: bool) {
    let mut leaving = engine.execute(task, MESSAGE).await;
    leaving.next().await.unwrap();
    let staying = engine.replay(task, 0).await;
    while leaving.received.len() < count {
        assert!(leaving.next().await.is_some(), "the turn is shorter than {count} events");
    }
    let mut received = leaving.received.clone();
    drop(leaving);

    let missed = resume_replay(engine, task, received.last().unwrap(), by_id).await.collect().await;
    received.extend(missed);
    let complete = staying.collect().await;
    assert_eq!(received, complete, "disconnected after {count} events");
    assert_completed(&complete);
    assert_eq!(engine.replay(task, 0).await.collect().await, complete);
}

#[tokio::test]
async fn a_client_that_leaves_after_any_event_gets_exactly_the_rest() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    let length = engine.execute("length", MESSAGE).await.collect().await.len();
    assert!(length > 30, "the turn is too short to be cut: {length} events");
    let counts: Vec<usize> = (1..length).step_by(2).collect();
    // Ten tasks at a time.
    for group in counts.chunks(10) {
        join_all(group.iter().map(async |count| {
            assert_resumes_after(&engine, &format!("cut-{count}"), *count, count % 4 == 1).await;
        }))
        .await;
    }
}

#[tokio::test]
async fn a_finished_turn_can_be_replayed_from_any_event() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    let events = engine.execute("task", MESSAGE).await.collect().await;
    assert_complete_turn(&events);
    for (index, event) in events.iter().enumerate() {
        for by_id in [false, true] {
            let rest = resume_replay(&engine, "task", event, by_id).await.collect().await;
            assert_eq!(rest, events[index + 1..], "after event {index}");
        }
        // A time between two events is accepted too.
        assert_eq!(engine.replay("task", event.ts() - 1).await.collect().await, events[index..]);
    }
    assert_eq!(engine.replay("task", i64::MAX).await.collect().await, []);
}

#[tokio::test]
async fn a_client_that_reads_one_event_per_connection_sees_the_whole_turn() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    let mut first = engine.execute("task", MESSAGE).await;
    let mut seen = vec![first.next().await.unwrap()];
    drop(first);
    while let Some(event) =
        resume_replay(&engine, "task", seen.last().unwrap(), seen.len() % 2 == 0).await.next().await
    {
        seen.push(event);
    }
    assert_completed(&seen);
    assert_eq!(engine.replay("task", 0).await.collect().await, seen);
}

#[tokio::test]
async fn a_turn_goes_on_without_its_client() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    drop(engine.execute("task", MESSAGE).await);
    assert_completed(&engine.replay("task", 0).await.collect().await);
}

#[tokio::test]
async fn the_turns_of_a_task_are_replayed_one_after_the_other() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    let first = engine.execute("task", MESSAGE).await.collect().await;
    let second = engine.execute("task", "Hello!").await.collect().await;
    assert_completed(&first);
    assert_completed(&second);
    assert!(first.last().unwrap().ts() < second[0].ts(), "ts rises through the task");
    let both = [first.as_slice(), &second].concat();
    assert_eq!(engine.replay("task", 0).await.collect().await, both);
    assert_eq!(engine.replay("task", first.last().unwrap().ts()).await.collect().await, second);
}

#[tokio::test]
async fn without_a_task_the_one_that_ran_last_is_replayed() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    let replay = || engine.request(Method::GET, "/execute/replay");
    send(replay()).await.assert_error(404, "TASK_NOT_FOUND");
    engine.execute("one", "Hello!").await.collect().await;
    let last = engine.execute("two", "Hello!").await.collect().await;
    assert_eq!(EventStream::open(replay()).await.collect().await, last);
    let unknown = engine.request(Method::GET, "/execute/replay?task_id=three");
    send(unknown).await.assert_error(404, "TASK_NOT_FOUND");
}
