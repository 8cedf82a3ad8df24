//! Backups as the operator sees them: jobs on many engines, the schedule, and the erasure of what destroyed engines left
//! in the store.
//!
//! One job runs at a time. A job that the orchestrator's end interrupts is begun again by whoever wants it; the schedule
//! does so by itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use api::backup::{
    BackupAction, BackupFailure, BackupJob, BackupList, BackupStatus, ListBackups, StartBackupJob,
    StoredBackup,
};
use api::orchestrator::EngineStatus;
use api::{EngineId, ErrorDetail, Timestamp};
use backup::{BackupId, Owner};
use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::FleetError;
use super::backup_transfers::{BackupTransfers, MaintenanceOrder, Transferred};
use super::execute::Executor;
use super::request::{OperationRequest, OperationResult, RequestKind};
use super::shared::Shared;
use crate::domain::{Actor, EngineOwner};
use crate::registry::{EngineRow, FleetFilter};

/// How many engines a job works on at once. Each holds a few megabytes, and makes a copy of its brain.
const MAX_CONCURRENT_ENGINES: usize = 3;
/// How many engines are looked up at once.
const PAGE_SIZE: i64 = 256;
/// How many failures of a job are named.
const MAX_NAMED_FAILURES: usize = 100;
/// How many jobs are remembered.
const MAX_RECENT_JOBS: usize = 20;
/// How often it is looked whether the schedule is due, and whether something is to be erased.
const POLL_INTERVAL: Duration = Duration::from_secs(15);
/// How many erasures are read at once.
const ERASURE_BATCH: i64 = 100;

/// Jobs with backups.
pub(crate) struct Backups {
    shared: Arc<Shared>,
    executor: Arc<Executor>,
    transfers: Arc<BackupTransfers>,
    /// Whether the registry has been compared with the running instances.
    ready: watch::Receiver<bool>,
    state: Mutex<State>,
    /// Cancels the job under way.
    shutdown: CancellationToken,
}

#[derive(Default)]
struct State {
    current: Option<BackupJob>,
    recent: VecDeque<BackupJob>,
    /// When the schedule is due next.
    next_at: Option<Timestamp>,
}

/// What became of one engine in a job.
enum Done {
    Unchanged,
    /// Bytes of content, and bytes in the store.
    Moved {
        bytes: u64,
        stored_bytes: u64,
    },
}

/// A job that may be done.
struct Job {
    action: BackupAction,
    filter: FleetFilter,
    owner: Option<EngineOwner>,
    backup_id: Option<BackupId>,
    full: bool,
}

