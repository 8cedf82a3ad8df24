//! Products: registration, listing and policies.

use std::time::Duration;

use futures::future::join_all;
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

use super::json_shape;
use crate::testing::{ADMIN_KEY, TestApp, summarize};

async fn list(app: &TestApp, query: &str) -> Value {
    let (status, _, list) =
        app.send("GET", &format!("/products{query}"), &[("X-Admin-Key", ADMIN_KEY)], "").await;
    assert_eq!(status, 200, "{list}");
    list
}

#[tokio::test]
async fn a_replaced_policy_is_answered_listed_and_in_the_ledger() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"max_engines": 3})).await;
    let policy = json!({
        "rate_limit_rpm": 60, "suspended": false, "allowed_engine_versions": ["^1.2"],
        "idle_sleep_threshold_s": 0.5, "oauth_redirect_base_url": "https://app.example.com",
        "engine_memory_mb": 512, "engine_cpus": 1.5, "engine_pids": 64,
    });
    let listed = list(&app, "").await;
    assert_eq!(
        json_shape(&listed["products"][0]),
        json!({
            "product_id": "prod_", "slug": "demo", "display_name": "A product",
            "policy": {"max_engines": "integer"}, "created_at": "time", "updated_at": "null",
            "state": "active",
        })
    );
    app.clock.advance(Duration::from_millis(5));
    let (status, answer) = app.replace_policy(&product.product_id().await, &policy).await;
    assert_eq!((status, &answer["policy"]), (200, &policy));
    let mut without_policy = answer.clone();
    without_policy["policy"] = json!({});
    assert_eq!(
        json_shape(&without_policy),
        json!({"product_id": "prod_", "slug": "demo", "display_name": "A product", "policy": {},
            "updated_at": "time"})
    );
    let listed = list(&app, "").await;
    let entry = &listed["products"][0];
    assert_eq!((&entry["policy"], &entry["updated_at"]), (&policy, &answer["updated_at"]));
    assert_ne!(entry["created_at"], entry["updated_at"]);
    let (_, audit) = product.get_path("/audit?event=policy_update").await;
    assert_eq!(audit["rows"][0]["detail"], json!({"from": {"max_engines": 3}, "to": policy}));
    assert_eq!(audit["rows"][0]["at"], answer["updated_at"]);
    assert_eq!(app.assert_hash_chain().await, 2);
    // The new policy replaces the old one as a whole.
    product.set_policy(json!({})).await;
    assert_eq!(list(&app, "").await["products"][0]["policy"], json!({}));
    let app = app.kill_and_replace().await;
    app.start().await;
    assert_eq!(list(&app, "").await["products"][0]["policy"], json!({}));
}

