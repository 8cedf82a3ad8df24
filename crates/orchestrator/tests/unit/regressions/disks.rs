//! A full or read-only disk: changes are refused with a reason, nothing is lost, and no retry storm starts.

use serde_json::{Value, json};

use super::{SECOND, STEP, advance, engine_id, wait_for_status};
use crate::testing::{
    BackendCall, Fault, ProductClient, SimulatedHealth, TestApp, skip_unless_sqlite, summarize,
};

/// Sends every request of a product that changes something.
async fn change_everything(product: &ProductClient<'_>) -> Vec<(u16, Value)> {
    let all = json!({"auto_provision": true, "auto_wake": true});
    vec![
        product.provision("new").await,
        product.admit("new", all.clone()).await,
        product.admit("sleeps", all).await,
        product.start("sleeps").await,
        product.stop("runs").await,
        product.rotate("runs").await,
        product.delete("runs").await,
        product.delete("sleeps").await,
    ]
}

#[tokio::test]
async fn regression_o18_a_registry_that_cannot_be_written_to_refuses_and_loses_nothing() {
    if skip_unless_sqlite("disk") {
        return;
    }
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    for user in ["sleeps", "fails"] {
        product.provision(user).await;
    }
    let fails = engine_id(&product.get("fails").await);
    let sleeps = product.get("sleeps").await;
    app.orchestrator.fleet().sleep_all("idle").await.unwrap();
    product.start("fails").await;
    let runs = product.provision("runs").await;
    // The restart of this engine becomes due while the registry is read-only.
    app.backend.crash(fails);
    wait_for_status(&product, "fails", "failed").await;
    let (rows, launches) = (app.audit_lines().await, app.backend.count(BackendCall::Launch));
    app.lock_disk(true).await;
    for answer in change_everything(&product).await {
        assert_eq!(summarize(answer), "500 INTERNAL_ERROR");
    }
    // Reads and admits of running engines still work.
    assert_eq!(product.get_path("/engines").await.0, 200);
    assert_eq!(product.admit("runs", json!({})).await.1["engine"]["api_key"], runs.1["api_key"]);
    advance(&app, SECOND * 600).await;
    assert_eq!(
        app.backend.count(BackendCall::Launch),
        launches,
        "engines were launched although the registry could not record them"
    );
    assert_eq!(summarize(product.get("runs").await), "200 running");
    assert_eq!(summarize(product.get("sleeps").await), "200 sleeping");
    assert_eq!(summarize(product.get("fails").await), "200 failed");
    assert_eq!(app.audit_lines().await, rows);
    app.assert_consistent().await;
    // The registry is writable again.
    app.lock_disk(false).await;
    wait_for_status(&product, "fails", "running").await;
    assert_eq!(summarize(product.admit("sleeps", json!({"auto_wake": true})).await), "200 running");
    assert_eq!(product.get("sleeps").await.1["api_key"], sleeps.1["api_key"]);
    assert_eq!(summarize(product.provision("new").await), "200 running");
    app.assert_consistent().await;
    app.assert_hash_chain().await;
}

#[tokio::test]
async fn regression_o18_what_a_full_disk_did_not_take_was_not_acknowledged() {
    if skip_unless_sqlite("disk") {
        return;
    }
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.fill_disk(true).await;
    let mut running = Vec::new();
    let mut refused = 0;
    // At first there is room on pages that are not full yet.
    for user in 0..60 {
        let user = format!("u{user}");
        match summarize(app.while_time_passes(STEP, product.provision(&user)).await).as_str() {
            "200 running" => running.push(user),
            "500 INTERNAL_ERROR" => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert!(refused > 10, "the disk was never full");
    for user in &running {
        assert_eq!(summarize(product.get(user).await), "200 running");
    }
    let launches = app.backend.count(BackendCall::Launch);
    advance(&app, SECOND * 300).await;
    assert_eq!(app.backend.count(BackendCall::Launch), launches);
    app.fill_disk(false).await;
    advance(&app, SECOND * 65).await;
    app.wait_unclaimed().await;
    app.assert_consistent().await;
    assert_eq!(app.backend.running().len(), running.len());
    assert_eq!(summarize(product.provision("late").await), "200 running");
    app.assert_hash_chain().await;
}

#[tokio::test]
async fn regression_o18_a_change_whose_end_the_registry_did_not_take_is_no_success() {
    if skip_unless_sqlite("disk") {
        return;
    }
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.inject(BackendCall::Launch, Fault::Delay(SECOND * 5));
    let steps_during_claim = async {
        app.wait_until(|| app.backend.count(BackendCall::Launch) == 1).await;
        app.lock_disk(true).await;
        advance(&app, SECOND * 6).await;
    };
    let (provisioned, ()) = tokio::join!(product.provision("ann"), steps_during_claim);
    assert_eq!(summarize(provisioned), "500 INTERNAL_ERROR");
    advance(&app, SECOND * 300).await;
    assert_eq!(app.backend.count(BackendCall::Launch), 1);
    app.lock_disk(false).await;
    // The unacknowledged engine is removed.
    advance(&app, SECOND * 65).await;
    app.assert_consistent().await;
    assert!(app.backend.folders().is_empty());
    assert_eq!(summarize(product.provision("ann").await), "200 running");
    app.assert_hash_chain().await;
}

#[tokio::test]
async fn regression_o18_an_engine_whose_brain_cannot_be_written_to_fails_with_the_reason() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.orchestrator.fleet().sleep_all("idle").await.unwrap();
    app.backend.set_health(SimulatedHealth::Database("disk full"));
    let wake = product.admit("ann", json!({"auto_wake": true}));
    assert_eq!(summarize(app.while_time_passes(SECOND, wake).await), "504 BOOT_TIMEOUT");
    assert_eq!(summarize(product.get("ann").await), "200 failed");
    assert_eq!(app.audit_lines().await.last().unwrap(), "crash sleeping→failed database: disk full");
    // The restart is retried as the supervision rules say, and succeeds when there is room again.
    app.backend.set_health(SimulatedHealth::Healthy);
    wait_for_status(&product, "ann", "running").await;
    app.assert_consistent().await;
}
