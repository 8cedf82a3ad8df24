//! The HTTP interface through the real router: responses have exactly the documented fields, and every refusal is
//! tested.

mod aborted_calls;
mod audit;
mod coverage;
mod events;
mod hostile;
mod idempotency;
mod metrics;
mod policies;
mod products;
mod unknown_fields;

use api::ErrorCode;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tower::ServiceExt as _;

use super::docs::document;
use super::examples::EXAMPLES;
use crate::testing::{ADMIN_KEY, Fault, ProductClient, SimulatedHealth, TestApp, summarize};

/// Replaces every value by the name of its type or format, so that a response can be compared by its fields.
fn json_shape(value: &Value) -> Value {
    match value {
        Value::Null => json!("null"),
        Value::Bool(_) => json!("boolean"),
        Value::Number(number) => json!(if number.is_i64() || number.is_u64() { "integer" } else { "number" }),
        Value::String(text) if is_timestamp(text) => json!("time"),
        Value::String(text) => {
            let known = ["prod_", "eng_", "pk-svc-", "sk-svc-", "svc-engine:", "http://127.0.0.1:"];
            json!(known.into_iter().find(|start| text.starts_with(start)).unwrap_or(text))
        }
        Value::Array(values) => values.iter().map(json_shape).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), json_shape(value))).collect()
        }
    }
}

/// Whether `text` is an ISO 8601 timestamp in UTC with milliseconds.
fn is_timestamp(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00.000Z"
}

#[test]
fn the_document_is_as_reviewed() {
    insta::assert_json_snapshot!("openapi", document());
}

#[test]
fn the_document_generates_well() {
    testkit::openapi::assert_generates_well(&serde_json::to_value(document()).unwrap());
}

#[test]
fn the_document_has_examples_that_are_right() {
    testkit::openapi_examples::assert_has_examples(&serde_json::to_value(document()).unwrap(), &EXAMPLES);
}

#[tokio::test]
async fn the_document_is_served_without_a_key() {
    let app = TestApp::new().await;
    let (status, _, served) = app.send("GET", "/openapi.json", &[], "").await;
    assert_eq!((status, served["openapi"].as_str().unwrap()), (200, "3.1.0"));
    assert_eq!(served, serde_json::to_value(document()).unwrap());
}

#[tokio::test]
async fn the_start_page_needs_no_key_and_runs_nothing() {
    let app = TestApp::new().await;
    let request = |method: &str| {
        let request = axum::http::Request::builder().method(method).uri("/");
        app.router().oneshot(request.body(axum::body::Body::empty()).unwrap())
    };
    let response = request("GET").await.unwrap();
    assert_eq!(response.status(), 200);
    let headers = response.headers().clone();
    let page = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let page = std::str::from_utf8(&page).unwrap();
    assert_eq!(headers["content-type"], "text/html; charset=utf-8");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert!(page.contains(&format!("Roundhouse {}", crate::config::VERSION)), "{page}");
    for path in ["/openapi.json", "/health"] {
        assert!(page.contains(&format!("href=\"{path}\"")), "{page}");
        assert_eq!(app.send("GET", path, &[], "").await.0, 200);
    }
    assert!(page.contains("href=\"console\""), "{page}");
    let style = page.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
    let hash = BASE64_STANDARD.encode(Sha256::digest(style));
    let policy = headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with(&format!("default-src 'none'; style-src 'sha256-{hash}';")), "{hash}");
    for active in ["<script", "onload", "src=", "style=", "http:", "https:"] {
        assert!(!page.contains(active), "{active}");
    }
    let head = request("HEAD").await.unwrap();
    assert_eq!(
        (head.status().as_u16(), head.headers()["content-type"].clone()),
        (200, headers["content-type"].clone())
    );
    let refused = request("POST").await.unwrap();
    assert_eq!((refused.status().as_u16(), refused.headers()["allow"].to_str().unwrap()), (405, "GET,HEAD"));
}

