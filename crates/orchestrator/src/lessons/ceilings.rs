//! A host that is full says so: at once, by its name, and with nothing left behind.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{STEP, engine_id, until_it_is};
use crate::backend::BackendError;
use crate::testing::{Call, Fault, TestApp, short};

fn full() -> Fault {
    Fault::Error(BackendError::Full("Resource temporarily unavailable".into()))
}

#[tokio::test]
async fn lesson_o13_a_full_range_is_said_at_once() {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    app.multiply(99).await;
    let mut quickest = Duration::MAX;
    for attempt in 0..10 {
        let begun = Instant::now();
        let answer = product.provision(&format!("late{attempt}")).await;
        quickest = quickest.min(begun.elapsed());
        assert_eq!(short(answer), "503 PORT_EXHAUSTION");
    }
    // The quickest of ten: others may have the machine meanwhile.
    assert!(quickest < Duration::from_millis(50), "{quickest:?}");
    assert_eq!(app.elapsed(), Duration::ZERO, "nobody waited for anything");
    assert_eq!(app.backend.count(Call::Launch), 1);
}

#[tokio::test]
async fn lesson_o13_a_full_host_is_no_failure_of_the_backend() {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    app.backend.script(Call::Launch, full());
    let (status, answer) = product.provision("ann").await;
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("CAPACITY_EXHAUSTED")), "{answer}");
    app.assert_in_order().await;
    // What sleeps is not unwell because there is no room for it.
    product.provision("ann").await;
    app.orchestrator.fleet().sleep_all("idle").await.unwrap();
    app.backend.script(Call::Launch, full());
    assert_eq!(short(product.admit("ann", json!({"auto_wake": true})).await), "503 CAPACITY_EXHAUSTED");
    assert_eq!(short(product.get("ann").await), "200 sleeping");
    assert_eq!(short(product.admit("ann", json!({"auto_wake": true})).await), "200 running");
    // What failed comes back when there is room.
    let engine_id = engine_id(&product.get("ann").await);
    app.backend.script(Call::Launch, full());
    app.backend.crash(engine_id);
    until_it_is(&product, "ann", "failed").await;
    let launches = app.backend.count(Call::Launch);
    app.step_until(STEP, async || app.backend.count(Call::Launch) > launches).await;
    until_it_is(&product, "ann", "running").await;
    app.assert_in_order().await;
}
