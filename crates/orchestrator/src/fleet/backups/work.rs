//! What a job does with each engine and with the registry.

use std::sync::Arc;

use api::backup::{BackupAction, BackupFailure, BackupJob};
use api::orchestrator::EngineStatus;
use backup::{BackupId, Owner};
use futures::StreamExt as _;

use super::{Backups, Job, detail};
use crate::domain::{Actor, EngineOwner};
use crate::fleet::FleetError;
use crate::fleet::backup_transfers::{MaintenanceOrder, Transferred};
use crate::fleet::request::{OperationRequest, OperationResult, RequestKind};
use crate::metrics::labels::BackupOutcome;
use crate::registry::EngineRow;

/// How many engines a job works on at once. Each holds a few megabytes, and makes a copy of its brain.
const MAX_CONCURRENT_ENGINES: usize = 3;
/// How many engines are looked up at once.
const PAGE_SIZE: i64 = 256;
/// How many failures of a job are named.
const MAX_NAMED_FAILURES: usize = 100;

/// What became of one engine in a job.
enum Done {
    Unchanged,
    /// Bytes of content, and bytes in the store.
    Moved {
        bytes: u64,
        stored_bytes: u64,
    },
}

impl Backups {
    /// Does the job: with all engines that it is about, and with the registry if it is about all of them.
    pub(super) async fn perform(&self, job: &Job) -> Result<(), FleetError> {
        let includes_registry =
            job.owner.is_none() && job.filter.product_id.is_none() && job.action != BackupAction::Restore;
        self.update(|current| current.total += u64::from(includes_registry));
        if let Some(owner) = &job.owner {
            let engine = self.shared.registry.engine(owner).await?;
            self.perform_on(job, engine.into_iter().collect()).await;
        } else {
            self.perform_on_all(job).await?;
        }
        if includes_registry {
            let result = self.perform_on_registry(job).await;
            self.note(job.action, None, result);
        }
        Ok(())
    }

