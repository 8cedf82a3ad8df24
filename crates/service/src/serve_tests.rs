//! The accept loop over real sockets.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

fn bounds() -> Bounds {
    Bounds {
        max_connections: 2,
        header_read_timeout: Duration::from_millis(50),
        drain: Duration::from_millis(50),
    }
}

async fn start(bounds: Bounds) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
    let endless = || async { Body::from_stream(futures::stream::pending::<Result<String, Infallible>>()) };
    let refuse = |_: Request| async { (StatusCode::PAYLOAD_TOO_LARGE, "too large") };
    let router = Router::new().route("/", get(|| async { "hello" })).route("/endless", get(endless));
    let router = router.route("/refuse", post(refuse));
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
    // A connection that is cut may end with a reset; what came before it still counts.
    let _ = tokio::time::timeout(PATIENCE, read).await.expect("the server never closed the connection");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn a_head_that_never_comes_is_not_waited_for() {
    let (address, _shutdown, _server) = start(bounds()).await;
    let mut slow = send(address, "GET / HTTP/1.1\r\nHos").await;
    let answer = read_to_end(&mut slow).await;
    assert!(!answer.contains("200 OK"), "{answer}");
}

#[tokio::test]
async fn connections_over_the_cap_wait_for_a_place() {
    let (address, _shutdown, _server) =
        start(Bounds { max_connections: 1, header_read_timeout: PATIENCE, ..bounds() }).await;
    let mut first = send(address, "GET /endless HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut head = [0; 12];
    first.read_exact(&mut head).await.unwrap();
    let mut second = send(address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    let mut byte = [0; 1];
    let early = tokio::time::timeout(Duration::from_millis(50), second.read(&mut byte)).await;
    assert!(early.is_err(), "the second connection was served beside the first");
    drop(first);
    assert!(read_to_end(&mut second).await.contains("hello"));
}

#[tokio::test]
async fn the_drain_ends_by_its_deadline_with_a_stream_open() {
    let (address, shutdown, server) = start(bounds()).await;
    let mut stream = send(address, "GET /endless HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    shutdown.cancel();
    tokio::time::timeout(PATIENCE, server).await.expect("the drain never ended").unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "the listener is still open");
}

#[tokio::test]
async fn an_idle_server_ends_at_once() {
    let (_, shutdown, server) = start(Bounds { drain: PATIENCE, ..bounds() }).await;
    shutdown.cancel();
    tokio::time::timeout(PATIENCE, server).await.expect("the server never ended").unwrap();
}

#[tokio::test]
async fn whoever_is_refused_while_sending_can_send_on_and_read_why() {
    const LENGTH: usize = 8 << 20;
    let (address, _shutdown, _server) = start(bounds()).await;
    let head = format!("POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n");
    let body = vec![b'x'; LENGTH];
    for sent_before in [0, 100_000, LENGTH] {
        let (before, after) = body.split_at(sent_before);
        let mut stream = send(address, &head).await;
        stream.write_all(before).await.expect("what came before the answer was read");
        let mut answer = vec![0; 4096];
        let length = tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await.unwrap().unwrap();
        let answer =
            String::from_utf8_lossy(&answer[..length]).into_owned() + &read_to_end(&mut stream).await;
        assert!(answer.contains("413") && answer.ends_with("too large"), "{sent_before}: {answer}");
        stream.write_all(after).await.expect("what came after the answer was read");
    }
}

/// A client that keeps its connection and does not look at it, whose last request was refused before its body was read.
#[tokio::test]
async fn who_was_refused_and_is_idle_does_not_hold_up_the_end() {
    let bounds = Bounds { header_read_timeout: PATIENCE, drain: PATIENCE, ..bounds() };
    for (length, refused_while_sending) in [(2, false), (8 << 20, true)] {
        let (address, shutdown, server) = start(bounds).await;
        let head = format!("POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        let mut idle = send(address, &(head + "{}")).await;
        let mut answer = [0; 12];
        idle.read_exact(&mut answer).await.unwrap();
        if refused_while_sending {
            read_to_end(&mut idle).await;
        }
        let began = std::time::Instant::now();
        shutdown.cancel();
        tokio::time::timeout(PATIENCE, server).await.expect("the server never ended").unwrap();
        assert!(began.elapsed() < Duration::from_secs(3), "{length}: {:?}", began.elapsed());
        drop(idle);
    }
}
