//! Calls of the engine's API that may never be answered.

use std::time::Duration;

use anyhow::Context as _;
use api::EngineKey;
use api::engine::ENGINE_KEY_HEADER;
use reqwest::{Client, ClientBuilder, RequestBuilder, Response};
use serde::Serialize;
use serde_json::Value;

/// The longest time for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);

/// A client of one engine, wherever it listens.
#[derive(Debug)]
pub(crate) struct EngineApi {
    http: Client,
    key: EngineKey,
}

/// Settings of a client without a connection pool: a pooled connection would break with the service and be mistaken
/// for a call that was sent.
pub(crate) fn http_client_builder() -> ClientBuilder {
    Client::builder().no_proxy().pool_max_idle_per_host(0).connect_timeout(Duration::from_secs(5))
}

/// Returns such a client.
pub(crate) fn http_client() -> anyhow::Result<Client> {
    http_client_builder().build().context("the HTTP client cannot be built")
}

/// The outcome of a call.
#[derive(Debug)]
pub(crate) enum CallOutcome {
    /// A response: status and body.
    Response(u16, Value),
    /// The call never reached an engine.
    NotSent,
    /// Unknown: the engine may or may not have executed the call.
    Unknown,
}

/// The outcome of a call that is answered by a stream.
#[derive(Debug)]
pub(crate) enum StreamOutcome {
    /// The stream.
    Stream(Response),
    /// Another response: status and body.
    Response(u16, Value),
    /// The call never reached an engine.
    NotSent,
    /// Unknown, as with [`CallOutcome::Unknown`].
    Unknown,
}

impl EngineApi {
    /// Creates a client with a key of its own.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self { http: http_client()?, key: EngineKey::generate().context("a key cannot be generated")? })
    }

    /// The key's hash, as the engine is configured with it.
    pub(crate) fn key_hash(&self) -> String {
        self.key.hash().to_hex()
    }

    fn with_key(&self, request: RequestBuilder) -> RequestBuilder {
        request.header(ENGINE_KEY_HEADER, self.key.expose())
    }

    /// `GET url`.
    pub(crate) async fn get(&self, url: &str) -> CallOutcome {
        send(self.with_key(self.http.get(url))).await
    }

    /// `POST url`.
    pub(crate) async fn post(&self, url: &str, body: &impl Serialize) -> CallOutcome {
        send(self.with_key(self.http.post(url)).json(body)).await
    }

    /// `POST /execute`.
    pub(crate) async fn execute(&self, base_url: &str, body: &impl Serialize) -> StreamOutcome {
        open_stream(self.with_key(self.http.post(format!("{base_url}/execute"))).json(body)).await
    }

    /// `GET /execute/replay`, with the position as a parameter or as `Last-Event-ID`.
    pub(crate) async fn replay(
        &self,
        base_url: &str,
        task: &str,
        after: i64,
        by_header: bool,
    ) -> StreamOutcome {
        let url = format!("{base_url}/execute/replay?task_id={task}");
        open_stream(self.with_key(if by_header {
            // The header takes precedence over the parameter, which is wrong on purpose.
            self.http.get(format!("{url}&after=0")).header("last-event-id", after.to_string())
        } else {
            self.http.get(format!("{url}&after={after}"))
        }))
        .await
    }
}

/// Sends a request and reads the response.
pub(crate) async fn send(request: RequestBuilder) -> CallOutcome {
    match open_stream(request).await {
        StreamOutcome::Response(status, body) => CallOutcome::Response(status, body),
        StreamOutcome::Stream(response) => match read_json(response).await {
            Some(body) => CallOutcome::Response(200, body),
            None => CallOutcome::Unknown,
        },
        StreamOutcome::NotSent => CallOutcome::NotSent,
        StreamOutcome::Unknown => CallOutcome::Unknown,
    }
}

async fn open_stream(request: RequestBuilder) -> StreamOutcome {
    match tokio::time::timeout(RESPONSE_TIMEOUT, request.send()).await {
        Ok(Ok(response)) if response.status() == 200 => StreamOutcome::Stream(response),
        Ok(Ok(response)) => {
            let status = response.status().as_u16();
            match read_json(response).await {
                Some(body) => StreamOutcome::Response(status, body),
                None => StreamOutcome::Unknown,
            }
        }
        Ok(Err(error)) if error.is_connect() => StreamOutcome::NotSent,
        Ok(Err(_)) | Err(_) => StreamOutcome::Unknown,
    }
}

/// Reads a response's JSON; `None` if the connection broke.
async fn read_json(response: Response) -> Option<Value> {
    let bytes = tokio::time::timeout(RESPONSE_TIMEOUT, response.bytes()).await.ok()?.ok()?;
    Some(serde_json::from_slice(&bytes).unwrap_or_default())
}

/// Returns the code of an error response.
pub(crate) fn error_code(body: &Value) -> &str {
    body.pointer("/error/code").and_then(Value::as_str).unwrap_or_default()
}
