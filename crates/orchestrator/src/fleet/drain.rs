//! The drain: while an operator keeps a deployment drained, all engines are put to sleep, and none is started.
//!
//! It is kept in the registry, so that an orchestrator that starts or takes over goes on with it. Engines sleep rather
//! than stop: once the drain is lifted, the next admit wakes them as ever.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::fleet::DrainFailure;
use api::{EngineId, ErrorDetail, Timestamp};
use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::FleetError;
use super::execute::Executor;
use super::request::{OperationRequest, RequestKind};
use super::shared::Shared;
use crate::domain::{Actor, EngineOwner};
use crate::registry::{EngineRow, RegistryError};

/// Engines that are put to sleep concurrently.
const MAX_CONCURRENT_SLEEPS: usize = 16;
/// How often a drained deployment is searched for engines that run: one may have been about to start.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);
/// How many failures are named.
const MAX_NAMED_FAILURES: usize = 100;

/// Whether the deployment is drained.
pub(super) struct DrainState {
    since: watch::Sender<Option<Timestamp>>,
    /// The engines that could not be put to sleep at the last attempt. There are never more than run.
    failures: Mutex<HashMap<EngineId, DrainFailure>>,
    /// Serializes changes, so that memory and registry agree.
    change_lock: tokio::sync::Mutex<()>,
}

impl DrainState {
    pub(super) fn new() -> Self {
        Self {
            since: watch::Sender::new(None),
            failures: Mutex::default(),
            change_lock: tokio::sync::Mutex::default(),
        }
    }

    /// Since when the deployment has been drained; `None` if it is not.
    pub(super) fn since(&self) -> Option<Timestamp> {
        *self.since.borrow()
    }

    /// Checks that engines may be started.
    pub(super) fn check_may_start(&self) -> Result<(), FleetError> {
        self.since().map_or(Ok(()), |since| Err(FleetError::Drained { since }))
    }

    /// Returns the engines that could not be put to sleep: their number, and the first of them, the one that has been
    /// failing longest first.
    pub(super) fn failures(&self) -> (usize, Vec<DrainFailure>) {
        let failures = self.failures.lock();
        let mut named: Vec<_> = failures.values().collect();
        named.sort_by_key(|failure| (failure.since, failure.engine_id));
        (failures.len(), named.into_iter().take(MAX_NAMED_FAILURES).cloned().collect())
    }

    /// Notes the end of an attempt to put an engine to sleep, for the drain that has lasted since `drain`.
    fn note_attempt(&self, drain: Timestamp, engine_id: EngineId, result: Result<(), DrainFailure>) {
        let mut failures = self.failures.lock();
        match result {
            // Under the lock: whoever lifts the drain removes the failures after it.
            Err(failure) if self.since() == Some(drain) => {
                let known = failures.entry(engine_id).or_insert_with(|| failure.clone());
                known.attempts = known.attempts.saturating_add(1);
                known.error = failure.error;
            }
            Err(_) => {}
            Ok(()) => drop(failures.remove(&engine_id)),
        }
    }

    /// Changes since when the deployment is drained. What failed in an earlier drain says nothing about this one.
    fn replace(&self, since: Option<Timestamp>) {
        self.since.send_replace(since);
        self.failures.lock().clear();
    }

    /// Loads what the registry says.
    pub(super) async fn load(&self, shared: &Shared) -> Result<(), RegistryError> {
        self.replace(shared.registry.drained_since().await?);
        Ok(())
    }
}

/// Drains the deployment, and lifts the drain.
pub(crate) struct Drains {
    shared: Arc<Shared>,
    executor: Arc<Executor>,
    state: Arc<DrainState>,
    /// Whether the registry has been compared with the running instances.
    ready: watch::Receiver<bool>,
}

