//! A web server of this machine that says one thing, and remembers what it was asked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// It serves while it lives.
#[derive(Debug)]
pub(crate) struct WebServer {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    task: AbortHandle,
}

impl WebServer {
    /// Answers every request with `answer`, a whole one from its status line on.
    pub(crate) async fn new(answer: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                // One that says nothing is noted too.
                let request = handle(connection, &answer).await;
                noted.lock().unwrap().push(request);
            }
        });
        Self { address, requests: asked, task: task.abort_handle() }
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

    /// What it was asked: each request with head and body.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn handle(mut connection: TcpStream, answer: &str) -> String {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !is_complete_request(&request) {
        match connection.read(&mut buffer).await {
            Ok(read @ 1..) => request.extend_from_slice(&buffer[..read]),
            _ => break,
        }
    }
    // Who has gone hears nothing.
    let _ = connection.write_all(answer.as_bytes()).await;
    let _ = connection.shutdown().await;
    String::from_utf8_lossy(&request).into_owned()
}

/// Whether a request is there up to the end of the body that its head promises.
fn is_complete_request(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    body.len() >= length.unwrap_or(0)
}
