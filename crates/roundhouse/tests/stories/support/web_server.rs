//! A web server that gives one fixed response and records its requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// A web server, which runs until this is dropped.
#[derive(Debug)]
pub(crate) struct WebServer {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    task: AbortHandle,
}

impl WebServer {
    /// Answers every request with `response`, a complete response including the status line.
    pub(crate) async fn new(response: impl Into<Vec<u8>>) -> Self {
        let response = response.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                // A connection without a request is recorded too.
                let request = handle(connection, &response).await;
                log.lock().unwrap().push(request);
            }
        });
        Self { address, requests, task: task.abort_handle() }
    }

    /// Answers with a file.
    pub(crate) async fn with_file(content_type: &str, content: &[u8]) -> Self {
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            content.len()
        );
        Self::new([head.as_bytes(), content].concat()).await
    }

    /// Answers with a plain text.
    pub(crate) async fn with_text(text: &str) -> Self {
        let length = text.len();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close";
        Self::new(format!("{head}\r\ncontent-length: {length}\r\n\r\n{text}")).await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// The requests so far, each with head and body.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn handle(mut connection: TcpStream, response: &[u8]) -> String {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !is_complete_request(&request) {
        match connection.read(&mut buffer).await {
            Ok(read @ 1..) => request.extend_from_slice(&buffer[..read]),
            _ => break,
        }
    }
    // The client may be gone.
    let _ = connection.write_all(response).await;
    let _ = connection.shutdown().await;
    String::from_utf8_lossy(&request).into_owned()
}

/// Whether `request` is complete, including the body of the announced length.
fn is_complete_request(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    body.len() >= length.unwrap_or(0)
}
