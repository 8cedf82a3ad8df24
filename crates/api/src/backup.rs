//! Backups: what an orchestrator and its engines agree on, and the operator's endpoints.

use std::fmt;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;
use utoipa::ToSchema;
use zeroize::Zeroizing;

use crate::browser::TokenSecret;
use crate::{EngineId, ErrorDetail, ProductId, Timestamp, UserId};

/// The path at which an engine sends its backup to its orchestrator. It is no part of the engine's API.
pub const BACKUP_PATH: &str = "/internal/backup";
/// The path at which an engine in maintenance receives what it is to be restored to.
pub const RESTORE_PATH: &str = "/internal/restore";
/// The header with the key for both.
pub const BACKUP_KEY_HEADER: &str = "x-backup-key";
/// The engine's variable that starts it for maintenance: it runs no agent, and only sends or receives a backup.
pub const MAINTENANCE_VAR: &str = "ENGINE_MAINTENANCE";

/// The key with which an orchestrator asks an engine for its backup: the product, which has the engine's key, does not
/// have this one.
pub struct BackupKey(Zeroizing<String>);

impl BackupKey {
    /// Derives the key of the engine with this secret.
    pub fn derive(secret: &TokenSecret) -> Self {
        Self(Zeroizing::new(secret.backup_key()))
    }

    /// Returns the key's text. Only for the header.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether `text` is this key.
    pub fn matches(&self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(text.as_bytes()).into()
    }
}

impl fmt::Debug for BackupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("backup key…")
    }
}

/// Answer of an engine that was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// How many entries were restored.
    pub entries: u64,
    /// The bytes of their content.
    pub bytes: u64,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackupAction {
    /// Back up the engines, and the registry if the job is about all of them.
    BackUp,
    /// Read backups from the store, and check that they can be restored.
    Verify,
    /// Replace brains and workspaces by those of backups.
    Restore,
    /// Remove backups that are not kept any more, and what no backup needs.
    Collect,
}

/// Body of `POST /fleet/backups`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StartBackupJob {
    /// What to do.
    pub action: BackupAction,
    /// Only engines of this product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_id: Option<ProductId>,
    /// Only this user's engine; `product_id` must be there too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    /// The backup to verify or restore, for a single engine; by default the latest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_id: Option<String>,
    /// Back up engines that have not changed, too, and store again what the store has already.
    #[serde(default)]
    pub full: bool,
}

/// A job with backups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackupJob {
    /// What it does.
    pub action: BackupAction,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended; null while it runs, and for a job that its orchestrator's end has interrupted.
    pub ended_at: Option<Timestamp>,
    /// How many engines it is about, the registry counted as one.
    pub total: u64,
    /// How many of them are done.
    pub done: u64,
    /// How many of those had nothing to do, because they have not changed.
    pub unchanged: u64,
    /// How many have failed.
    pub failed: u64,
    /// The bytes of content that were backed up, verified or restored.
    pub bytes: u64,
    /// The bytes that were added to the store, or removed from it.
    pub stored_bytes: u64,
    /// Why it ended before its end; null if it did not.
    pub error: Option<ErrorDetail>,
    /// The first failures.
    pub failures: Vec<BackupFailure>,
}

/// An engine of which a job has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackupFailure {
    /// The engine; null for the registry.
    pub engine_id: Option<EngineId>,
    /// Its product.
    pub product_id: Option<ProductId>,
    /// Its user.
    pub user_id: Option<UserId>,
    /// The error.
    pub error: ErrorDetail,
}

/// Answer of `GET /fleet/backups`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackupStatus {
    /// Where backups are kept; null if they are not configured.
    pub target: Option<String>,
    /// The seconds between two backups by the schedule; null if there is none.
    pub interval_s: Option<u64>,
    /// How many of the latest backups of an engine are kept, however old they are.
    pub keep_last: Option<u64>,
    /// For how many days each backup is kept.
    pub keep_days: Option<u64>,
    /// When the next backup by the schedule begins.
    pub next_at: Option<Timestamp>,
    /// The job under way.
    pub current: Option<BackupJob>,
    /// The latest jobs that have ended, the last one first.
    pub recent: Vec<BackupJob>,
}

/// Query of `GET /fleet/backups/list`.
#[derive(Clone, Debug, Deserialize)]
pub struct ListBackups {
    /// The engine's product; without it, the registry's backups are listed.
    #[serde(default)]
    pub product_id: Option<ProductId>,
    /// The engine's user.
    #[serde(default)]
    pub user_id: Option<UserId>,
}

/// Answer of `GET /fleet/backups/list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackupList {
    /// The backups, the latest first.
    pub backups: Vec<StoredBackup>,
}

/// A backup in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredBackup {
    /// Its id.
    pub backup_id: String,
    /// When it was made.
    pub at: Timestamp,
    /// Whether the engine did nothing meanwhile.
    pub at_rest: bool,
    /// The version of the program that the engine ran.
    pub version: String,
    /// Files, folders and links, with the brain.
    pub entries: u64,
    /// The bytes of their content.
    pub bytes: u64,
    /// Files that could not be read, and sockets and the like.
    pub skipped: u64,
}
