//! Engines of an orchestrator that was replaced without noticing, and of a registry that lost commits.

use std::time::Duration;

use api::EngineId;
use serde_json::json;

use crate::testing::{TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn regression_o24_what_was_launched_beside_an_engine_for_an_earlier_change_is_ended() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let (_, engine) = product.provision("ann").await;
    let engine_id: EngineId = engine["engine_id"].as_str().unwrap().parse().unwrap();
    app.backend.run_stray(engine_id);
    app.advance_until(SECOND, async || app.backend.strays() == 0).await;
    assert_eq!(app.backend.launches().len(), 1, "the engine itself is left alone");
    assert_eq!(summarize(product.get("ann").await), "200 running");
    app.assert_consistent().await;
}

/// A backup of the registry that is older than the engines that run.
#[tokio::test]
async fn an_engine_that_is_later_than_its_row_can_be_driven_again_after_a_comparison() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let (_, engine) = product.provision("ann").await;
    let engine_id: EngineId = engine["engine_id"].as_str().unwrap().parse().unwrap();
    app.backend.set_generation(engine_id, 40);
    // Until the first comparison, the row is too old for the backend to act on it.
    let (status, answer) = product.stop("ann").await;
    assert_eq!(status, 502, "{answer}");
    assert!(app.backend.running().contains(&engine_id));
    // An orchestrator that starts later compares first, and then completes the requested stop.
    let key = product.key.clone();
    let app = app.kill_and_replace().await;
    app.start().await;
    app.wait_unclaimed().await;
    let product = crate::testing::ProductClient { app: &app, key };
    assert_eq!(summarize(product.get("ann").await), "200 stopped");
    assert!(app.backend.running().is_empty());
    assert_eq!(summarize(product.start("ann").await), "200 running");
    app.assert_consistent().await;
}
