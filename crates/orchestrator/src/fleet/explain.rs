//! Explains why an engine is in its state and what happens to it next.

use std::sync::Arc;
use std::time::Duration;

use api::orchestrator::{Action, Caps, EngineStatus, Explanation, NextAction, RestartAttempt};
use api::{Timestamp, UserId};
use backend::BackendError;
use serde_json::Value;

use super::FleetError;
use super::engine_client::EngineClient;
use super::policies::Policies;
use super::shared::Shared;
use super::supervision::{KeyState, MonoMillis, RestartState, Supervision};
use crate::registry::{EngineRow, Product};

/// Times that differ by less are shown as the same.
const SAME_TIME_TOLERANCE_MS: u64 = 100;

/// The timeout for an engine's activity report; short, because the caller waits for the explanation.
const ACTIVITY_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Explainer {
    shared: Arc<Shared>,
    supervision: Arc<Supervision>,
    policies: Arc<Policies>,
    client: Arc<EngineClient>,
}

impl Explainer {
    pub(super) fn new(
        shared: &Arc<Shared>,
        supervision: &Arc<Supervision>,
        policies: &Arc<Policies>,
        client: &Arc<EngineClient>,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            supervision: Arc::clone(supervision),
            policies: Arc::clone(policies),
            client: Arc::clone(client),
        }
    }

    /// Explains one engine.
    pub(crate) async fn explain(
        &self,
        product: &Product,
        user_id: UserId,
    ) -> Result<Explanation, FleetError> {
        let row = self.shared.registry.engine(&product.engine_owner(user_id)).await?;
        let row = row.ok_or(FleetError::EngineNotFound)?;
        let max = self.supervision.rules().max_restarts;
        Ok(Explanation {
            engine_id: row.engine_id,
            status: row.status,
            last_transition: self.shared.registry.last_transition(&row).await?,
            next_action: self.next_action(&row),
            awake_because: match self.missing_data_reason(&row).await {
                Some(reason) => Some(vec![reason]),
                None => self.awake_reasons(&row).await,
            },
            restart_attempt: u32::try_from(row.restarts)
                .ok()
                .filter(|n| *n > 0 || row.status == EngineStatus::Failed)
                .map(|n| RestartAttempt { n, max }),
            caps: self.effective_limits(&row).await,
        })
    }

    /// The resource limits that the instance runs under; if it has none or does not run, those of the product's
    /// policy; `None` if the policy sets none.
    async fn effective_limits(&self, row: &EngineRow) -> Option<Caps> {
        let runs = row.status == EngineStatus::Running;
        let applied =
            if runs { self.shared.backend.resource_limits(row.engine_id).await.ok().flatten() } else { None };
        let backend::ResourceLimits { memory_mb, cpus, pids } = applied.unwrap_or_else(|| {
            backend::ResourceLimits::from_policy(&self.policies.get(row.owner.product_id))
        });
        let caps = Caps { memory_mb, cpus, pids, applied: applied.is_some() };
        (memory_mb.is_some() || cpus.is_some() || pids.is_some()).then_some(caps)
    }

    /// Why the engine cannot be launched, as a sentence, if its data is missing.
    async fn missing_data_reason(&self, row: &EngineRow) -> Option<String> {
        // During its first boot and while it is removed, its folder may legitimately be missing.
        row.settled_status()?;
        match self.shared.backend.check_engine_data(row.engine_id).await {
            Err(BackendError::DataUnavailable(reason)) => Some(format!("It cannot be launched: {reason}")),
            Ok(()) | Err(_) => None,
        }
    }

    fn next_action(&self, row: &EngineRow) -> NextAction {
        let idle_deadline =
            self.supervision.idleness(row.engine_id).and_then(|(_, idle_deadline)| idle_deadline);
        match (row.status, idle_deadline, self.supervision.restart_state(row.engine_id)) {
            (EngineStatus::Running, Some(at), _) => {
                NextAction { action: Action::Sleep, at: Some(self.wall_time(at)) }
            }
            (EngineStatus::Failed, _, Some(restart)) => {
                let at = if let RestartState::Due(at) = restart { at } else { self.supervision.mono_now() };
                let at = self.wall_time(at);
                // The stored time, unless the restart was postponed or the wall clock was set: two clocks read one
                // after the other never agree to the millisecond.
                let is_same_time =
                    |stored: &Timestamp| stored.unix_ms().abs_diff(at.unix_ms()) < SAME_TIME_TOLERANCE_MS;
                NextAction {
                    action: Action::Restart,
                    at: Some(row.restart_at.filter(is_same_time).unwrap_or(at)),
                }
            }
            // The supervisor is about to be notified of it.
            (EngineStatus::Failed, _, None) if row.restart_at.is_some() => {
                NextAction { action: Action::Restart, at: row.restart_at }
            }
            _ => NextAction { action: Action::None, at: None },
        }
    }

    /// The wall-clock time of `at`; now, if it has passed. A policy may let engines be idle for longer than the format
    /// of the API can express.
    fn wall_time(&self, at: MonoMillis) -> Timestamp {
        let wait = at.saturating_sub(self.supervision.mono_now()).max(0);
        Timestamp::from_unix_ms(self.shared.clock.now().unix_ms().saturating_add(wait)).min(Timestamp::MAX)
    }

    /// Why a running engine does not sleep, as sentences; `None` if it does not run.
    async fn awake_reasons(&self, row: &EngineRow) -> Option<Vec<String>> {
        let engine = self.shared.running(row)?;
        let mut reasons = Vec::new();
        match self.supervision.idleness(row.engine_id) {
            Some((admitted_at, Some(idle_deadline))) => reasons.push(format!(
                "Its user was last admitted, or it was last launched, at {admitted_at}; without another admit it \
                 may be put to sleep from {} on.",
                self.wall_time(idle_deadline)
            )),
            Some((_, None)) => {
                reasons.push("Its idle threshold is 0: it is never put to sleep.".to_owned());
            }
            None => reasons.push("It has just been launched.".to_owned()),
        }
        if self.supervision.key_state(row.engine_id) == Some(KeyState::Refused) {
            reasons.push(
                "It refuses the key that the registry has for it; unless it accepts that key again, its health checks \
                 fail and it is restarted with that key."
                    .to_owned(),
            );
        }
        let report = match self.shared.keys.key(row) {
            Ok(key) => tokio::select! {
                report = self.client.activity(engine, &key) => report.ok(),
                () = self.shared.clock.sleep(ACTIVITY_TIMEOUT) => None,
            },
            Err(_) => None,
        };
        let Some(report) = report else {
            reasons.push(
                "It did not report its activity; an engine that does not answer is not put to sleep."
                    .to_owned(),
            );
            return Some(reasons);
        };
        let count = |name: &str| report.get(name).and_then(Value::as_u64).unwrap_or_default();
        match count("running_turns") {
            0 => {}
            1 => reasons.push("A turn is running; until it ends, the engine is not put to sleep.".to_owned()),
            turns => reasons
                .push(format!("{turns} turns are running; until they end, the engine is not put to sleep.")),
        }
        match count("pending_hitl") {
            0 => {}
            pending => reasons.push(format!(
                "{pending} request(s) wait for the user; they do not keep it awake and are kept while it sleeps."
            )),
        }
        Some(reasons)
    }
}
