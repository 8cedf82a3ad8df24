//! What must last: products, engines and the ledger. The only room that writes SQL.
//!
//! The queries are one set for every database that `sqlx`'s `Any` driver speaks. Every transaction that claims
//! or moves an engine, or writes the ledger, goes through [`ledger::Ledger`], which first takes the product's
//! row: that serializes a product's changes, so that quota, port, state and audit row are judged and written
//! together.

mod access;
mod audit;
mod chain;
mod engines;
mod error;
mod figures;
mod generation;
mod hold;
mod ledger;
mod meta;
mod news;
mod open;
mod point;
mod ports;
mod postgres;
mod products;
mod remote;
mod reseal;
mod row;
mod set_aside;
mod stamps;
mod stored_policy;
mod transition;
mod verify;
mod version;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use contract::ProductId;
use service::lock::FileLock;
use sqlx::{Any, AnyConnection, AnyPool, Transaction};

use access::within;
pub(crate) use audit::AuditFilter;
pub(crate) use engines::{Claim, Move, NewEngine, Next, Page, PendingKey, Refused};
pub(crate) use error::RegistryError;
use hold::Hold;
pub(crate) use ledger::{Entry, Event};
pub(crate) use meta::{CANARY, DEPLOYMENT_ID, HOST};
use news::News;
pub(crate) use open::OpenRegistryError;
use point::PointReads;
pub(crate) use point::Standing;
pub(crate) use ports::PortRule;
pub(crate) use products::Product;
pub(crate) use reseal::{ResealError, Sealed};
pub(crate) use row::EngineRow;
use set_aside::SetAside;
pub(crate) use stamps::{Stamp, Supervised};
pub use verify::{Break, Checked, VerifyError, verify};
pub(crate) use verify::{Inventory, check_usable, inventory, is_there};

use crate::locks::KeyedLocks;

/// One engine at most sits at each: a product's user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Seat {
    pub(crate) product_id: ProductId,
    pub(crate) user_id: contract::UserId,
}

/// The registry of one deployment, held by this process alone.
pub(crate) struct Registry {
    /// On SQLite one connection: it has one writer, and waiting for it here is fair and wakes at once, where its
    /// own busy handler polls.
    writes: AnyPool,
    reads: AnyPool,
    point_reads: PointReads,
    news: Arc<News>,
    /// Held by whoever changes a product, before a connection is taken: of one product's callers one waits for its row in
    /// the database, and the connections are the other products'.
    turns: KeyedLocks<ProductId>,
    /// Rows that this version cannot read.
    set_aside: SetAside,
    /// How often the hot read was made.
    #[cfg(test)]
    hot_reads: std::sync::atomic::AtomicUsize,
    /// Held as long as the registry is open.
    lock: Lock,
}

/// What keeps other orchestrators out.
enum Lock {
    /// On a file beside the SQLite file.
    File { _lock: FileLock },
    /// In a PostgreSQL database.
    Session(Hold),
}

impl Registry {
    /// Closes the connections, which folds SQLite's log back into the file.
    pub(crate) async fn close(&self) {
        // SQLite folds its log when the last connection closes, which must be one that may write.
        self.point_reads.close();
        self.reads.close().await;
        self.writes.close().await;
        if let Lock::Session(hold) = &self.lock {
            hold.release().await;
        }
    }

    /// Begins a transaction that writes without a product's ledger, while the registry is still ours.
    async fn begin(&self) -> Result<Transaction<'static, Any>, RegistryError> {
        let mut transaction = within(self.writes.begin()).await?;
        self.check_fence(&mut transaction).await?;
        Ok(transaction)
    }

    /// Fails if another orchestrator has taken the registry over: what backends run is its own then.
    pub(crate) async fn check_ours(&self) -> Result<(), RegistryError> {
        match &self.lock {
            Lock::File { .. } => Ok(()),
            Lock::Session(_) => self.begin().await.map(drop),
        }
    }

    /// Makes sure that the registry is ours, and stays so until the transaction ends.
    async fn check_fence(&self, connection: &mut AnyConnection) -> Result<(), RegistryError> {
        let Lock::Session(hold) = &self.lock else { return Ok(()) };
        let fence = sqlx::query("SELECT value FROM meta WHERE name = 'epoch' AND value = $1 FOR SHARE");
        let fence = fence.bind(hold.epoch().to_owned()).fetch_optional(connection);
        if within(fence).await?.is_none() {
            hold.deposed().cancel();
            return Err(RegistryError::Deposed);
        }
        Ok(())
    }

    /// Lets nobody else lease a port or touch several engines until the transaction ends. On SQLite there is nobody
    /// else.
    async fn lock_several(&self, connection: &mut AnyConnection) -> Result<(), RegistryError> {
        match &self.lock {
            Lock::File { .. } => Ok(()),
            Lock::Session(_) => postgres::lock_several(connection).await,
        }
    }

    /// Returns when another orchestrator has taken the registry over.
    pub(crate) async fn deposed(&self) {
        match &self.lock {
            Lock::File { .. } => std::future::pending().await,
            Lock::Session(hold) => hold.deposed().cancelled().await,
        }
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
        self.point_reads.is_quiet()
            && [&self.writes, &self.reads].iter().all(|pool| pool.num_idle() == pool.size() as usize)
    }
}
