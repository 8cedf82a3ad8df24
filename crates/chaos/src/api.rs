//! Calls of the engine, whose answer may never come.

use std::time::Duration;

use anyhow::Context as _;
use contract::EngineKey;
use contract::engine::ENGINE_KEY_HEADER;
use reqwest::{Client, RequestBuilder, Response};
use serde::Serialize;
use serde_json::Value;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// A client of one engine, wherever it listens.
#[derive(Debug)]
pub(crate) struct Api {
    http: Client,
    key: EngineKey,
}

/// A client that keeps no connection: one that is kept would break with the service and be mistaken for a call
/// that was sent.
pub(crate) fn client() -> anyhow::Result<Client> {
    let http = Client::builder().no_proxy().pool_max_idle_per_host(0).connect_timeout(Duration::from_secs(5));
    http.build().context("no HTTP client")
}

/// What came of a call.
#[derive(Debug)]
pub(crate) enum Asked {
    /// An answer.
    Answered(u16, Value),
    /// The call never reached an engine.
    Unsent,
    /// Nobody knows: the engine may have done what was asked, or not.
    Unknown,
}

/// What came of a call that is answered by a stream.
#[derive(Debug)]
pub(crate) enum Opened {
    /// The stream.
    Stream(Response),
    /// Another answer.
    Refused(u16, Value),
    /// The call never reached an engine.
    Unsent,
    /// Nobody knows.
    Unknown,
}

impl Api {
    /// A client with a key of its own.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self { http: client()?, key: EngineKey::generate().context("no key")? })
    }

    /// What the engine needs to know the key.
    pub(crate) fn key_hash(&self) -> String {
        self.key.hash().to_hex()
    }

    fn with_key(&self, request: RequestBuilder) -> RequestBuilder {
        request.header(ENGINE_KEY_HEADER, self.key.expose())
    }

    /// `GET url`.
    pub(crate) async fn get(&self, url: &str) -> Asked {
        asked(self.with_key(self.http.get(url))).await
    }

    /// `POST url`.
    pub(crate) async fn post(&self, url: &str, body: &impl Serialize) -> Asked {
        asked(self.with_key(self.http.post(url)).json(body)).await
    }

    /// `POST /execute`.
    pub(crate) async fn execute(&self, base: &str, body: &impl Serialize) -> Opened {
        opened(self.with_key(self.http.post(format!("{base}/execute"))).json(body)).await
    }

    /// `GET /execute/replay`, with the position as a parameter or as `Last-Event-ID`.
    pub(crate) async fn replay(&self, base: &str, task: &str, after: i64, by_header: bool) -> Opened {
        let url = format!("{base}/execute/replay?task_id={task}");
        opened(self.with_key(if by_header {
            // The header beats the parameter, which is wrong on purpose.
            self.http.get(format!("{url}&after=0")).header("last-event-id", after.to_string())
        } else {
            self.http.get(format!("{url}&after={after}"))
        }))
        .await
    }
}

/// Sends a request and reads its answer.
pub(crate) async fn asked(request: RequestBuilder) -> Asked {
    match opened(request).await {
        Opened::Refused(status, body) => Asked::Answered(status, body),
        Opened::Stream(response) => match body(response).await {
            Some(body) => Asked::Answered(200, body),
            None => Asked::Unknown,
        },
        Opened::Unsent => Asked::Unsent,
        Opened::Unknown => Asked::Unknown,
    }
}

async fn opened(request: RequestBuilder) -> Opened {
    match tokio::time::timeout(PATIENCE, request.send()).await {
        Ok(Ok(response)) if response.status() == 200 => Opened::Stream(response),
        Ok(Ok(response)) => {
            let status = response.status().as_u16();
            match body(response).await {
                Some(body) => Opened::Refused(status, body),
                None => Opened::Unknown,
            }
        }
        Ok(Err(error)) if error.is_connect() => Opened::Unsent,
        Ok(Err(_)) | Err(_) => Opened::Unknown,
    }
}

/// The JSON of an answer; none where the connection broke.
async fn body(response: Response) -> Option<Value> {
    let bytes = tokio::time::timeout(PATIENCE, response.bytes()).await.ok()?.ok()?;
    Some(serde_json::from_slice(&bytes).unwrap_or_default())
}

/// The code of a refusal.
pub(crate) fn code(body: &Value) -> &str {
    body.pointer("/error/code").and_then(Value::as_str).unwrap_or_default()
}
