//! The registry: persistent products, engines and the audit log. The only module of the crate that writes SQL.
//!
//! One set of queries serves every database that `sqlx`'s `Any` driver supports. Every transaction that claims or
//! changes an engine, or writes the audit log, goes through [`audit_log::ProductTx`], which first locks the
//! product's row. This serializes the changes of a product, so that quota, port, state and audit row are checked
//! and written together.

mod access;
mod activity;
mod admit_days;
mod audit_log;
mod audit_queries;
mod audit_webhooks;
mod backup_erasures;
mod browser;
mod claims;
mod drift;
mod dump;
mod engines;
mod error;
mod fleet_queries;
mod generation;
mod hash_chain;
mod hot_read;
mod idempotency;
mod inbox;
mod last_transition;
mod leader_lock;
mod meta;
mod metrics;
mod notify;
mod open;
mod open_error;
mod platform_keys;
mod ports;
mod postgres;
mod postgres_read_pool;
mod product_states;
mod products;
mod reseal;
mod rollouts;
mod row;
mod schema;
mod stored_policy;
mod unreadable_rows;
mod usage;
mod usage_queries;
mod verify;
mod version;
mod wakes;
mod warm_engines;
mod webhook_progress;

#[cfg(test)]
#[path = "../tests/unit/registry/mod.rs"]
mod tests;

use std::sync::Arc;

use api::ProductId;
use http_service::lock::FileLock;
use resources::keyed_locks::KeyedLocks;
use sqlx::{Any, AnyConnection, AnyPool, Transaction};

use access::with_deadline;
pub(crate) use activity::{EngineActivity, SupervisedEngine};
pub(crate) use admit_days::AdmitsOfDay;
pub(crate) use audit_log::{AuditEntry, Event};
pub(crate) use audit_queries::AuditFilter;
pub(crate) use audit_webhooks::{NewWebhook, WebhookChange, WebhookRefused, WebhookRow};
pub(crate) use backup_erasures::BACKUP_JOB;
pub(crate) use browser::MintRefused;
pub(crate) use claims::{Claim, ClaimRefused, FIRST_GENERATION, NewEngine, PendingKey};
pub use dump::RestoredRows;
pub(crate) use dump::{DumpError, dump, facts, restore};
pub(crate) use engines::{EngineMove, NextState, Page};
pub(crate) use error::RegistryError;
pub(crate) use fleet_queries::{FleetFilter, ListedEngine, ProductCounts};
pub(crate) use hot_read::AdmitView;
use hot_read::HotReadPool;
pub(crate) use idempotency::{CallMark, ClaimingCall, NewCall, StoredAnswer, StoredCall};
use leader_lock::LeaderLock;
pub(crate) use meta::{DEPLOYMENT_ID, HOST, KEY_CHECK};
use notify::Notifier;
pub(crate) use open_error::OpenRegistryError;
pub(crate) use platform_keys::{KeyRefused, StoredKey};
pub(crate) use ports::{Placements, PortAllocator};
pub(crate) use products::Product;
pub(crate) use reseal::{ResealError, SealedSecret};
pub(crate) use rollouts::{Candidates, MovedRow, RolloutEngineRow, RolloutRow};
pub(crate) use row::{EngineRow, PlacedEngine, RunningEngine};
use unreadable_rows::UnreadableRows;
pub(crate) use usage_queries::{REMOVED_ENGINES, UsageByDay, UsageByEngine, UsageByProduct, UsagePeriod};
pub use verify::{ChainBreak, VerifiedProduct, VerifyError, verify};
pub(crate) use verify::{FoundRegistry, Inventory, check_usable, inventory, registry_exists};
pub(crate) use wakes::ScheduledWake;
pub(crate) use warm_engines::{ListedWarmEngine, NewWarmEngine, WarmOffer, WarmRow};
pub(crate) use webhook_progress::{ProgressUpdate, RetriedLetter};

/// The registry of one deployment, locked by this process.
pub(crate) struct Registry {
    /// The write pool. On SQLite it has one connection: SQLite allows one writer, and waiting for the pool is
    /// fair and wakes at once, whereas SQLite's busy handler polls.
    writes: AnyPool,
    reads: AnyPool,
    hot_read_pool: HotReadPool,
    notifier: Arc<Notifier>,
    /// The lock of a product, acquired before a connection for any change of it: at most one caller per product
    /// waits for its row in the database, which leaves the connections to the other products.
    product_locks: KeyedLocks<ProductId>,
    /// The rows that this version cannot read.
    unreadable_rows: UnreadableRows,
    /// The number of hot reads executed.
    #[cfg(test)]
    hot_reads: std::sync::atomic::AtomicUsize,
    #[cfg(test)]
    write_fault: open::WriteFault,
    /// The lock held for as long as the registry is open.
    lock: RegistryLock,
}

/// The connections and the lock of an opened registry.
struct OpenedRegistry {
    writes: AnyPool,
    reads: AnyPool,
    hot_read_pool: HotReadPool,
    lock: RegistryLock,
    #[cfg(test)]
    write_fault: open::WriteFault,
}

/// The lock that excludes other orchestrators.
enum RegistryLock {
    /// A lock on a file beside the SQLite file.
    File { _lock: FileLock },
    /// The leader lock in a PostgreSQL database.
    Session(LeaderLock),
}