#[tokio::test]
async fn the_console_is_beside_the_api_and_there_before_it() {
    let app = TestApp::new().await;
    let asset = format!("/console/{}/app.js", pages::CONSOLE.hash);
    let starting = crate::http::StartupGate::new();
    for path in ["/console", &asset, "/docs", "/docs/memory"] {
        let request = || axum::http::Request::get(path).body(axum::body::Body::empty()).unwrap();
        let ready = app.router().oneshot(request()).await.unwrap();
        let early = starting.clone().oneshot(request()).await.unwrap();
        assert_eq!((ready.status().as_u16(), early.status().as_u16()), (200, 200), "{path}");
        assert!(
            ready.headers().contains_key("content-security-policy")
                && early.headers().contains_key("x-request-id")
        );
    }
    // What is not the console is refused until the API is there.
    let other = axum::http::Request::get("/console/x").body(axum::body::Body::empty()).unwrap();
    assert_eq!(starting.clone().oneshot(other).await.unwrap().status(), 503);
    assert_eq!(app.send("GET", "/console/x", &[], "").await.0, 404);
    assert_eq!(app.send("POST", "/console", &[], "").await.0, 405);
    let documented = serde_json::to_string(&document()).unwrap();
    assert!(!documented.contains("/console") && !documented.contains("\"/docs"));
}

#[tokio::test]
async fn every_answer_has_its_fields_and_no_other() {
    let app = TestApp::new().await;
    let (_, _, health) = app.send("GET", "/health", &[], "").await;
    assert_eq!(health, json!({"status": "ok"}));

    let body = r#"{"slug": "demo", "display_name": "Demo", "policy": {"max_engines": 3}, "colour": "red"}"#;
    let (_, _, product) = app.send("POST", "/products/register", &[("X-Admin-Key", ADMIN_KEY)], body).await;
    assert_eq!(
        json_shape(&product),
        json!({
            "product_id": "prod_", "slug": "demo", "display_name": "Demo", "policy": {"max_engines": "integer"},
            "created_at": "time", "platform_api_key": "pk-svc-",
        })
    );

    let product = ProductClient { app: &app, key: product["platform_api_key"].as_str().unwrap().to_owned() };
    let (_, provisioned) = product.provision("ann").await;
    assert_eq!(
        json_shape(&provisioned),
        json!({
            "engine_id": "eng_", "user_id": "ann", "status": "running", "url": "http://127.0.0.1:",
            "api_key": "sk-svc-",
        })
    );

    let listed = json!({
        "engine_id": "eng_", "user_id": "ann", "status": "running", "url": "http://127.0.0.1:",
        "engine_version": "svc-engine:", "created_at": "time", "last_health_at": "time",
    });
    let mut record = listed.clone();
    record["api_key"] = json!("sk-svc-");
    assert_eq!(json_shape(&product.get("ann").await.1), record);
    assert_eq!(
        json_shape(&product.admit("ann", json!({})).await.1),
        json!({"admitted": "boolean", "engine": record})
    );
    assert_eq!(
        product.admit("nobody", json!({})).await.1,
        json!({"admitted": false, "engine": null, "reason": "engine_not_found"})
    );
    let (_, list) = product.call("GET", "/engines", &Value::Null).await;
    assert_eq!(json_shape(&list), json!({"engines": [listed], "total": "integer"}));

    assert_eq!(product.stop("ann").await.1, json!({"status": "stopped"}));
    let (_, started) = product.start("ann").await;
    assert_eq!(json_shape(&started), json!({"status": "running", "url": "http://127.0.0.1:"}));
    let (_, destroyed) = product.delete("ann").await;
    assert_eq!(json_shape(&destroyed), json!({"status": "destroyed", "engine_id": "eng_"}));
}

