//! The usage of calls is counted with their step, once, and for a day.

use std::path::Path;

use api::event::StopReason;
use api::{MessageId, TaskId, TurnId};
use http_service::clock::{Clock as _, SystemClock};
use llm::Answer;
use pretty_assertions::assert_eq;
use testkit::task_id;

use super::*;
use crate::steps::TurnOutcome;
use crate::{Brain, NewTurn, TaskRow};

fn tokens(input: u64, output: u64) -> TokenUsage {
    TokenUsage {
        input,
        output,
        cache_read: input / 2,
        cache_write: 1,
        reasoning: output / 2,
        estimated: false,
    }
}

fn answered(usage: TokenUsage) -> Step {
    let answer = Answer { usage, ..Answer::default() };
    Step::Answered { message_id: MessageId::new(), model: "a".into(), answer, cost_usd: None, capped: false }
}

fn spent(tokens: TokenUsage) -> Step {
    Step::Spent { model: "b".into(), tokens, cost_usd: None }
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_unix_ms(ms)
}

/// Stores steps, each at its time.
async fn record(brain: &Brain, task: TaskRow, task_id: &TaskId, steps: Vec<(i64, Step)>) {
    let (task_id, turn_id) = (task_id.clone(), TurnId::new());
    let turn = NewTurn { turn_id, message_id: MessageId::new(), request: None };
    let written = brain.write(move |tx| {
        tx.insert_task(task, &task_id, at(0))?;
        tx.insert_turn(task, &turn, 1, at(0))?;
        steps.iter().try_for_each(|(time, step)| tx.insert_step(task, turn_id, at(*time), 1, step))
    });
    written.await.unwrap();
}

async fn brain(file: &Path, steps: Vec<(i64, Step)>) -> (Brain, TaskRow) {
    let brain = Brain::open(file).unwrap();
    let task = brain.reserve_task();
    record(&brain, task, &task_id("t"), steps).await;
    (brain, task)
}

#[tokio::test]
async fn answers_and_failed_attempts_are_counted_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let ended = Step::Ended { outcome: TurnOutcome::Completed { stop_reason: StopReason::EndTurn } };
    let steps = vec![
        (1_000, answered(tokens(100, 10))),
        (2_000, spent(tokens(50, 5))),
        (3_000, answered(tokens(7, 1))),
        (3_000, ended),
    ];
    let (brain, task) = brain(&folder.path().join("brain.sqlite"), steps).await;
    let since = |ms: i64| (brain.tokens_since(at(ms)).unwrap(), brain.first_usage_at(at(ms)).unwrap());
    assert_eq!(since(0), (173, Some(at(1_000))));
    assert_eq!(since(999), (173, Some(at(1_000))));
    assert_eq!(since(1_000), (63, Some(at(2_000))));
    assert_eq!(since(3_000), (0, None));
    let usage_of = |model: &str, calls: u64, [input, output, cache_read, cache_write]: [u64; 4]| ModelUsage {
        model: model.into(),
        calls,
        tokens: TokenUsage { input, output, cache_read, cache_write, reasoning: 0, estimated: false },
    };
    let by_model = [usage_of("a", 2, [107, 11, 53, 2]), usage_of("b", 1, [50, 5, 25, 1])];
    assert_eq!(brain.usage_since(at(0)).unwrap(), by_model);

    // Deleting a task does not restore the budget.
    brain.write(move |tx| tx.delete_task(task, &crate::TaskDeletion::default())).await.unwrap();
    assert_eq!(since(0), (173, Some(at(1_000))));
}

#[tokio::test]
async fn what_is_older_than_a_day_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("brain.sqlite");
    let day = 86_400_000;
    let steps = vec![
        (1_000, answered(tokens(100, 10))),
        (1_001, answered(tokens(1, 1))),
        (1_000 + day, answered(tokens(20, 2))),
    ];
    let (brain, _) = brain(&file, steps).await;
    assert_eq!(brain.tokens_since(at(0)).unwrap(), 24);
}

#[tokio::test]
async fn counts_that_no_call_has_break_no_sum() {
    let folder = tempfile::tempdir().unwrap();
    let steps = (1..=3).map(|time| (time, answered(tokens(u64::MAX, u64::MAX)))).collect();
    let (brain, _) = brain(&folder.path().join("brain.sqlite"), steps).await;
    assert_eq!(brain.tokens_since(at(0)).unwrap(), 6 << 40);
}

#[tokio::test]
async fn a_brain_that_did_not_count_yet_knows_what_it_spent_within_a_day() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("brain.sqlite");
    let now = SystemClock::new().now().unix_ms();
    let old = now - 2 * 86_400_000;
    let steps = vec![
        (old, answered(tokens(100, 10))),
        (now - 5_000, answered(tokens(20, 2))),
        (now, spent(tokens(3, 0))),
    ];
    let (brain, _) = brain(&file, steps).await;
    let by_model = brain.usage_since(at(now - 6_000)).unwrap();
    brain.close().await;
    drop(brain);
    let earlier = folder.path().join("earlier.sqlite");
    crate::schema::create_older_version(&file, &earlier, 1);
    let brain = Brain::open(&earlier).unwrap();
    let day_ago = at(now - 86_400_000);
    assert_eq!(brain.tokens_since(day_ago).unwrap(), 25);
    assert_eq!(brain.usage_since(day_ago).unwrap(), by_model);
}

#[tokio::test]
async fn what_a_clock_far_ahead_stamped_does_not_count_once_it_is_set_back() {
    let folder = tempfile::tempdir().unwrap();
    let year = 365 * 86_400_000;
    let steps = vec![(year, answered(tokens(1_000, 0))), (5_000, answered(tokens(20, 2)))];
    let (brain, _) = brain(&folder.path().join("brain.sqlite"), steps).await;
    assert_eq!(brain.tokens_since(at(0)).unwrap(), 22);
    assert_eq!(brain.usage_since(at(0)).unwrap().len(), 1);
}