#[tokio::test]
async fn a_product_that_is_not_there_is_404_and_what_is_no_policy_400() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"max_engines": 3})).await;
    for id in ["prod_00000000000000000000000000000000", "demo", "register", "prod_", "eng_1", "%20"] {
        let answer = app.replace_policy(id, &json!({})).await;
        assert_eq!(summarize(answer), "404 PRODUCT_NOT_FOUND", "{id}");
    }
    let path = format!("/products/{}/policy", product.product_id().await);
    for (body, named) in [
        ("", "policy"),
        ("{}", "policy"),
        (r#"{"policy": null}"#, "policy"),
        (r#"{"policy": []}"#, "policy"),
        (r#"{"policy": 7}"#, "policy"),
        (r#"{"max_engines": 3}"#, "policy"),
        (r#"{"policy": {"max_engine": 3}}"#, "max_engine"),
        (r#"{"policy": {"max_engines": -1}}"#, "policy.max_engines"),
        (r#"{"policy": {"suspended": "yes"}}"#, "policy.suspended"),
        (r#"{"policy": {"allowed_engine_versions": ["^1", "latest"]}}"#, "policy.allowed_engine_versions[1]"),
        (r#"{"policy": {"idle_sleep_threshold_s": -1}}"#, "policy.idle_sleep_threshold_s"),
        (r#"{"policy": {"oauth_redirect_base_url": "ftp://x"}}"#, "policy.oauth_redirect_base_url"),
        (r#"{"policy": {"engine_memory_mb": 63}}"#, "policy.engine_memory_mb"),
        (r#"{"policy": {"engine_cpus": 0}}"#, "policy.engine_cpus"),
        (r#"{"policy": {"engine_pids": 15}}"#, "policy.engine_pids"),
    ] {
        let (status, _, answer) = app.send("PUT", &path, &[("X-Admin-Key", ADMIN_KEY)], body).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("INVALID_REQUEST")), "{body}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(named), "{body}: {message}");
    }
    let (status, _, answer) =
        app.send("PUT", "/products/%zz/policy", &[("X-Admin-Key", ADMIN_KEY)], r#"{"policy": {}}"#).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("INVALID_REQUEST")));
    assert_eq!(list(&app, "").await["products"][0]["policy"], json!({"max_engines": 3}));
    assert_eq!(app.assert_hash_chain().await, 1);
}

#[tokio::test]
async fn products_are_listed_by_age_page_by_page_without_keys() {
    let app = TestApp::new().await;
    let mut keys = Vec::new();
    for slug in ["c", "a", "b"] {
        keys.push(app.register_product(slug, json!({})).await.key);
    }
    for (query, slugs) in [("", "c a b"), ("?limit=2", "c a"), ("?limit=1&offset=1", "a"), ("?offset=3", "")]
    {
        let list = list(&app, query).await;
        let listed = list["products"].as_array().unwrap().iter();
        let listed: Vec<_> = listed.map(|product| product["slug"].as_str().unwrap()).collect();
        assert_eq!((listed.join(" ").as_str(), &list["total"]), (slugs, &json!(3)), "{query}");
        assert!(keys.iter().all(|key| !list.to_string().contains(key)));
    }
    for query in ["limit=0", "limit=1001", "limit=x", "offset=-1"] {
        let (status, _, answer) =
            app.send("GET", &format!("/products?{query}"), &[("X-Admin-Key", ADMIN_KEY)], "").await;
        assert_eq!(status, 400, "{query}: {answer}");
    }
}

#[tokio::test]
async fn the_very_next_admit_is_judged_by_the_new_rate() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"rate_limit_rpm": 100})).await;
    for _ in 0..3 {
        assert_eq!(summarize(product.admit("ann", json!({})).await), "200 engine_not_found");
    }
    product.set_policy(json!({"rate_limit_rpm": 3})).await;
    assert_eq!(summarize(product.admit("ann", json!({})).await), "429 RATE_LIMITED");
    product.set_policy(json!({"rate_limit_rpm": 4})).await;
    assert_eq!(summarize(product.admit("ann", json!({})).await), "200 engine_not_found");
    assert_eq!(summarize(product.admit("ann", json!({})).await), "429 RATE_LIMITED");
    product.set_policy(json!({})).await;
    assert_eq!(summarize(product.admit("ann", json!({})).await), "200 engine_not_found");
}

#[tokio::test]
async fn engines_above_a_lowered_quota_stay_and_no_more_come() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    for user in ["ann", "bob"] {
        product.provision(user).await;
    }
    product.set_policy(json!({"max_engines": 1})).await;
    assert_eq!(product.get_path("/engines?status=running").await.1["total"], 2);
    assert_eq!(summarize(product.provision("eve").await), "429 QUOTA_EXCEEDED");
    product.delete("ann").await;
    assert_eq!(summarize(product.provision("eve").await), "429 QUOTA_EXCEEDED");
    product.set_policy(json!({"max_engines": 2})).await;
    assert_eq!(summarize(product.provision("eve").await), "200 running");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_policies_at_once_the_last_in_the_ledger_is_in_force() {
    let app = TestApp::new().await;
    for round in 0..5 {
        let product = app.register_product(&format!("p{round}"), json!({})).await;
        let writes = (0..20).map(|number| {
            let product = product.clone();
            async move {
                product.set_policy(json!({"suspended": number % 2 == 0, "max_engines": number})).await;
                // A request that reloads the product must not restore an old policy.
                assert_eq!(product.get_path("/engines").await.0, 200);
            }
        });
        join_all(writes).await;
        let (_, audit) = product.get_path("/audit?event=policy_update&limit=1").await;
        let suspended = audit["rows"][0]["detail"]["to"]["suspended"].as_bool().unwrap();
        let answer = summarize(product.stop("nobody").await);
        assert_eq!(answer, if suspended { "403 POLICY_DENIED" } else { "404 ENGINE_NOT_FOUND" });
    }
}

#[tokio::test]
async fn a_caller_who_hangs_up_leaves_no_policy_half_replaced() {
    let app = TestApp::new().await;
    let mut replaced = 0;
    for round in 0..20 {
        let product = app.register_product(&format!("p{round}"), json!({})).await;
        let product_id = product.product_id().await;
        {
            let suspended = json!({"suspended": true});
            let replacing = app.replace_policy(&product_id, &suspended);
            tokio::pin!(replacing);
            for _ in 0..round {
                if futures::poll!(replacing.as_mut()).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        // Whether or not it was carried out, a later request comes after it.
        product.set_policy(json!({"max_engines": 1})).await;
        assert_eq!(summarize(product.stop("nobody").await), "404 ENGINE_NOT_FOUND", "round {round}");
        let (_, audit) = product.get_path("/audit?event=policy_update&limit=1").await;
        let row = &audit["rows"][0];
        assert_eq!(row["detail"]["to"], json!({"max_engines": 1}), "round {round}");
        let was_replaced = row["detail"]["from"] != json!({});
        replaced += usize::from(was_replaced);
    }
    assert!((1..20).contains(&replaced), "{replaced}: the race always had the same outcome");
}

#[tokio::test]
async fn a_registration_with_a_key_of_the_callers_own_can_be_repeated() {
    let app = TestApp::new().await;
    let key = api::PlatformKey::generate().unwrap().expose().to_owned();
    let register = async |slug: &str, key: &str| {
        let body = json!({"slug": slug, "display_name": "Shop", "platform_api_key": key}).to_string();
        let (status, _, answer) =
            app.send("POST", "/products/register", &[("X-Admin-Key", ADMIN_KEY)], &body).await;
        (status, answer)
    };
    let (status, first) = register("shop", &key).await;
    assert_eq!((status, &first["platform_api_key"]), (200, &json!(key)));
    assert_eq!(register("shop", &key).await, (200, first));
    let other = api::PlatformKey::generate().unwrap().expose().to_owned();
    assert_eq!(summarize(register("shop", &other).await), "409 PRODUCT_SLUG_EXISTS");
    for weak in ["", "pk-svc-", "pk-svc-short", &key.replace("pk-", "sk-"), &format!("{key}+")] {
        let (status, answer) = register("other", weak).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains("platform_api_key"), "{weak}: {message}");
    }
    let product = crate::testing::ProductClient { app: &app, key };
    assert_eq!(summarize(product.provision("ann").await), "200 running");
    assert_eq!(app.audit_lines().await.len(), 1, "registered once");
}

#[tokio::test]
async fn a_caller_who_hangs_up_leaves_no_slug_that_nobody_has_the_key_of() {
    let app = TestApp::new().await;
    let key = api::PlatformKey::generate().unwrap().expose().to_owned();
    let body = json!({"slug": "shop", "display_name": "Shop", "platform_api_key": key}).to_string();
    let admin = [("X-Admin-Key", ADMIN_KEY)];
    for polls in 0..20 {
        let mut registering = Box::pin(app.send("POST", "/products/register", &admin, &body));
        for _ in 0..polls {
            if futures::poll!(&mut registering).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(app.send("POST", "/products/register", &admin, &body).await.0, 200);
    let product = crate::testing::ProductClient { app: &app, key };
    assert_eq!(summarize(product.provision("ann").await), "200 running");
}