#[tokio::test]
async fn every_field_is_checked_and_named() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let long = |length: usize| "x".repeat(length);
    let register = |changes: Value| {
        let mut body = json!({"slug": "other", "display_name": "Other"});
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        ("/products/register", body)
    };
    let without = |field: &str| {
        let (path, mut body) = register(json!({}));
        body.as_object_mut().unwrap().remove(field);
        (path, body)
    };
    let provision = |body: Value| ("/engines/provision", body);
    let admit = |body: Value| ("/engines/ann/admit", body);
    for ((path, body), named) in [
        (without("slug"), "slug"),
        (register(json!({"slug": null})), "slug"),
        (register(json!({"slug": 7})), "slug"),
        (register(json!({"slug": ""})), "slug"),
        (register(json!({"slug": long(64)})), "slug"),
        (register(json!({"slug": "Demo"})), "slug"),
        (without("display_name"), "display_name"),
        (register(json!({"display_name": null})), "display_name"),
        (register(json!({"display_name": ["x"]})), "display_name"),
        (register(json!({"display_name": "  "})), "display_name"),
        (register(json!({"display_name": long(201)})), "display_name"),
        (register(json!({"policy": 7})), "policy"),
        (register(json!({"policy": {"max_engine": 3}})), "max_engine"),
        (register(json!({"policy": {"max_engines": -1}})), "max_engines"),
        (register(json!({"policy": {"rate_limit_rpm": 1.5}})), "rate_limit_rpm"),
        (provision(json!({})), "user_id"),
        (provision(json!({"user_id": null})), "user_id"),
        (provision(json!({"user_id": 7})), "user_id"),
        (provision(json!({"user_id": ""})), "user_id"),
        (provision(json!({"user_id": long(257)})), "user_id"),
        (provision(json!({"user_id": "a\u{0}b"})), "user_id"),
        (provision(json!({"user_id": "ann", "engine_version": "svc-engine:latest"})), "engine_version"),
        (provision(json!({"user_id": "ann", "engine_version": 1})), "engine_version"),
        (admit(json!({"auto_provision": "yes"})), "auto_provision"),
        (admit(json!({"auto_wake": 1})), "auto_wake"),
        (admit(json!([])), "object"),
    ] {
        let headers = [("X-Platform-Key", product.key.as_str()), ("X-Admin-Key", ADMIN_KEY)];
        let (status, _, answer) = app.send("POST", path, &headers, &body.to_string()).await;
        assert_eq!(
            (status, answer["error"]["code"].as_str().unwrap()),
            (400, "INVALID_REQUEST"),
            "{path} {body}"
        );
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(named), "{path} {body}: {message}");
    }
    for query in ["status=gone", "limit=0", "limit=1001", "limit=x", "offset=-1"] {
        let (status, answer) = product.call("GET", &format!("/engines?{query}"), &Value::Null).await;
        assert_eq!(status, 400, "{query}");
        let name = query.split('=').next().unwrap();
        assert!(answer["error"]["message"].as_str().unwrap().contains(name), "{query}: {answer}");
    }
    for path in ["/engines/%zz", "/engines/%ff", &format!("/engines/{}", long(257))] {
        assert_eq!(summarize(product.call("GET", path, &Value::Null).await), "400 INVALID_REQUEST", "{path}");
    }
    // None of these requests had an effect.
    assert_eq!(product.call("GET", "/engines", &Value::Null).await.1["total"], 0);
}

#[tokio::test]
async fn optional_fields_may_be_null_and_bodies_empty() {
    let app = TestApp::new().await;
    let body = r#"{"slug": "demo", "display_name": "Demo", "policy": null}"#;
    let (status, _, product) =
        app.send("POST", "/products/register", &[("X-Admin-Key", ADMIN_KEY)], body).await;
    assert_eq!((status, &product["policy"]), (200, &json!({})));
    let product = ProductClient { app: &app, key: product["platform_api_key"].as_str().unwrap().to_owned() };
    let body = json!({"user_id": "ann", "engine_version": null});
    assert_eq!(summarize(product.call("POST", "/engines/provision", &body).await), "200 running");
    let body = json!({"auto_provision": null, "auto_wake": null});
    assert_eq!(summarize(product.admit("ann", body).await), "200 running");
    assert_eq!(summarize(product.admit("ann", Value::Null).await), "200 running");
}

/// Returns method, path and the code for an invalid key of every route that needs a key.
fn guarded_routes() -> Vec<(String, String, &'static str)> {
    let document = serde_json::to_value(document()).unwrap();
    let mut routes = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let key = match operation["security"][0].as_object().and_then(|keys| keys.keys().next()) {
                Some(key) if key == "admin_key" => "INVALID_ADMIN_KEY",
                Some(_) => "INVALID_PLATFORM_KEY",
                None => {
                    assert_eq!(path, "/health", "a route that needs no key");
                    continue;
                }
            };
            let path = path.replace("{user_id}", "ann").replace("{path}", "x");
            let path = path.replace("{token_id}", "tok_x");
            routes.push((method.to_uppercase(), path, key));
        }
    }
    routes
}

