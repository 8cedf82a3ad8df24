//! An engine alone, without an orchestrator: configured by its container contract's variables.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use api::engine::{ENGINE_KEY_HEADER, Execute};
use api::{EngineKey, TaskId};
use http_body_util::Full;
use hyper::Method;
use serde_json::{Value, json};

use crate::baselines::REPLAY;
use crate::client::{Client, HttpRequest};
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::provider::MODEL_NAME;

/// The model that an engine is configured with.
#[derive(Clone, Debug)]
pub(crate) struct ModelConfig {
    pub(crate) provider: &'static str,
    pub(crate) base_url: String,
    /// The protocol, where it is not the provider's usual one.
    pub(crate) api: Option<&'static str>,
}

impl ModelConfig {
    /// One that is configured and never called.
    pub(crate) fn unused() -> Self {
        Self::new("anthropic", "http://127.0.0.1:9".into())
    }

    /// One that a provider serves at this address, by its usual protocol.
    pub(crate) fn new(provider: &'static str, base_url: String) -> Self {
        Self { provider, base_url, api: None }
    }

    /// The gateway's configuration, which alone can ask for another protocol than the usual one.
    fn gateway_config(&self) -> Option<Value> {
        let model = json!({
            "provider": self.provider, "model": MODEL_NAME, "api": self.api?, "base_url": self.base_url,
            "context_window": 200_000,
        });
        Some(json!({"models": {MODEL_NAME: model}, "default": MODEL_NAME, "fallbacks": []}))
    }
}

/// Where an engine lives, and how it is started there again and again.
pub(crate) struct EngineSetup<'a> {
    binary: &'a Path,
    folder: PathBuf,
    model: ModelConfig,
    key: EngineKey,
}

impl<'a> EngineSetup<'a> {
    /// In an empty folder: its brain is fresh at the first start.
    pub(crate) fn new(binary: &'a Path, folder: PathBuf, model: ModelConfig) -> anyhow::Result<Self> {
        Ok(Self { binary, folder, model, key: EngineKey::generate()? })
    }

    /// The file of its brain.
    pub(crate) fn brain(&self) -> PathBuf {
        self.folder.join("data/brain.sqlite")
    }

    /// Puts a file into its catalog.
    pub(crate) fn write_catalog_file(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let catalog = self.folder.join("catalog");
        std::fs::create_dir_all(&catalog)?;
        Ok(std::fs::write(catalog.join(name), text)?)
    }

    /// Starts the engine, and gives the time from before the fork to its first `/health` that says ok.
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

/// What an engine is told where that does not matter.
pub(crate) const DEFAULT_MESSAGE: &str = "Count, please.";

/// A running engine.
pub(crate) struct Engine {
    pub(crate) process: Process,
    pub(crate) port: u16,
    key: EngineKey,
}

impl Engine {
    /// A connection to it.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        Client::connect(([127, 0, 0, 1], self.port).into()).await
    }

    /// The request for a turn on a task, straight to the model.
    pub(crate) fn execute(&self, client: &Client, task: &str) -> anyhow::Result<HttpRequest> {
        self.execute_with(client, task, DEFAULT_MESSAGE, None)
    }

    /// The same with this message, and so many model calls at most.
    pub(crate) fn execute_with(
        &self,
        client: &Client,
        task: &str,
        message: &str,
        max_turns: impl Into<Option<i64>>,
    ) -> anyhow::Result<HttpRequest> {
        let body = Execute {
            message: message.into(),
            task_id: TaskId::new(task)?,
            media: Vec::new(),
            direct: true,
            edit_message_id: None,
            retry_message_id: None,
            max_turns: max_turns.into().map(TryInto::try_into).transpose()?,
            super_thinking: false,
            client_request_id: None,
        };
        let request = client.request(Method::POST, "/execute").header(ENGINE_KEY_HEADER, self.key.expose());
        Ok(request.body(Full::from(serde_json::to_vec(&body)?))?)
    }

    /// The request for all events of a task.
    pub(crate) fn replay(&self, client: &Client, task: &str) -> anyhow::Result<HttpRequest> {
        let path = format!("{REPLAY}?after=0&task_id={task}");
        let request = client.request(Method::GET, &path).header(ENGINE_KEY_HEADER, self.key.expose());
        Ok(request.body(Full::default())?)
    }
}
