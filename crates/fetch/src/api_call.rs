//! Calls of one HTTP API, with the guards of a fetch: its name is resolved once for a call, only the checked addresses
//! are connected to, and nothing redirects the call and its key elsewhere.

use std::time::Duration;

use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER,
};
use reqwest::{Client, Method, Response, StatusCode, Url};
use resources::memory_budget::MemoryBudget;

use super::allowlist::WebAllowlist;
use super::client::{BodyError, FetchError, WebClient, read_large_body};
use super::target::{Target, TargetError};

/// A server with an API.
#[derive(Clone)]
pub struct ApiServer {
    client: WebClient,
    target: Target,
}

/// A call of an API.
#[derive(Clone)]
pub struct ApiRequest {
    /// The method.
    pub method: Method,
    /// The whole address, on the server.
    pub url: Url,
    /// The headers, which may hold a key.
    pub headers: HeaderMap,
    /// The body, which is JSON.
    pub body: Option<String>,
}

/// The answer to a call, whatever its status.
#[derive(Debug)]
pub struct ApiResponse {
    /// The HTTP status.
    pub status: StatusCode,
    /// The delay that the server asks for before the next call, if it names a number of seconds.
    pub retry_after: Option<Duration>,
    /// The body; `None` if it is longer than the limit.
    pub body: Option<Vec<u8>>,
}

impl ApiServer {
    /// Creates a client for the server of an address. Unless `is_trusted`, it must be on the public internet. An answer
    /// of more than `max_body_bytes` is not read.
    ///
    /// # Errors
    /// The address is not one of a web server.
    pub fn new(
        url: &Url,
        is_trusted: bool,
        max_body_bytes: usize,
        memory: MemoryBudget,
    ) -> Result<Self, TargetError> {
        let mut server = url.clone();
        server.set_query(None);
        let target = Target::parse(server.as_str())?;
        let allowed = if is_trusted { WebAllowlist::only(&target) } else { WebAllowlist::default() };
        let mut client = WebClient::new(allowed, memory);
        client.limits.max_body_bytes = max_body_bytes;
        Ok(Self { client, target })
    }

    /// Creates a client for the server of an address that an outsider has chosen: it must be on the public internet or on
    /// the list. Of an answer only the status is read.
    pub fn for_outsider(target: Target, allowed: WebAllowlist) -> Self {
        Self { client: WebClient::new(allowed, MemoryBudget::default()), target }
    }

    /// Resolves the server's name now, for calls by [`ApiClient::status`] within the next while.
    ///
    /// # Errors
    /// The name has no address, or one that may not be reached.
    pub async fn connect(self, timeout: Duration) -> Result<ApiClient, FetchError> {
        let mut patient = self;
        patient.client.limits.idle_timeout = timeout;
        let client = patient.client.keeping_client_for(&patient.target).await?;
        Ok(ApiClient { client, server: patient })
    }

    /// Makes a call. Redirects are not followed.
    ///
    /// # Errors
    /// There is no answer. The reason does not contain the address, which may hold a key.
    pub async fn call(&self, request: ApiRequest) -> Result<ApiResponse, FetchError> {
        let limit = self.client.limits.total_timeout;
        tokio::time::timeout(limit, self.call_once(request))
            .await
            .map_err(|_| FetchError::TotalTimeout(limit))?
    }

    /// Makes a call of which only the status matters, and the delay that the server asks for. Nothing else of the answer
    /// is read. The server may take `timeout` for it.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn status(
        &self,
        request: ApiRequest,
        timeout: Duration,
    ) -> Result<(StatusCode, Option<Duration>), FetchError> {
        let mut patient = self.clone();
        patient.client.limits.idle_timeout = timeout;
        let response = patient.send(request).await?;
        Ok((response.status(), retry_after(&response)))
    }

    async fn call_once(&self, request: ApiRequest) -> Result<ApiResponse, FetchError> {
        let response = self.send(request).await?;
        self.read(response).await
    }

    async fn send(&self, request: ApiRequest) -> Result<Response, FetchError> {
        // Only the addresses of this server are checked.
        self.check_origin(&request)?;
        let client = self.client.client_for(&self.target).await?;
        self.send_with(&client, request).await
    }

    fn check_origin(&self, request: &ApiRequest) -> Result<(), FetchError> {
        if request.url.origin() == self.target.url().origin() {
            return Ok(());
        }
        Err(FetchError::Connection("the call is for another server".into()))
    }

    async fn send_with(&self, client: &Client, request: ApiRequest) -> Result<Response, FetchError> {
        let ApiRequest { method, url, headers, body } = request;
        let mut request = client
            .request(method, url)
            .header(ACCEPT, "application/json")
            .header(ACCEPT_ENCODING, "identity")
            .headers(headers);
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json")).body(body);
        }
        request.send().await.map_err(|error| self.error(error))
    }

    async fn read(&self, response: Response) -> Result<ApiResponse, FetchError> {
        let header =
            |name| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let encoding = header(CONTENT_ENCODING);
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
            return Err(FetchError::Compressed(encoding.to_owned()));
        }
        let retry_after = retry_after(&response);
        let status = response.status();
        let limits = self.client.limits;
        let body = read_large_body(response, limits.max_body_bytes, &self.client.memory_budget).await;
        let body = body.map_err(|error| match error {
            BodyError::Transport(error) => self.error(error),
            BodyError::NoMemory(reason) => FetchError::NoMemory(reason),
        })?;
        let body = body.is_complete.then_some(body.bytes);
        Ok(ApiResponse { status, retry_after, body })
    }

    fn error(&self, error: reqwest::Error) -> FetchError {
        self.client.request_error(&self.target, &error.without_url())
    }
}

/// The client of a server that is called often: its name is resolved once and its connections are kept for a moment.
#[derive(Clone)]
pub struct ApiClient {
    client: Client,
    server: ApiServer,
}

impl ApiClient {
    /// Makes a call like [`ApiServer::status`].
    ///
    /// # Errors
    /// As [`ApiServer::call`].
    pub async fn status(&self, request: ApiRequest) -> Result<(StatusCode, Option<Duration>), FetchError> {
        self.server.check_origin(&request)?;
        let response = self.server.send_with(&self.client, request).await?;
        Ok((response.status(), retry_after(&response)))
    }
}

/// The delay that the server asks for before the next call, if it names a number of seconds.
fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
#[path = "../tests/unit/api_call.rs"]
mod tests;
