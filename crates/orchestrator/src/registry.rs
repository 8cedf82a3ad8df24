//! What must last: products, engines and the ledger. The only room that writes SQL.
//!
//! The queries are one set for every database that `sqlx`'s `Any` driver speaks. Every transaction that claims
//! or moves an engine, or writes the ledger, goes through [`audit_log::ProductTx`], which first takes the product's
//! row: that serializes a product's changes, so that quota, port, state and audit row are judged and written
//! together.

mod access;
mod activity;
mod audit_log;
mod audit_queries;
mod engines;
mod error;
mod generation;
mod hash_chain;
mod hot_read;
mod last_transition;
mod leader_lock;
mod meta;
mod metrics;
mod notify;
mod open;
mod ports;
mod postgres;
mod postgres_read_pool;
mod products;
mod reseal;
mod row;
mod stored_policy;
mod unreadable_rows;
mod verify;
mod version;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use contract::ProductId;
use service::lock::FileLock;
use sqlx::{Any, AnyConnection, AnyPool, Transaction};

use access::with_deadline;
pub(crate) use activity::{EngineActivity, SupervisedEngine};
pub(crate) use audit_log::{AuditEntry, Event};
pub(crate) use audit_queries::AuditFilter;
pub(crate) use engines::{Claim, ClaimRefused, EngineMove, NewEngine, NextState, Page, PendingKey};
pub(crate) use error::RegistryError;
pub(crate) use hot_read::AdmitView;
use hot_read::HotReadPool;
use leader_lock::LeaderLock;
pub(crate) use meta::{DEPLOYMENT_ID, HOST, KEY_CHECK};
use notify::Notifier;
pub(crate) use open::OpenRegistryError;
pub(crate) use ports::PortAllocator;
pub(crate) use products::Product;
pub(crate) use reseal::{ResealError, SealedSecret};
pub(crate) use row::EngineRow;
use unreadable_rows::UnreadableRows;
pub use verify::{ChainBreak, VerifiedProduct, VerifyError, verify};
pub(crate) use verify::{Inventory, check_usable, inventory, registry_exists};

use crate::keyed_locks::KeyedLocks;

/// One engine at most sits at each: a product's user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EngineOwner {
    pub(crate) product_id: ProductId,
    pub(crate) user_id: contract::UserId,
}

/// The registry of one deployment, held by this process alone.
pub(crate) struct Registry {
    /// On SQLite one connection: it has one writer, and waiting for it here is fair and wakes at once, where its
    /// own busy handler polls.
    writes: AnyPool,
    reads: AnyPool,
    hot_read_pool: HotReadPool,
    notifier: Arc<Notifier>,
    /// Held by whoever changes a product, before a connection is taken: of one product's callers one waits for its row in
    /// the database, and the connections are the other products'.
    product_locks: KeyedLocks<ProductId>,
    /// Rows that this version cannot read.
    unreadable_rows: UnreadableRows,
    /// How often the hot read was made.
    #[cfg(test)]
    hot_reads: std::sync::atomic::AtomicUsize,
    /// Held as long as the registry is open.
    lock: RegistryLock,
}

/// What keeps other orchestrators out.
enum RegistryLock {
    /// On a file beside the SQLite file.
    File { _lock: FileLock },
    /// In a PostgreSQL database.
    Session(LeaderLock),
}

impl Registry {
    /// Closes the connections, which folds SQLite's log back into the file.
    pub(crate) async fn close(&self) {
        // SQLite folds its log when the last connection closes, which must be one that may write.
        self.hot_read_pool.close();
        self.reads.close().await;
        self.writes.close().await;
        if let RegistryLock::Session(hold) = &self.lock {
            hold.release().await;
        }
    }

    /// Begins a transaction that writes without a product's ledger, while the registry is still ours.
    async fn begin(&self) -> Result<Transaction<'static, Any>, RegistryError> {
        let mut transaction = with_deadline(self.writes.begin()).await?;
        self.check_epoch(&mut transaction).await?;
        Ok(transaction)
    }

    /// Fails if another orchestrator has taken the registry over: what backends run is its own then.
    pub(crate) async fn check_leadership(&self) -> Result<(), RegistryError> {
        match &self.lock {
            RegistryLock::File { .. } => Ok(()),
            RegistryLock::Session(_) => self.begin().await.map(drop),
        }
    }

    /// Makes sure that the registry is ours, and stays so until the transaction ends.
    async fn check_epoch(&self, connection: &mut AnyConnection) -> Result<(), RegistryError> {
        let RegistryLock::Session(hold) = &self.lock else { return Ok(()) };
        let fence = sqlx::query("SELECT value FROM meta WHERE name = 'epoch' AND value = $1 FOR SHARE");
        let fence = fence.bind(hold.epoch().to_owned()).fetch_optional(connection);
        if with_deadline(fence).await?.is_none() {
            hold.lost_leadership().cancel();
            return Err(RegistryError::LostLeadership);
        }
        Ok(())
    }

    /// Lets nobody else lease a port or touch several engines until the transaction ends. On SQLite there is nobody
    /// else.
    async fn lock_multi_engine(&self, connection: &mut AnyConnection) -> Result<(), RegistryError> {
        match &self.lock {
            RegistryLock::File { .. } => Ok(()),
            RegistryLock::Session(_) => postgres::lock_multi_engine(connection).await,
        }
    }

    /// Returns when another orchestrator has taken the registry over.
    pub(crate) async fn lost_leadership(&self) {
        match &self.lock {
            RegistryLock::File { .. } => std::future::pending().await,
            RegistryLock::Session(hold) => hold.lost_leadership().cancelled().await,
        }
    }

    /// Where the hot read is made.
    fn hot_read(&self) -> &HotReadPool {
        #[cfg(test)]
        self.hot_reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        &self.hot_read_pool
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
    pub(crate) fn is_idle(&self) -> bool {
        self.hot_read_pool.is_idle()
            && [&self.writes, &self.reads].iter().all(|pool| pool.num_idle() == pool.size() as usize)
    }
}
