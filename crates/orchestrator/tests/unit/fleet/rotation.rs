//! Key rotation, and the failures that can happen during it.

use std::time::Duration;

use backend::BackendError;
use serde_json::{Value, json};

use crate::testing::{BackendCall, Fault, ProductClient, TestApp, summarize};

const STEP: Duration = Duration::from_millis(250);

fn connection_lost() -> Fault {
    Fault::Error(BackendError::Failed("the connection broke".into()))
}

/// The key hash of the only running engine, and the one in the registry.
async fn hashes(app: &TestApp) -> (String, String) {
    let rows = app.rows("SELECT key_hash FROM engines").await;
    (app.backend.key_hashes().pop().unwrap().to_hex(), rows[0][0].clone())
}

fn key(answer: &(u16, Value)) -> String {
    answer.1["api_key"].as_str().or(answer.1["new_api_key"].as_str()).unwrap().to_owned()
}

#[tokio::test]
async fn the_new_key_is_the_key_from_then_on() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let old = key(&product.provision("ann").await);
    let rotated = product.rotate("ann").await;
    assert_eq!(rotated.1.as_object().unwrap().len(), 1);
    let new = key(&rotated);
    assert_ne!(old, new);
    let (engine, registry) = hashes(&app).await;
    assert_eq!(engine, registry);
    assert_eq!(engine, api::KeyHash::of(&new).to_hex());
    assert_eq!(key(&product.get("ann").await), new);
    assert_eq!(product.admit("ann", json!({})).await.1["engine"]["api_key"], new);
    assert_eq!(app.audit_lines().await[1], "rotate_key none→none requested");
}

#[tokio::test]
async fn regression_o16_an_old_key_never_comes_back() {
    let app = TestApp::new().await;
    let product_key = app.register_product("demo", json!({})).await.key;
    let product = ProductClient { app: &app, key: product_key.clone() };
    let old = key(&product.provision("ann").await);
    let new = key(&product.rotate("ann").await);
    assert_ne!(old, new);
    let hash = api::KeyHash::of(&new).to_hex();
    product.stop("ann").await;
    product.start("ann").await;
    assert_eq!(hashes(&app).await, (hash.clone(), hash.clone()));
    let app = app.kill_and_replace().await;
    app.start().await;
    let product = ProductClient { app: &app, key: product_key };
    assert_eq!(key(&product.get("ann").await), new);
    app.backend.crash(*app.backend.running().iter().next().unwrap());
    app.advance_until(STEP, async || {
        app.audit_lines().await.last().unwrap() == "restart failed→running crash"
    })
    .await;
    assert_eq!(hashes(&app).await, (hash.clone(), hash));
}

#[tokio::test]
async fn an_answer_that_was_lost_is_found_out() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let old = key(&product.provision("ann").await);
    // The engine did not receive the command: the old key is valid.
    app.backend.inject(BackendCall::Rpc, connection_lost());
    assert_eq!(summarize(product.rotate("ann").await), "502 BACKEND_ERROR");
    assert_eq!(key(&product.get("ann").await), old);
    let (engine, registry) = hashes(&app).await;
    assert_eq!(engine, registry);
    // It received the command and responded too late: the new key is valid, and the caller gets it.
    app.backend.inject(BackendCall::Rpc, Fault::Delay(Duration::from_mins(1)));
    let rotated = app.while_time_passes(STEP, product.rotate("ann")).await;
    assert_eq!(rotated.0, 200);
    assert_eq!(key(&product.get("ann").await), key(&rotated));
    let (engine, registry) = hashes(&app).await;
    assert_eq!(engine, registry);
    assert_ne!(key(&rotated), old);
}

#[tokio::test]
async fn while_nobody_knows_which_key_holds_nobody_is_given_one() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let ann = product.provision("ann").await;
    app.backend.freeze(ann.1["engine_id"].as_str().unwrap().parse().unwrap());
    assert_eq!(summarize(app.while_time_passes(STEP, product.rotate("ann")).await), "502 BACKEND_ERROR");
    assert_eq!(summarize(app.while_time_passes(STEP, product.get("ann")).await), "502 BACKEND_ERROR");
    assert_eq!(
        summarize(app.while_time_passes(STEP, product.admit("ann", json!({}))).await),
        "502 BACKEND_ERROR"
    );
    app.backend.thaw();
    let got = product.get("ann").await;
    assert_eq!(summarize(got.clone()), "200 running");
    let (engine, registry) = hashes(&app).await;
    assert_eq!(engine, registry);
    assert_eq!(engine, api::KeyHash::of(&key(&got)).to_hex());
    app.assert_consistent().await;
}

#[tokio::test]
async fn an_engine_that_takes_neither_key_is_launched_again() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.invalidate_keys();
    app.backend.inject(BackendCall::Rpc, connection_lost());
    assert_eq!(summarize(product.rotate("ann").await), "502 BACKEND_ERROR");
    assert_eq!(summarize(product.get("ann").await), "200 failed");
    assert_eq!(summarize(app.while_time_passes(STEP, product.admit("ann", json!({}))).await), "200 running");
    let (engine, registry) = hashes(&app).await;
    assert_eq!(engine, registry);
}

#[tokio::test]
async fn a_rotation_that_was_cut_off_is_settled_by_what_the_engine_takes() {
    for received in [false, true] {
        let app = TestApp::new().await;
        let product_key = app.register_product("demo", json!({})).await.key;
        let product = ProductClient { app: &app, key: product_key.clone() };
        let old = key(&product.provision("ann").await);
        let fault = if received { Fault::Delay(Duration::from_mins(9)) } else { Fault::Hang };
        app.backend.inject(BackendCall::Rpc, fault);
        tokio::select! {
            biased;
            answer = product.rotate("ann") => panic!("{answer:?}"),
            () = app.wait_until(|| app.backend.count(BackendCall::Rpc) > 0) => {}
        }
        let app = app.kill_and_replace().await;
        app.start().await;
        let product = ProductClient { app: &app, key: product_key };
        let got = product.get("ann").await;
        assert_eq!(key(&got) != old, received);
        let (engine, registry) = hashes(&app).await;
        assert_eq!(engine, registry);
        assert_eq!(engine, api::KeyHash::of(&key(&got)).to_hex());
        let rotated = app.audit_lines().await.iter().any(|row| row == "rotate_key none→none interrupted");
        assert_eq!(rotated, received);
    }
}

crate::testing::also_with_own_addresses! {
    the_new_key_is_the_key_from_then_on,
    an_answer_that_was_lost_is_found_out,
    a_rotation_that_was_cut_off_is_settled_by_what_the_engine_takes,
}
