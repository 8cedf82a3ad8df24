//! Data that another version stored. What this version cannot read is left alone, and everything else is served.

use std::time::Duration;

use serde_json::json;

use crate::testing::{ADMIN_KEY, BackendCall, ProductClient, TestApp, summarize};

const STEP: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_policy_field_of_a_later_version_holds_up_nobody() {
    let app = TestApp::new().await;
    let (shop, other) = (
        app.register_product("shop", json!({})).await.key,
        app.register_product("other", json!({})).await.key,
    );
    ProductClient { app: &app, key: shop.clone() }.provision("ann").await;
    app.execute(
        "UPDATE products SET policy = '{\"engine_disk_mb\":100,\"max_engines\":1}' WHERE slug = 'shop'",
    )
    .await;
    let app = app.kill_and_replace().await;
    app.start().await;
    let (shop, other) = (ProductClient { app: &app, key: shop }, ProductClient { app: &app, key: other });
    assert_eq!(summarize(shop.admit("ann", json!({})).await), "200 running");
    assert_eq!(summarize(shop.provision("bob").await), "429 QUOTA_EXCEEDED", "the limit that is known holds");
    assert_eq!(summarize(other.provision("bob").await), "200 running");
    let (_, _, listed) = app.send("GET", "/products", &[("X-Admin-Key", ADMIN_KEY)], "").await;
    assert_eq!(listed["products"][0]["policy"], json!({"max_engines": 1}));
    // When it is replaced, the stored policy is recorded in the audit log.
    shop.set_policy(json!({})).await;
    let (_, audit) = shop.get_path("/audit?event=policy_update").await;
    assert_eq!(audit["rows"][0]["detail"]["from"], json!({"engine_disk_mb": 100, "max_engines": 1}));
}

#[tokio::test]
async fn a_limit_that_cannot_be_read_suspends_its_product_alone() {
    let app = TestApp::new().await;
    let (shop, other) = (
        app.register_product("shop", json!({})).await.key,
        app.register_product("other", json!({})).await.key,
    );
    app.execute("UPDATE products SET policy = '{\"max_engines\":{\"soft\":9}}' WHERE slug = 'shop'").await;
    let app = app.kill_and_replace().await;
    app.start().await;
    let (shop, other) = (ProductClient { app: &app, key: shop }, ProductClient { app: &app, key: other });
    assert_eq!(summarize(shop.provision("ann").await), "403 POLICY_DENIED");
    assert_eq!(shop.get_path("/engines").await.0, 200);
    assert_eq!(summarize(other.provision("ann").await), "200 running");
    // The operator corrects it.
    shop.set_policy(json!({"max_engines": 9})).await;
    assert_eq!(summarize(shop.provision("ann").await), "200 running");
}

#[tokio::test]
async fn regression_o22_rows_that_cannot_be_read_are_left_alone_and_the_others_served() {
    for broken in [
        "status = 'hibernated'",
        "status = 'running', claim_kind = 'migrate'",
        "engine_version = 'svc-engine@sha256:1'",
        "key_hash = 'blake3:1'",
    ] {
        let app = TestApp::new().await;
        let key = app.register_product("demo", json!({})).await.key;
        let product = ProductClient { app: &app, key: key.clone() };
        for user in ["ann", "bob", "cid"] {
            product.provision(user).await;
        }
        let before = "SELECT CAST(status AS TEXT), CAST(engine_version AS TEXT), CAST(key_hash AS TEXT) \
                      FROM engines WHERE user_id = 'ann'";
        let original = app.rows(before).await.remove(0);
        let running = app.backend.running();
        app.execute(format!("UPDATE engines SET {broken} WHERE user_id = 'ann'")).await;
        let app = app.kill_and_replace().await;
        app.start().await;
        let product = ProductClient { app: &app, key: key.clone() };
        assert_eq!(product.get("ann").await.0, 500, "{broken}");
        assert_eq!(summarize(product.admit("bob", json!({})).await), "200 running", "{broken}");
        let (_, listed) = product.get_path("/engines").await;
        assert_eq!(listed["engines"].as_array().unwrap().len(), 2, "{broken}");
        assert_eq!(product.get_path("/status").await.0, 200, "{broken}");
        // It is no orphan: reconciliation leaves it alone, and supervises the others.
        let lists = app.backend.count(BackendCall::List);
        app.advance_until(STEP, async || app.backend.count(BackendCall::List) >= lists + 3).await;
        assert_eq!(app.backend.running(), running, "{broken}");
        let cid = product.get("cid").await.1["engine_id"].as_str().unwrap().parse().unwrap();
        app.backend.crash_silently(cid);
        app.advance_until(STEP, async || summarize(product.get("cid").await) == "200 failed").await;
        // A version that can read the row continues with it.
        let restore = format!(
            "UPDATE engines SET status = '{}', engine_version = '{}', key_hash = '{}', claim_kind = NULL \
             WHERE user_id = 'ann'",
            original[0], original[1], original[2]
        );
        app.execute(restore).await;
        let app = app.kill_and_replace().await;
        app.start().await;
        assert_eq!(
            summarize(ProductClient { app: &app, key }.admit("ann", json!({})).await),
            "200 running",
            "{broken}"
        );
    }
}

#[tokio::test]
async fn an_event_without_a_name_here_is_shown_as_it_was_written() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    // Inserted as by a later version; existing rows are append-only.
    app.execute(
        "INSERT INTO audit_log (product_id, id, at, engine_id, user_id, event, duration_ms, detail, hash) \
         SELECT product_id, 2, at, NULL, NULL, 'migrate', NULL, '{}', hash FROM audit_log",
    )
    .await;
    app.execute("UPDATE products SET audit_seq = 2").await;
    let (status, audit) = product.get_path("/audit").await;
    assert_eq!((status, &audit["rows"][0]["event"]), (200, &json!("migrate")), "{audit}");
}
