//! `roundhouse restore registry`: fills an empty database with the registry of a backup, on a host that has nothing.
//!
//! Afterwards the orchestrator is started, and the engines are restored through it. Until then, whoever needs one is told
//! that its data is missing.

use std::io::{self, Seek as _, Write as _};
use std::path::PathBuf;

use backend::{DataRoot, KnownData};
use backup::stream::{Decoder, Frame};
use backup::{BackupError, BackupId, Owner, Store, Target};
use http_service::env::{ConfigErrors, Env, EnvReader};

use crate::config::{BackendKind, DatabaseUrl, read_data_root, read_target};
use crate::keys::{KeyError, MasterKey, Purpose, Vault};
use crate::orchestrator::KEY_CHECK_TEXT;
use crate::registry::{self, DEPLOYMENT_ID, DumpError, KEY_CHECK, RestoredRows};

/// The registry to restore, and where to.
#[derive(Clone, Debug)]
pub struct RegistryRestore {
    /// The database, which must be empty.
    pub database: DatabaseUrl,
    /// The key under which the backups are sealed.
    pub master_key: MasterKey,
    /// Where the backups are.
    pub target: Target,
    /// The folder that is to hold the engines' data; `None` if it is not on this host.
    pub data_root: Option<PathBuf>,
    /// The backup; `None` for the latest.
    pub backup_id: Option<BackupId>,
}

/// Why a registry was not restored: the database is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RegistryRestoreError {
    /// The place of the backups cannot be used.
    #[error(transparent)]
    Target(#[from] backup::InvalidTarget),
    /// The backup cannot be read.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The database is not empty.
    #[error("{0} is not empty: a registry is restored only into an empty database")]
    NotEmpty(DatabaseUrl),
    /// The rows cannot be inserted.
    #[error("the registry could not be restored; the database is as it was")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The registry is restored, and the folder for the engines' data cannot be used.
    #[error("the registry is restored, but {path} (ORCH_DATA_ROOT_PATH) cannot be used: {reason}")]
    DataRoot {
        /// The folder.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// A registry that was restored.
#[derive(Clone, Copy, Debug)]
pub struct RegistryRestored {
    /// The backup.
    pub backup_id: BackupId,
    /// What was inserted.
    pub rows: RestoredRows,
    /// Whether its secrets are sealed under another master key, as they are in backups from before a `rekey`.
    pub needs_rekey: bool,
}

impl RegistryRestore {
    /// Reads `ORCH_DATABASE_URL`, `ORCH_MASTER_KEY`, `ORCH_BACKUP_URL`, `ORCH_BACKEND` and `ORCH_DATA_ROOT_PATH`.
    pub fn from_env(env: &dyn Env, backup_id: Option<BackupId>) -> Result<Self, ConfigErrors> {
        let mut reader = EnvReader::new(env);
        let database = DatabaseUrl::read(&mut reader);
        let master_key = reader.required_secret(
            "ORCH_MASTER_KEY",
            "the key that was in use when the backup was made: 43 characters",
            MasterKey::parse,
        );
        let target = if reader.text("ORCH_BACKUP_URL").is_none() {
            reader.required("ORCH_BACKUP_URL", Target::EXPECTED, |_| None)
        } else {
            read_target(&mut reader, env)
        };
        let data_root = match BackendKind::read(&mut reader) {
            BackendKind::Kubernetes(_) => None,
            BackendKind::Process | BackendKind::Docker { .. } => Some(read_data_root(&mut reader)),
        };
        let restore = database.zip(master_key).zip(target).map(|((database, master_key), target)| Self {
            database,
            master_key,
            target,
            data_root,
            backup_id,
        });
        reader.finish(restore)
    }

    /// Restores the registry: all of it, or nothing.
    pub async fn run(&self) -> Result<RegistryRestored, RegistryRestoreError> {
        let store = Store::open(&self.target, &self.master_key, false).await??;
        let (backup_id, rows) = self.fetch(&store).await?;
        let failed = |error: DumpError| match error {
            DumpError::NotEmpty => RegistryRestoreError::NotEmpty(self.database.clone()),
            error => RegistryRestoreError::Failed(error.into()),
        };
        let restored = registry::restore(&self.database, io::BufReader::new(rows)).await.map_err(failed)?;
        let facts = registry::facts(&self.database, [DEPLOYMENT_ID, KEY_CHECK]).await;
        let [deployment_id, key_check] = facts.map_err(failed)?;
        if let (Some(path), Some(deployment_id)) = (&self.data_root, deployment_id) {
            mark_data_root(path, deployment_id)?;
        }
        let opens = |vault: Vault, sealed: &str| {
            let opened: Result<_, KeyError> = vault.open(DEPLOYMENT_ID, Purpose::KeyCheck, sealed);
            opened.is_ok_and(|text| *text == KEY_CHECK_TEXT)
        };
        let vault = Vault::new(&self.master_key);
        let vault = vault.map_err(|error| RegistryRestoreError::Failed(error.into()))?;
        let needs_rekey = key_check.is_some_and(|sealed| !opens(vault, &sealed));
        Ok(RegistryRestored { backup_id, rows: restored, needs_rekey })
    }

    /// Reads the whole backup into a file without a name, before anything is changed.
    async fn fetch(&self, store: &Store) -> Result<(BackupId, std::fs::File), RegistryRestoreError> {
        let io_failed = |error: io::Error| RegistryRestoreError::Failed(error.into());
        let mut rows = tempfile::tempfile().map_err(io_failed)?;
        let (backup_id, mut content) = store.content(Owner::Registry, self.backup_id).await?;
        let mut decoder = Decoder::default();
        while let Some(bytes) = content.next().await? {
            decoder.push(&bytes);
            while let Some((frame, _)) = decoder.next_frame().map_err(BackupError::from)? {
                if let Frame::Data(block) = frame {
                    rows.write_all(&block).map_err(io_failed)?;
                }
            }
        }
        rows.seek(io::SeekFrom::Start(0)).map_err(io_failed)?;
        Ok((backup_id, rows))
    }
}

/// Makes the folder for the engines' data this deployment's, unless it is another's: nothing else would, because a
/// missing disk looks the same as a new host.
fn mark_data_root(path: &std::path::Path, deployment_id: String) -> Result<(), RegistryRestoreError> {
    let mut root = DataRoot::new(path.to_owned(), deployment_id, KnownData::default());
    root.check().map_err(|reason| RegistryRestoreError::DataRoot {
        path: path.to_owned(),
        reason: reason.to_string(),
    })
}
