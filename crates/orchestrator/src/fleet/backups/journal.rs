//! What the registry keeps about jobs, so that it outlives the orchestrator: the job under way, and when all engines were
//! backed up last.
//!
//! A job itself does not go on after a restart. The next orchestrator says that it was interrupted; a backup that was being
//! made is not in the store, because its manifest is written last, and an engine that was being restored has what it had
//! before, or all of the backup.

use std::time::Duration;

use api::Timestamp;
use api::backup::{BackupAction, BackupJob};

use super::{Backups, Job, MAX_RECENT_JOBS, detail};
use crate::fleet::FleetError;
use crate::registry::BACKUP_JOB;

/// The name of the fact when all engines were backed up last without a failure: when that job began.
const SUCCEEDED_AT: &str = "backup_succeeded_at";
/// How often the progress of a job is stored.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

impl Backups {
    /// Loads what an orchestrator before this one has left, once.
    pub(super) async fn load_journal(&self) -> Result<(), FleetError> {
        let load = async || {
            let registry = &self.shared.registry;
            let job = registry.meta(BACKUP_JOB).await?;
            let succeeded_at = registry.meta(SUCCEEDED_AT).await?.and_then(|text| text.parse().ok());
            let mut state = self.state.lock();
            if let Some(mut job) = job.and_then(|text| serde_json::from_str::<BackupJob>(&text).ok()) {
                tracing::warn!(
                    action = ?job.action,
                    done = job.done,
                    "A job with backups was interrupted when its orchestrator ended."
                );
                job.error = Some(detail(&interrupted()));
                state.recent.push_front(job);
                state.recent.truncate(MAX_RECENT_JOBS);
            }
            let now = self.shared.clock.now();
            state.saved_at = Some(succeeded_at.map_or(now, Timestamp::from_unix_ms));
            Ok(())
        };
        self.journal.get_or_try_init(load).await.copied()
    }

    /// Stores that the job is under way, and how far it has come.
    pub(super) async fn remember_job(&self) {
        let Some(job) = self.state.lock().current.clone() else { return };
        match serde_json::to_string(&job) {
            Ok(text) => self.store_fact(BACKUP_JOB, Some(&text)).await,
            Err(error) => tracing::error!(%error, "A job with backups could not be written as JSON."),
        }
    }

    /// Stores how far the job has come, unless that was done a moment ago.
    pub(super) async fn remember_progress(&self) {
        let now = self.shared.clock.monotonic();
        let is_due = {
            let mut state = self.state.lock();
            let is_due = now.saturating_sub(state.remembered_at) >= PROGRESS_INTERVAL;
            if is_due {
                state.remembered_at = now;
            }
            is_due
        };
        if is_due {
            self.remember_job().await;
        }
    }

    /// Stores that the job is over, and whether everything is backed up now.
    pub(super) async fn conclude_job(&self, job: &Job, ended: &BackupJob) {
        let is_of_all = job.owner.is_none() && job.filter.product_id.is_none();
        if is_of_all && ended.action == BackupAction::BackUp && ended.failed == 0 && ended.error.is_none() {
            self.state.lock().saved_at = Some(ended.started_at);
            let text = ended.started_at.unix_ms().to_string();
            self.store_fact(SUCCEEDED_AT, Some(&text)).await;
        }
        self.store_fact(BACKUP_JOB, None).await;
    }

    /// The time since all engines were backed up without a failure, or since this orchestrator began to wait for that;
    /// zero if there is no schedule.
    pub(crate) fn age(&self) -> Duration {
        let saved_at = self.state.lock().saved_at.filter(|_| self.interval().is_some());
        let age_ms = saved_at.map_or(0, |at| self.shared.clock.now().unix_ms().saturating_sub(at.unix_ms()));
        Duration::from_millis(u64::try_from(age_ms).unwrap_or_default())
    }

    /// The time between two backups by the schedule.
    pub(crate) fn interval(&self) -> Option<Duration> {
        self.transfers.settings().and_then(|settings| settings.interval)
    }

    async fn store_fact(&self, name: &str, value: Option<&str>) {
        if let Err(error) = self.shared.registry.replace_meta(name, value, None).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                name,
                "The registry could not note the state of a job with backups."
            );
        }
    }
}

/// The error of a job that the orchestrator's end has interrupted.
pub(super) fn interrupted() -> FleetError {
    FleetError::Backup(
        "the orchestrator ended while this job was under way: what it had done remains, and the rest was not done; start \
         it again"
            .to_owned(),
    )
}
