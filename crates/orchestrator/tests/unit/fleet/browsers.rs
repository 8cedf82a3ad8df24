//! Engines are told about revoked tokens and origins, whatever fails on the way.

use std::time::Duration;

use api::EngineId;
use backend::BackendError;
use serde_json::{Value, json};

use crate::testing::{BackendCall, Fault, ProductClient, TestApp};

const STEP: Duration = Duration::from_millis(500);

/// Provisions ann's engine and mints a token; returns the engine and the token.
async fn engine_with_token(product: &ProductClient<'_>) -> (EngineId, Value) {
    let (_, ann) = product.provision("ann").await;
    let (status, minted) = product.call("POST", "/engines/ann/tokens", &json!({"scopes": ["read"]})).await;
    assert_eq!(status, 200, "{minted}");
    (ann["engine_id"].as_str().unwrap().parse().unwrap(), minted["token_id"].clone())
}

async fn revoke(product: &ProductClient<'_>, token_id: &Value) -> Value {
    let path = format!("/engines/ann/tokens/{}", token_id.as_str().unwrap());
    let (status, revoked) = product.call("DELETE", &path, &Value::Null).await;
    assert_eq!(status, 200, "{revoked}");
    revoked["in_force"].clone()
}

/// Whether an engine was told that a token is revoked.
fn was_told(app: &TestApp, engine_id: EngineId, token_id: &Value) -> bool {
    let told = app.backend.browser_access(engine_id);
    told.is_some_and(|told| told["revoked"].as_array().unwrap().contains(token_id))
}

fn lose_command(app: &TestApp) {
    app.backend
        .inject(BackendCall::Rpc, Fault::Error(BackendError::Unreachable("connection refused".into())));
}

#[tokio::test]
async fn an_engine_that_was_not_reached_is_told_again() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let (engine, token) = engine_with_token(&product).await;
    lose_command(&app);
    assert_eq!(revoke(&product, &token).await, false);
    assert!(!was_told(&app, engine, &token));
    app.advance_until(STEP, async || was_told(&app, engine, &token)).await;
    assert_eq!(revoke(&product, &token).await, true);
}

#[tokio::test]
async fn the_next_orchestrator_tells_what_the_killed_one_did_not() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let (engine, token) = engine_with_token(&product).await;
    lose_command(&app);
    assert_eq!(revoke(&product, &token).await, false);
    let app = app.kill_and_replace().await;
    assert!(!was_told(&app, engine, &token));
    app.start().await;
    app.advance_until(STEP, async || was_told(&app, engine, &token)).await;
}

#[tokio::test]
async fn an_engine_is_launched_with_what_it_has_to_know() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let (engine, token) = engine_with_token(&product).await;
    product.stop("ann").await;
    assert_eq!(revoke(&product, &token).await, true, "it reads it when it starts");
    let origins = json!({"origins": ["https://app.example"]});
    assert_eq!(product.call("PUT", "/origins", &origins).await.0, 200);
    assert_eq!(app.backend.browser_access(engine), None, "one that does not run is not told");
    product.start("ann").await;
    let launch = app.backend.launches().pop().unwrap();
    let access = launch.env.iter().find(|(name, _)| name == "ENGINE_BROWSER_ACCESS").unwrap();
    let access: Value = serde_json::from_str(secrecy::ExposeSecret::expose_secret(&access.1)).unwrap();
    assert_eq!((&access["revoked"], &access["origins"]), (&json!([token]), &origins["origins"]));
}

#[tokio::test]
async fn an_engine_has_a_bounded_number_of_tokens_and_the_void_ones_go() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let (_, first) = engine_with_token(&product).await;
    let mint = json!({"scopes": ["read"]});
    for _ in 1..api::browser::MAX_TOKENS {
        assert_eq!(product.call("POST", "/engines/ann/tokens", &mint).await.0, 200);
    }
    assert_eq!(product.call("POST", "/engines/ann/tokens", &mint).await.0, 429);
    assert_eq!(revoke(&product, &first).await, true);
    // A revoked one still counts: the engine has to remember it.
    assert_eq!(product.call("POST", "/engines/ann/tokens", &mint).await.0, 429);
    app.clock.advance(Duration::from_secs(901));
    assert_eq!(product.call("POST", "/engines/ann/tokens", &mint).await.0, 200);
    let rows = app.rows("SELECT CAST(COUNT(*) AS TEXT) FROM browser_tokens").await;
    assert_eq!(rows, [["2"]], "the revoked one is kept for some time");
    app.clock.advance(Duration::from_hours(2));
    assert_eq!(product.call("POST", "/engines/ann/tokens", &mint).await.0, 200);
    product.delete("ann").await;
    assert_eq!(app.rows("SELECT CAST(COUNT(*) AS TEXT) FROM browser_tokens").await, [["0"]]);
    app.assert_hash_chain().await;
}
