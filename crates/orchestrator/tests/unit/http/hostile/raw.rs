//! Hostile requests over a real connection, where the HTTP server parses the bytes first.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use api::ErrorCode;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_service::serve::{ServeLimits, serve};
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::parse_error_response;
use super::requests::{Deployment, HostileRequest, request_for};
use crate::testing::{ADMIN_KEY, TestApp, api_operations};

/// The time limit of a request, longer than any response takes.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(20);

/// The size of a body that fits into the socket buffers: the response may come before the body has been read.
const MAX_SMALL_BODY_BYTES: usize = 16 * 1024;

struct Server {
    address: SocketAddr,
    _shutdown: DropGuard,
}

impl Server {
    async fn start(app: &TestApp) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let limits = ServeLimits {
            max_connections: 16,
            header_read_timeout: EXCHANGE_TIMEOUT,
            drain_timeout: EXCHANGE_TIMEOUT,
        };
        tokio::spawn(serve(listener, app.router(), limits, shutdown.clone()));
        Self { address, _shutdown: shutdown.drop_guard() }
    }

    /// Sends these bytes on a new connection, and returns the response.
    async fn send(&self, request: &[u8]) -> RawResponse {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let mut answer = Vec::new();
        let exchange = async {
            // The server may have answered and closed before it read everything.
            let _ = stream.write_all(request).await;
            let _ = stream.read_to_end(&mut answer).await;
        };
        tokio::time::timeout(EXCHANGE_TIMEOUT, exchange).await.expect("the response did not end");
        RawResponse::parse(&answer)
    }
}