#[tokio::test]
async fn every_route_asks_for_its_key_before_anything_else() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let too_long = "x".repeat(2 * 1024 * 1024);
    let routes = guarded_routes();
    assert_eq!(routes.len(), 81);
    for (method, path, code) in routes {
        let invalid_key = format!("{}x", product.key);
        let other_key = if code == "INVALID_ADMIN_KEY" { "X-Platform-Key" } else { "X-Admin-Key" };
        for headers in [
            vec![],
            vec![("X-Platform-Key", ""), ("X-Admin-Key", "")],
            vec![("X-Platform-Key", invalid_key.as_str()), ("X-Admin-Key", "open sesam")],
            vec![("X-Platform-Key", ADMIN_KEY), ("X-Admin-Key", product.key.as_str())],
            vec![(other_key, if other_key == "X-Admin-Key" { ADMIN_KEY } else { &product.key })],
        ] {
            for path in [path.clone(), path.replace("ann", "%zz"), format!("{path}?limit=x")] {
                let (status, _, answer) = app.send(&method, &path, &headers, &too_long).await;
                let actual = (status, answer["error"]["code"].as_str().unwrap());
                assert_eq!(actual, (401, code), "{method} {path} {headers:?}");
            }
        }
    }
}

#[tokio::test]
async fn products_see_only_their_own_engines() {
    let app = TestApp::new().await;
    let one = app.register_product("one", json!({})).await;
    let other = app.register_product("other", json!({})).await;
    one.provision("ann").await;
    for answer in [other.get("ann").await, other.start("ann").await, other.stop("ann").await] {
        assert_eq!(summarize(answer), "404 ENGINE_NOT_FOUND");
    }
    assert_eq!(summarize(other.delete("ann").await), "404 ENGINE_NOT_FOUND");
    assert_eq!(other.call("GET", "/engines", &Value::Null).await.1, json!({"engines": [], "total": 0}));
    // The same user id in another product is another user.
    assert_eq!(summarize(other.provision("ann").await), "200 running");
    assert_ne!(one.get("ann").await.1["engine_id"], other.get("ann").await.1["engine_id"]);
}

#[tokio::test]
async fn any_string_is_a_user_id_on_every_route() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    for user in
        ["provision", "register", ".", "..", "a/b", "../../etc/passwd", "Ann", "ann", "🦀 ü", "%70", "?#"]
    {
        let path = user.bytes().fold(String::new(), |path, byte| path + &format!("%{byte:02X}"));
        let plain = ["provision", "register", ".", ".."].contains(&user);
        for path in if plain { vec![path, user.to_owned()] } else { vec![path] } {
            assert_eq!(summarize(product.provision(user).await), "200 running", "{user}");
            assert_eq!(product.get(&path).await.1["user_id"], user);
            assert_eq!(summarize(product.admit(&path, json!({})).await), "200 running", "{user}");
            assert_eq!(summarize(product.stop(&path).await), "200 stopped", "{user}");
            assert_eq!(summarize(product.start(&path).await), "200 running", "{user}");
            assert_eq!(summarize(product.delete(&path).await), "200 destroyed", "{user}");
        }
    }
    let path = format!("/engines/{}", "%F0%9F%A6%80".repeat(64));
    assert_eq!(summarize(product.call("GET", &path, &Value::Null).await), "404 ENGINE_NOT_FOUND");
}

#[tokio::test]
async fn a_listing_is_paged_filtered_and_in_order() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    for user in ["c", "a", "b", "d"] {
        product.provision(user).await;
        if user != "a" {
            app.clock.advance(std::time::Duration::from_millis(1));
        }
    }
    product.stop("b").await;
    for (query, users, total) in [
        ("", "c a b d", 4),
        ("?limit=2", "c a", 4),
        ("?limit=2&offset=1", "a b", 4),
        ("?offset=9", "", 4),
        ("?status=running", "c a d", 3),
        ("?status=stopped&limit=1000", "b", 1),
        ("?status=destroying", "", 0),
    ] {
        let (_, list) = product.call("GET", &format!("/engines{query}"), &Value::Null).await;
        let listed: Vec<_> = list["engines"]
            .as_array()
            .unwrap()
            .iter()
            .map(|engine| engine["user_id"].as_str().unwrap())
            .collect();
        assert_eq!((listed.join(" ").as_str(), list["total"].as_i64().unwrap()), (users, total), "{query}");
    }
}

