//! Start and wake: launches an idle engine again.

use std::sync::Arc;

use api::orchestrator::EngineStatus;
use api::{EngineImage, ProductId};
use serde_json::{Value, json};

use super::Fleet;
use super::boot::{BootFailure, BootFailureCause, Booted, Readiness};
use super::execute::OperationRequest;
use super::lifecycle::Change;
use super::operation::{Operation, OperationError, OperationResult, Outcome};
use crate::registry::{AuditEntry, EngineRow, Event, NextState};

impl Fleet {
    pub(super) async fn relaunch_engine(
        self: &Arc<Self>,
        operation: &Arc<Operation>,
        request: &OperationRequest,
        seen: EngineRow,
    ) -> Outcome {
        let image = self.launch_image(&seen).clone();
        self.backend.check_image(&image).await?;
        self.backend.check_engine_data(seen.engine_id).await?;
        let claim = self.new_claim(operation.change);
        let mut row = match self.registry.claim(&seen, &claim, Some(&self.ports)).await? {
            Ok(row) => row,
            Err(refused) => return Err(refused.into()),
        };
        operation.mark_claimed(row.generation);
        let booted = match self.boot_with_image(&mut row, image).await {
            Ok(booted) => booted,
            Err(failure) => return Err(self.handle_launch_failure(&seen, &row, &failure).await),
        };
        let event = if operation.change == Change::Wake { Event::Wake } else { Event::Start };
        let detail = json!({"from": row.status, "to": EngineStatus::Running, "reason": request.reason});
        let entry = AuditEntry { duration_ms: Some(booted.took_ms), ..self.audit_entry(&row, event, detail) };
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

    /// The image of an engine's next launch: its own if it is pinned, else the deployment's, provided that it is
    /// compatible and the product's policy allows it. If the backend has no image other than the deployment's, an
    /// engine that kept its own could never be launched again, so all engines follow, across major versions too.
    pub(super) fn launch_image<'a>(&'a self, row: &'a EngineRow) -> &'a EngineImage {
        let follows = self.follows_default_image(row.owner.product_id, &row.engine_version, row.pinned);
        if follows { &self.settings.engine_image } else { &row.engine_version }
    }

    /// Whether the next launch of an engine on `image` uses the deployment's image.
    pub(super) fn follows_default_image(
        &self,
        product_id: ProductId,
        image: &EngineImage,
        pinned: bool,
    ) -> bool {
        let default = &self.settings.engine_image;
        let is_allowed = || !pinned && self.policies.get(product_id).allows(default, default);
        self.backend.has_single_image() || (default.major() == image.major() && is_allowed())
    }

    /// Boots the engine of `row` from `image`. Across a major version, whose brain format may differ, its brain is
    /// copied first, and restored if the engine does not become healthy.
    pub(super) async fn boot_with_image(
        self: &Arc<Self>,
        row: &mut EngineRow,
        image: EngineImage,
    ) -> Result<Booted, BootFailure> {
        let crosses_major = image.major() != row.engine_version.major();
        if crosses_major {
            tracing::info!(engine_id = %row.engine_id, %image, "Launching an engine on another major version.");
            let copied = self.backend.copy_brain(row.target()).await;
            copied
                .map_err(|error| BootFailure { cause: BootFailureCause::Backend(error), log: Vec::new() })?;
        }
        row.engine_version = image;
        let booted = self.boot(row, Readiness::BrainOnly).await;
        if booted.is_err() && crosses_major {
            let restored = match self.backend.kill(row.target()).await {
                Ok(()) => self.backend.restore_brain(row.target()).await,
                Err(error) => Err(error),
            };
            if let Err(error) = restored {
                tracing::error!(engine_id = %row.engine_id, %error, "A brain could not be restored.");
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
    ) -> OperationError {
        tracing::warn!(engine_id = %row.engine_id, reason = failure.message(), "An engine failed to boot.");
        if let Err(error) = self.backend.kill(row.target()).await {
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
            EngineStatus::Failed => (self.failed_state(row.restarts), None),
            _ if failure.cause.is_host_failure() => (NextState::Unchanged, None),
            // Only transitions into `failed` are crashes.
            _ => {
                let mut entry = self.crash_entry(&row, &failure.message(), failure.cause.audit_cause());
                if let Value::Object(detail) = &mut entry.detail {
                    detail.insert("log".to_owned(), failure.log.clone().into());
                }
                (self.failed_state(row.restarts), Some(entry))
            }
        };
        match self.settle(&row, next, entry.as_ref()).await {
            Ok(_) => failure.to_fleet_error().into(),
            Err(error) => OperationError::from_settle_error(error),
        }
    }
}