    async fn perform_on_all(&self, job: &Job) -> Result<(), FleetError> {
        let mut after = None;
        loop {
            let (page, next) = self.shared.registry.fleet_engines(&job.filter, after, PAGE_SIZE).await?;
            self.perform_on(job, page.into_iter().map(|engine| engine.row).collect()).await;
            after = next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn perform_on(&self, job: &Job, engines: Vec<EngineRow>) {
        self.update(|current| current.total += u64::try_from(engines.len()).unwrap_or_default());
        let performed = engines.into_iter().map(|row| async move {
            let result = self.perform_on_engine(job, &row).await;
            (row, result)
        });
        let mut performed = futures::stream::iter(performed).buffer_unordered(MAX_CONCURRENT_ENGINES);
        while let Some((row, result)) = performed.next().await {
            self.note(job.action, Some(&row), result);
            self.remember_progress().await;
        }
    }

    async fn perform_on_engine(&self, job: &Job, row: &EngineRow) -> Result<Done, FleetError> {
        let owner = Owner::Engine(row.engine_id);
        match job.action {
            BackupAction::BackUp => {
                let done = self.back_up(row, job.full).await?;
                // What is not kept any more goes when there is something newer.
                self.collect(owner, false).await?;
                Ok(done)
            }
            BackupAction::Verify => {
                if job.backup_id.is_none() && self.transfers.latest(row.engine_id).await?.is_none() {
                    return Err(backup::BackupError::NotFound.into());
                }
                let _serialized = self.transfers.lock(owner).await;
                let (_, summary) = self.transfers.store().await?.verify(owner, job.backup_id).await?;
                Ok(Done::Moved { bytes: summary.bytes, stored_bytes: 0 })
            }
            BackupAction::Restore => self.restore(row, job.backup_id).await,
            BackupAction::Collect => self.collect(owner, true).await,
        }
    }

    async fn perform_on_registry(&self, job: &Job) -> Result<Done, FleetError> {
        match job.action {
            BackupAction::BackUp => {
                let done = self.transfers.save_registry().await?;
                self.collect(Owner::Registry, false).await?;
                Ok(Done::Moved { bytes: done.bytes, stored_bytes: done.stored_bytes })
            }
            BackupAction::Verify => {
                let (_, summary) = self.transfers.store().await?.verify(Owner::Registry, None).await?;
                Ok(Done::Moved { bytes: summary.bytes, stored_bytes: 0 })
            }
            BackupAction::Collect => self.collect(Owner::Registry, true).await,
            BackupAction::Restore => Ok(Done::Unchanged),
        }
    }

    async fn back_up(&self, row: &EngineRow, full: bool) -> Result<Done, FleetError> {
        match row.status {
            // Not there yet, or not any more.
            EngineStatus::Provisioning | EngineStatus::Destroying => return Ok(Done::Unchanged),
            EngineStatus::Running => match self.shared.running(row) {
                Some(engine) => match self.transfers.save(engine.row, engine.placement, false, full).await {
                    Ok(written) => {
                        return Ok(Done::Moved { bytes: written.bytes, stored_bytes: written.stored_bytes });
                    }
                    Err(error) => {
                        // It may have gone to sleep meanwhile, or may not be there any more.
                        let now = self.shared.registry.engine(&row.owner).await?;
                        if now.is_some_and(|now| now.status == EngineStatus::Running && now.claim.is_none()) {
                            return Err(error);
                        }
                    }
                },
                None => return Err(FleetError::EngineNotRunning),
            },
            EngineStatus::Sleeping | EngineStatus::Stopped | EngineStatus::Failed => {}
        }
        let Some(row) = self.shared.registry.engine(&row.owner).await? else { return Ok(Done::Unchanged) };
        if !full && row.status != EngineStatus::Running && self.transfers.is_saved(&row).await? {
            return Ok(Done::Unchanged);
        }
        match self.maintain(&row.owner, MaintenanceOrder::back_up(full)).await? {
            Transferred::Saved(written) => {
                Ok(Done::Moved { bytes: written.bytes, stored_bytes: written.stored_bytes })
            }
            Transferred::Restored { .. } => Ok(Done::Unchanged),
        }
    }

    async fn restore(&self, row: &EngineRow, backup_id: Option<BackupId>) -> Result<Done, FleetError> {
        match self.maintain(&row.owner, MaintenanceOrder::restore(backup_id)).await? {
            Transferred::Restored { backup_id, bytes, entries } => {
                tracing::info!(engine_id = %row.engine_id, %backup_id, entries, bytes, "An engine was restored.");
                Ok(Done::Moved { bytes, stored_bytes: 0 })
            }
            Transferred::Saved(_) => Ok(Done::Unchanged),
        }
    }

    async fn maintain(
        &self,
        owner: &EngineOwner,
        order: Arc<MaintenanceOrder>,
    ) -> Result<Transferred, FleetError> {
        let reason = if order.restores() { "restore" } else { "backup" };
        let kind = RequestKind::Maintain(Arc::clone(&order));
        let request = OperationRequest::new(owner.clone(), kind, reason).by(Actor::Operator);
        match self.executor.execute(&request).await {
            Ok(OperationResult::Maintained(transferred)) => transferred,
            Ok(_) => Err(FleetError::EngineNotFound),
            // It goes on; a large engine takes longer than callers of other operations wait.
            Err(FleetError::OperationTimeout) => order.ended().await,
            Err(error) => Err(error),
        }
    }

    async fn collect(&self, owner: Owner, thorough: bool) -> Result<Done, FleetError> {
        let Some(settings) = self.transfers.settings() else { return Ok(Done::Unchanged) };
        // Not while another orchestrator may be making a backup.
        self.shared.registry.check_leadership().await?;
        let _serialized = self.transfers.lock(owner).await;
        let store = self.transfers.store().await?;
        let collected = store.collect(owner, settings.retention, self.shared.clock.now(), thorough).await?;
        if collected.backups == 0 && collected.pieces == 0 {
            return Ok(Done::Unchanged);
        }
        tracing::info!(
            %owner,
            backups = collected.backups,
            pieces = collected.pieces,
            bytes = collected.bytes,
            "Backups that are not kept any more were removed."
        );
        Ok(Done::Moved { bytes: 0, stored_bytes: collected.bytes })
    }

    fn update(&self, change: impl FnOnce(&mut BackupJob)) {
        if let Some(current) = &mut self.state.lock().current {
            change(current);
        }
    }

    fn note(&self, action: BackupAction, row: Option<&EngineRow>, result: Result<Done, FleetError>) {
        let outcome = match &result {
            Ok(Done::Unchanged) => BackupOutcome::Unchanged,
            Ok(Done::Moved { stored_bytes, .. }) => {
                if action == BackupAction::BackUp {
                    self.shared.metrics.backup_stored(*stored_bytes);
                }
                BackupOutcome::Done
            }
            Err(_) => BackupOutcome::Failed,
        };
        self.shared.metrics.backup_engine(action, outcome);
        if let Err(error) = &result {
            let engine_id = row.map_or_else(|| "registry".to_owned(), |row| row.engine_id.to_string());
            tracing::warn!(engine_id, %error, "A job with backups has failed for an engine.");
        }
        self.update(|current| {
            current.done += 1;
            match result {
                Ok(Done::Unchanged) => current.unchanged += 1,
                Ok(Done::Moved { bytes, stored_bytes }) => {
                    current.bytes = current.bytes.saturating_add(bytes);
                    current.stored_bytes = current.stored_bytes.saturating_add(stored_bytes);
                }
                Err(error) => {
                    current.failed += 1;
                    if current.failures.len() < MAX_NAMED_FAILURES {
                        current.failures.push(BackupFailure {
                            engine_id: row.map(|row| row.engine_id),
                            product_id: row.map(|row| row.owner.product_id),
                            user_id: row.map(|row| row.owner.user_id.clone()),
                            error: detail(&error),
                        });
                    }
                }
            }
        });
    }
}
