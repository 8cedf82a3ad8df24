//! What is queued is there until its turn begins or it is taken out, and goes with its task.

use api::MessageId;
use api::turns::TurnState;
use pretty_assertions::assert_eq;
use testkit::task_id;

use super::*;
use crate::{NewTurn, TaskDeletion};

fn at(ms: i64) -> Timestamp {
    Timestamp::from_unix_ms(ms)
}

fn message(entry: i64, text: &str) -> NewQueuedTurn {
    let request = Some(IdempotencyKey { id: text.to_owned(), hash: "hash".to_owned() });
    let body = serde_json::json!({"task_id": "t", "message": text, "media": [1]}).to_string();
    NewQueuedTurn { entry, turn_id: TurnId::new(), body, request, interrupts: false }
}

/// A brain with a task that has the messages `a`, `b` and `c` in its queue.
async fn queue(folder: &tempfile::TempDir) -> (Brain, TaskRow, Vec<TurnId>) {
    let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
    let task = brain.reserve_task();
    let messages: Vec<_> = (1..).zip(["a", "b", "c"]).map(|(entry, text)| message(entry, text)).collect();
    let turns = messages.iter().map(|message| message.turn_id).collect();
    let written = brain.write(move |tx| {
        assert!(!tx.insert_queued_turn(task, &messages[0], at(1))?, "the task does not exist yet");
        tx.insert_task(task, &task_id("t"), at(0))?;
        messages.iter().try_for_each(|message| {
            assert!(tx.insert_queued_turn(task, message, at(message.entry))?);
            Ok(())
        })
    });
    written.await.unwrap();
    (brain, task, turns)
}

#[tokio::test]
async fn a_message_leaves_the_queue_with_its_turn_or_without_its_words() {
    let folder = tempfile::tempdir().unwrap();
    let (brain, task, turns) = queue(&folder).await;
    let (rows, next) = brain.queued_turns().unwrap();
    assert_eq!(rows.iter().map(|row| row.turn_id).collect::<Vec<_>>(), turns);
    assert_eq!(next, 4);
    let [first, second, third] = [turns[0], turns[1], turns[2]];
    let turn = NewTurn { turn_id: first, message_id: MessageId::new(), request: None };
    let written = brain.write(move |tx| {
        tx.insert_turn(task, &turn, 10, at(10))?;
        tx.dequeue_turn(first)?;
        Ok((
            tx.end_queued_turn(second, QueueEnd::Cancelled, at(20))?,
            tx.end_queued_turn(second, QueueEnd::Failed, at(30))?,
            tx.end_queued_turn(first, QueueEnd::Cancelled, at(30))?,
        ))
    });
    assert_eq!(written.await.unwrap(), (true, false, false));
    let left = brain.queued_messages(task).unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].turn_id, left[0].position, left[0].media_count), (third, 1, 1));
    assert_eq!((left[0].message.as_str(), left[0].queued_at), ("c", at(3)));
    let request = brain.queued_request(third).unwrap().unwrap().request;
    assert_eq!(request.map(|key| (key.id, key.hash)), Some(("c".to_owned(), "hash".to_owned())));
    assert_eq!(brain.queued_request(second).unwrap(), None);
    let ended = brain.ended_queued_turn(&task_id("t"), "b").unwrap().unwrap();
    assert_eq!((ended.turn_id, ended.end), (second, QueueEnd::Cancelled));
    assert_eq!(brain.ended_queued_turn(&task_id("t"), "c").unwrap(), None);
    let state = |turn| brain.turn_record(task, turn).unwrap().map(|record| record.state);
    assert_eq!(state(second), Some(TurnState::Cancelled));
    assert_eq!(state(third), Some(TurnState::Queued));
    // Its first event is missing, as after an edit.
    assert_eq!(state(first), None);
    let page = brain.turn_records(task, 10, None).unwrap().unwrap();
    assert_eq!(page.iter().map(|record| record.turn_id).collect::<Vec<_>>(), [third]);
    assert_eq!(brain.turn_records(task, 10, Some(TurnId::new())).unwrap(), None);

    brain.write(move |tx| tx.delete_task(task, &TaskDeletion::default())).await.unwrap();
    assert_eq!(brain.queued_turns().unwrap(), (Vec::new(), 1));
}

#[tokio::test]
async fn messages_that_interrupt_come_first_in_the_order_in_which_they_were_sent() {
    let folder = tempfile::tempdir().unwrap();
    let (brain, task, turns) = queue(&folder).await;
    let urgent = ["d", "e"].map(|text| NewQueuedTurn { interrupts: true, ..message(0, text) });
    let expected = [urgent[0].turn_id, urgent[1].turn_id, turns[0], turns[1], turns[2]];
    let written = brain.write(move |tx| {
        (4..).zip(&urgent).try_for_each(|(entry, message)| {
            let message = NewQueuedTurn { entry, ..message.clone() };
            tx.insert_queued_turn(task, &message, at(entry)).map(drop)
        })
    });
    written.await.unwrap();
    let (rows, _) = brain.queued_turns().unwrap();
    assert_eq!(rows.iter().map(|row| row.turn_id).collect::<Vec<_>>(), expected);
    assert_eq!(rows.iter().map(|row| row.interrupts).collect::<Vec<_>>(), [true, true, false, false, false]);
    let listed = brain.queued_messages(task).unwrap();
    assert_eq!(listed.iter().map(|message| message.turn_id).collect::<Vec<_>>(), expected);
    for (position, turn) in (1..).zip(expected) {
        assert_eq!(brain.turn_record(task, turn).unwrap().unwrap().position, Some(position));
    }
}
