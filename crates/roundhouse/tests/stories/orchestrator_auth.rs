//! Story 4: authentication of calls to the orchestrator, and the headers of all its responses.

use api::{EngineKey, PlatformKey};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::http::{client, send, send_raw};
use crate::support::{Deployment, Fleet, RunningUp};

/// All endpoints of a product.
const PRODUCT_CALLS: [&str; 7] = [
    "GET /engines",
    "POST /engines/provision",
    "GET /engines/ada",
    "DELETE /engines/ada",
    "POST /engines/ada/admit",
    "POST /engines/ada/start",
    "POST /engines/ada/stop",
];

/// Calls `head` with each wrong key and each body, and asserts that the key is checked before anything else.
async fn assert_key_required(up: &RunningUp, head: &str, header: &str, wrong: &[&str], code: &str) {
    let too_long = vec![b' '; 2 << 20];
    let bodies: [&[u8]; 4] = [b"", b"{", b"{\"user_id\": 7}", &too_long];
    for body in bodies {
        send_raw(&up.base, head, &[], body).await.assert_error(401, code);
    }
    for key in wrong {
        for body in bodies {
            let answer = send_raw(&up.base, head, &[(header, key)], body).await;
            answer.assert_error(401, code);
            assert!(key.is_empty() || !answer.body.to_string().contains(key), "the answer shows the key");
        }
    }
}

#[tokio::test]
async fn without_the_right_key_every_call_is_refused_before_anything_else() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    let (platform, admin) = (product.key.as_str(), up.admin_key());
    let unknown = PlatformKey::generate().unwrap();
    let longer = format!("{platform}x");
    let shorter = &platform[..platform.len() - 1];
    let wrong = [unknown.expose(), &longer, shorter, &admin, &engine.key, "", "pk-svc-"];
    for head in PRODUCT_CALLS {
        assert_key_required(&up, head, "x-platform-key", &wrong, "INVALID_PLATFORM_KEY").await;
    }
    let longer = format!("{admin}x");
    let wrong = [platform, &longer, &admin[..admin.len() - 1], "", "\u{e9}"];
    assert_key_required(&up, "POST /products/register", "x-admin-key", &wrong, "INVALID_ADMIN_KEY").await;
    // A valid key in another header is refused.
    let answer = send_raw(&up.base, "GET /engines", &[("x-admin-key", &admin)], b"").await;
    answer.assert_error(401, "INVALID_PLATFORM_KEY");
    let key = EngineKey::generate().unwrap();
    let answer = send_raw(&up.base, "GET /engines", &[("x-engine-key", key.expose())], b"").await;
    answer.assert_error(401, "INVALID_PLATFORM_KEY");

    assert_eq!(product.status("ada").await, "running", "nothing was changed");
    assert_eq!(product.list("").await.1, 1);
}

#[tokio::test]
async fn keys_that_are_refused_are_logged_with_whose_they_are_and_fill_no_log() {
    let deployment = Deployment::process_and_sqlite();
    let orchestrator = deployment.start().await;
    for number in 0..200 {
        let (key, base) = (format!("pk-svc-{number}"), &orchestrator.base);
        send_raw(base, "GET /engines", &[("x-platform-key", &key)], b"")
            .await
            .assert_error(401, "INVALID_PLATFORM_KEY");
    }
    let ended = orchestrator.signal_and_wait(Signal::TERM).await;
    let lines: Vec<_> = ended.output.lines().filter(|line| line.contains("A key was refused.")).collect();
    // The limit is per 10 s, and more than one such period may have passed.
    assert!((1..=10).contains(&lines.len()), "{} lines", lines.len());
    for part in ["client_address=127.0.0.1", "x-platform-key", "request_id="] {
        assert!(lines[0].contains(part), "{part} is not in {}", lines[0]);
    }
    assert!(!ended.output.contains("pk-svc-"), "the log shows a key");
}

#[tokio::test]
async fn the_key_is_judged_before_user_ids_and_queries() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let long = format!("GET /engines/{}", "x".repeat(257));
    for head in ["GET /engines?limit=0", "GET /engines?status=odd", "GET /engines/%ff", long.as_str()] {
        send_raw(&up.base, head, &[], b"").await.assert_error(401, "INVALID_PLATFORM_KEY");
    }
}

