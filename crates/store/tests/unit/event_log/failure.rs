//! Nothing is visible that is not stored, and a failed write affects nobody else.

use std::sync::Mutex;

use api::event::{Event, ToolCall};
use api::{CallId, TurnId};
use pretty_assertions::assert_eq;
use rusqlite::{Connection, OptionalExtension as _};
use testkit::{SseEvent, parse_sse, task_id, with_deadline};

use super::tests::{Fixture, WriterPause, begin_turn, block_stop, ending_commit, opening_commit, text_delta};
use super::*;
use crate::testing::{next_events, read_all};
use crate::{Durability, StoreError, WriteBatch, WriteError, WriteTx};

/// Whether an event that was received is in the file, for an independent reader.
fn check_stored(outside: &Connection, received: &SseEvent) -> Result<(), String> {
    let kind: Option<String> = outside
        .query_row(
            "SELECT kind FROM events JOIN tasks USING (task) WHERE task_id = ?1 AND ts = ?2",
            rusqlite::params![received.data["task_id"].as_str().unwrap(), received.ts()],
            |row| row.get(0),
        )
        .optional()
        .unwrap();
    if kind.as_deref() == Some(&received.kind) {
        Ok(())
    } else {
        Err(format!("{received:?} was received but is not stored"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_seen_is_stored_at_that_moment() {
    let fixture = Fixture::system();
    let log = fixture.open_log("t");
    let outside = fixture.outside();
    let recorder = log.begin_turn(TurnId::new()).unwrap();
    let mut reader = log.read(0, Follow::Turn(recorder.turn_id()));
    let turn = tokio::spawn(async move {
        with_deadline(recorder.commit(opening_commit(recorder.turn_id()))).await.unwrap();
        for index in 0..300 {
            recorder.emit(text_delta(&index.to_string())).await.unwrap();
            recorder.emit(block_stop(index)).await.unwrap();
            tokio::task::yield_now().await;
        }
        with_deadline(recorder.commit(ending_commit())).await.unwrap();
    });
    let mut count = 0;
    while let Some(events) = next_events(&mut reader).await {
        for event in events {
            assert_eq!(check_stored(&outside, &event), Ok(()));
            count += 1;
        }
    }
    with_deadline(turn).await.unwrap();
    assert_eq!(count, fixture.stored_events(&log).len());
}

#[tokio::test]
async fn the_stored_check_goes_red() {
    let fixture = Fixture::system();
    let log = fixture.open_log("t");
    let recorder = begin_turn(&log).await;
    let pause = WriterPause::pause_writer(&fixture.brain).await;
    recorder.emit(block_stop(0)).await.unwrap();
    // The event as it would be shown if it were published before it is stored.
    let early = api::event::encode_sse(
        &task_id("t"),
        recorder.turn_id(),
        recorder.last_ts(),
        "content_block_stop",
        r#"{"index":0}"#,
    );
    let early = &parse_sse(early.as_bytes())[0];
    assert!(check_stored(&fixture.outside(), early).is_err());
    pause.release();
    with_deadline(recorder.commit(ending_commit())).await.unwrap();
    assert_eq!(check_stored(&fixture.outside(), early), Ok(()));
}

#[tokio::test]
async fn nothing_is_seen_while_the_commit_is_held_up() {
    let fixture = Fixture::system();
    let log = fixture.open_log("t");
    let recorder = begin_turn(&log).await;
    let mut reader = log.read(recorder.last_ts(), Follow::Turn(recorder.turn_id()));
    // Another program holds the write lock, for example for a backup.
    let outside = fixture.outside();
    outside.execute_batch("BEGIN IMMEDIATE").unwrap();
    recorder.emit(text_delta("a")).await.unwrap();
    let mut committed = std::pin::pin!(recorder.commit(ending_commit()));
    let mut next = std::pin::pin!(reader.next());
    for _ in 0..100 {
        assert!(futures::poll!(committed.as_mut()).is_pending());
        assert!(futures::poll!(next.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    outside.execute_batch("ROLLBACK").unwrap();
    with_deadline(committed).await.unwrap();
    assert!(with_deadline(next).await.unwrap().is_some());
}

/// Makes every later attempt to store a tool call fail.
fn forbid_tool_calls(outside: &Connection) {
    outside
        .execute_batch(
            "CREATE TRIGGER forbid BEFORE INSERT ON events WHEN NEW.kind = 'tool_call'
             BEGIN SELECT RAISE(ABORT, 'the disk is full'); END",
        )
        .unwrap();
}

fn tool_call() -> Event {
    let (tool_call_id, tool, input) = (CallId::new(), "tool".to_owned(), serde_json::json!({}));
    Event::ToolCall(ToolCall { tool_call_id, tool, input })
}

#[tokio::test]
async fn a_failed_write_reaches_its_turn_and_nobody_else() {
    let fixture = Fixture::system();
    let (failing, healthy) = (fixture.open_log("failing"), fixture.open_log("healthy"));
    let (failing_turn, healthy_turn) = (begin_turn(&failing).await, begin_turn(&healthy).await);
    let mut reader = failing.read(0, Follow::Task);
    assert_eq!(next_events(&mut reader).await.unwrap().len(), 1);
    forbid_tool_calls(&fixture.outside());

    // Both are in one group commit, with events before and after the one that cannot be stored.
    let pause = WriterPause::pause_writer(&fixture.brain).await;
    failing_turn.emit(text_delta("before")).await.unwrap();
    let mut refused = Box::pin(failing_turn.commit(Commit::new().event(tool_call())));
    let mut stored = std::pin::pin!(healthy_turn.commit(Commit::new().event(block_stop(0))));
    assert!(futures::poll!(refused.as_mut()).is_pending());
    assert!(futures::poll!(stored.as_mut()).is_pending());
    let mut later = Box::pin(failing_turn.commit(Commit::new().event(block_stop(0))));
    assert!(futures::poll!(later.as_mut()).is_pending());
    pause.release();
    let error = with_deadline(refused).await.unwrap_err();
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert!(with_deadline(later).await.is_err());
    with_deadline(stored).await.unwrap();

    // The turn cannot continue, and nothing of the failed commit is stored or was visible.
    assert!(failing_turn.emit(text_delta("after")).await.is_err());
    assert!(with_deadline(failing_turn.commit(ending_commit())).await.is_err());
    drop(failing_turn);
    assert_eq!(next_events(&mut reader).await, None);
    assert_eq!(fixture.stored_events(&failing).len(), 1);

    // The next turn works, and so does the other task.
    let next = begin_turn(&failing).await;
    with_deadline(next.commit(ending_commit())).await.unwrap();
    with_deadline(healthy_turn.commit(ending_commit())).await.unwrap();
    assert_eq!(fixture.stored_events(&failing).len(), 3);
    assert_eq!(read_all(healthy.read(0, Follow::Task)).await.len(), 3);
}

#[tokio::test]
async fn a_task_whose_first_write_failed_can_begin_anew() {
    let fixture = Fixture::system();
    let log = fixture.open_log("t");
    forbid_tool_calls(&fixture.outside());
    let recorder = log.begin_turn(TurnId::new()).unwrap();
    assert!(
        with_deadline(recorder.commit(opening_commit(recorder.turn_id()).event(tool_call()))).await.is_err()
    );
    drop(recorder);
    assert!(fixture.brain.task(&task_id("t")).unwrap().is_none());
    let recorder = begin_turn(&log).await;
    with_deadline(recorder.commit(ending_commit())).await.unwrap();
    assert_eq!(fixture.stored_events(&log).len(), 2);
}

#[tokio::test]
async fn a_closed_brain_refuses_and_nobody_waits_for_ever() {
    let fixture = Fixture::system();
    let log = fixture.open_log("t");
    let recorder = begin_turn(&log).await;
    with_deadline(fixture.brain.close()).await;
    let error = with_deadline(recorder.commit(ending_commit())).await.unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    drop(recorder);
    let recorder = log.begin_turn(TurnId::new()).unwrap();
    assert!(with_deadline(recorder.commit(opening_commit(recorder.turn_id()))).await.is_err());
}

#[tokio::test]
async fn what_is_sent_after_the_writer_came_waits_for_the_next_commit_with_its_durability() {
    let fixture = Fixture::system();
    let log = fixture.open_log("t");
    let recorder = begin_turn(&log).await;
    let pause = WriterPause::pause_writer(&fixture.brain).await;
    let mut first = std::pin::pin!(recorder.commit(Commit::new().event(block_stop(0))));
    assert!(futures::poll!(first.as_mut()).is_pending());
    assert_eq!(log.collect(), Durability::ProcessKill);
    let mut second = std::pin::pin!(recorder.commit(Commit::new().event(block_stop(1)).durable()));
    assert!(futures::poll!(second.as_mut()).is_pending());
    assert_eq!(log.collect(), Durability::PowerLoss);
    assert_eq!(log.collect(), Durability::ProcessKill);
    pause.release();
    with_deadline(first).await.unwrap();
    with_deadline(second).await.unwrap();
}

/// A batch that looks at the stored content from outside at the moment when its own commit completes.
struct Probe {
    outside: Mutex<Connection>,
    tasks: Mutex<Option<i64>>,
}

impl WriteBatch for Probe {
    fn collect(&self) -> Durability {
        Durability::ProcessKill
    }

    fn write(&self, _: &WriteTx<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn complete(&self, _: &Result<(), WriteError>) {
        let outside = self.outside.lock().unwrap();
        let count = outside.query_row("SELECT COUNT(*) FROM tasks", [], |row| row.get(0)).unwrap();
        *self.tasks.lock().unwrap() = Some(count);
    }
}

#[tokio::test]
async fn tasks_that_wait_for_a_commit_share_the_next_one() {
    let fixture = Fixture::system();
    let probe = Arc::new(Probe { outside: Mutex::new(fixture.outside()), tasks: Mutex::new(None) });
    let pause = WriterPause::pause_writer(&fixture.brain).await;
    // It is the first of its group and completed before the others, so if it sees their rows, one commit stored
    // them.
    fixture.brain.queue(Arc::clone(&probe) as Arc<dyn WriteBatch>);
    let logs: Vec<_> = (0..10).map(|number| fixture.open_log(&number.to_string())).collect();
    let recorders: Vec<_> = logs.iter().map(|log| log.begin_turn(TurnId::new()).unwrap()).collect();
    let mut commits: Vec<_> = recorders
        .iter()
        .map(|recorder| Box::pin(recorder.commit(opening_commit(recorder.turn_id()))))
        .collect();
    for commit in &mut commits {
        assert!(futures::poll!(commit.as_mut()).is_pending());
    }
    pause.release();
    for commit in commits {
        with_deadline(commit).await.unwrap();
    }
    assert_eq!(*probe.tasks.lock().unwrap(), Some(10));
}
