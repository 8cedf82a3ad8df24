//! The ledger: every change and its audit row in one transaction, chained by hashes.

use std::sync::Arc;

pub(crate) use contract::audit::AuditEvent as Event;
use contract::{EngineId, ProductId, Timestamp, UserId};
use serde_json::Value;
use sqlx::{Any, AnyConnection, Row as _, Transaction};
use tokio::sync::OwnedMutexGuard;

use super::access::within;
use super::chain::Link;
use super::news::News;
use super::{Lock, Registry, RegistryError};

/// An audit row to be written.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) at: Timestamp,
    pub(crate) event: Event,
    /// The engine it is about, and its user.
    pub(crate) engine: Option<(EngineId, UserId)>,
    pub(crate) duration_ms: Option<i64>,
    /// An object.
    pub(crate) detail: Value,
}

impl Entry {
    /// The hash of the row that this entry becomes as the `id`-th of `product_id`, after a row hashed `before`.
    pub(crate) fn hash(&self, product_id: ProductId, id: i64, before: &str) -> String {
        let engine = self.engine.as_ref();
        let engine_id = engine.map(|(engine_id, _)| engine_id.to_string());
        let link = Link {
            product_id: &product_id.to_string(),
            id,
            at: self.at.unix_ms(),
            engine_id: engine_id.as_deref(),
            user_id: engine.map(|(_, user_id)| user_id.as_str()),
            event: self.event.as_str(),
            duration_ms: self.duration_ms,
            detail: &self.detail.to_string(),
        };
        link.hash(before)
    }
}

/// A transaction on one product: its engines and its ledger. Dropped, it changes nothing.
pub(super) struct Ledger {
    transaction: Transaction<'static, Any>,
    product_id: ProductId,
    /// The id of the row last written.
    id: i64,
    /// How many rows are still to be written.
    missing: i64,
    hash: String,
    /// The product's policy as it is stored: in force until the transaction ends.
    policy: String,
    /// Rows written that count towards the product's lifetime figures.
    provisions: i64,
    destroys: i64,
    /// Where those are who wait for rows.
    news: Arc<News>,
    /// Behind the transaction, which ends first.
    _turn: OwnedMutexGuard<()>,
}

/// Takes a product's row, and with it the right to change what is the product's until the transaction ends.
const TAKE: &str = "UPDATE products SET audit_seq = audit_seq + $1 WHERE product_id = $2 \
                    RETURNING audit_seq, audit_hash, policy";

/// The same, as long as the registry is ours: whoever takes it over waits for those who have looked.
const TAKE_FENCED: &str = "WITH held AS (SELECT 1 FROM meta WHERE name = 'epoch' AND value = $3 FOR SHARE) \
                           UPDATE products SET audit_seq = audit_seq + $1 \
                           WHERE product_id = $2 AND EXISTS (SELECT 1 FROM held) \
                           RETURNING audit_seq, audit_hash, policy";

impl Registry {
    /// Begins a transaction on `product_id` that will write `rows` audit rows.
    pub(super) async fn ledger(&self, product_id: ProductId, rows: i64) -> Result<Ledger, RegistryError> {
        // Waited for no longer than for a statement.
        let turn = within(async { Ok(self.turns.take(product_id).await) }).await?;
        let mut transaction = within(self.writes.begin()).await?;
        let take = match &self.lock {
            Lock::File { .. } => sqlx::query(TAKE),
            Lock::Session(_) => sqlx::query(TAKE_FENCED),
        };
        let mut take = take.bind(rows).bind(product_id.to_string());
        if let Lock::Session(hold) = &self.lock {
            take = take.bind(hold.epoch().to_owned());
        }
        let Some(end) = within(take.fetch_optional(&mut *transaction)).await? else {
            self.check_fence(&mut transaction).await?;
            return Err(RegistryError::ProductGone);
        };
        let last_id: i64 = end.try_get(0)?;
        let (hash, policy) = (end.try_get(1)?, end.try_get(2)?);
        Ok(Ledger {
            transaction,
            product_id,
            id: last_id - rows,
            missing: rows,
            hash,
            policy,
            provisions: 0,
            destroys: 0,
            news: Arc::clone(&self.news),
            _turn: turn,
        })
    }
}

impl Ledger {
    /// The product's policy as it is stored.
    pub(super) fn policy(&self) -> &str {
        &self.policy
    }

    /// Where further statements of the transaction run.
    pub(super) fn connection(&mut self) -> &mut AnyConnection {
        &mut self.transaction
    }

    /// Writes the next audit row.
    pub(super) async fn append(&mut self, entry: &Entry) -> Result<(), RegistryError> {
        self.id += 1;
        self.missing -= 1;
        self.provisions += i64::from(entry.event == Event::Provision);
        self.destroys += i64::from(entry.event == Event::Destroy);
        self.hash = entry.hash(self.product_id, self.id, &self.hash);
        insert(&mut self.transaction, self.product_id, self.id, entry, &self.hash).await
    }

    /// Commits what was written, audit rows and all, and tells those who wait for rows.
    pub(super) async fn commit(mut self) -> Result<(), RegistryError> {
        if self.missing != 0 {
            return Err(RegistryError::LedgerIncomplete);
        }
        within(
            sqlx::query(
                "UPDATE products SET audit_hash = $1, provisions = provisions + $2, destroys = destroys + $3 \
             WHERE product_id = $4",
            )
            .bind(self.hash)
            .bind(self.provisions)
            .bind(self.destroys)
            .bind(self.product_id.to_string())
            .execute(&mut *self.transaction),
        )
        .await?;
        within(self.transaction.commit()).await?;
        // Right behind the commit, with nothing awaited between: a change dropped half-way was not committed, or
        // is told.
        self.news.tell(self.product_id);
        Ok(())
    }
}

pub(super) async fn insert(
    connection: &mut AnyConnection,
    product_id: ProductId,
    id: i64,
    entry: &Entry,
    hash: &str,
) -> Result<(), RegistryError> {
    let engine = entry.engine.as_ref();
    within(
        sqlx::query(
            "INSERT INTO audit_log \
         (product_id, id, at, engine_id, user_id, event, duration_ms, detail, hash) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(product_id.to_string())
        .bind(id)
        .bind(entry.at.unix_ms())
        .bind(engine.map(|(engine_id, _)| engine_id.to_string()))
        .bind(engine.map(|(_, user_id)| user_id.as_str().to_owned()))
        .bind(entry.event.as_str())
        .bind(entry.duration_ms)
        .bind(entry.detail.to_string())
        .bind(hash.to_owned())
        .execute(connection),
    )
    .await?;
    Ok(())
}
