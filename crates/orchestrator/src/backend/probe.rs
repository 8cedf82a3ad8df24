//! An engine's own word on how it is: `GET /health`.
//!
//! A plain HTTP/1.0 exchange over its own connection, which the engine closes: no pool to keep for thousands
//! of engines that are asked twice a minute, nothing to parse but a status line and a body.

use contract::engine::EngineHealth;
use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Why an engine did not say how it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unwell {
    /// No connection, or it broke.
    #[error("it does not answer on port {port}: {reason}")]
    Silent {
        /// Where it was asked.
        port: u16,
        /// What the system said.
        reason: String,
    },
    /// An answer that is no health answer.
    #[error("its /health answered {0}")]
    Garbled(String),
}

/// Asks engines how they are.
pub(crate) trait Probe: Send + Sync + 'static {
    /// What the engine on `port` says. Dropped when the asker has waited long enough.
    fn ask(&self, port: u16) -> BoxFuture<'_, Result<EngineHealth, Unwell>>;
}

/// Asks over HTTP on `host`.
pub(crate) struct HttpProbe {
    pub(crate) host: &'static str,
}

/// More than any health answer has.
const MAX_ANSWER_BYTES: u64 = 64 * 1024;

impl Probe for HttpProbe {
    fn ask(&self, port: u16) -> BoxFuture<'_, Result<EngineHealth, Unwell>> {
        Box::pin(async move {
            let answer = exchange(self.host, port)
                .await
                .map_err(|error| Unwell::Silent { port, reason: error.to_string() })?;
            read(&answer)
        })
    }
}

async fn exchange(host: &str, port: u16) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect((host, port)).await?;
    let request = format!("GET /health HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await?;
    Ok(answer)
}

fn read(answer: &[u8]) -> Result<EngineHealth, Unwell> {
    const HEAD_END: &[u8] = b"\r\n\r\n";
    let end = answer.windows(HEAD_END.len()).position(|bytes| bytes == HEAD_END);
    let Some((head, rest)) = end.and_then(|end| answer.split_at_checked(end)) else {
        return Err(Unwell::Garbled("no HTTP".to_owned()));
    };
    let head = String::from_utf8_lossy(head);
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if !head.starts_with("HTTP/1.") || status != "200" {
        return Err(Unwell::Garbled(format!("`{}`", head.lines().next().unwrap_or_default())));
    }
    let body = rest.get(HEAD_END.len()..).unwrap_or_default();
    serde_json::from_slice(body).map_err(|error| Unwell::Garbled(format!("another body: {error}")))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const WELL: &str = r#"{"status": "ok", "uptime_seconds": 1.5,
        "subsystems": {"database": "ok", "llm_provider": "ok", "asset_directory": "ok"}}"#;

    /// What the probe makes of `answer`.
    async fn asked(answer: &'static str) -> Result<EngineHealth, Unwell> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let engine = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1_024];
            let length = stream.read(&mut request).await.unwrap();
            assert!(request[..length].starts_with(b"GET /health HTTP/1."));
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let probe = HttpProbe { host: "127.0.0.1" };
        tokio::join!(probe.ask(port), engine).0
    }

    #[tokio::test]
    async fn a_health_answer_is_read() {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{WELL}");
        assert_eq!(asked(answer.leak()).await.unwrap().status, "ok");
    }

    #[tokio::test]
    async fn anything_else_is_told_apart() {
        for (answer, what) in [
            ("", "no HTTP"),
            ("SSH-2.0-OpenSSH\r\n\r\n", "SSH"),
            ("HTTP/1.1 503 Service Unavailable\r\n\r\n{}", "503"),
            ("HTTP/1.1 200 OK\r\n\r\nhello", "another body"),
        ] {
            let unwell = asked(answer).await.unwrap_err().to_string();
            assert!(unwell.contains(what), "{answer:?}: {unwell}");
        }
        let silent = HttpProbe { host: "127.0.0.1" }.ask(1).await.unwrap_err();
        assert!(matches!(silent, Unwell::Silent { port: 1, .. }));
    }
}
