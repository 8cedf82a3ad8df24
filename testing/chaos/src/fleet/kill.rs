//! Kills the orchestrator, and injects faults into the deployment meanwhile.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Signal;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::cluster::DatabaseFault;
use super::cluster_fault::ClusterFault;
use super::engine_host::EngineFault;
use super::load::{LoadProfile, run_client};
use super::pods::Pods;
use super::registry::RegistryCondition;
use super::round::RoundRunner;
use super::schedule::{KillPlan, KillPoint};
use super::setup;
use crate::rng::SeededRng;
use crate::service_process::ServiceProcess;

/// How long to wait for a call, with processes.
const CALL_TIMEOUT: Duration = Duration::from_millis(150);
/// How much longer to wait for an operation that the orchestrator starts by itself.
const BACKGROUND_CHANGE_TIMEOUT: Duration = Duration::from_millis(1_350);
/// How often a fault is injected into a database that supports it.
const DATABASE_FAULT_PROBABILITY: f64 = 0.15;
/// How often a cluster that may be injured is.
const CLUSTER_FAULT_PROBABILITY: f64 = 0.25;
/// How often it is while the orchestrator starts, and the count of that.
const INJURED_START_PROBABILITY: f64 = 0.1;
pub(super) const INJURED_STARTS: &str = "starts while the cluster was injured";
/// How long a fault of a cluster lasts.
const CLUSTER_FAULT_MS: RangeInclusive<u64> = 100..=6_000;
/// How often a fault of a node lasts so long that its cluster takes it for lost and evicts its Pods, and how long.
const NOTICED_FAULT_PROBABILITY: f64 = 0.2;
const NOTICED_FAULT_MS: RangeInclusive<u64> = 25_000..=60_000;

impl RoundRunner {
    /// Runs the clients, and kills the orchestrator as planned.
    pub(super) async fn run_load_and_kill(&mut self, plan: &KillPlan) -> anyhow::Result<()> {
        let stop = Arc::new(AtomicBool::new(false));
        let avoid_sleepy = plan.kind() == Some("sleep") || self.rng.chance(0.2);
        let load = LoadProfile { prefer: plan.kind(), avoid_sleepy, stop: Arc::clone(&stop) };
        if let Some(kind) = plan.kind()
            && self.rng.chance(0.8)
        {
            setup::prepare(&self.context, kind, &mut self.rng).await;
        }
        if plan.kind() == Some("wake") {
            self.wait_for(RegistryCondition::StatusReached("sleeping"), self.background_change_timeout())
                .await?;
        }
        let clients = if plan.kind() == Some("restart") { 0 } else { self.client_count };
        let mut client_tasks = JoinSet::new();
        for number in 0..clients {
            let rng = SeededRng::new(self.context.seed, (self.round, number));
            client_tasks.spawn(run_client(Arc::clone(&self.context), load.clone(), number, rng));
        }
        // There must be an engine to lose.
        if self.rng.chance(0.6) {
            let wait = self.rng.millis(0..=150);
            tokio::time::sleep(wait).await;
        }
        if self.rng.chance(0.1) {
            let fault = if self.rng.chance(0.5) { EngineFault::Kill } else { EngineFault::Remove };
            self.inject_engine_faults(fault, 1)?;
        } else if self.context.capabilities.supervised && !self.is_mutated && self.rng.chance(0.01) {
            self.inject_engine_faults(EngineFault::Hang, 1)?;
        }
        if !self.inject_fault_around().await? {
            self.kill_as_planned(plan).await?;
        }
        self.context.trigger.fire(Signal::KILL);
        stop.store(true, Ordering::Relaxed);
        while let Some(client) = client_tasks.join_next().await {
            client.context("a client panicked")?;
        }
        Ok(())
    }

    /// Now and then injects a fault into what the orchestrator relies on, for a while. Returns whether the
    /// orchestrator was killed during it.
    async fn inject_fault_around(&mut self) -> anyhow::Result<bool> {
        if self.cluster_faults && self.rng.chance(CLUSTER_FAULT_PROBABILITY) {
            return self.inject_cluster_fault().await;
        }
        if self.deployment.cluster().is_some() && self.rng.chance(DATABASE_FAULT_PROBABILITY) {
            return self.inject_database_fault().await;
        }
        Ok(false)
    }

