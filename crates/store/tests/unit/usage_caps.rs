//! What counts towards caps: kept by number of days, not by age, and removed with its task.

use llm::TokenUsage;
use pretty_assertions::assert_eq;
use testkit::task_id;

use super::*;
use crate::{CallUsage, TaskDeletion};

const DAY_MS: i64 = 86_400_000;

fn call(task: Option<TaskRow>) -> CallUsage {
    CallUsage {
        model: "m".into(),
        tokens: TokenUsage { input: 10, output: 5, ..TokenUsage::default() },
        cost_usd: Some(0.5),
        is_failure: false,
        purpose: api::usage::UsagePurpose::Turn,
        task,
        agent: None,
    }
}

#[tokio::test]
async fn a_clock_that_is_set_ahead_for_a_moment_takes_nothing_off_a_day() {
    let folder = tempfile::tempdir().unwrap();
    let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
    let day = |number: i64| Timestamp::from_unix_ms(number * DAY_MS);
    for number in (20_000..20_040).chain([90_000]).chain([20_039]) {
        brain.write(move |tx| tx.count_call(day(number), &call(None))).await.unwrap();
    }
    let used = |number| brain.cap_use(CapPeriod::day_of(day(number))).unwrap().used(CapUnit::Tokens);
    assert_eq!((used(20_039), used(90_000), used(20_000)), (30, 15, 0));
}

#[tokio::test]
async fn the_sums_and_marks_of_a_task_go_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
    let (task, now, id) = (brain.reserve_task(), Timestamp::from_unix_ms(5 * DAY_MS), task_id("a"));
    let period = CapPeriod::of_task(task);
    let mark = CapMark { period, unit: CapUnit::Usd, level: CapLevel::Warning, limit: 7 };
    let stored = id.clone();
    brain
        .write(move |tx| {
            tx.insert_task(task, &stored, now)?;
            tx.count_call(now, &call(Some(task)))?;
            tx.mark_cap(&mark)
        })
        .await
        .unwrap();
    let found = brain.cap_use(period).unwrap();
    assert_eq!((found.used(CapUnit::Tokens), found.used(CapUnit::Usd)), (15, 500_000_000));
    let is_marked = |unit, level, limit| found.is_marked(unit, level, limit);
    assert!(is_marked(CapUnit::Usd, CapLevel::Warning, 7) && !is_marked(CapUnit::Usd, CapLevel::Warning, 8));
    assert!(
        !is_marked(CapUnit::Usd, CapLevel::Reached, 7) && !is_marked(CapUnit::Tokens, CapLevel::Warning, 7)
    );
    brain.write(move |tx| tx.delete_task(task, &TaskDeletion::default())).await.unwrap();
    assert_eq!(brain.cap_use(period).unwrap(), CapUse::default());
    assert_eq!(brain.cap_use(CapPeriod::day_of(now)).unwrap().used(CapUnit::Tokens), 15);
    // A call that ends after that counts for its day only.
    brain.write(move |tx| tx.count_call(now, &call(Some(task)))).await.unwrap();
    assert_eq!(brain.cap_use(period).unwrap(), CapUse::default());
}
