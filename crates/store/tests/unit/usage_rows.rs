//! Each call counts once, a deleted task leaves its sums, and the rows stay bounded.

use api::usage::{UsageDimension, UsageFigures};
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use testkit::task_id;

use super::*;
use crate::{TaskDeletion, UsageQuery};

const DAY_MS: i64 = 86_400_000;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_unix_ms(ms)
}

fn call(task: Option<TaskRow>, model: &str, input: u64, cost_usd: Option<f64>) -> CallUsage {
    CallUsage {
        model: model.into(),
        tokens: TokenUsage { input, output: 1, cache_read: input / 2, ..TokenUsage::default() },
        cost_usd,
        is_failure: false,
        purpose: UsagePurpose::Turn,
        task,
        agent: None,
    }
}

fn query(group_by: &[UsageDimension]) -> UsageQuery {
    UsageQuery { group_by: group_by.to_vec(), limit: 500, ..UsageQuery::default() }
}

fn total(brain: &Brain) -> UsageFigures {
    brain.usage_report(&query(&[])).unwrap().total
}

async fn brain_with_tasks(folder: &tempfile::TempDir, count: usize) -> (Brain, Vec<TaskRow>) {
    let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
    let mut rows = Vec::new();
    for number in 0..count {
        let row = brain.reserve_task();
        let id = task_id(&format!("task-{number}"));
        brain.write(move |tx| tx.insert_task(row, &id, at(0))).await.unwrap();
        rows.push(row);
    }
    (brain, rows)
}

#[tokio::test]
async fn a_deleted_task_leaves_its_sums_and_not_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (brain, tasks) = brain_with_tasks(&folder, 2).await;
    let (first, second) = (tasks[0], tasks[1]);
    let tool =
        ToolUsage { model: "m".into(), agent: None, tool: "read_file".into(), is_failure: true, time_ms: 40 };
    brain
        .write(move |tx| {
            for task in [first, second] {
                tx.count_call(at(1_000), &call(Some(task), "m", 100, Some(0.25)))?;
                tx.count_tool(task, at(1_000), &tool)?;
            }
            tx.count_call(at(1_000), &call(None, "m", 10, None))
        })
        .await
        .unwrap();
    let before = total(&brain);
    assert_eq!((before.calls, before.input_tokens, before.cost_usd), (3, 210, Some(0.5)));
    assert_eq!((before.unpriced_calls, before.tool_calls, before.tool_time_ms), (1, 2, 80));
    for task in [first, second] {
        brain.write(move |tx| tx.delete_task(task, &TaskDeletion::default())).await.unwrap();
        assert_eq!(total(&brain), before);
    }
    let rows = brain.usage_report(&query(&[UsageDimension::Task])).unwrap().rows;
    assert_eq!((rows.len(), &rows[0].task_id), (1, &Some(None)));
    // What is counted for a task that is gone belongs to none.
    brain.write(move |tx| tx.count_call(at(1_000), &call(Some(first), "m", 1, None))).await.unwrap();
    assert_eq!(brain.usage_report(&query(&[UsageDimension::Task])).unwrap().rows.len(), 1);
}

#[tokio::test]
async fn old_rows_are_removed_and_too_many_lose_their_tasks_first() {
    let folder = tempfile::tempdir().unwrap();
    let (brain, tasks) = brain_with_tasks(&folder, 3).await;
    let now = at(100 * DAY_MS);
    for day in [10, 20, 98, 99, 100] {
        let tasks = tasks.clone();
        let write = brain.write(move |tx| {
            tasks.iter().try_for_each(|task| {
                tx.count_call(at(day * DAY_MS + 3_600_000), &call(Some(*task), "m", 100, Some(0.1)))
            })
        });
        write.await.unwrap();
    }
    let trim = async |days: i64, max_rows: i64| {
        let before = at((100 - days) * DAY_MS);
        while brain.write(move |tx| tx.trim_usage(before, now, max_rows)).await.unwrap() {}
        let rows: i64 = brain
            .read(|reader| reader.query_row("SELECT COUNT(*) FROM usage", [], |row| row.get(0)))
            .unwrap();
        (rows, total(&brain).calls)
    };
    assert_eq!(trim(400, 1_000).await, (15, 15));
    assert_eq!(trim(85, 1_000).await, (12, 12));
    // Days before yesterday are combined, and then removed; the others stay as they are.
    assert_eq!(trim(85, 10).await, (10, 12));
    assert_eq!(trim(85, 8).await, (8, 12));
    assert_eq!(trim(85, 7).await, (7, 9));
    assert_eq!(trim(85, 0).await, (6, 6));
    assert!(!brain.has_usage_to_trim(at(0), 6).unwrap());
    assert!(brain.has_usage_to_trim(at(0), 5).unwrap());
    assert!(brain.has_usage_to_trim(at(101 * DAY_MS), 100).unwrap());
}

#[test]
fn costs_are_summed_up_in_billionths_of_a_dollar() {
    for (amount, expected) in [(0.0, 0), (1.5e-9, 2), (0.25, 250_000_000), (-1.0, 0), (f64::NAN, 0)] {
        assert_eq!(nano_usd(amount), expected, "{amount}");
    }
    assert_eq!(nano_usd(f64::INFINITY), MAX_COST_NANO_USD);
    assert!((usd(250_000_000) - 0.25).abs() < f64::EPSILON);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// However calls are grouped and paged, the rows add up to the total, which is the sum of all calls.
    #[test]
    fn groups_add_up(
        calls in prop::collection::vec((0..3usize, 0..3u8, 1..1_000u64, 0..5 * DAY_MS, any::<bool>()), 1..40),
        dimensions in prop::sample::subsequence(UsageDimension::ALL.to_vec(), 0..=5),
        offset_quarters in -56..=56i64,
        limit in 1..7usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let (brain, tasks) = brain_with_tasks(&folder, 3).await;
            let inserted = calls.clone();
            let write = brain.write(move |tx| {
                inserted.iter().try_for_each(|(task, model, input, time, priced)| {
                    let cost = priced.then_some(0.001);
                    let usage = call(Some(tasks[*task]), &format!("m{model}"), *input, cost);
                    tx.count_call(at(DAY_MS + time), &usage)
                })
            });
            write.await.unwrap();
            let mut query = UsageQuery { offset_quarters, limit, ..query(&dimensions) };
            let (mut rows, mut pages) = (Vec::new(), 0);
            let total = loop {
                let page = brain.usage_report(&query).unwrap();
                prop_assert!(page.rows.len() <= limit);
                rows.extend(page.rows);
                pages += 1;
                prop_assert!(pages < 100);
                match page.next {
                    Some(cursor) => query.after = crate::UsageCursor::parse(&cursor),
                    None => break page.total,
                }
            };
            let sum = |figure: fn(&UsageFigures) -> u64| rows.iter().map(|row| figure(&row.usage)).sum::<u64>();
            let input: u64 = calls.iter().map(|call| call.2).sum();
            let calls_made = u64::try_from(calls.len()).unwrap();
            prop_assert_eq!((sum(|f| f.input_tokens), total.input_tokens), (input, input));
            prop_assert_eq!((sum(|f| f.calls), total.calls), (calls_made, calls_made));
            prop_assert_eq!(sum(|f| f.unpriced_calls), total.unpriced_calls);
            let cost: f64 = rows.iter().filter_map(|row| row.usage.cost_usd).sum();
            prop_assert!((cost - total.cost_usd.unwrap_or(0.0)).abs() < 1e-9);
            Ok(())
        })?;
    }
}