    /// Kills the orchestrator as planned.
    async fn kill_as_planned(&mut self, plan: &KillPlan) -> anyhow::Result<()> {
        match plan.point {
            KillPoint::ClaimVisible("restart") => {}
            KillPoint::ClaimVisible(kind) => {
                self.kill_when(RegistryCondition::ClaimVisible(kind), self.claim_timeout(kind), plan.delay)
                    .await?;
            }
            KillPoint::PodGone(kind) => self.kill_when_pod_gone(kind, plan.delay).await?,
            KillPoint::CallSent(op) => {
                self.context.trigger.arm(op, None);
                let _ = tokio::time::timeout(self.call_timeout(), self.context.trigger.wait_fired()).await;
                self.kill_after(plan.delay).await?;
            }
            KillPoint::LoadStarted => self.kill_after(plan.delay).await?,
        }
        Ok(())
    }

    /// How long to wait for a call before the orchestrator is killed anyway.
    fn call_timeout(&self) -> Duration {
        CALL_TIMEOUT * self.time_scale
    }

    /// How long to wait for an operation of this kind.
    fn claim_timeout(&self, kind: &str) -> Duration {
        if kind == "sleep" { self.background_change_timeout() } else { self.call_timeout() }
    }

    /// How long to wait for an operation of the orchestrator's own.
    pub(super) fn background_change_timeout(&self) -> Duration {
        BACKGROUND_CHANGE_TIMEOUT + self.call_timeout()
    }

