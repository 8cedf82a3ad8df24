//! The errors of backups. Their texts name objects of the store, never what is in them.

use crate::stream::StreamError;

/// Why a backup could not be made, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The store failed, or refuses access.
    #[error("the backup store failed: {0}")]
    Store(#[source] Box<object_store::Error>),
    /// The store did not answer in time.
    #[error("the backup store did not answer within {seconds} s")]
    TimedOut {
        /// The time limit in seconds.
        seconds: u64,
    },
    /// An object that should be there is missing.
    #[error("the backup is incomplete: its object {object} is missing")]
    Missing {
        /// The object's name.
        object: String,
    },
    /// An object does not contain what was stored.
    #[error("the backup is damaged: its object {object} {reason}")]
    Damaged {
        /// The object's name.
        object: String,
        /// What is wrong, as the end of a sentence.
        reason: &'static str,
    },
    /// An object was written by a later version.
    #[error(
        "the backup was written by a later version of roundhouse (format {found}): restore it with that version"
    )]
    NewerFormat {
        /// The format's version.
        found: u32,
    },
    /// The store's root key is sealed under another master key.
    #[error(
        "the backups are sealed under another master key than ORCH_MASTER_KEY: set the key that was in use when they \
         were made, or seal them under this one with `roundhouse rekey`"
    )]
    WrongMasterKey,
    /// There is no such backup.
    #[error("there is no such backup")]
    NotFound,
    /// The engine's stream, or a backup's content, is not a valid stream.
    #[error("the content is invalid: {0}")]
    Content(#[from] StreamError),
    /// The operating system's random source failed.
    #[error("the operating system's random source failed")]
    NoRandomness,
}

impl BackupError {
    /// An error of the object `object`.
    pub(crate) fn damaged(object: impl Into<String>, reason: &'static str) -> Self {
        Self::Damaged { object: object.into(), reason }
    }

    /// Whether the backup itself is at fault, so that another attempt cannot succeed.
    pub const fn is_permanent(&self) -> bool {
        match self {
            Self::Missing { .. }
            | Self::Damaged { .. }
            | Self::NewerFormat { .. }
            | Self::WrongMasterKey
            | Self::NotFound
            | Self::Content(_) => true,
            Self::Store(_) | Self::TimedOut { .. } | Self::NoRandomness => false,
        }
    }
}
