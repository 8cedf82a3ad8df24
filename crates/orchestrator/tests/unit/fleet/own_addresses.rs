//! Engines with addresses of their own: no port is leased for them, and where they are may be unknown for a while.

use std::time::Duration;

use backend::BackendError;
use serde_json::json;

use crate::testing::{BackendCall, Fault, TestApp, summarize, use_own_addresses};

const SECOND: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[tokio::test]
async fn they_lease_no_ports_and_have_urls_that_stay() {
    let _own_addresses = use_own_addresses();
    let app = TestApp::with_ports(9_001, 9_001).await;
    let product = app.register_product("demo", json!({})).await;
    let mut urls = Vec::new();
    for user in ["ann", "bob", "eve"] {
        let (status, engine) = product.provision(user).await;
        let url = format!("http://{}.engines:8000", engine["engine_id"].as_str().unwrap());
        assert_eq!((status, engine["url"].as_str()), (200, Some(url.as_str())));
        assert_eq!(product.admit(user, json!({})).await.1["engine"]["url"], url);
        urls.push(json!(url));
    }
    assert_eq!(product.stop("ann").await.0, 200);
    let (_, listed) = product.get_path("/engines").await;
    let listed: Vec<_> = listed["engines"].as_array().unwrap().iter().map(|engine| &engine["url"]).collect();
    assert_eq!(listed, urls.iter().collect::<Vec<_>>());
    assert_eq!(product.start("ann").await.1["url"], urls[0]);
    let version = json!({"engine_version": "default"});
    assert_eq!(product.call("PUT", "/engines/ann/version", &version).await.1["url"], urls[0]);
    assert!(app.rows("SELECT engine_id FROM engines WHERE port IS NOT NULL").await.is_empty());
    app.assert_consistent().await;
}

#[tokio::test]
async fn one_that_boots_is_waited_for_until_it_has_an_address() {
    let _own_addresses = use_own_addresses();
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.withhold_addresses();
    let (status, answer) = app.while_time_passes(SECOND, product.provision("ann")).await;
    assert_eq!(summarize((status, answer.clone())), "504 BOOT_TIMEOUT");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("it has no address yet"), "{message}");
    assert_eq!(summarize(product.get("ann").await), "404 ENGINE_NOT_FOUND");
    let scheduled = async {
        app.wait_until(|| !app.backend.running().is_empty()).await;
        app.backend.give_addresses();
    };
    let provisioned = app.while_time_passes(POLL_INTERVAL, product.provision("ann"));
    let (provisioned, ()) = tokio::join!(provisioned, scheduled);
    assert_eq!(summarize(provisioned), "200 running");
    app.assert_consistent().await;
}

#[tokio::test]
async fn one_whose_address_is_unknown_is_like_one_that_cannot_be_reached() {
    let _own_addresses = use_own_addresses();
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    assert_eq!(product.provision("ann").await.0, 200);
    app.backend.withhold_addresses();
    let (status, answer) = product.get_path("/engines/ann/proxy/tasks").await;
    assert_eq!(
        (status, &answer["error"]["code"], &answer["error"]["message"]),
        (502, &json!("BACKEND_ERROR"), &json!("the engine did not answer this request"))
    );
    app.advance_until(SECOND, async || summarize(product.get("ann").await) == "200 failed").await;
    let crash = app.audit_lines().await.pop().unwrap();
    assert!(crash.starts_with("crash running→failed it has no address yet"), "{crash}");
    app.backend.give_addresses();
    app.advance_until(SECOND, async || summarize(product.get("ann").await) == "200 running").await;
}

#[tokio::test]
async fn a_port_that_is_taken_is_a_failure_of_their_backend() {
    let _own_addresses = use_own_addresses();
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.inject(BackendCall::Launch, Fault::Error(BackendError::PortTaken(8_000)));
    assert_eq!(summarize(product.provision("ann").await), "502 BACKEND_ERROR");
    assert_eq!(app.backend.count(BackendCall::Launch), 1);
    assert_eq!(summarize(product.provision("ann").await), "200 running");
}
