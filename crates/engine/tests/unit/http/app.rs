//! A test engine behind a real listener, and a client for it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::browser::{BrowserAccess, TokenSecret};
use api::{EngineId, ErrorBody};
use catalog::Catalog;
use fetch::WebAllowlist;
use http_service::env::EnvReader;
use http_service::serve::{ServeLimits, serve};
use llm::config::ConfigSources;
use mock_llm::MockProvider;
use reqwest::{Method, RequestBuilder, Response};
use resources::memory_budget::MemoryBudget;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{SkippingClock, SseEvent, parse_sse, with_deadline};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tools::skills::SkillDirs;
use tools::user_files::FileLimits;
use tools::{SpillDir, ToolDeps};

use super::*;
use crate::agent::{AgentSnapshot, CatalogReloader, Services, SnapshotSource};
use crate::backups::Backups;

pub(crate) const ENGINE_KEY: &str = "sk-svc-right";

/// The id of a test engine, and the secret of its browser tokens.
pub(crate) fn token_identity() -> (EngineId, TokenSecret) {
    let engine_id = "eng_00000000000070008000000000000001".parse().unwrap();
    (engine_id, TokenSecret::derive("a secrets key", engine_id))
}

/// The limits on files of a test engine.
const FILE_LIMITS: FileLimits = FileLimits { quota_bytes: Some(1 << 20), max_file_bytes: 512 << 10 };

/// A listening engine, with a provider that echoes its input unless the test says otherwise.
pub(crate) struct TestApp {
    pub(crate) agent: Arc<Agent>,
    pub(crate) provider: MockProvider,
    env: BTreeMap<String, String>,
    engine: RunningEngine,
    client: reqwest::Client,
    folder: TempDir,
}

/// The running engine.
struct RunningEngine {
    agent: Arc<Agent>,
    brain: Brain,
    base: String,
    shutdown: CancellationToken,
    server_task: JoinHandle<()>,
}

impl TestApp {
    pub(crate) async fn start() -> Self {
        let provider = MockProvider::start().await.unwrap();
        let base = provider.base_url();
        Self::with_env(
            provider,
            &[("LLM_PROVIDER", "anthropic"), ("LLM_API_KEY", "k"), ("LLM_BASE_URL", &base)],
        )
        .await
    }

    pub(crate) async fn with_env(provider: MockProvider, env: &[(&str, &str)]) -> Self {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let folder = tempfile::tempdir().unwrap();
        let running = RunningEngine::start(&env, folder.path()).await;
        let agent = Arc::clone(&running.agent);
        Self { agent, provider, env, engine: running, client: reqwest::Client::new(), folder }
    }

    /// Stops the engine abruptly, and starts another one on its brain.
    pub(crate) async fn restart(&mut self) {
        self.engine.stop(Duration::ZERO).await;
        self.engine = RunningEngine::start(&self.env, self.folder.path()).await;
        self.agent = Arc::clone(&self.engine.agent);
    }

    /// Writes the catalog's `gateway.json`.
    pub(crate) fn write_gateway_json(&self, text: &str) {
        std::fs::write(self.folder.path().join("gateway.json"), text).unwrap();
    }

    /// Returns the folder of the agent's files.
    pub(crate) fn workspace(&self) -> std::path::PathBuf {
        self.folder.path().join("workspace")
    }

