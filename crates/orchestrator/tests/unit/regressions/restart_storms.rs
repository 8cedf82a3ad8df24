//! After an outage all engines are restarted, but not all at once; permanent failures are not retried.

use std::collections::HashSet;

use serde_json::json;

use super::{SECOND, STEP, advance, engine_id, wait_for_status};
use crate::testing::{BackendCall, Fault, ProductClient, TestApp, summarize};

#[tokio::test]
async fn regression_o09_after_a_reboot_all_that_ran_comes_back_and_not_all_at_once() {
    let app = TestApp::new().await;
    let key = app.register_product("demo", json!({})).await.key;
    let product = ProductClient { app: &app, key: key.clone() };
    for user in ["sleeps", "stops"] {
        product.provision(user).await;
    }
    product.stop("stops").await;
    app.orchestrator.fleet().sleep_all("idle").await.unwrap();
    for user in 0..24 {
        product.provision(&format!("u{user}")).await;
    }
    let ran = app.backend.running();
    let app = app.kill_and_replace().await;
    for engine_id in &ran {
        app.backend.crash(*engine_id);
        app.backend.inject(BackendCall::Launch, Fault::Delay(SECOND * 3));
    }
    app.start().await;
    let due = app.rows("SELECT CAST(restart_at AS TEXT) FROM engines WHERE restart_at IS NOT NULL").await;
    assert_eq!(due.len(), 24);
    let distinct: HashSet<_> = due.iter().collect();
    assert!(distinct.len() >= 12, "they restart together: {due:?}");
    app.advance_until(STEP, async || app.backend.running().len() == 24).await;
    app.advance_until(STEP, async || {
        app.rows("SELECT engine_id FROM engines WHERE status = 'running'").await.len() == 24
    })
    .await;
    // Half of all boot permits: the rest is reserved for other products.
    assert_eq!(app.backend.max_concurrent(BackendCall::Launch), 4);
    assert_eq!(app.backend.running(), ran);
    let product = ProductClient { app: &app, key };
    assert_eq!(summarize(product.get("sleeps").await), "200 sleeping");
    assert_eq!(summarize(product.get("stops").await), "200 stopped");
    app.assert_consistent().await;
}

#[tokio::test]
async fn regression_o09_a_permanent_fault_stops_after_one_attempt_and_touches_no_other_product() {
    let app = TestApp::new().await;
    let (broken, healthy) =
        (app.register_product("broken", json!({})).await, app.register_product("well", json!({})).await);
    let body = json!({"user_id": "ann", "engine_version": "svc-engine:0.0.9"});
    let pinned = engine_id(&broken.call("POST", "/engines/provision", &body).await);
    let other = engine_id(&healthy.provision("ann").await);
    app.backend.remove_image("svc-engine:0.0.9".parse().unwrap());
    app.backend.crash(pinned);
    app.backend.crash(other);
    wait_for_status(&healthy, "ann", "failed").await;
    wait_for_status(&healthy, "ann", "running").await;
    advance(&app, SECOND * 600).await;
    let restarts = app.rows("SELECT engine_id, detail FROM audit_log WHERE event = 'restart'").await;
    let of_pinned: Vec<_> = restarts.iter().filter(|row| row[0] == pinned.to_string()).collect();
    assert_eq!(of_pinned.len(), 1, "{restarts:?}");
    assert!(of_pinned[0][1].contains("the backend has no image svc-engine:0.0.9"), "{of_pinned:?}");
    assert_eq!(summarize(broken.get("ann").await), "200 failed");
    assert_eq!(summarize(broken.admit("ann", json!({})).await), "200 engine_unhealthy");
    assert_eq!(summarize(healthy.admit("ann", json!({})).await), "200 running");
    assert_eq!(restarts.len(), 2);
}
