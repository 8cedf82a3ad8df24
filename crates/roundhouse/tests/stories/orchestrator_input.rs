//! Story 4: how the orchestrator handles unusual and invalid input.

use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::http::{path_segment, send_raw};
use crate::support::schema::{ENGINE_RECORD, PROVISIONED, REGISTERED};
use crate::support::{Fleet, HttpResponse, Product, RunningUp};

/// Sends a product's request with exactly these bytes as its path and body.
async fn call(product: &Product, head: &str, body: impl AsRef<[u8]>) -> HttpResponse {
    send_raw(&product.base, head, &[("x-platform-key", &product.key)], body.as_ref()).await
}

async fn register(up: &RunningUp, body: impl AsRef<[u8]>) -> HttpResponse {
    send_raw(&up.base, "POST /products/register", &[("x-admin-key", &up.admin_key())], body.as_ref()).await
}

/// Asserts a 400 whose message names `field`.
#[track_caller]
fn assert_names_field(answer: &HttpResponse, field: &str) {
    let message = answer.assert_error(400, "INVALID_REQUEST");
    assert!(message.contains(field), "no {field:?} in: {message}");
}

#[tokio::test]
async fn a_user_without_an_engine_is_not_found() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    for head in [
        "GET /engines/nobody",
        "DELETE /engines/nobody",
        "POST /engines/nobody/start",
        "POST /engines/nobody/stop",
    ] {
        call(&product, head, "").await.assert_error(404, "ENGINE_NOT_FOUND");
    }
    // An empty body counts as `{}`, null as absent, unknown fields are ignored, and the content type is too.
    for body in ["", "{}", "  ", r#"{"auto_provision": null, "auto_wake": null}"#, r#"{"extra": [1]}"#] {
        let answer = call(&product, "POST /engines/nobody/admit", body).await;
        let denied = answer.assert_ok("admitted:bool engine:null reason:text");
        assert_eq!((&denied["admitted"], &denied["reason"]), (&json!(false), &json!("engine_not_found")));
    }
    assert_eq!(product.list("").await.1, 0);
}

#[tokio::test]
async fn the_content_type_does_not_matter() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16"] {
        let headers = [("x-platform-key", product.key.as_str()), ("content-type", kind)];
        let body = br#"{"auto_provision": true}"#;
        let answer = send_raw(&up.base, "POST /engines/ada/admit", &headers, body).await;
        assert_eq!(answer.assert_ok("admitted:bool engine:object")["admitted"], true, "{kind}");
    }
}

#[tokio::test]
async fn what_is_no_json_object_is_refused() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let bodies = ["{", "nonsense", "[]", "null", "7", "\"ada\"", "{} {}", "{'a': 1}"];
    for body in bodies {
        register(&up, body).await.assert_error(400, "INVALID_REQUEST");
        for head in ["POST /engines/provision", "POST /engines/ada/admit"] {
            call(&product, head, body).await.assert_error(400, "INVALID_REQUEST");
        }
    }
    assert_eq!(product.list("").await.1, 0);
}

#[tokio::test]
async fn what_is_no_utf8_is_no_json() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let body = b"{\"user_id\": \"\xff\"}";
    call(&product, "POST /engines/provision", body).await.assert_error(400, "INVALID_REQUEST");
    // Also where the field is unknown and would be ignored.
    call(&product, "POST /engines/ada/admit", body).await.assert_error(400, "INVALID_REQUEST");
}

