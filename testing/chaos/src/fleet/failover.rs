//! Two orchestrators on one registry, of which the active one is taken away again and again under load: killed,
//! frozen, cut off from the registry, or ended as an update ends it. The other one takes its place within seconds, no
//! admit that is retried once is lost, no engine is disturbed, and never are two active at once.

mod admits;
mod balancer;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use parking_lot::Mutex;
use reqwest::Client;
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use self::admits::{ADMITS, Admits, Gap, RETRIED, admit};
use self::balancer::{Balancer, Found};
use super::cluster::Cluster;
use super::deployment::{Deployment, REPLICA_COUNT};
use super::engine_host::Backend;
use super::proxy::{Proxy, ProxyMode};
use super::registry::AuditCursor;
use super::tenant_users::text_field;
use super::{Database, FleetCampaign, register_product};
use crate::counters::{Counters, KILLS};
use crate::rng::SeededRng;
use crate::service_process::ServiceProcess;

/// How long an orchestrator may take to be a standby, and to end. Generous: the machine may be busy.
const STANDBY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait for a successor, even if it is late.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the old leader stays out of action beside the new one, when it must not say that it is ready.
const AFTERMATH: Duration = Duration::from_secs(1);
/// How long all is well before the next fault, in milliseconds.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 100..=600;

/// A run.
#[derive(Clone, Debug)]
pub struct Failover {
    /// The `roundhouse` binary.
    pub binary: PathBuf,
    /// What runs the engines.
    pub backend: Backend,
    /// Where all choices come from.
    pub seed: u64,
    /// How often the active orchestrator is taken away.
    pub takeovers: u64,
    /// How many users are admitted; each has an engine that runs.
    pub users: usize,
    /// How many admits are sent per second.
    pub rate: u32,
    /// When to begin no further takeover.
    pub time_limit: Duration,
    /// The longest time without a successful admit that is no violation.
    pub max_gap: Duration,
    /// The mutant that breaks a guarantee: then the first violation ends the run.
    pub mutant: Option<String>,
}

/// How the active orchestrator is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Killed,
    /// It is suspended, and goes on after it was replaced.
    Frozen,
    /// Its connections to the registry's server are kept and nothing passes, until it was replaced.
    Silenced,
    /// Its connections to the registry's server break, and it makes no new ones until it was replaced.
    CutOff,
    /// It is asked to end, as an update does.
    Updated,
}

impl Fault {
    const ALL: [Self; 5] = [Self::Killed, Self::Frozen, Self::Silenced, Self::CutOff, Self::Updated];

    const fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Frozen => "frozen",
            Self::Silenced => "silenced",
            Self::CutOff => "cut off",
            Self::Updated => "updated",
        }
    }

    fn counter(self) -> String {
        format!("leaders {}", self.name())
    }
}

/// One of the orchestrators, with its own way to the registry.
#[derive(Debug)]
struct Replica {
    number: u16,
    proxy: Proxy,
    database_url: String,
    process: ServiceProcess,
}

impl Replica {
    async fn start(number: u16, deployment: &Deployment, cluster: &Cluster) -> anyhow::Result<Self> {
        let (proxy, database_url) = cluster.start_proxy().await?;
        let process = deployment.start_replica(number, &database_url)?;
        Ok(Self { number, proxy, database_url, process })
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(pidfd_send_signal(self.process.pidfd()?, signal)?)
    }

