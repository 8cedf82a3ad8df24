//! An orchestrator started as `roundhouse up` in a folder of its own, with its engines as processes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use api::UserId;
use api::orchestrator::{
    Admission, Admit, DestroyedEngine, EngineList, PLATFORM_KEY_HEADER, ProvisionEngine, ProvisionedEngine,
    StartedEngine, StoppedEngine,
};
use http_body_util::Full;
use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::{Client, HttpRequest, parse_address};
use crate::context::BenchContext;
use crate::process::{Process, STOP_TIMEOUT, free_port, log_file};

/// The time within which an orchestrator must be ready.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// The time between two readiness checks.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Ports for engines, outside the default range and the system's ephemeral ports.
const ENGINE_PORT_RANGE: std::ops::Range<u32> = 12_000..32_000;
/// The number of ports for a measurement with a few engines.
pub(crate) const FEW_PORTS: u32 = 100;

/// The folder and ports of an orchestrator, which can be started there repeatedly. Dropped, it kills the engines
/// that are left, because a killed orchestrator leaves all of them running.
pub(crate) struct OrchestratorSetup {
    binary: PathBuf,
    folder: PathBuf,
    port: u16,
    ports: std::ops::Range<u32>,
}

impl OrchestratorSetup {
    /// Sets up an orchestrator for a few engines.
    pub(crate) fn with_few_ports(bench: &BenchContext) -> anyhow::Result<Self> {
        Self::new(bench, FEW_PORTS)
    }

    /// Sets up an orchestrator in a new folder, for at most `ports` engines.
    pub(crate) fn new(bench: &BenchContext, ports: u32) -> anyhow::Result<Self> {
        let binary = bench.binary.clone();
        Ok(Self { binary, folder: bench.new_folder()?, port: free_port()?, ports: port_range(ports)? })
    }

    /// Starts the orchestrator with the data of its previous run, and waits until it is ready.
    pub(crate) async fn start(&self) -> anyhow::Result<Orchestrator> {
        let home = self.up_folder();
        let mut command = Command::new(&self.binary);
        command
            .arg("up")
            .arg("--dir")
            .arg(&home)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("ORCH_PORT", self.port.to_string())
            .env("ORCH_PORT_MIN", self.ports.start.to_string())
            .env("ORCH_PORT_MAX", (self.ports.end - 1).to_string())
            .env("LLM_PROVIDER", "scripted");
        let mut process = Process::spawn(command, "the orchestrator", log_file(&self.folder, "up"))?;
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            process.ensure_running()?;
            if let Some((address, key)) = read_access(&home)?
                && is_healthy(address).await
            {
                return Ok(Orchestrator { process, address, key });
            }
            if Instant::now() > deadline {
                bail!(
                    "the orchestrator was not ready within {} s:\n{}",
                    READY_TIMEOUT.as_secs(),
                    process.log_tail()
                );
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns the registry's file, which exists after the first start.
    pub(crate) fn registry_file(&self) -> PathBuf {
        self.up_folder().join("registry.sqlite")
    }

    /// Returns the data folder of `roundhouse up`.
    pub(crate) fn up_folder(&self) -> PathBuf {
        self.folder.join("up")
    }
}

impl Drop for OrchestratorSetup {
    fn drop(&mut self) {
        kill_engines(&self.up_folder());
    }
}

/// Returns a range of `ports` ports for engines, chosen by process id so that concurrent runs rarely collide.
pub(crate) fn port_range(ports: u32) -> anyhow::Result<std::ops::Range<u32>> {
    let ranges = ENGINE_PORT_RANGE.len() / usize::try_from(ports)?;
    let range = std::process::id() % u32::try_from(ranges)?;
    let first = ENGINE_PORT_RANGE.start + range * ports;
    Ok(first..first + ports)
}

/// Kills the engines whose brain is below `home`, found through their environment variables.
pub(crate) fn kill_engines(home: &Path) {
    let brain = format!("SQLITE_DB_PATH={}/", home.display());
    let is_below_home = |environment: &Vec<u8>| {
        environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(brain.as_bytes()))
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ours = processes.filter(|entry| {
        // The environment of another user's process cannot be read; such a process is not ours.
        std::fs::read(entry.path().join("environ")).as_ref().is_ok_and(is_below_home)
    });
    for engine in ours.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)) {
        // It may have exited in the meantime.
        let _ = kill_process(engine, Signal::KILL);
    }
}

/// A running orchestrator. Dropped, it is stopped together with its engines.
pub(crate) struct Orchestrator {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    key: String,
}

impl Orchestrator {
    /// Wraps a running orchestrator; `key` is its product's platform key.
    pub(crate) const fn new(process: Process, address: SocketAddr, key: String) -> Self {
        Self { process, address, key }
    }

    /// Stops the orchestrator, which puts its engines to sleep.
    pub(crate) fn shut_down(self) -> anyhow::Result<()> {
        self.shut_down_within(STOP_TIMEOUT)
    }

