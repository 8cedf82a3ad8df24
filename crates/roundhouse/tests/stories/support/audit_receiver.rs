//! A receiver of audit rows that verifies each request by itself, and answers as a story wants: also not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::eventually;

/// A row that has come.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRow {
    pub(crate) id: i64,
    /// Empty if it concerns no engine.
    pub(crate) user: String,
    pub(crate) attempt: u64,
    pub(crate) body: Value,
    pub(crate) signatures: Vec<String>,
}

/// How a request is answered.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Status(u16),
    /// A status with further header lines and a body, as they are.
    Raw(String),
    /// The connection is closed without an answer.
    Cut,
    /// There is no answer for this time, and then 204.
    After(Duration),
}

pub(crate) const ACCEPT: Reply = Reply::Status(204);

type Decide = Box<dyn FnMut(&ReceivedRow) -> Reply + Send>;

/// A receiver, which runs until this is dropped.
pub(crate) struct AuditReceiver {
    address: SocketAddr,
    state: Arc<Mutex<AuditReceiverState>>,
    task: Option<AbortHandle>,
}

#[derive(Default)]
pub(crate) struct AuditReceiverState {
    /// All rows that have come, in their order.
    pub(crate) received: Vec<ReceivedRow>,
    /// Those that were accepted, in their order.
    pub(crate) accepted: Vec<ReceivedRow>,
    decide: Option<Decide>,
    /// The secrets, one of which each request must be signed with; none are checked if there are none.
    pub(crate) secrets: Vec<String>,
    /// What no receiver would accept.
    violations: Vec<String>,
}

impl AuditReceiver {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut this = Self { address, state: Arc::default(), task: None };
        this.serve(listener);
        this
    }

    fn serve(&mut self, listener: TcpListener) {
        let state = Arc::clone(&self.state);
        let task = tokio::spawn(async move {
            // Aborted with this task.
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                connections.spawn(serve_connection(connection, Arc::clone(&state)));
            }
        });
        self.task = Some(task.abort_handle());
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/audit?of=story", self.address)
    }

    /// Closes all connections, and accepts none.
    pub(crate) fn go_away(&mut self) {
        self.task.take().unwrap().abort();
    }

    /// Accepts connections again.
    pub(crate) async fn come_back(&mut self) {
        let listener =
            eventually("the port is free", async || TcpListener::bind(self.address).await.ok()).await;
        self.serve(listener);
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, AuditReceiverState> {
        self.state.lock().unwrap()
    }

    /// Decides how requests are answered from now on.
    pub(crate) fn answer(&self, decide: impl FnMut(&ReceivedRow) -> Reply + Send + 'static) {
        self.state().decide = Some(Box::new(decide));
    }

    /// Accepts everything from now on.
    pub(crate) fn accept_all(&self) {
        self.state().decide = None;
    }

    /// A body that creates a webhook to it.
    pub(crate) fn webhook(&self) -> Value {
        json!({"url": self.url()})
    }

    /// Waits until these rows were accepted, and asserts that those of each user came in their order.
    pub(crate) async fn wait_accepted(&self, rows: &BTreeSet<i64>) {
        eventually("rows are accepted", async || {
            let state = self.state();
            assert_eq!(state.violations, [""; 0]);
            let accepted: BTreeSet<i64> = state.accepted.iter().map(|row| row.id).collect();
            rows.is_subset(&accepted).then_some(())
        })
        .await;
        self.assert_in_order();
    }

    /// Asserts that of each user a row was accepted for the first time only after all earlier ones that ever were.
    pub(crate) fn assert_in_order(&self) {
        let mut seen = BTreeSet::new();
        let mut newest = BTreeMap::<String, i64>::new();
        for row in &self.state().accepted {
            if seen.insert(row.id) {
                let before = newest.insert(row.user.clone(), row.id).unwrap_or_default();
                assert!(before < row.id, "{} of `{}` came after {before}", row.id, row.user);
            }
        }
    }

    /// Waits until `count` requests have come.
    pub(crate) async fn wait_received(&self, count: usize) {
        eventually("requests come", async || (self.state().received.len() >= count).then_some(())).await;
    }
}

