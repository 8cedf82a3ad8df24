//! The errors of the store.

use std::path::{Path, PathBuf};

use http_service::lock::LockHolder;
use rusqlite::ErrorCode;

/// A failed read or statement of the store. Layers above report it and never look into it, so it does not reveal
/// the database behind the store.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StoreError(#[from] rusqlite::Error);

impl StoreError {
    /// The kind of failure that SQLite reported.
    pub(crate) fn sqlite_code(&self) -> Option<ErrorCode> {
        self.0.sqlite_error_code()
    }
}

/// The errors of opening and reading a brain.
#[derive(Debug, thiserror::Error)]
pub enum BrainError {
    /// The folder or the file cannot be created, read or written.
    #[error("the brain's folder {folder} cannot be used: it must be a writable folder")]
    Folder {
        /// The folder that holds the brain.
        folder: PathBuf,
        /// The error of the file system.
        #[source]
        source: std::io::Error,
    },
    /// Another engine holds the lock of the brain.
    #[error("the brain {file} is in use by another engine ({holder}): stop that one first")]
    InUse {
        /// The brain's file.
        file: PathBuf,
        /// The process that holds the lock.
        holder: LockHolder,
    },
    /// The lock file cannot be opened or locked.
    #[error("the brain's lock file {file} cannot be opened or locked: its folder must be writable")]
    Lock {
        /// The lock file.
        file: PathBuf,
        /// The error of the file system.
        #[source]
        source: std::io::Error,
    },
    /// A newer engine wrote the brain in a format that this one does not know.
    #[error(
        "the brain {file} has schema version {found}, and this engine knows versions up to {known}: \
         start it with the engine version that wrote it, or a newer one"
    )]
    NewerSchema {
        /// The brain's file.
        file: PathBuf,
        /// The schema version that was found.
        found: i64,
        /// The newest schema version that this engine knows.
        known: i64,
    },
    /// The schema needs a migration, but the backup that must precede it cannot be written.
    #[error(
        "the brain's schema must be migrated, but no backup can be written to {copy} ({reason}): \
         free disk space, or make its folder writable"
    )]
    Backup {
        /// The path of the backup.
        copy: PathBuf,
        /// The reason why it cannot be written.
        reason: String,
    },
    /// The file is not a SQLite database, or it is damaged.
    #[error(
        "the brain {file} cannot be read: it is damaged or not a brain; restore it from a backup, or move it \
         away to start with an empty one"
    )]
    Damaged {
        /// The brain's file.
        file: PathBuf,
        /// The error that SQLite reported.
        #[source]
        source: StoreError,
    },
    /// The file is a database of another program.
    #[error("{file} (SQLITE_DB_PATH) is not a brain but another program's database: it was left unchanged")]
    Foreign {
        /// The path of that file.
        file: PathBuf,
    },
    /// A statement failed in SQLite.
    #[error("a SQLite operation on the brain failed")]
    Sqlite(#[from] StoreError),
    /// The writer thread could not be started.
    #[error("the brain's writer thread could not be started")]
    Writer(#[source] std::io::Error),
}

impl BrainError {
    /// Classifies an error that SQLite reported for `file`.
    pub(crate) fn from_sqlite(file: &Path, source: impl Into<StoreError>) -> Self {
        let source = source.into();
        match source.sqlite_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                Self::Damaged { file: file.to_owned(), source }
            }
            _ => Self::Sqlite(source),
        }
    }
}
