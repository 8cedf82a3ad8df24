//! Requests that policies forbid.

use pretty_assertions::assert_eq;
use serde_json::{Value, json};

use super::guarded_routes;
use crate::config::VERSION;
use crate::testing::{TestApp, summarize};

#[tokio::test]
async fn a_suspended_product_may_only_look() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let other = app.register_product("other", json!({})).await;
    product.provision("ann").await;
    product.set_policy(json!({"suspended": true})).await;
    let mut refused = 0;
    for (method, path, key) in guarded_routes() {
        if key != "INVALID_PLATFORM_KEY" || path == "/events" {
            continue;
        }
        if method == "GET" {
            let expected = match &path {
                // The simulated engines do not answer proxied requests.
                path if path.contains("/proxy/") => 502,
                // It has no webhook.
                path if path.contains("{webhook_id}") => 404,
                _ => 200,
            };
            assert_eq!(product.get_path(&path).await.0, expected, "{path}");
            continue;
        }
        refused += 1;
        // The refusal comes after authentication, and before the path, the body and the engine are examined.
        for path in [path.clone(), path.replace("ann", "nobody"), path.replace("ann", "%zz")] {
            for body in ["", "{", &json!({"user_id": "bob"}).to_string()] {
                let (status, _, answer) =
                    app.send(&method, &path, &[("X-Platform-Key", &product.key)], body).await;
                assert_eq!(summarize((status, answer)), "403 POLICY_DENIED", "{method} {path} {body}");
            }
        }
        assert_eq!(app.send(&method, &path, &[("X-Platform-Key", "pk-svc-")], "").await.0, 401);
    }
    assert!(refused >= 5, "{refused}");
    assert_eq!(product.get_path("/status").await.1["by_status"], json!({"running": 1}));
    // A HEAD is a read, too.
    let head = app.send_unread("HEAD", "/engines", &[("X-Platform-Key", &product.key)], "").await;
    assert_eq!(head.status(), 200);
    assert_eq!(summarize(other.provision("ann").await), "200 running");
    // The suspension does not apply to the operator's requests.
    product.set_policy(json!({"suspended": false})).await;
    assert_eq!(summarize(product.stop("ann").await), "200 stopped");
    let (_, audit) = product.get_path("/audit").await;
    let events: Vec<_> =
        audit["rows"].as_array().unwrap().iter().map(|row| row["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["stop", "policy_update", "policy_update", "provision", "register"]);
}

#[tokio::test]
async fn a_provision_outside_the_allowed_versions_is_refused() {
    let app = TestApp::new().await;
    let image = format!("svc-engine:{VERSION}");
    let product = app.register_product("demo", json!({"allowed_engine_versions": ["^7.1"]})).await;
    let provision = async |user: &str, version: Value| {
        let body = json!({"user_id": user, "engine_version": version});
        summarize(product.call("POST", "/engines/provision", &body).await)
    };
    // Requested and default versions are both checked.
    assert_eq!(provision("ann", json!(image)).await, "403 POLICY_DENIED");
    assert_eq!(provision("ann", Value::Null).await, "403 POLICY_DENIED");
    let admit = json!({"auto_provision": true});
    assert_eq!(summarize(product.admit("ann", admit.clone()).await), "403 POLICY_DENIED");
    // Nothing is provisioned here, so nothing is refused.
    assert_eq!(summarize(product.admit("ann", json!({})).await), "200 engine_not_found");
    // An allowed version reaches the backend, which has no such image.
    assert_eq!(provision("ann", json!("svc-engine:7.2.0")).await, "502 BACKEND_ERROR");
    assert_eq!(product.get_path("/engines").await.1["total"], 0);

    product.set_policy(json!({"allowed_engine_versions": ["^7.1", image]})).await;
    assert_eq!(summarize(product.admit("ann", admit.clone()).await), "200 running");
    product.set_policy(json!({"allowed_engine_versions": []})).await;
    // An existing engine is kept and admitted.
    assert_eq!(summarize(product.admit("ann", admit.clone()).await), "200 running");
    assert_eq!(summarize(product.stop("ann").await), "200 stopped");
    assert_eq!(summarize(product.admit("ann", admit.clone()).await), "200 engine_stopped");
    assert_eq!(summarize(product.admit("bob", admit).await), "403 POLICY_DENIED");
    let (_, refused) = product.provision("bob").await;
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains(&image) && message.contains("allowed_engine_versions"), "{message}");
}

#[tokio::test]
async fn who_waits_for_an_engines_end_is_refused_the_next_one() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    product.set_policy(json!({"allowed_engine_versions": []})).await;
    product.delete("ann").await;
    assert_eq!(summarize(product.admit("ann", json!({"auto_provision": true})).await), "403 POLICY_DENIED");
}

/// Such an image would receive the secrets that the operator passes to engines.
#[tokio::test]
async fn an_image_of_another_name_needs_a_policy_that_lists_it() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let provision = async |user: &str| {
        let body = json!({"user_id": user, "engine_version": "registry.example/other:0.1.0"});
        summarize(product.call("POST", "/engines/provision", &body).await)
    };
    assert_eq!(provision("ann").await, "403 POLICY_DENIED");
    product.provision("bob").await;
    let version = json!({"engine_version": "registry.example/other:0.1.0"});
    assert_eq!(summarize(product.call("PUT", "/engines/bob/version", &version).await), "403 POLICY_DENIED");
    product.set_policy(json!({"allowed_engine_versions": ["registry.example/other:0.1.0"]})).await;
    assert_eq!(provision("ann").await, "200 running");
}
