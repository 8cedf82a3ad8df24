//! Waits until a newly started server is healthy.
//!
//! It uses plain blocking sockets: the time to the first response is a few milliseconds, and must not include the
//! varying overhead of an HTTP client.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use api::engine::HEALTHY;

use crate::process::{POLL_INTERVAL, Process};

/// The time within which a server must be healthy.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of one response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Blocks until `GET /health` on `port` answers 200 with the status `ok`.
///
/// # Errors
/// The process exited or was not healthy in time; the error contains its last response.
pub(crate) fn wait_until_healthy(process: &mut Process, port: u16) -> anyhow::Result<()> {
    let deadline = Instant::now() + STARTUP_TIMEOUT;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    loop {
        let answer = fetch_health(address);
        if answer.as_deref().is_ok_and(is_healthy_response) {
            return Ok(());
        }
        process.ensure_running()?;
        if Instant::now() > deadline {
            let last = answer.unwrap_or_else(|error| error.to_string());
            bail!(
                "{} was not healthy within {} s. Its last response: {last}\nIts log:\n{}",
                process.name(),
                STARTUP_TIMEOUT.as_secs(),
                process.log_tail()
            );
        }
        thread::park_timeout(POLL_INTERVAL);
    }
}

/// Returns whether the server is healthy now.
pub(crate) fn is_healthy(address: SocketAddr) -> bool {
    fetch_health(address).as_deref().is_ok_and(is_healthy_response)
}

/// Fetches one `/health` response, head and body.
fn fetch_health(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    write!(stream, "GET /health HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn is_healthy_response(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    head.starts_with("HTTP/1.1 200") && body.get("status").is_some_and(|status| status == HEALTHY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_200_that_says_ok_is_well() {
        assert!(is_healthy_response("HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{\"status\":\"ok\"}"));
        for wrong in [
            "",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n{\"status\":\"degraded\"}",
            "HTTP/1.1 503 Service Unavailable\r\n\r\n{\"status\":\"ok\"}",
            "HTTP/1.1 200 OK\r\n\r\nok",
        ] {
            assert!(!is_healthy_response(wrong), "{wrong}");
        }
    }
}
