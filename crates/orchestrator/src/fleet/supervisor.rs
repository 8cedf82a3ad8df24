//! What the supervisor does: takes what is due, asks engines how they are, puts idle ones to sleep, restarts
//! failed ones, and keeps what it learns.

use std::sync::Arc;
use std::time::Duration;

use api::EngineId;
use api::orchestrator::EngineStatus;
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
use crate::fault_injection::{self, Mutation};
use crate::registry::{AuditEntry, EngineRow, Event, NextState, RegistryError};

/// How often what was learnt is kept: a kill of the orchestrator forgets no more.
const ACTIVITY_SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// Checks under way at once. One takes its time-out at most.
const MAX_CONCURRENT_CHECKS: usize = 256;

/// Engines being put to sleep at once.
const MAX_CONCURRENT_SLEEPS: usize = 32;

/// The shortest wait for a restart that the host had no room for, or no data.
const HOST_FAILURE_MIN_BACKOFF: Duration = Duration::from_secs(30);

/// The longest sleep of the loop that takes what is due.
const MAX_LOOP_SLEEP_MS: MonoMillis = 60_000;

impl Fleet {
    /// Does what is due, when it is due, until `shutdown`, which may come before the fleet is ready.
    pub(crate) async fn supervise(self: Arc<Self>, shutdown: CancellationToken) {
        if fault_injection::active(Mutation::AwaitReadiness) {
            self.ready().await;
        }
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
                if fault_injection::active(Mutation::OneByOne) {
                    shutdown.run_until_cancelled(fleet.perform(due)).await;
                    continue;
                }
                // Boots have a gate of their own.
                let bound = match due.action {
                    SupervisionAction::Check => Some(Arc::clone(&checks)),
                    SupervisionAction::Sleep => Some(Arc::clone(&sleeps)),
                    SupervisionAction::Restart { .. } => None,
                };
                let performed = async move {
                    let _permit = match &bound {
                        Some(bound) => bound.acquire().await.ok(),
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

    /// Keeps what is learnt in the registry, until `shutdown`.
    pub(crate) async fn save_activity_periodically(self: Arc<Self>, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(self.clock.sleep(ACTIVITY_SAVE_INTERVAL)).await.is_some() {
            self.save_activity().await;
        }
        self.save_activity().await;
    }

    async fn save_activity(&self) {
        let stamps = self.supervision.take_unsaved_activity();
        if stamps.is_empty() {
            return;
        }
        if let Err(error) = self.registry.save_activity(&stamps).await {
            let error: &dyn std::error::Error = &error;
            tracing::error!(error, "What was learnt of the engines could not be kept yet.");
            self.supervision.mark_unsaved(&stamps);
        }
    }

    /// The monotonic clock, by which all is reckoned that must not depend on the wall clock.
    pub(super) fn monotonic_now(&self) -> Duration {
        if fault_injection::active(Mutation::ReckonByWall) {
            return Duration::from_millis(self.now().unix_ms().unsigned_abs());
        }
        self.clock.monotonic()
    }

    /// The same, as the supervisor reckons.
    pub(super) fn now_mono_millis(&self) -> MonoMillis {
        to_mono_millis(self.monotonic_now())
    }

    async fn perform(self: Arc<Self>, due: DueAction) {
        let DueAction { engine_id, engine_owner: seat, action, generation, .. } = due;
        match action {
            SupervisionAction::Check => self.check(engine_id).await,
            SupervisionAction::Sleep => {
                let job = OperationRequest::new(seat, Trigger::Sleep { if_idle: true }, "idle");
                match self.execute(&job).await {
                    // It was stopped, deleted or changed by somebody else.
                    Ok(_) | Err(FleetError::EngineNotRunning | FleetError::EngineNotFound) => {}
                    Err(error) => {
                        tracing::warn!(engine.id = %engine_id, %error, "An idle engine could not be put to sleep yet.");
                    }
                }
                self.supervision.reschedule_idle_check(engine_id, self.now_mono_millis());
            }
            SupervisionAction::Restart { urgent } => {
                let boot = BootRequest::Restart { engine_id, urgent };
                let _permit = self.boot_limiter.acquire(seat.product_id, boot).await;
                let mut job = OperationRequest::new(seat, Trigger::Restart, "crash");
                job.expected_generation = Some(generation);
                if let Err(error) = self.execute(&job).await {
                    tracing::info!(engine.id = %engine_id, %error, "A failed engine was not restarted.");
                    self.supervision.postpone_restart(engine_id, self.now_mono_millis());
                    self.refresh_state(engine_id).await;
                }
                self.supervision.notify_waiters(engine_id);
            }
        }
    }

    /// Takes note of how an engine stands by its row: what was known of it may have come too late.
    async fn refresh_state(&self, engine_id: EngineId) {
        match self.registry.engine_by_id(engine_id).await {
            Ok(None) => self.supervision.forget(engine_id),
            Ok(Some(row)) if row.status != EngineStatus::Failed => {
                self.supervision.track(&row, false, self.now_mono_millis(), self.now());
            }
            // The next attempt looks again.
            Ok(Some(_)) | Err(_) => {}
        }
    }

    /// Asks a running engine how it is. After too many bad answers in a row it has failed.
    async fn check(self: &Arc<Self>, engine_id: EngineId) {
        let Some(check_target) = self.supervision.check_target(engine_id) else { return };
        let CheckTarget { instance, failed_checks: failed, .. } = &check_target;
        let (timeout, tolerated) =
            (self.supervision.rules().check_timeout, self.supervision.rules().max_failures);
        // Before the check that decides and after it: what carries the question to the engine may be the backend's
        // own, as a daemon's port forwarding is, and is gone with it and back with it.
        let mut silent = None;
        if failed.saturating_add(1) >= tolerated {
            silent = self.backend_unavailable_reason().await;
        }
        let unwell = tokio::select! {
            examined = self.probe_engine(engine_id, &check_target) => examined.err(),
            () = self.clock.sleep(timeout) => Some(format!("it said nothing within {} s", timeout.as_secs_f64())),
        };
        let now = (self.now_mono_millis(), self.now());
        let failed = self.supervision.record_check(engine_id, instance, unwell.is_none(), now);
        let Some(reason) = unwell else { return };
        tracing::info!(engine.id = %engine_id, reason, failed, "An engine failed a health check.");
        if failed < tolerated {
            return;
        }
        if silent.is_none() {
            silent = self.backend_unavailable_reason().await;
        }
        if let Some(why) = silent {
            tracing::warn!(engine.id = %engine_id, why, "An unwell engine is left as it is: the backend is silent too.");
            return;
        }
        if let Err(error) = self.fail_unhealthy_engine(engine_id, instance, &reason).await {
            let error: &dyn std::error::Error = &error;
            tracing::error!(engine.id = %engine_id, error, "An unwell engine could not be recorded as failed yet.");
        }
    }

    /// Asks an engine how it is and, where that is in doubt, to take the registry's key; fails with what is wrong.
    async fn probe_engine(&self, engine_id: EngineId, check_target: &CheckTarget) -> Result<(), String> {
        let said = |unwell: ProbeError| unwell.to_string();
        let examined =
            self.probe.check_health(check_target.port, check_target.key_hash).await.map_err(said)?;
        check_health(&examined.health, Readiness::BrainOnly)?;
        let doubted = match examined.proof {
            KeyProof::Valid => {
                self.supervision.mark_key_proven(engine_id, self.now_mono_millis());
                false
            }
            KeyProof::Invalid => true,
            KeyProof::Absent if check_target.key_proven => {
                return Err(said(ProbeError::Unproven { port: check_target.port }));
            }
            KeyProof::Absent => check_target.key_state != KeyState::Accepted,
        };
        if !doubted || fault_injection::active(Mutation::TrustKeys) {
            return Ok(());
        }
        // While it changes its key, or while the registry does not answer, nobody can say which one is right.
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
            Err(unwell) => Err(unwell.to_string()),
        }
    }

    /// Why the backend cannot be reached or the engines' data is not there, if so: then an engine's silence says
    /// nothing about it.
    async fn backend_unavailable_reason(&self) -> Option<String> {
        match self.backend.ping().await {
            Err(BackendError::Unreachable(why)) => Some(why),
            Err(BackendError::DataUnavailable(why)) => Some(why.to_string()),
            Ok(()) | Err(_) => None,
        }
    }

    /// Ends a running engine that is unwell for good, and records that it has failed, or that it had ended.
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
        // As a flight, so that nobody launches it anew while it is being ended. Somebody who changes it may be the
        // cause, as a stop is; if it is still unwell afterwards, the next check leads here again.
        let Ok(flight) = self.operations.begin_for_row(&row, Change::Stop) else { return Ok(()) };
        let (fleet, instance, reason) = (Arc::clone(self), instance.clone(), reason.to_owned());
        let giving_up = async move {
            let row = fleet.registry.engine_by_id(engine_id).await?.ok_or(OperationError::Stale)?;
            if row.status != EngineStatus::Running || row.instance.as_ref() != Some(&instance) {
                // The supervisor has missed a change.
                fleet.supervision.track(&row, false, fleet.now_mono_millis(), fleet.now());
            } else if fleet.backend.is_running(&instance).await? {
                fleet.registry.check_leadership().await?;
                fleet.backend.kill(row.target()).await?;
                fleet.record_failure(&row, &reason, "health").await?;
            } else {
                // What has ended is not unwell. Whoever is told of its end says so in this time, and knows more of it.
                fleet.clock.sleep(EXIT_CONFIRM_DELAY).await;
                if !fleet.backend.is_running(&instance).await? {
                    fleet.record_failure(&row, &unexpected_exit_message(None), "exit").await?;
                }
            }
            Err(OperationError::Stale)
        };
        self.operations.spawn(Arc::clone(&flight), giving_up);
        match flight.outcome().await {
            Err(OperationError::Failed(error)) => Err(error),
            Ok(_) | Err(OperationError::Stale | OperationError::Preempted) => Ok(()),
        }
    }

    /// Moves a running engine whose process has ended to `failed`, unless somebody changes it.
    pub(super) async fn record_failure(
        &self,
        row: &EngineRow,
        reason: &str,
        cause: &'static str,
    ) -> Result<(), RegistryError> {
        let mut entry = self.crash_entry(row, reason, cause);
        if let Value::Object(detail) = &mut entry.detail {
            // Before the next launch, which begins another log: best effort, as of a boot that failed.
            let log = self.backend.log_tail(row.engine_id, FAILURE_LOG_LINES).await.unwrap_or_default();
            detail.insert("log".to_owned(), log.into());
        }
        match self.settle(row, self.failed_state_after_running(row), Some(&entry)).await {
            Ok(_) => tracing::warn!(engine.id = %row.engine_id, reason, cause, "An engine has failed."),
            // Somebody else was faster: what they did holds.
            Err(RegistryError::ClaimLost { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The ledger's row of a move into `failed`.
    pub(super) fn crash_entry(&self, row: &EngineRow, reason: &str, cause: &'static str) -> AuditEntry {
        let detail = json!({
            "from": row.status, "to": EngineStatus::Failed, "reason": reason, "cause": cause,
        });
        self.audit_entry(row, Event::Crash, detail)
    }

    /// `failed`, for an engine that ran: what was attempted before it was well for long does not count.
    pub(super) fn failed_state_after_running(&self, row: &EngineRow) -> NextState {
        self.failed_state(
            self.supervision.restart_count(row.engine_id, self.now_mono_millis()).unwrap_or(row.restarts),
        )
    }

    /// `failed`, with the next restart after so many attempts, if there is to be one.
    pub(super) fn failed_state(&self, attempts: i64) -> NextState {
        self.failed_state_with_min_backoff(attempts, Duration::ZERO)
    }

    /// `failed` still, after an attempt that said nothing about the engine: it is restarted as soon as the host may
    /// be able to.
    pub(super) fn failed_state_after_host_failure(&self, attempts: i64) -> NextState {
        self.failed_state_with_min_backoff(attempts, HOST_FAILURE_MIN_BACKOFF)
    }

    fn failed_state_with_min_backoff(&self, attempts: i64, at_least: Duration) -> NextState {
        let rules = self.supervision.rules();
        let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
        let base = rules.backoff_base.max(at_least);
        let wait =
            (attempts < rules.max_restarts).then(|| backoff(attempts, base, rules.backoff_max.max(at_least)));
        let at = |wait| self.now().unix_ms().saturating_add(to_mono_millis(wait));
        NextState::Failed {
            restart_at: wait.map(|wait| api::Timestamp::from_unix_ms(at(wait))),
            restarts: i64::from(attempts),
        }
    }
}

/// How long the restart after `attempts` others waits: twice as long each time, at most `max`, give or take a
/// fifth so that those that failed together do not come back together.
fn backoff(attempts: u32, base: Duration, max: Duration) -> Duration {
    let doubled = base.saturating_mul(2_u32.saturating_pow(attempts.min(31)));
    // Without randomness they come back together, which is better than not at all.
    let random = getrandom::u32().ok().filter(|_| !fault_injection::active(Mutation::NoJitter));
    let random = random.unwrap_or(u32::MAX / 2);
    doubled.min(max).mul_f64(0.8 + 0.4 * f64::from(random) / f64::from(u32::MAX))
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
            let wait = backoff(attempts, base, max).as_secs_f64();
            prop_assert!(wait >= exact * 0.8 - 1e-6 && wait <= exact * 1.2 + 1e-6, "{wait} {exact}");
        }
    }
}
