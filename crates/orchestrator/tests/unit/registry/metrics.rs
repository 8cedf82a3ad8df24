//! Tests of the metrics: exact counts for all events.

use api::metrics::Metrics;
use pretty_assertions::assert_eq;

use super::*;

#[tokio::test]
async fn every_figure_counts_its_own_events_of_its_own_hour() {
    let fixture = Fixture::new().await;
    let ann = fixture.settled("ann", EngineStatus::Running).await;
    // Rows of this hour and of the one before; `settled` wrote the first provision, of 7 ms.
    let mut row = ann.clone();
    for (event, minutes_ago, duration_ms) in [
        (Event::Provision, 61, Some(5_000)),
        (Event::Provision, 59, Some(10)),
        (Event::Provision, 0, Some(20)),
        (Event::Crash, 60, None),
        (Event::Crash, 59, None),
        (Event::Restart, 59, Some(3)),
        (Event::Restart, 1, None),
        (Event::Restart, 90, None),
        (Event::Destroy, 90, None),
        (Event::Stop, 1, None),
    ] {
        let at = Timestamp::from_unix_ms(NOW.unix_ms() - minutes_ago * 60_000);
        let entry = AuditEntry { at, duration_ms, ..entry(row.engine_id, event) };
        row = fixture.registry.settle(&row, NextState::Unchanged, Some(&entry)).await.unwrap().unwrap();
    }
    let metrics = fixture.registry.metrics(fixture.product_id, NOW).await.unwrap();
    assert_eq!(
        metrics,
        Metrics {
            provisions_1h: 3,
            crashes_1h: 1,
            restarts_1h: 2,
            // 37 / 3, rounded to the nearest millisecond.
            avg_boot_ms: 12,
            total_provisions: 4,
            total_destroys: 1,
        }
    );
    let error = fixture.registry.metrics(ProductId::new(), NOW).await.unwrap_err();
    assert!(matches!(error, RegistryError::ProductGone));
}
