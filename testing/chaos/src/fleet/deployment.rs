//! A deployment: its folder, ports and database, how its orchestrator is started, and the cleanup that leaves none
//! of its engines behind.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use api::EngineKey;
use parking_lot::Mutex;
use reqwest::Client;

use super::cluster::Cluster;
use super::containers::Containers;
use super::engine_host::{Backend, EngineFault, EngineHost, EngineInstance};
use super::engine_urls::EngineUrls;
use super::pods::Pods;
use super::registry::Registry;
use super::secrets::Secrets;
use super::settings::env_vars;
use super::{Database, FleetCampaign};
use crate::client::http_client_builder;
use crate::ports::Ports;
use crate::service_process::{Service, ServiceConfig, ServiceProcess};

/// How long a start may take until it is ready. Generous: the machine may be busy.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How many ports the engines have where they are to run out of them.
const LIMITED_PORT_COUNT: u16 = 6;

/// How many orchestrators of one deployment there may be at once.
pub(crate) const REPLICA_COUNT: u16 = 2;

/// See the module.
#[derive(Debug)]
pub(crate) struct Deployment {
    service_config: ServiceConfig,
    ports: Ports,
    engine_host: EngineHost,
    /// The server that the registry is on, where it is on one.
    cluster: Option<Cluster>,
    registry: Registry,
    /// Its secrets, none of which may be found in any file.
    secrets: Vec<String>,
    admin_key: String,
    /// Read from the registry once there is one; before that it has no engines.
    id: Mutex<Option<String>>,
}

impl Deployment {
    /// A deployment in `folder` that has never been started.
    pub(crate) async fn new(campaign: &FleetCampaign, folder: &Path) -> anyhow::Result<Self> {
        let random = || -> anyhow::Result<String> {
            let key = EngineKey::generate().context("a key cannot be generated")?;
            // 32 random bytes in base64url follow the prefix: the form of a master key.
            Ok(key.expose().trim_start_matches("sk-svc-").to_owned())
        };
        let (admin_key, master_key, password) = (random()?, random()?, random()?);
        let engine_host = match campaign.backend {
            Backend::Process => EngineHost::Processes,
            Backend::Docker => EngineHost::Containers(Containers::new(&campaign.binary, folder)?),
            Backend::Kubernetes => EngineHost::Pods(Box::new(Pods::new(&campaign.binary, folder)?)),
        };
        let file = folder.join("registry.sqlite");
        let cluster = match campaign.database {
            Database::Sqlite => None,
            Database::Postgres => Some(Cluster::start(password.clone()).await?),
        };
        let (url, registry) = match &cluster {
            None => (format!("sqlite:{}", file.display()), Registry::sqlite(&file)),
            Some(cluster) => (cluster.url(), cluster.registry()),
        };
        let mut variables = env_vars(folder, &engine_host, url, (&admin_key, &master_key))?;
        if let Some(mutant) = &campaign.mutant {
            variables.insert("ROUNDHOUSE_MUTANT".to_owned(), mutant.clone());
        }
        std::fs::create_dir(folder.join("catalog"))?;
        let config = ServiceConfig {
            binary: campaign.binary.clone(),
            service: Service::Orchestrator,
            folder: folder.to_owned(),
            env: variables,
        };
        let secrets = vec![admin_key.clone(), master_key, password];
        let (ports, id) = (Ports::claim()?, Mutex::default());
        Ok(Self { service_config: config, ports, engine_host, cluster, registry, secrets, admin_key, id })
    }

    /// Sets a variable of the orchestrator's environment.
    pub(crate) fn set_env(&mut self, name: &str, value: impl Into<String>) {
        self.service_config.env.insert(name.to_owned(), value.into());
    }

    /// Starts the orchestrator by another program, which becomes it.
    pub(crate) fn set_binary(&mut self, binary: PathBuf) {
        self.service_config.binary = binary;
    }

