//! An orchestrator: `roundhouse up` in a folder of its own, with its engines as processes.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use contract::UserId;
use contract::orchestrator::{
    Admit, DestroyedEngine, PLATFORM_KEY_HEADER, ProvisionEngine, ProvisionedEngine, StartedEngine,
    StoppedEngine,
};
use http_body_util::Full;
use hyper::Method;
use serde::Serialize;

use crate::bench::Bench;
use crate::client::{Client, Outgoing, address_of};
use crate::process::{Process, free_port, log_file};

/// How long it may take to be ready.
const READY: Duration = Duration::from_secs(30);
/// Between two looks at whether it is.
const LOOK: Duration = Duration::from_millis(20);
/// Engines' ports: out of the way of the default range and of those that the system hands out. Runs at the
/// same time are kept apart by their process ids.
const FIRST_PORT: u32 = 12_000;
const PORTS: u32 = 100;

/// A running orchestrator. Dropped, it ends and its engines with it.
pub(crate) struct Orchestrator {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    key: String,
}

impl Orchestrator {
    /// Starts it.
    pub(crate) async fn start(bench: &Bench) -> anyhow::Result<Self> {
        let folder = bench.folder()?;
        let home = folder.join("up");
        let first_port = FIRST_PORT + std::process::id() % 150 * PORTS;
        let mut command = Command::new(&bench.binary);
        command
            .arg("up")
            .arg("--dir")
            .arg(&home)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("ORCH_PORT", free_port()?.to_string())
            .env("ORCH_PORT_MIN", first_port.to_string())
            .env("ORCH_PORT_MAX", (first_port + PORTS - 1).to_string())
            .env("LLM_PROVIDER", "scripted");
        let mut process = Process::spawn(command, "the orchestrator", log_file(&folder, "up"))?;
        let deadline = Instant::now() + READY;
        loop {
            process.must_run()?;
            if let Some((address, key)) = access(&home)?
                && is_well(address).await
            {
                return Ok(Self { process, address, key });
            }
            if Instant::now() > deadline {
                bail!("the orchestrator was not ready within {} s:\n{}", READY.as_secs(), process.said());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends it, which puts its engines to sleep.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        self.process.end().map(drop)
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
        let request = self.request(client, Method::POST, "/engines/provision", Some(&body))?;
        client.json(request).await
    }

    /// The request that stops.
    pub(crate) async fn stop(&self, client: &mut Client, user: &str) -> anyhow::Result<StoppedEngine> {
        let request = self.request::<()>(client, Method::POST, &format!("/engines/{user}/stop"), None)?;
        client.json(request).await
    }

    /// The request that starts.
    pub(crate) async fn start_engine(
        &self,
        client: &mut Client,
        user: &str,
    ) -> anyhow::Result<StartedEngine> {
        let request = self.request::<()>(client, Method::POST, &format!("/engines/{user}/start"), None)?;
        client.json(request).await
    }

    /// The request that deletes.
    pub(crate) async fn delete(&self, client: &mut Client, user: &str) -> anyhow::Result<DestroyedEngine> {
        let request = self.request::<()>(client, Method::DELETE, &format!("/engines/{user}"), None)?;
        client.json(request).await
    }

    /// The key by which it knows its product.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    fn request<T: Serialize>(
        &self,
        client: &Client,
        method: Method,
        path: &str,
        body: Option<&T>,
    ) -> anyhow::Result<Outgoing> {
        let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        let request = client.request(method, path).header(PLATFORM_KEY_HEADER, &self.key);
        Ok(request.body(Full::from(body))?)
    }
}

/// An admit of a running engine, to an orchestrator or to the floor.
pub(crate) fn admit(client: &Client, user: &str, key: &str) -> anyhow::Result<Outgoing> {
    let body = serde_json::to_vec(&Admit::default())?;
    let request = client.request(Method::POST, &format!("/engines/{user}/admit"));
    Ok(request.header(PLATFORM_KEY_HEADER, key).body(Full::from(body))?)
}

/// The address and the key that `up` leaves in its folder; none while they are not there.
fn access(home: &Path) -> anyhow::Result<Option<(SocketAddr, String)>> {
    let read = |name: &str| std::fs::read_to_string(home.join(name)).ok();
    let (Some(address), Some(key)) = (read("address"), read("platform.key")) else { return Ok(None) };
    Ok(Some((address_of(&address).context("the orchestrator's address")?, key.trim().to_owned())))
}

async fn is_well(address: SocketAddr) -> bool {
    let well = async {
        let mut client = Client::connect(address).await?;
        let request = client.request(Method::GET, "/health").body(Full::default())?;
        client.json::<contract::orchestrator::Health>(request).await
    };
    well.await.is_ok_and(|health| health.status == contract::orchestrator::HealthStatus::Ok)
}
