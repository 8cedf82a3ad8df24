//! Key rotation: replaces the key of a running engine so that a crash at any point leaves no doubt about its key.
//!
//! The new key is stored as pending before it is sent to the engine. Whatever happens afterwards, the engine
//! itself can be asked which of the two keys it accepts.

use std::time::Duration;

use api::orchestrator::RotatedKey;
use backend::ProbeError;
use serde_json::json;

use super::{Changes, fulfilled};
use crate::domain::Actor;
use crate::domain::lifecycle::Change;
use crate::fleet::FleetError;
use crate::fleet::operation::Operation;
use crate::fleet::request::{OperationError, OperationRequest, OperationResult, Outcome};
use crate::fleet::supervision::{KeyState, to_mono_millis};
use crate::fleet::transitions::unexpected_exit_message;
use crate::registry::{Claim, EngineRow, Event, NextState, PendingKey, RunningEngine};

/// How long after an abandoned rotation its command may still reach the engine.
const LATE_COMMAND_WINDOW: Duration = Duration::from_mins(10);

/// The outcome of a rotation that was not confirmed.
pub(super) enum RotationOutcome {
    /// The new key is valid.
    New(Box<EngineRow>),
    /// The old key is valid.
    Old,
    /// The engine has failed, and is launched again with the old key.
    Failed,
}

/// Which of two keys an engine accepts.
enum AcceptedKey {
    Pending,
    Current,
    Neither,
    /// The engine does not answer.
    Unknown(String),
}

fn backend_error(message: &str) -> OperationError {
    OperationError::Failed(FleetError::Backend(message.to_owned()))
}

impl Changes {
    pub(super) async fn rotate_key(
        &self,
        operation: &Operation,
        request: &OperationRequest,
        seen: EngineRow,
    ) -> Outcome {
        let actor = request.actor;
        // Without its data directory, the engine may belong to another orchestrator.
        self.shared.backend.check_data().await?;
        let (key, pending) = self.shared.keys.generate(seen.engine_id)?;
        let call = request.claiming_call_with(&RotatedKey { new_api_key: key.clone() })?;
        let claim =
            Claim { pending: Some(pending.clone()), call, ..self.transitions.new_claim(Change::Rotate) };
        let row = self.shared.registry.claim(&seen, &claim).await??;
        let engine = self.shared.running(&row).ok_or(FleetError::EngineNotRunning)?;
        operation.mark_claimed(row.generation);
        let current = self.shared.keys.key(&row)?;
        match self.client.replace_key(engine, &current, &key).await {
            Ok(()) => self.commit_rotation(&row, pending, "requested", actor).await,
            Err(error) => {
                tracing::warn!(
                    engine_id = %row.engine_id,
                    %error,
                    "An engine did not confirm its new key; asking it which key it accepts."
                );
                match self.settle_rotation(engine, "requested", actor).await? {
                    RotationOutcome::New(row) => Ok(OperationResult::Engine(row)),
                    RotationOutcome::Old => {
                        Err(backend_error("the engine did not accept the new key; the old key stays valid"))
                    }
                    RotationOutcome::Failed => Err(backend_error(
                        "the engine accepts neither its key nor the new one; it is restarted",
                    )),
                }
            }
        }
    }

    /// Settles a rotation whose swap was not confirmed, by the key that the engine accepts. If it does not answer,
    /// the row keeps its claim and its pending key.
    pub(super) async fn settle_rotation(
        &self,
        engine: RunningEngine<'_>,
        reason: &'static str,
        actor: Actor,
    ) -> Result<RotationOutcome, OperationError> {
        let row = engine.row;
        let Some(pending) = self.shared.registry.pending_key(row.engine_id).await? else {
            return Err(OperationError::Stale);
        };
        match self.accepted_key(engine, &pending).await? {
            AcceptedKey::Pending => match self.commit_rotation(row, pending, reason, actor).await? {
                OperationResult::Engine(row) => Ok(RotationOutcome::New(row)),
                OperationResult::NotRunning
                | OperationResult::Destroyed(_)
                | OperationResult::Denied(_)
                | OperationResult::Moved(_)
                | OperationResult::Maintained(_) => Err(OperationError::Stale),
            },
            AcceptedKey::Current => {
                let until = self.supervision.mono_now().saturating_add(to_mono_millis(LATE_COMMAND_WINDOW));
                self.supervision.set_key_state(row.engine_id, KeyState::Unproven { until });
                self.settle(row, NextState::Unchanged, None).await?;
                Ok(RotationOutcome::Old)
            }
            AcceptedKey::Neither => {
                self.shared.backend.kill(row.target()).await?;
                let reason = "the engine accepts neither its key nor the new one";
                self.transitions.record_failure(row, reason, "health").await?;
                Ok(RotationOutcome::Failed)
            }
            AcceptedKey::Unknown(error) => {
                let listed = self.shared.backend.list().await?;
                if listed.iter().any(|listed| listed.running && listed.instance == *engine.instance) {
                    return Err(backend_error(&format!(
                        "the engine did not report which key it accepts ({error}); \
                         the rotation is settled when it answers"
                    )));
                }
                self.transitions.record_failure(row, &unexpected_exit_message(None), "exit").await?;
                Ok(RotationOutcome::Failed)
            }
        }
    }

    async fn commit_rotation(
        &self,
        row: &EngineRow,
        pending: PendingKey,
        reason: &'static str,
        actor: Actor,
    ) -> Outcome {
        let entry = self.transitions.audit_entry(row, Event::RotateKey, json!({"reason": reason})).by(actor);
        let entry = entry.of_call(Some(fulfilled(row)));
        let next = NextState::KeyRotated(pending);
        self.settle_engine(row, next, Some(&entry)).await
    }

    async fn accepted_key(
        &self,
        engine: RunningEngine<'_>,
        pending: &PendingKey,
    ) -> Result<AcceptedKey, FleetError> {
        let current = self.shared.keys.key(engine.row)?;
        let next = self.shared.keys.unseal(engine.row.engine_id, &pending.sealed)?;
        for (key, accepted) in [(&next, AcceptedKey::Pending), (&current, AcceptedKey::Current)] {
            match self.client.verify_identity_in_time(engine, key).await {
                Ok(()) => return Ok(accepted),
                Err(ProbeError::KeyRefused { .. }) => {}
                Err(error) => return Ok(AcceptedKey::Unknown(error.to_string())),
            }
        }
        Ok(AcceptedKey::Neither)
    }
}
