//! Maintenance: an engine is launched without its agent, to be backed up although it does not run, or to be restored.
//!
//! It is claimed like a start, because other callers see it as one. Whatever fails, the engine ends in the state that it
//! was in: a restore changes nothing until all of it has arrived, and from then on it is completed by whatever opens the
//! brain next. Before a restore replaces anything, what is there is backed up.

use api::orchestrator::EngineStatus;
use backend::{BackendError, DataUnavailable};
use backup::BackupId;
use serde_json::json;

use super::Changes;
use super::stop::STOP_GRACE_PERIOD;
use crate::domain::Actor;
use crate::domain::lifecycle::Change;
use crate::fleet::FleetError;
use crate::fleet::backup_transfers::{MaintenanceOrder, Transferred};
use crate::fleet::operation::Operation;
use crate::fleet::request::{OperationError, OperationResult, Outcome};
use crate::registry::{Claim, EngineRow, Event, NextState, PlacedEngine};

impl Changes {
    /// Backs up or restores an engine in maintenance.
    pub(super) async fn maintain(
        &self,
        operation: &Operation,
        actor: Actor,
        order: &MaintenanceOrder,
        seen: EngineRow,
    ) -> Outcome {
        let backend = &self.shared.backend;
        // A backup that cannot be restored is found before anything is interrupted.
        let restored_to = match order {
            MaintenanceOrder::Restore { backup_id, .. } => {
                Some(self.backups.check(seen.engine_id, *backup_id).await?)
            }
            MaintenanceOrder::BackUp { .. } => None,
        };
        let image = self.policies.launch_image(&seen);
        backend.check_image(&image).await?;
        let creates_data = match backend.check_engine_data(seen.engine_id).await {
            Ok(()) => false,
            Err(BackendError::DataUnavailable(
                DataUnavailable::EngineFolderMissing
                | DataUnavailable::VolumeMissing
                | DataUnavailable::VolumeLost,
            )) if order.restores() => true,
            Err(error) => return Err(error.into()),
        };
        let claim = Claim { for_maintenance: true, ..self.transitions.new_claim(Change::Start) };
        let running = self.shared.running(&seen).map(|engine| (engine.placement, engine.instance.clone()));
        let claimed = match &running {
            Some((placement, _)) => {
                self.shared.registry.claim(&seen, &claim).await?.map(|row| row.placed(*placement))
            }
            None => self.shared.registry.claim_and_place(&seen, &claim, &self.boots.placements).await?,
        };
        let mut engine = claimed?;
        operation.mark_claimed(engine.row.generation);
        if let Some((_, instance)) = &running
            && let Err(error) = backend.stop(engine.row.target(), STOP_GRACE_PERIOD).await
            && !self.has_ended(instance).await
        {
            // The row keeps its claim until the engine's state is known.
            return Err(error.into());
        }
        engine.row.engine_version = image.clone();
        let transferred = self.transfer(&mut engine, order.is_full(), restored_to, creates_data).await;
        // Nothing else may open the brain before this instance is gone.
        backend.stop(engine.row.target(), STOP_GRACE_PERIOD).await?;
        engine.row.engine_version.clone_from(&seen.engine_version);
        let (next, transferred) = match (seen.status, &transferred) {
            (EngineStatus::Running, _) | (EngineStatus::Failed, Ok(Transferred::Restored { .. })) => {
                match self.boot_with_image(&mut engine, image).await {
                    Ok(booted) => (booted.into_state(&engine, true), transferred),
                    Err(failure) => {
                        backend.kill(engine.row.target()).await?;
                        let reason = failure.message();
                        tracing::warn!(engine_id = %seen.engine_id, reason, "An engine failed to boot after maintenance.");
                        (self.transitions.failed_state(0), Err(failure.to_fleet_error()))
                    }
                }
            }
            (EngineStatus::Failed, _) => (self.transitions.failed_state(seen.restarts), transferred),
            _ => (NextState::Unchanged, transferred),
        };
        self.settle_maintenance(&engine, order, next, actor, &transferred).await?;
        order.report(transferred.clone());
        Ok(OperationResult::Maintained(transferred))
    }

    /// Backs up the engine, or restores it to `restored_to`.
    async fn transfer(
        &self,
        engine: &mut PlacedEngine,
        full: bool,
        restored_to: Option<BackupId>,
        creates_data: bool,
    ) -> Result<Transferred, FleetError> {
        let backups = &self.backups;
        self.boots.boot_for_maintenance(engine, creates_data).await?;
        let Some(backup_id) = restored_to else {
            return backups.save(&engine.row, engine.placement(), true, full).await.map(Transferred::Saved);
        };
        // This one does not count as made at rest: what the engine has afterwards is not in it.
        if !creates_data && let Err(error) = backups.save(&engine.row, engine.placement(), false, false).await
        {
            // A brain that is damaged cannot be backed up; that is why it is restored.
            tracing::warn!(
                engine_id = %engine.row.engine_id,
                %error,
                "What an engine has could not be backed up before it is restored."
            );
        }
        let restored = backups.load(&engine.row, engine.placement(), backup_id).await?;
        Ok(Transferred::Restored { backup_id, bytes: restored.bytes, entries: restored.entries })
    }

    async fn settle_maintenance(
        &self,
        engine: &PlacedEngine,
        order: &MaintenanceOrder,
        next: NextState,
        actor: Actor,
        transferred: &Result<Transferred, FleetError>,
    ) -> Result<(), OperationError> {
        let row = &engine.row;
        let to = match &next {
            NextState::Running { .. } => EngineStatus::Running,
            NextState::Failed { .. } => EngineStatus::Failed,
            NextState::NotRunning(status) => *status,
            NextState::Unchanged | NextState::KeyRotated(_) | NextState::Removed => row.status,
        };
        let event = match to {
            EngineStatus::Sleeping => Event::Sleep,
            EngineStatus::Stopped => Event::Stop,
            EngineStatus::Failed => Event::Crash,
            _ => Event::Start,
        };
        let outcome = if transferred.is_ok() { "restored" } else { "failed" };
        let mut detail = json!({"from": row.status, "to": to, "reason": "restore", "outcome": outcome});
        if let (Ok(Transferred::Restored { backup_id, .. }), Some(detail)) =
            (transferred, detail.as_object_mut())
        {
            detail.insert("backup_id".to_owned(), backup_id.to_string().into());
        }
        let entry = self.transitions.audit_entry(row, event, detail).by(actor);
        // A backup changes nothing that a product would look for, unless the engine came back in another state.
        let is_audited = order.restores() || to != row.status;
        self.settle(row, next, is_audited.then_some(&entry)).await.map(drop)
    }
}