    /// Waits until its health has this status.
    async fn wait_health(&mut self, http: &Client, wanted: &str) -> anyhow::Result<()> {
        let begin = Instant::now();
        let url = format!("{}/health", self.process.base_url());
        loop {
            if let Ok(answer) = http.get(&url).timeout(Duration::from_secs(1)).send().await
                && let Ok(health) = answer.json::<Value>().await
                && text_field(&health, "/status").as_deref() == Some(wanted)
            {
                return Ok(());
            }
            self.process.ensure_running()?;
            ensure!(begin.elapsed() < STANDBY_TIMEOUT, "an orchestrator did not become {wanted}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// What runs.
struct Fleet<'a> {
    deployment: &'a Deployment,
    replicas: Vec<Replica>,
    http: Client,
    admits: Arc<Admits>,
    found: Arc<Found>,
    counters: Arc<Counters>,
    /// The instances that run the engines, which are to stay the same.
    instances: BTreeSet<String>,
    gaps: BTreeMap<Fault, Vec<Duration>>,
}

impl Failover {
    /// Runs it. Broken promises are counted as violations; an error is the harness's own.
    pub async fn run(&self) -> anyhow::Result<Arc<Counters>> {
        let folder = tempfile::Builder::new().prefix("roundhouse-chaos-failover-").tempdir()?;
        let counters = Arc::new(Counters::default());
        let deployment = self.deployment(folder.path()).await?;
        let http = deployment.http_client()?;
        let mut fleet = self.start(&deployment, http, Arc::clone(&counters)).await?;
        let load = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&fleet.admits).run(self.rate)));
        let mut rng = SeededRng::new(self.seed, "failover");
        let (begin, mut leader) = (Instant::now(), 0);
        for (number, fault) in (0..self.takeovers).zip(Fault::ALL.into_iter().cycle()) {
            let is_broken = self.mutant.is_some() && !counters.violations().is_empty();
            if is_broken || begin.elapsed() > self.time_limit {
                break;
            }
            tokio::time::sleep(rng.millis(PAUSE_MS)).await;
            let context = || format!("takeover {number}: the leader is {}", fault.name());
            leader = self.take_over(&mut fleet, leader, fault).await.with_context(context)?;
            counters.count(fault.counter());
            counters.count(KILLS);
        }
        drop(load);
        fleet.check_ledger().await?;
        fleet.report_gaps();
        Ok(counters)
    }

    async fn deployment(&self, folder: &std::path::Path) -> anyhow::Result<Deployment> {
        let campaign = FleetCampaign {
            binary: self.binary.clone(),
            backend: self.backend,
            database: Database::Postgres,
            seed: self.seed,
            rounds: 0,
            time_limit: Duration::ZERO,
            mutant: self.mutant.clone(),
            cluster_faults: false,
            keep_folder: false,
        };
        let mut deployment = Deployment::new(&campaign, folder).await?;
        // Nothing happens to an engine by itself, and none is mistaken for a dead one on a busy machine.
        for (name, value) in [
            ("ORCH_IDLE_SLEEP_THRESHOLD_S", "86400"),
            ("ORCH_HEALTH_CHECK_INTERVAL_S", "1"),
            ("ORCH_HEALTH_CHECK_TIMEOUT_S", "10"),
            ("ORCH_HEALTH_MAX_FAILURES", "3"),
        ] {
            deployment.set_env(name, value);
        }
        Ok(deployment)
    }

