//! What engines have used: counted once, and without a trace of whom when they are removed.

use api::usage::Day;
use api::usage_days::{AdmitCounts, FirstDeltas, UsageCounts, UsageOfDay};
use pretty_assertions::assert_eq;

use super::*;

const FIRST: i64 = 20_000;

fn day(day: i64) -> Day {
    Day::from_unix_days(day)
}

/// What an engine reports that has made this many turns on a day.
fn report(at: i64, turns: u64) -> UsageOfDay {
    UsageOfDay { day: day(at), counts: counts(turns) }
}

fn counts(turns: u64) -> UsageCounts {
    UsageCounts {
        turns,
        calls: turns * 2,
        failed_calls: turns * 3,
        input_tokens: turns * 4,
        output_tokens: turns * 5,
        cache_read_tokens: turns * 6,
        cost_nano_usd: turns * 7,
        unpriced_calls: turns * 8,
        tool_calls: turns * 9,
        first_deltas: FirstDeltas::default(),
    }
}

fn period() -> UsagePeriod {
    UsagePeriod { from: day(FIRST), to: day(FIRST + 1_000) }
}

impl Fixture {
    async fn engine(&self, user: &str) -> EngineRow {
        self.settled(user, EngineStatus::Sleeping).await
    }

    async fn total(&self) -> UsageCounts {
        self.registry.usage_total(Some(self.product_id), period()).await.unwrap().usage
    }

    /// The user and the turns of each engine.
    async fn by_engine(&self) -> Vec<(Option<String>, u64)> {
        let found = self.registry.usage_by_engine(self.product_id, period(), None, 10).await.unwrap();
        let row = |row: UsageByEngine| {
            (row.engine.map(|(_, user_id)| user_id.as_str().to_owned()), row.usage.turns)
        };
        found.into_iter().map(row).collect()
    }

    async fn destroy(&self, row: &EngineRow) {
        let row = self.registry.claim(row, &claim(Change::Destroy)).await.unwrap().unwrap();
        let entry = entry(row.engine_id, Event::Destroy);
        self.registry.settle(&row, NextState::Removed, Some(&entry)).await.unwrap();
    }
}

#[tokio::test]
async fn regression_o32_a_report_that_comes_again_adds_only_what_is_new() {
    let fixture = Fixture::new().await;
    let row = fixture.engine("ada").await;
    let save = async |days: &[UsageOfDay]| fixture.registry.save_usage(&row, days).await.unwrap().turns;
    assert_eq!(fixture.registry.last_usage_day(row.engine_id).await.unwrap(), None);
    assert_eq!(save(&[report(FIRST, 2)]).await, 2);
    assert_eq!(save(&[report(FIRST, 2)]).await, 0);
    assert_eq!(save(&[report(FIRST, 3), report(FIRST + 1, 4)]).await, 5);
    assert_eq!(fixture.registry.last_usage_day(row.engine_id).await.unwrap(), Some(day(FIRST + 1)));
    assert_eq!(fixture.total().await, counts(7));
    // From a backup.
    assert_eq!(save(&[report(FIRST + 1, 1)]).await, 0);
    assert_eq!(save(&[report(FIRST + 1, 2)]).await, 1);
    assert_eq!(fixture.total().await, counts(8));
}

#[tokio::test]
async fn regression_o32_what_removed_engines_used_stays_in_the_sums_and_names_nobody() {
    let fixture = Fixture::new().await;
    let [ada, bob, eve] =
        [fixture.engine("ada").await, fixture.engine("bob").await, fixture.engine("eve").await];
    for (row, turns) in [(&ada, 1), (&bob, 10), (&eve, 100)] {
        fixture.registry.save_usage(row, &[report(FIRST, turns), report(FIRST + 1, turns)]).await.unwrap();
    }
    fixture.destroy(&ada).await;
    fixture.destroy(&eve).await;
    assert_eq!(fixture.total().await, counts(222));
    assert_eq!(fixture.by_engine().await, [(None, 202), (Some("bob".to_owned()), 20)]);
    let by_day = fixture.registry.usage_by_day(Some(fixture.product_id), period(), None, 10).await.unwrap();
    let found: Vec<_> = by_day.iter().map(|row| (row.day, row.engines, row.total.usage)).collect();
    assert_eq!(found, [(day(FIRST), 3, counts(111)), (day(FIRST + 1), 3, counts(111))]);
    // A report that was on its way brings nothing back.
    assert_eq!(fixture.registry.save_usage(&ada, &[report(FIRST, 5)]).await.unwrap(), UsageCounts::default());
    let pool = fixture.pool().await;
    let left = "SELECT COUNT(*) FROM usage_days WHERE engine_id = $1 OR reported LIKE '%' || $1 || '%'";
    for row in [&ada, &eve] {
        let found = sqlx::query(left).bind(row.engine_id.to_string()).fetch_one(&pool).await.unwrap();
        assert_eq!(found.get::<i64, _>(0), 0);
    }
    let users = "SELECT COUNT(*) FROM usage_days WHERE reported LIKE '%ada%' OR reported LIKE '%eve%'";
    assert_eq!(sqlx::query(users).fetch_one(&pool).await.unwrap().get::<i64, _>(0), 0);
    pool.close().await;
}

#[tokio::test]
async fn days_and_engines_are_read_in_pages_and_old_days_are_removed() {
    let fixture = Fixture::new().await;
    let row = fixture.engine("ada").await;
    let days: Vec<_> = (0..5).map(|at| report(FIRST + at, 1)).collect();
    fixture.registry.save_usage(&row, &days).await.unwrap();
    let pages = async |product| {
        let after = fixture.registry.usage_by_day(product, period(), Some(day(FIRST + 1)), 2).await.unwrap();
        after.iter().map(|row| row.day.unix_days() - FIRST).collect::<Vec<_>>()
    };
    assert_eq!((pages(Some(fixture.product_id)).await, pages(None).await), (vec![2, 3], vec![2, 3]));
    let products = fixture.registry.usage_by_product(period(), None, 2).await.unwrap();
    assert_eq!((products.len(), products[0].total.usage), (1, counts(5)));
    assert!(fixture.registry.prune_usage(day(FIRST + 3), 2).await.unwrap(), "there is more");
    assert!(!fixture.registry.prune_usage(day(FIRST + 3), 2).await.unwrap());
    assert_eq!(fixture.total().await, counts(2));
}

#[tokio::test]
async fn admits_that_are_stored_twice_count_once_also_those_of_earlier_runs() {
    let fixture = Fixture::new().await;
    let product_id = fixture.product_id;
    let save = async |run: &str, at: i64, admitted: u64| {
        let counts = AdmitCounts { admitted, denied: 1, refused: 2, failed: 3 };
        let row = AdmitsOfDay { product_id, day: day(at), counts };
        fixture.registry.save_admits(run, &[row]).await.unwrap();
    };
    let total = async || {
        let total = fixture.registry.usage_total(Some(product_id), period()).await.unwrap().admits;
        (total.admitted, total.denied)
    };
    for admitted in [5, 5, 7] {
        save("one", FIRST, admitted).await;
    }
    save("one", FIRST + 1, 1).await;
    assert_eq!(total().await, (8, 2));
    for _ in 0..2 {
        fixture.registry.fold_admits("two").await.unwrap();
        save("two", FIRST, 10).await;
    }
    assert_eq!(total().await, (18, 3));
    fixture.registry.fold_admits("three").await.unwrap();
    assert_eq!(total().await, (18, 3));
    assert!(!fixture.registry.prune_usage(day(FIRST + 1), 100).await.unwrap());
    assert_eq!(total().await, (1, 1));
}
