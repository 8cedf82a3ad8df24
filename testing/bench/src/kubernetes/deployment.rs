//! The orchestrator under test, with its products and what it has asked of the API server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use api::UserId;
use api::orchestrator::{
    EngineList, EngineStatus, ProvisionEngine, ProvisionedEngine, StartedEngine, StoppedEngine,
};
use futures::stream::{self, StreamExt as _};
use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::cluster::{Cluster, NAMESPACE, STORAGE_CLASS};
use super::engines::SharedEngines;
use super::requests::AuditLog;
use crate::client::Client;
use crate::context::{BenchContext, log_progress};
use crate::orchestrator::product_request;
use crate::process::{Memory, Process};
use crate::service::OrchestratorService;

/// No single product may use all the boots that an orchestrator does at once; these share them.
const PRODUCTS: u32 = 4;
/// The number of concurrent provisions, more than the orchestrator boots at once.
const PROVISION_CONCURRENCY: usize = 32;
/// How often a provision is attempted.
const MAX_ATTEMPTS: u32 = 5;
/// The time between two looks at what is waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(super) struct Deployment {
    service: OrchestratorService,
    pub(super) process: Process,
    address: SocketAddr,
    /// The platform keys of the products.
    keys: Vec<String>,
    pub(super) engines: SharedEngines,
    pub(super) requests: AuditLog,
    /// The number of engines that were provisioned.
    pub(super) provisioned: u32,
    /// The number of Pods that run beside them.
    pub(super) others: u32,
    /// The memory of the orchestrator before it had engines.
    pub(super) empty: Memory,
}

/// What the provisions of some engines took.
#[derive(Default)]
pub(super) struct Provisioned {
    pub(super) times_ms: Vec<f64>,
    /// Attempts that failed.
    pub(super) failures: u32,
    pub(super) elapsed: Duration,
}

impl Deployment {
    pub(super) async fn start(
        bench: &BenchContext,
        cluster: &Cluster,
        database: &str,
        engines: SharedEngines,
    ) -> anyhow::Result<Self> {
        let variables = vec![
            ("ORCH_BACKEND", "kubernetes".to_owned()),
            ("KUBECONFIG", cluster.orchestrator_kubeconfig()?.display().to_string()),
            ("ORCH_KUBERNETES_NAMESPACE", NAMESPACE.to_owned()),
            ("ORCH_KUBERNETES_STORAGE_CLASS", STORAGE_CLASS.to_owned()),
            ("ORCH_ENGINE_IMAGE", format!("registry.example.com/svc-engine:{}", env!("CARGO_PKG_VERSION"))),
            ("ORCH_DATABASE_URL", database.to_owned()),
        ];
        let service = OrchestratorService::new(bench, variables)?;
        let (process, address) = service.launch().await?;
        let mut keys = Vec::new();
        for product in 0..PRODUCTS {
            let policy = json!({"idle_sleep_threshold_s": 0});
            keys.push(service.register(address, &format!("bench-{product}"), policy).await?);
        }
        let empty = process.memory()?;
        let requests = AuditLog::new(cluster.audit_log());
        Ok(Self { service, process, address, keys, engines, requests, provisioned: 0, others: 0, empty })
    }

    /// Provisions engines until there are `count`.
    pub(super) async fn provision(&mut self, count: u32) -> anyhow::Result<Provisioned> {
        let began = Instant::now();
        let mut provisioned = Provisioned::default();
        {
            let this = &*self;
            let mut results = stream::iter(self.provisioned..count)
                .map(|number| this.provision_one(number))
                .buffer_unordered(PROVISION_CONCURRENCY);
            while let Some(result) = results.next().await {
                let (took_ms, failures) = result?;
                provisioned.times_ms.push(took_ms);
                provisioned.failures += failures;
                if provisioned.times_ms.len() % 500 == 0 {
                    log_progress(&format!(
                        "kubernetes: {} provisioned in {:.0} s",
                        provisioned.times_ms.len(),
                        began.elapsed().as_secs_f64()
                    ));
                }
            }
        }
        provisioned.elapsed = began.elapsed();
        self.provisioned = count;
        let running = self.engines.running();
        let others = self.others;
        ensure!(
            running == usize::try_from(count + others)?,
            "{running} addresses have Pods, which are those of {count} engines and {others} others"
        );
        Ok(provisioned)
    }

