//! Engines that do not accept the registry's key, and processes that take an engine's port.

use std::time::Duration;

use api::EngineId;
use serde_json::json;

use crate::config::SupervisionRules;
use crate::testing::{BackendCall, Fault, ProductClient, SimulatedHealth, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);

/// Waits until the only engine has been restarted with the registry's key.
async fn assert_relaunched(app: &TestApp, product: &ProductClient<'_>) {
    app.advance_until(SECOND, async || app.audit_lines().await.len() > 2).await;
    let refused = "crash running→failed it refuses the key that the registry has for it";
    assert_eq!(app.audit_lines().await[1..3], [refused, "restart failed→running crash"]);
    let awake = app.while_time_passes(SECOND, product.admit("ann", json!({"auto_wake": true}))).await;
    assert_eq!(summarize(awake), "200 running");
    let rows = app.rows("SELECT key_hash FROM engines").await;
    assert_eq!(app.backend.key_hashes().pop().unwrap().to_hex(), rows[0][0]);
    app.assert_consistent().await;
}

/// The registry was restored from a backup, or the engine got another key by other means.
#[tokio::test]
async fn regression_o25_an_engine_that_refuses_the_registrys_key_is_launched_again_after_a_takeover() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.invalidate_keys();
    let key = product.key.clone();
    let app = app.kill_and_replace().await;
    app.start().await;
    assert_relaunched(&app, &ProductClient { app: &app, key }).await;
}

#[tokio::test]
async fn regression_o25_an_engine_that_refuses_to_say_whether_it_may_sleep_is_launched_again() {
    let rules = SupervisionRules { idle_threshold: Duration::from_mins(5), ..SupervisionRules::default() };
    let app = TestApp::with_rules(rules).await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.invalidate_keys();
    assert_relaunched(&app, &product).await;
}

/// The command that changes the key reaches the engine after the rotation was abandoned.
#[tokio::test]
async fn regression_o25_a_key_that_an_engine_takes_too_late_does_not_stay() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.inject(BackendCall::Rpc, Fault::Error(backend::BackendError::Failed("lost".into())));
    assert_eq!(summarize(product.rotate("ann").await), "502 BACKEND_ERROR");
    // Checks that passed in between do not prove that no command arrives later.
    let engine_id = *app.backend.running().iter().next().unwrap();
    app.advance_until(SECOND, async || app.backend.probe_count(engine_id) > 3).await;
    app.backend.invalidate_keys();
    assert_relaunched(&app, &product).await;
}

#[tokio::test]
async fn an_explanation_says_that_the_key_is_refused() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.invalidate_keys();
    // The first explanation asks the engine for its activity, and so learns that the key is refused.
    let explained = async || product.call("GET", "/engines/ann/explain", &json!(null)).await.1;
    explained().await;
    let because = explained().await["awake_because"].to_string();
    assert!(because.contains("refuses the key"), "{because}");
    assert_relaunched(&app, &product).await;
    let because = explained().await["awake_because"].to_string();
    assert!(!because.contains("refuses the key"), "{because}");
}

/// A product with one engine that has proven its key in several checks.
async fn with_proving_engine(app: &TestApp) -> (ProductClient<'_>, EngineId) {
    app.backend.prove_keys();
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    let engine_id = *app.backend.running().iter().next().unwrap();
    app.advance_until(SECOND, async || app.backend.probe_count(engine_id) > 3).await;
    (product, engine_id)
}

/// An engine that proves its key in each check is never sent the key.
#[tokio::test]
async fn regression_o28_no_key_is_sent_to_show_whose_an_engine_is() {
    let app = TestApp::new().await;
    let (product, engine_id) = with_proving_engine(&app).await;
    assert_eq!(product.rotate("ann").await.0, 200);
    let probes = app.backend.probe_count(engine_id);
    app.advance_until(SECOND, async || app.backend.probe_count(engine_id) > probes + 3).await;
    assert_eq!(summarize(product.get("ann").await), "200 running");
    // Each check verifies the key, so no other event has to raise a doubt.
    app.backend.invalidate_keys();
    app.advance_until(SECOND, async || app.audit_lines().await.len() > 3).await;
    assert!(app.audit_lines().await[2].starts_with("crash running→failed it refuses the key"));
    assert_eq!(app.backend.keys_sent(), 0);
}

/// A process on the port of an engine that proves its key reports to be healthy without a proof; it gets no key.
#[tokio::test]
async fn regression_o28_what_gives_no_proof_where_the_engine_did_is_not_the_engine() {
    let app = TestApp::new().await;
    let (product, _) = with_proving_engine(&app).await;
    app.backend.set_health(SimulatedHealth::WrongEngine);
    app.advance_until(SECOND, async || summarize(product.get("ann").await) == "200 failed").await;
    let crash = app.audit_lines().await.pop().unwrap();
    assert!(crash.contains("gives no proof that it has this engine's key"), "{crash}");
    assert_eq!(app.backend.keys_sent(), 0);
}

/// If the image is this very program, a process that gives no proof is not the engine.
#[tokio::test]
async fn regression_o28_what_answers_in_the_place_of_an_engine_that_boots_is_sent_no_key() {
    let app = TestApp::new().await;
    app.backend.use_single_image();
    let product = app.register_product("demo", json!({})).await;
    app.backend.set_health(SimulatedHealth::WrongEngine);
    let refused = app.while_time_passes(SECOND, product.provision("ann")).await;
    assert_eq!(summarize(refused), "504 BOOT_TIMEOUT");
    assert_eq!(app.backend.keys_sent(), 0);
    app.backend.set_health(SimulatedHealth::Healthy);
    assert_eq!(summarize(product.provision("ann").await), "200 running");
    assert_eq!(app.backend.keys_sent(), 0);
}

crate::testing::also_with_own_addresses! {
    regression_o28_no_key_is_sent_to_show_whose_an_engine_is,
    regression_o28_what_gives_no_proof_where_the_engine_did_is_not_the_engine,
}