impl Drop for AuditReceiver {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn serve_connection(mut connection: TcpStream, state: Arc<Mutex<AuditReceiverState>>) {
    let mut unread = Vec::new();
    while let Some((head, body)) = read_request(&mut connection, &mut unread).await {
        let (row, reply) = {
            let mut state = state.lock().unwrap();
            let (row, violations) = verify(&head, &body, &state.secrets);
            state.violations.extend(violations);
            state.received.push(row.clone());
            let reply = state.decide.as_mut().map_or(ACCEPT, |decide| decide(&row));
            (row, reply)
        };
        let raw = match reply {
            Reply::Cut => return,
            Reply::Status(status) => format!("HTTP/1.1 {status} So\r\ncontent-length: 0\r\n\r\n"),
            Reply::Raw(raw) => raw,
            Reply::After(pause) => {
                tokio::time::sleep(pause).await;
                "HTTP/1.1 204 So\r\n\r\n".to_owned()
            }
        };
        if raw.starts_with("HTTP/1.1 2") {
            state.lock().unwrap().accepted.push(row);
        }
        if connection.write_all(raw.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The head and the body of the next request; `None` if there is none.
async fn read_request(connection: &mut TcpStream, unread: &mut Vec<u8>) -> Option<(String, String)> {
    let end_of_head = |bytes: &[u8]| bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4);
    let head = read_until(connection, unread, end_of_head).await?;
    let length: usize = header(&head, "content-length").unwrap().parse().unwrap();
    let body = read_until(connection, unread, |bytes| (bytes.len() >= length).then_some(length)).await?;
    Some((head, body))
}

/// Reads until `enough` says how many bytes are taken.
async fn read_until(
    connection: &mut TcpStream,
    unread: &mut Vec<u8>,
    enough: impl Fn(&[u8]) -> Option<usize>,
) -> Option<String> {
    loop {
        if let Some(length) = enough(unread) {
            return Some(String::from_utf8(unread.drain(..length).collect()).unwrap());
        }
        let mut buffer = [0; 4_096];
        match connection.read(&mut buffer).await {
            Ok(count) if count > 0 => unread.extend(&buffer[..count]),
            _ => return None,
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// The row of a request, and what is wrong with it.
fn verify(head: &str, body: &str, secrets: &[String]) -> (ReceivedRow, Vec<String>) {
    let document: Value = serde_json::from_str(body).unwrap();
    let row = &document["data"];
    let of = |name| header(head, name).unwrap_or_default();
    let (id, timestamp) = (of("webhook-id"), of("webhook-timestamp"));
    let signatures: Vec<String> = of("webhook-signature").split(' ').map(str::to_owned).collect();
    let now = i64::try_from(UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
    let signed = format!("{id}.{timestamp}.{body}");
    let is_signed = secrets.is_empty()
        || secrets.iter().any(|secret| signatures.contains(&signature(secret, signed.as_bytes())));
    let webhook = document["webhook_id"].as_str().unwrap();
    let rules = [
        ("line", head.starts_with("POST /audit?of=story HTTP/1.1\r\n")),
        ("type of content", of("content-type") == "application/json"),
        ("id", id == format!("{webhook}_{}", row["id"]) && document["delivery_id"] == id),
        ("time", (now - timestamp.parse::<i64>().unwrap()).abs() < 300),
        ("type", document["type"] == format!("audit.{}", row["event"].as_str().unwrap())),
        ("time of the row", document["timestamp"] == row["at"]),
        ("signature", is_signed),
    ];
    let violations =
        rules.iter().filter(|(_, holds)| !holds).map(|(rule, _)| format!("{rule}: {head}{body}"));
    let row = ReceivedRow {
        id: row["id"].as_i64().unwrap(),
        user: row["user_id"].as_str().unwrap_or_default().to_owned(),
        attempt: document["attempt"].as_u64().unwrap(),
        signatures,
        body: document.clone(),
    };
    (row, violations.collect())
}

/// The signature of Standard Webhooks, by the definition of HMAC (RFC 2104).
pub(crate) fn signature(secret: &str, signed: &[u8]) -> String {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let pad = |byte: u8| {
        let mut block = [byte; 64];
        block.iter_mut().zip(&key).for_each(|(block, key)| *block ^= key);
        block
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(signed).finalize();
    let outer = Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize();
    format!("v1,{}", STANDARD.encode(outer))
}
