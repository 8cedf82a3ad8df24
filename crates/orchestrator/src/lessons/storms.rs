//! After a disaster everything comes back, and not all at once; what cannot come back is left alone.

use std::collections::HashSet;

use serde_json::json;

use super::{SECOND, STEP, engine_id, pass, until_it_is};
use crate::testing::{Call, Caller, Fault, TestApp, short};

#[tokio::test]
async fn lesson_o09_after_a_reboot_all_that_ran_comes_back_and_not_all_at_once() {
    let app = TestApp::new().await;
    let key = app.product("demo", json!({})).await.key;
    let product = Caller { app: &app, key: key.clone() };
    for user in ["sleeps", "stops"] {
        product.provision(user).await;
    }
    product.stop("stops").await;
    app.orchestrator.fleet().sleep_all("idle").await.unwrap();
    for user in 0..24 {
        product.provision(&format!("u{user}")).await;
    }
    let ran = app.backend.running();
    let app = app.killed().await;
    for engine_id in &ran {
        app.backend.crash(*engine_id);
        app.backend.script(Call::Launch, Fault::Late(SECOND * 3));
    }
    app.begin().await;
    let due = app.rows("SELECT CAST(restart_at AS TEXT) FROM engines WHERE restart_at IS NOT NULL").await;
    assert_eq!(due.len(), 24);
    let moments: HashSet<_> = due.iter().collect();
    assert!(moments.len() >= 12, "they come back together: {due:?}");
    app.step_until(STEP, async || app.backend.running().len() == 24).await;
    app.step_until(STEP, async || {
        app.rows("SELECT engine_id FROM engines WHERE status = 'running'").await.len() == 24
    })
    .await;
    // Half of those that may be under way at all: the rest is for other products.
    assert_eq!(app.backend.most_at_once(Call::Launch), 4);
    assert_eq!(app.backend.running(), ran);
    let product = Caller { app: &app, key };
    assert_eq!(short(product.get("sleeps").await), "200 sleeping");
    assert_eq!(short(product.get("stops").await), "200 stopped");
    app.assert_in_order().await;
}

#[tokio::test]
async fn lesson_o09_a_permanent_fault_stops_after_one_attempt_and_touches_no_other_product() {
    let app = TestApp::new().await;
    let (broken, well) = (app.product("broken", json!({})).await, app.product("well", json!({})).await);
    let ask = json!({"user_id": "ann", "engine_version": "svc-engine:0.0.9"});
    let pinned = engine_id(&broken.call("POST", "/engines/provision", &ask).await);
    let other = engine_id(&well.provision("ann").await);
    app.backend.break_image("svc-engine:0.0.9".parse().unwrap());
    app.backend.crash(pinned);
    app.backend.crash(other);
    until_it_is(&well, "ann", "failed").await;
    until_it_is(&well, "ann", "running").await;
    pass(&app, SECOND * 600).await;
    let made = app.rows("SELECT engine_id, detail FROM audit_log WHERE event = 'restart'").await;
    let of_it: Vec<_> = made.iter().filter(|row| row[0] == pinned.to_string()).collect();
    assert_eq!(of_it.len(), 1, "{made:?}");
    assert!(of_it[0][1].contains("the backend has no image svc-engine:0.0.9"), "{of_it:?}");
    assert_eq!(short(broken.get("ann").await), "200 failed");
    assert_eq!(short(broken.admit("ann", json!({})).await), "200 engine_unhealthy");
    assert_eq!(short(well.admit("ann", json!({})).await), "200 running");
    assert_eq!(made.len(), 2);
}