struct RawResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl RawResponse {
    fn parse(answer: &[u8]) -> Self {
        let end = answer.windows(4).position(|at| at == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no response: {}", answer.escape_ascii()));
        let head = std::str::from_utf8(&answer[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
        });
        Self { status, headers: headers.collect(), body: answer[end + 4..].to_vec() }
    }

    /// Whether the HTTP server refused the request itself, so that the service never received it.
    fn is_from_http_server(&self) -> bool {
        let body = String::from_utf8_lossy(&self.body);
        body.contains("not a request of HTTP/1.1") || body.contains("the head of the request is too large")
    }
}

fn request_bytes(request: &HostileRequest, deployment: &Deployment) -> Vec<u8> {
    let mut bytes = format!("{} {} HTTP/1.1\r\n", request.method, request.target(deployment)).into_bytes();
    let mut headers = request.headers(deployment);
    if !headers.iter().any(|(name, _)| *name == "host") {
        headers.push(("host", b"here".to_vec()));
    }
    // The length must be correct; otherwise the remaining bytes would be parsed as another request.
    headers.retain(|(name, _)| !["content-length", "transfer-encoding"].contains(name));
    headers.push(("content-length", request.body.len().to_string().into_bytes()));
    headers.push(("connection", b"close".to_vec()));
    for (name, value) in headers {
        bytes.extend([name.as_bytes(), b": ", &value, b"\r\n"].concat());
    }
    [&bytes[..], b"\r\n", &request.body].concat()
}

#[tokio::test]
async fn over_a_real_connection_too() {
    let app = TestApp::new().await;
    let server = Server::start(&app).await;
    let target = app.register_product("target", json!({})).await;
    let product = app.register_product("demo", json!({})).await;
    let product_id = target.product_id().await;
    let deployment = Deployment { platform_key: product.key.clone(), admin_key: ADMIN_KEY, product_id };
    // Streams do not end, and a drain would refuse what the other requests are for.
    let finite = api_operations()
        .iter()
        .filter(|operation| !operation.path.ends_with("/events") && operation.path != "/fleet/drain")
        .map(request_for);
    let requests = prop::strategy::Union::new(finite)
        .prop_filter("small", |request| request.body.len() <= MAX_SMALL_BODY_BYTES);
    let mut runner = TestRunner::deterministic();
    let mut outcomes = BTreeMap::<_, usize>::new();
    for _ in 0..500 {
        let request = requests.new_tree(&mut runner).unwrap().current();
        let RawResponse { status, headers, body } = {
            let raw = server.send(&request_bytes(&request, &deployment)).await;
            if raw.is_from_http_server() {
                *outcomes.entry("refused by the server").or_default() += 1;
            }
            raw
        };
        assert!(headers.contains_key("traceparent"), "{request:?}");
        *outcomes.entry(if status.is_success() { "succeeded" } else { "refused" }).or_default() += 1;
        if status.is_success() || request.method == "HEAD" {
            continue;
        }
        let code = parse_error_response(status, &headers, &body);
        let proxied = request.operation.path.contains("/proxy/") && status.as_u16() == 502;
        assert!(code.is_ok() && (status.as_u16() < 500 || proxied), "{code:?} {status}\nto {request:?}");
    }
    assert!(outcomes["succeeded"] >= 150 && outcomes["refused"] >= 100, "{outcomes:?}");
    app.assert_consistent().await;
    app.assert_hash_chain().await;
}

/// The HTTP server refuses bytes that are not valid HTTP, in the error envelope, before they reach the service.
/// These are the kinds.
#[tokio::test]
async fn what_is_no_http_is_refused_by_the_server_in_the_envelope() {
    let app = TestApp::new().await;
    let server = Server::start(&app).await;
    let many = "a: b\r\n".repeat(101);
    let wide = format!("a: {}\r\n", "b".repeat(500_000));
    let long = "a".repeat(65_535);
    let end = "host: a\r\nconnection: close\r\n\r\n";
    for (name, request, is_from_http_server) in [
        ("a control character in the path", format!("GET /\u{1} HTTP/1.1\r\n{end}").into_bytes(), true),
        ("a path that is not UTF-8", [b"GET /\xff HTTP/1.1\r\n", end.as_bytes()].concat(), true),
        ("a method that is not a token", format!("G@T / HTTP/1.1\r\n{end}").into_bytes(), true),
        ("another protocol", format!("GET / HTTP/3.0\r\n{end}").into_bytes(), true),
        ("a header name with a space", format!("GET / HTTP/1.1\r\na b: c\r\n{end}").into_bytes(), true),
        (
            "a control character in a header",
            format!("GET / HTTP/1.1\r\na: \u{1}\r\n{end}").into_bytes(),
            true,
        ),
        (
            "a length that is not a number",
            format!("GET / HTTP/1.1\r\ncontent-length: x\r\n{end}").into_bytes(),
            true,
        ),
        (
            "two lengths",
            format!("GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n{end}").into_bytes(),
            true,
        ),
        (
            "an encoding that is not chunked at the end",
            format!("GET / HTTP/1.1\r\ntransfer-encoding: gzip\r\n{end}").into_bytes(),
            true,
        ),
        ("too long a path", format!("GET /{long} HTTP/1.1\r\n{end}").into_bytes(), true),
        ("too many headers", format!("GET / HTTP/1.1\r\n{many}{end}").into_bytes(), true),
        ("too long a head", format!("GET / HTTP/1.1\r\n{wide}{end}").into_bytes(), true),
        // These are valid HTTP, though unusual.
        ("no host", b"GET /nowhere HTTP/1.1\r\nconnection: close\r\n\r\n".to_vec(), false),
        ("raw UTF-8", format!("GET /\u{fc} HTTP/1.1\r\n{end}").into_bytes(), false),
        ("the asterisk form of the target", format!("OPTIONS * HTTP/1.1\r\n{end}").into_bytes(), false),
        ("the authority form of the target", format!("CONNECT a:80 HTTP/1.1\r\n{end}").into_bytes(), false),
        (
            "the absolute form of the target",
            format!("GET http://b/engines HTTP/1.1\r\n{end}").into_bytes(),
            false,
        ),
        ("an invalid chunk", broken_chunk(), false),
    ] {
        let raw = server.send(&request).await;
        assert_eq!(raw.is_from_http_server(), is_from_http_server, "{name}");
        let code = parse_error_response(raw.status, &raw.headers, &raw.body);
        let code = code.unwrap_or_else(|error| panic!("{name}: {error}"));
        if is_from_http_server {
            assert_eq!((raw.status.as_u16(), code), (400, ErrorCode::InvalidRequest), "{name}");
        }
    }
}

/// A valid head, and a chunked body with an invalid chunk.
fn broken_chunk() -> Vec<u8> {
    let head =
        "POST /products/register HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n";
    format!("{head}x-admin-key: {ADMIN_KEY}\r\n\r\nx\r\n").into_bytes()
}
