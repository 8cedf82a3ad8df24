//! Backups as the operator sees them: jobs on many engines, the schedule, and the erasure of what destroyed engines left
//! in the store.
//!
//! One job runs at a time. A job that the orchestrator's end interrupts is begun again by whoever wants it; the schedule
//! does so by itself.

mod journal;
mod work;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use api::backup::{
    BackupAction, BackupJob, BackupList, BackupStatus, ListBackups, StartBackupJob, StoredBackup,
};
use api::{EngineId, ErrorDetail, Timestamp};
use backup::{BackupId, Owner};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, watch};
use tokio_util::sync::CancellationToken;

use super::FleetError;
use super::backup_transfers::BackupTransfers;
use super::execute::Executor;
use super::shared::Shared;
use crate::domain::EngineOwner;
use crate::registry::FleetFilter;

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
    /// Whether what the registry has about jobs is loaded.
    journal: OnceCell<()>,
    /// Cancels the job under way.
    shutdown: CancellationToken,
}

#[derive(Default)]
struct State {
    current: Option<BackupJob>,
    recent: VecDeque<BackupJob>,
    /// When the schedule is due next.
    next_at: Option<Timestamp>,
    /// When the last job began that has backed up everything; before the first, when that was first waited for.
    saved_at: Option<Timestamp>,
    /// When the progress of the job under way was stored last, by the monotonic clock.
    remembered_at: Duration,
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
            journal: OnceCell::new(),
            shutdown: shutdown.clone(),
        })
    }

    /// Begins a job, which goes on by itself.
    pub(crate) async fn start(self: &Arc<Self>, params: StartBackupJob) -> Result<BackupStatus, FleetError> {
        let job = self.parse(params).await?;
        // A store that cannot be used is reported at once.
        self.transfers.store().await?;
        self.shared.registry.note_backups().await?;
        self.load_journal().await?;
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
        if let Err(error) = self.load_journal().await {
            tracing::warn!(%error, "What the registry has about jobs with backups could not be read.");
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
            this.remember_job().await;
            match this.shutdown.run_until_cancelled(this.perform(&job)).await {
                Some(result) => {
                    if let Some(ended) = this.end(result) {
                        this.conclude_job(&job, &ended).await;
                    }
                }
                // It stays noted as under way: the next orchestrator says that it was interrupted.
                None => drop(this.end(Err(journal::interrupted()))),
            }
        });
        Ok(())
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

    /// Moves the job under way to those that have ended, and returns it.
    fn end(&self, result: Result<(), FleetError>) -> Option<BackupJob> {
        let now = self.shared.clock.now();
        let mut state = self.state.lock();
        let mut job = state.current.take()?;
        job.ended_at = Some(now);
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
        let took_ms = now.unix_ms().saturating_sub(job.started_at.unix_ms());
        let took = Duration::from_millis(u64::try_from(took_ms).unwrap_or_default());
        self.shared.metrics.backup_job(job.action, took);
        state.recent.push_front(job.clone());
        state.recent.truncate(MAX_RECENT_JOBS);
        Some(job)
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
