//! What can go wrong with the registry once it is open.

use contract::EngineId;

/// A failure of the registry. None of these is a rule's refusal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistryError {
    /// The database failed: full, read-only, gone, corrupt.
    #[error("the registry's database failed")]
    Database(#[from] sqlx::Error),
    /// The hot read failed, for such a reason.
    #[error("the registry's database failed")]
    PointRead(#[from] rusqlite::Error),
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
    /// A ledger transaction announced another number of rows than it wrote.
    #[error("a ledger transaction ended with rows unwritten")]
    LedgerIncomplete,
    /// The claim under which a change was made is no longer in force.
    #[error("the claim on {engine_id} was taken over")]
    ClaimLost {
        /// Whose claim.
        engine_id: EngineId,
    },
}