#[tokio::test]
async fn a_hundred_are_listed_where_nobody_says_how_many() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    for user in 0..100 {
        product.provision(&format!("u{user}")).await;
    }
    // Frees a port: the range has only a hundred.
    product.stop("u0").await;
    assert_eq!(summarize(product.provision("one more").await), "200 running");
    let (_, list) = product.call("GET", "/engines", &Value::Null).await;
    assert_eq!((list["engines"].as_array().unwrap().len(), &list["total"]), (100, &json!(101)));
    let (_, audit) = product.call("GET", "/audit", &Value::Null).await;
    assert_eq!(audit["rows"].as_array().unwrap().len(), 100);
    for slug in 0..100 {
        app.register_product(&format!("p{slug}"), json!({})).await;
    }
    let (_, _, list) = app.send("GET", "/products", &[("X-Admin-Key", ADMIN_KEY)], "").await;
    assert_eq!((list["products"].as_array().unwrap().len(), &list["total"]), (100, &json!(101)));
}

#[tokio::test]
async fn refusals_of_the_framework_stay_in_the_envelope() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let headers = [("X-Platform-Key", product.key.as_str()), ("X-Admin-Key", ADMIN_KEY)];
    let long = format!(r#"{{"user_id": "{}"}}"#, "x".repeat(1024 * 1024));
    for (method, path, body, status, code) in [
        ("GET", "/nowhere", "", 404, ErrorCode::NotFound),
        ("GET", "/engines/ann/nowhere", "", 404, ErrorCode::NotFound),
        ("PATCH", "/engines/ann", "", 405, ErrorCode::MethodNotAllowed),
        ("PUT", "/engines/provision", "", 405, ErrorCode::MethodNotAllowed),
        ("GET", "/products/register", "", 405, ErrorCode::MethodNotAllowed),
        ("POST", "/engines/provision", "{", 400, ErrorCode::InvalidRequest),
        ("POST", "/engines/provision", long.as_str(), 413, ErrorCode::PayloadTooLarge),
    ] {
        let (actual, headers, answer) = app.send(method, path, &headers, body).await;
        let expected = serde_json::to_value(code).unwrap();
        assert_eq!((actual, &answer["error"]["code"]), (status, &expected), "{method} {path}");
        assert!(headers.contains_key("x-request-id"));
        let allow = headers.get("allow").map(|allow| allow.to_str().unwrap());
        let allowed = match path {
            "/engines/ann" => Some("GET,HEAD,DELETE"),
            "/engines/provision" => Some("GET,HEAD,DELETE,POST"),
            _ => Some("POST"),
        };
        assert_eq!(allow, allowed.filter(|_| status == 405), "{method} {path}");
        assert_eq!(answer.as_object().unwrap().len(), 1);
        assert_eq!(answer["error"].as_object().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_slug_is_taken_once() {
    let app = TestApp::new().await;
    app.register_product("demo", json!({})).await;
    let body = r#"{"slug": "demo", "display_name": "Another"}"#;
    let (status, _, answer) =
        app.send("POST", "/products/register", &[("X-Admin-Key", ADMIN_KEY)], body).await;
    assert_eq!((status, answer["error"]["code"].as_str().unwrap()), (409, "PRODUCT_SLUG_EXISTS"));
}

#[tokio::test]
async fn a_failure_of_our_own_is_500_and_tells_nothing() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.execute("UPDATE engines SET sealed_key = 'damaged'").await;
    let (status, answer) = product.get("ann").await;
    assert_eq!((status, answer["error"]["code"].as_str().unwrap()), (500, "INTERNAL_ERROR"));
    assert!(!answer.to_string().contains("sealed"), "{answer}");
}

#[tokio::test]
async fn no_secret_is_in_the_registry_or_in_an_error() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let (_, ann) = product.provision("ann").await;
    app.backend.set_health(SimulatedHealth::Unreachable);
    app.backend.inject(crate::testing::BackendCall::Launch, Fault::Exit);
    let (_, failed) = product.provision("bob").await;
    let secrets = [ann["api_key"].as_str().unwrap(), &product.key, ADMIN_KEY, "provider secret"];
    let stored = app.dump().await;
    for secret in secrets {
        assert!(!failed.to_string().contains(secret), "{failed}");
        assert!(!stored.contains(secret), "a secret is stored in the clear");
    }
}