impl Drains {
    pub(super) fn new(
        shared: &Arc<Shared>,
        executor: &Arc<Executor>,
        state: &Arc<DrainState>,
        ready: &watch::Receiver<bool>,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            executor: Arc::clone(executor),
            state: Arc::clone(state),
            ready: ready.clone(),
        }
    }

    /// Begins a drain, or finds one begun. Returns since when it lasts.
    pub(crate) async fn begin(self: &Arc<Self>) -> Result<Timestamp, FleetError> {
        let at = self.shared.clock.now();
        let since = self.set(move |since| Some(since.unwrap_or(at))).await?;
        Ok(since.unwrap_or(at))
    }

    /// Lifts the drain, if there is one. Engines are started again when somebody wants them.
    pub(crate) async fn lift(self: &Arc<Self>) -> Result<(), FleetError> {
        self.set(|_| None).await.map(|_| ())
    }

    async fn set(
        self: &Arc<Self>,
        next: impl FnOnce(Option<Timestamp>) -> Option<Timestamp> + Send + 'static,
    ) -> Result<Option<Timestamp>, FleetError> {
        let drains = Arc::clone(self);
        // In a task of its own: a caller who disconnects must not leave registry and memory with different states.
        let set = tokio::spawn(async move {
            let _lock = drains.state.change_lock.lock().await;
            let (since, next) = (drains.state.since(), next(drains.state.since()));
            if since != next {
                drains.shared.registry.set_drained_since(next).await?;
                drains.state.replace(next);
                if next.is_some() {
                    tracing::warn!("An operator drains the deployment: all engines are put to sleep.");
                } else {
                    tracing::warn!("An operator has lifted the drain: engines may start again.");
                }
            }
            Ok(next)
        });
        set.await.unwrap_or_else(|error| Err(FleetError::internal(error)))
    }

    /// Puts the engines of a drained deployment to sleep, until `shutdown`.
    pub(super) async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut since = self.state.since.subscribe();
        let mut ready = self.ready.clone();
        let run = async {
            // The senders live as long as the fleet.
            let _ = ready.wait_for(|ready| *ready).await;
            loop {
                let _ = since.wait_for(Option::is_some).await;
                if let Err(error) = self.sleep_running().await {
                    tracing::warn!(%error, "The engines to be drained are unknown; retrying.");
                }
                self.shared.clock.sleep(SEARCH_INTERVAL).await;
            }
        };
        shutdown.run_until_cancelled(run).await;
    }

    async fn sleep_running(&self) -> Result<(), FleetError> {
        let running = self.shared.registry.running_engines().await?;
        // Whatever has ended otherwise fails no more.
        let ids: HashSet<_> = running.iter().map(|row| row.engine_id).collect();
        self.state.failures.lock().retain(|engine_id, _| ids.contains(engine_id));
        let sleeps = running.into_iter().map(|row| self.sleep(row));
        futures::stream::iter(sleeps).buffer_unordered(MAX_CONCURRENT_SLEEPS).collect::<()>().await;
        Ok(())
    }

    /// Tries to put an engine to sleep, unless the drain has been lifted meanwhile.
    async fn sleep(&self, row: EngineRow) {
        let Some(drain) = self.state.since() else { return };
        let (engine_id, owner) = (row.engine_id, row.owner);
        let EngineOwner { product_id, user_id } = owner.clone();
        let request =
            OperationRequest::new(owner, RequestKind::Sleep { if_idle: false }, "drain").by(Actor::Operator);
        let result = match self.executor.execute(&request).await {
            // Or it was stopped, deleted or changed by another call.
            Ok(_) | Err(FleetError::EngineNotRunning | FleetError::EngineNotFound) => Ok(()),
            Err(error) => {
                tracing::warn!(%engine_id, %error, "An engine could not be drained; retrying.");
                let error = ErrorDetail { code: error.code(), message: error.to_string() };
                let since = self.shared.clock.now();
                Err(DrainFailure { engine_id, product_id, user_id, since, attempts: 0, error })
            }
        };
        self.state.note_attempt(drain, engine_id, result);
    }
}
