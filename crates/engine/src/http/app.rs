//! An engine behind a real listener, and a client of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use contract::ErrorBody;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use service::env::Reader;
use service::serve::{Bounds, serve};
use strict_provider::StrictProvider;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::agent::{Kit, Kits, Means, Reloads};
use crate::catalog::Catalog;
use crate::memory_budget::MemoryBudget;
use crate::models::config::Sources;
use crate::skills::Shelf;
use crate::testing::{HastyClock, Seen, parse_sse, within};
use crate::tools::{Allowed, Outputs, Setup};

pub(crate) const KEY: &str = "sk-svc-right";

/// An engine that listens, with a provider that echoes what it is told unless the test says otherwise.
pub(crate) struct App {
    pub(crate) agent: Arc<Agent>,
    pub(crate) provider: StrictProvider,
    env: BTreeMap<String, String>,
    running: Running,
    client: reqwest::Client,
    folder: TempDir,
}

/// The engine that runs.
struct Running {
    agent: Arc<Agent>,
    brain: Brain,
    base: String,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

impl App {
    pub(crate) async fn start() -> Self {
        let provider = StrictProvider::start().await.unwrap();
        let base = provider.base_url();
        Self::with_env(
            provider,
            &[("LLM_PROVIDER", "anthropic"), ("LLM_API_KEY", "k"), ("LLM_BASE_URL", &base)],
        )
        .await
    }

    pub(crate) async fn with_env(provider: StrictProvider, env: &[(&str, &str)]) -> Self {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let folder = tempfile::tempdir().unwrap();
        let running = Running::start(&env, folder.path()).await;
        let agent = Arc::clone(&running.agent);
        Self { agent, provider, env, running, client: reqwest::Client::new(), folder }
    }

    /// Stops the engine in the middle of what it does, and starts another one on its brain.
    pub(crate) async fn restart(&mut self) {
        self.running.stop(Duration::ZERO).await;
        self.running = Running::start(&self.env, self.folder.path()).await;
        self.agent = Arc::clone(&self.running.agent);
    }

    /// Writes the catalog's `gateway.json`.
    pub(crate) fn write_gateway_json(&self, text: &str) {
        std::fs::write(self.folder.path().join("gateway.json"), text).unwrap();
    }

    /// Writes a file of the catalog.
    pub(crate) fn write_into_catalog(&self, name: &str, text: &str) {
        let file = self.folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    /// Where it listens.
    pub(crate) fn base(&self) -> &str {
        &self.running.base
    }

    /// A request without a key.
    pub(crate) fn keyless(&self, method: &str, path: &str) -> RequestBuilder {
        let method: Method = method.parse().unwrap();
        self.client.request(method, format!("{}{path}", self.running.base))
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> RequestBuilder {
        self.keyless(method, path).header("X-Engine-Key", KEY)
    }

    pub(crate) async fn post(&self, body: impl Into<reqwest::Body>) -> Response {
        within(self.request("POST", "/execute").body(body).send()).await.unwrap()
    }

    /// Runs a turn of `task` and gives its events.
    pub(crate) async fn say(&self, task: &str, message: &str) -> Vec<Seen> {
        let body = json!({"task_id": task, "message": message}).to_string();
        events(self.post(body).await).await
    }

    pub(crate) async fn replay(&self, query: &str) -> Response {
        within(self.request("GET", &format!("/execute/replay{query}")).send()).await.unwrap()
    }

    /// Stops the engine and asserts that nothing of it is left.
    pub(crate) async fn stop(mut self) {
        self.running.stop(Duration::from_secs(5)).await;
        self.provider.assert_no_refusals();
    }
}

impl Running {
    async fn start(env: &BTreeMap<String, String>, folder: &Path) -> Self {
        let brain = Brain::open(&folder.join("brain.sqlite")).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(HastyClock::new());
        let in_force = Arc::new(InForce::open(Sources::new(env, Some(folder)), &brain).unwrap());
        let setup = Setup {
            workspace: folder.join("workspace"),
            brain: brain.clone(),
            catalog: Catalog::default(),
            leash: None,
            shelf: Arc::new(Shelf::beside(&folder.join("brain.sqlite"))),
            places: crate::tools::Places::default(),
            web: Allowed::default(),
            memory: MemoryBudget::default(),
        };
        let settings = crate::config::assets(&mut Reader::new(env));
        let assets = Assets::open(&brain, settings, None, Arc::clone(&clock)).unwrap();
        let kit = Kit { soul: "You are a test.".into(), ..Kit::of(&setup) };
        let means = Means {
            gateway: Arc::clone(in_force.gateway()),
            kits: Kits::new(kit, assets.clone()),
            assets,
            clock: Arc::clone(&clock),
            leash: None,
            shelf: Arc::clone(&setup.shelf),
            outputs: Outputs::new(&setup.workspace),
            memory: setup.memory.clone(),
            calls: Means::calls(),
            set_aside: Arc::default(),
            reactive: true,
            hitl_ttl: Duration::from_hours(72),
            replay_ttl: Duration::from_hours(3),
            batch_interval: None,
        };
        let agent = Arc::new(Agent::new(brain.clone(), means));
        agent.resume().unwrap();
        let reloads = Reloads::new(Arc::clone(&agent), folder.to_owned(), setup);
        let state = State::new(Arc::clone(&agent), brain.clone(), in_force, reloads, KeyHash::of(KEY), clock);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        let bounds = Bounds {
            max_connections: 100,
            header_read_timeout: Duration::from_secs(20),
            drain: Duration::from_secs(5),
        };
        let serving = tokio::spawn(serve(listener, router(state), bounds, shutdown.clone()));
        Self { agent, brain, base, shutdown, serving }
    }

    async fn stop(&mut self, deadline: Duration) {
        self.shutdown.cancel();
        within(self.agent.stop(deadline)).await;
        within(&mut self.serving).await.unwrap();
        within(self.brain.close()).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// The events of an answer, to its end.
pub(crate) async fn events(response: Response) -> Vec<Seen> {
    assert_eq!(response.status(), 200, "{:?}", within(response.text()).await);
    parse_sse(&within(response.bytes()).await.unwrap())
}

/// Asserts a refusal: its status, its code in the envelope and nothing beside it. Gives the message.
pub(crate) async fn refusal(response: Response, status: u16, code: &str) -> String {
    assert_eq!(response.status(), status);
    assert_eq!(response.headers()["content-type"], "application/json");
    let body: Value = serde_json::from_slice(&within(response.bytes()).await.unwrap()).unwrap();
    let envelope: ErrorBody = serde_json::from_value(body.clone()).unwrap();
    let message = envelope.error.message;
    assert_eq!(body, json!({"error": {"code": code, "message": message}}));
    assert!(!message.is_empty());
    message
}