impl Backups {
    pub(super) fn new(
        shared: &Arc<Shared>,
        executor: &Arc<Executor>,
        transfers: &Arc<BackupTransfers>,
        ready: &watch::Receiver<bool>,
        shutdown: &CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            executor: Arc::clone(executor),
            transfers: Arc::clone(transfers),
            ready: ready.clone(),
            state: Mutex::default(),
            shutdown: shutdown.clone(),
        })
    }

    /// Begins a job, which goes on by itself.
    pub(crate) async fn start(self: &Arc<Self>, params: StartBackupJob) -> Result<BackupStatus, FleetError> {
        let job = self.parse(params).await?;
        // A store that cannot be used is reported at once.
        self.transfers.store().await?;
        self.shared.registry.note_backups().await?;
        self.begin(job)?;
        Ok(self.status())
    }

    /// What is set, and the jobs.
    pub(crate) fn status(&self) -> BackupStatus {
        let settings = self.transfers.settings();
        let state = self.state.lock();
        BackupStatus {
            target: settings.map(|settings| settings.target.to_string()),
            interval_s: settings.and_then(|settings| settings.interval).map(|interval| interval.as_secs()),
            keep_last: settings.and_then(|settings| u64::try_from(settings.retention.keep_last).ok()),
            keep_days: settings.map(|settings| u64::from(settings.retention.keep_days)),
            next_at: state.next_at,
            current: state.current.clone(),
            recent: state.recent.iter().cloned().collect(),
        }
    }

    /// Lists the backups of an engine, or those of the registry.
    pub(crate) async fn list(&self, params: ListBackups) -> Result<BackupList, FleetError> {
        let owner = match (params.product_id, params.user_id) {
            (Some(product_id), Some(user_id)) => {
                let engine = self.shared.registry.engine(&EngineOwner { product_id, user_id }).await?;
                Owner::Engine(engine.ok_or(FleetError::EngineNotFound)?.engine_id)
            }
            (None, None) => Owner::Registry,
            _ => {
                return Err(invalid(
                    "`product_id` and `user_id` belong together; without both, the registry's are listed",
                ));
            }
        };
        let store = self.transfers.store().await?;
        // Where none were ever made, the store need not be asked.
        let made = self.shared.registry.makes_backups().await?;
        let mut backups = if made { store.list(owner).await? } else { Vec::new() };
        backups.reverse();
        let stored = backups.into_iter().map(|backup| StoredBackup {
            backup_id: backup.id.to_string(),
            at: Timestamp::from_unix_ms(backup.id.at_ms()),
            at_rest: backup.id.at_rest(),
            version: backup.program,
            entries: backup.entries,
            bytes: backup.bytes,
            skipped: backup.skipped,
        });
        Ok(BackupList { backups: stored.collect() })
    }

    /// Begins jobs by the schedule, and erases what destroyed engines left, until `shutdown`.
    pub(super) async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let Some(interval) = self.transfers.settings().map(|settings| settings.interval) else { return };
        let mut ready = self.ready.clone();
        let ready = async { ready.wait_for(|ready| *ready).await.is_ok() };
        if shutdown.run_until_cancelled(ready).await != Some(true) {
            return;
        }
        if let Err(error) = self.shared.registry.note_backups().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "The registry could not note that backups are made."
            );
        }
        if let Some(interval) = interval {
            let first = self.first_due(interval).await;
            self.state.lock().next_at = Some(first);
        }
        loop {
            let now = self.shared.clock.now();
            let is_due = self.state.lock().next_at.is_some_and(|next_at| next_at <= now);
            if let Some(interval) = interval.filter(|_| is_due) {
                self.begin_scheduled(now, interval);
            }
            if shutdown.run_until_cancelled(self.erase_destroyed()).await.is_none()
                || shutdown.run_until_cancelled(self.shared.clock.sleep(POLL_INTERVAL)).await.is_none()
            {
                return;
            }
        }
    }

    /// When the schedule is due first: an interval after the registry was backed up last, which is the end of each job.
    async fn first_due(&self, interval: Duration) -> Timestamp {
        let now = self.shared.clock.now();
        let latest = match self.transfers.store().await {
            Ok(store) => {
                store.ids(Owner::Registry).await.map(|ids| ids.last().copied()).map_err(FleetError::from)
            }
            Err(error) => Err(error),
        };
        match latest {
            Ok(Some(latest)) => after(Timestamp::from_unix_ms(latest.at_ms()), interval),
            Ok(None) => now,
            Err(error) => {
                tracing::error!(%error, "The backup store cannot be used.");
                now
            }
        }
    }

    fn begin_scheduled(self: &Arc<Self>, now: Timestamp, interval: Duration) {
        let job = Job {
            action: BackupAction::BackUp,
            filter: FleetFilter::default(),
            owner: None,
            backup_id: None,
            full: false,
        };
        // While an operator's job runs, the schedule waits for its end.
        if self.begin(job).is_ok() {
            self.state.lock().next_at = Some(after(now, interval));
        }
    }

    async fn parse(&self, params: StartBackupJob) -> Result<Job, FleetError> {
        let StartBackupJob { action, product_id, user_id, backup_id, full } = params;
        let owner = match (product_id, user_id) {
            (Some(product_id), Some(user_id)) => Some(EngineOwner { product_id, user_id }),
            (None, Some(_)) => return Err(invalid("`user_id` needs the `product_id` that it belongs to")),
            (_, None) => None,
        };
        if let Some(owner) = &owner
            && self.shared.registry.engine(owner).await?.is_none()
        {
            return Err(FleetError::EngineNotFound);
        }
        let parse =
            |text: String| text.parse().map_err(|error: backup::InvalidBackupId| invalid(&error.to_string()));
        let backup_id: Option<BackupId> = backup_id.map(parse).transpose()?;
        if backup_id.is_some()
            && (owner.is_none() || !matches!(action, BackupAction::Restore | BackupAction::Verify))
        {
            return Err(invalid("`backup_id` is for the verification or the restore of one user's engine"));
        }
        Ok(Job {
            action,
            filter: FleetFilter { product_id, ..FleetFilter::default() },
            owner,
            backup_id,
            full,
        })
    }

    fn begin(self: &Arc<Self>, job: Job) -> Result<(), FleetError> {
        let mut state = self.state.lock();
        if state.current.is_some() {
            return Err(FleetError::BackupJobRunning);
        }
        state.current = Some(BackupJob {
            action: job.action,
            started_at: self.shared.clock.now(),
            ended_at: None,
            total: 0,
            done: 0,
            unchanged: 0,
            failed: 0,
            bytes: 0,
            stored_bytes: 0,
            error: None,
            failures: Vec::new(),
        });
        drop(state);
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let ended = this.shutdown.run_until_cancelled(this.perform(&job)).await;
            this.end(ended.unwrap_or(Ok(())));
        });
        Ok(())
    }

    async fn perform(&self, job: &Job) -> Result<(), FleetError> {
        let includes_registry =
            job.owner.is_none() && job.filter.product_id.is_none() && job.action != BackupAction::Restore;
        self.update(|current| current.total += u64::from(includes_registry));
        match &job.owner {
            Some(owner) => {
                let engine = self.shared.registry.engine(owner).await?;
                self.perform_on(job, engine.into_iter().collect()).await;
            }
            None => {
                let mut after = None;
                loop {
                    let (page, next) =
                        self.shared.registry.fleet_engines(&job.filter, after, PAGE_SIZE).await?;
                    self.perform_on(job, page.into_iter().map(|engine| engine.row).collect()).await;
                    after = next;
                    if after.is_none() {
                        break;
                    }
                }
            }
        }
        if includes_registry {
            let result = self.perform_on_registry(job).await;
            self.note(None, result);
        }
        Ok(())
    }

    async fn perform_on(&self, job: &Job, engines: Vec<EngineRow>) {
        self.update(|current| current.total += u64::try_from(engines.len()).unwrap_or_default());
        let performed = engines.into_iter().map(|row| async move {
            let result = self.perform_on_engine(job, &row).await;
            (row, result)
        });
        let mut performed = futures::stream::iter(performed).buffer_unordered(MAX_CONCURRENT_ENGINES);
        while let Some((row, result)) = performed.next().await {
            self.note(Some(&row), result);
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
                        // It may have gone to sleep meanwhile.
                        let now = self.shared.registry.engine(&row.owner).await?;
                        if now.is_none_or(|now| now.status == EngineStatus::Running && now.claim.is_none()) {
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

    /// Erases the backups of engines that were destroyed.
    async fn erase_destroyed(&self) {
        let pending = match self.shared.registry.backup_erasures(ERASURE_BATCH).await {
            Ok(pending) => pending,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "The backups to erase could not be read."
                );
                return;
            }
        };
        for engine_id in pending {
            if let Err(error) = self.erase(engine_id).await {
                tracing::warn!(%engine_id, %error, "The backups of a destroyed engine could not be erased yet.");
                return;
            }
        }
    }

    async fn erase(&self, engine_id: EngineId) -> Result<(), FleetError> {
        let owner = Owner::Engine(engine_id);
        let _serialized = self.transfers.lock(owner).await;
        self.transfers.store().await?.erase(owner).await?;
        self.transfers.forget(engine_id);
        self.shared.registry.backup_erased(engine_id).await?;
        tracing::info!(%engine_id, "The backups of a destroyed engine were erased.");
        Ok(())
    }

    fn update(&self, change: impl FnOnce(&mut BackupJob)) {
        if let Some(current) = &mut self.state.lock().current {
            change(current);
        }
    }

    fn note(&self, row: Option<&EngineRow>, result: Result<Done, FleetError>) {
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

    fn end(&self, result: Result<(), FleetError>) {
        let mut state = self.state.lock();
        let Some(mut job) = state.current.take() else { return };
        job.ended_at = Some(self.shared.clock.now());
        if let Err(error) = result {
            tracing::error!(%error, "A job with backups ended early.");
            job.error = Some(detail(&error));
        }
        tracing::info!(
            action = ?job.action,
            done = job.done,
            unchanged = job.unchanged,
            failed = job.failed,
            bytes = job.bytes,
            stored_bytes = job.stored_bytes,
            "A job with backups has ended."
        );
        state.recent.push_front(job);
        state.recent.truncate(MAX_RECENT_JOBS);
    }
}

fn detail(error: &FleetError) -> ErrorDetail {
    ErrorDetail { code: error.code(), message: error.to_string() }
}

fn invalid(message: &str) -> FleetError {
    FleetError::InvalidBackupJob(message.to_owned())
}

fn after(time: Timestamp, interval: Duration) -> Timestamp {
    let interval_ms = i64::try_from(interval.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_unix_ms(time.unix_ms().saturating_add(interval_ms))
}
