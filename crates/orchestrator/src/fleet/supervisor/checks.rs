//! Health checks of running engines, and what follows when too many fail.

use std::sync::Arc;

use api::EngineId;
use api::orchestrator::EngineStatus;
use backend::{BackendError, Instance, InstanceExit, KeyProof, ProbeError};

use super::Supervisor;
use super::exits::EXIT_CONFIRM_DELAY;
use crate::domain::lifecycle::Change;
use crate::fleet::FleetError;
use crate::fleet::engine_client::{CheckedHealth, Readiness};
use crate::fleet::request::OperationError;
use crate::fleet::supervision::{CheckTarget, KeyState};
use crate::metrics::labels::CheckResult;
use crate::registry::EngineRow;

/// What tells whether an engine has something new to report.
#[derive(Default)]
struct Tags {
    /// The tag of the questions that wait for a person.
    waiting: Option<String>,
    /// The tag of what it has used.
    usage: Option<String>,
}

impl Supervisor {
    /// Checks the health of a running engine. After too many consecutive failed checks it has failed.
    pub(super) async fn check(self: &Arc<Self>, engine_id: EngineId) {
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
        let result = tokio::select! {
            result = self.probe_engine(engine_id, &check_target) => result,
            () = self.shared.clock.sleep(timeout) => {
                Err(format!("it did not answer within {} s", timeout.as_secs_f64()))
            }
        };
        // An engine that is being stopped or replaced need not answer. If the operation leaves it running, the next
        // check counts again.
        if result.is_err() && self.executor.operations.get(&check_target.engine_owner).is_some() {
            self.supervision.discard_check(engine_id, instance);
            return;
        }
        // `None` if it was stopped or replaced during the check.
        let Some(failed) = self.supervision.record_check(engine_id, instance, result.is_ok()) else { return };
        let measured = if result.is_ok() { CheckResult::Healthy } else { CheckResult::Unhealthy };
        self.shared.metrics.health_check(measured);
        let reason = match result {
            Ok(tags) => {
                if let Some(tag) = tags.waiting {
                    self.inbox.note_tag(engine_id, tag).await;
                }
                if let Some(tag) = tags.usage {
                    self.usage.note_tag(engine_id, tag).await;
                }
                return;
            }
            Err(reason) => reason,
        };
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

    /// Checks an engine's health and, if it is in doubt, whether it accepts the registry's key. Returns its tags, if it
    /// proves that it is the engine. Fails with a message.
    async fn probe_engine(&self, engine_id: EngineId, check_target: &CheckTarget) -> Result<Tags, String> {
        let CheckTarget { placement, key_hash, .. } = *check_target;
        let CheckedHealth { address, proof, waiting, usage } =
            self.client.check_health(engine_id, placement, key_hash, Readiness::BrainOnly).await?;
        let key_in_doubt = match proof {
            KeyProof::Valid => {
                self.supervision.mark_key_proven(engine_id);
                return Ok(Tags { waiting, usage });
            }
            KeyProof::Invalid => true,
            KeyProof::Absent if check_target.key_proven => {
                return Err(ProbeError::Unproven { address }.to_string());
            }
            KeyProof::Absent => check_target.key_state != KeyState::Accepted,
        };
        if !key_in_doubt {
            return Ok(Tags::default());
        }
        // While the key is being rotated, or while the registry does not answer, it is unknown which key is valid.
        let Ok(Some(row)) = self.shared.registry.engine_by_id(engine_id).await else {
            return Ok(Tags::default());
        };
        let Some(key) = self.shared.keys.key(&row).ok().filter(|_| row.claim.is_none()) else {
            return Ok(Tags::default());
        };
        match self.client.verify_identity(engine_id, placement, &key).await {
            Ok(()) => {
                self.supervision.mark_key_accepted(engine_id);
                Ok(Tags::default())
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
        match self.shared.backend.ping().await {
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
        let Some(row) = self.shared.registry.engine_by_id(engine_id).await? else {
            self.supervision.forget(engine_id);
            return Ok(());
        };
        // Registered as an operation, so that nobody launches the engine while it is being killed. An operation
        // under way, such as a stop, may be the cause; if the engine is unhealthy after it, the next check leads
        // here again.
        let Ok(operation) = self.executor.operations.begin_for_row(&row, Change::Stop) else { return Ok(()) };
        let (supervisor, reason, unhealthy) = (Arc::clone(self), reason.to_owned(), instance.clone());
        let fail_engine = async move {
            let shared = &supervisor.shared;
            let row = shared.registry.engine_by_id(engine_id).await?.ok_or(OperationError::Stale)?;
            if row.status != EngineStatus::Running || row.instance.as_ref() != Some(&unhealthy) {
                // The supervisor has missed a change.
                supervisor.supervision.track(&row, false, supervisor.supervision.now());
            } else if shared.backend.is_running(&unhealthy).await? {
                shared.registry.check_leadership().await?;
                shared.backend.kill(row.target()).await?;
                supervisor.transitions.record_failure(&row, &reason, "health").await?;
            }
            Err(OperationError::Stale)
        };
        self.executor.operations.spawn(Arc::clone(&operation), fail_engine);
        match operation.outcome().await {
            Err(OperationError::Failed(error)) => Err(error),
            Ok(_) | Err(OperationError::Stale | OperationError::Preempted) => {
                self.record_missed_exit(engine_id, instance).await
            }
        }
    }

    /// Records the exit of an engine, unless the backend reports it.
    async fn record_missed_exit(
        self: &Arc<Self>,
        engine_id: EngineId,
        instance: &Instance,
    ) -> Result<(), FleetError> {
        let is_of_instance = |row: &EngineRow| row.instance.as_ref() == Some(instance);
        let row = self.shared.registry.engine_by_id(engine_id).await?.filter(is_of_instance);
        if row.is_none_or(|row| row.status != EngineStatus::Running) {
            return Ok(());
        }
        // If the exit was reported, its handler records it within this time, with its reason.
        self.shared.clock.sleep(EXIT_CONFIRM_DELAY).await;
        let exit = InstanceExit { engine_id, instance: instance.clone(), reason: None };
        Ok(self.record_exit(&exit).await?)
    }
}
