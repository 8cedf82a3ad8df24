//! The client for an engine's control interface: health (`GET /health`), proof of identity, and commands
//! (`POST /rpc`).
//!
//! Each request is a plain HTTP/1.0 exchange over a connection of its own, which the engine closes: there is
//! no pool to maintain for thousands of engines that are checked twice a minute, and nothing to parse but a
//! status line, headers and a body.

use std::fmt;
use std::net::SocketAddr;

use api::engine::{ENGINE_KEY_HEADER, EngineHealth};
use api::proof::{CHALLENGE_HEADER, Challenge, PROOF_HEADER, USAGE_HEADER, WAITING_HEADER};
use api::{EngineKey, ErrorBody, ErrorCode, KeyHash};
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use uuid::Uuid;
use zeroize::Zeroizing;

/// Why a probe of an engine failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// Its backend knows no address of it.
    #[error("it has no address yet")]
    NoAddress,
    /// No connection could be made, or it broke.
    #[error("it does not answer on {}: {reason}", Place(*address))]
    Unreachable {
        /// The address that was probed.
        address: SocketAddr,
        /// The operating system's error.
        reason: String,
    },
    /// The response is not the expected one.
    #[error("it sent an unexpected response: {0}")]
    Malformed(String),
    /// The engine does not know the command: it is of an earlier version.
    #[error("the engine on {} does not know the command", Place(*address))]
    UnknownCommand {
        /// The address that was probed.
        address: SocketAddr,
    },
    /// The key was refused.
    #[error("the program on {} refuses the key", Place(*address))]
    KeyRefused {
        /// The address that was probed.
        address: SocketAddr,
    },
    /// There was no proof of the key, although this engine is able to give one.
    #[error("the program on {} gives no proof that it has this engine's key", Place(*address))]
    Unproven {
        /// The address that was probed.
        address: SocketAddr,
    },
    /// There was no answer in time.
    #[error("it did not answer within {seconds} s")]
    TimedOut {
        /// The time limit in seconds.
        seconds: u64,
    },
    /// The response to an authenticated request is not that of an engine that accepts the key.
    #[error("the program on {} does not accept this engine's key: it answered {answer}", Place(*address))]
    WrongEngine {
        /// The address that was probed.
        address: SocketAddr,
        /// The response's status line, or what is wrong with the response.
        answer: String,
    },
}

/// An address as messages name it: on this host, the port says it all.
struct Place(SocketAddr);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.ip().is_loopback() { write!(f, "port {}", self.0.port()) } else { self.0.fmt(f) }
    }
}

/// Checks the health and the identity of engines, and sends them commands. The calls have no deadline of
/// their own: callers drop them when they have waited long enough.
pub trait Probe: Send + Sync + 'static {
    /// Requests `/health` of the engine at `address`, and checks its proof that it has the key with `hash`.
    fn check_health(
        &self,
        address: SocketAddr,
        hash: KeyHash,
    ) -> BoxFuture<'_, Result<HealthReport, ProbeError>>;

    /// Checks that the engine at `address` accepts `key`, by sending it the key.
    fn identify<'a>(
        &'a self,
        address: SocketAddr,
        key: &'a EngineKey,
    ) -> BoxFuture<'a, Result<(), ProbeError>>;

    /// Sends `command` to the engine's `/rpc` and returns the `result` of the response.
    fn rpc<'a>(
        &'a self,
        address: SocketAddr,
        key: &'a EngineKey,
        command: &'a Value,
    ) -> BoxFuture<'a, Result<Value, ProbeError>>;
}

/// The health of an engine, and the proof of its key.
#[derive(Clone, Debug)]
pub struct HealthReport {
    /// The health that the engine reports.
    pub health: EngineHealth,
    /// Whether the engine has the expected key.
    pub proof: KeyProof,
    /// The tag of the questions that wait for a person; `None` with engines of earlier versions.
    pub waiting: Option<String>,
    /// The tag of what the engine has used; `None` with engines of earlier versions.
    pub usage: Option<String>,
}

/// Whether an engine has proved that it has its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyProof {
    /// The proof is valid.
    Valid,
    /// The proof is wrong: it has another key, or is another program.
    Invalid,
    /// There is no proof, as with engines of earlier versions.
    Absent,
}

