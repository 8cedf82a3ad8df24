//! Story 1, in the terminal: a person talks to their engine with `roundhouse chat`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mock_llm::{Gate, MockProvider, Reply};
use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Fleet, processes};

/// Reads a complete request and returns it with `connection: close` added.
async fn read_request(client: &mut TcpStream) -> String {
    let mut request = String::new();
    loop {
        let mut bytes = [0; 4_096];
        let count = client.read(&mut bytes).await.unwrap();
        assert!(count > 0, "the request is incomplete: {request}");
        request += std::str::from_utf8(&bytes[..count]).unwrap();
        let Some((head, body)) = request.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
        if body.len() == length.parse::<usize>().unwrap() {
            return format!("{head}\r\nconnection: close\r\n\r\n{body}");
        }
    }
}

/// Starts an orchestrator that answers every admit with `admission`; returns its address.
async fn orchestrator(admission: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            read_request(&mut client).await;
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length:";
            let answer = format!("{head} {}\r\n\r\n{admission}", admission.len());
            client.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    address
}

/// Starts a proxy for the engine at `url` that cuts off the responses to the first two messages once they have
/// begun. Returns its address and a counter of the messages.
async fn lossy_proxy(url: &str) -> (String, Arc<AtomicU32>) {
    let engine = url.strip_prefix("http://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let messages = Arc::new(AtomicU32::new(0));
    let message_count = Arc::clone(&messages);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (engine, message_count) = (engine.clone(), Arc::clone(&message_count));
            tokio::spawn(async move {
                let request = read_request(&mut client).await;
                let mut server = TcpStream::connect(engine).await.unwrap();
                server.write_all(request.as_bytes()).await.unwrap();
                if request.starts_with("POST /execute ") && message_count.fetch_add(1, Ordering::Relaxed) < 2
                {
                    server.read_u8().await.unwrap();
                    return;
                }
                // The client may have disconnected.
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (address, messages)
}

#[tokio::test]
async fn a_signal_cancels_the_turn_and_the_next_message_is_answered() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    provider.enqueue_all([
        Reply::from_text("The first half, and the second half.").deltas(4).hold(2, &gate),
        Reply::from_text("And that is all."),
    ]);
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let folder = fleet.folder();
    let arguments = ["chat", "--user", "ada", "--dir", folder.to_str().unwrap()];
    let (mut chat, mut input) = fleet.test_env.run_interactive(&arguments, &fleet.variables);

    input.write_all(b"tell me\n").await.unwrap();
    chat.wait_for_output("The first half").await.unwrap();
    processes::signal(chat.pid(), Signal::INT);
    chat.wait_for_output("The turn was cancelled.").await.unwrap();
    assert!(chat.is_running() && !chat.output().contains("second half"), "{}", chat.output());

    gate.release();
    input.write_all(b"is that all?\n").await.unwrap();
    let output = chat.wait_for_output("And that is all.").await.unwrap();
    assert!(!output.contains("second half"), "{output}");
    drop(input);
    chat.wait().await.assert_failure(4, &["And that is all."]);
    up.signal_and_wait(Signal::TERM).await.assert_success();
}

#[tokio::test]
async fn a_message_whose_answer_got_lost_is_sent_again_and_said_once() {
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue(Reply::from_text("I heard you."));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let mut admission = up.product().admit("ada").await.assert_ok("admitted:bool engine:object");
    let (url, messages) = lossy_proxy(admission["engine"]["url"].as_str().unwrap()).await;
    admission["engine"]["url"] = json!(url);
    let orchestrator = orchestrator(admission.to_string()).await;
    let folder = fleet.folder().to_str().unwrap();
    let arguments = ["chat", "--user", "ada", "--dir", folder, "--url", &orchestrator];
    let (mut chat, mut input) = fleet.test_env.run_interactive(&arguments, &fleet.variables);
    input.write_all(b"can you hear me?\n").await.unwrap();
    let output = chat.wait_for_output("I heard you.").await.unwrap();
    assert_eq!(output.matches("I heard you.").count(), 1, "{output}");
    drop(input);
    chat.wait().await.assert_success();
    assert_eq!((messages.load(Ordering::Relaxed), provider.requests().len()), (3, 1));
}
