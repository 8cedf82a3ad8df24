//! A disk that is full, or that nobody may write to: refusals with a reason, nothing lost, no storm.

use serde_json::{Value, json};

use super::{SECOND, STEP, engine_id, pass, until_it_is};
use crate::testing::{Call, Caller, Fault, Health, TestApp, is_about_sqlite, short};

/// Every call of a product that changes something.
async fn change_everything(product: &Caller<'_>) -> Vec<(u16, Value)> {
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
async fn lesson_o18_a_registry_that_cannot_be_written_to_refuses_and_loses_nothing() {
    if is_about_sqlite("disk") {
        return;
    }
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    for user in ["sleeps", "fails"] {
        product.provision(user).await;
    }
    let fails = engine_id(&product.get("fails").await);
    let sleeps = product.get("sleeps").await;
    app.orchestrator.fleet().sleep_all("idle").await.unwrap();
    product.start("fails").await;
    let runs = product.provision("runs").await;
    // Its restart is due while nothing can be written.
    app.backend.crash(fails);
    until_it_is(&product, "fails", "failed").await;
    let (rows, launches) = (app.ledger().await, app.backend.count(Call::Launch));
    app.lock_disk(true).await;
    for answer in change_everything(&product).await {
        assert_eq!(short(answer), "500 INTERNAL_ERROR");
    }
    // Reads go on, and so do those who have an engine that runs.
    assert_eq!(product.look("/engines").await.0, 200);
    assert_eq!(product.admit("runs", json!({})).await.1["engine"]["api_key"], runs.1["api_key"]);
    pass(&app, SECOND * 600).await;
    assert_eq!(app.backend.count(Call::Launch), launches, "engines are launched that cannot be recorded");
    assert_eq!(short(product.get("runs").await), "200 running");
    assert_eq!(short(product.get("sleeps").await), "200 sleeping");
    assert_eq!(short(product.get("fails").await), "200 failed");
    assert_eq!(app.ledger().await, rows);
    app.assert_in_order().await;
    // There is room again.
    app.lock_disk(false).await;
    until_it_is(&product, "fails", "running").await;
    assert_eq!(short(product.admit("sleeps", json!({"auto_wake": true})).await), "200 running");
    assert_eq!(product.get("sleeps").await.1["api_key"], sleeps.1["api_key"]);
    assert_eq!(short(product.provision("new").await), "200 running");
    app.assert_in_order().await;
    app.assert_chained().await;
}

#[tokio::test]
async fn lesson_o18_what_a_full_disk_did_not_take_was_not_acknowledged() {
    if is_about_sqlite("disk") {
        return;
    }
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    app.fill_disk(true).await;
    let mut running = Vec::new();
    let mut refused = 0;
    // There is room on pages that are not full yet; after a while there is none.
    for user in 0..60 {
        let user = format!("u{user}");
        match short(app.while_time_passes(STEP, product.provision(&user)).await).as_str() {
            "200 running" => running.push(user),
            "500 INTERNAL_ERROR" => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert!(refused > 10, "the disk was never full");
    for user in &running {
        assert_eq!(short(product.get(user).await), "200 running");
    }
    let ran = app.backend.count(Call::Launch);
    pass(&app, SECOND * 300).await;
    assert_eq!(app.backend.count(Call::Launch), ran);
    app.fill_disk(false).await;
    pass(&app, SECOND * 65).await;
    app.unclaimed().await;
    app.assert_in_order().await;
    assert_eq!(app.backend.running().len(), running.len());
    assert_eq!(short(product.provision("late").await), "200 running");
    app.assert_chained().await;
}

#[tokio::test]
async fn lesson_o18_a_change_whose_end_the_registry_did_not_take_is_no_success() {
    if is_about_sqlite("disk") {
        return;
    }
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    app.backend.script(Call::Launch, Fault::Late(SECOND * 5));
    let meanwhile = async {
        app.until(|| app.backend.count(Call::Launch) == 1).await;
        app.lock_disk(true).await;
        pass(&app, SECOND * 6).await;
    };
    let (provisioned, ()) = tokio::join!(product.provision("ann"), meanwhile);
    assert_eq!(short(provisioned), "500 INTERNAL_ERROR");
    pass(&app, SECOND * 300).await;
    assert_eq!(app.backend.count(Call::Launch), 1);
    app.lock_disk(false).await;
    // What nobody was told of is not kept.
    pass(&app, SECOND * 65).await;
    app.assert_in_order().await;
    assert!(app.backend.folders().is_empty());
    assert_eq!(short(product.provision("ann").await), "200 running");
    app.assert_chained().await;
}

#[tokio::test]
async fn lesson_o18_an_engine_whose_brain_cannot_be_written_to_fails_with_the_reason() {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    app.orchestrator.fleet().sleep_all("idle").await.unwrap();
    app.backend.set_health(Health::Database("disk full"));
    let wake = product.admit("ann", json!({"auto_wake": true}));
    assert_eq!(short(app.while_time_passes(SECOND, wake).await), "504 BOOT_TIMEOUT");
    assert_eq!(short(product.get("ann").await), "200 failed");
    assert_eq!(app.ledger().await.last().unwrap(), "crash sleeping→failed database: disk full");
    // It is tried again as often as the rules say, and comes back when there is room.
    app.backend.set_health(Health::Well);
    until_it_is(&product, "ann", "running").await;
    app.assert_in_order().await;
}
