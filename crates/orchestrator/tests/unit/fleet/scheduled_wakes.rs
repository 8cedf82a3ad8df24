//! Sleeping engines are woken for their schedules.

use std::time::Duration;

use api::{EngineId, Timestamp};
use backend::BackendError;
use serde_json::{Value, json};

use crate::testing::{BackendCall, Fault, ProductClient, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(250);
const MINUTE_MS: i64 = 60_000;

fn engine_id(answer: &(u16, Value)) -> EngineId {
    answer.1["engine_id"].as_str().unwrap().parse().unwrap()
}

async fn wait_for_status(product: &ProductClient<'_>, status: &str) {
    let is = async || summarize(product.get("ann").await) == format!("200 {status}");
    product.app.advance_until(STEP, is).await;
}

/// A product whose engines sleep after 100 seconds, and ann's engine, which has a schedule due in `minutes`.
async fn sleeping_engine(app: &TestApp, minutes: i64) -> (ProductClient<'_>, EngineId, Timestamp) {
    let product = app.register_product("demo", json!({"idle_sleep_threshold_s": 100})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    let due = Timestamp::from_unix_ms(app.wall_ms() + minutes * MINUTE_MS);
    app.backend.set_next_due(engine_id, Some(due));
    wait_for_status(&product, "sleeping").await;
    (product, engine_id, due)
}

#[tokio::test]
async fn an_engine_is_woken_shortly_before_its_schedule_is_due_and_sleeps_again() {
    let app = TestApp::new().await;
    let (product, engine_id, due) = sleeping_engine(&app, 10).await;
    wait_for_status(&product, "running").await;
    let early = due.unix_ms() - app.wall_ms();
    assert!((0..=5_000).contains(&early), "woken {early} ms before it was due");
    app.backend.set_next_due(engine_id, None);
    let woken = app.elapsed();
    wait_for_status(&product, "sleeping").await;
    assert!(app.since(woken) >= SECOND * 99, "its idle time began anew");
    let lines = app.audit_lines().await;
    assert_eq!(
        lines[1..],
        ["sleep running→sleeping idle", "wake sleeping→running schedule", "sleep running→sleeping idle"]
    );
    app.while_time_passes(SECOND, app.sleep(Duration::from_hours(1))).await;
    assert_eq!(app.audit_lines().await.len(), lines.len(), "nothing is due any more");
    app.assert_consistent().await;
}

#[tokio::test]
async fn the_next_orchestrator_knows_when_to_wake_engines() {
    let app = TestApp::new().await;
    let (product, ..) = sleeping_engine(&app, 10).await;
    let key = product.key.clone();
    let app = app.kill_and_replace().await;
    app.start().await;
    let product = ProductClient { app: &app, key };
    assert_eq!(summarize(product.get("ann").await), "200 sleeping");
    wait_for_status(&product, "running").await;
}

#[tokio::test]
async fn a_stopped_engine_is_not_woken() {
    let app = TestApp::new().await;
    let (product, ..) = sleeping_engine(&app, 10).await;
    product.start("ann").await;
    product.stop("ann").await;
    app.while_time_passes(SECOND, app.sleep(Duration::from_mins(20))).await;
    assert_eq!(summarize(product.get("ann").await), "200 stopped");
}

#[tokio::test]
async fn a_wake_that_fails_is_retried() {
    let app = TestApp::new().await;
    let (product, ..) = sleeping_engine(&app, 10).await;
    for _ in 0..3 {
        app.backend.inject(BackendCall::Launch, Fault::Error(BackendError::NoCapacity("full".into())));
    }
    wait_for_status(&product, "running").await;
    app.assert_consistent().await;
}

#[tokio::test]
async fn engines_of_a_suspended_product_sleep_until_it_is_not_suspended() {
    let app = TestApp::new().await;
    let (product, ..) = sleeping_engine(&app, 10).await;
    product.set_policy(json!({"suspended": true})).await;
    app.while_time_passes(SECOND, app.sleep(Duration::from_mins(30))).await;
    assert_eq!(summarize(product.get("ann").await), "200 sleeping");
    product.set_policy(json!({"idle_sleep_threshold_s": 100})).await;
    wait_for_status(&product, "running").await;
}

#[tokio::test]
async fn an_engine_that_does_not_say_when_it_is_due_stays_awake() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"idle_sleep_threshold_s": 100})).await;
    product.provision("ann").await;
    let before = app.elapsed();
    // The second command of the sleep is the question.
    app.backend.inject(BackendCall::Rpc, Fault::Delay(Duration::ZERO));
    app.backend.inject(BackendCall::Rpc, Fault::Error(BackendError::Unreachable("no route".into())));
    wait_for_status(&product, "sleeping").await;
    assert!(app.since(before) >= SECOND * 110, "it slept at the next attempt");
}

#[tokio::test]
async fn engines_that_hang_delay_only_those_of_their_product() {
    let app = TestApp::new().await;
    let hanging = app.register_product("hanging", json!({"idle_sleep_threshold_s": 100})).await;
    let due = app.wall_ms() + 10 * MINUTE_MS;
    for user in ["a", "b", "c", "d", "e"] {
        let engine_id = engine_id(&hanging.provision(user).await);
        app.backend.set_next_due(engine_id, Some(Timestamp::from_unix_ms(due - 8_000)));
    }
    let product = app.register_product("demo", json!({"idle_sleep_threshold_s": 100})).await;
    let ann = engine_id(&product.provision("ann").await);
    app.backend.set_next_due(ann, Some(Timestamp::from_unix_ms(due)));
    wait_for_status(&product, "sleeping").await;
    app.while_time_passes(SECOND, app.sleep(Duration::from_mins(2))).await;
    for _ in 0..4 {
        app.backend.inject(BackendCall::Launch, Fault::Hang);
    }
    wait_for_status(&product, "running").await;
    assert!(app.wall_ms() <= due, "woken {} ms late", app.wall_ms() - due);
    app.backend.clear_faults();
}

crate::testing::also_with_own_addresses! {
    an_engine_is_woken_shortly_before_its_schedule_is_due_and_sleeps_again,
}
