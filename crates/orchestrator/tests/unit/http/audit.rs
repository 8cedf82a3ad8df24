//! The pages of the audit log, and engines' logs.

use api::audit::{AuditList, AuditRow};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

use super::json_shape;
use crate::testing::{ADMIN_KEY, ProductClient, TestApp, summarize};

/// Creates a product whose audit log has six rows: register, provision ann, provision bob, stop ann, start ann,
/// destroy bob.
async fn product_with_history(app: &TestApp) -> ProductClient<'_> {
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    product.provision("bob").await;
    product.stop("ann").await;
    product.start("ann").await;
    product.delete("bob").await;
    product
}

async fn ids(product: &ProductClient<'_>, query: &str) -> Vec<i64> {
    let (status, audit) = product.get_path(&format!("/audit{query}")).await;
    assert_eq!(status, 200, "{query}: {audit}");
    audit["rows"].as_array().unwrap().iter().map(|row| row["id"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn every_row_has_its_fields_and_no_other() {
    let app = TestApp::new().await;
    let product = product_with_history(&app).await;
    let (_, audit) = product.get_path("/audit?event=provision&limit=1").await;
    let mut row = audit["rows"][0].clone();
    assert_eq!(row["hash"].as_str().unwrap().len(), 64);
    row["hash"] = json!("hash");
    assert_eq!(
        json_shape(&row),
        json!({
            "id": "integer", "at": "time", "product_id": "prod_", "engine_id": "eng_", "user_id": "bob",
            "event": "provision", "duration_ms": "integer",
            "detail": {"from": "null", "to": "running", "reason": "requested"}, "hash": "hash",
        })
    );
    let (_, audit) = product.get_path("/audit?event=register").await;
    let row = &audit["rows"][0];
    assert_eq!(
        (&row["engine_id"], &row["user_id"], &row["duration_ms"]),
        (&json!(null), &json!(null), &json!(null))
    );
    assert_eq!(row["id"], 1);
}

#[tokio::test]
async fn pages_and_filters_give_the_newest_first() {
    let app = TestApp::new().await;
    let product = product_with_history(&app).await;
    for (query, expected) in [
        ("", vec![6, 5, 4, 3, 2, 1]),
        ("?limit=2", vec![6, 5]),
        ("?limit=2&before=5", vec![4, 3]),
        ("?before=1", vec![]),
        ("?before=9223372036854775807", vec![6, 5, 4, 3, 2, 1]),
        ("?event=provision", vec![3, 2]),
        ("?event=provision&before=3", vec![2]),
        ("?event=crash", vec![]),
        ("?user_id=ann", vec![5, 4, 2]),
        ("?user_id=ann&limit=1&before=5", vec![4]),
        ("?user_id=ann&event=provision", vec![2]),
        ("?user_id=bob&event=stop", vec![]),
        ("?user_id=no%20body", vec![]),
    ] {
        assert_eq!(ids(&product, query).await, expected, "{query}");
    }
    let other = app.register_product("other", json!({})).await;
    assert_eq!(ids(&other, "").await, [1]);
    assert!(ids(&other, "?user_id=ann").await.is_empty());
}

#[tokio::test]
async fn queries_are_checked_and_named() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    for (query, named) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("before=0", "before"),
        ("before=x", "before"),
        ("event=nothing", "event"),
        ("event=", "event"),
        ("event=Provision", "event"),
        ("user_id=", "user_id"),
        ("user_id=a%00b", "user_id"),
    ] {
        let (status, answer) = product.get_path(&format!("/audit?{query}")).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("INVALID_REQUEST")), "{query}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(named), "{query}: {answer}");
    }
    for event in api::audit::AuditEvent::ALL {
        assert_eq!(product.get_path(&format!("/audit?event={}", event.as_str())).await.0, 200);
    }
}

/// The response alone suffices to verify the hash chain.
#[tokio::test]
async fn a_product_can_check_its_chain_itself() {
    use sha2::{Digest as _, Sha256};

    let app = TestApp::new().await;
    let product = product_with_history(&app).await;
    product.set_policy(json!({"engine_cpus": 0.1, "oauth_redirect_base_url": "https://a.example/x"})).await;
    let response = app.send_unread("GET", "/audit", &[("X-Platform-Key", &product.key)], "").await;
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let AuditList { mut rows } = serde_json::from_slice(&body).unwrap();
    rows.reverse();
    let mut previous_hash = String::new();
    for row in rows {
        let AuditRow { id, at, product_id, engine_id, user_id, event, duration_ms, detail, hash } = row;
        let fields = [
            Some("roundhouse audit 1".to_owned()),
            Some(previous_hash),
            Some(product_id.to_string()),
            Some(id.to_string()),
            Some(at.unix_ms().to_string()),
            engine_id.map(|id| id.to_string()),
            user_id.map(|id| id.to_string()),
            Some(event.into_string()),
            duration_ms.map(|ms| ms.to_string()),
            Some(detail.get().to_owned()),
        ];
        let mut hasher = Sha256::new();
        for field in fields {
            let length = field.as_ref().map_or(u64::MAX, |text| text.len() as u64);
            hasher.update(length.to_be_bytes());
            hasher.update(field.unwrap_or_default());
        }
        let expected = hex::encode(hasher.finalize());
        assert_eq!(hash, expected, "row {id}");
        previous_hash = hash;
    }
    assert_eq!(app.assert_hash_chain().await, 7);
}

#[tokio::test]
async fn no_key_is_in_the_ledger() {
    let app = TestApp::new().await;
    let product = product_with_history(&app).await;
    let (_, ann) = product.get("ann").await;
    let (_, audit) = product.get_path("/audit").await;
    let text = audit.to_string();
    for secret in [ann["api_key"].as_str().unwrap(), &product.key, ADMIN_KEY] {
        assert!(!text.contains(secret));
    }
}

#[tokio::test]
async fn logs_show_the_last_lines_whatever_the_state() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    let (_, logs) = product.get_path("/engines/ann/logs").await;
    assert_eq!(logs, json!({"lines": ["engine began", "the last words"]}));
    assert_eq!(product.get_path("/engines/ann/logs?tail=1").await.1, json!({"lines": ["the last words"]}));
    product.stop("ann").await;
    assert_eq!(product.get_path("/engines/ann/logs?tail=10000").await.0, 200);
    assert_eq!(summarize(product.get_path("/engines/bob/logs").await), "404 ENGINE_NOT_FOUND");
    for tail in ["0", "10001", "-1", "x", ""] {
        let answer = product.get_path(&format!("/engines/ann/logs?tail={tail}")).await;
        assert_eq!(summarize(answer.clone()), "400 INVALID_REQUEST", "{tail}");
        assert!(answer.1["error"]["message"].as_str().unwrap().contains("tail"), "{answer:?}");
    }
    // Users whose ids are names of routes have logs, too.
    product.provision("provision").await;
    assert_eq!(product.get_path("/engines/provision/logs").await.0, 200);
    let Value::Object(_) = product.get_path("/engines/logs").await.1 else { panic!("no error envelope") };
}
