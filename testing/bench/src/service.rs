//! An orchestrator started as `roundhouse orchestrator`, with the backend and database of its environment
//! variables.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, bail};
use api::EngineKey;
use http_body_util::Full;
use hyper::Method;
use serde_json::{Value, json};

use crate::client::Client;
use crate::context::BenchContext;
use crate::orchestrator::{
    FEW_PORTS, Orchestrator, POLL_INTERVAL, READY_TIMEOUT, is_healthy, kill_engines, port_range,
};
use crate::process::{Process, free_port, log_file};

/// The folder and settings of an orchestrator. Dropped, it kills the engine processes that are left.
pub(crate) struct OrchestratorService {
    binary: PathBuf,
    folder: PathBuf,
    port: u16,
    env: Vec<(&'static str, String)>,
    admin_key: String,
}

impl OrchestratorService {
    /// Sets up an orchestrator in a new folder, with `variables` in addition to those that every orchestrator
    /// needs.
    pub(crate) fn new(bench: &BenchContext, variables: Vec<(&'static str, String)>) -> anyhow::Result<Self> {
        let folder = bench.new_folder()?;
        std::fs::create_dir(folder.join("catalog"))?;
        let random = || {
            Ok::<_, anyhow::Error>(EngineKey::generate()?.expose().trim_start_matches("sk-svc-").to_owned())
        };
        let (ports, admin_key) = (port_range(FEW_PORTS)?, random()?);
        let path = |name: &str| folder.join(name).display().to_string();
        let mut all = vec![
            ("ORCH_MASTER_KEY", random()?),
            ("ORCH_ADMIN_KEY", admin_key.clone()),
            ("ORCH_HOST", "127.0.0.1".to_owned()),
            ("ORCH_PORT_MIN", ports.start.to_string()),
            ("ORCH_PORT_MAX", (ports.end - 1).to_string()),
            ("ORCH_DATA_ROOT_PATH", path("engines")),
            ("ORCH_CATALOG_MOUNT_PATH", path("catalog")),
            ("ORCH_ENGINE_ENV_PASSTHROUGH", "LLM_PROVIDER".to_owned()),
            ("LLM_PROVIDER", "scripted".to_owned()),
        ];
        all.extend(variables);
        let binary = bench.binary.clone();
        Ok(Self { binary, folder, port: free_port()?, env: all, admin_key })
    }

    /// Returns the orchestrator's folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts the orchestrator and registers a product with this policy.
    pub(crate) async fn start(&self, policy: Value) -> anyhow::Result<Orchestrator> {
        let (process, address) = self.launch().await?;
        let key = self.register(address, "bench", policy).await?;
        Ok(Orchestrator::new(process, address, key))
    }

    /// Starts the orchestrator with what its registry has, and waits until it is ready.
    pub(crate) async fn launch(&self) -> anyhow::Result<(Process, SocketAddr)> {
        let mut command = Command::new(&self.binary);
        command
            .arg("orchestrator")
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("ORCH_PORT", self.port.to_string())
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        let log = log_file(&self.folder, "orchestrator");
        let mut process = Process::spawn(command, "the orchestrator", log)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let deadline = Instant::now() + READY_TIMEOUT;
        while !is_healthy(address).await {
            process.ensure_running()?;
            if Instant::now() > deadline {
                bail!(
                    "the orchestrator was not ready within {} s:\n{}",
                    READY_TIMEOUT.as_secs(),
                    process.log_tail()
                );
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok((process, address))
    }

    /// Registers a product with this policy, and returns its platform key.
    pub(crate) async fn register(
        &self,
        address: SocketAddr,
        slug: &str,
        policy: Value,
    ) -> anyhow::Result<String> {
        let mut client = Client::connect(address).await?;
        let body = json!({"slug": slug, "display_name": slug, "policy": policy});
        let request =
            client.request(Method::POST, "/products/register").header("x-admin-key", &self.admin_key);
        let registered: Value = client.fetch_json(request.body(Full::from(body.to_string()))?).await?;
        let key = registered.get("platform_api_key").and_then(Value::as_str);
        Ok(key.context("the registration has no platform key")?.to_owned())
    }
}

impl Drop for OrchestratorService {
    fn drop(&mut self) {
        kill_engines(&self.folder.join("engines"));
    }
}
