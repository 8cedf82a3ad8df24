//! What can go wrong with the registry once it is open.

use api::EngineId;

use super::access::is_unreachable;

/// A failure of the registry. None of these is a rule's refusal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistryError {
    /// The database failed: full, read-only, gone, corrupt.
    #[error("the registry's database failed")]
    Database(#[source] sqlx::Error),
    /// The database's server is out of reach, or did not answer in time: whether it did what it was asked is not
    /// known.
    #[error("the registry's database cannot be reached")]
    Unreachable(#[source] sqlx::Error),
    /// Another orchestrator has taken the registry over. Nothing was changed.
    #[error("another orchestrator has taken over the registry")]
    LostLeadership,
    /// The hot read failed, for such a reason.
    #[error("the registry's database failed")]
    HotRead(#[from] rusqlite::Error),
    /// It was closed.
    #[error("the registry is closed")]
    Closed,
    /// A row holds what this version never writes.
    #[error("the registry's column {column} holds what this version cannot read")]
    Unreadable {
        /// Which column.
        column: &'static str,
    },
    /// The product's row is gone.
    #[error("the registry has no row for a product it had")]
    ProductGone,
    /// A audit log transaction announced another number of rows than it wrote.
    #[error("a ledger transaction ended with rows unwritten")]
    AuditIncomplete,
    /// The claim under which a change was made is no longer in force.
    #[error("the claim on {engine_id} was taken over")]
    ClaimLost {
        /// Whose claim.
        engine_id: EngineId,
    },
}

impl From<sqlx::Error> for RegistryError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::PoolClosed => Self::Closed,
            error if is_unreachable(&error) => Self::Unreachable(error),
            error => Self::Database(error),
        }
    }
}