    /// Starts both orchestrators, and an engine for each user.
    async fn start<'a>(
        &self,
        deployment: &'a Deployment,
        http: Client,
        counters: Arc<Counters>,
    ) -> anyhow::Result<Fleet<'a>> {
        let cluster = deployment.cluster().context("the registry is not on a server")?;
        let mut leader = Replica::start(0, deployment, cluster).await?;
        leader.wait_health(&http, "ok").await?;
        deployment.set_id(deployment.registry().deployment_id().await?);
        let registered = register_product(deployment, &http, "failover", &json!({})).await?;
        let platform_key =
            text_field(&registered, "/platform_api_key").context("there is no platform key")?;
        let mut users = Vec::new();
        for user in 0..self.users {
            let begin = Instant::now();
            users.push(loop {
                match admit(&http, &leader.process.base_url(), &platform_key, user).await {
                    Ok(told) => break told,
                    Err(error) if begin.elapsed() > STANDBY_TIMEOUT => bail!("user {user}: {error}"),
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            });
        }
        let mut replicas = vec![leader];
        for number in 1..REPLICA_COUNT {
            let mut standby = Replica::start(number, deployment, cluster).await?;
            standby.wait_health(&http, "standby").await?;
            replicas.push(standby);
        }
        let bases: Vec<String> = replicas.iter().map(|replica| replica.process.base_url()).collect();
        let (balancer, found) = Balancer::start(&bases, &http, &counters);
        let admits = Arc::new(Admits {
            http: http.clone(),
            bases,
            balancer,
            platform_key,
            users,
            counters: Arc::clone(&counters),
            gap: Mutex::new(Gap::new()),
            next_user: AtomicUsize::default(),
            faults: AtomicUsize::default(),
        });
        let instances = instances(deployment)?;
        Ok(Fleet { deployment, replicas, http, admits, found, counters, instances, gaps: BTreeMap::new() })
    }

    /// Takes the leader away, and returns the number of the orchestrator that has taken over.
    async fn take_over(&self, fleet: &mut Fleet<'_>, leader: usize, fault: Fault) -> anyhow::Result<usize> {
        let successor = 1 - leader;
        let balancer = &fleet.admits.balancer;
        ensure!(balancer.wait_active(leader, STANDBY_TIMEOUT).await, "it is not active");
        fleet.admits.gap.lock().begin();
        fleet.admits.faults.fetch_add(1, Ordering::Relaxed);
        let old = fleet.replicas.get_mut(leader).context("there is no such orchestrator")?;
        match fault {
            Fault::Killed => old.signal(Signal::KILL)?,
            Fault::Frozen => old.signal(Signal::STOP)?,
            Fault::Silenced => old.proxy.set_mode(ProxyMode::Hung),
            Fault::CutOff => old.proxy.set_mode(ProxyMode::Cut),
            Fault::Updated => old.signal(Signal::TERM)?,
        }
        if !balancer.wait_active(successor, TAKEOVER_TIMEOUT).await {
            fleet.counters.record_violation(format!("a leader that was {} was not replaced", fault.name()));
        }
        tokio::time::sleep(AFTERMATH).await;
        old.proxy.set_mode(ProxyMode::Open);
        if fault == Fault::Frozen {
            old.signal(Signal::CONT)?;
        }
        // It notices that it was replaced, and ends.
        let status = old.process.wait_exit().await.context("the old leader goes on")?;
        if status.success() != (fault == Fault::Updated) {
            fleet.counters.record_violation(format!("one that was {} ended with {status}", fault.name()));
        }
        fleet.found.forget(leader);
        old.process = fleet.deployment.start_replica(old.number, &old.database_url)?;
        old.wait_health(&fleet.http, "standby").await?;
        fleet.judge(fault, self.max_gap)?;
        Ok(successor)
    }

    /// The coverage that a run must reach and did not, one line per cause.
    pub fn unmet_coverage(&self, counters: &Counters) -> Vec<String> {
        let each = self.takeovers / Fault::ALL.len() as u64;
        let faults = Fault::ALL.map(|fault| (fault.counter(), each));
        let admits = (ADMITS.to_owned(), self.takeovers * u64::from(self.rate) / 2);
        let required = faults.into_iter().chain([admits, (RETRIED.to_owned(), 1)]);
        let unmet = required.filter(|(what, at_least)| counters.get(what) < *at_least);
        unmet
            .map(|(what, at_least)| {
                format!("{what}: {}, but at least {at_least} are required", counters.get(&what))
            })
            .collect()
    }
}

impl Fleet<'_> {
    /// Judges a takeover.
    fn judge(&mut self, fault: Fault, max_gap: Duration) -> anyhow::Result<()> {
        let gap = self.admits.gap.lock().longest();
        if gap > max_gap {
            self.counters.record_violation(format!("a leader was {}: no admit for {gap:?}", fault.name()));
        }
        self.gaps.entry(fault).or_default().push(gap);
        let instances = instances(self.deployment)?;
        if instances != self.instances {
            self.counters
                .record_violation(format!("engines were disturbed when a leader was {}", fault.name()));
            self.instances = instances;
        }
        Ok(())
    }

    /// Checks that nothing happened to an engine after its provision.
    async fn check_ledger(&self) -> anyhow::Result<()> {
        let snapshot = self.deployment.registry().snapshot(&AuditCursor::new()).await?;
        for row in &snapshot.audit {
            if !matches!(row.event.as_str(), "register" | "provision") {
                self.counters.record_violation(format!("the audit log has the event {}", row.event));
            }
        }
        Ok(())
    }

    /// Adds the gaps to the report, in milliseconds.
    fn report_gaps(&mut self) {
        for (fault, gaps) in &mut self.gaps {
            gaps.sort();
            for (name, permille) in [("p50", 500), ("p99", 990), ("longest", 1_000)] {
                let index = (gaps.len() * permille).div_ceil(1_000).saturating_sub(1);
                let gap = gaps.get(index).copied().unwrap_or_default().as_millis();
                let name = format!("gap in ms, {}, {name}", fault.name());
                self.counters.add(name, u64::try_from(gap).unwrap_or(u64::MAX));
            }
        }
    }
}

/// The instances that run engines.
fn instances(deployment: &Deployment) -> anyhow::Result<BTreeSet<String>> {
    let engines = deployment.engines()?;
    Ok(engines.into_iter().filter(|engine| engine.is_alive).map(|engine| engine.instance).collect())
}
