//! Test servers with scripted behavior, and a scripted resolver.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::new_without_default,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic fails the test that uses it"
)]

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use resources::dns::DnsError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::client::Resolver;

/// An action of a server on a connection, after it has read the head of a request.
#[derive(Clone, Debug)]
pub enum ServerAction {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Sends these bytes repeatedly, after each pause.
    Repeat(Vec<u8>, Duration),
    /// Does nothing any more.
    Hang,
    /// Resets the connection.
    Reset,
}

/// A server on loopback, which stops when it is dropped.
pub struct TestServer {
    /// Where it listens.
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
    accept_task: JoinHandle<()>,
}

impl TestServer {
    /// Starts a server at a free port of 127.0.0.1 that performs these actions for each request.
    pub async fn start(acts: Vec<ServerAction>) -> Self {
        Self::start_at("127.0.0.1:0", move |_| acts.clone()).await
    }

    /// Starts a server that responds with these bytes and closes the connection.
    pub async fn responding(answer: impl Into<Vec<u8>>) -> Self {
        Self::start(vec![ServerAction::Send(answer.into())]).await
    }

    /// Starts a server at an address, whose actions depend on the head of each request.
    pub async fn start_at(
        address: &str,
        act: impl Fn(&str) -> Vec<ServerAction> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, heads) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (counted, read) = (Arc::clone(&connections), Arc::clone(&heads));
        let act = Arc::new(act);
        let serving = tokio::spawn(async move {
            let mut tasks = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let (act, read) = (Arc::clone(&act), Arc::clone(&read));
                tasks.spawn(async move {
                    // Errors caused by the client do not matter here.
                    let _ = serve(stream, &*act, &read).await;
                });
            }
        });
        Self { address, connections, requests: heads, accept_task: serving }
    }

    /// Returns the URL of its root.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Returns the number of connections so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Returns what was read at once of each request so far: the head, and a short body.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.accept_task.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    act: &(dyn Fn(&str) -> Vec<ServerAction> + Send + Sync),
    heads: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let mut request = Vec::new();
    while !is_complete_request(&request) {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    heads.lock().unwrap().push(request.clone());
    for act in act(&request) {
        match act {
            ServerAction::Send(bytes) => stream.write_all(&bytes).await?,
            ServerAction::Repeat(bytes, pause) => loop {
                stream.write_all(&bytes).await?;
                tokio::time::sleep(pause).await;
            },
            ServerAction::Hang => std::future::pending().await,
            ServerAction::Reset => {
                stream.set_zero_linger()?;
                return Ok(());
            }
        }
    }
    stream.shutdown().await
}

fn is_complete_request(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}

/// Returns a response with a status line such as `200 OK`, a content type and a body.
pub fn http_answer(status: &str, content_type: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Returns a redirect.
pub fn redirect_answer(status: &str, location: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .into()
}

/// Names with their answers in order; the last one is repeated.
#[derive(Default)]
pub struct FakeResolver {
    answers: Mutex<HashMap<String, VecDeque<Vec<SocketAddr>>>>,
    lookups: AtomicUsize,
}

impl FakeResolver {
    /// Adds a name that resolves to these answers, one after the other. Port 0 stands for the requested port.
    #[must_use]
    pub fn with_name(self, name: &str, answers: &[&[&str]]) -> Self {
        let parse = |address: &&str| SocketAddr::new(address.parse().unwrap(), 0);
        let answers = answers.iter().map(|answer| answer.iter().map(parse).collect()).collect();
        self.answers.lock().unwrap().insert(name.to_owned(), answers);
        self
    }

    /// Returns the number of lookups so far.
    pub fn lookups(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }
}

impl Resolver for FakeResolver {
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> BoxFuture<'a, Result<Vec<SocketAddr>, DnsError>> {
        Box::pin(async move {
            self.lookups.fetch_add(1, Ordering::SeqCst);
            let mut answers = self.answers.lock().unwrap();
            let answers = answers.get_mut(name).ok_or_else(|| io::Error::other("no such name"))?;
            let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
            Ok(answer.unwrap().into_iter().map(|address| SocketAddr::new(address.ip(), port)).collect())
        })
    }
}
