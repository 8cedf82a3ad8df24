//! Proxied requests that the engine aborts while they are still being sent.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::Request;
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::testing::TestApp;

const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const CHUNK_BYTES: usize = 64 << 10;

/// How an engine aborts a request.
#[derive(Clone, Copy)]
struct AbortingEngine {
    answer: &'static str,
    /// Whether it shuts down its side of the connection before it closes, which marks the end of its answer.
    closes_cleanly: bool,
}

impl AbortingEngine {
    /// Reads the beginning of a request, waits for `proceed`, answers, and closes with the rest unread, which
    /// resets the connection.
    fn abort(self, listener: &TcpListener, proceed: &Receiver<()>) {
        let (mut connection, _) = listener.accept().unwrap();
        connection.read_exact(&mut [0; 100]).unwrap();
        proceed.recv_timeout(CALL_TIMEOUT).unwrap();
        connection.write_all(self.answer.as_bytes()).unwrap();
        if self.closes_cleanly {
            connection.shutdown(Shutdown::Write).unwrap();
        }
    }

    /// Returns a body of one chunk, and a second one as soon as the engine has closed. Nothing else runs on this
    /// thread meanwhile, so the client writes the second chunk before it notices the answer.
    fn body(self, listener: TcpListener) -> Body {
        let (sender, proceed) = channel();
        let mut engine = Some(thread::spawn(move || self.abort(&listener, &proceed)));
        let mut polls = 0;
        let chunk = || Poll::Ready(Some(Ok::<_, std::io::Error>(Bytes::from(vec![b' '; CHUNK_BYTES]))));
        Body::from_stream(futures::stream::poll_fn(move |context| {
            polls += 1;
            match polls {
                1 => chunk(),
                // Gives the client a chance to send the first chunk.
                2 => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                3 => {
                    sender.send(()).unwrap();
                    engine.take().unwrap().join().unwrap();
                    chunk()
                }
                _ => Poll::Pending,
            }
        }))
    }
}

/// Proxies a request to `engine`, which aborts it. Returns the status, and the body if it was complete.
async fn call_aborting_engine(engine: AbortingEngine) -> (u16, Option<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let app = TestApp::with_ports(port, port).await;
    let product = app.register_product("demo", json!({})).await;
    assert_eq!(product.provision("ann").await.0, 200);
    let request = Request::post("/engines/ann/proxy/execute").header("x-platform-key", &product.key);
    let request = request.header("content-length", 3 * CHUNK_BYTES).body(engine.body(listener)).unwrap();
    // Bypasses the response recorder: the document does not describe an engine's responses.
    let call = async {
        let (parts, body) = app.orchestrator.routes().oneshot(request).await.unwrap().into_parts();
        let body = to_bytes(body, usize::MAX).await.ok();
        (parts.status.as_u16(), body.map(|body| serde_json::from_slice(&body).unwrap()))
    };
    tokio::time::timeout(CALL_TIMEOUT, call).await.expect("the call was not answered")
}

#[tokio::test]
async fn the_answer_of_an_engine_that_hears_no_more_is_passed_on() {
    let answer = "HTTP/1.1 413 Payload Too Large\r\ncontent-length: 11\r\n\r\n\"too large\"";
    for closes_cleanly in [false, true] {
        let expected = (413, Some(json!("too large")));
        assert_eq!(
            call_aborting_engine(AbortingEngine { answer, closes_cleanly }).await,
            expected,
            "closes cleanly: {closes_cleanly}"
        );
    }
}

#[tokio::test]
async fn half_an_answer_is_none() {
    for (answer, expected) in [
        ("", 502),
        ("HTTP/1.1 413 Payload Too Large\r\ncontent-", 502),
        ("HTTP/1.1 413 Payload Too Large\r\ncontent-length: 17\r\n\r\n\"too large\"", 413),
        // The body has no length and no clean end, so it may be incomplete.
        ("HTTP/1.1 413 Payload Too Large\r\n\r\n\"too large\"", 413),
    ] {
        let (status, body) = call_aborting_engine(AbortingEngine { answer, closes_cleanly: false }).await;
        assert_eq!(status, expected, "{answer}");
        match status {
            502 => assert_eq!(body.unwrap()["error"]["code"], "BACKEND_ERROR", "{answer}"),
            _ => assert_eq!(body, None, "{answer}"),
        }
    }
}

crate::testing::also_with_own_addresses! {
    the_answer_of_an_engine_that_hears_no_more_is_passed_on,
    half_an_answer_is_none,
}
