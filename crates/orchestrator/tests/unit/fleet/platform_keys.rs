//! Platform keys are rotated with an overlap: what is revoked or expired is refused at once, also by the next
//! orchestrator.

use std::time::Duration;

use serde_json::{Value, json};

use crate::testing::{ADMIN_KEY, ProductClient, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);

async fn call(app: &TestApp, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (status, _, answer) = app.send(method, path, &[("X-Admin-Key", ADMIN_KEY)], &body).await;
    (status, answer)
}

async fn keys(app: &TestApp, product_id: &str) -> Vec<Value> {
    let (status, answer) = call(app, "GET", &format!("/products/{product_id}/keys"), &Value::Null).await;
    assert_eq!(status, 200, "{answer}");
    answer["keys"].as_array().unwrap().clone()
}

/// Makes another key; returns it and its id.
async fn rotate(app: &TestApp, product_id: &str, body: Value) -> (String, String) {
    let (status, answer) = call(app, "POST", &format!("/products/{product_id}/keys"), &body).await;
    assert_eq!((status, &answer["registration"]), (200, &json!(false)), "{answer}");
    let text = |name: &str| answer[name].as_str().unwrap().to_owned();
    (text("platform_api_key"), text("key_id"))
}

async fn revoke(app: &TestApp, product_id: &str, key_id: &str) -> (u16, Value) {
    call(app, "DELETE", &format!("/products/{product_id}/keys/{key_id}"), &Value::Null).await
}

/// Which of the keys work.
async fn work<const N: usize>(app: &TestApp, keys: [&str; N]) -> [bool; N] {
    let mut works = [false; N];
    for (works, key) in works.iter_mut().zip(keys) {
        let product = ProductClient { app, key: key.to_owned() };
        let answer = product.get_path("/status").await;
        assert!([200, 401].contains(&answer.0), "{answer:?}");
        *works = answer.0 == 200;
    }
    works
}

