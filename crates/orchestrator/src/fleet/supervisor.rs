//! The supervisor: a loop that takes the actions that are due. It checks the health of running engines, puts idle
//! ones to sleep, restarts failed ones, and saves their activity in the registry.

mod checks;
mod exits;

use std::sync::Arc;
use std::time::Duration;

use api::EngineId;
use api::orchestrator::EngineStatus;
use backend::InstanceExit;
use tokio::sync::{Semaphore, broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(super) use self::exits::EXIT_CONFIRM_DELAY;
use super::FleetError;
use super::boot_limiter::BootRequest;
use super::engine_client::EngineClient;
use super::execute::Executor;
use super::inbox::Inbox;
use super::maintenance::MaintenanceState;
use super::request::{OperationRequest, RequestKind};
use super::shared::Shared;
use super::supervision::{DueAction, Supervision, SupervisionAction};
use super::telemetry::Telemetry;
use super::transitions::Transitions;
use super::usage::UsageCollector;

/// The interval at which activity is saved, and thus the most that a kill of the orchestrator loses.
const ACTIVITY_SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// Concurrent health checks. Each takes at most its timeout.
const MAX_CONCURRENT_CHECKS: usize = 256;

/// Engines that are put to sleep concurrently.
const MAX_CONCURRENT_SLEEPS: usize = 32;

/// The longest sleep of the loop.
const MAX_LOOP_SLEEP: Duration = Duration::from_mins(1);

pub(super) struct Supervisor {
    pub(super) shared: Arc<Shared>,
    pub(super) supervision: Arc<Supervision>,
    pub(super) transitions: Arc<Transitions>,
    pub(super) executor: Arc<Executor>,
    pub(super) client: Arc<EngineClient>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) usage: Arc<UsageCollector>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) maintenance: Arc<MaintenanceState>,
    /// Whether the first comparison is done.
    pub(super) ready: watch::Receiver<bool>,
    /// Passes exits on to the boots under way.
    pub(super) exits: broadcast::Sender<InstanceExit>,
}

impl Supervisor {
    /// Performs actions as they become due, until `shutdown`, which may come before the fleet is ready.
    pub(super) async fn supervise(self: Arc<Self>, shutdown: CancellationToken) {
        if shutdown.run_until_cancelled(self.ready()).await.is_none() {
            return;
        }
        let tasks = TaskTracker::new();
        let (checks, sleeps) = (Semaphore::new(MAX_CONCURRENT_CHECKS), Semaphore::new(MAX_CONCURRENT_SLEEPS));
        let (checks, sleeps) = (Arc::new(checks), Arc::new(sleeps));
        loop {
            let taken_at = self.shared.clock.monotonic();
            for due in self.supervision.take_due() {
                let (supervisor, shutdown) = (Arc::clone(&self), shutdown.clone());
                // Restarts acquire a permit of the boot limiter.
                let permits = match due.action {
                    SupervisionAction::Check => Some(Arc::clone(&checks)),
                    SupervisionAction::Sleep => Some(Arc::clone(&sleeps)),
                    SupervisionAction::Restart { .. } => None,
                };
                let performed = async move {
                    let _permit = match &permits {
                        Some(permits) => permits.acquire().await.ok(),
                        None => None,
                    };
                    let waited = supervisor.shared.clock.monotonic().saturating_sub(taken_at);
                    supervisor.telemetry.record_lag(due.action, due.lag.saturating_add(waited));
                    Box::pin(supervisor.perform(due)).await;
                };
                tasks.spawn(async move { shutdown.run_until_cancelled(performed).await });
            }
            let pause = self.supervision.until_next_due().unwrap_or(MAX_LOOP_SLEEP).min(MAX_LOOP_SLEEP);
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = self.supervision.wait_for_change() => {}
                () = self.shared.clock.sleep(pause) => {}
            }
        }
        tasks.close();
        tasks.wait().await;
    }

    /// Saves the activity of engines in the registry until `shutdown`, and once more then.
    pub(super) async fn save_activity_periodically(self: Arc<Self>, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(self.shared.clock.sleep(ACTIVITY_SAVE_INTERVAL)).await.is_some() {
            self.save_activity().await;
        }
        self.save_activity().await;
    }

    async fn save_activity(&self) {
        let activities = self.supervision.take_unsaved_activity();
        if activities.is_empty() {
            return;
        }
        if let Err(error) = self.shared.registry.save_activity(&activities).await {
            let error: &dyn std::error::Error = &error;
            tracing::error!(error, "The activity of engines could not be saved; retrying.");
            self.supervision.mark_unsaved(&activities);
        }
    }

    /// Waits until the first comparison is done.
    async fn ready(&self) {
        // The sender lives as long as the fleet.
        let _ = self.ready.clone().wait_for(|ready| *ready).await;
    }

    async fn perform(self: Arc<Self>, due: DueAction) {
        let DueAction { engine_id, engine_owner: owner, action, generation, .. } = due;
        match action {
            SupervisionAction::Check => self.check(engine_id).await,
            // Nobody could wake it.
            SupervisionAction::Sleep if self.maintenance.get().is_some() => {
                self.supervision.reschedule_idle_check(engine_id);
            }
            SupervisionAction::Sleep => {
                let request = OperationRequest::new(owner, RequestKind::Sleep { if_idle: true }, "idle");
                match self.executor.execute(&request).await {
                    // It was stopped, deleted or changed by another call.
                    Ok(_) | Err(FleetError::EngineNotRunning | FleetError::EngineNotFound) => {}
                    Err(error) => {
                        tracing::warn!(
                            %engine_id,
                            %error,
                            "An idle engine could not be put to sleep; retrying after the check interval."
                        );
                    }
                }
                self.supervision.reschedule_idle_check(engine_id);
            }
            SupervisionAction::Restart { urgent } => {
                let boot = BootRequest::Restart { engine_id, urgent };
                let _permit = self.executor.boot_limiter.acquire(owner.product_id, boot).await;
                let request = OperationRequest::new(owner, RequestKind::Restart { generation }, "crash");
                if let Err(error) = self.executor.execute(&request).await {
                    tracing::info!(%engine_id, %error, "A failed engine was not restarted.");
                    self.supervision.postpone_restart(engine_id);
                    self.refresh_state(engine_id).await;
                }
                self.supervision.notify_waiters(engine_id);
            }
        }
    }

    /// Updates the monitor of an engine from its row, because a change may have been missed.
    async fn refresh_state(&self, engine_id: EngineId) {
        match self.shared.registry.engine_by_id(engine_id).await {
            Ok(None) => self.supervision.forget(engine_id),
            Ok(Some(row)) if row.status != EngineStatus::Failed => {
                self.supervision.track(&row, false, self.supervision.now());
            }
            // The next attempt reads the row again.
            Ok(Some(_)) | Err(_) => {}
        }
    }
}
