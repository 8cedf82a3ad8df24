//! Engines that do not take the key that the registry has for them.

use std::time::Duration;

use contract::EngineId;
use serde_json::json;

use crate::config::Rules;
use crate::testing::{Call, Caller, Fault, Health, TestApp, short};

const SECOND: Duration = Duration::from_secs(1);

/// Waits until the only engine has been launched with the key that the registry has for it.
async fn is_launched_again(app: &TestApp, product: &Caller<'_>) {
    app.step_until(SECOND, async || app.ledger().await.len() > 2).await;
    let refused = "crash running→failed it refuses the key that the registry has for it";
    assert_eq!(app.ledger().await[1..3], [refused, "restart failed→running crash"]);
    let awake = app.while_time_passes(SECOND, product.admit("ann", json!({"auto_wake": true}))).await;
    assert_eq!(short(awake), "200 running");
    let rows = app.rows("SELECT key_hash FROM engines").await;
    assert_eq!(app.backend.key_hashes().pop().unwrap().to_hex(), rows[0][0]);
    app.assert_in_order().await;
}

/// A registry that was restored from a backup, or an engine that was given another key behind its back.
#[tokio::test]
async fn lesson_o25_an_engine_that_refuses_the_registrys_key_is_launched_again_after_a_takeover() {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.forget_keys();
    let key = product.key.clone();
    let app = app.killed().await;
    app.begin().await;
    is_launched_again(&app, &Caller { app: &app, key }).await;
}

#[tokio::test]
async fn lesson_o25_an_engine_that_refuses_to_say_whether_it_may_sleep_is_launched_again() {
    let rules = Rules { idle_threshold: Duration::from_mins(5), ..Rules::default() };
    let app = TestApp::by(rules).await;
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.forget_keys();
    is_launched_again(&app, &product).await;
}

/// The command that changes its key reaches an engine after the rotation was given up.
#[tokio::test]
async fn lesson_o25_a_key_that_an_engine_takes_too_late_does_not_stay() {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.script(Call::Rpc, Fault::Error(crate::backend::BackendError::Failed("lost".into())));
    assert_eq!(short(product.rotate("ann").await), "502 BACKEND_ERROR");
    // Checks that were good in between are no proof for what comes later.
    let engine_id = *app.backend.running().iter().next().unwrap();
    app.step_until(SECOND, async || app.backend.asked(engine_id) > 3).await;
    app.backend.forget_keys();
    is_launched_again(&app, &product).await;
}

#[tokio::test]
async fn an_explanation_says_that_the_key_is_refused() {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.forget_keys();
    // Whoever explains it asks it, and learns it by that.
    let explained = async || product.call("GET", "/engines/ann/explain", &json!(null)).await.1;
    explained().await;
    let because = explained().await["awake_because"].to_string();
    assert!(because.contains("refuses the key"), "{because}");
    is_launched_again(&app, &product).await;
    let because = explained().await["awake_because"].to_string();
    assert!(!because.contains("refuses the key"), "{because}");
}

/// A product with one engine, which has proven its key in several checks.
async fn with_proving_engine(app: &TestApp) -> (Caller<'_>, EngineId) {
    app.backend.prove_keys();
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    let engine_id = *app.backend.running().iter().next().unwrap();
    app.step_until(SECOND, async || app.backend.asked(engine_id) > 3).await;
    (product, engine_id)
}

/// Engines that prove their keys, and what takes the port of one.
#[tokio::test]
async fn lesson_o28_no_key_is_sent_to_show_whose_an_engine_is() {
    let app = TestApp::new().await;
    let (product, engine_id) = with_proving_engine(&app).await;
    assert_eq!(product.rotate("ann").await.0, 200);
    let asked = app.backend.asked(engine_id);
    app.step_until(SECOND, async || app.backend.asked(engine_id) > asked + 3).await;
    assert_eq!(short(product.get("ann").await), "200 running");
    // Each check proves the key: nothing else has to raise a doubt.
    app.backend.forget_keys();
    app.step_until(SECOND, async || app.ledger().await.len() > 3).await;
    assert!(app.ledger().await[2].starts_with("crash running→failed it refuses the key"));
    assert_eq!(app.backend.keys_sent(), 0);
}

/// What takes the port of an engine that proves its key says that it is well, and gives no proof: it is sent no key.
#[tokio::test]
async fn lesson_o28_what_gives_no_proof_where_the_engine_did_is_not_the_engine() {
    let app = TestApp::new().await;
    let (product, _) = with_proving_engine(&app).await;
    app.backend.set_health(Health::Stranger);
    app.step_until(SECOND, async || short(product.get("ann").await) == "200 failed").await;
    let crash = app.ledger().await.pop().unwrap();
    assert!(crash.contains("gives no proof that it has this engine's key"), "{crash}");
    assert_eq!(app.backend.keys_sent(), 0);
}

/// Where the image is this very program, a launched engine gives a proof or is none.
#[tokio::test]
async fn lesson_o28_what_answers_in_the_place_of_an_engine_that_boots_is_sent_no_key() {
    let app = TestApp::new().await;
    app.backend.keep_one_image();
    let product = app.product("demo", json!({})).await;
    app.backend.set_health(Health::Stranger);
    let refused = app.while_time_passes(SECOND, product.provision("ann")).await;
    assert_eq!(short(refused), "504 BOOT_TIMEOUT");
    assert_eq!(app.backend.keys_sent(), 0);
    app.backend.set_health(Health::Well);
    assert_eq!(short(product.provision("ann").await), "200 running");
    assert_eq!(app.backend.keys_sent(), 0);
}
