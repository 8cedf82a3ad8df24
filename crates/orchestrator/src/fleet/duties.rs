//! What the supervisor does: takes what is due, asks engines how they are, puts idle ones to sleep, restarts
//! failed ones, and keeps what it learns.

use std::sync::Arc;
use std::time::Duration;

use contract::EngineId;
use contract::orchestrator::EngineStatus;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::boot::{LOG_LINES, Wants, judge};
use super::boot_gate::Boot;
use super::exits::{STILL_ENDED, ended_by_itself};
use super::flight::Ended;
use super::lifecycle::{Change, Trigger};
use super::pursuit::Job;
use super::supervision::{Due, Duty, KeyState, Moment, Patient, moment};
use super::{Fleet, FleetError};
use crate::backend::{BackendError, Instance, Proof, Unwell};
use crate::registry::{EngineRow, Entry, Event, Next, RegistryError};
use crate::sabotage::{self, Saboteur};

/// How often what was learnt is kept: a kill of the orchestrator forgets no more.
const KEEPING: Duration = Duration::from_secs(1);

/// Checks under way at once. One takes its time-out at most.
const CHECKS_AT_ONCE: usize = 256;

/// Engines being put to sleep at once.
const SLEEPS_AT_ONCE: usize = 32;

/// The shortest wait for a restart that the host had no room for, or no data.
const HOST_PAUSE: Duration = Duration::from_secs(30);

/// The longest sleep of the loop that takes what is due.
const LONGEST_SLEEP: Moment = 60_000;

