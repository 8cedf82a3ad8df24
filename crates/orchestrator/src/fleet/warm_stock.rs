//! What this orchestrator knows of the warm engines: which may be claimed, and which a task is at. And how one is ended.
//!
//! The registry decides who gets an engine: the transaction that claims it takes its row. Here it is only known which
//! rows are worth trying, because their engines ran a moment ago and have no user's data.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::{EngineId, ProductId};
use backend::{BackendError, Instance, InstanceExit, Target};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::FleetError;
use super::catalog_fingerprint::fingerprint;
use super::shared::Shared;
use crate::domain::warm_pool::{PoolSize, WarmState};
use crate::metrics::labels::WarmClaim;
use crate::registry::{EngineRow, FIRST_GENERATION, WarmOffer, WarmRow};

/// How many warm engines a provision tries to take: others may take the first ones at the same time.
const MAX_CANDIDATES: usize = 8;

/// The settings of the warm pool.
#[derive(Clone, Debug)]
pub(crate) struct WarmPoolSettings {
    pub(crate) size: PoolSize,
    /// The folder that engines read when they start.
    pub(crate) catalog: PathBuf,
    /// Stands for everything that all engines are launched with, but for the catalog.
    pub(crate) environment: String,
}

pub(super) struct WarmStock {
    shared: Arc<Shared>,
    settings: WarmPoolSettings,
    state: Mutex<State>,
    /// Begins the next pass of the pool at once.
    pub(super) changed: Notify,
}

#[derive(Default)]
struct State {
    /// The engines that may be claimed.
    ready: HashMap<EngineId, ReadyEngine>,
    /// The engines that a task of this process boots, some of which have no row yet.
    booting: HashMap<EngineId, ProductId>,
    /// The engines that a task of this process removes.
    ending: HashSet<EngineId>,
    /// The number of the last provision of each product.
    last_provisions: HashMap<ProductId, u64>,
    provisions: u64,
}

/// An engine that may be claimed.
#[derive(Clone, Debug)]
pub(super) struct ReadyEngine {
    pub(super) product_id: ProductId,
    pub(super) instance: Instance,
    /// When its health was checked last.
    pub(super) checked_at: Duration,
    /// How many health checks in a row have failed.
    pub(super) failed_checks: u32,
}

/// The engines that tasks of this process are at.
pub(super) struct Attended {
    pub(super) booting: HashMap<EngineId, ProductId>,
    pub(super) ending: HashSet<EngineId>,
}

impl WarmStock {
    pub(super) fn new(shared: &Arc<Shared>, settings: WarmPoolSettings) -> Arc<Self> {
        let shared = Arc::clone(shared);
        Arc::new(Self { shared, settings, state: Mutex::default(), changed: Notify::new() })
    }

    /// How large the pool may be.
    pub(super) const fn size(&self) -> PoolSize {
        self.settings.size
    }

    /// Whether engines are booted ahead.
    pub(super) const fn is_on(&self) -> bool {
        self.settings.size.per_product > 0 && self.settings.size.total > 0
    }