#[tokio::test]
async fn a_bad_field_is_named() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let (long, with_line_break) = ("x".repeat(257), "line\nbreak");
    for body in [
        json!({}),
        json!({"user_id": null}),
        json!({"user_id": 7}),
        json!({"user_id": ["ada"]}),
        json!({"user_id": ""}),
        json!({"user_id": long}),
        json!({"user_id": "é".repeat(129)}),
        json!({"user_id": with_line_break}),
        json!({"user_id": "nul\0"}),
    ] {
        assert_names_field(&call(&product, "POST /engines/provision", body.to_string()).await, "user_id");
    }
    for version in
        [json!("svc-engine:latest"), json!("svc-engine"), json!("svc-engine:1.2"), json!(""), json!(1.2)]
    {
        let body = json!({"user_id": "ada", "engine_version": version});
        assert_names_field(
            &call(&product, "POST /engines/provision", body.to_string()).await,
            "engine_version",
        );
    }
    for field in ["auto_provision", "auto_wake"] {
        for value in [json!("true"), json!(1), json!([])] {
            let body = json!({field: value}).to_string();
            assert_names_field(&call(&product, "POST /engines/ada/admit", body).await, field);
        }
    }
    for query in [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=ten",
        "limit=",
        "offset=-1",
        "offset=x",
        "status=odd",
        "status=",
    ] {
        let field = query.split('=').next().unwrap();
        assert_names_field(&call(&product, &format!("GET /engines?{query}"), "").await, field);
    }
    assert_eq!(product.list("").await.1, 0);
}

#[tokio::test]
async fn a_bad_product_is_refused_and_its_field_is_named() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let good = json!({"slug": "shop", "display_name": "The Shop", "policy": {}});
    let with = |field: &str, value: Value| -> String {
        let mut body = good.clone();
        body[field] = value;
        body.to_string()
    };
    for slug in ["", "-a", "a-", "A", "a_b", "a b", "ä", &"x".repeat(64)] {
        assert_names_field(&register(&up, with("slug", json!(slug))).await, "slug");
    }
    for name in ["", "  \t", &"x".repeat(201)] {
        assert_names_field(&register(&up, with("display_name", json!(name))).await, "display_name");
    }
    for field in ["slug", "display_name"] {
        for value in [json!(null), json!(7), json!({})] {
            assert_names_field(&register(&up, with(field, value)).await, field);
        }
        let mut body = good.clone();
        body.as_object_mut().unwrap().remove(field);
        assert_names_field(&register(&up, body.to_string()).await, field);
    }
    for field in ["max_engines", "rate_limit_rpm"] {
        for value in [json!(-1), json!(1.5), json!("2"), json!(true), json!([])] {
            assert_names_field(&register(&up, with("policy", json!({field: value}))).await, field);
        }
    }
    assert_names_field(&register(&up, with("policy", json!({"max_engine": 1}))).await, "max_engine");
    assert_names_field(&register(&up, with("policy", json!(7))).await, "policy");
    // None of these registered the slug.
    register(&up, good.to_string()).await.assert_ok(REGISTERED);
    for (slug, name) in [("0", "🦀".repeat(200)), (&"x".repeat(63), "x".to_owned())] {
        let body = json!({"slug": slug, "display_name": name, "policy": {"max_engines": null}});
        register(&up, body.to_string()).await.assert_ok(REGISTERED);
    }
}

#[tokio::test]
async fn a_body_over_a_mebibyte_is_too_large() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let padded = |length: usize| format!("{{}}{}", " ".repeat(length - 2));
    for head in ["POST /engines/provision", "POST /engines/ada/admit"] {
        call(&product, head, padded((1 << 20) + 1)).await.assert_error(413, "PAYLOAD_TOO_LARGE");
    }
    register(&up, padded((1 << 20) + 1)).await.assert_error(413, "PAYLOAD_TOO_LARGE");
    let fits = call(&product, "POST /engines/ada/admit", padded(1 << 20)).await;
    fits.assert_ok("admitted:bool engine:null reason:text");

    // The limit also holds for a chunked body, which has no content-length.
    let chunk = || Ok::<_, std::io::Error>(vec![b' '; 1 << 16]);
    let body = reqwest::Body::wrap_stream(futures::stream::iter((0..17).map(move |_| chunk())));
    let request = crate::support::http::client().post(format!("{}/engines/ada/admit", up.base));
    let answer = crate::support::http::send(request.header("x-platform-key", &product.key).body(body)).await;
    answer.assert_error(413, "PAYLOAD_TOO_LARGE");
}

