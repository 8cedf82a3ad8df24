//! A host without capacity refuses requests at once, with its own error code, and leaves nothing behind.

use std::time::{Duration, Instant};

use backend::BackendError;
use serde_json::json;

use super::{STEP, engine_id, wait_for_status};
use crate::testing::{BackendCall, Fault, TestApp, summarize};

fn capacity_exhausted() -> Fault {
    Fault::Error(BackendError::NoCapacity("Resource temporarily unavailable".into()))
}

#[tokio::test]
async fn regression_o13_a_full_range_is_said_at_once() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.add_engines(99).await;
    let mut fastest = Duration::MAX;
    for attempt in 0..10 {
        let start = Instant::now();
        let answer = product.provision(&format!("late{attempt}")).await;
        fastest = fastest.min(start.elapsed());
        assert_eq!(summarize(answer), "503 PORT_EXHAUSTION");
    }
    // The fastest of ten, because other programs may use the machine meanwhile.
    assert!(fastest < Duration::from_millis(50), "{fastest:?}");
    assert_eq!(app.elapsed(), Duration::ZERO, "a request waited");
    assert_eq!(app.backend.count(BackendCall::Launch), 1);
}

#[tokio::test]
async fn regression_o13_a_full_host_is_no_failure_of_the_backend() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.inject(BackendCall::Launch, capacity_exhausted());
    let (status, answer) = product.provision("ann").await;
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("CAPACITY_EXHAUSTED")), "{answer}");
    app.assert_consistent().await;
    // A sleeping engine for which there is no room is not marked as failed.
    product.provision("ann").await;
    app.orchestrator.fleet().sleep_all("idle").await.unwrap();
    app.backend.inject(BackendCall::Launch, capacity_exhausted());
    assert_eq!(summarize(product.admit("ann", json!({"auto_wake": true})).await), "503 CAPACITY_EXHAUSTED");
    assert_eq!(summarize(product.get("ann").await), "200 sleeping");
    assert_eq!(summarize(product.admit("ann", json!({"auto_wake": true})).await), "200 running");
    // A failed engine is restarted when there is room again.
    let engine_id = engine_id(&product.get("ann").await);
    app.backend.inject(BackendCall::Launch, capacity_exhausted());
    app.backend.crash(engine_id);
    wait_for_status(&product, "ann", "failed").await;
    let launches = app.backend.count(BackendCall::Launch);
    app.advance_until(STEP, async || app.backend.count(BackendCall::Launch) > launches).await;
    wait_for_status(&product, "ann", "running").await;
    app.assert_consistent().await;
}
