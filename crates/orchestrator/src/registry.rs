//! What must last: products, engines and the ledger. The only room that writes SQL.
//!
//! The queries are one set for every database that `sqlx`'s `Any` driver speaks. Every transaction that claims
//! or moves an engine, or writes the ledger, goes through [`ledger::Ledger`], which first takes the product's
//! row: that serializes a product's changes, so that quota, port, state and audit row are judged and written
//! together.

mod audit;
mod chain;
mod engines;
mod error;
mod figures;
mod ledger;
mod meta;
mod news;
mod open;
mod point;
mod ports;
mod products;
mod reseal;
mod row;
mod stamps;
mod transition;
mod verify;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use contract::ProductId;
use service::lock::FileLock;
use sqlx::AnyPool;

pub(crate) use audit::AuditFilter;
pub(crate) use engines::{Claim, Move, NewEngine, Next, Page, PendingKey, Refused};
pub(crate) use error::RegistryError;
pub(crate) use ledger::{Entry, Event};
pub(crate) use meta::{CANARY, DEPLOYMENT_ID};
use news::News;
pub(crate) use open::OpenRegistryError;
use point::PointReads;
pub(crate) use point::Standing;
pub(crate) use ports::PortRule;
pub(crate) use products::Product;
pub(crate) use reseal::{ResealError, Sealed};
pub(crate) use row::EngineRow;
pub(crate) use stamps::{Stamp, Supervised};
pub use verify::{Break, Checked, VerifyError, verify};

/// One engine at most sits at each: a product's user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Seat {
    pub(crate) product_id: ProductId,
    pub(crate) user_id: contract::UserId,
}

/// The registry of one deployment, held by this process alone.
pub(crate) struct Registry {
    /// One connection: SQLite has one writer, and waiting for it here is fair and wakes at once, where its own
    /// busy handler polls.
    writes: AnyPool,
    reads: AnyPool,
    point_reads: PointReads,
    news: Arc<News>,
    /// Held as long as the registry is open.
    _lock: FileLock,
}

impl Registry {
    /// Closes the connections, which folds SQLite's log back into the file.
    pub(crate) async fn close(&self) {
        // SQLite folds its log when the last connection closes, which must be one that may write.
        self.point_reads.close();
        self.reads.close().await;
        self.writes.close().await;
    }

    /// Whether no connection is in use.
    #[cfg(test)]
    pub(crate) fn is_quiet(&self) -> bool {
        [&self.writes, &self.reads].iter().all(|pool| pool.num_idle() == pool.size() as usize)
    }
}
