//! An engine's own word: how it is (`GET /health`), whether it is that engine, and what it is told (`POST /rpc`).
//!
//! A plain HTTP/1.0 exchange over its own connection, which the engine closes: no pool to keep for thousands
//! of engines that are asked twice a minute, nothing to parse but a status line and a body.

use api::engine::{ENGINE_KEY_HEADER, EngineHealth};
use api::proof::{CHALLENGE_HEADER, Challenge, PROOF_HEADER};
use api::{EngineKey, ErrorBody, ErrorCode, KeyHash};
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use uuid::Uuid;
use zeroize::Zeroizing;

/// Why an engine did not say how it is, or that it is the one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProbeError {
    /// No connection, or it broke.
    #[error("it does not answer on port {port}: {reason}")]
    Unreachable {
        /// Where it was asked.
        port: u16,
        /// What the system said.
        reason: String,
    },
    /// An answer that is no health answer.
    #[error("its /health answered {0}")]
    Malformed(String),
    /// It answered that the key is not its own.
    #[error("what answers on port {port} refuses the key")]
    KeyRefused {
        /// Where it was asked.
        port: u16,
    },
    /// It gives no proof of the key, though it could if it were the engine.
    #[error("what answers on port {port} gives no proof that it has this engine's key")]
    Unproven {
        /// Where it was asked.
        port: u16,
    },
    /// No answer in time.
    #[error("no answer within {seconds} s")]
    TimedOut {
        /// How long it was waited for.
        seconds: u64,
    },
    /// It does not show that the key is its own.
    #[error("what answers on port {port} does not take this engine's key: it answered {answer}")]
    WrongEngine {
        /// Where it was asked.
        port: u16,
        /// What it said.
        answer: String,
    },
}

/// Asks engines how they are, and whether they are who they should be.
pub(crate) trait Probe: Send + Sync + 'static {
    /// What the engine on `port` says, and whether it proves that it has the key of `hash`. Dropped when the asker has
    /// waited long enough.
    fn check_health(&self, port: u16, hash: KeyHash) -> BoxFuture<'_, Result<HealthReport, ProbeError>>;

    /// Makes sure, by sending it, that it is the engine of `key` that answers on `port`. Dropped like [`Probe::check_health`].
    fn identify<'a>(&'a self, port: u16, key: &'a EngineKey) -> BoxFuture<'a, Result<(), ProbeError>>;

    /// Sends `command` to the engine's `/rpc`, and returns its `result`. Dropped like [`Probe::check_health`].
    fn rpc<'a>(
        &'a self,
        port: u16,
        key: &'a EngineKey,
        command: &'a Value,
    ) -> BoxFuture<'a, Result<Value, ProbeError>>;
}

/// What an engine says of itself, and of its key.
#[derive(Clone, Debug)]
pub(crate) struct HealthReport {
    pub(crate) health: EngineHealth,
    pub(crate) proof: KeyProof,
}

/// Whether an engine has proven that it has its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyProof {
    /// It has.
    Valid,
    /// It has another key, or is no engine of ours.
    Invalid,
    /// It gave none, as engines of earlier versions do.
    Absent,
}

/// Asks over HTTP on `host`.
pub(crate) struct HttpProbe {
    pub(crate) host: &'static str,
}

/// What ends the head of an answer.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// More than any health answer has.
const MAX_RESPONSE_BYTES: u64 = 64 * 1024;