#[tokio::test]
async fn old_keys_work_beside_the_new_one_until_they_are_revoked() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let other = app.register_product("other", json!({})).await;
    let id = product.product_id().await;
    let first = keys(&app, &id).await;
    assert_eq!((first.len(), &first[0]["registration"]), (1, &json!(true)));
    assert_eq!(first[0]["expires_at"], Value::Null);
    let (second, second_id) = rotate(&app, &id, json!({})).await;
    assert_eq!(work(&app, [&product.key, &second, &other.key]).await, [true, true, true]);
    assert_eq!(ProductClient { app: &app, key: second.clone() }.product_id().await, id);
    let listed = keys(&app, &id).await;
    assert_eq!((listed.len(), &listed[0], &listed[1]["key_id"]), (2, &first[0], &json!(second_id)));

    let registration_id = first[0]["key_id"].as_str().unwrap();
    let other_id = other.product_id().await;
    assert_eq!(summarize(revoke(&app, &other_id, registration_id).await), "404 KEY_NOT_FOUND");
    let (status, revoked) = revoke(&app, &id, registration_id).await;
    assert_eq!((status, &revoked["key_id"]), (200, &json!(registration_id)), "{revoked}");
    assert_eq!(work(&app, [&product.key, &second, &other.key]).await, [false, true, true]);
    assert_eq!(summarize(revoke(&app, &id, registration_id).await), "404 KEY_NOT_FOUND");
    assert_eq!(keys(&app, &id).await, listed[1..]);
    // A change of the policy brings nothing back.
    ProductClient { app: &app, key: second.clone() }.set_policy(json!({"max_engines": 3})).await;
    assert_eq!(work(&app, [&product.key, &second]).await, [false, true]);

    let (key, other_key) = (product.key.clone(), other.key.clone());
    let app = app.kill_and_replace().await;
    app.start().await;
    assert_eq!(work(&app, [&key, &second, &other_key]).await, [false, true, true]);
    // The last key, too: then only the operator acts for the product.
    assert_eq!(revoke(&app, &id, &second_id).await.0, 200);
    assert_eq!(work(&app, [&key, &second, &other_key]).await, [false, false, true]);
    assert_eq!(keys(&app, &id).await, [] as [Value; 0]);
    let (third, _) = rotate(&app, &id, json!({})).await;
    assert_eq!(work(&app, [&key, &second, &third]).await, [false, false, true]);

    let dump = app.dump().await;
    for key in [&key, &second, &third] {
        assert!(!dump.contains(key.as_str()), "a key is stored");
    }
    let rows = app.rows("SELECT event, detail FROM audit_log WHERE event LIKE '%_key' ORDER BY at, id").await;
    let rows: Vec<_> =
        rows.iter().map(|row| (row[0].as_str(), row[1].contains(r#""actor":"admin""#))).collect();
    let (created, revoked) = (("create_key", true), ("revoke_key", true));
    assert_eq!(rows, [created, revoked, revoked, created]);
    app.assert_hash_chain().await;
}

#[tokio::test]
async fn old_keys_expire_at_the_time_that_the_rotation_names() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let id = product.product_id().await;
    let (second, _) = rotate(&app, &id, json!({"old_keys_expire_in_s": 60})).await;
    // A later rotation does not prolong it.
    let (third, _) = rotate(&app, &id, json!({"old_keys_expire_in_s": 120})).await;
    app.while_time_passes(SECOND, app.sleep(SECOND * 59)).await;
    assert_eq!(work(&app, [&product.key, &second, &third]).await, [true, true, true]);
    let key = product.key.clone();
    let app = app.kill_and_replace().await;
    app.start().await;
    app.while_time_passes(SECOND, app.sleep(SECOND * 2)).await;
    assert_eq!(work(&app, [&key, &second, &third]).await, [false, true, true]);
    assert_eq!(keys(&app, &id).await.len(), 2);
    app.while_time_passes(SECOND, app.sleep(SECOND * 60)).await;
    assert_eq!(work(&app, [&key, &second, &third]).await, [false, false, true]);
    // At once. A clock that is set back brings none back afterwards.
    let (fourth, _) = rotate(&app, &id, json!({"old_keys_expire_in_s": 0})).await;
    assert_eq!(work(&app, [&key, &second, &third, &fourth]).await, [false, false, false, true]);
    app.shift_wall(-3_600_000);
    assert_eq!(work(&app, [&key, &second, &third, &fourth]).await, [false, false, false, true]);
    let app = app.kill_and_replace().await;
    app.start().await;
    assert_eq!(work(&app, [&key, &second, &third, &fourth]).await, [false, false, false, true]);
}

#[tokio::test]
async fn a_product_has_at_most_five_keys_and_bad_requests_change_nothing() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let id = product.product_id().await;
    let path = format!("/products/{id}/keys");
    let mut last = String::new();
    for _ in 0..4 {
        last = rotate(&app, &id, json!({})).await.1;
    }
    assert_eq!(summarize(call(&app, "POST", &path, &json!({})).await), "429 KEY_LIMIT");
    for bad in [
        json!({"old_keys_expire_in_s": -1}),
        json!({"old_keys_expire_in_s": 31_536_001}),
        json!({"old_keys_expire_in_s": "soon"}),
        json!({"expires_in_s": 60}),
    ] {
        assert_eq!(summarize(call(&app, "POST", &path, &bad).await), "400 INVALID_REQUEST", "{bad}");
    }
    assert_eq!(keys(&app, &id).await.len(), 5);
    // Those that are about to expire count until they have.
    let expiring = json!({"old_keys_expire_in_s": 60});
    assert_eq!(summarize(call(&app, "POST", &path, &expiring).await), "429 KEY_LIMIT");
    assert_eq!(keys(&app, &id).await.iter().filter(|key| !key["expires_at"].is_null()).count(), 0);
    assert_eq!(revoke(&app, &id, &last).await.0, 200);
    rotate(&app, &id, json!({})).await;
    let unknown = api::ProductId::new();
    for (method, path) in [
        ("GET", format!("/products/{unknown}/keys")),
        ("POST", format!("/products/{unknown}/keys")),
        ("DELETE", format!("/products/{unknown}/keys/{last}")),
        ("GET", "/products/nobody/keys".to_owned()),
    ] {
        let body = if method == "POST" { json!({}) } else { Value::Null };
        assert_eq!(summarize(call(&app, method, &path, &body).await), "404 PRODUCT_NOT_FOUND", "{path}");
    }
    assert_eq!(summarize(revoke(&app, &id, "key_x").await), "404 KEY_NOT_FOUND");
    // Nobody registers with the key of another product. The product may repeat its registration with any of its own.
    let last = keys(&app, &id).await.pop().unwrap();
    assert_eq!(revoke(&app, &id, last["key_id"].as_str().unwrap()).await.0, 200);
    let (key, _) = rotate(&app, &id, json!({})).await;
    let register = |slug: &str| json!({"slug": slug, "display_name": "Other", "platform_api_key": key});
    let taken = call(&app, "POST", "/products/register", &register("other")).await;
    assert_eq!(summarize(taken), "409 PRODUCT_SLUG_EXISTS");
    let (status, repeated) = call(&app, "POST", "/products/register", &register("demo")).await;
    assert_eq!((status, &repeated["product_id"]), (200, &json!(id)), "{repeated}");
    assert_eq!(ProductClient { app: &app, key: key.clone() }.product_id().await, id);
    // A product manages no keys itself.
    assert_eq!(summarize(product.get_path(&path).await), "401 INVALID_ADMIN_KEY");
}
