//! What engines have used is collected when they say that there is something new, and before they end.

use std::time::Duration;

use api::EngineId;
use serde_json::{Value, json};

use crate::testing::{ProductClient, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);
const DAY_MS: i64 = 86_400_000;

fn engine_id(answer: &(u16, Value)) -> EngineId {
    answer.1["engine_id"].as_str().unwrap().parse().unwrap()
}

/// The turns of all days that are kept.
async fn turns(product: &ProductClient<'_>) -> u64 {
    let (status, usage) = product.get_path("/usage?from=1990-01-01").await;
    assert_eq!(status, 200, "{usage}");
    usage["total"]["turns"].as_u64().unwrap()
}

async fn wait_for_turns(product: &ProductClient<'_>, expected: u64) {
    product.app.advance_until(SECOND, async || turns(product).await == expected).await;
}

#[tokio::test]
async fn counts_are_collected_as_they_grow_and_once_when_an_engine_ends() {
    let app = TestApp::new().await;
    app.backend.prove_keys();
    let product = app.register_product("demo", json!({})).await;
    let ann = engine_id(&product.provision("ann").await);
    let today = app.wall_ms() / DAY_MS;
    // More days than one report has.
    let mut days: Vec<_> = (today - 249..=today).map(|day| (day, 1)).collect();
    app.backend.set_usage(ann, &days);
    wait_for_turns(&product, 250).await;
    days[249].1 = 3;
    app.backend.set_usage(ann, &days);
    wait_for_turns(&product, 252).await;
    // No health check has seen these.
    days[249].1 = 4;
    app.backend.set_usage(ann, &days);
    assert_eq!(summarize(product.stop("ann").await), "200 stopped");
    assert_eq!(turns(&product).await, 253);
    assert_eq!(summarize(product.start("ann").await), "200 running");
    days[249].1 = 5;
    app.backend.set_usage(ann, &days);
    assert_eq!(product.delete("ann").await.0, 200);
    assert_eq!(turns(&product).await, 254);
    app.assert_consistent().await;
}

#[tokio::test]
async fn the_next_orchestrator_counts_nothing_twice() {
    let app = TestApp::new().await;
    app.backend.prove_keys();
    let product = app.register_product("demo", json!({})).await;
    let ann = engine_id(&product.provision("ann").await);
    let today = app.wall_ms() / DAY_MS;
    app.backend.set_usage(ann, &[(today, 2)]);
    wait_for_turns(&product, 2).await;
    let key = product.key.clone();
    let app = app.kill_and_replace().await;
    app.start().await;
    let product = ProductClient { app: &app, key };
    app.while_time_passes(SECOND, app.sleep(Duration::from_mins(2))).await;
    assert_eq!(turns(&product).await, 2);
    app.backend.set_usage(ann, &[(today, 3)]);
    wait_for_turns(&product, 3).await;
}

#[tokio::test]
async fn an_engine_that_says_nothing_is_deleted_after_a_moment() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let ann = engine_id(&product.provision("ann").await);
    app.backend.freeze(ann);
    let before = app.elapsed();
    let deleted = app.while_time_passes(Duration::from_millis(100), product.delete("ann")).await;
    assert_eq!(deleted.0, 200);
    assert!(app.since(before) <= SECOND * 3, "{:?}", app.since(before));
    assert_eq!(app.backend.running().len(), 0);
}