/// The [`Probe`] that sends HTTP requests to engines.
pub struct HttpProbe;

/// The end of a response's head.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// How much of a response is read: more than any expected response has.
const MAX_RESPONSE_BYTES: u64 = 64 * 1024;

impl Probe for HttpProbe {
    fn check_health(
        &self,
        address: SocketAddr,
        hash: KeyHash,
    ) -> BoxFuture<'_, Result<HealthReport, ProbeError>> {
        Box::pin(async move {
            let challenge = Challenge::generate();
            let challenge =
                challenge.map_err(|error| ProbeError::Unreachable { address, reason: error.to_string() })?;
            let header = format!("{CHALLENGE_HEADER}: {challenge}\r\n");
            let response = self.send_request(address, "GET /health", &header, "").await?;
            let body = expect_body(&response, "200").map_err(ProbeError::Malformed)?;
            let health = serde_json::from_slice(body)
                .map_err(|error| ProbeError::Malformed(unexpected_body(&error)))?;
            let proof = match header_value(&response, PROOF_HEADER) {
                None => KeyProof::Absent,
                Some(proof) if challenge.verify(&proof, hash) => KeyProof::Valid,
                Some(_) => KeyProof::Invalid,
            };
            let waiting = header_value(&response, WAITING_HEADER);
            let usage = header_value(&response, USAGE_HEADER);
            Ok(HealthReport { health, proof, waiting, usage })
        })
    }

    fn identify<'a>(
        &'a self,
        address: SocketAddr,
        key: &'a EngineKey,
    ) -> BoxFuture<'a, Result<(), ProbeError>> {
        Box::pin(async move {
            // The cheapest request that requires the key: no task has this id.
            let target = format!("GET /execute/replay?task_id={}", Uuid::now_v7().simple());
            let response = self.send_request(address, &target, &key_header(key), "").await?;
            if expect_body(&response, "401").is_ok() {
                return Err(ProbeError::KeyRefused { address });
            }
            expect_no_such_task(&response).map_err(|answer| ProbeError::WrongEngine { address, answer })
        })
    }

    fn rpc<'a>(
        &'a self,
        address: SocketAddr,
        key: &'a EngineKey,
        command: &'a Value,
    ) -> BoxFuture<'a, Result<Value, ProbeError>> {
        Box::pin(async move {
            let response =
                self.send_request(address, "POST /rpc", &key_header(key), &command.to_string()).await?;
            if expect_body(&response, "401").is_ok() {
                return Err(ProbeError::KeyRefused { address });
            }
            if ["400", "404"].iter().any(|status| expect_body(&response, status).is_ok()) {
                return Err(ProbeError::UnknownCommand { address });
            }
            let body = expect_body(&response, "200").map_err(ProbeError::Malformed)?;
            let RpcResult { result } = serde_json::from_slice(body)
                .map_err(|error| ProbeError::Malformed(unexpected_body(&error)))?;
            Ok(result)
        })
    }
}

/// The body of a successful `/rpc` response.
#[derive(Deserialize)]
struct RpcResult {
    result: Value,
}

/// Returns the header line that authenticates a request to an engine.
fn key_header(key: &EngineKey) -> Zeroizing<String> {
    Zeroizing::new(format!("{ENGINE_KEY_HEADER}: {}\r\n", key.expose()))
}

impl HttpProbe {
    /// Sends a request and returns the raw response. `target` is the method and the path; `header` is a
    /// complete header line, or empty.
    async fn send_request(
        &self,
        address: SocketAddr,
        target: &str,
        header: &str,
        body: &str,
    ) -> Result<Vec<u8>, ProbeError> {
        let length = body.len();
        let request = Zeroizing::new(format!(
            "{target} HTTP/1.0\r\nHost: {address}\r\n{header}Content-Length: {length}\r\n\r\n{body}"
        ));
        let exchange = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut response = Vec::new();
            stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut response).await?;
            Ok(response)
        };
        exchange
            .await
            .map_err(|error: std::io::Error| ProbeError::Unreachable { address, reason: error.to_string() })
    }
}

