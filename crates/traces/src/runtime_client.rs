//! The HTTP client of the exporter. The exporter works on a thread of its own; what it sends is sent by the process's
//! runtime.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use reqwest::redirect::Policy;
use resources::dns::SERVER_RESOLVER;
use resources::text::error_chain;
use tokio::runtime::Handle;

use crate::logged_failures::LoggedFailures;

/// The time limit for connecting to the collector.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of a collector's response, which says at most how many spans it refused.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// Sends the exporter's requests.
pub(crate) struct RuntimeClient {
    client: reqwest::Client,
    runtime: Handle,
    failures: LoggedFailures,
}

/// Without the requests, whose headers may hold a secret.
impl fmt::Debug for RuntimeClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeClient").finish_non_exhaustive()
    }
}

impl RuntimeClient {
    /// Creates a client whose requests may each take `timeout`.
    pub(crate) fn new(runtime: Handle, timeout: Duration) -> reqwest::Result<Self> {
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(timeout)
            .dns_resolver(Arc::new(SERVER_RESOLVER.clone()))
            // Another server must not be sent the headers.
            .redirect(Policy::none())
            // Batches are seconds apart, and an idle process holds no connection.
            .pool_idle_timeout(Duration::from_secs(30))
            .build()?;
        Ok(Self { client, runtime, failures: LoggedFailures::default() })
    }
}

#[async_trait]
impl HttpClient for RuntimeClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.runtime.spawn(send(self.client.clone(), request)).await;
        // The runtime is shutting down.
        let result = sent.unwrap_or_else(|error| Err(error.into()));
        match &result {
            Ok(response) if response.status().is_success() => {}
            Ok(response) => self.failures.record(&format!("the collector answered {}", response.status())),
            Err(error) => self.failures.record(&error_chain(error.as_ref())),
        }
        result
    }
}

async fn send(client: reqwest::Client, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let request = reqwest::Request::try_from(request).map_err(reqwest::Error::without_url)?;
    let mut response = client.execute(request).await.map_err(reqwest::Error::without_url)?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(reqwest::Error::without_url)? {
        if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
            return Err(ResponseTooLong.into());
        }
        body.extend_from_slice(&chunk);
    }
    let mut complete = Response::new(Bytes::from(body));
    *complete.status_mut() = response.status();
    *complete.headers_mut() = std::mem::take(response.headers_mut());
    Ok(complete)
}

/// The error for a response that is no collector's.
#[derive(Debug)]
struct ResponseTooLong;

impl fmt::Display for ResponseTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the collector's response is longer than {MAX_RESPONSE_BYTES} bytes")
    }
}

impl Error for ResponseTooLong {}
