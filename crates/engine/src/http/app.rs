//! An engine behind a real listener, and a client of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use contract::ErrorBody;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use service::serve::{Bounds, serve};
use strict_provider::StrictProvider;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::agent::Means;
use crate::models::config;
use crate::testing::{HastyClock, Seen, parse_sse, within};
use crate::tools::Toolbox;

pub(super) const KEY: &str = "sk-svc-right";

/// An engine that listens, with a provider that echoes what it is told unless the test says otherwise.
pub(super) struct App {
    pub(super) agent: Arc<Agent>,
    pub(super) provider: StrictProvider,
    base: String,
    client: reqwest::Client,
    shutdown: CancellationToken,
    serving: Option<JoinHandle<()>>,
    _folder: TempDir,
}

impl App {
    pub(super) async fn start() -> Self {
        let provider = StrictProvider::start().await.unwrap();
        let base = provider.base_url();
        Self::with_env(
            provider,
            &[("LLM_PROVIDER", "anthropic"), ("LLM_API_KEY", "k"), ("LLM_BASE_URL", &base)],
        )
        .await
    }

    pub(super) async fn with_env(provider: StrictProvider, env: &[(&str, &str)]) -> Self {
        let env: BTreeMap<String, String> =
            env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let folder = tempfile::tempdir().unwrap();
        let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(HastyClock::new());
        let gateway = Arc::new(Gateway::new(config::model(&env)));
        let means = Means {
            gateway: Arc::clone(&gateway),
            toolbox: Toolbox::built_in(&folder.path().join("workspace")),
            clock: Arc::clone(&clock),
            soul: "You are a test.".into(),
            hitl_ttl: Duration::from_hours(72),
            replay_ttl: Duration::from_hours(3),
        };
        let agent = Arc::new(Agent::new(brain.clone(), means));
        let state = State::new(Arc::clone(&agent), brain, gateway, KeyHash::of(KEY), clock);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        let bounds = Bounds {
            max_connections: 100,
            header_read_timeout: Duration::from_secs(20),
            drain: Duration::from_secs(5),
        };
        let serving = Some(tokio::spawn(serve(listener, router(state), bounds, shutdown.clone())));
        Self { agent, provider, base, client: reqwest::Client::new(), shutdown, serving, _folder: folder }
    }

    /// A request without a key.
    pub(super) fn keyless(&self, method: &str, path: &str) -> RequestBuilder {
        let method: Method = method.parse().unwrap();
        self.client.request(method, format!("{}{path}", self.base))
    }

    pub(super) fn request(&self, method: &str, path: &str) -> RequestBuilder {
        self.keyless(method, path).header("X-Engine-Key", KEY)
    }

    pub(super) async fn post(&self, body: impl Into<reqwest::Body>) -> Response {
        within(self.request("POST", "/execute").body(body).send()).await.unwrap()
    }

    /// Runs a turn of `task` and gives its events.
    pub(super) async fn say(&self, task: &str, message: &str) -> Vec<Seen> {
        let body = json!({"task_id": task, "message": message}).to_string();
        events(self.post(body).await).await
    }

    pub(super) async fn replay(&self, query: &str) -> Response {
        within(self.request("GET", &format!("/execute/replay{query}")).send()).await.unwrap()
    }

    /// Stops the engine and asserts that nothing of it is left.
    pub(super) async fn stop(mut self) {
        self.shutdown.cancel();
        within(self.agent.stop(Duration::from_secs(5))).await;
        within(self.serving.take().unwrap()).await.unwrap();
        self.provider.assert_no_refusals();
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// The events of an answer, to its end.
pub(super) async fn events(response: Response) -> Vec<Seen> {
    assert_eq!(response.status(), 200, "{:?}", within(response.text()).await);
    parse_sse(&within(response.bytes()).await.unwrap())
}

/// Asserts a refusal: its status, its code in the envelope and nothing beside it. Gives the message.
pub(super) async fn refusal(response: Response, status: u16, code: &str) -> String {
    assert_eq!(response.status(), status);
    assert_eq!(response.headers()["content-type"], "application/json");
    let body: Value = serde_json::from_slice(&within(response.bytes()).await.unwrap()).unwrap();
    let envelope: ErrorBody = serde_json::from_value(body.clone()).unwrap();
    let message = envelope.error.message;
    assert_eq!(body, json!({"error": {"code": code, "message": message}}));
    assert!(!message.is_empty());
    message
}