/// Checks that a response is the engine's error `TASK_NOT_FOUND`; otherwise describes the response.
fn expect_no_such_task(response: &[u8]) -> Result<(), String> {
    let body: ErrorBody =
        serde_json::from_slice(expect_body(response, "404")?).map_err(|error| unexpected_body(&error))?;
    match body.error.code {
        ErrorCode::TaskNotFound => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

fn unexpected_body(error: &serde_json::Error) -> String {
    format!("an unexpected body: {error}")
}

/// Returns the value of a response's header, or of a request's.
fn header_value(message: &[u8], name: &str) -> Option<String> {
    let head_length = message.windows(HEAD_END.len()).position(|bytes| bytes == HEAD_END)?;
    let head = String::from_utf8_lossy(message.get(..head_length)?);
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(named, _)| named.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
}

/// Returns the body of a response with this status; otherwise an error that describes the response.
fn expect_body<'a>(response: &'a [u8], status: &str) -> Result<&'a [u8], String> {
    let end = response.windows(HEAD_END.len()).position(|bytes| bytes == HEAD_END);
    let Some((head, rest)) = end.and_then(|end| response.split_at_checked(end)) else {
        return Err("not an HTTP response".to_owned());
    };
    let head = String::from_utf8_lossy(head);
    if !head.starts_with("HTTP/1.") || head.split_whitespace().nth(1) != Some(status) {
        return Err(format!("`{}`", head.lines().next().unwrap_or_default()));
    }
    Ok(rest.get(HEAD_END.len()..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use tokio::net::TcpListener;

    use super::*;

    const HEALTHY_BODY: &str = r#"{"status": "ok", "uptime_seconds": 1.5,
        "subsystems": {"database": "ok", "llm_provider": "ok", "asset_directory": "ok"}}"#;

    /// An address where nothing answers.
    const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

    /// Returns the address of a server that answers one request with `answer`, and a future of the received request.
    async fn engine(answer: &'static str) -> (SocketAddr, impl Future<Output = String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let engine = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1_024];
            let length = stream.read(&mut request).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(request[..length].to_vec()).unwrap()
        };
        (address, engine)
    }

    /// Runs a health check against a server that sends `answer`.
    async fn check_health_of(answer: &'static str) -> Result<EngineHealth, ProbeError> {
        let (address, engine) = engine(answer).await;
        let (report, request) = tokio::join!(HttpProbe.check_health(address, KeyHash::of("a key")), engine);
        assert!(request.starts_with("GET /health HTTP/1."), "{request}");
        report.map(|report| report.health)
    }

    /// Runs an identity check against a server that sends `answer`.
    async fn identify_of(answer: &'static str) -> Result<(), ProbeError> {
        let key = EngineKey::generate().unwrap();
        let (address, engine) = engine(answer).await;
        let (identified, request) = tokio::join!(HttpProbe.identify(address, &key), engine);
        assert!(request.starts_with("GET /execute/replay?task_id="), "{request}");
        assert!(request.contains(&format!("\r\nx-engine-key: {}\r\n", key.expose())));
        assert!(request.ends_with("\r\n\r\n"));
        identified
    }

    #[tokio::test]
    async fn a_health_answer_is_read() {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{HEALTHY_BODY}");
        assert_eq!(check_health_of(answer.leak()).await.unwrap().status, "ok");
    }

    #[tokio::test]
    async fn anything_else_is_told_apart() {
        for (answer, expected) in [
            ("", "not an HTTP response"),
            ("SSH-2.0-OpenSSH\r\n\r\n", "SSH"),
            ("HTTP/1.1 503 Service Unavailable\r\n\r\n{}", "503"),
            ("HTTP/1.1 200 OK\r\n\r\nhello", "an unexpected body"),
        ] {
            let error = check_health_of(answer).await.unwrap_err().to_string();
            assert!(error.contains(expected), "{answer:?}: {error}");
        }
        let unreachable = HttpProbe.check_health(NOBODY, KeyHash::of("a key")).await.unwrap_err();
        assert!(matches!(unreachable, ProbeError::Unreachable { address: NOBODY, .. }));
    }

    #[test]
    fn a_message_names_the_port_on_this_host_and_the_address_elsewhere() {
        let refused =
            |address: &str| ProbeError::KeyRefused { address: address.parse().unwrap() }.to_string();
        assert_eq!(refused("127.0.0.1:9001"), "the program on port 9001 refuses the key");
        assert_eq!(refused("10.1.2.3:8000"), "the program on 10.1.2.3:8000 refuses the key");
        assert_eq!(refused("[fd00::3]:8000"), "the program on [fd00::3]:8000 refuses the key");
    }

    /// Converts line breaks to those of HTTP.
    fn on_the_wire(text: &str) -> String {
        text.replace('\n', "\r\n")
    }

    /// The requests and responses of version 0.1.
    #[tokio::test]
    async fn regression_o19_an_engine_of_an_earlier_version_is_understood_and_understands() {
        let health = on_the_wire(include_str!("../fixtures/0.1/health.http"));
        assert_eq!(check_health_of(health.leak()).await.unwrap().subsystems.database, "ok");
        let key = EngineKey::from_text("sk-svc-fixture".to_owned());
        for (command, answer) in [
            (
                include_str!("../fixtures/0.1/set_key_hash.json"),
                include_str!("../fixtures/0.1/set_key_hash.http"),
            ),
            (include_str!("../fixtures/0.1/quiesce.json"), include_str!("../fixtures/0.1/quiesce.http")),
            (include_str!("../fixtures/0.1/activity.json"), include_str!("../fixtures/0.1/activity.http")),
        ] {
            let (address, engine) = engine(on_the_wire(answer).leak()).await;
            let command: Value = serde_json::from_str(command).unwrap();
            let (result, received) = tokio::join!(HttpProbe.rpc(address, &key, &command), engine);
            assert!(result.unwrap().is_object());
            let request = on_the_wire(include_str!("../fixtures/0.1/rpc_request.http"));
            let (body, port) = (command.to_string(), address.port().to_string());
            let request = request
                .replace("PORT", &port)
                .replace("LENGTH", &body.len().to_string())
                .replace("BODY", &body);
            assert_eq!(received, request.trim_end());
        }
    }

    /// Checks the health of an engine that sends a proof for `hash`, or none. The hash of `its own` stands
    /// for that of the engine's key. Returns the verdict, the request that the engine received, and the key.
    async fn check_proof(hash: Option<KeyHash>) -> (KeyProof, String, EngineKey) {
        let key = EngineKey::generate().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
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
        let (report, request) = tokio::join!(HttpProbe.check_health(address, key.hash()), engine);
        (report.unwrap().proof, request, key)
    }

    #[tokio::test]
    async fn an_engine_proves_its_key_and_is_not_sent_it() {
        let (proof, request, key) = check_proof(Some(KeyHash::of("its own"))).await;
        assert_eq!(proof, KeyProof::Valid);
        assert!(!request.contains(key.expose()) && !request.contains(&key.hash().to_hex()), "{request}");
        assert_eq!(check_proof(Some(KeyHash::of("another's"))).await.0, KeyProof::Invalid);
        assert_eq!(check_proof(None).await.0, KeyProof::Absent);
    }

    #[tokio::test]
    async fn only_the_engine_that_takes_the_key_is_the_one() {
        let accepted =
            "HTTP/1.0 404 Not Found\r\n\r\n{\"error\": {\"code\": \"TASK_NOT_FOUND\", \"message\": \"\"}}";
        assert_eq!(identify_of(accepted).await, Ok(()));
        let refused = identify_of("HTTP/1.0 401 Unauthorized\r\n\r\n{}").await.unwrap_err();
        assert!(matches!(refused, ProbeError::KeyRefused { .. }), "{refused}");
        for (answer, expected) in [
            ("HTTP/1.0 200 OK\r\n\r\n{}", "200"),
            ("HTTP/1.0 404 Not Found\r\n\r\n<html>", "an unexpected body"),
            (
                "HTTP/1.0 404 Not Found\r\n\r\n{\"error\": {\"code\": \"NOT_FOUND\", \"message\": \"\"}}",
                "NotFound",
            ),
            ("", "not an HTTP response"),
        ] {
            let error = identify_of(answer).await.unwrap_err();
            assert!(matches!(error, ProbeError::WrongEngine { .. }), "{answer:?}: {error}");
            assert!(error.to_string().contains(expected), "{answer:?}: {error}");
        }
        let key = EngineKey::generate().unwrap();
        assert!(matches!(
            HttpProbe.identify(NOBODY, &key).await,
            Err(ProbeError::Unreachable { address: NOBODY, .. })
        ));
    }
}
