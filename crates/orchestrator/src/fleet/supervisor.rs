//! The supervisor: a loop that takes the actions that are due. It checks the health of running engines, puts idle
//! ones to sleep, restarts failed ones, and saves their activity in the registry.

use std::sync::Arc;
use std::time::Duration;

use api::EngineId;
use api::orchestrator::EngineStatus;
use http_service::backoff;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::boot::{FAILURE_LOG_LINES, Readiness, check_health};
use super::boot_limiter::BootRequest;
use super::execute::OperationRequest;
use super::exits::{EXIT_CONFIRM_DELAY, unexpected_exit_message};
use super::lifecycle::{Change, Trigger};
use super::operation::OperationError;
use super::supervision::{CheckTarget, DueAction, KeyState, MonoMillis, SupervisionAction, to_mono_millis};
use super::{Fleet, FleetError};
use crate::backend::{BackendError, Instance, KeyProof, ProbeError};
use crate::registry::{AuditEntry, EngineRow, Event, NextState, RegistryError};

/// The interval at which activity is saved, and thus the most that a kill of the orchestrator loses.
const ACTIVITY_SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// Concurrent health checks. Each takes at most its timeout.
const MAX_CONCURRENT_CHECKS: usize = 256;

/// Engines that are put to sleep concurrently.
const MAX_CONCURRENT_SLEEPS: usize = 32;

/// The shortest wait before a restart that failed because the host had no capacity or the data was missing.
const HOST_FAILURE_MIN_BACKOFF: Duration = Duration::from_secs(30);

/// The longest sleep of the loop, in milliseconds.
const MAX_LOOP_SLEEP_MS: MonoMillis = 60_000;