/// Calls all endpoints of a user's engine, with `segment` as the user's path segment.
async fn run_whole_lifecycle(product: &Product, user: &str, segment: &str) {
    let body = json!({"user_id": user}).to_string();
    let provisioned = call(product, "POST /engines/provision", &body).await.assert_ok(PROVISIONED);
    assert_eq!(provisioned["user_id"], user);
    call(product, "POST /engines/provision", &body).await.assert_error(409, "ENGINE_ALREADY_EXISTS");
    let record = call(product, &format!("GET /engines/{segment}"), "").await.assert_ok(ENGINE_RECORD);
    for field in ["engine_id", "user_id", "status", "url", "api_key"] {
        assert_eq!(record[field], provisioned[field], "{user:?}: {field}");
    }
    let admit = format!("POST /engines/{segment}/admit");
    let admission = call(product, &admit, "").await.assert_ok("admitted:bool engine:object");
    assert_eq!(admission["engine"]["engine_id"], provisioned["engine_id"]);
    let stopped = call(product, &format!("POST /engines/{segment}/stop"), "").await.assert_ok("status:text");
    assert_eq!(stopped["status"], "stopped");
    let started =
        call(product, &format!("POST /engines/{segment}/start"), "").await.assert_ok("status:text url:url");
    assert_eq!(started["status"], "running");
    let destroyed = call(product, &format!("DELETE /engines/{segment}"), "")
        .await
        .assert_ok("status:text engine_id:engine");
    assert_eq!(destroyed["engine_id"], provisioned["engine_id"]);
    call(product, &format!("GET /engines/{segment}"), "").await.assert_error(404, "ENGINE_NOT_FOUND");
    let admission =
        call(product, &admit, r#"{"auto_provision": true}"#).await.assert_ok("admitted:bool engine:object");
    assert_eq!(admission["engine"]["user_id"], user);
}

#[tokio::test]
async fn any_text_can_be_a_user() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let longest_prefix = "x".repeat(256);
    let users = [
        "a/b",
        "provision",
        "register",
        ".",
        "..",
        "../../etc",
        "🦀 Ünïcödé",
        "%2F",
        "a?b#c&d=e",
        " ",
        "'; DROP TABLE engines; --",
        "Case",
        "case",
        longest_prefix.as_str(),
    ];
    join_all(users.map(|user| {
        let product = product.clone();
        async move { run_whole_lifecycle(&product, user, &path_segment(user)).await }
    }))
    .await;

    let (engines, total) = product.list("").await;
    assert_eq!(total, users.len() as u64);
    let listed: BTreeSet<_> = engines.iter().map(|engine| engine["user_id"].as_str().unwrap()).collect();
    assert_eq!(listed, users.into_iter().collect());
    // Folder names derive from the engine's id alone.
    let mut folders = std::fs::read_dir(fleet.folder().join("engines")).unwrap();
    assert!(folders.all(|entry| entry.unwrap().file_name().to_str().unwrap().starts_with("eng_")));
}

#[tokio::test]
async fn dots_and_verbs_are_users_also_without_escapes() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    for user in [".", "..", "provision", "register", "admit", "a+b", "a@b.c"] {
        run_whole_lifecycle(&product, user, user).await;
    }
}

#[tokio::test]
async fn a_path_that_names_no_user_is_refused() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let (long, wide) = ("x".repeat(257), "%F0%9F%A6%80".repeat(65));
    for user in
        ["%zz", "%", "%2", "a%2", "%ff", "%C3%28", "%ED%A0%80", "%00", "a%0Ab", "%7F", long.as_str(), &wide]
    {
        for head in [
            format!("GET /engines/{user}"),
            format!("DELETE /engines/{user}"),
            format!("POST /engines/{user}/admit"),
            format!("POST /engines/{user}/start"),
            format!("POST /engines/{user}/stop"),
        ] {
            call(&product, &head, "").await.assert_error(400, "INVALID_REQUEST");
        }
    }
    assert_eq!(product.list("").await.1, 0);
}