    /// Writes a file of the catalog.
    pub(crate) fn write_catalog_file(&self, name: &str, text: &str) {
        let file = self.folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    /// Returns the engine's base URL.
    pub(crate) fn base_url(&self) -> &str {
        &self.engine.base
    }

    /// Returns a request without a key.
    pub(crate) fn request_without_key(&self, method: &str, path: &str) -> RequestBuilder {
        let method: Method = method.parse().unwrap();
        self.client.request(method, format!("{}{path}", self.engine.base))
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> RequestBuilder {
        self.request_without_key(method, path).header("X-Engine-Key", ENGINE_KEY)
    }

    pub(crate) async fn post_execute(&self, body: impl Into<reqwest::Body>) -> Response {
        with_deadline(self.request("POST", "/execute").body(body).send()).await.unwrap()
    }

    /// Runs a turn of `task` and returns its events.
    pub(crate) async fn run_turn(&self, task: &str, message: &str) -> Vec<SseEvent> {
        let body = json!({"task_id": task, "message": message}).to_string();
        events(self.post_execute(body).await).await
    }

    pub(crate) async fn replay(&self, query: &str) -> Response {
        with_deadline(self.request("GET", &format!("/execute/replay{query}")).send()).await.unwrap()
    }

    /// Stops the engine and asserts that nothing of it is left.
    pub(crate) async fn stop(mut self) {
        self.engine.stop(Duration::from_secs(5)).await;
        self.provider.assert_no_refusals();
    }
}

impl RunningEngine {
    async fn start(env: &BTreeMap<String, String>, folder: &Path) -> Self {
        let brain = Brain::open(&folder.join("brain.sqlite")).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SkippingClock::new());
        let active_config =
            Arc::new(ActiveConfig::open(ConfigSources::new(env, Some(folder)), &brain).unwrap());
        let workspace_lock = tools::WorkspaceLock::default();
        let files = UserFiles::open(
            &folder.join("workspace"),
            &folder.join("brain.sqlite"),
            workspace_lock.clone(),
            FILE_LIMITS,
            clock.now(),
        );
        let tool_deps = ToolDeps {
            workspace: folder.join("workspace"),
            workspace_lock,
            brain: brain.clone(),
            catalog: Catalog::default(),
            sandbox: None,
            skill_dirs: Arc::new(SkillDirs::for_brain(&folder.join("brain.sqlite"))),
            process_permits: tools::ProcessPermits::default(),
            web_allowlist: WebAllowlist::default(),
            memory_budget: MemoryBudget::default(),
            documents: tools::documents::DocumentReader::new(None, &folder.join("workspace")),
        };
        let settings = crate::config::mcp_settings(&mut EnvReader::new(env));
        let documents = tool_deps.documents.clone();
        let mcp = Mcp::open(&brain, settings, None, Arc::clone(&clock), documents).unwrap();
        let snapshot =
            AgentSnapshot { soul: "You are a test.".into(), ..AgentSnapshot::from_setup(&tool_deps) };
        let services = Services {
            gateway: Arc::clone(active_config.gateway()),
            snapshots: SnapshotSource::new(snapshot, mcp.clone()),
            mcp,
            clock: Arc::clone(&clock),
            sandbox: None,
            skill_dirs: Arc::clone(&tool_deps.skill_dirs),
            outputs: SpillDir::new(&tool_deps.workspace),
            memory_budget: tool_deps.memory_budget.clone(),
            documents: tool_deps.documents.clone(),
            web: fetch::WebClient::new(tool_deps.web_allowlist.clone(), tool_deps.memory_budget.clone()),
            tool_permits: Services::new_tool_permits(),
            reservations: Arc::default(),
            caps: crate::agent::Caps::new(llm::UsageLimits::default()),
            reactive_compaction: true,
            hitl_ttl: Duration::from_hours(72),
            replay_ttl: Duration::from_hours(3),
            engine_id: None,
            usage_retention: Duration::from_hours(400 * 24),
            batch_interval: None,
        };
        let agent = Arc::new(Agent::new(brain.clone(), services));
        agent.resume().unwrap();
        let reloader = CatalogReloader::new(Arc::clone(&agent), folder.to_owned(), tool_deps);
        let state = AppState::new(
            Arc::clone(&agent),
            brain.clone(),
            files,
            active_config,
            reloader,
            Credentials {
                key_hash: KeyHash::of(ENGINE_KEY),
                browser_tokens: BrowserTokens::new(Some(token_identity()), BrowserAccess::default()),
                backups: Backups::new(brain.file(), &folder.join("workspace"), None),
            },
            clock,
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        let limits = ServeLimits {
            max_connections: 100,
            header_read_timeout: Duration::from_secs(20),
            drain_timeout: Duration::from_secs(5),
        };
        let server_task = tokio::spawn(serve(listener, service(state), limits, shutdown.clone()));
        Self { agent, brain, base, shutdown, server_task }
    }

    async fn stop(&mut self, deadline: Duration) {
        self.shutdown.cancel();
        with_deadline(self.agent.stop(deadline)).await;
        with_deadline(&mut self.server_task).await.unwrap();
        with_deadline(self.brain.close()).await;
    }
}

impl Drop for RunningEngine {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Returns the events of a response, up to its end.
pub(crate) async fn events(response: Response) -> Vec<SseEvent> {
    assert_eq!(response.status(), 200, "{:?}", with_deadline(response.text()).await);
    parse_sse(&with_deadline(response.bytes()).await.unwrap())
}

/// Asserts a refusal: its status, its code in the envelope and nothing beside it. Returns the message.
pub(crate) async fn expect_error(response: Response, status: u16, code: &str) -> String {
    assert_eq!(response.status(), status);
    assert_eq!(response.headers()["content-type"], "application/json");
    let body: Value = serde_json::from_slice(&with_deadline(response.bytes()).await.unwrap()).unwrap();
    let envelope: ErrorBody = serde_json::from_value(body.clone()).unwrap();
    let message = envelope.error.message;
    assert_eq!(body, json!({"error": {"code": code, "message": message}}));
    assert!(!message.is_empty());
    message
}
