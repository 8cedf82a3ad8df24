//! Tests of sessions and connection attempts that end.

use std::sync::atomic::AtomicBool;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::super::{ClientError, IDLE_TIMEOUT, Timeouts};
use super::*;
use crate::request_auth::RequestAuth;

#[tokio::test]
async fn a_session_that_is_over_is_renewed() {
    let fixture = ClientFixture::new();
    let over = AtomicUsize::new(0);
    let fake = FakeServer::start(move |sent| {
        handshake_response(sent, |call| match over.fetch_add(1, Ordering::AcqRel) {
            1 => StatusCode::NOT_FOUND.into_response(),
            _ => call.result(&text("well")),
        })
    })
    .await;
    let spec = fake.spec();
    assert_eq!(fixture.call_text(&spec, "echo").await, "well");
    assert_eq!(fixture.call_text(&spec, "echo").await, "well");
    assert_eq!(fake.requests("initialize").len(), 2);
}

#[tokio::test]
async fn what_was_under_way_in_a_session_that_is_over_has_an_unknown_outcome() {
    let fixture = ClientFixture::new();
    let (streams, over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let fake = FakeServer::start(move |sent| {
        handshake_response(sent, |call| match call.message["params"]["name"].as_str() {
            Some("slow") => {
                let (stream, response) = events();
                streams.lock().unwrap().push(stream);
                response
            }
            _ if !over.swap(true, Ordering::AcqRel) => StatusCode::NOT_FOUND.into_response(),
            _ => call.result(&text("well")),
        })
    })
    .await;
    let spec = fake.spec();
    fixture.connect(&spec).await;
    let (slow, quick) = tokio::join!(fixture.call(&spec, "slow"), async {
        fake.wait_for_request("tools/call").await;
        fixture.call(&spec, "quick").await
    });
    let reason = expect_failure(slow);
    assert!(
        reason.contains("its session has expired. It is not known whether `slow` took effect"),
        "{reason}"
    );
    assert_eq!(expect_done(quick), "well");
    assert_eq!((fake.requests("initialize").len(), fixture.status()), (2, ConnectionStatus::Connected));
}

#[tokio::test]
async fn an_answer_that_comes_when_the_session_is_over_does_not_wait_for_nothing() {
    let fixture = ClientFixture::new();
    let streams = Mutex::new(Vec::new());
    let fake = FakeServer::start(move |sent| {
        if sent.message["result"].is_object() {
            return StatusCode::NOT_FOUND.into_response();
        }
        handshake_response(sent, |_| {
            let (stream, response) = events();
            let schema = json!({"type": "object", "properties": {"it": {"type": "string"}}});
            let params = json!({"message": "Which?", "requestedSchema": schema});
            let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": params});
            stream.send(event(&ask)).unwrap();
            streams.lock().unwrap().push(stream);
            response
        })
    })
    .await;
    let spec = fake.spec();
    let mut call = tool_call("echo", json!({}));
    expect_question(fixture.call_with(&spec, &call).await);
    call.answer = Some("this");
    let reason = expect_failure(fixture.call_with(&spec, &call).await);
    assert!(
        reason.contains("its session has expired. It is not known whether `echo` took effect"),
        "{reason}"
    );
}

/// Accepts one connection, sends this response, then nothing more; returns how the connection ended.
async fn silent_server(answer: &'static str) -> (Url, tokio::task::JoinHandle<std::io::Result<usize>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        stream.write_all(answer.as_bytes()).await?;
        stream.read_to_end(&mut Vec::new()).await
    });
    (url, served)
}

#[tokio::test]
async fn an_attempt_that_is_given_up_leaves_nothing_open_at_a_silent_server() {
    let events = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let half = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    for answer in ["", events, half] {
        let fixture = ClientFixture::with_timeouts(Timeouts {
            idle: IDLE_TIMEOUT,
            connect: Duration::from_millis(200),
        });
        let (url, served) = silent_server(answer).await;
        let fake = FakeServer { url, requests: RequestLog::default() };
        let listed = with_deadline(fixture.clients.list_tools(&fake.spec(), RequestAuth::None)).await;
        assert!(matches!(listed, Err(ClientError::Failed(reason)) if reason.contains("did not answer")));
        let ended = tokio::time::timeout(Duration::from_secs(1), served).await;
        assert!(matches!(ended, Ok(Ok(_))), "it is still connected, having answered {answer:?}");
    }
}