impl Probe for HttpProbe {
    fn check_health(&self, port: u16, hash: KeyHash) -> BoxFuture<'_, Result<HealthReport, ProbeError>> {
        Box::pin(async move {
            let challenge = Challenge::generate();
            let challenge =
                challenge.map_err(|error| ProbeError::Unreachable { port, reason: error.to_string() })?;
            let header = format!("{CHALLENGE_HEADER}: {challenge}\r\n");
            let answer = self.send_request(port, "GET /health", &header, "").await?;
            let body = expect_body(&answer, "200").map_err(ProbeError::Malformed)?;
            let health = serde_json::from_slice(body)
                .map_err(|error| ProbeError::Malformed(unexpected_body(&error)))?;
            let proof = match header_value(&answer, PROOF_HEADER) {
                None => KeyProof::Absent,
                Some(proof) if challenge.verify(&proof, hash) => KeyProof::Valid,
                Some(_) => KeyProof::Invalid,
            };
            Ok(HealthReport { health, proof })
        })
    }

    fn identify<'a>(&'a self, port: u16, key: &'a EngineKey) -> BoxFuture<'a, Result<(), ProbeError>> {
        Box::pin(async move {
            // The cheapest question that needs the key: no task has this name.
            let question = format!("GET /execute/replay?task_id={}", Uuid::now_v7().simple());
            let answer = self.send_request(port, &question, &key_header(key), "").await?;
            if expect_body(&answer, "401").is_ok() {
                return Err(ProbeError::KeyRefused { port });
            }
            expect_no_such_task(&answer).map_err(|answer| ProbeError::WrongEngine { port, answer })
        })
    }

    fn rpc<'a>(
        &'a self,
        port: u16,
        key: &'a EngineKey,
        command: &'a Value,
    ) -> BoxFuture<'a, Result<Value, ProbeError>> {
        Box::pin(async move {
            let answer = self.send_request(port, "POST /rpc", &key_header(key), &command.to_string()).await?;
            if expect_body(&answer, "401").is_ok() {
                return Err(ProbeError::KeyRefused { port });
            }
            let body = expect_body(&answer, "200").map_err(ProbeError::Malformed)?;
            let RpcResult { result } = serde_json::from_slice(body)
                .map_err(|error| ProbeError::Malformed(unexpected_body(&error)))?;
            Ok(result)
        })
    }
}

/// What `/rpc` answers when it does as it is told.
#[derive(Deserialize)]
struct RpcResult {
    result: Value,
}

/// The header line that opens an engine.
fn key_header(key: &EngineKey) -> Zeroizing<String> {
    Zeroizing::new(format!("{ENGINE_KEY_HEADER}: {}\r\n", key.expose()))
}

impl HttpProbe {
    /// What comes back for `question` (method and path) with `body`; `header` is a whole line, or empty.
    async fn send_request(
        &self,
        port: u16,
        question: &str,
        header: &str,
        body: &str,
    ) -> Result<Vec<u8>, ProbeError> {
        let host = self.host;
        let length = body.len();
        let request = Zeroizing::new(format!(
            "{question} HTTP/1.0\r\nHost: {host}:{port}\r\n{header}Content-Length: {length}\r\n\r\n{body}"
        ));
        let exchange = async {
            let mut stream = TcpStream::connect((host, port)).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut answer = Vec::new();
            stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut answer).await?;
            Ok(answer)
        };
        exchange
            .await
            .map_err(|error: std::io::Error| ProbeError::Unreachable { port, reason: error.to_string() })
    }
}

