//! A standalone engine without an orchestrator, configured by the environment variables of the container contract.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use api::engine::{ENGINE_KEY_HEADER, Execute};
use api::{EngineKey, TaskId};
use http_body_util::Full;
use hyper::Method;
use hyper::header::AUTHORIZATION;
use hyper::http::request::Builder;
use serde_json::{Value, json};

use crate::baselines::{FILE, REPLAY};
use crate::client::{Client, HttpRequest};
use crate::front::Front;
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::provider::MODEL_NAME;

/// The model configuration of an engine.
#[derive(Clone, Debug)]
pub(crate) struct ModelConfig {
    pub(crate) provider: &'static str,
    pub(crate) base_url: String,
    /// The protocol, if it is not the provider's default.
    pub(crate) api: Option<&'static str>,
}

impl ModelConfig {
    /// A model that is configured but never called.
    pub(crate) fn unused() -> Self {
        Self::new("anthropic", "http://127.0.0.1:9".into())
    }

    /// A model that `provider` serves at `base_url` with its default protocol.
    pub(crate) fn new(provider: &'static str, base_url: String) -> Self {
        Self { provider, base_url, api: None }
    }

    /// The gateway configuration, needed only to select another protocol than the default.
    fn gateway_config(&self) -> Option<Value> {
        let model = json!({
            "provider": self.provider, "model": MODEL_NAME, "api": self.api?, "base_url": self.base_url,
            "context_window": 200_000,
        });
        Some(json!({"models": {MODEL_NAME: model}, "default": MODEL_NAME, "fallbacks": []}))
    }
}

/// The folder and configuration of an engine, which can be started there repeatedly.
pub(crate) struct EngineSetup<'a> {
    binary: &'a Path,
    folder: PathBuf,
    model: ModelConfig,
    key: EngineKey,
}

impl<'a> EngineSetup<'a> {
    /// Sets up an engine in an empty folder; the first start creates a fresh brain.
    pub(crate) fn new(binary: &'a Path, folder: PathBuf, model: ModelConfig) -> anyhow::Result<Self> {
        Ok(Self { binary, folder, model, key: EngineKey::generate()? })
    }

    /// Returns the path of the engine's brain.
    pub(crate) fn brain(&self) -> PathBuf {
        self.folder.join("data/brain.sqlite")
    }

    /// Writes a file into the engine's catalog.
    pub(crate) fn write_catalog_file(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let catalog = self.folder.join("catalog");
        std::fs::create_dir_all(&catalog)?;
        Ok(std::fs::write(catalog.join(name), text)?)
    }

    /// Starts the engine and returns the time from before the fork to the first `/health` response with status
    /// `ok`.
    pub(crate) fn start(&self) -> anyhow::Result<(Engine, Duration)> {
        let port = free_port()?;
        let catalog = self.folder.join("catalog");
        if let Some(gateway) = self.model.gateway_config() {
            std::fs::create_dir_all(&catalog)?;
            std::fs::write(catalog.join("gateway.json"), gateway.to_string())?;
        }
        let mut command = Command::new(self.binary);
        command
            .arg("engine")
            .env_clear()
            .env("ENGINE_HOST", "127.0.0.1")
            .env("ENGINE_PORT", port.to_string())
            .env("ENGINE_KEY_HASH", self.key.hash().to_hex())
            .env("SQLITE_DB_PATH", self.brain())
            .env("CATALOG_DIR", catalog)
            .env("LLM_PROVIDER", self.model.provider)
            .env("LLM_BASE_URL", &self.model.base_url)
            .env("LLM_MODEL", MODEL_NAME)
            .env("LLM_API_KEY", "not-a-real-key");
        let began = Instant::now();
        let mut process = Process::spawn(command, "the engine", log_file(&self.folder, "engine"))?;
        probe::wait_until_healthy(&mut process, port)?;
        let took = began.elapsed();
        Ok((Engine { process, port, key: self.key.clone() }, took))
    }
}

/// The user's message in turns whose content does not matter.
pub(crate) const DEFAULT_MESSAGE: &str = "Count, please.";

/// A running engine.
pub(crate) struct Engine {
    pub(crate) process: Process,
    pub(crate) port: u16,
    key: EngineKey,
}

impl Engine {
    /// Opens a connection to the engine.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        Client::connect(([127, 0, 0, 1], self.port).into()).await
    }

    /// Builds the request for a `direct` turn of `task`, with the default message.
    pub(crate) fn execute(&self, client: &Client, task: &str) -> anyhow::Result<HttpRequest> {
        self.execute_with(client, task, DEFAULT_MESSAGE, None)
    }

    /// Builds the request for a `direct` turn with this message and at most `max_turns` model calls.
    pub(crate) fn execute_with(
        &self,
        client: &Client,
        task: &str,
        message: &str,
        max_turns: impl Into<Option<i64>>,
    ) -> anyhow::Result<HttpRequest> {
        let body = Execute {
            direct: true,
            max_turns: max_turns.into().map(TryInto::try_into).transpose()?,
            ..Execute::new(TaskId::new(task)?, message)
        };
        let request = client.request(Method::POST, "/execute").header(ENGINE_KEY_HEADER, self.key.expose());
        Ok(request.body(Full::from(serde_json::to_vec(&body)?))?)
    }

    /// Builds the request for a turn through another protocol.
    pub(crate) fn front(
        &self,
        client: &Client,
        front: Front,
        task: &str,
        message: &str,
    ) -> anyhow::Result<HttpRequest> {
        let bearer = format!("Bearer {}", self.key.expose());
        let mut request = client.request(Method::POST, front.path()).header(AUTHORIZATION, bearer);
        if let Some((name, value)) = front.header() {
            request = request.header(name, value);
        }
        Ok(request.body(Full::from(serde_json::to_vec(&front.request(task, message))?))?)
    }

    /// Starts a request for the file of the file measurement. The baseline ignores the engine's key.
    pub(crate) fn file(&self, client: &Client, method: Method) -> Builder {
        client.request(method, FILE).header(ENGINE_KEY_HEADER, self.key.expose())
    }

    /// Builds the request for all events of a task.
    pub(crate) fn replay(&self, client: &Client, task: &str) -> anyhow::Result<HttpRequest> {
        let path = format!("{REPLAY}?after=0&task_id={task}");
        let request = client.request(Method::GET, &path).header(ENGINE_KEY_HEADER, self.key.expose());
        Ok(request.body(Full::default())?)
    }
}
