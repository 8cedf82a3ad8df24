//! One kept-alive HTTP connection: hyper's client on a socket, without pool, redirects or time-outs of its own.
//! The same client speaks to ours and to the floors.

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

/// A request as it is sent.
pub(crate) type HttpRequest = Request<Full<Bytes>>;

/// How long anything here may take. What is slower is a failure, not a figure.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);

/// See the module.
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
        // What breaks the connection also fails the request on it, which is where it is reported.
        tokio::spawn(connection);
        Ok(Self { sender, address })
    }

    /// A request to this address; `path` is a path of ours and needs no escapes.
    pub(crate) fn request(&self, method: Method, path: &str) -> Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.address.to_string())
            .header(CONTENT_TYPE, "application/json")
    }

    /// Sends a request and waits for the answer's head.
    pub(crate) async fn send(&mut self, request: HttpRequest) -> anyhow::Result<Response<Incoming>> {
        let answer = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        Ok(tokio::time::timeout(REQUEST_TIMEOUT, answer).await.context("no answer came in time")??)
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn fetch(&mut self, request: HttpRequest) -> anyhow::Result<(StatusCode, Bytes)> {
        let response = self.send(request).await?;
        let status = response.status();
        let body = tokio::time::timeout(REQUEST_TIMEOUT, response.into_body().collect());
        Ok((status, body.await.context("the answer did not end in time")??.to_bytes()))
    }

    /// Sends a request that must be answered with 200 and a `T`.
    pub(crate) async fn fetch_json<T: DeserializeOwned>(
        &mut self,
        request: HttpRequest,
    ) -> anyhow::Result<T> {
        let what = format!("{} {}", request.method(), request.uri());
        let (status, body) = self.fetch(request).await.with_context(|| what.clone())?;
        if status != StatusCode::OK {
            bail!("{what} was answered {status}: {}", String::from_utf8_lossy(&body));
        }
        serde_json::from_slice(&body).with_context(|| format!("the answer to {what}"))
    }
}

/// The address in `http://HOST:PORT`, as our services and doubles give theirs.
pub(crate) fn parse_address(url: &str) -> anyhow::Result<SocketAddr> {
    let address =
        url.trim().strip_prefix("http://").with_context(|| format!("`{url}` is no http address"))?;
    let address = address.parse().with_context(|| format!("`{url}` is not an IP address and a port"))?;
    ensure!(
        SocketAddr::ip(&address).is_loopback(),
        "{url} is not on this machine: only loopback is measured"
    );
    Ok(address)
}
