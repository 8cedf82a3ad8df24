//! The warm pool: keeps engines booted for users who do not have one yet, so that a provision need not wait for a boot.
//!
//! A pass compares the warm engines with what there should be and does what [`plan`] says. It runs every few seconds, and
//! at once when an engine was claimed or has exited. The registry has a row for each warm engine from before its launch
//! until nothing is left of it, so whatever an earlier orchestrator was doing is found and ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::{EngineId, ProductId};
use backend::{Instance, Target};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http_service::backoff;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::FleetError;
use super::boot_limiter::BootRequest;
use super::drain::DrainState;
use super::engine_client::Readiness;
use super::execute::Executor;
use super::maintenance::MaintenanceState;
use super::policies::Policies;
use super::shared::Shared;
use super::supervision::Supervision;
use super::warm_stock::{ReadyEngine, WarmStock};
use crate::domain::lifecycle::Change;
use crate::domain::warm_pool::{PoolMode, WarmState, WarmView, launch_settings, plan};
use crate::registry::{FIRST_GENERATION, ListedWarmEngine, NewWarmEngine, RegistryError, WarmRow};

/// The longest pause between two passes.
const PASS_INTERVAL: Duration = Duration::from_secs(2);
/// Warm engines that boot at once: most of the host is left to boots that somebody waits for.
const MAX_CONCURRENT_BOOTS: usize = 2;
/// Warm engines that are checked at once.
const MAX_CONCURRENT_CHECKS: usize = 8;
/// How long a product gets no warm engine after a boot of one has failed: after the first failure, and at most.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(10));

/// The parts of the fleet that the pool calls.
pub(super) struct WarmPoolParts {
    pub(super) shared: Arc<Shared>,
    pub(super) policies: Arc<Policies>,
    pub(super) supervision: Arc<Supervision>,
    pub(super) executor: Arc<Executor>,
}

pub(super) struct WarmPool {
    shared: Arc<Shared>,
    stock: Arc<WarmStock>,
    policies: Arc<Policies>,
    supervision: Arc<Supervision>,
    executor: Arc<Executor>,
    drain: Arc<DrainState>,
    maintenance: Arc<MaintenanceState>,
    /// Whether the registry has been compared with the running instances.
    ready: watch::Receiver<bool>,
    /// The products whose last boots of warm engines have failed.
    failures: Mutex<HashMap<ProductId, BootFailures>>,
}

/// Boots of one product that have failed in a row.
#[derive(Clone, Copy, Debug, Default)]
struct BootFailures {
    count: u32,
    /// Until when there is no other attempt.
    until: Duration,
}

/// What is known of a ready engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// It may be claimed.
    Usable,
    /// It is to be replaced.
    Unusable(&'static str),
    /// The backend does not say. It is kept.
    Unknown,
}

impl WarmPool {
    pub(super) fn new(
        parts: WarmPoolParts,
        stock: Arc<WarmStock>,
        (drain, maintenance): (Arc<DrainState>, Arc<MaintenanceState>),
        ready: watch::Receiver<bool>,
    ) -> Arc<Self> {
        let WarmPoolParts { shared, policies, supervision, executor } = parts;
        let failures = Mutex::default();
        Arc::new(Self { shared, stock, policies, supervision, executor, drain, maintenance, ready, failures })
    }

