//! A client for HTTP servers that listen on a Unix socket: the Docker daemon, and the proxy of a Kubernetes cluster.
//! It sends one request per connection, and is blocking, because the clean-up in `drop` cannot wait for a runtime.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

/// The longest time without a byte of a response.
const IO_TIMEOUT: Duration = Duration::from_mins(1);

/// A client for one server.
#[derive(Clone, Debug)]
pub struct UnixHttpClient {
    /// The path of the server's socket.
    pub socket: PathBuf,
    /// What the server is, for errors.
    pub(crate) server: &'static str,
}

impl UnixHttpClient {
    /// Sends a request and returns the response's status and body.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<(u16, Vec<u8>)> {
        let exchange = || -> anyhow::Result<(u16, Vec<u8>)> {
            let (status, mut response) = self.send(method, path, body)?;
            let mut body = Vec::new();
            response.read_to_end(&mut body)?;
            Ok((status, body))
        };
        exchange().with_context(|| format!("{} does not respond to {method} {path}", self.place()))
    }

    /// Sends a GET request that must succeed, and parses the response.
    pub fn get(&self, path: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&self.request_ok("GET", path, None)?)?)
    }

    /// Sends a request that must succeed, and returns the response body.
    pub fn request_ok(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Vec<u8>> {
        match self.request(method, path, body)? {
            (200..=299, body) => Ok(body),
            (status, body) => bail!("{method} {path}: {status} {}", String::from_utf8_lossy(&body)),
        }
    }

    /// Sends a GET request that must succeed, and returns the response body as it comes.
    pub(crate) fn stream(&self, path: &str) -> anyhow::Result<BufReader<UnixStream>> {
        let (status, response) = self.send("GET", path, None)?;
        ensure!((200..=299).contains(&status), "GET {path}: {status}");
        Ok(response)
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(u16, BufReader<UnixStream>)> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        // In HTTP/1.0, a response is neither chunked nor followed by another one.
        let head =
            format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n");
        stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
        let mut response = BufReader::new(stream);
        Ok((read_head(&mut response)?, response))
    }

    fn place(&self) -> String {
        format!("{} at {}", self.server, self.socket.display())
    }
}

/// Reads the head of a response, and returns its status.
fn read_head(response: &mut impl BufRead) -> anyhow::Result<u16> {
    let mut next_line = || -> anyhow::Result<String> {
        let mut line = String::new();
        response.read_line(&mut line)?;
        Ok(line.strip_suffix("\r\n").context("the head is incomplete")?.to_owned())
    };
    let status = next_line()?.split(' ').nth(1).context("the head has no status")?.parse()?;
    while !next_line()?.is_empty() {}
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_status_and_its_body() {
        let mut answer =
            b"HTTP/1.0 404 Not Found\r\nServer: Docker\r\n\r\n{\"message\":\"none\"}\r\n\r\n".as_slice();
        assert_eq!(read_head(&mut answer).unwrap(), 404);
        assert_eq!(answer, b"{\"message\":\"none\"}\r\n\r\n");
        assert!(read_head(&mut b"HTTP/1.0 200 OK\r\n".as_slice()).is_err());
    }
}
