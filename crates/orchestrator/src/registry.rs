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
    /// How often the hot read was made.
    #[cfg(test)]
    hot_reads: std::sync::atomic::AtomicUsize,
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

    /// Where the hot read is made.
    fn hot(&self) -> &PointReads {
        #[cfg(test)]
        self.hot_reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        &self.point_reads
    }

    /// How often the hot read was made.
    #[cfg(test)]
    pub(crate) fn hot_reads(&self) -> usize {
        self.hot_reads.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Lets nothing be asked any more but the hot read.
    #[cfg(test)]
    pub(crate) async fn close_all_but_hot_reads(&self) {
        self.reads.close().await;
        self.writes.close().await;
    }

    /// The database has no room for another page from now on, or has again.
    #[cfg(test)]
    pub(crate) async fn fill_disk(&self, full: bool) {
        // Less than it has already counts as what it has.
        self.pragma(if full { "PRAGMA max_page_count = 1" } else { "PRAGMA max_page_count = 1073741823" })
            .await;
    }

    /// The database cannot be written to from now on, or can again.
    #[cfg(test)]
    pub(crate) async fn lock_disk(&self, locked: bool) {
        self.pragma(if locked { "PRAGMA query_only = ON" } else { "PRAGMA query_only = OFF" }).await;
    }

    /// Sets something on the one connection that writes.
    #[cfg(test)]
    async fn pragma(&self, pragma: &'static str) {
        sqlx::raw_sql(pragma).execute(&self.writes).await.unwrap();
    }

    /// Whether no connection is in use.
    #[cfg(test)]
    pub(crate) fn is_quiet(&self) -> bool {
        [&self.writes, &self.reads].iter().all(|pool| pool.num_idle() == pool.size() as usize)
    }
}
