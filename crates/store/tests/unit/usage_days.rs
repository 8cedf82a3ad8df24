//! What an engine itself has used by day: once each, and nothing of others.

use api::usage::UsagePurpose;
use pretty_assertions::assert_eq;

use super::*;
use crate::usage_rows::ToolUsage;

const DAY_MS: i64 = 86_400_000;

fn at(day: i64) -> Timestamp {
    Timestamp::from_unix_ms(day * DAY_MS + 5)
}

fn call(cost_usd: Option<f64>, is_failure: bool) -> CallUsage {
    CallUsage {
        model: "m".into(),
        tokens: TokenUsage { input: 10, output: 5, cache_read: 4, ..TokenUsage::default() },
        cost_usd,
        is_failure,
        purpose: UsagePurpose::Turn,
        task: None,
        agent: None,
    }
}

fn open(folder: &tempfile::TempDir) -> Brain {
    Brain::open(&folder.path().join("brain.sqlite")).unwrap()
}

#[tokio::test]
async fn calls_and_tools_add_up_by_day_and_change_the_mark() {
    let folder = tempfile::tempdir().unwrap();
    let brain = open(&folder);
    assert_eq!((brain.usage_days(None, 9).unwrap(), brain.usage_mark().unwrap()), (Vec::new(), 0));
    brain
        .write(|tx| {
            tx.count_call(at(20_000), &call(Some(0.5), false))?;
            tx.count_call(at(20_000), &call(None, true))?;
            tx.count_call(at(20_001), &call(Some(0.25), false))?;
            let tool =
                ToolUsage { model: "m".into(), agent: None, tool: "t".into(), is_failure: false, time_ms: 1 };
            tx.count_tool(crate::TaskRow(1), at(20_001), &tool)
        })
        .await
        .unwrap();
    let first = UsageCounts {
        calls: 2,
        failed_calls: 1,
        input_tokens: 20,
        output_tokens: 10,
        cache_read_tokens: 8,
        cost_nano_usd: 500_000_000,
        unpriced_calls: 1,
        ..UsageCounts::default()
    };
    let second = UsageCounts {
        calls: 1,
        input_tokens: 10,
        output_tokens: 5,
        cache_read_tokens: 4,
        cost_nano_usd: 250_000_000,
        tool_calls: 1,
        ..UsageCounts::default()
    };
    let days = [(20_000, first), (20_001, second)]
        .map(|(day, counts)| UsageOfDay { day: Day::from_unix_days(day), counts });
    assert_eq!(brain.usage_days(None, 9).unwrap(), days);
    assert_eq!(brain.usage_days(None, 1).unwrap(), days[..1]);
    assert_eq!(brain.usage_days(Some(Day::from_unix_days(20_001)), 9).unwrap(), days[1..]);
    assert_eq!(brain.usage_mark().unwrap(), 4);
}

#[tokio::test]
async fn first_texts_are_counted_by_their_time_and_go_with_their_day() {
    let folder = tempfile::tempdir().unwrap();
    let brain = open(&folder);
    let turn = |day: i64, milliseconds: &'static [u64]| {
        brain.write(move |tx| {
            tx.set_usage_owner("eng_1")?;
            for time in milliseconds {
                tx.count_call(at(day), &call(None, false))?;
                tx.count_first_delta_of_day(at(day), Duration::from_millis(*time))?;
            }
            Ok(())
        })
    };
    turn(20_000, &[0, 100, 101, 60_000, 60_001, 90_000]).await.unwrap();
    turn(20_001, &[700]).await.unwrap();
    let days = brain.usage_days(None, 9).unwrap();
    let of = |at: usize| days[at].counts.first_deltas;
    let expected = FirstDeltas { turns: [2, 1, 0, 0, 0, 0, 0, 0, 1, 2], total_ms: 210_202 };
    assert_eq!(of(0), expected);
    assert_eq!(of(1), FirstDeltas { turns: [0, 0, 0, 1, 0, 0, 0, 0, 0, 0], total_ms: 700 });

    brain
        .write(|tx| {
            tx.set_usage_owner("eng_2")?;
            tx.count_call(at(20_000), &call(None, false))
        })
        .await
        .unwrap();
    let days = brain.usage_days(None, 9).unwrap();
    assert_eq!((days.len(), days[0].counts.first_deltas), (1, FirstDeltas::default()));
}

#[tokio::test]
async fn a_brain_that_another_engine_takes_over_begins_at_zero() {
    let folder = tempfile::tempdir().unwrap();
    let brain = open(&folder);
    let count = |engine: &'static str| {
        brain.write(move |tx| {
            tx.set_usage_owner(engine)?;
            tx.count_call(at(20_000), &call(None, false))
        })
    };
    let calls = || brain.usage_days(None, 9).unwrap()[0].counts.calls;
    count("eng_1").await.unwrap();
    count("eng_1").await.unwrap();
    assert_eq!(calls(), 2);
    count("eng_2").await.unwrap();
    assert_eq!(calls(), 1);
}

#[tokio::test]
async fn no_more_than_400_days_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let brain = open(&folder);
    for day in 20_000..20_410 {
        brain.write(move |tx| tx.count_call(at(day), &call(None, false))).await.unwrap();
    }
    let days = brain.usage_days(None, 1_000).unwrap();
    assert_eq!((days.len(), days[0].day), (400, Day::from_unix_days(20_010)));
}
