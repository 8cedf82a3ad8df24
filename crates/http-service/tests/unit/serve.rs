//! Tests of the accept loop over real sockets.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use super::*;
use crate::http::Json;

const TEST_TIMEOUT: Duration = Duration::from_secs(10);

fn limits() -> ServeLimits {
    ServeLimits {
        max_connections: 2,
        header_read_timeout: Duration::from_millis(50),
        drain_timeout: Duration::from_millis(50),
    }
}

async fn start(bounds: ServeLimits) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
    let endless = || async { Body::from_stream(futures::stream::pending::<Result<String, Infallible>>()) };
    let refuse = |_: Request| async { (StatusCode::PAYLOAD_TOO_LARGE, "too large") };
    let router = Router::new().route("/", get(|| async { "hello" })).route("/endless", get(endless));
    let echo = |Json(fields): Json<serde_json::Value>| async move { fields.to_string() };
    let router = router.route("/refuse", post(refuse)).route("/echo", post(echo));
    let router = crate::http::apply_layers(router.route("/health", get(|| async { "healthy" })), 1 << 20);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let server = tokio::spawn(serve(listener, router, bounds, shutdown.clone()));
    (address, shutdown, server)
}

async fn send(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    // An aborted connection may end with a reset; data received before it still counts.
    let _ = tokio::time::timeout(TEST_TIMEOUT, read).await.expect("the server never closed the connection");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn a_head_that_never_comes_is_not_waited_for() {
    let (address, _shutdown, _server) = start(limits()).await;
    let mut slow = send(address, "GET / HTTP/1.1\r\nHos").await;
    let answer = read_to_end(&mut slow).await;
    assert!(!answer.contains("200 OK"), "{answer}");
}

/// Checks that an answer is in the envelope, has a request id and closes its connection; returns its error code.
#[track_caller]
fn refused(answer: &str, status: u16) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    assert!(head.contains("\r\nx-request-id: ") && head.contains("\r\ntraceparent: "), "{answer}");
    assert!(head.contains("\r\nconnection: close"), "{answer}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
    assert!(body["error"]["message"].is_string(), "{answer}");
    body["error"]["code"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn whoever_finds_no_place_is_told_so_and_health_is_answered_all_the_same() {
    let bounds = ServeLimits { max_connections: 1, header_read_timeout: TEST_TIMEOUT, ..limits() };
    let (address, _shutdown, _server) = start(bounds).await;
    let mut first = send(address, "GET /endless HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut head = [0; 12];
    first.read_exact(&mut head).await.unwrap();
    for _ in 0..3 {
        let mut second = send(address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let answer = read_to_end(&mut second).await;
        assert_eq!(refused(&answer, 503), "CAPACITY_EXHAUSTED");
        assert!(answer.contains("retry-after: 1"), "{answer}");
        let mut third = send(address, "GET /health HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let answer = read_to_end(&mut third).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("healthy"), "{answer}");
    }
    drop(first);
    let deadline = std::time::Instant::now() + TEST_TIMEOUT;
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    while !read_to_end(&mut send(address, request).await).await.ends_with("hello") {
        assert!(std::time::Instant::now() < deadline, "the permit was never released");
    }
}

#[tokio::test]
async fn an_idle_connection_makes_room_for_one_that_asks() {
    for received in ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\r\nHos", ""] {
        let bounds = ServeLimits { max_connections: 1, header_read_timeout: TEST_TIMEOUT, ..limits() };
        let (address, _shutdown, _server) = start(bounds).await;
        let mut idle = send(address, received).await;
        if received.ends_with("\r\n\r\n") {
            let mut answer = vec![0; 4096];
            let length = idle.read(&mut answer).await.unwrap();
            assert!(answer[..length].ends_with(b"hello"));
        }
        let mut newcomer = send(address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        assert!(read_to_end(&mut newcomer).await.ends_with("hello"), "{received:?}");
        assert_eq!(read_to_end(&mut idle).await, "", "{received:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let bounds = ServeLimits { header_read_timeout: TEST_TIMEOUT * 100, ..limits() };
    let (address, _shutdown, _server) = start(bounds).await;
    for head in ["Content-Length: 1000\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"] {
        let mut stalled = send(address, &format!("POST /echo HTTP/1.1\r\nHost: a\r\n{head}")).await;
        let mut answer = Vec::new();
        stalled.read_to_end(&mut answer).await.unwrap();
        assert_eq!(refused(&String::from_utf8(answer).unwrap(), 408), "REQUEST_TIMEOUT");
    }
}

#[tokio::test]
async fn what_is_no_http_is_answered_in_the_envelope_too() {
    let (address, _shutdown, _server) =
        start(ServeLimits { header_read_timeout: TEST_TIMEOUT, ..limits() }).await;
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(101));
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(65_535));
    let unended = format!("GET / HTTP/1.1\r\nHost: a\r\nb: {}", "b".repeat(400_000));
    let mut answers = Vec::new();
    for (request, name) in [
        ("hello\r\n\r\n", "HTTP/1.1"),
        ("GET / HTTP/3.0\r\n\r\n", "HTTP/1.1"),
        ("\u{16}\u{3}\u{1}\u{2}", "HTTP/1.1"),
        ("GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", "Content-Length"),
        (&many, "100 headers"),
        (&long, "64 KiB"),
        (&unended, "64 KiB"),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // It may be refused while it is still being sent, and is read all the same.
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = read_to_end(&mut stream).await;
        assert_eq!(refused(&answer, 400), "INVALID_REQUEST", "{request:.60}");
        assert!(answer.contains(name), "{request:.60}: {answer}");
        answers.push(answer);
    }
    // After a valid request on the same connection.
    let mut stream = send(address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut answer = vec![0; 4096];
    let length = stream.read(&mut answer).await.unwrap();
    assert!(answer[..length].ends_with(b"hello"));
    stream.write_all(b"hello\r\n\r\n").await.unwrap();
    assert_eq!(refused(&read_to_end(&mut stream).await, 400), "INVALID_REQUEST");
    let mut both = send(address, "GET / HTTP/1.1\r\nHost: a\r\n\r\nhello\r\n\r\n").await;
    let answer = read_to_end(&mut both).await;
    let (first, second) = answer.split_once("hello").unwrap();
    assert!(first.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(refused(second, 400), "INVALID_REQUEST");
}

/// A service's response that only looks like an error of the HTTP library.
#[tokio::test]
async fn what_a_service_says_is_left_as_it_is() {
    const LOOKALIKE: &str = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
    let pieces = || async {
        let pieces = futures::stream::unfold(0, |count| async move {
            tokio::task::yield_now().await;
            (count < 3).then_some((Ok::<_, Infallible>(LOOKALIKE), count + 1))
        });
        let length = (LOOKALIKE.len() * 3).to_string();
        ([("content-length", length)], Body::from_stream(pieces))
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/", get(pieces));
    tokio::spawn(serve(listener, router, limits(), CancellationToken::new()));
    let mut stream = send(address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    let answer = read_to_end(&mut stream).await;
    assert_eq!(answer.split_once("\r\n\r\n").unwrap().1, LOOKALIKE.repeat(3));
}

#[tokio::test]
async fn the_drain_ends_by_its_deadline_with_a_stream_open() {
    let (address, shutdown, server) = start(limits()).await;
    let mut stream = send(address, "GET /endless HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    shutdown.cancel();
    tokio::time::timeout(TEST_TIMEOUT, server).await.expect("the drain never ended").unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "the listener is still open");
}

#[tokio::test]
async fn an_idle_server_ends_at_once() {
    let (_, shutdown, server) = start(ServeLimits { drain_timeout: TEST_TIMEOUT, ..limits() }).await;
    shutdown.cancel();
    tokio::time::timeout(TEST_TIMEOUT, server).await.expect("the server never ended").unwrap();
}

#[tokio::test]
async fn whoever_is_refused_while_sending_can_send_on_and_read_why() {
    const LENGTH: usize = 8 << 20;
    let (address, _shutdown, _server) = start(limits()).await;
    let head = format!("POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n");
    let body = vec![b'x'; LENGTH];
    for sent_before in [0, 100_000, LENGTH] {
        let (before, after) = body.split_at(sent_before);
        let mut stream = send(address, &head).await;
        stream.write_all(before).await.expect("the server stopped reading before the answer");
        let mut answer = vec![0; 4096];
        let length = tokio::time::timeout(TEST_TIMEOUT, stream.read(&mut answer)).await.unwrap().unwrap();
        let answer =
            String::from_utf8_lossy(&answer[..length]).into_owned() + &read_to_end(&mut stream).await;
        assert!(answer.contains("413") && answer.ends_with("too large"), "{sent_before}: {answer}");
        stream.write_all(after).await.expect("the server stopped reading after the answer");
    }
}

/// A client whose last request was refused before its body was read, and that keeps its connection open without
/// using it.
#[tokio::test]
async fn who_was_refused_and_is_idle_does_not_hold_up_the_end() {
    let bounds = ServeLimits { header_read_timeout: TEST_TIMEOUT, drain_timeout: TEST_TIMEOUT, ..limits() };
    for (length, refused_while_sending) in [(2, false), (8 << 20, true)] {
        let (address, shutdown, server) = start(bounds).await;
        let head = format!("POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        let mut idle = send(address, &(head + "{}")).await;
        let mut answer = [0; 12];
        idle.read_exact(&mut answer).await.unwrap();
        if refused_while_sending {
            read_to_end(&mut idle).await;
        }
        let started = std::time::Instant::now();
        shutdown.cancel();
        tokio::time::timeout(TEST_TIMEOUT, server).await.expect("the server never ended").unwrap();
        assert!(started.elapsed() < Duration::from_secs(3), "{length}: {:?}", started.elapsed());
        drop(idle);
    }
}
