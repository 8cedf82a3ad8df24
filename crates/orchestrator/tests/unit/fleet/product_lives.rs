//! Products are disabled, enabled and deleted: what races with it, what cannot be ended, and who is killed in the middle.

use std::time::Duration;

use backend::BackendError;
use serde_json::{Value, json};

use crate::testing::{ADMIN_KEY, BackendCall, Fault, ProductClient, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(250);

async fn operate(app: &TestApp, method: &str, path: &str) -> (u16, Value) {
    let (status, _, answer) = app.send(method, path, &[("X-Admin-Key", ADMIN_KEY)], "").await;
    (status, answer)
}

async fn details(app: &TestApp, id: &str) -> Value {
    let (status, answer) = operate(app, "GET", &format!("/products/{id}")).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Disables or enables a product; returns its state.
async fn switch(app: &TestApp, id: &str, act: &str) -> String {
    let (status, answer) = operate(app, "POST", &format!("/products/{id}/{act}")).await;
    if status == 200 { answer["state"].as_str().unwrap().to_owned() } else { summarize((status, answer)) }
}

async fn plan(app: &TestApp, id: &str) -> Value {
    let (status, answer) = operate(app, "GET", &format!("/products/{id}/deletion")).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn delete(app: &TestApp, id: &str, confirmation: &Value) -> (u16, Value) {
    let confirmation = confirmation.as_str().unwrap();
    operate(app, "DELETE", &format!("/products/{id}?confirmation={confirmation}")).await
}

/// Lets time pass until the product fulfils `condition`.
async fn advance_to(app: &TestApp, id: &str, condition: impl Fn(&Value) -> bool) -> Value {
    // What was seen then: it may change again at once.
    let seen = std::sync::Mutex::new(Value::Null);
    app.advance_until(STEP, async || {
        let details = details(app, id).await;
        let holds = condition(&details);
        *seen.lock().unwrap() = details;
        holds
    })
    .await;
    seen.into_inner().unwrap()
}

fn unreachable() -> Fault {
    Fault::Error(BackendError::Unreachable("no route to the host".to_owned()))
}

/// A product with two engines that run, and its id.
async fn two_engines<'a>(app: &'a TestApp, slug: &str) -> (ProductClient<'a>, String) {
    let product = app.register_product(slug, json!({})).await;
    for user in ["ann", "bob"] {
        assert_eq!(summarize(product.provision(user).await), "200 running");
    }
    let id = product.product_id().await;
    (product, id)
}

#[tokio::test]
async fn a_disabled_product_is_refused_everywhere_and_its_engines_sleep_until_it_is_enabled() {
    let app = TestApp::new().await;
    let (product, id) = two_engines(&app, "demo").await;
    let (other, _) = two_engines(&app, "other").await;
    let before = details(&app, &id).await;
    assert_eq!(
        (&before["state"], &before["state_since"], &before["engines"], &before["awake"]),
        (&json!("active"), &Value::Null, &json!(2), &json!(2)),
        "{before}"
    );
    assert_eq!(switch(&app, &id, "disable").await, "disabled");
    let disabled = "403 PRODUCT_DISABLED";
    assert_eq!(summarize(product.admit("ann", Value::Null).await), disabled);
    assert_eq!(summarize(product.provision("eve").await), disabled);
    assert_eq!(summarize(product.get("ann").await), disabled);
    assert_eq!(summarize(product.get_path("/audit").await), disabled);
    assert_eq!(summarize(product.get_path("/engines/ann/proxy/tasks").await), disabled);
    let mint = json!({"scopes": ["read"]});
    assert_eq!(summarize(product.call("POST", "/engines/ann/tokens", &mint).await), disabled);
    // The operator reads, and may end something, but starts nothing and makes no key.
    let act = [("X-Admin-Key", ADMIN_KEY), ("X-Product-Id", id.as_str())];
    let asleep = advance_to(&app, &id, |product| product["awake"] == 0).await;
    assert_eq!((&asleep["engines"], &asleep["failing"]), (&json!(2), &json!(0)), "{asleep}");
    let call = async |method: &str, path: &str, body: &str| {
        let (status, _, answer) = app.send(method, path, &act, body).await;
        summarize((status, answer))
    };
    assert!(call("GET", "/engines", "").await.starts_with("200"));
    assert_eq!(call("POST", "/engines/ann/start", "").await, disabled);
    assert_eq!(call("POST", "/engines/ann/admit", r#"{"auto_wake": true}"#).await, disabled);
    assert_eq!(call("POST", "/engines/provision", r#"{"user_id": "eve"}"#).await, disabled);
    assert_eq!(call("PUT", "/origins", r#"{"origins": []}"#).await, disabled);
    assert_eq!(call("POST", &format!("/products/{id}/keys"), "{}").await, disabled);
    assert_eq!(call("DELETE", "/engines/bob", "").await, "200 destroyed");
    // A repeated call changes nothing, and others go on.
    let rows = app.rows("SELECT event FROM audit_log").await.len();
    assert_eq!(switch(&app, &id, "disable").await, "disabled");
    assert_eq!(app.rows("SELECT event FROM audit_log").await.len(), rows);
    assert_eq!(summarize(other.admit("ann", Value::Null).await), "200 running");
    assert_eq!(app.backend.running().len(), 2);

    let (key, since) = (product.key.clone(), asleep["state_since"].clone());
    let app = app.kill_and_replace().await;
    app.start().await;
    let product = ProductClient { app: &app, key };
    assert_eq!(summarize(product.admit("ann", Value::Null).await), disabled);
    assert_eq!(details(&app, &id).await["state_since"], since);
    assert_eq!(switch(&app, &id, "enable").await, "active");
    assert_eq!(summarize(product.admit("ann", json!({"auto_wake": true})).await), "200 running");
    assert_eq!(switch(&app, &id, "enable").await, "active");
    app.assert_consistent().await;
    let audit = app
        .rows("SELECT event, detail FROM audit_log WHERE event IN ('disable', 'enable') ORDER BY id")
        .await;
    let expected = [["disable", r#"{"actor":"admin"}"#], ["enable", r#"{"actor":"admin"}"#]];
    assert_eq!(audit, expected);
    app.assert_hash_chain().await;
}

#[tokio::test]
async fn of_a_provision_and_a_disable_the_one_that_is_committed_first_wins() {
    // The provision's claim comes first: it comes to its end, and the engine is put to sleep.
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let id = product.product_id().await;
    app.backend.inject(BackendCall::Launch, Fault::Delay(SECOND * 3));
    let disable = async {
        app.wait_until(|| app.backend.count(BackendCall::Launch) == 1).await;
        switch(&app, &id, "disable").await
    };
    let (provisioned, disabled) =
        app.while_time_passes(STEP, async { tokio::join!(product.provision("ann"), disable) }).await;
    assert_eq!((summarize(provisioned).as_str(), disabled.as_str()), ("200 running", "disabled"));
    advance_to(&app, &id, |product| product["awake"] == 0).await;
    assert!(app.backend.running().is_empty());
    app.assert_consistent().await;

    // The disable comes first: a provision that had been let in before is refused, and leaves nothing.
    let other = app.register_product("other", json!({})).await;
    let id = other.product_id().await;
    let checks = app.backend.count(BackendCall::CheckImage);
    app.backend.inject(BackendCall::CheckImage, Fault::Delay(SECOND * 3));
    let disable = async {
        app.wait_until(|| app.backend.count(BackendCall::CheckImage) == checks + 1).await;
        switch(&app, &id, "disable").await
    };
    let admit = other.admit("ann", json!({"auto_provision": true}));
    let (admitted, disabled) = app.while_time_passes(STEP, async { tokio::join!(admit, disable) }).await;
    assert_eq!((summarize(admitted).as_str(), disabled.as_str()), ("403 PRODUCT_DISABLED", "disabled"));
    assert_eq!(details(&app, &id).await["engines"], 0);
    app.assert_consistent().await;
}

#[tokio::test]
async fn an_engine_that_has_crashed_is_not_restarted_while_its_product_is_disabled() {
    let app = TestApp::new().await;
    let (product, id) = two_engines(&app, "demo").await;
    let crashed = app.backend.running().into_iter().next().unwrap();
    app.backend.crash(crashed);
    app.advance_until(STEP, async || product.get_path("/status").await.1["unhealthy_count"] == 1).await;
    switch(&app, &id, "disable").await;
    advance_to(&app, &id, |product| product["awake"] == 0).await;
    app.while_time_passes(SECOND, app.sleep(SECOND * 120)).await;
    assert!(app.backend.running().is_empty());
    switch(&app, &id, "enable").await;
    app.advance_until(SECOND, async || app.backend.running().contains(&crashed)).await;
}

#[tokio::test]
async fn an_engine_that_cannot_be_put_to_sleep_is_named_until_it_sleeps() {
    let app = TestApp::new().await;
    let (_, id) = two_engines(&app, "demo").await;
    app.backend.inject(BackendCall::Stop, unreachable());
    switch(&app, &id, "disable").await;
    let failing = advance_to(&app, &id, |product| product["failing"] == 1).await;
    assert_eq!(failing["failures"][0]["error"]["code"], "BACKEND_ERROR", "{failing}");
    let done = advance_to(&app, &id, |product| product["awake"] == 0 && product["failing"] == 0).await;
    assert_eq!(done["failures"], json!([]), "{done}");
}

#[tokio::test]
async fn a_deletion_needs_a_disabled_product_and_a_confirmation_in_force() {
    let app = TestApp::new().await;
    let (_, id) = two_engines(&app, "demo").await;
    let (_, other) = two_engines(&app, "other").await;
    let plan_path = format!("/products/{id}/deletion");
    assert_eq!(summarize(operate(&app, "GET", &plan_path).await), "409 PRODUCT_NOT_DISABLED");
    assert_eq!(summarize(delete(&app, &id, &json!("x")).await), "409 PRODUCT_NOT_DISABLED");
    for id in [&id, &other] {
        switch(&app, id, "disable").await;
        advance_to(&app, id, |product| product["awake"] == 0).await;
    }
    let first = plan(&app, &id).await;
    assert_eq!(
        (&first["engines"], &first["by_status"], &first["platform_keys"], &first["slug"]),
        (&json!(2), &json!({"sleeping": 2}), &json!(1), &json!("demo")),
        "{first}"
    );
    let invalid = "409 CONFIRMATION_INVALID";
    let bare = operate(&app, "DELETE", &format!("/products/{id}")).await;
    assert_eq!(summarize(bare), "400 INVALID_REQUEST");
    for bad in [json!("x"), json!(""), plan(&app, &other).await["confirmation"].clone()] {
        assert_eq!(summarize(delete(&app, &id, &bad).await), invalid, "{bad}");
    }
    // It was enabled in between, at another time.
    app.while_time_passes(SECOND, app.sleep(SECOND)).await;
    switch(&app, &id, "enable").await;
    switch(&app, &id, "disable").await;
    assert_eq!(summarize(delete(&app, &id, &first["confirmation"]).await), invalid);
    let second = plan(&app, &id).await["confirmation"].clone();
    app.while_time_passes(SECOND * 10, app.sleep(SECOND * 600)).await;
    assert_eq!(summarize(delete(&app, &id, &second).await), invalid, "older than ten minutes");
    let third = plan(&app, &id).await["confirmation"].clone();
    assert_eq!(details(&app, &id).await["engines"], 2);
    // A confirmation outlives its orchestrator.
    let app = app.kill_and_replace().await;
    app.start().await;
    assert_eq!(delete(&app, &id, &third).await.1["state"], "deleting");
    assert_eq!(switch(&app, &id, "enable").await, "409 PRODUCT_DELETING");
}

#[tokio::test]
async fn a_deleted_product_leaves_its_audit_log_and_a_free_slug() {
    let app = TestApp::new().await;
    let (product, id) = two_engines(&app, "demo").await;
    product.call("PUT", "/origins", &json!({"origins": ["https://app.example"]})).await;
    product.call("POST", "/engines/ann/tokens", &json!({"scopes": ["read"]})).await;
    let (_, created) = {
        let path = format!("/products/{id}/keys");
        let (status, _, answer) = app.send("POST", &path, &[("X-Admin-Key", ADMIN_KEY)], "{}").await;
        (status, answer)
    };
    let second_key = created["platform_api_key"].as_str().unwrap().to_owned();
    switch(&app, &id, "disable").await;
    // Not all of them sleep yet.
    let confirmation = plan(&app, &id).await["confirmation"].clone();
    let (status, begun) = delete(&app, &id, &confirmation).await;
    assert_eq!((status, &begun["state"], &begun["engines_to_delete"]), (200, &json!("deleting"), &json!(2)));
    let deleted = advance_to(&app, &id, |product| product["state"] == "deleted").await;
    assert_eq!(
        (&deleted["engines"], &deleted["slug"], &deleted["engines_to_delete"]),
        (&json!(0), &json!("demo"), &json!(2)),
        "{deleted}"
    );
    assert!(app.backend.folders().is_empty() && app.backend.running().is_empty());
    for table in ["engines", "platform_keys", "product_origins", "browser_tokens", "inbox"] {
        let rows = app.rows(Box::leak(format!("SELECT '1' FROM {table}").into_boxed_str())).await;
        assert_eq!(rows, [] as [Vec<String>; 0], "{table}");
    }
    for key in [&product.key, &second_key] {
        let product = ProductClient { app: &app, key: key.clone() };
        assert_eq!(summarize(product.admit("ann", Value::Null).await), "401 INVALID_PLATFORM_KEY");
    }
    let path = |rest: &str| format!("/products/{id}{rest}");
    let not_found = "404 PRODUCT_NOT_FOUND";
    assert_eq!(summarize(operate(&app, "GET", &path("/deletion")).await), not_found);
    assert_eq!(summarize(operate(&app, "GET", &path("/keys")).await), not_found);
    assert_eq!(summarize(delete(&app, &id, &confirmation).await), not_found);
    assert_eq!(switch(&app, &id, "enable").await, not_found);
    assert_eq!(app.replace_policy(&id, &json!({})).await.0, 404);
    let act = [("X-Admin-Key", ADMIN_KEY), ("X-Product-Id", id.as_str())];
    let (status, _, refused) =
        app.send("POST", "/engines/ann/admit", &act, r#"{"auto_provision": true}"#).await;
    assert_eq!(summarize((status, refused)), not_found);
    let list = operate(&app, "GET", "/products").await.1;
    assert_eq!((&list["products"], &list["total"]), (&json!([]), &json!(0)));
    // Its audit log is whole, and another product may have its slug and its key.
    let (_, _, audit) = app.send("GET", "/audit", &act, "").await;
    let rows = audit["rows"].as_array().unwrap();
    let newest: Vec<_> = rows.iter().take(3).map(|row| row["event"].as_str().unwrap()).collect();
    assert_eq!(newest, ["product_deleted", "destroy", "destroy"]);
    assert_eq!(rows[1]["detail"]["reason"], "product_deleted");
    let body = json!({"slug": "demo", "display_name": "Again", "platform_api_key": product.key});
    let headers = [("X-Admin-Key", ADMIN_KEY)];
    let (status, _, again) = app.send("POST", "/products/register", &headers, &body.to_string()).await;
    assert_eq!(status, 200, "{again}");
    assert_ne!(again["product_id"], json!(id));
    assert_eq!(summarize(product.provision("ann").await), "200 running");
    assert_eq!(details(&app, &id).await["state"], "deleted");
    app.assert_hash_chain().await;
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_deletion_is_finished_by_the_next_orchestrator_whatever_it_was_killed_at() {
    for (call, fault) in [
        // Nothing has been destroyed, one engine is being destroyed, and one cannot be.
        (BackendCall::Ping, Fault::Hang),
        (BackendCall::Remove, Fault::Hang),
        (BackendCall::Remove, unreachable()),
    ] {
        let app = TestApp::new().await;
        let (product, id) = two_engines(&app, "demo").await;
        switch(&app, &id, "disable").await;
        advance_to(&app, &id, |product| product["awake"] == 0).await;
        let confirmation = plan(&app, &id).await["confirmation"].clone();
        let calls = app.backend.count(call);
        app.backend.inject(call, fault.clone());
        assert_eq!(delete(&app, &id, &confirmation).await.0, 200);
        app.wait_until(|| app.backend.count(call) > calls).await;
        let key = product.key.clone();
        let app = app.kill_and_replace().await;
        app.start().await;
        let product = ProductClient { app: &app, key };
        let deleted = advance_to(&app, &id, |product| product["state"] == "deleted").await;
        assert_eq!(deleted["engines"], 0, "{call:?}: {deleted}");
        assert!(app.backend.folders().is_empty(), "{call:?}");
        // What is committed reaches the keys in memory a moment later.
        app.advance_until(STEP, async || {
            summarize(product.admit("ann", Value::Null).await) == "401 INVALID_PLATFORM_KEY"
        })
        .await;
        app.assert_hash_chain().await;
        app.assert_consistent().await;
    }
}

#[tokio::test]
async fn an_engine_that_cannot_be_destroyed_keeps_its_product_until_it_can() {
    let app = TestApp::new().await;
    let (_, id) = two_engines(&app, "demo").await;
    switch(&app, &id, "disable").await;
    advance_to(&app, &id, |product| product["awake"] == 0).await;
    for _ in 0..3 {
        app.backend.inject(BackendCall::Remove, unreachable());
    }
    let confirmation = plan(&app, &id).await["confirmation"].clone();
    delete(&app, &id, &confirmation).await;
    let failing = advance_to(&app, &id, |product| product["failing"] != 0).await;
    assert_eq!(failing["state"], "deleting", "{failing}");
    let message = failing["failures"][0]["error"]["message"].as_str().unwrap();
    assert!(message.contains("no route to the host"), "{failing}");
    // It may be repeated while it goes on.
    assert_eq!(delete(&app, &id, &confirmation).await.0, 200);
    let deleted = advance_to(&app, &id, |product| product["state"] == "deleted").await;
    assert_eq!((&deleted["failing"], &deleted["engines"]), (&json!(0), &json!(0)), "{deleted}");
    app.assert_consistent().await;
}
