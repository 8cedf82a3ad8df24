//! The drain: while an operator keeps a deployment drained, all engines are put to sleep, and none is started.
//!
//! It is kept in the registry, so that an orchestrator that starts or takes over goes on with it. Engines sleep rather
//! than stop: once the drain is lifted, the next admit wakes them as ever.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use api::Timestamp;
use futures::StreamExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::FleetError;
use super::execute::Executor;
use super::failures::Failures;
use super::idempotency::Call;
use super::request::{OperationRequest, RequestKind};
use super::shared::Shared;
use super::switch::Switch;
use crate::domain::Actor;
use crate::registry::{EngineRow, RegistryError};

/// Engines that are put to sleep concurrently.
const MAX_CONCURRENT_SLEEPS: usize = 16;
/// How often a drained deployment is searched for engines that run: one may have been about to start.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);

/// Whether the deployment is drained.
pub(super) struct DrainState {
    since: Arc<Switch<Timestamp>>,
    /// The engines that could not be put to sleep at the last attempt.
    pub(super) failures: Arc<Failures>,
}

impl DrainState {
    pub(super) fn new() -> Self {
        Self { since: Arc::new(Switch::new()), failures: Arc::default() }
    }

    /// Since when the deployment has been drained; `None` if it is not.
    pub(super) fn since(&self) -> Option<Timestamp> {
        self.since.get()
    }

    /// Checks that engines may be started.
    pub(super) fn check_may_start(&self) -> Result<(), FleetError> {
        self.since().map_or(Ok(()), |since| Err(FleetError::Drained { since }))
    }

    /// Loads what the registry says.
    pub(super) async fn load(&self, shared: &Shared) -> Result<(), RegistryError> {
        self.failures.clear();
        self.since.load(shared).await
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
    pub(crate) async fn begin(&self, call: Option<Call>) -> Result<Timestamp, FleetError> {
        let at = self.shared.clock.now();
        let since = self.set(move |since| Some(since.unwrap_or(at)), call).await?;
        Ok(since.unwrap_or(at))
    }

    /// Lifts the drain, if there is one. Engines are started again when somebody wants them.
    pub(crate) async fn lift(&self, call: Option<Call>) -> Result<(), FleetError> {
        self.set(|_| None, call).await.map(|_| ())
    }

    async fn set(
        &self,
        next: impl FnOnce(Option<Timestamp>) -> Option<Timestamp> + Send + 'static,
        call: Option<Call>,
    ) -> Result<Option<Timestamp>, FleetError> {
        let failures = Arc::clone(&self.state.failures);
        let on_change = move |since: Option<&Timestamp>| {
            // What failed in an earlier drain says nothing about this one.
            failures.clear();
            if since.is_some() {
                tracing::warn!("An operator drains the deployment: all engines are put to sleep.");
            } else {
                tracing::warn!("An operator has lifted the drain: engines may start again.");
            }
        };
        self.state.since.set(&self.shared, next, on_change, call).await
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
        self.state.failures.retain(None, &ids);
        let sleeps = running.into_iter().map(|row| self.sleep(row));
        futures::stream::iter(sleeps).buffer_unordered(MAX_CONCURRENT_SLEEPS).collect::<()>().await;
        Ok(())
    }

    /// Tries to put an engine to sleep, unless the drain has been lifted meanwhile.
    async fn sleep(&self, row: EngineRow) {
        let Some(drain) = self.state.since() else { return };
        let (engine_id, owner) = (row.engine_id, row.owner.clone());
        let slept = put_to_sleep(&self.executor, row, "drain").await;
        if let Err(error) = &slept {
            tracing::warn!(%engine_id, %error, "An engine could not be drained; retrying.");
        }
        let now = self.shared.clock.now();
        self.state.failures.note(engine_id, owner, now, slept, || self.state.since() == Some(drain));
    }
}

/// Puts an engine to sleep for an operator, unless it has been stopped, deleted or changed otherwise.
pub(super) async fn put_to_sleep(
    executor: &Arc<Executor>,
    row: EngineRow,
    reason: &'static str,
) -> Result<(), FleetError> {
    let request = OperationRequest::new(row.owner, RequestKind::Sleep { if_idle: false }, reason);
    match executor.execute(&request.by(Actor::Operator)).await {
        Ok(_) | Err(FleetError::EngineNotRunning | FleetError::EngineNotFound) => Ok(()),
        Err(error) => Err(error),
    }
}
