//! A host that is full says so: at once, by its name, and with nothing left behind.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{STEP, engine_id, wait_for_status};
use crate::backend::BackendError;
use crate::testing::{BackendCall, Fault, TestApp, summarize};

fn capacity_exhausted() -> Fault {
    Fault::Error(BackendError::NoCapacity("Resource temporarily unavailable".into()))
}

#[tokio::test]
async fn lesson_o13_a_full_range_is_said_at_once() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.add_engines(99).await;
    let mut quickest = Duration::MAX;
    for attempt in 0..10 {
        let begun = Instant::now();
        let answer = product.provision(&format!("late{attempt}")).await;
        quickest = quickest.min(begun.elapsed());
        assert_eq!(summarize(answer), "503 PORT_EXHAUSTION");
    }
    // The quickest of ten: others may have the machine meanwhile.
    assert!(quickest < Duration::from_millis(50), "{quickest:?}");
    assert_eq!(app.elapsed(), Duration::ZERO, "nobody waited for anything");
    assert_eq!(app.backend.count(BackendCall::Launch), 1);
}

#[tokio::test]
async fn lesson_o13_a_full_host_is_no_failure_of_the_backend() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.inject(BackendCall::Launch, capacity_exhausted());
    let (status, answer) = product.provision("ann").await;
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("CAPACITY_EXHAUSTED")), "{answer}");
    app.assert_consistent().await;
    // What sleeps is not unwell because there is no room for it.
    product.provision("ann").await;
    app.orchestrator.fleet().sleep_all("idle").await.unwrap();
    app.backend.inject(BackendCall::Launch, capacity_exhausted());
    assert_eq!(summarize(product.admit("ann", json!({"auto_wake": true})).await), "503 CAPACITY_EXHAUSTED");
    assert_eq!(summarize(product.get("ann").await), "200 sleeping");
    assert_eq!(summarize(product.admit("ann", json!({"auto_wake": true})).await), "200 running");
    // What failed comes back when there is room.
    let engine_id = engine_id(&product.get("ann").await);
    app.backend.inject(BackendCall::Launch, capacity_exhausted());
    app.backend.crash(engine_id);
    wait_for_status(&product, "ann", "failed").await;
    let launches = app.backend.count(BackendCall::Launch);
    app.advance_until(STEP, async || app.backend.count(BackendCall::Launch) > launches).await;
    wait_for_status(&product, "ann", "running").await;
    app.assert_consistent().await;
}
