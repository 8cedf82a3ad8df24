//! The errors of an open registry.

use api::EngineId;
use api::product_state::ProductState;

use super::access::is_unreachable;
use crate::keys::KeyError;

/// A failure of the registry. Refusals by a rule, such as a quota, are not errors.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistryError {
    /// The database failed: full, read-only, gone, corrupt.
    #[error("the registry's database failed")]
    Database(#[source] sqlx::Error),
    /// The database's server is unreachable or did not answer in time: it is unknown whether the statement was
    /// executed.
    #[error("the registry's database cannot be reached")]
    Unreachable(#[source] sqlx::Error),
    /// Another orchestrator has taken over the registry. Nothing was changed.
    #[error("another orchestrator has taken over the registry")]
    LostLeadership,
    /// The hot read on SQLite failed.
    #[error("the registry's database failed")]
    HotRead(#[from] rusqlite::Error),
    /// The registry was closed.
    #[error("the registry is closed")]
    Closed,
    /// A row contains a value that this version never writes.
    #[error("the registry's column {column} contains a value that this version cannot read")]
    Unreadable {
        /// The name of the column.
        column: &'static str,
    },
    /// The answer to a call could not be sealed. Nothing was changed.
    #[error("the answer to a call could not be sealed")]
    AnswerNotSealed(#[source] KeyError),
    /// The product's row is gone.
    #[error("the product's row is gone from the registry")]
    ProductGone,
    /// The product is disabled or being deleted, or was deleted. Nothing was changed.
    #[error("the product is {}", state.as_str())]
    ProductDisabled {
        /// Its state.
        state: ProductState,
    },
    /// A transaction wrote fewer audit rows than it had announced.
    #[error("a transaction ended before all of its audit rows were written")]
    AuditIncomplete,
    /// The claim under which a change was made is no longer in force.
    #[error("the claim on engine {engine_id} was lost to another operation")]
    ClaimLost {
        /// The engine.
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