impl Registry {
    /// Closes the connections, which checkpoints SQLite's WAL into the database file.
    pub(crate) async fn close(&self) {
        self.close_pools().await;
        if let RegistryLock::Session(lock) = &self.lock {
            lock.release().await;
        }
    }

    /// Closes all connections but the one with the lock.
    pub(crate) async fn close_pools(&self) {
        // SQLite checkpoints its WAL when the last connection closes, which must be a writable one.
        self.hot_read_pool.close();
        self.reads.close().await;
        self.writes.close().await;
    }

    /// Begins a transaction that writes without a product's audit log, after checking that this process still
    /// leads.
    async fn begin(&self) -> Result<Transaction<'static, Any>, RegistryError> {
        let mut transaction = with_deadline(self.writes.begin()).await?;
        self.check_epoch(&mut transaction).await?;
        Ok(transaction)
    }

    /// Fails if another orchestrator has taken over the registry, which then owns what the backends run.
    pub(crate) async fn check_leadership(&self) -> Result<(), RegistryError> {
        match &self.lock {
            RegistryLock::File { .. } => Ok(()),
            RegistryLock::Session(_) => self.begin().await.map(drop),
        }
    }

    /// Checks that this process holds the registry, and ensures that it does until the transaction ends.
    async fn check_epoch(&self, connection: &mut AnyConnection) -> Result<(), RegistryError> {
        let RegistryLock::Session(lock) = &self.lock else { return Ok(()) };
        let fence = sqlx::query("SELECT value FROM meta WHERE name = 'epoch' AND value = $1 FOR SHARE");
        let fence = fence.bind(lock.epoch().to_owned()).fetch_optional(connection);
        if with_deadline(fence).await?.is_none() {
            lock.lost_leadership().cancel();
            return Err(RegistryError::LostLeadership);
        }
        Ok(())
    }

    /// Prevents others from leasing a port or changing several engines until the transaction ends. On SQLite
    /// there are no others.
    async fn lock_multi_engine(&self, connection: &mut AnyConnection) -> Result<(), RegistryError> {
        match &self.lock {
            RegistryLock::File { .. } => Ok(()),
            RegistryLock::Session(_) => postgres::lock_multi_engine(connection).await,
        }
    }

    /// Whether no other orchestrator can have taken over the registry by now. Does not ask the database.
    pub(crate) fn is_leading(&self) -> bool {
        match &self.lock {
            RegistryLock::File { .. } => true,
            RegistryLock::Session(lock) => lock.is_leased(),
        }
    }

    /// Like [`Registry::is_leading`], but waits for a moment while the connection with the lock is made anew.
    pub(crate) async fn is_leading_again(&self) -> bool {
        match &self.lock {
            RegistryLock::File { .. } => true,
            RegistryLock::Session(lock) => lock.is_leased_again().await,
        }
    }

    /// Waits for `read`, but no longer than this orchestrator certainly leads: whoever asked is better served by its
    /// successor than by waiting for a server that does not answer.
    async fn while_leading<T>(
        &self,
        read: impl Future<Output = Result<T, RegistryError>>,
    ) -> Result<T, RegistryError> {
        let lease_expired = async {
            match &self.lock {
                RegistryLock::File { .. } => std::future::pending().await,
                // Only a read that is not answered at once gets here.
                RegistryLock::Session(lock) => Box::pin(lock.lease_expired()).await,
            }
        };
        tokio::select! {
            biased;
            result = read => result,
            () = lease_expired => {
                Err(RegistryError::Unreachable(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())))
            }
        }
    }

    /// Returns when another orchestrator has taken over the registry.
    pub(crate) async fn lost_leadership(&self) {
        match &self.lock {
            RegistryLock::File { .. } => std::future::pending().await,
            RegistryLock::Session(lock) => lock.lost_leadership().cancelled().await,
        }
    }

    /// The pool for the hot read.
    fn hot_read(&self) -> &HotReadPool {
        #[cfg(test)]
        self.hot_reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        &self.hot_read_pool
    }

    /// The number of hot reads executed.
    #[cfg(test)]
    pub(crate) fn hot_reads(&self) -> usize {
        self.hot_reads.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Closes every pool except that of the hot read.
    #[cfg(test)]
    pub(crate) async fn close_all_but_hot_reads(&self) {
        self.reads.close().await;
        self.writes.close().await;
    }

    /// Simulates a full disk, or ends the simulation.
    #[cfg(test)]
    pub(crate) async fn fill_disk(&self, full: bool) {
        // A limit below the current page count is raised to that count.
        self.pragma(if full { "PRAGMA max_page_count = 1" } else { "PRAGMA max_page_count = 1073741823" })
            .await;
    }

    /// Makes the database refuse writes, or accept them again.
    #[cfg(test)]
    pub(crate) async fn lock_disk(&self, locked: bool) {
        self.pragma(if locked { "PRAGMA query_only = ON" } else { "PRAGMA query_only = OFF" }).await;
    }

    /// Executes a pragma on the only write connection, and on each that replaces it.
    #[cfg(test)]
    async fn pragma(&self, pragma: &'static str) {
        self.write_fault.set(pragma);
        sqlx::raw_sql(pragma).execute(&self.writes).await.unwrap();
    }

    /// Whether no connection is in use.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.hot_read_pool.is_idle()
            && [&self.writes, &self.reads].iter().all(|pool| pool.num_idle() == pool.size() as usize)
    }
}
