//! Provision: creates the engine of an engine owner. Row, quota and port are taken in one transaction, then the
//! engine is booted, unless the row is that of a warm engine which still runs; a failure leaves nothing behind.

use api::orchestrator::{EngineStatus, ProvisionedEngine};
use api::{EngineId, EngineImage};
use serde_json::json;

use super::Changes;
use super::boot::BootFailure;
use crate::domain::lifecycle::Change;
use crate::domain::{Actor, EngineOwner};
use crate::fleet::FleetError;
use crate::fleet::engine_client::Readiness;
use crate::fleet::operation::Operation;
use crate::fleet::request::{OperationError, OperationRequest, Outcome, RequestKind};
use crate::registry::{AuditEntry, Claim, ClaimRefused, EngineRow, Event, NewEngine, NextState};

impl Changes {
    pub(super) async fn provision(&self, operation: &Operation, request: &OperationRequest) -> Outcome {
        let (image, reason) = match &request.kind {
            RequestKind::Provision(image) => (image.as_ref(), request.reason),
            _ => (None, "auto_provision"),
        };
        let shared = &self.shared;
        let mut engine = self.new_engine(&request.engine_owner, image)?;
        shared.backend.check_image(&engine.engine_version).await?;
        shared.backend.check_data().await?;
        engine.warm = self.boots.warm.offer(request.engine_owner.product_id).await;
        let claim = Claim { call: request.claiming_call(), ..self.transitions.new_claim(Change::Provision) };
        let mut engine = match self.boots.claim_new_engine(&engine, &claim).await? {
            Ok(engine) => engine,
            Err(ClaimRefused::ImageNotAllowed) => {
                return Err(FleetError::image_denied(&engine.engine_version).into());
            }
            Err(refused) => return Err(refused.into()),
        };
        operation.mark_claimed(engine.row.generation);
        let booted = match self.boots.adopt_warm(&engine).await {
            Some(adopted) => Ok(adopted),
            None => self.boots.boot(&mut engine, Readiness::AllSubsystems).await,
        };
        let booted = match booted {
            Ok(booted) => booted,
            Err(failure) => return Err(self.roll_back(&engine.row, &failure, request.actor).await),
        };
        let detail = json!({"from": null, "to": EngineStatus::Running, "reason": reason});
        let answer = self.shared.url(engine.row.engine_id, engine.placement()).map(|url| {
            let EngineRow { engine_id, owner, .. } = &engine.row;
            let (user_id, api_key) = (owner.user_id.clone(), self.shared.keys.key(&engine.row)?);
            let status = EngineStatus::Running;
            Ok::<_, FleetError>(ProvisionedEngine { engine_id: *engine_id, user_id, status, url, api_key })
        });
        let entry = AuditEntry {
            duration_ms: Some(booted.took_ms),
            call: request.applied_call(answer.transpose()?.as_ref())?,
            ..self.transitions.audit_entry(&engine.row, Event::Provision, detail).by(request.actor)
        };
        self.settle_engine(&engine.row, booted.into_state(&engine, true), Some(&entry)).await
    }

    fn new_engine(&self, owner: &EngineOwner, image: Option<&EngineImage>) -> Result<NewEngine, FleetError> {
        let engine_id = EngineId::new();
        let (_, key) = self.shared.keys.generate(engine_id)?;
        Ok(NewEngine {
            engine_id,
            owner: owner.clone(),
            key_hash: key.hash,
            sealed_key: key.sealed,
            sealed_secrets_key: self.shared.keys.generate_secrets_key(engine_id)?,
            pinned: image.is_some(),
            engine_version: image.cloned().unwrap_or_else(|| self.policies.default_image()),
            created_at: self.shared.clock.now(),
            warm: None,
        })
    }

    /// Removes all traces of a failed provision except its row in the audit log.
    async fn roll_back(&self, row: &EngineRow, failure: &BootFailure, actor: Actor) -> OperationError {
        tracing::warn!(
            engine_id = %row.engine_id,
            reason = failure.message(),
            "A provision failed; rolling it back."
        );
        if let Err(error) = self.shared.backend.remove_with_data(row.target()).await {
            // The row keeps its claim, and with it quota and port, until this is repaired.
            tracing::warn!(
                engine_id = %row.engine_id,
                %error,
                "A failed provision could not be removed; the next reconciliation retries."
            );
            return failure.to_fleet_error().into();
        }
        let detail = json!({
            "from": null, "to": null, "reason": failure.cause.audit_cause(),
            "message": failure.message(), "log": failure.log,
        });
        let entry = self.transitions.audit_entry(row, Event::ProvisionFailed, detail).by(actor);
        match self.settle(row, NextState::Removed, Some(&entry)).await {
            Ok(_) => failure.to_fleet_error().into(),
            Err(error) => error,
        }
    }
}
