//! Provision: creates the engine of an engine owner. Row, quota and port are taken in one transaction, then the
//! engine is booted; a failure leaves nothing behind.

use std::sync::Arc;

use api::orchestrator::EngineStatus;
use api::{EngineId, EngineKey};
use serde_json::json;

use super::boot::{BootFailure, Readiness};
use super::execute::OperationRequest;
use super::lifecycle::{Change, Trigger};
use super::operation::{Operation, OperationError, OperationResult, Outcome};
use super::policies::image_denied_error;
use super::{Fleet, FleetError};
use crate::keys::{MasterKey, Purpose};
use crate::registry::{AuditEntry, ClaimRefused, EngineRow, Event, NewEngine, NextState};

impl Fleet {
    pub(super) async fn provision_engine(
        self: &Arc<Self>,
        operation: &Arc<Operation>,
        request: &OperationRequest,
    ) -> Outcome {
        let engine = self.new_engine(request)?;
        self.backend.check_image(&engine.engine_version).await?;
        self.backend.check_data().await?;
        let claim = self.new_claim(Change::Provision);
        let mut row = match self.registry.claim_new_engine(&engine, &claim, &self.ports).await? {
            Ok(row) => row,
            Err(ClaimRefused::ImageNotAllowed) => {
                return Err(image_denied_error(&engine.engine_version).into());
            }
            Err(refused) => return Err(refused.into()),
        };
        operation.mark_claimed(row.generation);
        let booted = match self.boot(&mut row, Readiness::AllSubsystems).await {
            Ok(booted) => booted,
            Err(failure) => return Err(self.roll_back(&row, &failure).await),
        };
        let reason = if request.trigger == Trigger::Provision { request.reason } else { "auto_provision" };
        let entry = AuditEntry {
            duration_ms: Some(booted.took_ms),
            ..self.audit_entry(
                &row,
                Event::Provision,
                json!({"from": null, "to": EngineStatus::Running, "reason": reason}),
            )
        };
        let next = NextState::Running {
            instance: booted.instance,
            image: row.engine_version.clone(),
            health_at: booted.health_at,
            on_demand: true,
        };
        match self.settle(&row, next, Some(&entry)).await.map_err(OperationError::from_settle_error)? {
            Some(row) => Ok(OperationResult::Engine(Box::new(row))),
            None => Err(OperationError::Stale),
        }
    }

    fn new_engine(&self, request: &OperationRequest) -> Result<NewEngine, FleetError> {
        let engine_id = EngineId::new();
        let owner = engine_id.to_string();
        let key = EngineKey::generate().map_err(FleetError::internal)?;
        let secrets_key = MasterKey::generate()?.expose();
        Ok(NewEngine {
            engine_id,
            owner: request.engine_owner.clone(),
            key_hash: key.hash(),
            sealed_key: self.vault.seal(&owner, Purpose::EngineKey, key.expose())?,
            sealed_secrets_key: self.vault.seal(&owner, Purpose::EngineSecrets, &secrets_key)?,
            pinned: request.image.is_some(),
            engine_version: request.image.clone().unwrap_or_else(|| self.settings.engine_image.clone()),
            created_at: self.now(),
        })
    }

    /// Removes all traces of a failed provision except its row in the audit log.
    async fn roll_back(&self, row: &EngineRow, failure: &BootFailure) -> OperationError {
        tracing::warn!(
            engine_id = %row.engine_id,
            reason = failure.message(),
            "A provision failed; rolling it back."
        );
        if let Err(error) = self.backend.remove_with_data(row.target()).await {
            // The row keeps its claim, and with it quota and port, until this is repaired.
            tracing::warn!(
                engine_id = %row.engine_id,
                %error,
                "A failed provision could not be removed; the next reconciliation retries."
            );
            return failure.to_fleet_error().into();
        }
        let entry = self.audit_entry(
            row,
            Event::ProvisionFailed,
            json!({
                "from": null, "to": null, "reason": failure.cause.audit_cause(),
                "message": failure.message(), "log": failure.log,
            }),
        );
        match self.settle(row, NextState::Removed, Some(&entry)).await {
            Ok(_) => failure.to_fleet_error().into(),
            Err(error) => OperationError::from_settle_error(error),
        }
    }
}