    /// Stops the orchestrator within `at_most`, for fleets that take long to go to sleep.
    pub(crate) fn shut_down_within(mut self, at_most: Duration) -> anyhow::Result<()> {
        self.process.stop_within(at_most).map(drop)
    }

    /// Kills the orchestrator, which leaves its engines running.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        self.process.kill()
    }

    /// Opens a connection to the orchestrator.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        Client::connect(self.address).await
    }

    /// Provisions an engine for `user`.
    pub(crate) async fn provision(
        &self,
        client: &mut Client,
        user: &str,
    ) -> anyhow::Result<ProvisionedEngine> {
        let body = ProvisionEngine { user_id: UserId::new(user)?, engine_version: None };
        let request = self.build_request(client, Method::POST, "/engines/provision", Some(&body))?;
        client.fetch_json(request).await
    }

    /// Stops the user's engine.
    pub(crate) async fn stop(&self, client: &mut Client, user: &str) -> anyhow::Result<StoppedEngine> {
        let request =
            self.build_request::<()>(client, Method::POST, &format!("/engines/{user}/stop"), None)?;
        client.fetch_json(request).await
    }

    /// Starts the user's stopped engine.
    pub(crate) async fn start_engine(
        &self,
        client: &mut Client,
        user: &str,
    ) -> anyhow::Result<StartedEngine> {
        let request =
            self.build_request::<()>(client, Method::POST, &format!("/engines/{user}/start"), None)?;
        client.fetch_json(request).await
    }

    /// Admits the user and wakes a sleeping engine.
    pub(crate) async fn wake(&self, client: &mut Client, user: &str) -> anyhow::Result<Admission> {
        let body = Admit { auto_wake: true, ..Admit::default() };
        let path = format!("/engines/{user}/admit");
        client.fetch_json(self.build_request(client, Method::POST, &path, Some(&body))?).await
    }

    /// Returns the number of running engines.
    pub(crate) async fn running_count(&self, client: &mut Client) -> anyhow::Result<u64> {
        self.engine_count(client, "running").await
    }

    /// Returns the number of engines in the state `status`.
    pub(crate) async fn engine_count(&self, client: &mut Client, status: &str) -> anyhow::Result<u64> {
        let list: EngineList = self.get(client, &format!("/engines?status={status}&limit=1")).await?;
        Ok(list.total)
    }

    /// Sends a GET request and parses the response.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        client: &mut Client,
        path: &str,
    ) -> anyhow::Result<T> {
        client.fetch_json(self.build_request::<()>(client, Method::GET, path, None)?).await
    }

    /// Deletes the user's engine.
    pub(crate) async fn delete(&self, client: &mut Client, user: &str) -> anyhow::Result<DestroyedEngine> {
        let request = self.build_request::<()>(client, Method::DELETE, &format!("/engines/{user}"), None)?;
        client.fetch_json(request).await
    }

    /// Returns the platform key of the orchestrator's product.
    pub(crate) fn platform_key(&self) -> &str {
        &self.key
    }

    fn build_request<T: Serialize>(
        &self,
        client: &Client,
        method: Method,
        path: &str,
        body: Option<&T>,
    ) -> anyhow::Result<HttpRequest> {
        product_request(client, &self.key, method, path, body)
    }
}

/// Builds a request of the product with this platform key.
pub(crate) fn product_request<T: Serialize>(
    client: &Client,
    key: &str,
    method: Method,
    path: &str,
    body: Option<&T>,
) -> anyhow::Result<HttpRequest> {
    let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
    let request = client.request(method, path).header(PLATFORM_KEY_HEADER, key);
    Ok(request.body(Full::from(body))?)
}

/// Builds an admit request for a running engine, for an orchestrator or the baseline.
pub(crate) fn admit_request(client: &Client, user: &str, key: &str) -> anyhow::Result<HttpRequest> {
    let body = serde_json::to_vec(&Admit::default())?;
    let request = client.request(Method::POST, &format!("/engines/{user}/admit"));
    Ok(request.header(PLATFORM_KEY_HEADER, key).body(Full::from(body))?)
}

/// Reads the address and key that `up` writes into its folder; `None` until both exist.
fn read_access(home: &Path) -> anyhow::Result<Option<(SocketAddr, String)>> {
    let read = |name: &str| std::fs::read_to_string(home.join(name)).ok();
    let (Some(address), Some(key)) = (read("address"), read("platform.key")) else { return Ok(None) };
    Ok(Some((parse_address(&address).context("the orchestrator's address")?, key.trim().to_owned())))
}

pub(crate) async fn is_healthy(address: SocketAddr) -> bool {
    let health = async {
        let mut client = Client::connect(address).await?;
        let request = client.request(Method::GET, "/health").body(Full::default())?;
        client.fetch_json::<api::orchestrator::Health>(request).await
    };
    health.await.is_ok_and(|health| health.status == api::orchestrator::HealthStatus::Ok)
}