    /// Returns the time in milliseconds of the attempt that succeeded, and how many failed before.
    async fn provision_one(&self, number: u32) -> anyhow::Result<(f64, u32)> {
        let body = ProvisionEngine { user_id: UserId::new(user(number))?, engine_version: None };
        let mut last = None;
        for failures in 0..MAX_ATTEMPTS {
            let began = Instant::now();
            let request = self.request(number, Method::POST, "/engines/provision", Some(&body));
            let error = match request.await {
                Ok(ProvisionedEngine { status: EngineStatus::Running, .. }) => {
                    return Ok((began.elapsed().as_secs_f64() * 1_000.0, failures));
                }
                Ok(ProvisionedEngine { status, .. }) => anyhow::anyhow!("provision answered {status:?}"),
                Err(error) => error,
            };
            log_progress(&format!("kubernetes: a provision failed: {error:#}"));
            last = Some(error);
        }
        Err(last.context("no attempt was made")?)
    }

    /// Stops and starts one engine, and returns what each took in milliseconds.
    pub(super) async fn stop_and_start(&self, number: u32) -> anyhow::Result<[f64; 2]> {
        let path = |action: &str| format!("/engines/{}/{action}", user(number));
        let began = Instant::now();
        let stopped: StoppedEngine = self.request::<(), _>(number, Method::POST, &path("stop"), None).await?;
        let stop = began.elapsed();
        ensure!(stopped.status == EngineStatus::Stopped, "stop answered {:?}", stopped.status);
        let began = Instant::now();
        let started: StartedEngine =
            self.request::<(), _>(number, Method::POST, &path("start"), None).await?;
        let start = began.elapsed();
        ensure!(started.status == EngineStatus::Running, "start answered {:?}", started.status);
        Ok([stop, start].map(|took| took.as_secs_f64() * 1_000.0))
    }

    /// Kills the orchestrator and starts the next one. Returns the times in milliseconds from its start until it is
    /// ready, until all engines run, and until each has been checked.
    pub(super) async fn restart(&mut self, timeout: Duration) -> anyhow::Result<[f64; 3]> {
        self.process.kill()?;
        self.engines.forget_checks();
        let began = Instant::now();
        (self.process, self.address) = self.service.launch().await?;
        let ready = began.elapsed();
        while self.running().await? != u64::from(self.provisioned) {
            ensure!(began.elapsed() < timeout, "{} engines run after the restart", self.running().await?);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let adopted = began.elapsed();
        let all = usize::try_from(self.provisioned)?;
        while self.engines.checked() < all {
            ensure!(
                began.elapsed() < timeout,
                "only {} of {all} engines were checked {} s after the restart",
                self.engines.checked(),
                timeout.as_secs()
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok([ready, adopted, began.elapsed()].map(|took| took.as_secs_f64() * 1_000.0))
    }

    /// The number of running engines of all products.
    pub(super) async fn running(&self) -> anyhow::Result<u64> {
        let mut running = 0;
        for product in 0..PRODUCTS {
            let path = "/engines?status=running&limit=1";
            let list: EngineList = self.request::<(), _>(product, Method::GET, path, None).await?;
            running += list.total;
        }
        Ok(running)
    }

    /// Sends a request of the product of the engine with this number, on a connection of its own.
    async fn request<B: Serialize, T: DeserializeOwned>(
        &self,
        number: u32,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> anyhow::Result<T> {
        let mut client = Client::connect(self.address).await?;
        let key = self.keys.get(usize::try_from(number % PRODUCTS)?).context("there is no product")?;
        let request = product_request(&client, key, method, path, body)?;
        client.fetch_json(request).await
    }
}

impl Drop for Deployment {
    /// Ends the orchestrator without putting its engines to sleep: the cluster ends with them.
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
    }
}

fn user(number: u32) -> String {
    format!("user-{number}")
}
