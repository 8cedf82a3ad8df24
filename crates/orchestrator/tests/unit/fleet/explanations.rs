//! Explanations of an engine's state.

use std::time::Duration;

use backend::ResourceLimits;
use serde_json::{Value, json};

use crate::testing::{ProductClient, TestApp, summarize};

const STEP: Duration = Duration::from_millis(250);

async fn explain(product: &ProductClient<'_>) -> Value {
    let (status, answer) = product.call("GET", "/engines/ann/explain", &Value::Null).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

#[tokio::test]
async fn caps_are_shown_as_they_hold() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"engine_memory_mb": 128})).await;
    product.provision("ann").await;
    let from_policy = json!({"memory_mb": 128, "cpus": null, "pids": null, "applied": false});
    assert_eq!(explain(&product).await["caps"], from_policy);
    app.backend.set_resource_limits(ResourceLimits {
        memory_mb: Some(1_024),
        cpus: Some(2.0),
        pids: Some(512),
    });
    let effective = json!({"memory_mb": 1024, "cpus": 2.0, "pids": 512, "applied": true});
    assert_eq!(explain(&product).await["caps"], effective);
    product.stop("ann").await;
    assert_eq!(explain(&product).await["caps"], from_policy);
}

#[tokio::test]
async fn a_sleep_that_is_due_after_the_last_year_of_the_format_is_due_at_its_end() {
    let app = TestApp::new().await;
    let policy = json!({"idle_sleep_threshold_s": 1_000_000_000_000_u64});
    let product = app.register_product("demo", policy).await;
    product.provision("ann").await;
    assert_eq!(explain(&product).await["next_action"]["at"], "9999-12-30T22:00:00.000Z");
}

#[tokio::test]
async fn regression_o06_every_engine_says_why_it_is_awake_and_when_it_will_sleep() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    assert_eq!(
        summarize(product.call("GET", "/engines/ann/explain", &Value::Null).await),
        "404 ENGINE_NOT_FOUND"
    );
    let (_, engine) = product.provision("ann").await;
    let engine_id = engine["engine_id"].as_str().unwrap().parse().unwrap();
    let running = explain(&product).await;
    assert_eq!(running["engine_id"], engine["engine_id"]);
    assert_eq!(running["last_transition"]["event"], "provision");
    assert_eq!(running["last_transition"]["from"], Value::Null);
    assert_eq!(running["last_transition"]["to"], "running");
    assert_eq!(running["next_action"]["action"], "sleep");
    assert_eq!(running["restart_attempt"], Value::Null);
    let sleeps_at = running["next_action"]["at"].as_str().unwrap().to_owned();
    assert_eq!(running["awake_because"].as_array().unwrap().len(), 1);
    assert!(running["awake_because"][0].as_str().unwrap().contains(&sleeps_at), "{running}");
    // An admit postpones the sleep and a read does not; a running turn is a reason of its own.
    app.while_time_passes(STEP, app.sleep(Duration::from_secs(30))).await;
    product.get("ann").await;
    assert_eq!(explain(&product).await["next_action"]["at"], sleeps_at.as_str());
    product.admit("ann", json!({})).await;
    app.backend.set_busy(engine_id, true);
    let busy = explain(&product).await;
    assert!(busy["next_action"]["at"].as_str().unwrap() > sleeps_at.as_str());
    assert!(busy["awake_because"][1].as_str().unwrap().starts_with("A turn is running"), "{busy}");
    app.backend.set_busy(engine_id, false);
    product.stop("ann").await;
    let stopped = explain(&product).await;
    assert_eq!(stopped["next_action"], json!({"action": "none", "at": null}));
    assert_eq!(stopped["awake_because"], Value::Null);
    assert_eq!(stopped["last_transition"]["reason"], "requested");
    product.start("ann").await;
    app.backend.crash(engine_id);
    app.advance_until(STEP, async || explain(&product).await["status"] == "failed").await;
    let failed = explain(&product).await;
    assert_eq!(failed["next_action"]["action"], "restart");
    assert_eq!(failed["restart_attempt"], json!({"n": 0, "max": 8}));
}

crate::testing::also_with_own_addresses! {
    regression_o06_every_engine_says_why_it_is_awake_and_when_it_will_sleep,
}