#[tokio::test]
async fn health_and_the_openapi_document_need_no_key() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let health = send(client().get(format!("{}/health", up.base))).await.assert_ok("status:text");
    assert_eq!(health["status"], "ok");

    let answer = send(client().get(format!("{}/openapi.json", up.base))).await;
    assert_eq!(answer.status, 200);
    let document = answer.body;
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    for head in PRODUCT_CALLS.into_iter().chain(["POST /products/register", "GET /health"]) {
        let (method, path) = head.split_once(' ').unwrap();
        let path = path.replace("ada", "{user_id}");
        let operation = &document["paths"][&path][method.to_lowercase()];
        assert!(operation["responses"]["200"].is_object(), "{head} is not documented");
    }
    let path_count = document["paths"].as_object().unwrap().len();
    assert!(path_count >= 8, "{path_count}");
}

#[tokio::test]
async fn no_path_and_no_method_leaves_the_envelope() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let key = up.product().key;
    for headers in [&[][..], &[("x-platform-key", key.as_str())]] {
        for head in [
            "GET //",
            "GET /nothing",
            "GET /engines/ada/nothing",
            "GET /engines/a/b",
            "POST /engines/a/b/admit",
        ] {
            send_raw(&up.base, head, headers, b"").await.assert_error(404, "NOT_FOUND");
        }
        for (head, allowed) in [
            ("PUT /engines", "GET"),
            ("POST /", "GET"),
            ("POST /health", "GET"),
            ("DELETE /engines/ada/admit", "POST"),
            ("GET /engines/ada/start", "POST"),
            ("PATCH /engines/ada", "DELETE"),
            ("GET /products/register", "POST"),
        ] {
            let answer = send_raw(&up.base, head, headers, b"").await;
            answer.assert_error(405, "METHOD_NOT_ALLOWED");
            let allow = answer.header("allow").expect("an Allow header");
            assert!(allow.split(',').any(|method| method.trim() == allowed), "{head}: {allow}");
        }
    }
}

#[tokio::test]
async fn what_is_no_http_is_refused_and_harms_nobody() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let key = up.product().key;
    let long = format!("GET /engines?offset={}", "1".repeat(100_000));
    let answer = send_raw(&up.base, &long, &[("x-platform-key", &key)], b"").await;
    assert!((400..500).contains(&answer.status), "{answer:?}");
    assert_eq!(up.product().list("").await.1, 0);
}

#[tokio::test]
async fn every_answer_names_its_request() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let key = up.product().key;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let traceparent = format!("00-{trace}-00f067aa0ba902b7-01");
    for (head, key) in [
        ("GET /health", ""),
        ("GET /engines", key.as_str()),
        ("GET /engines", "wrong"),
        ("GET /engines/nobody", &key),
        ("GET /nothing", ""),
        ("PUT /engines", ""),
        ("GET /engines/%zz", &key),
    ] {
        let headers = [("x-platform-key", key), ("x-request-id", "order-66"), ("traceparent", &traceparent)];
        let answer = send_raw(&up.base, head, &headers, b"").await;
        assert_eq!(answer.header("x-request-id"), Some("order-66"), "{head}");
        let returned = answer.header("traceparent").unwrap_or_else(|| panic!("{head}: no traceparent"));
        assert_eq!(returned.split('-').nth(1), Some(trace), "{head}: {returned}");

        let too_long = "x".repeat(5_000);
        let answer =
            send_raw(&up.base, head, &[("x-platform-key", key), ("x-request-id", &too_long)], b"").await;
        let generated = answer.header("x-request-id").expect("an X-Request-Id");
        assert!(!generated.is_empty() && generated.len() < 200, "{head}: {generated}");
        let other = send_raw(&up.base, head, &[("x-platform-key", key)], b"").await;
        assert_ne!(other.header("x-request-id"), Some(generated), "{head}: each request gets its own id");
    }
}

#[tokio::test]
async fn what_a_registration_answers_is_all_that_is_needed() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let body: Value =
        json!({"slug": "shop", "display_name": "The Shop", "policy": {"max_engines": 5}, "unknown": 1});
    let register =
        || client().post(format!("{}/products/register", up.base)).header("x-admin-key", up.admin_key());
    let registered = send(register().json(&body)).await.assert_ok(crate::support::schema::REGISTERED);
    assert_eq!((&registered["slug"], &registered["display_name"]), (&body["slug"], &body["display_name"]));
    assert_eq!(registered["policy"], body["policy"]);
    send(register().json(&body)).await.assert_error(409, "PRODUCT_SLUG_EXISTS");
    let product = crate::support::Product::new(&up.base, registered["platform_api_key"].as_str().unwrap());
    assert_eq!(product.list("").await.1, 0);
    let empty = send(register().json(&json!({"slug": "bare", "display_name": "x", "policy": null}))).await;
    assert_eq!(empty.assert_ok(crate::support::schema::REGISTERED)["policy"], json!({}));
}
