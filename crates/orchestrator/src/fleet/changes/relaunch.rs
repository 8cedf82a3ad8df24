//! Start and wake: launches an idle engine again.

use api::EngineImage;
use api::orchestrator::{EngineStatus, StartedEngine};
use serde_json::{Value, json};

use super::Changes;
use super::boot::{BootFailure, Booted};
use crate::domain::Actor;
use crate::domain::lifecycle::Change;
use crate::fleet::engine_client::Readiness;
use crate::fleet::operation::Operation;
use crate::fleet::request::{OperationError, OperationRequest, Outcome};
use crate::registry::{AuditEntry, Claim, EngineRow, Event, NextState, PlacedEngine};

impl Changes {
    pub(super) async fn relaunch(
        &self,
        operation: &Operation,
        request: &OperationRequest,
        seen: EngineRow,
    ) -> Outcome {
        let image = self.policies.launch_image(&seen);
        self.shared.backend.check_image(&image).await?;
        self.shared.backend.check_engine_data(seen.engine_id).await?;
        let claim = Claim { call: request.claiming_call(), ..self.transitions.new_claim(operation.change) };
        let mut engine = self.boots.claim_and_place(&seen, &claim).await??;
        operation.mark_claimed(engine.row.generation);
        let booted = match self.boot_with_image(&mut engine, image).await {
            Ok(booted) => booted,
            Err(failure) => {
                return Err(self.handle_launch_failure(&seen, &engine.row, &failure, request.actor).await);
            }
        };
        let event = if operation.change == Change::Wake { Event::Wake } else { Event::Start };
        let detail =
            json!({"from": engine.row.status, "to": EngineStatus::Running, "reason": request.reason});
        let url = self.shared.url(engine.row.engine_id, engine.placement());
        let answer = url.map(|url| StartedEngine { status: EngineStatus::Running, url });
        let entry = AuditEntry {
            duration_ms: Some(booted.took_ms),
            call: request.applied_call(answer.as_ref())?,
            ..self.transitions.audit_entry(&engine.row, event, detail).by(request.actor)
        };
        self.settle_engine(&engine.row, booted.into_state(&engine, true), Some(&entry)).await
    }

    /// Boots `engine` from `image`. Across a major version, whose brain format may differ, its brain is
    /// copied first, and restored if the engine does not become healthy.
    pub(super) async fn boot_with_image(
        &self,
        engine: &mut PlacedEngine,
        image: EngineImage,
    ) -> Result<Booted, BootFailure> {
        let (row, backend) = (&mut engine.row, &self.shared.backend);
        let target = row.target();
        let crosses_major = image.major() != row.engine_version.major();
        if crosses_major {
            tracing::info!(engine_id = %row.engine_id, %image, "Launching an engine on another major version.");
            backend.copy_brain(target).await.map_err(BootFailure::of_backend)?;
        }
        row.engine_version = image;
        let booted = self.boots.boot(engine, Readiness::BrainOnly).await;
        if booted.is_err() && crosses_major {
            let restored = match backend.kill(target).await {
                Ok(()) => backend.restore_brain(target).await,
                Err(error) => Err(error),
            };
            if let Err(error) = restored {
                tracing::error!(engine_id = %target.engine_id, %error, "A brain could not be restored.");
            }
        }
        booted
    }

    /// Cleans up after a failed launch. The engine becomes `failed`, unless the backend was unreachable or had no
    /// capacity: that says nothing about the engine, which then keeps its state.
    async fn handle_launch_failure(
        &self,
        seen: &EngineRow,
        row: &EngineRow,
        failure: &BootFailure,
        actor: Actor,
    ) -> OperationError {
        tracing::warn!(engine_id = %row.engine_id, reason = failure.message(), "An engine failed to boot.");
        if let Err(error) = self.shared.backend.kill(row.target()).await {
            // The row keeps its claim until this is repaired.
            tracing::warn!(
                engine_id = %row.engine_id,
                %error,
                "An engine that failed to boot could not be killed; the next reconciliation retries."
            );
            return failure.to_fleet_error().into();
        }
        // As in the registry: the image of a failed launch is not the one that the engine runs.
        let row = EngineRow { engine_version: seen.engine_version.clone(), ..row.clone() };
        let (next, entry) = match row.status {
            // A start that a product requested resets the restart count.
            EngineStatus::Failed => (self.transitions.failed_state(row.restarts), None),
            _ if failure.cause.is_host_failure() => (NextState::Unchanged, None),
            // Only transitions into `failed` are crashes.
            _ => {
                let mut entry =
                    self.transitions.crash_entry(&row, &failure.message(), failure.cause.audit_cause());
                if let Value::Object(detail) = &mut entry.detail {
                    detail.insert("log".to_owned(), failure.log.clone().into());
                }
                (self.transitions.failed_state(row.restarts), Some(entry.by(actor)))
            }
        };
        match self.settle(&row, next, entry.as_ref()).await {
            Ok(_) => failure.to_fleet_error().into(),
            Err(error) => error,
        }
    }
}
