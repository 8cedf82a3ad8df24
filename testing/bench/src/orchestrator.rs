//! An orchestrator: `roundhouse up` in a folder of its own, with its engines as processes.

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

/// How long it may take to be ready.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two looks at whether it is.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Engines' ports: out of the way of the default range and of those that the system hands out.
const ENGINE_PORT_RANGE: std::ops::Range<u32> = 12_000..32_000;
/// Ports where a measurement has a few engines.
pub(crate) const FEW_PORTS: u32 = 100;

/// Where an orchestrator lives, and how it is started there again and again. Dropped, it kills the engines that
/// are left: an orchestrator that was killed leaves them all.
pub(crate) struct OrchestratorSetup {
    binary: PathBuf,
    folder: PathBuf,
    port: u16,
    ports: std::ops::Range<u32>,
}

impl OrchestratorSetup {
    /// For a few engines.
    pub(crate) fn with_few_ports(bench: &BenchContext) -> anyhow::Result<Self> {
        Self::new(bench, FEW_PORTS)
    }

    /// In a new folder, for as many engines as it has `ports`.
    pub(crate) fn new(bench: &BenchContext, ports: u32) -> anyhow::Result<Self> {
        let binary = bench.binary.clone();
        Ok(Self { binary, folder: bench.new_folder()?, port: free_port()?, ports: port_range(ports)? })
    }

    /// Starts it, with all that it has from the last time.
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

    /// Its registry, once it has been started.
    pub(crate) fn registry_file(&self) -> PathBuf {
        self.up_folder().join("registry.sqlite")
    }

    /// The folder of its `up`.
    pub(crate) fn up_folder(&self) -> PathBuf {
        self.folder.join("up")
    }
}

impl Drop for OrchestratorSetup {
    fn drop(&mut self) {
        kill_engines(&self.up_folder());
    }
}

/// So many ports for engines. Runs at the same time are kept apart by their process ids.
pub(crate) fn port_range(ports: u32) -> anyhow::Result<std::ops::Range<u32>> {
    let ranges = ENGINE_PORT_RANGE.len() / usize::try_from(ports)?;
    let range = std::process::id() % u32::try_from(ranges)?;
    let first = ENGINE_PORT_RANGE.start + range * ports;
    Ok(first..first + ports)
}

/// Kills the engines that run below `home`, known by where their brain is.
pub(crate) fn kill_engines(home: &Path) {
    let brain = format!("SQLITE_DB_PATH={}/", home.display());
    let is_managed_dir_name = |environment: &Vec<u8>| {
        environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(brain.as_bytes()))
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ours = processes.filter(|entry| {
        // What belongs to someone else cannot be read, and is not ours.
        std::fs::read(entry.path().join("environ")).as_ref().is_ok_and(is_managed_dir_name)
    });
    for engine in ours.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)) {
        // It may just have ended by itself.
        let _ = kill_process(engine, Signal::KILL);
    }
}

/// A running orchestrator. Dropped, it ends and its engines with it.
pub(crate) struct Orchestrator {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    key: String,
}

impl Orchestrator {
    /// One that runs, with the key by which it knows its product.
    pub(crate) const fn new(process: Process, address: SocketAddr, key: String) -> Self {
        Self { process, address, key }
    }

    /// Ends it, which puts its engines to sleep.
    pub(crate) fn shut_down(self) -> anyhow::Result<()> {
        self.shut_down_within(STOP_TIMEOUT)
    }

    /// The same with many engines, which takes its time.
    pub(crate) fn shut_down_within(mut self, at_most: Duration) -> anyhow::Result<()> {
        self.process.stop_within(at_most).map(drop)
    }

    /// Kills it, which leaves its engines running.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        self.process.kill()
    }

    /// A connection to it.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        Client::connect(self.address).await
    }

    /// The request that provisions.
    pub(crate) async fn provision(
        &self,
        client: &mut Client,
        user: &str,
    ) -> anyhow::Result<ProvisionedEngine> {
        let body = ProvisionEngine { user_id: UserId::new(user)?, engine_version: None };
        let request = self.build_request(client, Method::POST, "/engines/provision", Some(&body))?;
        client.fetch_json(request).await
    }

    /// The request that stops.
    pub(crate) async fn stop(&self, client: &mut Client, user: &str) -> anyhow::Result<StoppedEngine> {
        let request =
            self.build_request::<()>(client, Method::POST, &format!("/engines/{user}/stop"), None)?;
        client.fetch_json(request).await
    }

    /// The request that starts.
    pub(crate) async fn start_engine(
        &self,
        client: &mut Client,
        user: &str,
    ) -> anyhow::Result<StartedEngine> {
        let request =
            self.build_request::<()>(client, Method::POST, &format!("/engines/{user}/start"), None)?;
        client.fetch_json(request).await
    }

    /// The request that admits, and wakes who sleeps.
    pub(crate) async fn wake(&self, client: &mut Client, user: &str) -> anyhow::Result<Admission> {
        let body = Admit { auto_wake: true, ..Admit::default() };
        let path = format!("/engines/{user}/admit");
        client.fetch_json(self.build_request(client, Method::POST, &path, Some(&body))?).await
    }

    /// How many engines run.
    pub(crate) async fn running_count(&self, client: &mut Client) -> anyhow::Result<u64> {
        self.engine_count(client, "running").await
    }

    /// How many engines are in this state.
    pub(crate) async fn engine_count(&self, client: &mut Client, status: &str) -> anyhow::Result<u64> {
        let list: EngineList = self.get(client, &format!("/engines?status={status}&limit=1")).await?;
        Ok(list.total)
    }

    /// A request that looks at something.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        client: &mut Client,
        path: &str,
    ) -> anyhow::Result<T> {
        client.fetch_json(self.build_request::<()>(client, Method::GET, path, None)?).await
    }

    /// The request that deletes.
    pub(crate) async fn delete(&self, client: &mut Client, user: &str) -> anyhow::Result<DestroyedEngine> {
        let request = self.build_request::<()>(client, Method::DELETE, &format!("/engines/{user}"), None)?;
        client.fetch_json(request).await
    }

    /// The key by which it knows its product.
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
        let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        let request = client.request(method, path).header(PLATFORM_KEY_HEADER, &self.key);
        Ok(request.body(Full::from(body))?)
    }
}

/// An admit of a running engine, to an orchestrator or to the floor.
pub(crate) fn admit_request(client: &Client, user: &str, key: &str) -> anyhow::Result<HttpRequest> {
    let body = serde_json::to_vec(&Admit::default())?;
    let request = client.request(Method::POST, &format!("/engines/{user}/admit"));
    Ok(request.header(PLATFORM_KEY_HEADER, key).body(Full::from(body))?)
}

/// The address and the key that `up` leaves in its folder; none while they are not there.
fn read_access(home: &Path) -> anyhow::Result<Option<(SocketAddr, String)>> {
    let read = |name: &str| std::fs::read_to_string(home.join(name)).ok();
    let (Some(address), Some(key)) = (read("address"), read("platform.key")) else { return Ok(None) };
    Ok(Some((parse_address(&address).context("the orchestrator's address")?, key.trim().to_owned())))
}

pub(crate) async fn is_healthy(address: SocketAddr) -> bool {
    let well = async {
        let mut client = Client::connect(address).await?;
        let request = client.request(Method::GET, "/health").body(Full::default())?;
        client.fetch_json::<api::orchestrator::Health>(request).await
    };
    well.await.is_ok_and(|health| health.status == api::orchestrator::HealthStatus::Ok)
}
