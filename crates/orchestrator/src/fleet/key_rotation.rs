//! Key rotation: replaces the key of a running engine so that a crash at any point leaves no doubt about its key.
//!
//! The new key is stored as pending before it is sent to the engine. Whatever happens afterwards, the engine
//! itself can be asked which of the two keys it accepts.

use std::sync::Arc;
use std::time::Duration;

use api::{EngineId, EngineKey};
use serde_json::json;

use super::exits::unexpected_exit_message;
use super::lifecycle::Change;
use super::operation::{Operation, OperationError, OperationResult, Outcome};
use super::supervision::{KeyState, to_mono_millis};
use super::{Fleet, FleetError};
use crate::backend::{EngineListing, ProbeError};
use crate::keys::Purpose;
use crate::registry::{Claim, EngineRow, Event, NextState, PendingKey};

/// The timeout of a command about the engine's key.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

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

impl Fleet {
    pub(super) async fn rotate_key(self: &Arc<Self>, operation: &Arc<Operation>, seen: EngineRow) -> Outcome {
        // Without its data directory, the engine may belong to another orchestrator.
        self.backend.check_data().await?;
        let key = EngineKey::generate().map_err(FleetError::internal)?;
        let owner = seen.engine_id.to_string();
        let pending = PendingKey {
            sealed: self.vault.seal(&owner, Purpose::EngineKey, key.expose())?,
            hash: key.hash(),
        };
        let claim = Claim { pending: Some(pending.clone()), ..self.new_claim(Change::Rotate) };
        let Ok(row) = self.registry.claim(&seen, &claim, None).await? else {
            return Err(OperationError::Stale);
        };
        operation.mark_claimed(row.generation);
        let current = self.engine_key(&row)?;
        let swap = json!({"subsystem": "control", "op": "set_key_hash", "key_hash": key.hash().to_hex()});
        match self.send_command(&row, &current, &swap).await {
            Ok(_) => self.commit_rotation(&row, pending, "requested").await,
            Err(error) => {
                tracing::warn!(
                    engine_id = %row.engine_id,
                    %error,
                    "An engine did not confirm its new key; asking it which key it accepts."
                );
                match self.settle_rotation(&row, "requested").await? {
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
        row: &EngineRow,
        reason: &'static str,
    ) -> Result<RotationOutcome, OperationError> {
        let Some(pending) = self.registry.pending_key(row.engine_id).await? else {
            return Err(OperationError::Stale);
        };
        match self.accepted_key(row, &pending).await? {
            AcceptedKey::Pending => match self.commit_rotation(row, pending, reason).await? {
                OperationResult::Engine(row) => Ok(RotationOutcome::New(row)),
                OperationResult::NotRunning
                | OperationResult::Destroyed(_)
                | OperationResult::Denied(_)
                | OperationResult::Moved(_) => Err(OperationError::Stale),
            },
            AcceptedKey::Current => {
                let until = self.now_mono_millis().saturating_add(to_mono_millis(LATE_COMMAND_WINDOW));
                self.supervision.set_key_state(row.engine_id, KeyState::Unproven { until });
                self.settle(row, NextState::Unchanged, None)
                    .await
                    .map_err(OperationError::from_settle_error)?;
                Ok(RotationOutcome::Old)
            }
            AcceptedKey::Neither => {
                self.backend.kill(row.target()).await?;
                self.record_failure(row, "the engine accepts neither its key nor the new one", "health")
                    .await?;
                Ok(RotationOutcome::Failed)
            }
            AcceptedKey::Unknown(error) => {
                let listed = self.backend.list().await?;
                let runs = |listed: &EngineListing| {
                    listed.running && Some(&listed.instance) == row.instance.as_ref()
                };
                if listed.iter().any(runs) {
                    return Err(backend_error(&format!(
                        "the engine did not report which key it accepts ({error}); \
                         the rotation is settled when it answers"
                    )));
                }
                self.record_failure(row, &unexpected_exit_message(None), "exit").await?;
                Ok(RotationOutcome::Failed)
            }
        }
    }

    async fn commit_rotation(&self, row: &EngineRow, pending: PendingKey, reason: &'static str) -> Outcome {
        let entry = self.audit_entry(row, Event::RotateKey, json!({"reason": reason}));
        let next = NextState::KeyRotated(pending);
        match self.settle(row, next, Some(&entry)).await.map_err(OperationError::from_settle_error)? {
            Some(row) => Ok(OperationResult::Engine(Box::new(row))),
            None => Err(OperationError::Stale),
        }
    }

    async fn accepted_key(&self, row: &EngineRow, pending: &PendingKey) -> Result<AcceptedKey, FleetError> {
        let current = self.engine_key(row)?;
        let next = EngineRow { sealed_key: pending.sealed.clone(), ..row.clone() };
        let next = self.engine_key(&next)?;
        for (key, accepted) in [(&next, AcceptedKey::Pending), (&current, AcceptedKey::Current)] {
            let port = row.port.unwrap_or_default();
            match self.with_command_timeout(self.verify_identity(port, key)).await {
                Ok(()) => return Ok(accepted),
                Err(ProbeError::KeyRefused { .. }) => {}
                Err(error) => return Ok(AcceptedKey::Unknown(error.to_string())),
            }
        }
        Ok(AcceptedKey::Neither)
    }

    /// Sends `command` to a running engine's `/rpc`.
    pub(super) async fn send_command(
        &self,
        row: &EngineRow,
        key: &EngineKey,
        command: &serde_json::Value,
    ) -> Result<serde_json::Value, ProbeError> {
        let response =
            self.with_command_timeout(self.probe.rpc(row.port.unwrap_or_default(), key, command)).await;
        if matches!(response, Err(ProbeError::KeyRefused { .. })) {
            self.mark_key_refused(row.engine_id);
        }
        response
    }

    /// Records that an engine refused a call with the registry's key: health checks ask it for the key from now
    /// on.
    pub(crate) fn mark_key_refused(&self, engine_id: EngineId) {
        self.supervision.set_key_state(engine_id, KeyState::Refused);
    }

    async fn with_command_timeout<T>(
        &self,
        call: impl Future<Output = Result<T, ProbeError>>,
    ) -> Result<T, ProbeError> {
        tokio::select! {
            response = call => response,
            () = self.clock.sleep(COMMAND_TIMEOUT) => {
                Err(ProbeError::TimedOut { seconds: COMMAND_TIMEOUT.as_secs() })
            }
        }
    }
}
