//! Why the registry could not be opened.

use std::io;

use http_service::lock::{LockError, LockHolder};
use sqlx::error::DatabaseError;

use super::access::is_unreachable;

/// Why the registry could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenRegistryError {
    /// Another process holds it.
    #[error("the registry is held by {0}")]
    Held(LockHolder),
    /// Its folder or lock file cannot be used.
    #[error("the registry's folder or lock file cannot be used")]
    Folder(#[source] io::Error),
    /// A later version wrote it.
    #[error("the registry's schema has version {found}; this binary supports versions up to {known}")]
    SchemaTooNew {
        /// The version found.
        found: i64,
        /// The latest version that this binary supports.
        known: i64,
    },
    /// It contains foreign tables.
    #[error("the database contains a table `{table}` that does not belong to the registry")]
    ForeignTables {
        /// One of its tables.
        table: String,
    },
    /// The server is reachable and denies access.
    #[error("the database server denies access: {reason}")]
    Refused {
        /// The server's message.
        reason: String,
    },
    /// The server is unreachable.
    #[error("the database server cannot be reached")]
    Unreachable(#[source] sqlx::Error),
    /// The file is no database, or a damaged one.
    #[error("the file is not a SQLite database, or a damaged one")]
    Corrupt(#[source] sqlx::Error),
    /// The connection for point reads could not be opened.
    #[error("the database cannot be read")]
    HotReadPool(#[source] rusqlite::Error),
    /// Any other error of the database.
    #[error("the database failed")]
    Database(#[source] sqlx::Error),
}

impl From<LockError> for OpenRegistryError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Held(holder) => Self::Held(holder),
            LockError::Io { source, .. } => Self::Folder(source),
        }
    }
}

impl From<sqlx::Error> for OpenRegistryError {
    fn from(error: sqlx::Error) -> Self {
        if is_unreachable(&error) {
            return Self::Unreachable(error);
        }
        let database_error = error.as_database_error();
        let code = database_error.and_then(DatabaseError::code).unwrap_or_default();
        // PostgreSQL's codes have five characters, unlike any of SQLite's. Its message says what is wrong, such
        // as a missing database.
        if let Some(refusal) = database_error.filter(|_| code.len() == 5) {
            return Self::Refused { reason: refusal.message().to_owned() };
        }
        // SQLITE_CORRUPT, SQLITE_NOTADB: the primary code is the low byte.
        let primary = code.parse::<i64>().ok().map(|code| code & 0xff);
        if matches!(primary, Some(11 | 26)) { Self::Corrupt(error) } else { Self::Database(error) }
    }
}
