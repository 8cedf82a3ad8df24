//! One kept-alive HTTP connection: hyper's client on a socket, without a pool, redirects or timeouts of its own.
//! The same client is used for Roundhouse and for the baselines.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::http::request::Builder;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

/// A request with a complete body.
pub(crate) type HttpRequest = Request<Full<Bytes>>;

/// The timeout of each operation. Anything slower is a failure, not a sample.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);

/// An HTTP client with a single connection.
#[derive(Debug)]
pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    address: SocketAddr,
}

impl Client {
    /// Connects. The connection closes when the client is dropped.
    pub(crate) async fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let stream =
            TcpStream::connect(address).await.with_context(|| format!("{address} cannot be reached"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // An error of the connection also fails the request on it, which reports it.
        tokio::spawn(connection);
        Ok(Self { sender, address })
    }

    /// Starts a request to the connected address. `path` must not need escaping.
    pub(crate) fn request(&self, method: Method, path: &str) -> Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.address.to_string())
            .header(CONTENT_TYPE, "application/json")
    }

    /// Sends a request and waits for the head of the response.
    pub(crate) async fn send(&mut self, request: HttpRequest) -> anyhow::Result<Response<Incoming>> {
        let answer = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        Ok(tokio::time::timeout(REQUEST_TIMEOUT, answer).await.context("no response came in time")??)
    }

    /// Sends a request and reads the complete response.
    pub(crate) async fn fetch(&mut self, request: HttpRequest) -> anyhow::Result<(StatusCode, Bytes)> {
        let response = self.send(request).await?;
        let status = response.status();
        let body = tokio::time::timeout(REQUEST_TIMEOUT, response.into_body().collect());
        Ok((status, body.await.context("the response did not end in time")??.to_bytes()))
    }

    /// Sends a request whose response must be 200 with a `T` as JSON.
    pub(crate) async fn fetch_json<T: DeserializeOwned>(
        &mut self,
        request: HttpRequest,
    ) -> anyhow::Result<T> {
        let what = format!("{} {}", request.method(), request.uri());
        let (status, body) = self.fetch(request).await.with_context(|| what.clone())?;
        if status != StatusCode::OK {
            bail!("{what} was answered with {status}: {}", String::from_utf8_lossy(&body));
        }
        serde_json::from_slice(&body).with_context(|| format!("the response to {what}"))
    }
}

/// Parses the address in `http://HOST:PORT`, the form in which services and mock providers report theirs.
pub(crate) fn parse_address(url: &str) -> anyhow::Result<SocketAddr> {
    let address =
        url.trim().strip_prefix("http://").with_context(|| format!("`{url}` is not an http address"))?;
    let address = address.parse().with_context(|| format!("`{url}` is not an IP address and a port"))?;
    ensure!(
        SocketAddr::ip(&address).is_loopback(),
        "{url} is not on this machine: only loopback is measured"
    );
    Ok(address)
}