    /// The orchestrator's address, the same after each start.
    pub(crate) fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.bounds().0)
    }

    /// What opens the admin endpoints.
    pub(crate) fn admin_key(&self) -> &str {
        &self.admin_key
    }

    /// Its registry.
    pub(crate) const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The server that the registry is on, where it is on one.
    pub(crate) const fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// The folder of the engines' folders.
    pub(crate) fn data_root(&self) -> PathBuf {
        self.service_config.folder.join("engines")
    }

    /// Its engines, where they are containers.
    pub(crate) fn containers(&self) -> Option<&Containers> {
        match &self.engine_host {
            EngineHost::Containers(containers) => Some(containers),
            EngineHost::Processes | EngineHost::Pods(_) => None,
        }
    }

    /// The cluster that its engines are in, where they are Pods.
    pub(crate) fn pods(&self) -> Option<&Pods> {
        match &self.engine_host {
            EngineHost::Pods(pods) => Some(pods),
            EngineHost::Processes | EngineHost::Containers(_) => None,
        }
    }

    /// How the URLs of its engines are formed.
    pub(crate) fn urls(&self) -> EngineUrls {
        self.engine_host.urls()
    }

    /// Returns a client that reaches the orchestrator and the engines, as [`http_client_builder`] makes it.
    pub(crate) fn http_client(&self) -> anyhow::Result<Client> {
        let builder = http_client_builder();
        let builder = match self.pods() {
            Some(pods) => builder.dns_resolver(pods.names()),
            None => builder,
        };
        builder.build().context("the HTTP client cannot be built")
    }

    /// Returns the files, containers, objects and logs that contain a secret: one of its own, or one of `others`.
    pub(crate) fn leaks(&self, others: &[String]) -> anyhow::Result<Vec<String>> {
        let secrets = Secrets::new(self.secrets.iter().chain(others));
        let mut found = secrets.scan_files(&self.service_config.folder)?;
        if let Some(cluster) = &self.cluster {
            found.extend(secrets.scan_files(cluster.folder())?);
        }
        if let Some(id) = self.id() {
            found.extend(self.engine_host.leaks(&id, &secrets)?);
        }
        Ok(found)
    }

    /// The path of the orchestrators' log.
    pub(crate) fn log(&self) -> PathBuf {
        self.service_config.log()
    }

    /// Starts the orchestrator; with few ports for its engines, or with plenty.
    pub(crate) fn start(&self, few_ports: bool) -> anyhow::Result<ServiceProcess> {
        let (first, last) = self.ports.bounds();
        let mut config = self.service_config.clone();
        let max = if few_ports { first + LIMITED_PORT_COUNT } else { last };
        let ports = [("ORCH_PORT_MIN", first + 1), ("ORCH_PORT_MAX", max)];
        config.env.extend(ports.map(|(name, port)| (name.to_owned(), port.to_string())));
        config.start(first)
    }

    /// Starts one of several orchestrators of this deployment, with an address of its own, which reaches the
    /// registry through `database_url`.
    pub(crate) fn start_replica(&self, number: u16, database_url: &str) -> anyhow::Result<ServiceProcess> {
        let (first, last) = self.ports.bounds();
        let mut config = self.service_config.clone();
        let variables = [
            ("ORCH_DATABASE_URL", database_url.to_owned()),
            ("ORCH_PORT_MIN", (first + REPLICA_COUNT).to_string()),
            ("ORCH_PORT_MAX", last.to_string()),
        ];
        config.env.extend(variables.map(|(name, value)| (name.to_owned(), value)));
        config.start(first + number)
    }

    /// Starts the orchestrator and waits until it is ready. Like an operator, restarts it while the previous one
    /// still holds its address or registry.
    pub(crate) async fn start_ready(&self, few_ports: bool, http: &Client) -> anyhow::Result<ServiceProcess> {
        self.become_ready(self.start(few_ports)?, few_ports, http).await
    }

    /// Waits until an orchestrator that was started is ready, as [`Self::start_ready`] does.
    pub(crate) async fn become_ready(
        &self,
        mut program: ServiceProcess,
        few_ports: bool,
        http: &Client,
    ) -> anyhow::Result<ServiceProcess> {
        let begin = Instant::now();
        loop {
            match self.wait_ready(&mut program, http).await {
                Ok(()) => return Ok(program),
                Err(error) if begin.elapsed() > START_TIMEOUT || !is_conflict(&error.to_string()) => {
                    return Err(error);
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
            program = self.start(few_ports)?;
        }
    }

    /// Whether the last orchestrator exited because another one held its address or registry.
    pub(crate) fn exited_on_conflict(&self) -> bool {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        log.lines().next_back().is_some_and(is_conflict)
    }

    async fn wait_ready(&self, program: &mut ServiceProcess, http: &Client) -> anyhow::Result<()> {
        let begin = Instant::now();
        let url = format!("{}/health", self.base_url());
        loop {
            let response = tokio::time::timeout(Duration::from_secs(1), http.get(&url).send()).await;
            if response.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status() == 200)) {
                return Ok(());
            }
            program.ensure_running()?;
            if begin.elapsed() > START_TIMEOUT {
                bail!("the orchestrator was not ready within {START_TIMEOUT:?}");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Tells it the id under which its engines are labelled.
    pub(crate) fn set_id(&self, id: String) {
        *self.id.lock() = Some(id);
    }

    fn id(&self) -> Option<String> {
        self.id.lock().clone()
    }

    /// Returns the instances with its label.
    pub(crate) fn engines(&self) -> anyhow::Result<Vec<EngineInstance>> {
        self.id().map_or_else(|| Ok(Vec::new()), |id| self.engine_host.engines(&id))
    }

    /// Returns the engines that have data.
    pub(crate) fn engines_with_data(&self) -> anyhow::Result<BTreeSet<String>> {
        let id = self.id().unwrap_or_default();
        self.engine_host.engines_with_data(&id, &self.data_root())
    }

    /// Injects a fault into an engine directly.
    pub(crate) fn inject_fault(&self, engine: &EngineInstance, fault: EngineFault) -> anyhow::Result<()> {
        self.engine_host.inject_fault(engine, fault)
    }
}

/// Whether an orchestrator could not start because another one holds its address or its registry. One that
/// was killed while it began an engine holds them until that is done: the fork has them too until its exec.
fn is_conflict(words: &str) -> bool {
    words.contains("Address already in use") || words.contains("is in use")
}

/// How often to look for engines that were just being started.
const CLEANUP_ATTEMPTS: usize = 200;
/// How many checks in a row must find none.
const REQUIRED_CLEAN_CHECKS: usize = 10;

impl Drop for Deployment {
    /// Engines outlive their orchestrator: each is ended here, by its own id. Pods end with their namespace.
    fn drop(&mut self) {
        if self.pods().is_some() {
            return;
        }
        let mut clean = 0;
        for _ in 0..CLEANUP_ATTEMPTS {
            let engines = self.engines().unwrap_or_default();
            clean = if engines.is_empty() { clean + 1 } else { 0 };
            if clean == REQUIRED_CLEAN_CHECKS {
                return;
            }
            for engine in engines {
                // One that cannot be ended is found again by the next look.
                let _ = self.inject_fault(&engine, EngineFault::Remove);
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}
