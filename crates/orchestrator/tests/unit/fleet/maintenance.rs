//! A maintenance: what runs goes on, and nobody changes an engine until it is ended.

use std::time::Duration;

use serde_json::{Value, json};

use crate::domain::SupervisionRules;
use crate::testing::{ADMIN_KEY, ProductClient, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);

async fn call(app: &TestApp, method: &str, body: &str) -> (u16, Value) {
    let (status, _, answer) =
        app.send(method, "/fleet/maintenance", &[("X-Admin-Key", ADMIN_KEY)], body).await;
    (status, answer)
}

async fn begin(app: &TestApp, message: &str) -> Value {
    let (status, answer) = call(app, "PUT", &json!({"message": message}).to_string()).await;
    assert_eq!(status, 200, "{answer}");
    answer["maintenance"].clone()
}

/// Asserts that everything is refused that would change an engine, and what that does not need is answered.
async fn assert_maintained(product: &ProductClient<'_>) {
    assert_eq!(summarize(product.admit("runs", Value::Null).await), "200 running");
    let refused = "503 MAINTENANCE";
    assert_eq!(summarize(product.provision("new").await), refused);
    assert_eq!(summarize(product.admit("new", json!({"auto_provision": true})).await), refused);
    assert_eq!(summarize(product.admit("sleeps", json!({"auto_wake": true})).await), refused);
    assert_eq!(summarize(product.start("stopped").await), refused);
    assert_eq!(summarize(product.rotate("runs").await), refused);
    assert_eq!(summarize(product.delete("runs").await), refused);
    let version = json!({"engine_version": "svc-engine:0.99.0"});
    assert_eq!(summarize(product.call("PUT", "/engines/runs/version", &version).await), refused);
    assert_eq!(summarize(product.get("runs").await), "200 running");
    let denied = product.admit("sleeps", Value::Null).await.1;
    assert_eq!(denied["reason"], "engine_sleeping", "{denied}");
}

#[tokio::test]
async fn what_runs_goes_on_and_nobody_changes_an_engine_until_it_is_ended() {
    let rules = SupervisionRules { idle_threshold: SECOND * 600, ..SupervisionRules::default() };
    let app = TestApp::with_rules(rules).await;
    let product = app.register_product("demo", json!({})).await;
    for user in ["sleeps", "runs", "stopped"] {
        assert_eq!(summarize(product.provision(user).await), "200 running");
        if user == "sleeps" {
            app.advance_until(SECOND * 10, async || product.get("sleeps").await.1["status"] == "sleeping")
                .await;
        }
    }
    product.stop("stopped").await;
    assert_eq!(call(&app, "GET", "").await.1, json!({"maintenance": null, "changes_under_way": 0}));
    let begun = begin(&app, "Back at noon.").await;
    assert_eq!(begun["message"], "Back at noon.");
    assert_maintained(&product).await;
    let message = product.provision("new").await.1["error"]["message"].clone();
    assert!(message.as_str().unwrap().contains("Back at noon."), "{message}");
    // An idle engine is not put to sleep, and one that crashes comes back.
    app.while_time_passes(SECOND * 10, app.sleep(SECOND * 1_200)).await;
    assert_eq!(product.get("runs").await.1["status"], "running");
    let engine = app.backend.running().into_iter().next().unwrap();
    app.backend.crash(engine);
    app.advance_until(SECOND, async || product.get("runs").await.1["status"] == "failed").await;
    app.advance_until(SECOND, async || product.get("runs").await.1["status"] == "running").await;

    // The next orchestrator knows it. Another message keeps the time.
    let key = product.key.clone();
    let app = app.kill_and_replace().await;
    app.start().await;
    let product = ProductClient { app: &app, key };
    assert_maintained(&product).await;
    let again = begin(&app, "Back at one.").await;
    assert_eq!((&again["since"], &again["message"]), (&begun["since"], &json!("Back at one.")));
    for bad in ["{}", r#"{"message": ""}"#, r#"{"message": "a\nb"}"#, r#"{"message": "x", "until": 1}"#] {
        assert_eq!(summarize(call(&app, "PUT", bad).await), "400 INVALID_REQUEST", "{bad}");
    }
    let too_long = json!({"message": "ü".repeat(501)}).to_string();
    assert_eq!(summarize(call(&app, "PUT", &too_long).await), "400 INVALID_REQUEST");
    assert_eq!(call(&app, "DELETE", "").await.1["maintenance"], Value::Null);
    assert_eq!(summarize(product.admit("sleeps", json!({"auto_wake": true})).await), "200 running");
    assert_eq!(summarize(product.delete("runs").await), "200 destroyed");
    assert_eq!(call(&app, "DELETE", "").await.0, 200);
    app.assert_consistent().await;
}