    /// Keeps the pool at its size, until `shutdown`. Where no engines are booted ahead, ends what an earlier orchestrator
    /// has left of them.
    pub(super) async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let tasks = TaskTracker::new();
        // Before the first look at any engine: no exit after that is missed.
        let mut exits = self.executor.boots().exits.subscribe();
        let mut ready = self.ready.clone();
        let run = async {
            // The sender lives as long as the fleet.
            let _ = ready.wait_for(|ready| *ready).await;
            let mut is_swept = false;
            loop {
                let passed = self.pass(&tasks, &shutdown).await;
                if let Err(error) = &passed {
                    tracing::warn!(%error, "The warm pool could not be looked at; retrying.");
                }
                if !is_swept {
                    is_swept = self.sweep_marks().await;
                }
                if is_swept && !self.stock.is_on() && matches!(passed, Ok(0)) {
                    break;
                }
                self.wait_for_change(&mut exits).await;
            }
        };
        shutdown.run_until_cancelled(run).await;
        tasks.close();
        tasks.wait().await;
    }

    async fn wait_for_change(&self, exits: &mut broadcast::Receiver<backend::InstanceExit>) {
        let warm_exit = async {
            loop {
                match exits.recv().await {
                    Ok(exit) if self.stock.note_exit(&exit) => return,
                    Ok(_) => {}
                    Err(broadcast::error::RecvError::Lagged(_)) => return self.stock.forget_all(),
                    Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
                }
            }
        };
        tokio::select! {
            () = warm_exit => {}
            () = self.stock.changed.notified() => {}
            () = self.shared.clock.sleep(PASS_INTERVAL) => {}
        }
    }

    /// Compares and begins what is to be done. Returns the number of warm engines.
    async fn pass(
        self: &Arc<Self>,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> Result<usize, FleetError> {
        // Read before the rows: a boot or an end that is over by then is attended all the same. Nothing else begins one
        // that would be missed here, but for an end.
        let attended = self.stock.attended();
        let listed = self.shared.registry.warm_engines().await?;
        let count_states =
            || self.shared.metrics.set_warm_engines(listed.iter().map(|listed| listed.row.state));
        if listed.is_empty() && !self.stock.is_on() {
            count_states();
            return Ok(0);
        }
        // One that was claimed while it was looked at is none any more.
        self.stock.retain_ready(|engine_id| {
            attended.booting.contains_key(&engine_id)
                || listed.iter().any(|listed| listed.row.engine_id == engine_id)
        });
        let environment = self.stock.environment().await;
        let mut products = if environment.is_some() { self.policies.products_in_use() } else { Vec::new() };
        self.stock.sort_by_urgency(&mut products);
        let environment = environment.unwrap_or_default();
        let conditions = self.check_all(&listed, &environment).await;
        // Those that an earlier orchestrator has booted may be claimed from now on.
        count_states();
        let mut views: Vec<_> = listed
            .iter()
            .zip(conditions)
            .map(|(ListedWarmEngine { row, .. }, condition)| WarmView {
                engine_id: row.engine_id,
                product_id: row.product_id,
                state: row.state,
                attended: attended.booting.contains_key(&row.engine_id)
                    || attended.ending.contains(&row.engine_id),
                usable: !matches!(condition, Condition::Unusable(_)),
            })
            .collect();
        let listed_ids: Vec<_> = views.iter().map(|view| view.engine_id).collect();
        for (engine_id, product_id) in &attended.booting {
            // It has no row yet, or none any more.
            if !listed_ids.contains(engine_id) {
                let (engine_id, product_id, state) = (*engine_id, *product_id, WarmState::Booting);
                views.push(WarmView { engine_id, product_id, state, attended: true, usable: false });
            }
        }
        let planned = plan(self.mode(), self.stock.size(), &products, &views);
        for ListedWarmEngine { row, .. } in listed.iter().filter(|l| planned.end.contains(&l.row.engine_id)) {
            let (pool, row, shutdown) = (Arc::clone(self), row.clone(), shutdown.clone());
            tasks.spawn(async move { shutdown.run_until_cancelled(pool.end(&row)).await });
        }
        let now = self.shared.clock.monotonic();
        let may_try = |product: &&ProductId| {
            self.failures.lock().get(*product).is_none_or(|failures| failures.until <= now)
        };
        let room = MAX_CONCURRENT_BOOTS.saturating_sub(attended.booting.len());
        for product_id in planned.boot.iter().filter(may_try).take(room) {
            let (pool, product_id, engine_id) = (Arc::clone(self), *product_id, EngineId::new());
            self.stock.begin_boot(engine_id, product_id);
            let shutdown = shutdown.clone();
            tasks.spawn(async move { shutdown.run_until_cancelled(pool.boot(engine_id, product_id)).await });
        }
        Ok(listed.len())
    }

    fn mode(&self) -> PoolMode {
        if self.drain.check_may_start().is_err() {
            PoolMode::Empty
        } else if self.maintenance.check_permits(Change::Provision).is_err() {
            PoolMode::Hold
        } else {
            PoolMode::Fill
        }
    }

    async fn check_all(&self, listed: &[ListedWarmEngine], environment: &str) -> Vec<Condition> {
        let check = |listed| -> BoxFuture<'_, Condition> { Box::pin(self.check_listed(listed, environment)) };
        let checks: Vec<_> = listed.iter().map(check).collect();
        futures::stream::iter(checks).buffered(MAX_CONCURRENT_CHECKS).collect().await
    }

    async fn check_listed(&self, listed: &ListedWarmEngine, environment: &str) -> Condition {
        if listed.row.state != WarmState::Ready {
            return Condition::Unknown;
        }
        let condition = self.check(listed, environment).await;
        if let Condition::Unusable(reason) = condition {
            self.stock.remove_ready(listed.row.engine_id);
            tracing::info!(engine_id = %listed.row.engine_id, reason, "A warm engine is replaced.");
        }
        condition
    }

    async fn check(&self, listed: &ListedWarmEngine, environment: &str) -> Condition {
        let row = &listed.row;
        let policy = self.policies.get(row.product_id);
        if row.image != self.policies.default_image()
            || row.settings != launch_settings(&policy, listed.origins.as_deref(), environment)
        {
            return Condition::Unusable("a launch would be another one by now");
        }
        let Some(instance) = &row.instance else { return Condition::Unusable("it has no instance") };
        let now = self.shared.clock.monotonic();
        let known = self.stock.ready(row.engine_id);
        let interval = self.supervision.rules().check_interval;
        match known {
            Some(known) if now.saturating_sub(known.checked_at) < interval => Condition::Usable,
            Some(known) => {
                let is_healthy = self.is_healthy(row).await;
                let failed_checks = if is_healthy { 0 } else { known.failed_checks.saturating_add(1) };
                self.stock.update_ready(row.engine_id, |engine| {
                    (engine.checked_at, engine.failed_checks) = (now, failed_checks);
                });
                if failed_checks < self.supervision.rules().max_failures {
                    Condition::Usable
                } else {
                    Condition::Unusable("it is not healthy")
                }
            }
            None => self.check_unknown(row, instance).await,
        }
    }

    /// Checks an engine that an earlier orchestrator has booted, or of which an exit was reported or may have been missed.
    async fn check_unknown(&self, row: &WarmRow, instance: &Instance) -> Condition {
        match self.shared.backend.has_warm_mark(row.engine_id).await {
            Ok(true) => {}
            Ok(false) => return Condition::Unusable("it may have had a user"),
            Err(_) => return Condition::Unknown,
        }
        match self.shared.backend.is_running(instance).await {
            Ok(true) => {}
            Ok(false) => return Condition::Unusable("it has exited"),
            Err(_) => return Condition::Unknown,
        }
        if !self.is_healthy(row).await {
            return Condition::Unusable("it is not healthy");
        }
        self.stock.add_ready(row.engine_id, self.ready_engine(row, instance.clone()));
        Condition::Usable
    }

    fn ready_engine(&self, row: &WarmRow, instance: Instance) -> ReadyEngine {
        let checked_at = self.shared.clock.monotonic();
        ReadyEngine { product_id: row.product_id, instance, checked_at, failed_checks: 0 }
    }

    async fn is_healthy(&self, row: &WarmRow) -> bool {
        let Some(placement) = self.shared.backend.addressing().placement(row.port) else { return false };
        let Ok(key) = self.shared.keys.unseal(row.engine_id, &row.sealed_key) else { return false };
        let client = &self.executor.boots().client;
        tokio::select! {
            checked = client.check_launched(row.engine_id, placement, &key, Readiness::AllSubsystems) => {
                checked.is_ok()
            }
            () = self.shared.clock.sleep(self.supervision.rules().check_timeout) => false,
        }
    }

    async fn end(&self, row: &WarmRow) {
        if let Err(error) = self.stock.end(row).await {
            tracing::warn!(engine_id = %row.engine_id, %error, "A warm engine could not be ended; retrying.");
        }
        self.stock.changed.notify_one();
    }

    async fn boot(&self, engine_id: EngineId, product_id: ProductId) {
        match self.try_boot(engine_id, product_id).await {
            Ok(()) => {
                self.failures.lock().remove(&product_id);
            }
            Err(error) => {
                tracing::info!(%product_id, %error, "No warm engine could be booted; retrying later.");
                let now = self.shared.clock.monotonic();
                let mut failures = self.failures.lock();
                let failures = failures.entry(product_id).or_default();
                let (first, longest) = RETRY_DELAY;
                let delay = backoff::delay(first, longest, failures.count, backoff::jitter());
                failures.count = failures.count.saturating_add(1);
                failures.until = now.saturating_add(delay);
            }
        }
        self.stock.end_boot(engine_id);
    }

    async fn try_boot(&self, engine_id: EngineId, product_id: ProductId) -> Result<(), FleetError> {
        let shared = &self.shared;
        let _permit = self.executor.boot_limiter.acquire(product_id, BootRequest::Warm).await;
        self.drain.check_may_start()?;
        self.maintenance.check_permits(Change::Provision)?;
        self.policies.check_in_use(product_id)?;
        let image = self.policies.default_image();
        shared.backend.check_image(&image).await?;
        shared.backend.check_data().await?;
        // Read before the engine reads the catalog: a change in between makes it one that is replaced.
        let environment = self.stock.environment().await;
        let (_, key) = shared.keys.generate(engine_id)?;
        let new = NewWarmEngine {
            engine_id,
            product_id,
            key_hash: key.hash,
            sealed_key: key.sealed,
            sealed_secrets_key: shared.keys.generate_secrets_key(engine_id)?,
            image,
            environment: environment
                .ok_or_else(|| FleetError::Backend("the catalog cannot be read".to_owned()))?,
            created_at: shared.clock.now(),
        };
        let boots = self.executor.boots();
        let inserted = shared.registry.insert_warm_engine(new, &boots.placements).await?;
        let (row, placement) = inserted.ok_or(FleetError::PortExhaustion)?;
        // Before the engine has a folder: as long as there is a mark, the folder is nobody's.
        let booted = match shared.backend.set_warm_mark(engine_id).await {
            Ok(()) => boots.boot_warm(&row, placement).await,
            Err(error) => Err(error.into()),
        };
        let settled = match booted {
            Ok(instance) => self.settle(&row, instance).await,
            Err(error) => Err(error),
        };
        if settled.is_err() {
            self.end(&row).await;
        }
        settled
    }

    async fn settle(&self, row: &WarmRow, instance: Instance) -> Result<(), FleetError> {
        let now = self.shared.clock.now();
        if self.shared.registry.set_warm_engine_ready(row, &instance, now).await? {
            // If it has exited since, its first check finds that out, or the exit is reported after this.
            self.stock.add_ready(row.engine_id, self.ready_engine(row, instance));
        }
        Ok(())
    }

    /// Removes what is marked as warm and is not: the marks of engines that a provision had claimed when an orchestrator
    /// was killed, and engines that the registry, restored from a backup, does not know. Returns whether that is done.
    async fn sweep_marks(&self) -> bool {
        match self.try_sweep_marks().await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "The marks of warm engines could not be looked at; retrying.");
                false
            }
        }
    }

    async fn try_sweep_marks(&self) -> Result<(), FleetError> {
        let Shared { registry, backend, .. } = &*self.shared;
        for engine_id in backend.warm_marks().await? {
            // In this order: a warm engine that is claimed meanwhile has its other row then.
            if registry.is_warm_engine(engine_id).await?
                || self.stock.attended().booting.contains_key(&engine_id)
            {
                continue;
            }
            match registry.engine_by_id(engine_id).await {
                Ok(None) => {
                    backend.remove_with_data(Target { engine_id, generation: FIRST_GENERATION }).await?;
                }
                Ok(Some(_)) | Err(RegistryError::Unreadable { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            backend.remove_warm_mark(engine_id).await?;
        }
        Ok(())
    }
}
