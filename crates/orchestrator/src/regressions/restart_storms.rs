//! After a disaster everything comes back, and not all at once; what cannot come back is left alone.

use std::collections::HashSet;

use serde_json::json;

use super::{SECOND, STEP, advance, engine_id, wait_for_status};
use crate::testing::{BackendCall, Fault, ProductClient, TestApp, summarize};

#[tokio::test]
async fn lesson_o09_after_a_reboot_all_that_ran_comes_back_and_not_all_at_once() {
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
    let event_counter: HashSet<_> = due.iter().collect();
    assert!(event_counter.len() >= 12, "they come back together: {due:?}");
    app.advance_until(STEP, async || app.backend.running().len() == 24).await;
    app.advance_until(STEP, async || {
        app.rows("SELECT engine_id FROM engines WHERE status = 'running'").await.len() == 24
    })
    .await;
    // Half of those that may be under way at all: the rest is for other products.
    assert_eq!(app.backend.max_concurrent(BackendCall::Launch), 4);
    assert_eq!(app.backend.running(), ran);
    let product = ProductClient { app: &app, key };
    assert_eq!(summarize(product.get("sleeps").await), "200 sleeping");
    assert_eq!(summarize(product.get("stops").await), "200 stopped");
    app.assert_consistent().await;
}

#[tokio::test]
async fn lesson_o09_a_permanent_fault_stops_after_one_attempt_and_touches_no_other_product() {
    let app = TestApp::new().await;
    let (broken, well) =
        (app.register_product("broken", json!({})).await, app.register_product("well", json!({})).await);
    let ask = json!({"user_id": "ann", "engine_version": "svc-engine:0.0.9"});
    let pinned = engine_id(&broken.call("POST", "/engines/provision", &ask).await);
    let other = engine_id(&well.provision("ann").await);
    app.backend.remove_image("svc-engine:0.0.9".parse().unwrap());
    app.backend.crash(pinned);
    app.backend.crash(other);
    wait_for_status(&well, "ann", "failed").await;
    wait_for_status(&well, "ann", "running").await;
    advance(&app, SECOND * 600).await;
    let made = app.rows("SELECT engine_id, detail FROM audit_log WHERE event = 'restart'").await;
    let of_it: Vec<_> = made.iter().filter(|row| row[0] == pinned.to_string()).collect();
    assert_eq!(of_it.len(), 1, "{made:?}");
    assert!(of_it[0][1].contains("the backend has no image svc-engine:0.0.9"), "{of_it:?}");
    assert_eq!(summarize(broken.get("ann").await), "200 failed");
    assert_eq!(summarize(broken.admit("ann", json!({})).await), "200 engine_unhealthy");
    assert_eq!(summarize(well.admit("ann", json!({})).await), "200 running");
    assert_eq!(made.len(), 2);
}