    /// Kills the orchestrator `delay` after the registry shows `condition`, or once `limit` is over.
    pub(super) async fn kill_when(
        &self,
        condition: RegistryCondition,
        limit: Duration,
        delay: Duration,
    ) -> anyhow::Result<()> {
        let (registry, context) = (self.deployment.registry().clone(), Arc::clone(&self.context));
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || {
            // A registry that cannot be read now is inspected after the kill.
            let _ = runtime.block_on(registry.wait_for(condition, limit));
            std::thread::park_timeout(delay);
            context.trigger.fire(Signal::KILL);
        })
        .await?;
        Ok(())
    }

    /// Kills the orchestrator `delay` after a Pod has disappeared during an operation of this kind.
    async fn kill_when_pod_gone(&self, kind: &'static str, delay: Duration) -> anyhow::Result<()> {
        let (deployment, context) = (Arc::clone(&self.deployment), Arc::clone(&self.context));
        let (limit, runtime) = (self.claim_timeout(kind), Handle::current());
        tokio::task::spawn_blocking(move || {
            let condition = RegistryCondition::ClaimVisible(kind);
            // A registry that cannot be read now is inspected after the kill.
            let _ = runtime.block_on(deployment.registry().wait_for(condition, limit));
            if let Some(pods) = deployment.pods() {
                pods.wait_gone(limit);
            }
            std::thread::park_timeout(delay);
            context.trigger.fire(Signal::KILL);
        })
        .await?;
        Ok(())
    }

    /// Waits until the registry shows `condition`, at most for `limit`.
    async fn wait_for(&self, condition: RegistryCondition, limit: Duration) -> anyhow::Result<()> {
        let (registry, runtime) = (self.deployment.registry().clone(), Handle::current());
        tokio::task::spawn_blocking(move || runtime.block_on(registry.wait_for(condition, limit))).await??;
        Ok(())
    }

    /// Injects a database fault for a while. Returns whether the orchestrator was killed during it.
    async fn inject_database_fault(&mut self) -> anyhow::Result<bool> {
        let Some(fault) = self.rng.pick(&DatabaseFault::ALL).copied() else { return Ok(false) };
        self.context.database_fault_injected.store(true, Ordering::Relaxed);
        self.context.counters.count(fault.name());
        self.history = format!("{}; {}", self.history, fault.name());
        let deployment = Arc::clone(&self.deployment);
        let injection = tokio::task::spawn_blocking(move || match deployment.cluster() {
            Some(cluster) => cluster.inject(fault),
            None => Ok(()),
        });
        let duration = self.rng.millis(0..=600);
        tokio::time::sleep(duration).await;
        let killed = self.rng.chance(0.4) && self.context.trigger.fire(Signal::KILL);
        injection.await??;
        if let Some(cluster) = self.deployment.cluster() {
            cluster.heal();
        }
        Ok(killed)
    }

    /// Injures the engines' cluster for a while. Returns whether the orchestrator was killed meanwhile.
    async fn inject_cluster_fault(&mut self) -> anyhow::Result<bool> {
        let duration = self.injure_cluster().await?;
        tokio::time::sleep(duration).await;
        let killed = self.rng.chance(0.5) && self.context.trigger.fire(Signal::KILL);
        self.with_pods(Pods::heal).await?;
        Ok(killed)
    }

    /// Starts the orchestrator and waits until it is ready. A cluster that may be injured is so now and then while it
    /// starts, so that it cannot know yet which engines there are.
    pub(super) async fn restart(&mut self, few_ports: bool) -> anyhow::Result<ServiceProcess> {
        let context = Arc::clone(&self.context);
        if !self.cluster_faults || !self.rng.chance(INJURED_START_PROBABILITY) {
            return self.deployment.start_ready(few_ports, &context.http).await;
        }
        let duration = self.injure_cluster().await?;
        context.counters.count(INJURED_STARTS);
        let program = self.deployment.start(few_ports)?;
        tokio::time::sleep(duration).await;
        self.with_pods(Pods::heal).await?;
        self.deployment.become_ready(program, few_ports, &context.http).await
    }

    /// Injects a fault into the engines' cluster. Returns how long it is to last.
    async fn injure_cluster(&mut self) -> anyhow::Result<Duration> {
        let fault = self.rng.pick(&ClusterFault::ALL).copied().context("there are faults")?;
        self.context.cluster_fault_injected.store(true, Ordering::Relaxed);
        if fault.is_of_node() {
            // What runs there is lost, too. Without its control plane, every engine goes on.
            self.context.engine_fault_injected.store(true, Ordering::Relaxed);
        }
        self.context.counters.count(fault.name());
        let is_long = fault.is_of_node() && self.rng.chance(NOTICED_FAULT_PROBABILITY);
        let duration = self.rng.millis(if is_long { NOTICED_FAULT_MS } else { CLUSTER_FAULT_MS });
        self.history = format!("{}; {} for {duration:?}", self.history, fault.name());
        let number = usize::try_from(self.rng.between(0..=99))?;
        self.with_pods(move |pods| pods.injure(fault, number)).await?;
        Ok(duration)
    }

    /// Acts on the engines' cluster, which takes a while.
    async fn with_pods(
        &self,
        act: impl FnOnce(&Pods) -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<()> {
        let deployment = Arc::clone(&self.deployment);
        tokio::task::spawn_blocking(move || deployment.pods().map_or(Ok(()), act)).await?
    }

    /// Kills the orchestrator after `delay`, more precisely than the runtime's timer would.
    async fn kill_after(&self, delay: Duration) -> anyhow::Result<()> {
        let context = Arc::clone(&self.context);
        tokio::task::spawn_blocking(move || {
            std::thread::park_timeout(delay);
            context.trigger.fire(Signal::KILL);
        })
        .await?;
        Ok(())
    }

    /// Injects a fault into some engines directly.
    pub(super) fn inject_engine_faults(&mut self, fault: EngineFault, most: u64) -> anyhow::Result<()> {
        let engines = self.deployment.engines()?;
        for _ in 0..self.rng.between(1..=most) {
            if let Some(engine) = self.rng.pick(&engines) {
                self.context.engine_fault_injected.store(true, Ordering::Relaxed);
                self.deployment.inject_fault(engine, fault)?;
                self.context.counters.count(fault.name());
                self.history = format!("{}; {}: {}", self.history, fault.name(), engine.engine_id);
            }
        }
        Ok(())
    }
}