    /// What all engines of the deployment would be launched with now, as text; `None` if the catalog cannot be read.
    pub(super) async fn environment(&self) -> Option<String> {
        let catalog = self.settings.catalog.clone();
        let read = tokio::task::spawn_blocking(move || fingerprint(&catalog)).await.ok()?;
        match read {
            Ok(catalog) => Some(format!("{}-{catalog}", self.settings.environment)),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "The catalog cannot be read; no warm engine is used.");
                None
            }
        }
    }

    /// The warm engines that a provision of the product may claim; `None` if there are none.
    pub(super) async fn offer(&self, product_id: ProductId) -> Option<WarmOffer> {
        let candidates: Vec<_> = {
            let state = self.state.lock();
            let of_product = state.ready.iter().filter(|(_, engine)| engine.product_id == product_id);
            of_product.map(|(engine_id, _)| *engine_id).take(MAX_CANDIDATES).collect()
        };
        if candidates.is_empty() {
            return None;
        }
        Some(WarmOffer { candidates, environment: self.environment().await? })
    }

    /// Records that a provision has claimed the warm engine of `row`.
    pub(super) fn record_claim(&self, row: &EngineRow) {
        self.state.lock().ready.remove(&row.engine_id);
        self.record_provision(row.owner.product_id);
    }

    /// Records that a provision has found no warm engine.
    pub(super) fn record_miss(&self, product_id: ProductId) {
        if self.is_on() {
            self.shared.metrics.warm_claim(WarmClaim::Miss);
            self.record_provision(product_id);
        }
    }

    fn record_provision(&self, product_id: ProductId) {
        {
            let mut state = self.state.lock();
            state.provisions += 1;
            let number = state.provisions;
            state.last_provisions.insert(product_id, number);
        }
        self.changed.notify_one();
    }

    /// Sorts products: those that have provisioned last come first, and then those that were registered first.
    pub(super) fn sort_by_urgency(&self, products: &mut [ProductId]) {
        let state = self.state.lock();
        products.sort_by_key(|product| {
            let last = state.last_provisions.get(product).copied().unwrap_or_default();
            (std::cmp::Reverse(last), *product)
        });
    }

    /// The engine, if it may be claimed.
    pub(super) fn ready(&self, engine_id: EngineId) -> Option<ReadyEngine> {
        self.state.lock().ready.get(&engine_id).cloned()
    }

    /// Lets an engine be claimed from now on.
    pub(super) fn add_ready(&self, engine_id: EngineId, engine: ReadyEngine) {
        self.state.lock().ready.insert(engine_id, engine);
    }

    /// Keeps the result of a check of an engine that may still be claimed.
    pub(super) fn update_ready(&self, engine_id: EngineId, update: impl FnOnce(&mut ReadyEngine)) {
        if let Some(engine) = self.state.lock().ready.get_mut(&engine_id) {
            update(engine);
        }
    }

    /// Lets an engine not be claimed any more.
    pub(super) fn remove_ready(&self, engine_id: EngineId) {
        self.state.lock().ready.remove(&engine_id);
    }

    /// Lets only such engines be claimed.
    pub(super) fn retain_ready(&self, is_warm: impl Fn(EngineId) -> bool) {
        self.state.lock().ready.retain(|engine_id, _| is_warm(*engine_id));
    }

    /// Lets no engine be claimed until it was looked at again.
    pub(super) fn forget_all(&self) {
        self.state.lock().ready.clear();
    }

    /// Whether this was the exit of an engine that could be claimed until now.
    pub(super) fn note_exit(&self, exit: &InstanceExit) -> bool {
        let mut state = self.state.lock();
        let is_ready = |engine: &ReadyEngine| engine.instance == exit.instance;
        let was_ready = state.ready.get(&exit.engine_id).is_some_and(is_ready);
        if was_ready {
            state.ready.remove(&exit.engine_id);
        }
        was_ready
    }

    /// Notes that a task boots an engine.
    pub(super) fn begin_boot(&self, engine_id: EngineId, product_id: ProductId) {
        self.state.lock().booting.insert(engine_id, product_id);
    }

    /// Notes that the task that boots an engine has ended.
    pub(super) fn end_boot(&self, engine_id: EngineId) {
        self.state.lock().booting.remove(&engine_id);
        self.changed.notify_one();
    }

    /// The engines that tasks are at.
    pub(super) fn attended(&self) -> Attended {
        let state = self.state.lock();
        Attended { booting: state.booting.clone(), ending: state.ending.clone() }
    }

    /// Ends a warm engine: from now on nobody claims it, and then nothing is left of it. Returns false if it was claimed
    /// before, or somebody is at it.
    pub(super) async fn end(&self, row: &WarmRow) -> Result<bool, FleetError> {
        if !self.state.lock().ending.insert(row.engine_id) {
            return Ok(false);
        }
        let _guard = EndGuard { stock: self, engine_id: row.engine_id };
        self.remove_ready(row.engine_id);
        if !self.shared.registry.begin_warm_engine_end(row, self.shared.clock.now()).await? {
            return Ok(false);
        }
        match self.remove(row).await {
            // Its engine was launched again since: it is a user's, whom this registry does not know any more.
            Ok(()) | Err(BackendError::Superseded { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.shared.registry.remove_warm_engine(row).await?;
        Ok(true)
    }

    /// Removes the instance of a warm engine, and its data if they are nobody's.
    async fn remove(&self, row: &WarmRow) -> Result<(), BackendError> {
        let target = Target { engine_id: row.engine_id, generation: FIRST_GENERATION };
        let backend = &self.shared.backend;
        if backend.has_warm_mark(row.engine_id).await? {
            backend.remove_with_data(target).await?;
            backend.remove_warm_mark(row.engine_id).await?;
            return Ok(());
        }
        if row.instance.is_some() {
            tracing::warn!(
                engine_id = %row.engine_id,
                "A warm engine may have had a user: the registry was restored from a backup, or its server lost its \
                 last commits. It is stopped, and its data is left alone."
            );
        }
        backend.remove_instance(target).await
    }

    /// Ends a warm engine so that another one can have its port. Returns whether one was ended.
    pub(super) async fn give_way(&self) -> bool {
        match self.try_give_way().await {
            Ok(gave_way) => gave_way,
            Err(error) => {
                tracing::warn!(%error, "A warm engine could not give up its port.");
                false
            }
        }
    }

    async fn try_give_way(&self) -> Result<bool, FleetError> {
        if !self.is_on() {
            return Ok(false);
        }
        for listed in self.shared.registry.warm_engines().await? {
            let has_port = listed.row.state == WarmState::Ready && listed.row.port.is_some();
            if has_port && self.end(&listed.row).await? {
                tracing::info!(engine_id = %listed.row.engine_id, "A warm engine has given up its port.");
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Notes at its drop that nobody removes an engine any more.
struct EndGuard<'a> {
    stock: &'a WarmStock,
    engine_id: EngineId,
}

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.stock.state.lock().ending.remove(&self.engine_id);
    }
}
