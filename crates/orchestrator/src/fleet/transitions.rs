//! The two ends of every change of an engine, its claim and its settlement, and the audit rows that record it.

use std::sync::Arc;
use std::time::Duration;

use api::Timestamp;
use api::orchestrator::EngineStatus;
use http_service::backoff;
use serde_json::{Value, json};

use super::policies::Policies;
use super::settle_retry::settle_with_retry;
use super::shared::Shared;
use super::supervision::{Supervision, to_mono_millis};
use crate::domain::lifecycle::Change;
use crate::metrics::labels::FailureCause;
use crate::registry::{AuditEntry, Claim, EngineRow, Event, NextState, RegistryError};

/// How many of the log's last lines the audit log keeps of a failed boot or an exited engine.
pub(super) const FAILURE_LOG_LINES: usize = 20;

/// The shortest wait before a restart that failed because the host had no capacity or the data was missing.
const HOST_FAILURE_MIN_BACKOFF: Duration = Duration::from_secs(30);

pub(super) struct Transitions {
    shared: Arc<Shared>,
    supervision: Arc<Supervision>,
    /// The name of this process in claims.
    claim_owner: String,
    policies: Arc<Policies>,
    /// The longest time that any caller waits for an operation.
    operation_timeout: Duration,
}

impl Transitions {
    pub(super) const fn new(
        shared: Arc<Shared>,
        supervision: Arc<Supervision>,
        claim_owner: String,
        policies: Arc<Policies>,
        operation_timeout: Duration,
    ) -> Self {
        Self { shared, supervision, claim_owner, policies, operation_timeout }
    }

    /// A claim of this process that starts now.
    pub(super) fn new_claim(&self, change: Change) -> Claim {
        let timeout_ms = i64::try_from(self.operation_timeout.as_millis()).unwrap_or(i64::MAX);
        let deadline = Timestamp::from_unix_ms(self.shared.clock.now().unix_ms().saturating_add(timeout_ms));
        let default_image = self.policies.default_image();
        let owner = self.claim_owner.clone();
        let for_maintenance = false;
        Claim {
            change,
            pending: None,
            image: None,
            default_image,
            for_maintenance,
            owner,
            deadline,
            call: None,
        }
    }

    /// Settles a change in the registry and notifies the supervisor.
    pub(super) async fn settle(
        &self,
        row: &EngineRow,
        next: NextState,
        entry: Option<&AuditEntry>,
    ) -> Result<Option<EngineRow>, RegistryError> {
        // Read before the commit, so that a change of the wall clock does not move what is due.
        let now = self.supervision.now();
        let on_demand = matches!(next, NextState::Running { on_demand: true, .. });
        let changes_state = !matches!(next, NextState::Unchanged | NextState::KeyRotated(_));
        let rotates_key = matches!(next, NextState::KeyRotated(_));
        let settled = settle_with_retry(&self.shared, self.operation_timeout, row, next, entry).await?;
        if let (Some(settled), true) = (&settled, rotates_key) {
            self.supervision.set_key_hash(settled.engine_id, settled.key_hash);
        }
        match &settled {
            None => self.supervision.forget(row.engine_id),
            Some(settled) if changes_state => self.supervision.track(settled, on_demand, now),
            Some(_) => {}
        }
        Ok(settled)
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
            let log = self.shared.backend.log_tail(row.engine_id, FAILURE_LOG_LINES).await;
            detail.insert("log".to_owned(), log.unwrap_or_default().into());
        }
        match self.settle(row, self.failed_state_after_running(row), Some(&entry)).await {
            Ok(_) => {
                let measured = if cause == "exit" { FailureCause::Exit } else { FailureCause::Health };
                self.shared.metrics.engine_failed(measured);
                tracing::warn!(engine_id = %row.engine_id, reason, cause, "An engine has failed.");
            }
            // Another operation was faster; its change stands.
            Err(RegistryError::ClaimLost { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// An audit log row about an engine, with the current time.
    pub(super) fn audit_entry(&self, row: &EngineRow, event: Event, detail: Value) -> AuditEntry {
        let engine = Some((row.engine_id, row.owner.user_id.clone()));
        AuditEntry { at: self.shared.clock.now(), event, engine, duration_ms: None, detail, call: None }
    }

    /// The audit log's row of a transition to `failed`.
    pub(super) fn crash_entry(&self, row: &EngineRow, reason: &str, cause: &'static str) -> AuditEntry {
        let detail = json!({
            "from": row.status, "to": EngineStatus::Failed, "reason": reason, "cause": cause,
        });
        self.audit_entry(row, Event::Crash, detail)
    }

    /// The audit log's row of a restart that ended in the state `to`.
    pub(super) fn restart_entry(
        &self,
        row: &EngineRow,
        to: EngineStatus,
        reason: &str,
        duration_ms: Option<i64>,
    ) -> AuditEntry {
        let outcome = if to == EngineStatus::Running { "running" } else { "failed" };
        let detail = json!({
            "from": EngineStatus::Failed, "to": to, "reason": reason,
            "attempt": row.restarts, "outcome": outcome,
        });
        AuditEntry { duration_ms, ..self.audit_entry(row, Event::Restart, detail) }
    }

    /// `failed` for an engine that ran: restarts before a long healthy period do not count.
    pub(super) fn failed_state_after_running(&self, row: &EngineRow) -> NextState {
        self.failed_state(self.supervision.restart_count(row.engine_id).unwrap_or(row.restarts))
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
        let at = |wait| self.shared.clock.now().unix_ms().saturating_add(to_mono_millis(wait));
        NextState::Failed {
            restart_at: wait.map(|wait| Timestamp::from_unix_ms(at(wait))),
            restarts: i64::from(attempts),
        }
    }
}

/// The failure message of an engine that was found to have exited.
pub(super) fn unexpected_exit_message(reason: Option<&str>) -> String {
    match reason {
        Some(reason) => format!("the engine exited unexpectedly ({reason})"),
        None => "the engine exited unexpectedly".to_owned(),
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