impl Fleet {
    /// Performs actions as they become due, until `shutdown`, which may come before the fleet is ready.
    pub(crate) async fn supervise(self: Arc<Self>, shutdown: CancellationToken) {
        if shutdown.run_until_cancelled(self.ready()).await.is_none() {
            return;
        }
        let tasks = TaskTracker::new();
        let (checks, sleeps) = (Semaphore::new(MAX_CONCURRENT_CHECKS), Semaphore::new(MAX_CONCURRENT_SLEEPS));
        let (checks, sleeps) = (Arc::new(checks), Arc::new(sleeps));
        loop {
            for due in self.supervision.take_due(self.now_mono_millis()) {
                self.telemetry.record_lag(due.lag);
                let (fleet, shutdown) = (Arc::clone(&self), shutdown.clone());
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
                    fleet.perform(due).await;
                };
                tasks.spawn(async move { shutdown.run_until_cancelled(performed).await });
            }
            let next = self.supervision.next_due().unwrap_or(MonoMillis::MAX);
            let pause =
                next.saturating_sub(self.now_mono_millis()).clamp(0, MAX_LOOP_SLEEP_MS).unsigned_abs();
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = self.supervision.wait_for_change() => {}
                () = self.clock.sleep(Duration::from_millis(pause)) => {}
            }
        }
        tasks.close();
        tasks.wait().await;
    }

    /// Saves the activity of engines in the registry until `shutdown`, and once more then.
    pub(crate) async fn save_activity_periodically(self: Arc<Self>, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(self.clock.sleep(ACTIVITY_SAVE_INTERVAL)).await.is_some() {
            self.save_activity().await;
        }
        self.save_activity().await;
    }

    async fn save_activity(&self) {
        let activities = self.supervision.take_unsaved_activity();
        if activities.is_empty() {
            return;
        }
        if let Err(error) = self.registry.save_activity(&activities).await {
            let error: &dyn std::error::Error = &error;
            tracing::error!(error, "The activity of engines could not be saved; retrying.");
            self.supervision.mark_unsaved(&activities);
        }
    }

    /// The monotonic clock, for everything that must not depend on the wall clock.
    pub(super) fn monotonic_now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// The monotonic clock in milliseconds.
    pub(super) fn now_mono_millis(&self) -> MonoMillis {
        to_mono_millis(self.monotonic_now())
    }

    async fn perform(self: Arc<Self>, due: DueAction) {
        let DueAction { engine_id, engine_owner: owner, action, generation, .. } = due;
        match action {
            SupervisionAction::Check => self.check(engine_id).await,
            SupervisionAction::Sleep => {
                let request = OperationRequest::new(owner, Trigger::Sleep { if_idle: true }, "idle");
                match self.execute(&request).await {
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
                self.supervision.reschedule_idle_check(engine_id, self.now_mono_millis());
            }
            SupervisionAction::Restart { urgent } => {
                let boot = BootRequest::Restart { engine_id, urgent };
                let _permit = self.boot_limiter.acquire(owner.product_id, boot).await;
                let mut request = OperationRequest::new(owner, Trigger::Restart, "crash");
                request.expected_generation = Some(generation);
                if let Err(error) = self.execute(&request).await {
                    tracing::info!(%engine_id, %error, "A failed engine was not restarted.");
                    self.supervision.postpone_restart(engine_id, self.now_mono_millis());
                    self.refresh_state(engine_id).await;
                }
                self.supervision.notify_waiters(engine_id);
            }
        }
    }

    /// Updates the monitor of an engine from its row, because a change may have been missed.
    async fn refresh_state(&self, engine_id: EngineId) {
        match self.registry.engine_by_id(engine_id).await {
            Ok(None) => self.supervision.forget(engine_id),
            Ok(Some(row)) if row.status != EngineStatus::Failed => {
                self.supervision.track(&row, false, self.now_mono_millis(), self.now());
            }
            // The next attempt reads the row again.
            Ok(Some(_)) | Err(_) => {}
        }
    }

    /// Checks the health of a running engine. After too many consecutive failed checks it has failed.
    async fn check(self: &Arc<Self>, engine_id: EngineId) {
        let Some(check_target) = self.supervision.check_target(engine_id) else { return };
        let CheckTarget { instance, failed_checks: failed, .. } = &check_target;
        let (timeout, max_failures) =
            (self.supervision.rules().check_timeout, self.supervision.rules().max_failures);
        // The backend is checked before and after the decisive health check: the connection to the engine may
        // depend on it, as with a daemon's port forwarding, and fail while the engine is healthy.
        let mut outage = None;
        if failed.saturating_add(1) >= max_failures {
            outage = self.backend_unavailable_reason().await;
        }
        let error = tokio::select! {
            result = self.probe_engine(engine_id, &check_target) => result.err(),
            () = self.clock.sleep(timeout) => {
                Some(format!("it did not answer within {} s", timeout.as_secs_f64()))
            }
        };
        let now = (self.now_mono_millis(), self.now());
        let failed = self.supervision.record_check(engine_id, instance, error.is_none(), now);
        let Some(reason) = error else { return };
        tracing::info!(%engine_id, reason, failed, "An engine failed a health check.");
        if failed < max_failures {
            return;
        }
        if outage.is_none() {
            outage = self.backend_unavailable_reason().await;
        }
        if let Some(outage) = outage {
            tracing::warn!(
                %engine_id,
                outage,
                "An unhealthy engine is not marked as failed, because the backend is unavailable too."
            );
            return;
        }
        if let Err(error) = self.fail_unhealthy_engine(engine_id, instance, &reason).await {
            let error: &dyn std::error::Error = &error;
            tracing::error!(
                %engine_id,
                error,
                "An unhealthy engine could not be marked as failed; the next failed check retries."
            );
        }
    }

    /// Checks an engine's health and, if it is in doubt, whether it accepts the registry's key. Fails with a
    /// message.
    async fn probe_engine(&self, engine_id: EngineId, check_target: &CheckTarget) -> Result<(), String> {
        let describe = |error: ProbeError| error.to_string();
        let response =
            self.probe.check_health(check_target.port, check_target.key_hash).await.map_err(describe)?;
        check_health(&response.health, Readiness::BrainOnly)?;
        let key_in_doubt = match response.proof {
            KeyProof::Valid => {
                self.supervision.mark_key_proven(engine_id, self.now_mono_millis());
                false
            }
            KeyProof::Invalid => true,
            KeyProof::Absent if check_target.key_proven => {
                return Err(describe(ProbeError::Unproven { port: check_target.port }));
            }
            KeyProof::Absent => check_target.key_state != KeyState::Accepted,
        };
        if !key_in_doubt {
            return Ok(());
        }
        // While the key is being rotated, or while the registry does not answer, it is unknown which key is valid.
        let Ok(Some(row)) = self.registry.engine_by_id(engine_id).await else { return Ok(()) };
        let Some(key) = self.engine_key(&row).ok().filter(|_| row.claim.is_none()) else { return Ok(()) };
        match self.verify_identity(check_target.port, &key).await {
            Ok(()) => {
                self.supervision.mark_key_accepted(engine_id, self.now_mono_millis());
                Ok(())
            }
            Err(ProbeError::KeyRefused { .. }) => {
                self.supervision.set_key_state(engine_id, KeyState::Refused);
                Err("it refuses the key that the registry has for it".to_owned())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Why the backend is unreachable or the engines' data is missing, if so. Then an engine that does not answer
    /// may still be healthy.
    async fn backend_unavailable_reason(&self) -> Option<String> {
        match self.backend.ping().await {
            Err(BackendError::Unreachable(reason)) => Some(reason),
            Err(BackendError::DataUnavailable(reason)) => Some(reason.to_string()),
            Ok(()) | Err(_) => None,
        }
    }

    /// Kills a running engine that stays unhealthy and marks it as failed; if it has exited, records that instead.
    async fn fail_unhealthy_engine(
        self: &Arc<Self>,
        engine_id: EngineId,
        instance: &Instance,
        reason: &str,
    ) -> Result<(), FleetError> {
        let Some(row) = self.registry.engine_by_id(engine_id).await? else {
            self.supervision.forget(engine_id);
            return Ok(());
        };
        // Registered as an operation, so that nobody launches the engine while it is being killed. An operation
        // under way, such as a stop, may be the cause; if the engine is unhealthy after it, the next check leads
        // here again.
        let Ok(operation) = self.operations.begin_for_row(&row, Change::Stop) else { return Ok(()) };
        let (fleet, instance, reason) = (Arc::clone(self), instance.clone(), reason.to_owned());
        let fail_engine = async move {
            let row = fleet.registry.engine_by_id(engine_id).await?.ok_or(OperationError::Stale)?;
            if row.status != EngineStatus::Running || row.instance.as_ref() != Some(&instance) {
                // The supervisor has missed a change.
                fleet.supervision.track(&row, false, fleet.now_mono_millis(), fleet.now());
            } else if fleet.backend.is_running(&instance).await? {
                fleet.registry.check_leadership().await?;
                fleet.backend.kill(row.target()).await?;
                fleet.record_failure(&row, &reason, "health").await?;
            } else {
                // It has exited. If the exit was reported, its handler records it within this time, with its
                // reason.
                fleet.clock.sleep(EXIT_CONFIRM_DELAY).await;
                if !fleet.backend.is_running(&instance).await? {
                    fleet.record_failure(&row, &unexpected_exit_message(None), "exit").await?;
                }
            }
            Err(OperationError::Stale)
        };
        self.operations.spawn(Arc::clone(&operation), fail_engine);
        match operation.outcome().await {
            Err(OperationError::Failed(error)) => Err(error),
            Ok(_) | Err(OperationError::Stale | OperationError::Preempted) => Ok(()),
        }
    }

    /// Marks a running engine whose process has exited as `failed`, unless another operation changes it.
    pub(super) async fn record_failure(
        &self,
        row: &EngineRow,
        reason: &str,
        cause: &'static str,
    ) -> Result<(), RegistryError> {
        let mut entry = self.crash_entry(row, reason, cause);
        if let Value::Object(detail) = &mut entry.detail {
            // Read before the next launch, which begins another log. Best effort, as after a failed boot.
            let log = self.backend.log_tail(row.engine_id, FAILURE_LOG_LINES).await.unwrap_or_default();
            detail.insert("log".to_owned(), log.into());
        }
        match self.settle(row, self.failed_state_after_running(row), Some(&entry)).await {
            Ok(_) => tracing::warn!(engine_id = %row.engine_id, reason, cause, "An engine has failed."),
            // Another operation was faster; its change stands.
            Err(RegistryError::ClaimLost { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The audit log's row of a transition to `failed`.
    pub(super) fn crash_entry(&self, row: &EngineRow, reason: &str, cause: &'static str) -> AuditEntry {
        let detail = json!({
            "from": row.status, "to": EngineStatus::Failed, "reason": reason, "cause": cause,
        });
        self.audit_entry(row, Event::Crash, detail)
    }

    /// `failed` for an engine that ran: restarts before a long healthy period do not count.
    pub(super) fn failed_state_after_running(&self, row: &EngineRow) -> NextState {
        self.failed_state(
            self.supervision.restart_count(row.engine_id, self.now_mono_millis()).unwrap_or(row.restarts),
        )
    }

    /// `failed`, with the time of the next restart after `attempts` attempts, if any are left.
    pub(super) fn failed_state(&self, attempts: i64) -> NextState {
        self.failed_state_with_min_backoff(attempts, Duration::ZERO)
    }

    /// `failed` after an attempt that said nothing about the engine: it is restarted as soon as the host may have
    /// recovered.
    pub(super) fn failed_state_after_host_failure(&self, attempts: i64) -> NextState {
        self.failed_state_with_min_backoff(attempts, HOST_FAILURE_MIN_BACKOFF)
    }

    fn failed_state_with_min_backoff(&self, attempts: i64, min_backoff: Duration) -> NextState {
        let rules = self.supervision.rules();
        let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
        let base = rules.backoff_base.max(min_backoff);
        let wait = (attempts < rules.max_restarts)
            .then(|| restart_delay(attempts, base, rules.backoff_max.max(min_backoff)));
        let at = |wait| self.now().unix_ms().saturating_add(to_mono_millis(wait));
        NextState::Failed {
            restart_at: wait.map(|wait| api::Timestamp::from_unix_ms(at(wait))),
            restarts: i64::from(attempts),
        }
    }
}

/// The wait before the restart that follows `attempts` others: it doubles each time up to `max`, and varies by a
/// fifth so that engines that failed together do not restart together.
fn restart_delay(attempts: u32, base: Duration, max: Duration) -> Duration {
    backoff::delay(base, max, attempts, backoff::jitter())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_back_off_doubles_up_to_its_bound_give_or_take_a_fifth(
            attempts in 0_u32..100, base_ms in 0_u64..10_000, max_ms in 0_u64..1_000_000,
        ) {
            let (base, max) = (Duration::from_millis(base_ms), Duration::from_millis(max_ms));
            let exact = base.as_secs_f64() * 2_f64.powi(i32::try_from(attempts).unwrap());
            let exact = exact.min(max.as_secs_f64());
            let wait = restart_delay(attempts, base, max).as_secs_f64();
            prop_assert!(wait >= exact * 0.8 - 1e-6 && wait <= exact * 1.2 + 1e-6, "{wait} {exact}");
        }
    }
}