#[tokio::test]
async fn an_engine_can_be_pinned_to_the_version_that_there_is() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let version = concat!("svc-engine:", env!("CARGO_PKG_VERSION"));
    let provision = |version: &str| json!({"user_id": "ada", "engine_version": version}).to_string();
    let answer = call(&product, "POST /engines/provision", provision("svc-engine:99.0.0")).await;
    answer.assert_error(502, "BACKEND_ERROR");
    assert_eq!(product.list("").await.1, 0);
    call(&product, "POST /engines/provision", provision(version)).await.assert_ok(PROVISIONED);
    assert_eq!(product.get("ada").await.assert_ok(ENGINE_RECORD)["engine_version"], version);
}

#[tokio::test]
async fn what_is_no_http_is_refused_in_the_envelope_by_both_services() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let engine = up.product().engine("ada").await;
    let large = "x".repeat(200_000);
    let many: Vec<_> = (0..101).map(|_| ("a", "b")).collect();
    for base in [&up.base, &engine.url] {
        for (head, headers, what) in [
            ("G@T /health", &[][..], "not a request of HTTP/1.1"),
            ("GET /he\u{1}alth", &[], "not a request of HTTP/1.1"),
            ("GET /health", &[("a", large.as_str())], "too large"),
            ("GET /health", &many, "too large"),
        ] {
            let answer = send_raw(base, head, headers, b"").await;
            assert_names_field(&answer, what);
            assert!(answer.header("x-request-id").is_some() && answer.header("traceparent").is_some());
        }
    }
}

/// Error messages speak of HTTP and JSON; they do not show texts of libraries or Rust's terms.
#[tokio::test]
async fn a_refusal_is_in_the_words_of_http_and_json() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    let key = ("x-engine-key", engine.key.as_str());
    let long = format!("GET /engines/{}", "x".repeat(257));
    for (head, body, message) in [
        ("GET /engines?limit=ten", "", "`limit`: must be an integer from 1 to 1000"),
        ("GET /engines?status=gone", "", "`status`: must be one of `provisioning`, "),
        ("GET /audit?event=no", "", "`event`: must be one of `register`, "),
        (&*long, "", "`user_id`, in the path: must be 1 to 256 bytes of UTF-8"),
        ("POST /engines/provision", "{a: 1}", "the body is not valid JSON: key must be a string, at line 1"),
        ("POST /engines/provision", "{}", "`user_id`: must be given"),
        ("POST /engines/provision", r#"{"user_id": 7}"#, "`user_id`: must be a string, not `7`"),
    ] {
        let answer = call(&product, head, body).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").starts_with(message), "{head}: {answer:?}");
    }
    let task = format!("GET /tasks/{}", "x".repeat(1_025));
    for (head, body, message) in [
        ("GET /tasks?offset=-1", "", "`offset`: must be an integer of at least 0"),
        ("GET /execute/replay?after=x", "", "`after`: must be an integer of at least 0"),
        (&*task, "", "`task_id`, in the path: must be 1 to 1,024 bytes of UTF-8"),
        (
            "POST /execute",
            r#"{"task_id": "t", "message": "", "media": ["a"]}"#,
            "`media[0]`: must be an object, not \"a\"",
        ),
        (
            "POST /execute",
            r#"{"task_id": "t", "message": "", "media": [{"type": "image", "data": 1}]}"#,
            "`media[0].data`: must be a string, not `1`",
        ),
        ("POST /execute", r#"{"task_id": "t"}"#, "`message`: must not be empty or blank"),
        (
            "POST /execute",
            r#"{"task_id": "t", "max_turns": 0.0}"#,
            "`max_turns`: must be an integer of at least 1",
        ),
    ] {
        let answer = send_raw(&engine.url, head, &[key], body.as_bytes()).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").starts_with(message), "{head}: {answer:?}");
    }
    let body = br#"{"task_id": "t", "rating": 4.0, "feedback_type": "rating"}"#;
    let answer = send_raw(&engine.url, "POST /feedback", &[key], body).await;
    answer.assert_error(404, "TASK_NOT_FOUND");
}