impl Fleet {
    /// Does what is due, when it is due, until `shutdown`, which may come before the fleet is ready.
    pub(crate) async fn supervise(self: Arc<Self>, shutdown: CancellationToken) {
        if sabotage::by(Saboteur::AwaitReadiness) {
            self.ready().await;
        }
        if shutdown.run_until_cancelled(self.ready()).await.is_none() {
            return;
        }
        let tasks = TaskTracker::new();
        let (checks, sleeps) = (Semaphore::new(CHECKS_AT_ONCE), Semaphore::new(SLEEPS_AT_ONCE));
        let (checks, sleeps) = (Arc::new(checks), Arc::new(sleeps));
        loop {
            for due in self.supervision.take_due(self.moment()) {
                self.telemetry.lagged(due.lag);
                let (fleet, shutdown) = (Arc::clone(&self), shutdown.clone());
                if sabotage::by(Saboteur::OneByOne) {
                    shutdown.run_until_cancelled(fleet.perform(due)).await;
                    continue;
                }
                // Boots have a gate of their own.
                let bound = match due.duty {
                    Duty::Check => Some(Arc::clone(&checks)),
                    Duty::Sleep => Some(Arc::clone(&sleeps)),
                    Duty::Restart { .. } => None,
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
            let next = self.supervision.next_due().unwrap_or(Moment::MAX);
            let pause = next.saturating_sub(self.moment()).clamp(0, LONGEST_SLEEP).unsigned_abs();
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = self.supervision.changed() => {}
                () = self.clock.sleep(Duration::from_millis(pause)) => {}
            }
        }
        tasks.close();
        tasks.wait().await;
    }

    /// Keeps what is learnt in the registry, until `shutdown`.
    pub(crate) async fn keep_stamps(self: Arc<Self>, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(self.clock.sleep(KEEPING)).await.is_some() {
            self.save_stamps().await;
        }
        self.save_stamps().await;
    }

    async fn save_stamps(&self) {
        let stamps = self.supervision.take_stamps();
        if stamps.is_empty() {
            return;
        }
        if let Err(error) = self.registry.stamp(&stamps).await {
            let error: &dyn std::error::Error = &error;
            tracing::error!(error, "What was learnt of the engines could not be kept yet.");
            self.supervision.give_back(&stamps);
        }
    }

    /// The monotonic clock, by which all is reckoned that must not depend on the wall clock.
    pub(super) fn measured(&self) -> Duration {
        if sabotage::by(Saboteur::ReckonByWall) {
            return Duration::from_millis(self.now().unix_ms().unsigned_abs());
        }
        self.clock.monotonic()
    }

    /// The same, as the supervisor reckons.
    pub(super) fn moment(&self) -> Moment {
        moment(self.measured())
    }

    async fn perform(self: Arc<Self>, due: Due) {
        let Due { engine_id, seat, duty, generation, .. } = due;
        match duty {
            Duty::Check => self.check(engine_id).await,
            Duty::Sleep => {
                let job = Job::new(seat, Trigger::Sleep { if_idle: true }, "idle");
                match self.pursue(&job).await {
                    // It was stopped, deleted or changed by somebody else.
                    Ok(_) | Err(FleetError::EngineNotRunning | FleetError::EngineNotFound) => {}
                    Err(error) => {
                        tracing::warn!(engine.id = %engine_id, %error, "An idle engine could not be put to sleep yet.");
                    }
                }
                self.supervision.asked_to_sleep(engine_id, self.moment());
            }
            Duty::Restart { urgent } => {
                let boot = Boot::Restart { engine_id, urgent };
                let _permit = self.boot_gate.permit(seat.product_id, boot).await;
                let mut job = Job::new(seat, Trigger::Restart, "crash");
                job.generation = Some(generation);
                if let Err(error) = self.pursue(&job).await {
                    tracing::info!(engine.id = %engine_id, %error, "A failed engine was not restarted.");
                    self.supervision.postpone(engine_id, self.moment());
                    self.look_again(engine_id).await;
                }
                self.supervision.tell(engine_id);
            }
        }
    }

    /// Takes note of how an engine stands by its row: what was known of it may have come too late.
    async fn look_again(&self, engine_id: EngineId) {
        match self.registry.engine_by_id(engine_id).await {
            Ok(None) => self.supervision.forget(engine_id),
            Ok(Some(row)) if row.status != EngineStatus::Failed => {
                self.supervision.follow(&row, false, self.moment(), self.now());
            }
            // The next attempt looks again.
            Ok(Some(_)) | Err(_) => {}
        }
    }

    /// Asks a running engine how it is. After too many bad answers in a row it has failed.
    async fn check(self: &Arc<Self>, engine_id: EngineId) {
        let Some(patient) = self.supervision.patient(engine_id) else { return };
        let Patient { instance, failed, .. } = &patient;
        let (timeout, tolerated) =
            (self.supervision.rules().check_timeout, self.supervision.rules().max_failures);
        // Before the check that decides and after it: what carries the question to the engine may be the backend's
        // own, as a daemon's port forwarding is, and is gone with it and back with it.
        let mut silent = None;
        if failed.saturating_add(1) >= tolerated {
            silent = self.backend_is_silent().await;
        }
        let unwell = tokio::select! {
            examined = self.examine(engine_id, &patient) => examined.err(),
            () = self.clock.sleep(timeout) => Some(format!("it said nothing within {} s", timeout.as_secs_f64())),
        };
        let now = (self.moment(), self.now());
        let failed = self.supervision.checked(engine_id, instance, unwell.is_none(), now);
        let Some(reason) = unwell else { return };
        tracing::info!(engine.id = %engine_id, reason, failed, "An engine failed a health check.");
        if failed < tolerated {
            return;
        }
        if silent.is_none() {
            silent = self.backend_is_silent().await;
        }
        if let Some(why) = silent {
            tracing::warn!(engine.id = %engine_id, why, "An unwell engine is left as it is: the backend is silent too.");
            return;
        }
        if let Err(error) = self.give_up(engine_id, instance, &reason).await {
            let error: &dyn std::error::Error = &error;
            tracing::error!(engine.id = %engine_id, error, "An unwell engine could not be recorded as failed yet.");
        }
    }

    /// Asks an engine how it is and, where that is in doubt, to take the registry's key; fails with what is wrong.
    async fn examine(&self, engine_id: EngineId, patient: &Patient) -> Result<(), String> {
        let said = |unwell: Unwell| unwell.to_string();
        let examined = self.probe.examine(patient.port, patient.key_hash).await.map_err(said)?;
        judge(&examined.health, Wants::Brain)?;
        let doubted = match examined.proof {
            Proof::Given => {
                self.supervision.key_proven(engine_id, self.moment());
                false
            }
            Proof::Wrong => true,
            Proof::Absent if patient.proven => return Err(said(Unwell::Unproven { port: patient.port })),
            Proof::Absent => patient.key != KeyState::Accepted,
        };
        if !doubted || sabotage::by(Saboteur::TrustKeys) {
            return Ok(());
        }
        // While it changes its key, or while the registry does not answer, nobody can say which one is right.
        let Ok(Some(row)) = self.registry.engine_by_id(engine_id).await else { return Ok(()) };
        let Some(key) = self.engine_key(&row).ok().filter(|_| row.claim.is_none()) else { return Ok(()) };
        match self.recognise(patient.port, &key).await {
            Ok(()) => {
                self.supervision.key_accepted(engine_id, self.moment());
                Ok(())
            }
            Err(Unwell::Refused { .. }) => {
                self.supervision.set_key_state(engine_id, KeyState::Refused);
                Err("it refuses the key that the registry has for it".to_owned())
            }
            Err(unwell) => Err(unwell.to_string()),
        }
    }

    /// Why the backend cannot be reached or the engines' data is not there, if so: then an engine's silence says
    /// nothing about it.
    async fn backend_is_silent(&self) -> Option<String> {
        match self.backend.ping().await {
            Err(BackendError::Unreachable(why)) => Some(why),
            Err(BackendError::NoData(why)) => Some(why.to_string()),
            Ok(()) | Err(_) => None,
        }
    }

    /// Ends a running engine that is unwell for good, and records that it has failed, or that it had ended.
    async fn give_up(
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
        let Ok(flight) = self.flights.begin_on(&row, Change::Stop) else { return Ok(()) };
        let (fleet, instance, reason) = (Arc::clone(self), instance.clone(), reason.to_owned());
        let giving_up = async move {
            let row = fleet.registry.engine_by_id(engine_id).await?.ok_or(Ended::Stale)?;
            if row.status != EngineStatus::Running || row.instance.as_ref() != Some(&instance) {
                // The supervisor has missed a change.
                fleet.supervision.follow(&row, false, fleet.moment(), fleet.now());
            } else if fleet.backend.runs(&instance).await? {
                fleet.registry.check_ours().await?;
                fleet.backend.kill(row.target()).await?;
                fleet.fail(&row, &reason, "health").await?;
            } else {
                // What has ended is not unwell. Whoever is told of its end says so in this time, and knows more of it.
                fleet.clock.sleep(STILL_ENDED).await;
                if !fleet.backend.runs(&instance).await? {
                    fleet.fail(&row, &ended_by_itself(None), "exit").await?;
                }
            }
            Err(Ended::Stale)
        };
        self.flights.fly(Arc::clone(&flight), giving_up);
        match flight.over().await {
            Err(Ended::Failed(error)) => Err(error),
            Ok(_) | Err(Ended::Stale | Ended::Overtaken) => Ok(()),
        }
    }

    /// Moves a running engine whose process has ended to `failed`, unless somebody changes it.
    pub(super) async fn fail(
        &self,
        row: &EngineRow,
        reason: &str,
        cause: &'static str,
    ) -> Result<(), RegistryError> {
        let mut entry = self.crash(row, reason, cause);
        if let Value::Object(detail) = &mut entry.detail {
            // Before the next launch, which begins another log: best effort, as of a boot that failed.
            let log = self.backend.log_tail(row.engine_id, LOG_LINES).await.unwrap_or_default();
            detail.insert("log".to_owned(), log.into());
        }
        match self.settle(row, self.failed_after_running(row), Some(&entry)).await {
            Ok(_) => tracing::warn!(engine.id = %row.engine_id, reason, cause, "An engine has failed."),
            // Somebody else was faster: what they did holds.
            Err(RegistryError::ClaimLost { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The ledger's row of a move into `failed`.
    pub(super) fn crash(&self, row: &EngineRow, reason: &str, cause: &'static str) -> Entry {
        let detail = json!({
            "from": row.status, "to": EngineStatus::Failed, "reason": reason, "cause": cause,
        });
        self.entry(row, Event::Crash, detail)
    }

    /// `failed`, for an engine that ran: what was attempted before it was well for long does not count.
    pub(super) fn failed_after_running(&self, row: &EngineRow) -> Next {
        self.failed(self.supervision.restarts(row.engine_id, self.moment()).unwrap_or(row.restarts))
    }

    /// `failed`, with the next restart after so many attempts, if there is to be one.
    pub(super) fn failed(&self, attempts: i64) -> Next {
        self.failed_with(attempts, Duration::ZERO)
    }

    /// `failed` still, after an attempt that said nothing about the engine: it is restarted as soon as the host may
    /// be able to.
    pub(super) fn failed_for_now(&self, attempts: i64) -> Next {
        self.failed_with(attempts, HOST_PAUSE)
    }

    fn failed_with(&self, attempts: i64, at_least: Duration) -> Next {
        let rules = self.supervision.rules();
        let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
        let base = rules.backoff_base.max(at_least);
        let wait =
            (attempts < rules.max_restarts).then(|| backoff(attempts, base, rules.backoff_max.max(at_least)));
        let at = |wait| self.now().unix_ms().saturating_add(moment(wait));
        Next::Failed {
            restart_at: wait.map(|wait| contract::Timestamp::from_unix_ms(at(wait))),
            restarts: i64::from(attempts),
        }
    }
}

/// How long the restart after `attempts` others waits: twice as long each time, at most `max`, give or take a
/// fifth so that those that failed together do not come back together.
fn backoff(attempts: u32, base: Duration, max: Duration) -> Duration {
    let doubled = base.saturating_mul(2_u32.saturating_pow(attempts.min(31)));
    // Without randomness they come back together, which is better than not at all.
    let random = getrandom::u32().ok().filter(|_| !sabotage::by(Saboteur::NoJitter));
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
