//! Which requests keep an engine awake: admits and running turns do, reads do not.

use serde_json::json;

use super::{SECOND, STEP, advance, engine_id, wait_for_status};
use crate::testing::{TestApp, summarize};

#[tokio::test]
async fn regression_o06_a_look_is_no_activity_and_an_admit_is() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"idle_sleep_threshold_s": 600})).await;
    product.provision("ann").await;
    product.provision("bob").await;
    advance(&app, SECOND * 300).await;
    product.admit("bob", json!({})).await;
    for path in [
        "/engines",
        "/engines?status=running",
        "/engines/ann",
        "/engines/ann/explain",
        "/engines/ann/logs",
        "/status",
        "/metrics",
        "/audit",
    ] {
        assert_eq!(product.get_path(path).await.0, 200, "{path}");
    }
    advance(&app, SECOND * 310).await;
    let listed = product.get_path("/engines").await.1["engines"].clone();
    let states: Vec<_> =
        listed.as_array().unwrap().iter().map(|engine| engine["status"].as_str().unwrap()).collect();
    assert_eq!(states, ["sleeping", "running"]);
}

#[tokio::test]
async fn regression_o06_a_turn_whose_client_has_gone_keeps_its_engine_awake() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"idle_sleep_threshold_s": 60})).await;
    let engine_id = engine_id(&product.provision("ann").await);
    app.backend.set_busy(engine_id, true);
    advance(&app, SECOND * 600).await;
    assert_eq!(summarize(product.get("ann").await), "200 running");
    app.backend.set_busy(engine_id, false);
    let start = app.elapsed();
    wait_for_status(&product, "ann", "sleeping").await;
    assert!(app.since(start) <= SECOND * 30 + STEP * 4, "the engine was not checked again in time");
}
