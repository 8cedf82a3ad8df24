//! Tests of the layer: the framework's own errors, as a client sees them.

use api::ErrorBody;
use api::orchestrator::Admit;
use axum::body::Body;
use axum::http::StatusCode;
use axum::routing::{get, post};
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use super::*;
use crate::http::{Json, LenientJson, Path};

fn app() -> Router {
    let router = Router::new()
        .route("/panic", get(panics))
        .route("/echo/{name}", get(|Path(name): Path<String>| async move { name }))
        .route("/json", post(|Json(_): Json<Admit>| async { "accepted" }))
        .route("/lenient", post(|LenientJson(_): LenientJson<Admit>| async { "accepted" }));
    apply_layers(router, 64)
}

async fn panics() {
    panic!("on purpose")
}

async fn answer(request: Request) -> (StatusCode, HeaderMap, String) {
    let response = app().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status, parts.headers, String::from_utf8(body.to_vec()).unwrap())
}

fn request(method: &str, path: &str, body: &str) -> Request {
    Request::builder().method(method).uri(path).body(Body::from(body.to_owned())).unwrap()
}

#[tokio::test]
async fn refusals_of_every_kind_stay_in_the_envelope() {
    let too_long = format!(r#"{{"x": "{}"}}"#, "x".repeat(100));
    for (method, path, body, status, code) in [
        ("GET", "/nowhere", "", 404, ErrorCode::NotFound),
        ("DELETE", "/json", "", 405, ErrorCode::MethodNotAllowed),
        ("POST", "/json", "{", 400, ErrorCode::InvalidRequest),
        ("POST", "/json", too_long.as_str(), 413, ErrorCode::PayloadTooLarge),
        ("GET", "/echo/%zz", "", 400, ErrorCode::InvalidRequest),
        ("GET", "/echo/%ff", "", 400, ErrorCode::InvalidRequest),
        ("GET", "/panic", "", 500, ErrorCode::InternalError),
    ] {
        let (actual, headers, text) = answer(request(method, path, body)).await;
        assert_eq!(actual.as_u16(), status, "{method} {path}");
        let body: ErrorBody = serde_json::from_str(&text).unwrap();
        assert_eq!(body.error.code, code, "{method} {path}: {text}");
        assert!(headers.contains_key("x-request-id"));
        if status == 405 {
            assert_eq!(headers["allow"], "POST");
        }
    }
}

#[tokio::test]
async fn paths_are_percent_decoded() {
    for (path, name) in [("/echo/a%2Fb", "a/b"), ("/echo/%F0%9F%A6%80", "🦀"), ("/echo/..", "..")] {
        let (status, _, body) = answer(request("GET", path, "")).await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, name));
    }
}

#[tokio::test]
async fn an_empty_body_is_an_empty_object() {
    let (status, _, body) = answer(request("POST", "/json", "")).await;
    assert_eq!((status, body.as_str()), (StatusCode::OK, "accepted"));
}

#[tokio::test]
async fn unknown_fields_are_refused_or_named_in_a_header() {
    let body = r#"{"auto_wake": true, "autowake": true}"#;
    let (status, headers, text) = answer(request("POST", "/json", body)).await;
    assert_eq!((status, headers.contains_key("roundhouse-warning")), (StatusCode::BAD_REQUEST, false));
    assert!(
        text.contains("there is no field `autowake`; it must be `auto_provision` or `auto_wake`"),
        "{text}"
    );
    let (status, headers, _) = answer(request("POST", "/lenient", body)).await;
    assert_eq!(
        (status, &headers["roundhouse-warning"]),
        (StatusCode::OK, &HeaderValue::from_static("unknown fields: autowake"))
    );
    let (_, headers, _) = answer(request("POST", "/lenient", r#"{"auto_wake": true}"#)).await;
    assert!(!headers.contains_key("roundhouse-warning"));
}

#[tokio::test]
async fn sane_request_ids_are_kept_and_others_replaced() {
    let with_id =
        |id: &str| Request::builder().uri("/echo/a").header("x-request-id", id).body(Body::empty()).unwrap();
    assert_eq!(answer(with_id("abc-123")).await.1["x-request-id"], "abc-123");
    for invalid in ["with space", "", &"x".repeat(129)] {
        assert_ne!(answer(with_id(invalid)).await.1["x-request-id"], invalid);
    }
}

#[tokio::test]
async fn the_trace_goes_on_under_a_span_of_ours() {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let request =
        Request::builder().uri("/echo/a").header("traceparent", parent).body(Body::empty()).unwrap();
    let returned = answer(request).await.1["traceparent"].to_str().unwrap().to_owned();
    assert_eq!(returned[..36], parent[..36]);
    assert_ne!(returned[36..52], parent[36..52]);
    assert_eq!(returned[52..], parent[52..]);
}