/// Whether an engine says that it has no such task; if not, what is said instead.
fn expect_no_such_task(answer: &[u8]) -> Result<(), String> {
    let refusal: ErrorBody =
        serde_json::from_slice(expect_body(answer, "404")?).map_err(|error| unexpected_body(&error))?;
    match refusal.error.code {
        ErrorCode::TaskNotFound => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

fn unexpected_body(error: &serde_json::Error) -> String {
    format!("another body: {error}")
}

/// A header of an answer.
fn header_value(answer: &[u8], name: &str) -> Option<String> {
    let head = answer.windows(HEAD_END.len()).position(|bytes| bytes == HEAD_END)?;
    let head = String::from_utf8_lossy(answer.get(..head)?);
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(named, _)| named.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
}

/// The body of an answer with this status; else what came instead.
fn expect_body<'a>(answer: &'a [u8], status: &str) -> Result<&'a [u8], String> {
    let end = answer.windows(HEAD_END.len()).position(|bytes| bytes == HEAD_END);
    let Some((head, rest)) = end.and_then(|end| answer.split_at_checked(end)) else {
        return Err("no HTTP".to_owned());
    };
    let head = String::from_utf8_lossy(head);
    if !head.starts_with("HTTP/1.") || head.split_whitespace().nth(1) != Some(status) {
        return Err(format!("`{}`", head.lines().next().unwrap_or_default()));
    }
    Ok(rest.get(HEAD_END.len()..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const HEALTHY_BODY: &str = r#"{"status": "ok", "uptime_seconds": 1.5,
        "subsystems": {"database": "ok", "llm_provider": "ok", "asset_directory": "ok"}}"#;

    const PROBE: HttpProbe = HttpProbe { host: "127.0.0.1" };

    /// A port on which one question is answered with `answer`, and the question, once it was put.
    async fn engine(answer: &'static str) -> (u16, impl Future<Output = String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let engine = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1_024];
            let length = stream.read(&mut request).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(request[..length].to_vec()).unwrap()
        };
        (port, engine)
    }

    /// What the probe makes of `answer`.
    async fn check_health_of(answer: &'static str) -> Result<EngineHealth, ProbeError> {
        let (port, engine) = engine(answer).await;
        let (said, question) = tokio::join!(PROBE.check_health(port, KeyHash::of("a key")), engine);
        assert!(question.starts_with("GET /health HTTP/1."), "{question}");
        said.map(|said| said.health)
    }

    /// Whether the probe takes what gives `answer` for the engine that it looks for.
    async fn identify_of(answer: &'static str) -> Result<(), ProbeError> {
        let key = EngineKey::generate().unwrap();
        let (port, engine) = engine(answer).await;
        let (known, question) = tokio::join!(PROBE.identify(port, &key), engine);
        assert!(question.starts_with("GET /execute/replay?task_id="), "{question}");
        assert!(question.contains(&format!("\r\nx-engine-key: {}\r\n", key.expose())));
        assert!(question.ends_with("\r\n\r\n"));
        known
    }

    #[tokio::test]
    async fn a_health_answer_is_read() {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{HEALTHY_BODY}");
        assert_eq!(check_health_of(answer.leak()).await.unwrap().status, "ok");
    }

    #[tokio::test]
    async fn anything_else_is_told_apart() {
        for (answer, what) in [
            ("", "no HTTP"),
            ("SSH-2.0-OpenSSH\r\n\r\n", "SSH"),
            ("HTTP/1.1 503 Service Unavailable\r\n\r\n{}", "503"),
            ("HTTP/1.1 200 OK\r\n\r\nhello", "another body"),
        ] {
            let unwell = check_health_of(answer).await.unwrap_err().to_string();
            assert!(unwell.contains(what), "{answer:?}: {unwell}");
        }
        let silent = PROBE.check_health(1, KeyHash::of("a key")).await.unwrap_err();
        assert!(matches!(silent, ProbeError::Unreachable { port: 1, .. }));
    }

    /// `text` as it goes over the wire.
    fn on_the_wire(text: &str) -> String {
        text.replace('\n', "\r\n")
    }

    /// What version 0.1's engines say and are told.
    #[tokio::test]
    async fn lesson_o19_an_engine_of_an_earlier_version_is_understood_and_understands() {
        let health = on_the_wire(include_str!("../../fixtures/0.1/health.http"));
        assert_eq!(check_health_of(health.leak()).await.unwrap().subsystems.database, "ok");
        let key = EngineKey::from_text("sk-svc-fixture".to_owned());
        for (command, answer) in [
            (
                include_str!("../../fixtures/0.1/set_key_hash.json"),
                include_str!("../../fixtures/0.1/set_key_hash.http"),
            ),
            (
                include_str!("../../fixtures/0.1/quiesce.json"),
                include_str!("../../fixtures/0.1/quiesce.http"),
            ),
            (
                include_str!("../../fixtures/0.1/activity.json"),
                include_str!("../../fixtures/0.1/activity.http"),
            ),
        ] {
            let (port, engine) = engine(on_the_wire(answer).leak()).await;
            let command: Value = serde_json::from_str(command).unwrap();
            let (said, told) = tokio::join!(PROBE.rpc(port, &key, &command), engine);
            assert!(said.unwrap().is_object());
            let request = on_the_wire(include_str!("../../fixtures/0.1/rpc_request.http"));
            let (body, port) = (command.to_string(), port.to_string());
            let request = request
                .replace("PORT", &port)
                .replace("LENGTH", &body.len().to_string())
                .replace("BODY", &body);
            assert_eq!(told, request.trim_end());
        }
    }

    /// An engine that proves its key with `hash`, if it has one.
    async fn examined(hash: Option<KeyHash>) -> (KeyProof, String, EngineKey) {
        let key = EngineKey::generate().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let hash = hash.map(|hash| if hash == KeyHash::of("its own") { key.hash() } else { hash });
        let engine = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1_024];
            let length = stream.read(&mut request).await.unwrap();
            let request = String::from_utf8(request[..length].to_vec()).unwrap();
            let challenge = header_value(request.as_bytes(), CHALLENGE_HEADER).unwrap();
            let proof = hash.map(|hash| Challenge::parse(&challenge).unwrap().proof(hash));
            let proof = proof.map(|proof| format!("X-Engine-Proof: {proof}\r\n")).unwrap_or_default();
            let answer = format!("HTTP/1.1 200 OK\r\n{proof}\r\n{HEALTHY_BODY}");
            stream.write_all(answer.as_bytes()).await.unwrap();
            request
        };
        let (examined, request) = tokio::join!(PROBE.check_health(port, key.hash()), engine);
        (examined.unwrap().proof, request, key)
    }

    #[tokio::test]
    async fn an_engine_proves_its_key_and_is_not_sent_it() {
        let (proof, request, key) = examined(Some(KeyHash::of("its own"))).await;
        assert_eq!(proof, KeyProof::Valid);
        assert!(!request.contains(key.expose()) && !request.contains(&key.hash().to_hex()), "{request}");
        assert_eq!(examined(Some(KeyHash::of("another's"))).await.0, KeyProof::Invalid);
        assert_eq!(examined(None).await.0, KeyProof::Absent);
    }

    #[tokio::test]
    async fn only_the_engine_that_takes_the_key_is_the_one() {
        let known =
            "HTTP/1.0 404 Not Found\r\n\r\n{\"error\": {\"code\": \"TASK_NOT_FOUND\", \"message\": \"\"}}";
        assert_eq!(identify_of(known).await, Ok(()));
        let refused = identify_of("HTTP/1.0 401 Unauthorized\r\n\r\n{}").await.unwrap_err();
        assert!(matches!(refused, ProbeError::KeyRefused { .. }), "{refused}");
        for (answer, what) in [
            ("HTTP/1.0 200 OK\r\n\r\n{}", "200"),
            ("HTTP/1.0 404 Not Found\r\n\r\n<html>", "another body"),
            (
                "HTTP/1.0 404 Not Found\r\n\r\n{\"error\": {\"code\": \"NOT_FOUND\", \"message\": \"\"}}",
                "NotFound",
            ),
            ("", "no HTTP"),
        ] {
            let stranger = identify_of(answer).await.unwrap_err();
            assert!(matches!(stranger, ProbeError::WrongEngine { .. }), "{answer:?}: {stranger}");
            assert!(stranger.to_string().contains(what), "{answer:?}: {stranger}");
        }
        let key = EngineKey::generate().unwrap();
        assert!(matches!(PROBE.identify(1, &key).await, Err(ProbeError::Unreachable { port: 1, .. })));
    }
}
