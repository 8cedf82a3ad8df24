//! Sleeping engines stay asleep, and destroyed ones stay destroyed, until a caller requests otherwise.

use serde_json::{Value, json};

use super::{SECOND, advance};
use crate::testing::{BackendCall, ProductClient, TestApp, summarize};

/// All paths that a product can read.
const READ_PATHS: [&str; 8] = [
    "/engines/ann",
    "/engines/ann/explain",
    "/engines/ann/logs",
    "/engines/ann/proxy/health",
    "/engines",
    "/status",
    "/metrics",
    "/audit",
];

async fn read_everything(product: &ProductClient<'_>) {
    let launches = product.app.backend.count(BackendCall::Launch);
    for path in READ_PATHS {
        product.app.send_unread("GET", path, &[("X-Platform-Key", &product.key)], "").await;
        assert_eq!(product.app.backend.count(BackendCall::Launch), launches, "{path} launched the engine");
    }
}

#[tokio::test]
async fn regression_o07_no_look_wakes_anything() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    for status in ["sleeping", "stopped"] {
        if status == "sleeping" {
            app.orchestrator.fleet().sleep_all("idle").await.unwrap();
        } else {
            product.start("ann").await;
            product.stop("ann").await;
        }
        let launches = app.backend.count(BackendCall::Launch);
        read_everything(&product).await;
        advance(&app, SECOND * 300).await;
        assert_eq!(summarize(product.admit("ann", json!({})).await), format!("200 engine_{status}"));
        assert_eq!(summarize(product.rotate("ann").await), "409 ENGINE_NOT_RUNNING");
        assert_eq!(app.backend.count(BackendCall::Launch), launches);
        assert_eq!(summarize(product.get("ann").await), format!("200 {status}"));
    }
}

#[tokio::test]
async fn regression_o07_only_a_provision_creates_what_was_destroyed() {
    let app = TestApp::new().await;
    let key = app.register_product("demo", json!({})).await.key;
    let product = ProductClient { app: &app, key: key.clone() };
    let before = super::engine_id(&product.provision("ann").await);
    product.delete("ann").await;
    read_everything(&product).await;
    assert_eq!(summarize(product.admit("ann", json!({"auto_wake": true})).await), "200 engine_not_found");
    for call in ["start", "stop", "rotate-key"] {
        let (status, _) = product.call("POST", &format!("/engines/ann/{call}"), &Value::Null).await;
        assert_eq!(status, 404, "{call}");
    }
    let app = app.kill_and_replace().await;
    app.start().await;
    advance(&app, SECOND * 300).await;
    assert_eq!(app.backend.count(BackendCall::Launch), 1);
    assert!(app.backend.folders().is_empty());
    let product = ProductClient { app: &app, key };
    let after = super::engine_id(&product.provision("ann").await);
    assert_ne!(before, after);
    app.assert_consistent().await;
}

#[tokio::test]
async fn regression_o07_two_hundred_naps_leave_an_engine_as_it_was() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let (_, before) = product.provision("ann").await;
    for _ in 0..200 {
        assert_eq!(app.orchestrator.fleet().sleep_all("idle").await.unwrap(), 1);
        let (_, admitted) = product.admit("ann", json!({"auto_wake": true})).await;
        for field in ["engine_id", "url", "api_key"] {
            assert_eq!(admitted["engine"][field], before[field]);
        }
    }
    app.assert_consistent().await;
    assert_eq!(app.backend.count(BackendCall::Launch), 201);
    assert_eq!(app.backend.folders().len(), 1);
    assert_eq!(app.assert_hash_chain().await, 402);
}
