//! Story 5: a client that leaves and comes back gets exactly what it missed.

use futures::future::join_all;
use pretty_assertions::assert_eq;
use reqwest::Method;

use crate::support::http::send;
use crate::support::turn::{assert_complete_turn, assert_completed};
use crate::support::{Engine, Event, EventStream, StandaloneEngine};

/// A message that the built-in script answers with thinking, a tool and text.
const MESSAGE: &str = "remember that my colour is green";

/// Replays a task after an event that was seen, named as the client likes: by its time or by its id.
async fn resume_replay(engine: &Engine, task: &str, last: &Event, by_id: bool) -> EventStream {
    if by_id {
        // The id beats `after`.
        let request = engine.request(Method::GET, &format!("/execute/replay?task_id={task}&after=0"));
        EventStream::open(request.header("last-event-id", &last.id)).await
    } else {
        engine.replay(task, last.ts()).await
    }
}

/// Begins a turn, leaves after `count` events and comes back; a second reader stays.
async fn assert_resumes_after(engine: &Engine, task: &str, count: usize, by_id: bool) {
    let mut leaving = engine.execute(task, MESSAGE).await;
    leaving.next().await.unwrap();
    let staying = engine.replay(task, 0).await;
    while leaving.received.len() < count {
        assert!(leaving.next().await.is_some(), "the turn is shorter than {count} events");
    }
    let mut pieces = leaving.received.clone();
    drop(leaving);

    let missed = resume_replay(engine, task, pieces.last().unwrap(), by_id).await.collect().await;
    pieces.extend(missed);
    let uncut = staying.collect().await;
    assert_eq!(pieces, uncut, "left after {count} events");
    assert_completed(&uncut);
    assert_eq!(engine.replay(task, 0).await.collect().await, uncut);
}

#[tokio::test]
async fn a_client_that_leaves_after_any_event_gets_exactly_the_rest() {
    let place = StandaloneEngine::new();
    let (_program, engine) = place.start().await;
    let length = engine.execute("length", MESSAGE).await.collect().await.len();
    assert!(length > 30, "the turn is too short to be cut: {length} events");
    let cuts: Vec<usize> = (1..length).step_by(2).collect();
    // Ten tasks at once.
    for group in cuts.chunks(10) {
        join_all(group.iter().map(async |count| {
            assert_resumes_after(&engine, &format!("cut-{count}"), *count, count % 4 == 1).await;
        }))
        .await;
    }
}

#[tokio::test]
async fn a_finished_turn_can_be_replayed_from_any_event() {
    let place = StandaloneEngine::new();
    let (_program, engine) = place.start().await;
    let events = engine.execute("task", MESSAGE).await.collect().await;
    assert_complete_turn(&events);
    for (index, event) in events.iter().enumerate() {
        for by_id in [false, true] {
            let rest = resume_replay(&engine, "task", event, by_id).await.collect().await;
            assert_eq!(rest, events[index + 1..], "after event {index}");
        }
        // A time between two events is as good as that of an event.
        assert_eq!(engine.replay("task", event.ts() - 1).await.collect().await, events[index..]);
    }
    assert_eq!(engine.replay("task", i64::MAX).await.collect().await, []);
}

#[tokio::test]
async fn a_client_that_reads_one_event_per_connection_sees_the_whole_turn() {
    let place = StandaloneEngine::new();
    let (_program, engine) = place.start().await;
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
    let place = StandaloneEngine::new();
    let (_program, engine) = place.start().await;
    drop(engine.execute("task", MESSAGE).await);
    assert_completed(&engine.replay("task", 0).await.collect().await);
}

#[tokio::test]
async fn the_turns_of_a_task_are_replayed_one_after_the_other() {
    let place = StandaloneEngine::new();
    let (_program, engine) = place.start().await;
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
    let place = StandaloneEngine::new();
    let (_program, engine) = place.start().await;
    let replay = || engine.request(Method::GET, "/execute/replay");
    send(replay()).await.assert_error(404, "TASK_NOT_FOUND");
    engine.execute("one", "Hello!").await.collect().await;
    let last = engine.execute("two", "Hello!").await.collect().await;
    assert_eq!(EventStream::open(replay()).await.collect().await, last);
    let unknown = engine.request(Method::GET, "/execute/replay?task_id=three");
    send(unknown).await.assert_error(404, "TASK_NOT_FOUND");
}
